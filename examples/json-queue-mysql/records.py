"""Invented records of a shop, as JSON lines: the same ones whenever it is started.

    python3 records.py FOLDER [RECORDS [FILES]]

One record in three is an order; the others are visits of pages. One order in a thousand cannot be read or is not valid,
and one in a hundred is there twice, as senders that try again do it.
"""

import json
import os
import random
import sys

COUNTRIES = ["AT", "CH", "DE", "ES", "FR", "IT", "NL", "PL"]
NAMES = ["Ada", "Björn", "Chloé", "Dorota", "Emil", "Zoë \"Z\"", "O'Hara", "李"]
# What makes an order useless, in turn.
FAULTS = [
    lambda order: json.dumps(order)[:-20],
    lambda order: json.dumps({**order, "total": "a lot"}),
    lambda order: json.dumps({**order, "id": None}),
    lambda order: json.dumps({**order, "total": "-1.00"}),
]


def visit(number, source):
    page = "/articles/%d" % source.randrange(10_000)
    return json.dumps({"id": number, "type": "visit", "page": page, "seconds": source.randrange(600)})


def order(number, source):
    items = [
        {"article": "A-%04d" % source.randrange(10_000), "pieces": source.randrange(1, 5)}
        for _ in range(source.randrange(1, 4))
    ]
    return {
        "id": number,
        "type": "order",
        "at": "2026-%02d-%02dT%02d:%02d:00Z" % (1 + number % 12, 1 + number % 28, number % 24, number % 60),
        "customer": {"name": source.choice(NAMES), "country": source.choice(COUNTRIES)},
        "items": items,
        "total": "%d.%02d" % (source.randrange(1, 500), source.randrange(100)),
    }


def lines(first, end):
    """The lines of the records with these numbers."""
    for number in range(first, end):
        source = random.Random(number)
        if number % 3:
            yield visit(number, source)
            continue
        record, which = order(number, source), number // 3
        if which % 1000 == 500:
            yield FAULTS[which // 1000 % len(FAULTS)](record)
            continue
        line = json.dumps(record, ensure_ascii=False)
        yield line
        if which % 100 == 50:
            yield line


def main(folder, records="100000", files="4"):
    os.makedirs(folder, exist_ok=True)
    records, files = int(records), int(files)
    for part in range(files):
        with open(os.path.join(folder, "part-%02d.jsonl" % part), "w", encoding="utf-8") as file:
            for line in lines(records * part // files, records * (part + 1) // files):
                file.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

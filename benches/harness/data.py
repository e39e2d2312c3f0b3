"""What the rows of the benchmarks are: trades and places, the same bytes for the same numbers on every machine.

Only content is made here; which files there are and where they lie is `store.py`'s. Random numbers come from
`random.Random` seeded by the unit, and from `random()` and `getrandbits()` alone, which Python keeps stable.

- **Trades** are like NASDAQ's short-sale trades of 2005: one text file a day, fields divided by bars, invented.
- **Places** are the 34,006 real ones in `examples/geonames` (GeoNames, CC BY 4.0), moved about a little and counted on
  to the size of the whole GeoNames table: 12.1 million rows of about 122 bytes.
"""

import datetime
import functools
import gzip
import math
import random
import statistics
import unicodedata
from collections.abc import Iterator
from pathlib import Path

GEONAMES = Path(__file__).parents[2] / "examples/geonames/data/cities15000"

TRADE_COLUMNS = {
    "market": "utf8", "symbol": "utf8", "date": "utf8", "time": "utf8", "type": "utf8", "size": "int64",
    "price": "float64", "link": "int64",
}  # fmt: skip
PLACE_COLUMNS = {
    "geonameid": "int64", "name": "utf8", "asciiname": "utf8", "alternatenames": "utf8", "latitude": "float64",
    "longitude": "float64", "feature_class": "utf8", "feature_code": "utf8", "country": "utf8", "cc2": "utf8",
    "admin1": "utf8", "admin2": "utf8", "admin3": "utf8", "admin4": "utf8", "population": "int64", "elevation": "int64",
    "dem": "int64", "timezone": "utf8", "modification_date": "utf8",
}  # fmt: skip

DAYS = 252
TRADES_A_DAY = 59_940
PLACE_UNITS = 99_256
PLACES_A_UNIT = 122
PLACES_A_TINY_UNIT = 110
ZSTD_UNITS = 2_600
ZSTD_PLACES = 3_600
JSON_TRADES = 10_200_000
SYMBOLS = 3_200
OTHER_NAMES = 36  # bytes

HOLIDAYS = {(1, 17), (2, 21), (3, 25), (5, 30), (7, 4), (9, 5), (11, 24), (12, 26)}
SESSION = 23_400  # seconds from 9:30 to 16:00


def trading_days() -> list[datetime.date]:
    """The 252 days of 2005 on which NASDAQ was open."""
    first = datetime.date(2005, 1, 1)
    days = (first + datetime.timedelta(days=number) for number in range(365))
    return [day for day in days if day.weekday() < 5 and (day.month, day.day) not in HOLIDAYS]


@functools.cache
def symbols() -> list[tuple[str, str, int]]:
    """Each symbol with its market and its price in cents."""
    source = random.Random("symbols")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    found: dict[str, tuple[str, str, int]] = {}
    while len(found) < SYMBOLS:
        name = "".join(letters[int(source.random() * 26)] for _ in range(3 + int(source.random() * 2)))
        found.setdefault(name, ("QNB"[int(source.random() ** 4 * 3)], name, 200 + int(source.random() ** 2 * 9_000)))
    return list(found.values())


@functools.cache
def clock(second: int) -> str:
    """A second of the day as text."""
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def trades(day: int, rows: int) -> Iterator[tuple[str, str, str, str, str, int, str, str]]:
    """The trades of a day, in the order of time. A few symbols have most of them, as in life."""
    source = random.Random(f"trades {day}")
    chance, bits = source.random, source.getrandbits
    listed = symbols()
    cents = [price for _, _, price in listed]
    date = trading_days()[day % DAYS].strftime("%Y%m%d")
    for row in range(rows):
        number = int(chance() ** 3 * SYMBOLS)
        market, symbol, _ = listed[number]
        price = cents[number] = max(100, cents[number] + (bits(3) - 3))
        time = clock(34_200 + row * SESSION // rows)
        draw = bits(8)
        size = 100 * (1 + (draw & 7)) if draw < 160 else 1 + bits(10)
        yield market, symbol, date, time, "SE"[draw < 24], size, f"{price // 100}.{price % 100:02}", "0"


def trades_csv(day: int, rows: int) -> Iterator[str]:
    """A day's trades as text, in pieces: bars between the fields, a header."""
    yield "|".join(TRADE_COLUMNS) + "\n"
    yield from pieces(
        f"{market}|{symbol}|{date}|{time}|{kind}|{size}|{price}|{link}\n"
        for market, symbol, date, time, kind, size, price, link in trades(day, rows)
    )


def day_json(day: int, rows: int) -> Iterator[str]:
    """A day's trades as JSON lines, in pieces."""
    yield from pieces(
        f'{{"market":"{market}","symbol":"{symbol}","date":"{date}","time":"{time}","type":"{kind}",'
        f'"size":{size},"price":{price},"link":{link}}}\n'
        for market, symbol, date, time, kind, size, price, link in trades(day, rows)
    )


def trades_json(rows: int) -> Iterator[str]:
    """As many trades as JSON lines, in pieces."""
    for day, start in enumerate(range(0, rows, TRADES_A_DAY)):
        yield from day_json(day, min(TRADES_A_DAY, rows - start))


@functools.cache
def real_places() -> list[tuple[str, str, str, float, float, str, str, int, str]]:
    """The real places: name, the same in ASCII, other names cut short, position, country, region, people, zone."""
    found = []
    for path in sorted(GEONAMES.glob("part-*.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                _, name, others, latitude, longitude, country, admin1, people, zone = line.rstrip("\n").split("\t")
                names = name, in_ascii(name), shortened(others)
                found.append((*names, float(latitude), float(longitude), country, admin1, int(people), zone))
    if not found:
        raise FileNotFoundError(f"no places in {GEONAMES}")
    return found


def in_ascii(name: str) -> str:
    """The name without its accents."""
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def shortened(others: str) -> str:
    """The first names, about as many as a place of the whole table has on average."""
    kept = others.split(",")
    while len(kept) > 1 and sum(map(len, kept)) > OTHER_NAMES:
        kept.pop()
    return ",".join(kept)


def places(unit: int, rows: int) -> Iterator[str]:
    """The rows of a unit of places in the 19 columns of GeoNames' table, divided by tabs, no header.

    Neighbours are mostly of one country, as in the whole table.
    """
    chance = random.Random(f"places {unit}").random
    real = real_places()
    start = int(chance() * len(real))
    for row in range(rows):
        name, plain, others, latitude, longitude, country, admin1, people, zone = real[(start + row) % len(real)]
        north, east = latitude + chance() * 0.2 - 0.1, longitude + chance() * 0.2 - 0.1
        people = int(people * chance()) if chance() < 0.5 else 0
        number = unit * PLACES_A_UNIT + row + 1
        yield (
            f"{number}\t{name}\t{plain}\t{others}\t{north:.5f}\t{east:.5f}\tP\tPPL\t{country}\t\t"
            f"{admin1}\t\t\t\t{people}\t\t{int(chance() * 900)}\t{zone}\t20{10 + row % 9}-01-17\n"
        )


def zstd_rows(units: int) -> list[int]:
    """How many rows each zstd file has: log-normal, the largest some 200 times the median."""
    normal = statistics.NormalDist()
    spread = 1.5
    mean = math.exp(spread**2 / 2)
    sizes = [math.exp(spread * normal.inv_cdf((number + 0.5) / units)) / mean for number in range(units)]
    rows = [max(1, round(ZSTD_PLACES * size)) for size in sizes]
    random.Random("zstd").shuffle(rows)
    return rows


def pieces(lines: Iterator[str], many: int = 5_000) -> Iterator[str]:
    """Lines put together, so that what writes them is called seldom."""
    held: list[str] = []
    for line in lines:
        held.append(line)
        if len(held) == many:
            yield "".join(held)
            held.clear()
    yield "".join(held)

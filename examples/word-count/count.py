"""The reducer, a program of its own: the rows of a word, of which the last is followed by an empty line, to one row."""

import json
import sys

word, count, countries = None, 0, []
for line in sys.stdin:
    if line != "\n":
        row = json.loads(line)
        word, count = row["word"], count + 1
        # They come in order.
        if not countries or countries[-1] != row["country"]:
            countries.append(row["country"])
        continue
    print(json.dumps({"word": word, "count": count, "countries": countries}))
    # The empty line ends the answer, and only what was flushed has been said.
    print(flush=True)
    count, countries = 0, []

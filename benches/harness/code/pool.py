"""The function on rows with `multiprocessing.Pool`.

    python pool.py INPUT OUTPUT PROCESSES CHUNK

Reads JSON lines, calls the function on each, and writes JSON lines in any order.
"""

import json
import multiprocessing
import sys

from repackage import repackage


def work(line: bytes) -> str | None:
    """The line of a record."""
    record = repackage(json.loads(line))
    return None if record is None else json.dumps(record, ensure_ascii=False)


def main() -> None:
    """Hands lines to the processes, in chunks."""
    source, target, processes, chunk = sys.argv[1:]
    with (
        multiprocessing.Pool(int(processes)) as pool,
        open(source, "rb") as lines,
        open(target, "w", encoding="utf-8") as output,
    ):
        for line in pool.imap_unordered(work, lines, int(chunk)):
            if line is not None:
                output.write(line + "\n")
    print("done")


if __name__ == "__main__":
    main()

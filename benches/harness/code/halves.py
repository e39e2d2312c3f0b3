"""The function on batches of Arrow in two processes, each of which reads half of the row groups.

    python halves.py FILE

It prints what both find together, as a JSON object.
"""

import json
import multiprocessing
import sys

PROCESSES = 2


def half(path: str, part: int) -> dict[str, int]:
    """What one process finds in its row groups."""
    import pyarrow.compute
    import pyarrow.parquet
    from upper import upper

    file = pyarrow.parquet.ParquetFile(path)
    found = {"rows": 0, "bytes": 0, "capitals": 0}
    groups = list(range(file.num_row_groups))
    middle = len(groups) // PROCESSES
    for batch in file.iter_batches(row_groups=groups[:middle] if part == 0 else groups[middle:]):
        names = upper(batch).column("name")
        capitals = pyarrow.compute.match_substring(names, "A")
        found["rows"] += len(names)
        found["bytes"] += pyarrow.compute.sum(pyarrow.compute.binary_length(names)).as_py() or 0
        found["capitals"] += pyarrow.compute.sum(capitals).as_py() or 0
    return found


def main() -> None:
    """Adds up what both find."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        one, other = pool.starmap(half, [(sys.argv[1], part) for part in range(PROCESSES)])
    print(json.dumps({name: one[name] + other[name] for name in one}))


if __name__ == "__main__":
    main()

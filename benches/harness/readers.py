"""ConnectorX. Runs as a process of its own, in the environment that `tools.py` makes.

    python readers.py URL FILE

It reads the table `posts`, over two connections from a server, and writes CSV. It prints the seconds from
the query to the file on the disk; the start of Python does not count.
"""

import json
import os
import sys
import time


def main() -> None:
    """Reads all rows and writes them."""
    import connectorx

    url, path = sys.argv[1:]
    url = url.replace("sqlite:", "sqlite://", 1).replace("postgres:", "postgresql:", 1)
    start = time.perf_counter()
    rows = connectorx.read_sql(url, "SELECT * FROM posts", return_type="polars", **({} if "sqlite" in url else parts()))
    rows.write_csv(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    print(json.dumps({"seconds": time.perf_counter() - start}))


def parts() -> dict:
    """How the rows are cut among connections."""
    return {"partition_on": "id", "partition_num": 2}


if __name__ == "__main__":
    main()

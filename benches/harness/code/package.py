"""Queries over rows that the package `millstream` reads, in an environment that has it.

    python package.py ENGINE TASK

ENGINE is duckdb or polars, TASK that of `peers.py` and the names of the columns `used`; it prints the same. ENGINE
`import` prints how long `import millstream` takes.
"""

import json
import resource
import sys
import time
from collections.abc import Callable

MEMORY = "128MB"  # of Millstream; the rest of the process is the engine's


def read(task: dict, columns: list[str] | None = None) -> "millstream.Rows":  # noqa: F821
    """The rows of the files, with some of their columns."""
    import millstream

    form = {name: task[name] for name in ("delimiter", "header", "columns")}
    return millstream.read(task["paths"], csv=form, columns=columns, memory=MEMORY)


def duckdb_rows(task: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in DuckDB."""
    import duckdb
    import millstream  # noqa: F401 - the import does not count

    def run() -> list[tuple]:
        # DuckDB asks for all columns of what it is given; Polars asks for those that it uses.
        input = read(task, task["used"])  # noqa: F841 - the query names it
        return duckdb.sql(task["sql"]).fetchall()

    return run


def polars_rows(task: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in Polars."""
    import millstream  # noqa: F401 - the import does not count
    import polars

    return lambda: polars.SQLContext(input=read(task).lazy()).execute(task["sql"]).collect(engine="streaming").rows()


def imported() -> dict[str, float]:
    """How long the import takes."""
    start = time.perf_counter()
    import millstream  # noqa: F401

    return {"seconds": time.perf_counter() - start}


def cpu_seconds() -> float:
    """Processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Runs one query, and prints its answer and times."""
    if sys.argv[1] == "import":
        print(json.dumps(imported()))
        return
    query = {"duckdb": duckdb_rows, "polars": polars_rows}[sys.argv[1]](json.loads(sys.argv[2]))
    start, cpu = time.perf_counter(), cpu_seconds()
    rows = query()
    took = {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - cpu}
    print(json.dumps({**took, "answer": dict(rows)}))


if __name__ == "__main__":
    main()

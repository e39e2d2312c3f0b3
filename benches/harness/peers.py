"""DuckDB and Polars. Runs as a process of its own, in the environment that `tools.py` makes.

    python peers.py ENGINE TASK

ENGINE is duckdb or polars, TASK a JSON object: `paths` (a glob), `format` (csv or json), `columns` (name to type),
`delimiter`, `header`, and `sql` over a table `input`. It prints the answer with the seconds and the processor seconds
of the query alone, without Python's start. With `into` (a path) instead of `sql` the rows are sorted
`by` a column into a file, within `memory` where the engine knows a limit, with `scratch` as its folder.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

TYPES = {"int64": "BIGINT", "float64": "DOUBLE", "utf8": "VARCHAR"}


def duckdb_table(task: dict) -> str:
    """The table function that reads the input."""
    columns = ", ".join(f"'{name}': '{TYPES[kind]}'" for name, kind in task["columns"].items())
    if task["format"] == "json":
        return f"read_json('{task['paths']}', format = 'newline_delimited', columns = {{{columns}}})"
    quote = "" if task["delimiter"] == "\x01" else '"'
    return (
        f"read_csv('{task['paths']}', columns = {{{columns}}}, delim = '{task['delimiter']}', quote = '{quote}', "
        f"escape = '{quote}', header = {str(task['header']).lower()}, auto_detect = false)"
    )


def duckdb_rows(task: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in DuckDB."""
    import duckdb

    return lambda: duckdb.sql(task["sql"].replace("FROM input", f"FROM {duckdb_table(task)}")).fetchall()


def duckdb_sort(task: dict) -> Callable[[], None]:
    """The sort, ready to run in DuckDB."""
    import duckdb

    duckdb.sql(f"SET temp_directory = '{task['scratch']}/duckdb'")
    duckdb.sql("SET threads = 2")
    if task["memory"]:
        duckdb.sql(f"SET memory_limit = '{task['memory']}'")
    sorted_rows = f"SELECT * FROM {duckdb_table(task)} ORDER BY {task['by']}"
    quote = "QUOTE '', ESCAPE '', " if task["delimiter"] == "\x01" else ""
    shape = f"FORMAT csv, HEADER false, {quote}DELIMITER '{task['delimiter']}'"
    return lambda: duckdb.sql(f"COPY ({sorted_rows}) TO '{task['into']}' ({shape})")


def polars_frame(task: dict) -> "polars.LazyFrame":  # noqa: F821
    """The lazy frame that reads the input."""
    import polars

    types = {"int64": polars.Int64, "float64": polars.Float64, "utf8": polars.String}
    schema = {name: types[kind] for name, kind in task["columns"].items()}
    if task["format"] == "json":
        return polars.scan_ndjson(task["paths"], schema=schema)
    quote = None if task["delimiter"] == "\x01" else '"'
    return polars.scan_csv(
        task["paths"], separator=task["delimiter"], has_header=task["header"], quote_char=quote, schema=schema
    )


def polars_rows(task: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in Polars."""
    import polars

    return lambda: polars.SQLContext(input=polars_frame(task)).execute(task["sql"]).collect(engine="streaming").rows()


def polars_sort(task: dict) -> Callable[[], None]:
    """The sort, ready to run in Polars."""
    frame = polars_frame(task)
    return lambda: frame.sort(task["by"]).sink_csv(task["into"], include_header=False, quote_style="never")


def cpu_seconds() -> float:
    """Processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Runs one query, and prints its answer and times."""
    engine, task = sys.argv[1], json.loads(sys.argv[2])
    engines = {"duckdb": (duckdb_rows, duckdb_sort), "polars": (polars_rows, polars_sort)}[engine]
    query = engines["into" in task](task)
    start, cpu = time.perf_counter(), cpu_seconds()
    rows = query()
    if "into" in task:
        synced(task["into"])
        rows = [(None,)]
    took = {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - cpu}
    answer = rows[0][0] if len(rows[0]) == 1 else dict(rows)
    print(json.dumps({**took, "answer": answer}))


def synced(path: str) -> None:
    """Waits until a file is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()

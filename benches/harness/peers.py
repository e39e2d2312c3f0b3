"""DuckDB and Polars at work. Runs in the environment that `tools.py` makes, as a process of its own.

    python peers.py ENGINE WORK

ENGINE is duckdb or polars, WORK a JSON object: `paths` (a glob), `format` (csv or json), `columns` (name to type),
`delimiter`, `header`, and `sql` over a table `input`. It prints the answer with the seconds and the processor seconds
of the query alone: a peer does not pay for Python's start. With `into` (a path) instead of `sql` the rows are sorted
`by` a column into a file, within `memory` where the engine knows a limit, with `scratch` as its folder.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

TYPES = {"int64": "BIGINT", "float64": "DOUBLE", "utf8": "VARCHAR"}


def duckdb_table(work: dict) -> str:
    """What is read, as a table function."""
    columns = ", ".join(f"'{name}': '{TYPES[kind]}'" for name, kind in work["columns"].items())
    if work["format"] == "json":
        return f"read_json('{work['paths']}', format = 'newline_delimited', columns = {{{columns}}})"
    quote = "" if work["delimiter"] == "\x01" else '"'
    return (
        f"read_csv('{work['paths']}', columns = {{{columns}}}, delim = '{work['delimiter']}', quote = '{quote}', "
        f"escape = '{quote}', header = {str(work['header']).lower()}, auto_detect = false)"
    )


def duckdb_rows(work: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in DuckDB."""
    import duckdb

    return lambda: duckdb.sql(work["sql"].replace("FROM input", f"FROM {duckdb_table(work)}")).fetchall()


def duckdb_sort(work: dict) -> Callable[[], None]:
    """The sort, ready to run in DuckDB."""
    import duckdb

    duckdb.sql(f"SET temp_directory = '{work['scratch']}/duckdb'")
    duckdb.sql("SET threads = 2")
    if work["memory"]:
        duckdb.sql(f"SET memory_limit = '{work['memory']}'")
    sorted_rows = f"SELECT * FROM {duckdb_table(work)} ORDER BY {work['by']}"
    quote = "QUOTE '', ESCAPE '', " if work["delimiter"] == "\x01" else ""
    shape = f"FORMAT csv, HEADER false, {quote}DELIMITER '{work['delimiter']}'"
    return lambda: duckdb.sql(f"COPY ({sorted_rows}) TO '{work['into']}' ({shape})")


def polars_frame(work: dict) -> "polars.LazyFrame":  # noqa: F821
    """What is read."""
    import polars

    types = {"int64": polars.Int64, "float64": polars.Float64, "utf8": polars.String}
    schema = {name: types[kind] for name, kind in work["columns"].items()}
    if work["format"] == "json":
        return polars.scan_ndjson(work["paths"], schema=schema)
    quote = None if work["delimiter"] == "\x01" else '"'
    return polars.scan_csv(
        work["paths"], separator=work["delimiter"], has_header=work["header"], quote_char=quote, schema=schema
    )


def polars_rows(work: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in Polars."""
    import polars

    return lambda: polars.SQLContext(input=polars_frame(work)).execute(work["sql"]).collect(engine="streaming").rows()


def polars_sort(work: dict) -> Callable[[], None]:
    """The sort, ready to run in Polars."""
    frame = polars_frame(work)
    return lambda: frame.sort(work["by"]).sink_csv(work["into"], include_header=False, quote_style="never")


def cpu_seconds() -> float:
    """Processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Runs one query and prints what it gave and took."""
    engine, work = sys.argv[1], json.loads(sys.argv[2])
    ways = {"duckdb": (duckdb_rows, duckdb_sort), "polars": (polars_rows, polars_sort)}[engine]
    query = ways["into" in work](work)
    start, cpu = time.perf_counter(), cpu_seconds()
    rows = query()
    if "into" in work:
        synced(work["into"])
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

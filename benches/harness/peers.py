"""DuckDB and Polars at work. Runs in the environment that `tools.py` makes, as a process of its own.

    python peers.py ENGINE WORK

ENGINE is duckdb or polars, WORK a JSON object: `paths` (a glob), `format` (csv or json), `columns` (name to type),
`delimiter`, `header`, and `sql` over a table `input`. It prints the answer with the seconds and the processor seconds
of the query alone: a peer does not pay for Python's start.
"""

import json
import resource
import sys
import time
from collections.abc import Callable

TYPES = {"int64": "BIGINT", "float64": "DOUBLE", "utf8": "VARCHAR"}


def duckdb_rows(work: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in DuckDB."""
    import duckdb

    columns = ", ".join(f"'{name}': '{TYPES[kind]}'" for name, kind in work["columns"].items())
    if work["format"] == "json":
        table = f"read_json('{work['paths']}', format = 'newline_delimited', columns = {{{columns}}})"
    else:
        quote = "" if work["delimiter"] == "\x01" else '"'
        table = (
            f"read_csv('{work['paths']}', columns = {{{columns}}}, delim = '{work['delimiter']}', quote = '{quote}', "
            f"escape = '{quote}', header = {str(work['header']).lower()}, auto_detect = false)"
        )
    return lambda: duckdb.sql(work["sql"].replace("FROM input", f"FROM {table}")).fetchall()


def polars_rows(work: dict) -> Callable[[], list[tuple]]:
    """The query, ready to run in Polars."""
    import polars

    types = {"int64": polars.Int64, "float64": polars.Float64, "utf8": polars.String}
    schema = {name: types[kind] for name, kind in work["columns"].items()}

    def rows() -> list[tuple]:
        if work["format"] == "json":
            frame = polars.scan_ndjson(work["paths"], schema=schema)
        else:
            quote = None if work["delimiter"] == "\x01" else '"'
            frame = polars.scan_csv(
                work["paths"], separator=work["delimiter"], has_header=work["header"], quote_char=quote, schema=schema
            )
        return polars.SQLContext(input=frame).execute(work["sql"]).collect(engine="streaming").rows()

    return rows


def cpu_seconds() -> float:
    """Processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Runs one query and prints what it gave and took."""
    engine, work = sys.argv[1], json.loads(sys.argv[2])
    query = {"duckdb": duckdb_rows, "polars": polars_rows}[engine](work)
    start, cpu = time.perf_counter(), cpu_seconds()
    rows = query()
    took = {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - cpu}
    answer = rows[0][0] if len(rows[0]) == 1 else dict(rows)
    print(json.dumps({**took, "answer": answer}))


if __name__ == "__main__":
    main()

"""Loads of rows that another library has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream import _millstream
from millstream._report import Report
from millstream._run import as_report
from millstream._show import Show
from millstream._values import as_json, limits, without_none

if TYPE_CHECKING:
    from millstream._values import Path


def write(
    data: object,
    target: Path,
    *,
    table: str | None = None,
    mode: str | None = None,
    key: str | Sequence[str] | None = None,
    machine: Path | None = None,
    memory: int | str | None = None,
    cores: int | None = None,
    progress: bool | None = None,
    **settings: object,
) -> Report:
    """Loads rows into a file, a set of files, or a table of a database. Returns the report.

    >>> import polars
    >>> frame = polars.DataFrame({"name": ["Ulm", "Oslo"], "population": [126329, 717710]})
    >>> millstream.write(frame, "sqlite:out/places.db", table="places", mode="merge", key="name").rows_written
    2

    `data` is anything with `__arrow_c_stream__` or `__arrow_c_array__`: a frame of pandas or Polars, a table, batch or
    reader of pyarrow, a relation of DuckDB, or what `read` and `sql` give, which is not held in memory then.

    `target` is what the key `write` of a sink says in a job file: a path or a URL. `table`, `mode`, `key` and further
    `settings` are keys of the sink:

    >>> millstream.write(frame, "out/places.csv.gz", csv={"delimiter": ";"}).results[0].target
    'out/places.csv.gz'

    All rows become visible at once, or none. Raises `Error` if they cannot be loaded; `memory`, `cores`, `machine` and
    `progress` are as in `run`.
    """
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise TypeError(
            f"{type(data).__name__} has no `__arrow_c_stream__`: give a frame of pandas or Polars, a table of pyarrow, "
            "a relation of DuckDB, or rows of `millstream.read`"
        )
    place = {"table": table, "mode": mode, "key": [key] if isinstance(key, str) else key}
    sink = {"from": "rows", "write": os.fspath(target), **without_none(place), **settings}
    show, bounds = Show(progress), limits(machine, memory, cores)
    try:
        json, text = _millstream.write(data, as_json(sink), bounds, show, show.in_notebook, show.on_terminal)
    finally:
        show.end()
    return as_report(json, text)

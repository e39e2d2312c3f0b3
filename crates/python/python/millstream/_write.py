"""Loads of rows that another library has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream import _millstream
from millstream._errors import of_caller
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
    _check(data)
    place = {"table": table, "mode": mode, "key": [key] if isinstance(key, str) else key}
    sink = {"from": "rows", "write": os.fspath(target), **without_none(place), **settings}
    show, bounds = Show(progress), limits(machine, memory, cores)
    try:
        json, text = _millstream.write(_exported(data), as_json(sink), bounds, show, show.in_notebook, show.on_terminal)
    finally:
        show.end()
    return as_report(json, text)


def _check(data: object) -> None:
    """Refuses what is no table."""
    kind, library = type(data).__name__, type(data).__module__.partition(".")[0]
    if kind == "LazyFrame" and library == "polars":
        raise TypeError("a LazyFrame has no rows yet: give `frame.collect()`")
    if kind == "Series" and library in ("pandas", "polars"):
        raise TypeError("a Series is a column, not rows: give a frame, `series.to_frame()`")
    if kind == "ChunkedArray" and library == "pyarrow":
        raise TypeError("a ChunkedArray is a column, not rows: give `pyarrow.table({NAME: array})`")
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise TypeError(
            f"{kind} has no `__arrow_c_stream__`: give a frame of pandas or Polars, a table of pyarrow, "
            "a relation of DuckDB, or rows of `millstream.read`"
        )


def _exported(data: Any) -> object:
    """The same, as it can be handed over. Polars hands over objects of Python as their addresses, and columns without
    values in a form that Arrow does not know: these become texts."""
    if type(data).__name__ != "DataFrame" or type(data).__module__.partition(".")[0] != "polars":
        return data
    import polars

    plain = dict[str, Any]()
    for name, kind in data.schema.items():
        if _has(kind, polars.Object):
            hint = "convert it, for instance to texts: `.map_elements(str, return_dtype=polars.String)`"
            raise of_caller(f"the column `{name}` has objects of Python, which cannot be written", text=name, hint=hint)
        if _has(kind, polars.Null):
            plain[name] = _without_null(kind)
    return data.cast(plain) if plain else data


def _inner(kind: Any) -> list[Any]:
    """The types inside of a type of Polars."""
    if (fields := getattr(kind, "fields", None)) is not None:
        return [field.dtype for field in fields]
    return [] if (inner := getattr(kind, "inner", None)) is None else [inner]


def _has(kind: Any, other: Any) -> bool:
    return kind == other or any(_has(one, other) for one in _inner(kind))


def _without_null(kind: Any) -> Any:
    """The type, with texts in place of columns without values."""
    import polars

    if kind == polars.Null:
        return polars.String()
    if kind == polars.Struct:
        return polars.Struct({field.name: _without_null(field.dtype) for field in kind.fields})
    if kind == polars.Array:
        return polars.Array(_without_null(kind.inner), kind.size)
    return polars.List(_without_null(kind.inner)) if kind == polars.List else kind

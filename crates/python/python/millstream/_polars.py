"""Rows as a lazy frame of Polars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars
from polars.io.plugins import register_io_source

from millstream._filters import condition
from millstream._show import place

if TYPE_CHECKING:
    from millstream._rows import Rows


def lazy(rows: Rows) -> polars.LazyFrame:
    """A lazy frame that reads `rows` when it is collected."""
    # Polars reads on a thread of its own, where nobody knows the program.
    schema, names, line = rows.schema, rows.columns, place()

    def read(
        with_columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        wanted = names if with_columns is None else with_columns
        filtered = [] if predicate is None else predicate.meta.root_names()
        used = [*wanted, *(name for name in dict.fromkeys(filtered) if name not in wanted)]
        # The first rows are those before the filter.
        where = None if predicate is None or n_rows is not None else condition(predicate, schema)
        for arrow in rows.part(used, where, n_rows).frames(line):
            frame = polars.DataFrame(arrow)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(wanted) if used != wanted else frame

    empty = polars.DataFrame(rows.empty())
    return register_io_source(read, schema=empty.schema, is_pure=True)

"""Rows of files, databases and queries, for other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from millstream import _millstream
from millstream._errors import Error, of_caller
from millstream._show import place, warn
from millstream._values import as_json, as_paths, limits

if TYPE_CHECKING:
    import polars

    from millstream._millstream import Batch, Frame, Place
    from millstream._values import Limits, Path


class Rows:
    """Rows that are read anew each time that they are used.

    pandas, Polars, DuckDB and pyarrow take them as they are, by the Arrow PyCapsule interface:

    >>> import duckdb, pandas, polars, pyarrow
    >>> places = millstream.read("places/*.csv.gz")
    >>> polars.DataFrame(places).height, pyarrow.table(places).num_rows, len(pandas.DataFrame.from_arrow(places))
    (4, 4, 4)
    >>> duckdb.sql("SELECT name FROM places ORDER BY population DESC LIMIT 1").fetchall()
    [('Oslo',)]

    Nothing is kept of what was read: a second use reads a second time.
    """

    __slots__ = ("__weakref__", "_entry", "_job", "_limits", "_rows", "_used")

    def __init__(
        self, job: dict[str, dict[str, object]], entry: str, limits: Limits, rows: _millstream.Rows | None = None
    ) -> None:
        self._job = job
        self._entry = entry
        self._limits = limits
        self._rows = _millstream.Rows(as_json(job), entry, limits) if rows is None else rows
        self._used = place()

    @property
    def warnings(self) -> list[str]:
        """What is strange about them and no error."""
        return self._rows.warnings

    @property
    def schema(self) -> dict[str, str]:
        """The names of the columns and their types, as a job file declares them.

        >>> millstream.read("places/*.csv.gz").schema
        {'name': 'utf8', 'country': 'utf8', 'population': 'int64'}
        """
        return dict(self._rows.columns)

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        >>> millstream.read("places/*.csv.gz").columns
        ['name', 'country', 'population']
        """
        return [name for name, _ in self._rows.columns]

    def batches(self) -> Iterator[Batch]:
        """Reads the rows, some thousand at a time. A few batches are read ahead, no more, so this takes little memory.

        >>> sum(polars.DataFrame(batch)["population"].sum() for batch in millstream.read("places/*.csv.gz").batches())
        1135979

        A batch is taken by `pyarrow.record_batch`, `polars.DataFrame` and others.
        """
        return self._rows.batches(place())

    def lazy(self) -> polars.LazyFrame:
        """A `polars.LazyFrame` of the rows. Each time that it is collected they are read anew: the columns that the
        query uses, and the rows that its filters keep, as far as Millstream can tell which these are.

        >>> places = millstream.read("places/*.csv.gz").lazy()
        >>> people = places.group_by("country").agg(polars.col("population").sum())
        >>> people.sort("country").collect(engine="streaming").rows()
        [('DE', 126329), ('NO', 1009650)]
        """
        from millstream._polars import lazy

        return lazy(self)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def __arrow_c_schema__(self) -> object:
        """The columns, by the Arrow PyCapsule interface."""
        self._used = place() or self._used
        return self._rows.schema_capsule()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A new read, by the Arrow PyCapsule interface. The types are always those of `schema`."""
        # DuckDB looks at the columns on the thread of the program, and may begin the read on one of its own.
        return self._rows.stream_capsule(place() or self._used)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self._rows.columns)
        return f"<millstream.Rows {columns}>"

    def empty(self) -> Batch:
        """A batch with these columns and without rows."""
        return self._rows.empty()

    def frames(self, line: Place | None = None) -> Iterator[Frame]:
        """Reads the rows, some batches at a time, with texts as views: as Polars has them. `line` is the line of the
        program that wants them, if it does not call this itself."""
        return self._rows.frames(line or place())

    def part(self, columns: Sequence[str] | None, where: str | None, limit: int | None) -> Rows:
        """Some columns and rows of these: `where` is a condition in SQL, `limit` the most rows."""
        name = "part"
        while any(name in entries for entries in self._job.values()):
            name += "_"
        transforms = {**self._job.get("transforms", {}), name: {"sql": select(columns, where, limit, self._entry)}}
        return Rows({**self._job, "transforms": transforms}, name, self._limits)


def read(
    path: Path | Sequence[Path],
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    machine: Path | None = None,
    memory: int | str | None = None,
    cores: int | None = None,
    **settings: object,
) -> Rows:
    """Looks at files, buckets, web servers or a table of a database, and gives their rows.

    >>> millstream.read("places/*.csv.gz", columns=["name", "population"], where="population > 500000")
    <millstream.Rows name: utf8, population: int64>

    `path` is what the key `read` of a source says in a job file: a path or a URL, with `*`, `**` and `{a,b}`, or
    several of them. The format comes from the names, the types of columns from the beginning of the files. `columns`
    chooses columns: the others are not even parsed. `where` is a condition in SQL. `settings` are further keys of the
    source:

    >>> types = {"name": "utf8", "country": "utf8", "population": "float64"}
    >>> millstream.read("places/*.csv.gz", csv={"columns": types}, max_rejects=100)
    <millstream.Rows name: utf8, country: utf8, population: float64>

    The rows are read when they are used. `memory` (`"512MB"`), `cores` and `machine` (a machine file) say what
    Millstream may use for that.

    Raises `Error` if something is missing or wrong.
    """
    paths = as_paths(path)
    source = {"read": paths[0] if len(paths) == 1 else paths, **settings}
    bounds = limits(machine, memory, cores)
    job: dict[str, dict[str, object]] = {"sources": {"rows": source}}
    if columns is None and where is None:
        return _warned(_with_settings(job, bounds))
    chosen: dict[str, object] = {"chosen": {"sql": select(columns, where, None, "rows")}}
    try:
        return _warned(Rows({**job, "transforms": chosen}, "chosen", bounds))
    except Error as error:
        there = _with_settings(job, bounds).columns
        if columns is not None:
            _check(columns, there)
        if where is None or error.kind != "job":
            raise
        # The places and texts are those of a query that nobody has seen.
        hint = f"it is a condition in SQL, such as `population > 1000`; columns: {', '.join(there)}"
        what = error.what.removeprefix("the SQL does not parse: ")
        raise of_caller(f"`where` is no condition on these rows: {what}", text=where, hint=hint) from None


def _warned(rows: Rows) -> Rows:
    """The same, after a warning of what is strange about them."""
    warn(rows.warnings)
    return rows


def _with_settings(job: dict[str, dict[str, object]], bounds: Limits) -> Rows:
    """The rows of the source of a job. An unknown key is compared with all that `read` takes."""
    try:
        return Rows(job, "rows", bounds)
    except Error as error:
        from difflib import get_close_matches

        text, problems = str(error), [problem.values() for problem in error.problems]
        for problem in problems:
            what, hint = str(problem["what"]), str(problem["hint"])
            if not what.startswith("unknown key") or _SOURCE_KEYS not in hint:
                continue
            near = get_close_matches(str(problem["text"]), _OWN_KEYS, 1)
            keys = hint[hint.index(_SOURCE_KEYS) + len(_SOURCE_KEYS):]
            meant = f"did you mean `{near[0]}`? " if near else hint[:hint.index(_SOURCE_KEYS)]
            problem["hint"] = f"{meant}valid keys: {', '.join(_OWN_KEYS)}, {keys}"
            problem["what"] = what.removesuffix(" in `rows`")
            text = text.replace(hint, problem["hint"], 1).replace(what, problem["what"], 1)
        raise Error(text, problems) from None


_OWN_KEYS = ("columns", "where", "machine", "memory", "cores")
"""What `read` takes beside the keys of a source."""

_SOURCE_KEYS = "valid keys: read, "
"""How the hint about an unknown key of a source begins, behind what may be meant."""


def sql(
    query: str,
    *,
    machine: Path | None = None,
    memory: int | str | None = None,
    cores: int | None = None,
) -> Rows:
    """Computes rows with SQL of files, which stand in quotes in place of tables: paths and URLs, with `*` and `**`.

    >>> people = millstream.sql("SELECT country, sum(population) AS people FROM 'places/*.csv.gz' GROUP BY country")
    >>> sorted(polars.DataFrame(people).rows())
    [('DE', 126329), ('NO', 1009650)]

    What comes back is the same kind of object as that of `read`: the query runs each time that it is used, and within
    `memory`. Raises `Error` with the place in the query if something is missing or wrong.
    """
    import json

    bounds = limits(machine, memory, cores)
    rows, job, entry = _millstream.Rows.of_query(query, bounds)
    return _warned(Rows(json.loads(job), entry, bounds, rows))


def _check(columns: Sequence[str], there: Sequence[str]) -> None:
    """Refuses columns that are not there, or are named twice."""
    for number, name in enumerate(columns):
        if name in columns[:number]:
            raise of_caller(f"`columns` names `{name}` twice", text=name, hint="name each column once") from None
        if name not in there:
            from difflib import get_close_matches

            near = get_close_matches(name, there, 1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            hint = f"{meant}valid columns: {', '.join(there)}"
            raise of_caller(f"there is no column `{name}`", text=name, hint=hint) from None


def select(columns: Sequence[str] | None, where: str | None, limit: int | None, table: str) -> str:
    """A query for some columns and rows of a table."""
    if isinstance(columns, str):
        raise TypeError("columns: give a list of names")
    names = cast("Sequence[object]", columns or ())
    if not all(isinstance(name, str) for name in names):
        raise TypeError("columns: names are texts")
    chosen = "*" if columns is None else ", ".join(map(quoted, columns))
    query = f"SELECT {chosen} FROM {quoted(table)}"
    if where is not None:
        query += f" WHERE {where}"
    return query if limit is None else f"{query} LIMIT {limit}"


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'

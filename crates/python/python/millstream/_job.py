"""Jobs that a program builds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream import _millstream
from millstream._errors import of_caller
from millstream._report import Report
from millstream._run import as_options, start
from millstream._values import as_json, as_paths, limits, without_none

if TYPE_CHECKING:
    from typing_extensions import Self

    from millstream._values import Path

_SECTIONS = ("sources", "functions", "transforms", "sinks")


class Job:
    """A job in the making: what it builds is a job file, which can be read, compared and kept.

    >>> job = (
    ...     millstream.Job()
    ...     .source("places", "places/*.csv.gz")
    ...     .filter("large", "population > 200000")
    ...     .sort("sorted", ["population desc"])
    ...     .sink("result", "out/large.csv")
    ... )
    >>> job.run().rows_written
    2
    >>> print(job)
    sources:
      places:
        read: "places/*.csv.gz"
    <BLANKLINE>
    transforms:
      large:
        filter:
          from: places
          where: "population > 200000"
      sorted:
        sort:
          from: large
          by: ["population desc"]
    <BLANKLINE>
    sinks:
      result:
        from: sorted
        write: "out/large.csv"

    Each method adds an entry, whose name is new, and returns the job. What reads another entry reads the one that was
    added last, unless `from_` names one. Texts are taken as they are: a `${NAME}` in them is no variable.

    `path` is where the job file would be: it appears in messages and in the run history, and a run resumes runs of the
    same path only. So two jobs of one folder have paths of their own: `Job("places.yaml")`.
    """

    def __init__(self, path: Path = "job.yaml") -> None:
        self._path = os.fspath(path)
        self._entries: dict[str, dict[str, dict[str, object]]] = {section: {} for section in _SECTIONS}
        self._functions: dict[tuple[str, str], Callable[..., object]] = {}
        """The functions that entries call, by the sections and names of these."""
        self._last: str | None = None

    def source(
        self,
        name: str,
        read: Path | Sequence[Path] | None = None,
        *,
        command: Sequence[str] | None = None,
        **settings: object,
    ) -> Self:
        """Adds a source: a path, a URL or several, or a program whose output is read; and further keys of the source.

        >>> job = millstream.Job().source("places", "places/*.csv.gz", max_rejects=100)
        >>> job = millstream.Job().source("numbers", command=["seq", "100"], lines={})
        """
        place: dict[str, object] = {} if command is None else {"command": list(command)}
        if read is not None:
            paths = as_paths(read)
            place["read"] = paths[0] if len(paths) == 1 else paths
        return self._reads("sources", name, {**place, **settings})

    def function(
        self,
        name: str,
        function: Callable[..., object] | str,
        *,
        arguments: Sequence[str],
        returns: str,
        deterministic: bool = False,
        **settings: object,
    ) -> Self:
        """Adds a function that the SQL of the job can call. It takes the values of a row, and gives one value.

        >>> def initial(name):
        ...     return None if name is None else name[0]
        >>> job = millstream.Job().source("places", "places/*.csv.gz")
        >>> job = job.function("initial", initial, arguments=["utf8"], returns="utf8", deterministic=True)
        >>> job = job.sql("initials", "SELECT initial(name) AS i, count(*) AS n FROM places GROUP BY 1")
        >>> job.sink("result", "out/initials.csv").run().rows_written
        4

        `arguments` and `returns` are types of columns. Which functions can be called is said at `map`.
        """
        code: dict[str, object] = {}
        if callable(function):
            _check(function)
        else:
            code["python"] = function
        types = {"arguments": list(arguments), "returns": returns}
        promise = {"deterministic": True} if deterministic else {}
        self._add("functions", name, {**code, **types, **promise, **settings})
        if callable(function):
            self._functions["functions", name] = function
        return self

    def transform(self, name: str, **settings: object) -> Self:
        """Adds a transform by its settings, as they stand in a job file.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").transform("all", union={"from": ["places"]})
        """
        return self._reads("transforms", name, settings)

    def sql(self, name: str, query: str, *, max_rejects: int | str | None = None) -> Self:
        """Adds a SQL query; the other entries are its tables. `max_rejects` is how many rows may be left out because an
        expression fails on them.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").sql("count", "SELECT count(*) AS n FROM places")
        """
        return self.transform(name, sql=query, **without_none({"max_rejects": max_rejects}))

    def filter(
        self, name: str, where: str, *, from_: str | None = None, max_rejects: int | str | None = None
    ) -> Self:
        """Adds a filter: keeps the rows for which `where`, a condition in SQL, is true.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").filter("large", "population > 200000")
        """
        keys = without_none({"max_rejects": max_rejects})
        return self.transform(name, filter={"from": self._from(from_), "where": where}, **keys)

    def select(
        self,
        name: str,
        columns: Sequence[str] | Mapping[str, str],
        *,
        from_: str | None = None,
        max_rejects: int | str | None = None,
    ) -> Self:
        """Adds a choice of columns: names or SQL expressions, or new names with their expressions.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").select("upper", {"name": "upper(name)"})
        """
        chosen = dict(columns) if isinstance(columns, Mapping) else list(columns)
        keys = without_none({"max_rejects": max_rejects})
        return self.transform(name, select={"from": self._from(from_), "columns": chosen}, **keys)

    def sort(self, name: str, by: str | Sequence[str], *, from_: str | None = None, **settings: object) -> Self:
        """Adds a sort, by the most important column first.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").sort("first", "population desc", limit=1)
        """
        return self.transform(name, sort={"from": self._from(from_), "by": _several(by), **settings})

    def dedupe(
        self, name: str, by: str | Sequence[str] | None = None, *, from_: str | None = None, **settings: object
    ) -> Self:
        """Adds a step that keeps one of the rows that are equal in the columns `by`, or in all.

        >>> job = millstream.Job().source("places", "places/*.csv.gz").dedupe("countries", "country")
        """
        keys = without_none({"by": None if by is None else _several(by)})
        return self.transform(name, dedupe={"from": self._from(from_), **keys, **settings})

    def union(self, name: str, from_: Sequence[str], **settings: object) -> Self:
        """Adds the rows of several entries as one.

        >>> job = (
        ...     millstream.Job()
        ...     .source("one", "places/a.csv.gz")
        ...     .source("other", "places/b.csv.gz")
        ...     .union("both", ["one", "other"])
        ... )
        """
        return self.transform(name, union={"from": list(from_), **settings})

    def map(
        self,
        name: str,
        function: Callable[..., object] | str | None = None,
        *,
        columns: Mapping[str, object],
        command: Sequence[str] | None = None,
        from_: str | None = None,
        per: str | None = None,
        max_rejects: int | str | None = None,
        **settings: object,
    ) -> Self:
        """Adds a step that calls a Python function, or a program, in processes of its own.

        >>> def score(row):
        ...     return {"score": len(row["name"])}
        >>> job = millstream.Job().source("places", "places/*.csv.gz")
        >>> job = job.map("scored", score, columns={"score": "int64"}, keep=["name"], deterministic=True)
        >>> job.sink("result", "out/scores.csv").run().rows_written
        4

        `function` is a function, or a text such as `"features.py:score"`. It takes and gives dicts; `per`, `columns`
        and `settings` are keys of a `map` in a job file. A function of an importable file is called from there. One of
        a notebook or of the main program is written into a module of its own, with the imports, functions, classes and
        constants that it refers to: so it cannot refer to other things, such as a frame.
        """
        reads = {"from": self._from(from_)}
        code: dict[str, object] = {} if command is None else {"command": list(command)}
        if callable(function):
            _check(function)
        elif function is not None:
            code["python"] = function
        step = {**reads, **code, **without_none({"per": per}), "columns": dict(columns), **settings}
        self.transform(name, map=step, **without_none({"max_rejects": max_rejects}))
        if callable(function):
            self._functions["transforms", name] = function
        return self

    def sink(
        self,
        name: str,
        write: Path | None = None,
        *,
        command: Sequence[str] | None = None,
        from_: str | None = None,
        **settings: object,
    ) -> Self:
        """Adds a sink: a path or a URL, or a program that takes the rows; and further keys of the sink.

        >>> job = millstream.Job().source("places", "places/*.csv.gz")
        >>> job = job.sink("result", "sqlite:out/places.db", table="places", mode="replace")
        >>> job = job.sink("feed", command=["./publish"], exchange="csv")
        """
        place: dict[str, object] = {} if command is None else {"command": list(command)}
        if write is not None:
            place["write"] = os.fspath(write)
        self._add("sinks", name, {"from": self._from(from_), **place, **settings})
        return self

    def run(
        self,
        *,
        variables: Mapping[str, object] | None = None,
        resume: bool = False,
        restart: bool = False,
        accept_changed: bool = False,
        machine: Path | None = None,
        memory: int | str | None = None,
        cores: int | None = None,
        progress: bool | None = None,
    ) -> Report:
        """Runs the job. The arguments are those of `millstream.run`; `variables` distinguish the runs of one job.

        >>> millstream.Job().source("places", "places/*.csv.gz").sink("result", "out/all.jsonl").run().rows_written
        4
        """
        import sys

        from millstream._functions import Modules

        options = as_options(resume, restart, accept_changed)
        bounds = limits(machine, memory, cores)
        with Modules.temporary(self._functions) as modules:
            # They find the packages that this program finds.
            interpreter = {"interpreter": sys.executable} if sys.executable else {}
            steps = {entry: dict(interpreter) for entry in self._calls_python()}
            for entry, path in modules.paths.items():
                steps[entry] = {**interpreter, "python": path}
            text = as_json(self._with(steps))
            return start(self._path, text, variables, options, bounds, progress)

    def save(self, path: Path) -> None:
        """Writes the job file, for `millstream run` and others. Functions of a notebook or of the main program are
        written into a module beside it: `job_functions.py` for `job.yaml`.

        >>> millstream.Job().source("places", "places/*.csv.gz").sink("result", "out/all.csv").save("out/saved.yaml")
        >>> millstream.run("out/saved.yaml").rows_written
        4
        """
        from millstream._functions import Modules

        path = os.fspath(path)
        modules = Modules.beside(path, self._functions)
        text = _millstream.job_text(as_json(self._with({entry: {"python": at} for entry, at in modules.paths.items()})))
        modules.write()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def __str__(self) -> str:
        named = {entry: {"python": _named(function)} for entry, function in self._functions.items()}
        return _millstream.job_text(as_json(self._with(named))).rstrip("\n")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self._entries[section])} {section}" for section in _SECTIONS)
        return f"<millstream.Job {self._path}: {counts}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def _reads(self, section: str, name: str, settings: Mapping[str, object]) -> Self:
        """Adds an entry with rows."""
        self._add(section, name, dict(settings))
        self._last = name
        return self

    def _add(self, section: str, name: str, settings: dict[str, object]) -> None:
        """Adds an entry. One of that name would be lost without a trace."""
        if name in self._entries[section]:
            what = f"the job has a {section.removesuffix('s')} `{name}` already"
            hint = "give it another name; to build the job again, begin with a new one: `job = millstream.Job()`"
            raise of_caller(what, text=name, hint=hint)
        self._entries[section][name] = settings

    def _from(self, name: str | None) -> str:
        """The entry that is read."""
        if name is not None:
            return name
        if self._last is None:
            raise ValueError("there is nothing to read yet: add a source first, or name an entry with `from_`")
        return self._last

    def _calls_python(self) -> list[tuple[str, str]]:
        """The entries that call a function of a file."""
        calls: dict[str, Any] = {name: step.get("map") for name, step in self._entries["transforms"].items()}
        steps = [("transforms", name) for name, call in calls.items() if isinstance(call, Mapping) and "python" in call]
        return steps + [("functions", name) for name, call in self._entries["functions"].items() if "python" in call]

    def _with(self, more: Mapping[tuple[str, str], Mapping[str, object]]) -> dict[str, dict[str, Any]]:
        """The entries, some of which call a function with further keys. Sections without entries are left out."""
        entries: dict[str, dict[str, Any]] = {section: dict(of) for section, of in self._entries.items() if of}
        for (section, name), keys in more.items():
            entry: dict[str, Any] = entries[section][name]
            if section == "functions":
                entries[section][name] = {**keys, **entry}
                continue
            call: dict[str, object] = entry["map"]
            before = {"from": call["from"], **keys}
            entries[section][name] = {**entry, "map": {**before, **{k: v for k, v in call.items() if k != "from"}}}
        return entries


def _check(function: Callable[..., object]) -> None:
    """Refuses what cannot be called in another process, so that the mistake is found where the function is named."""
    from millstream._functions import check

    check(function)


def _several(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _named(function: Callable[..., object]) -> str:
    """How a function is called before it is known in which file it will be."""
    return f"{getattr(function, '__module__', None) or 'functions'}.py:{getattr(function, '__qualname__', 'function')}"

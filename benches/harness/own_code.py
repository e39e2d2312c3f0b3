"""The workloads of code of one's own: programs and Python functions as steps, and the Python package.

Where both sides call a function or a program, it is the same file of `code/`, which also has what the peers run. Ray
and PySpark are timed from the plan to the answer, without their start and Python's imports, to their advantage;
everything else as whole processes.
"""

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import data, posts, tools
from harness.costs import against
from harness.measure import Answer, Contender, Outcome, Results
from harness.store import DataSet, Made, kept
from harness.workloads import (
    MEGABYTE,
    OURS,
    SUM_BY_SYMBOL,
    Context,
    Plan,
    Target,
    Workload,
    second_number,
    trades_query,
    within,
)

CODE = Path(__file__).parent / "code"
BLOCK = "10M"  # what GNU parallel hands to a process at once
CHUNKS = (10, 100, 1_000, 10_000)  # rows that the pool hands to a process at once
IMPORT = 100.0  # milliseconds
MEMORY = 300.0  # megabytes
PARQUET_VERSION = 1  # to be raised when the rows of the Parquet file change


def job(sources: dict, transforms: dict, sink: dict) -> str:
    """A job with one sink, of what the last transform gives. A job file may be JSON, since JSON is YAML."""
    sinks = {"result": {"from": list(transforms)[-1], **sink}}
    return json.dumps({"sources": sources, "transforms": transforms, "sinks": sinks}, indent=2)


@contextlib.contextmanager
def map_lines(context: Context) -> Iterator[Plan]:
    """All places as lines through `cat`."""
    files = context.store.get("text")
    one, other, whole = files.files()
    cat = {"command": ["cat"], "exchange": "lines", "per": "stream", "workers": 2, "columns": {"line": "utf8"}}
    ours = job(
        {"lines": {"read": str(whole), "lines": {}}},
        {"passed": {"map": {"from": "lines", **cat}}, "counted": {"sql": "SELECT count(*) AS lines FROM passed"}},
        {"write": "-", "csv": {}},
    )
    parallel, halves = f"parallel --pipe --block {BLOCK} cat | wc -l", "cat half | cat | wc -l, both halves at once"
    many = f"parallel --will-cite --pipe -j{context.cores} --block {BLOCK} cat <{whole} | wc -l"
    both = " & ".join(f"cat {half} | cat | wc -l" for half in (one, other))
    contenders = [
        context.run(ours, read=second_number),
        *context.piped(parallel, "parallel", many),
        *(dataclasses.replace(limit, role="limit") for limit in context.piped(halves, "cat", both_added(both))),
    ]
    yield Plan(contenders, [within(0.7, parallel), within(1.3, halves)], [files], expected=files.made.lines)


def both_added(commands: str) -> str:
    """A script that adds up the numbers which commands print that run at the same time."""
    return f"({commands} & wait) | awk '{{ sum += $1 }} END {{ print sum }}'"


def parquet(context: Context) -> DataSet:
    """All places in one Parquet file, which Millstream writes: name, country and population."""
    text = context.store.get("text")

    def make(folder: Path) -> Made:
        groups = max(100, min(131_072, text.made.lines // 16))
        path = folder / "places.parquet"
        shape = {"delimiter": "\t", "quote": "none", "header": False, "columns": data.PLACE_COLUMNS}
        write = context.scratch / "parquet.yaml"
        write.write_text(job(
            {"places": {"read": str(text.files()[-1]), "csv": shape}},
            {"chosen": {"select": {"from": "places", "columns": ["name", "country", "population"]}}},
            {"write": str(path), "parquet": {"row_group_rows": groups}},
        ))  # fmt: skip
        context.tools.run_job(write)
        return Made(1, path.stat().st_size, text.made.text, text.made.lines)

    return kept(context.store, "parquet", f"v{PARQUET_VERSION}", make)


@contextlib.contextmanager
def map_arrow(context: Context) -> Iterator[Plan]:
    """The names of all places in capitals, by a function of pyarrow."""
    python = context.tools.python
    if not python:
        raise RuntimeError("pyarrow is one of the peers, and they are left out")
    files = parquet(context)
    (path,) = files.files()
    upper = {
        "python": f"{CODE}/upper.py:upper",
        "exchange": "arrow",
        "per": "batch",
        "interpreter": str(python),
        "columns": {"name": "utf8", "country": "utf8", "population": "int64"},
    }
    found = (
        "SELECT count(*) AS rows, sum(octet_length(name)) AS bytes, "
        "sum(CASE WHEN strpos(name, 'A') > 0 THEN 1 ELSE 0 END) AS capitals FROM upper"
    )
    ours = job(
        {"places": {"read": str(path)}},
        {"upper": {"map": {"from": "places", **upper}}, "found": {"sql": found}},
        {"write": "-", "json": {}},
    )
    name = "two Python processes, half of the file each"
    contenders = [
        context.run(ours, read=json_numbers),
        Contender(name, "limit", [str(python), f"{CODE}/halves.py", str(path)], json_numbers),
    ]
    yield Plan(contenders, [within(1.15, name)], [files])


def json_numbers(output: str) -> Outcome:
    """An answer of several numbers, as a JSON object."""
    return Outcome({name: float(value) for name, value in json.loads(output).items()})


@dataclass
class Repackaging:
    """Posts that each contender repackages into a file, or a folder of files, of JSON lines."""

    context: Context
    files: DataSet
    known: dict[str, tuple[int, Answer]] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        """What is written."""
        return self.context.scratch / "repackaged.jsonl"

    def empty(self) -> None:
        """Removes what was written before."""
        if self.output.is_dir():
            shutil.rmtree(self.output)
        self.output.unlink(missing_ok=True)

    def contender(self, name: str, role: str, command: list[str], *, timed: bool = False) -> Contender:
        """A contender whose first result is read; later ones must have the same size."""

        def read(output: str) -> Outcome:
            parts = sorted(self.output.iterdir()) if self.output.is_dir() else [self.output]
            size = sum(part.stat().st_size for part in parts)
            before, answer = self.known.setdefault(name, (size, None))
            if before != size:
                raise RuntimeError(f"{size} bytes instead of {before}")
            if answer is None:
                answer = records(parts)
                self.known[name] = size, answer
            return Outcome(answer, json.loads(output.splitlines()[-1])["seconds"] if timed else None)

        return Contender(name, role, command, read, before=self.empty)


def records(parts: list[Path]) -> Answer:
    """What stands for the records in some files: it differs if one is missing, there twice, or changed."""
    found = dict.fromkeys(("rows", "keys", "words", "titles", "documents"), 0.0)
    for part in parts:
        with part.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                found["rows"] += 1
                found["keys"] += record["key"]
                found["words"] += record["words"]
                found["titles"] += len(record["title"])
                found["documents"] += sum(record["document"].encode()) * (record["key"] % 97)
    return found


@contextlib.contextmanager
def map_rows(context: Context) -> Iterator[Plan]:
    """A function on posts as dicts: JSON lines to JSON lines."""
    made = posts.get(context.store)
    files = DataSet(made.folder, made.made)
    (source,) = made.files()
    work = Repackaging(context, files)
    columns = {**posts.COLUMNS, "created": "utf8"}
    function = {
        "python": f"{CODE}/repackage.py:repackage",
        "interpreter": sys.executable,
        "columns": {"key": "int64", "title": "utf8", "words": "int64", "document": "utf8"},
    }
    ours = job(
        {"posts": {"read": str(source), "json": {"columns": columns}}},
        {"repackaged": {"map": {"from": "posts", **function}}},
        {"write": str(work.output), "json": {}},
    )
    contenders = [work.contender(OURS, "ours", [*context.run(ours).command])]
    cores, python = str(context.cores), sys.executable
    pools = {chunk: f"multiprocessing.Pool, chunks of {chunk:,}" for chunk in CHUNKS}
    for chunk, name in pools.items():
        script = [python, f"{CODE}/pool.py", str(source), str(work.output), cores, str(chunk)]
        contenders.append(work.contender(name, "peer", script))
    if context.tools.python:
        script = [str(context.tools.python), f"{CODE}/on_ray.py", str(source), str(work.output), cores]
        contenders.append(work.contender("Ray Data", "peer", script, timed=True))
    best = within(1.1, *pools.values(), called="multiprocessing.Pool with its best chunks")
    yield Plan(contenders, [best, within(0.5, "Ray Data")], [files])


@contextlib.contextmanager
def map_words(context: Context) -> Iterator[Plan]:
    """The words in the names of all places, counted by a mapper and a reducer of one's own."""
    files = context.store.get("text")
    whole = files.files()[-1]
    python = sys.executable
    mapper = {"command": [python, f"{CODE}/mapper.py"], "exchange": "lines", "per": "stream", "workers": context.cores}
    reducer = {"command": [python, f"{CODE}/reducer.py"], "exchange": "lines", "per": "group", "by": "word"}
    ours = job(
        {"lines": {"read": str(whole), "lines": {}}},
        {
            "words": {"map": {"from": "lines", **mapper, "columns": {"word": "utf8"}}},
            "counts": {"map": {"from": "words", **reducer, "columns": {"count": "utf8"}}},
        },
        {"write": "-", "lines": {}},
    )
    unix = "parallel --pipe mapper | sort | reducer"
    script = (
        f"parallel --will-cite --pipe -j{context.cores} --block {BLOCK} {python} {CODE}/mapper.py <{whole} | "
        f"LC_ALL=C sort | {python} {CODE}/reducer.py"
    )
    contenders = [
        context.run(ours, read=word_counts),
        *(dataclasses.replace(one, read=word_counts) for one in context.piped(unix, "parallel sort", script)),
    ]
    spark = {"reduce": "PySpark, reduceByKey", "group": "PySpark, groupByKey"}
    if context.tools.python and tools.command("java"):
        for how, name in spark.items():
            command = [str(context.tools.python), f"{CODE}/spark.py", str(whole)]
            command += [str(context.cores), str(context.scratch), how]
            contenders.append(Contender(name, "peer", command, timed_counts))
    targets = [within(0.5, *spark.values(), called="PySpark, the better of two"), within(0.8, unix)]
    yield Plan(contenders, targets, [files])


def word_counts(output: str) -> Outcome:
    """An answer of lines with a word, a tab and a number."""
    pairs = (line.rsplit("\t", 1) for line in output.splitlines())
    return Outcome({word: float(count) for word, count in pairs})


def timed_counts(output: str) -> Outcome:
    """An answer of numbers by their names, and the seconds that it took."""
    printed = json.loads(output.splitlines()[-1])
    counts = {word: float(count) for word, count in printed["answer"].items()}
    return Outcome(counts, printed["seconds"], printed.get("cpu"))


def package(context: Context, name: str, *arguments: str) -> Contender:
    """A script that uses the Python package, in an environment that has it."""
    if not context.tools.package:
        raise RuntimeError("the Python package is missing: build it (make wheel), and name the file with --wheel")
    return Contender(name, "ours", [str(context.tools.package), f"{CODE}/package.py", *arguments], timed_counts)


@contextlib.contextmanager
def python_group(context: Context) -> Iterator[Plan]:
    """Sum by symbol in Polars and DuckDB, over rows that Millstream reads and over their own readers."""
    files = context.store.get("trades")
    query = trades_query(f"{files.folder}/*.csv.gz", SUM_BY_SYMBOL)
    contenders, targets = [], []
    for engine, name in (("polars", "Polars"), ("duckdb", "DuckDB")):
        mine = f"{OURS}.read, {name}"
        contenders.append(package(context, mine, engine, json.dumps({**query, "used": ["symbol", "size", "price"]})))
        contenders += context.peer(engine, name, query)
        targets.append(against(0.8, mine, name, f"{name} with its own reader"))
        targets.append(megabytes(mine))
    yield Plan(contenders, targets, [files])


def megabytes(name: str) -> Target:
    """The memory of a process that uses the package."""

    def value(results: Results) -> float | None:
        peak = results.rss(name)
        return peak / MEGABYTE if peak else None

    return Target(f"peak memory of “{name}”", MEMORY, value, "MB")


@contextlib.contextmanager
def python_import(context: Context) -> Iterator[Plan]:
    """The import of the Python package."""
    files = context.store.get("trades")
    contender = dataclasses.replace(package(context, OURS, "import"), read=only_time)

    def value(results: Results) -> float | None:
        wall = results.wall(OURS)
        return wall * 1_000 if wall is not None else None

    yield Plan([contender], [Target("milliseconds", IMPORT, value, "ms")], [dataclasses.replace(files, made=Made())])


def only_time(output: str) -> Outcome:
    """The seconds that something took."""
    return Outcome(None, json.loads(output)["seconds"])


OWN_CODE: dict[str, Workload] = {
    "map-lines": Workload("lines through `cat`", map_lines),
    "map-rows": Workload("a Python function on rows as dicts, JSON to JSON", map_rows),
    "map-words": Workload("word count with a mapper and a reducer of one's own", map_words),
}

# They need packages of Python, which are not there when builds of the binary are compared.
WITH_PACKAGES: dict[str, Workload] = {
    "map-arrow": Workload("Arrow batches through a function of pyarrow", map_arrow),
    "python-group": Workload("group-by in Polars and DuckDB over `millstream.read`", python_group),
    "python-import": Workload("`import millstream`", python_import),
}

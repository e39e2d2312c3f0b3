"""The workloads of the sort: records of 100 bytes and typed rows, in memory and far beyond it.

All read from the disk, not from the page cache, and the time ends when the output is on the disk. The output
is checked after the clock has stopped: its order, and a sum over all its lines.
"""

import contextlib
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import workloads
from harness.measure import Contender, Note, Outcome, Results, shell
from harness.store import DataSet, Made, evict
from harness.workloads import OURS, Context, Plan, Target, Workload, within

GIGABYTE = 1_000_000_000
RECORD = 100
BUDGET = "256MB"
ORDERS = ["random", "nearly", "reversed", "few", "equal"]
TYPED_ROWS = 20_000_000


@contextlib.contextmanager
def records(context: Context, size: int, *orders: str) -> Iterator[list[DataSet]]:
    """Files of records or rows, made by `records` of `benches/limit`. They are large, so the workload removes them."""
    with contextlib.ExitStack() as kept:
        yield [kept.enter_context(record_file(context, size, order)) for order in orders or ("random",)]


@contextlib.contextmanager
def record_file(context: Context, size: int, order: str) -> Iterator[DataSet]:
    """One such file."""
    print(f"making data: {size:,} bytes of records, {order}", flush=True)
    with tempfile.TemporaryDirectory(dir=context.scratch) as folder:
        path = Path(folder) / "records.txt"
        with path.open("wb") as file:
            subprocess.run([context.tools.limit("records"), "make", str(size), order], stdout=file, check=True)
        stored = path.stat().st_size
        yield DataSet(Path(folder), Made(1, stored, stored, size // RECORD))


def piped(context: Context, size: int) -> DataSet:
    """A data set that a pipe feeds, so that it is on no disk."""
    return DataSet(context.scratch / "piped", Made(1, size, size, size // RECORD))


def scaled_size(context: Context, gigabytes: float) -> int:
    """The bytes of so many gigabytes at this scale, in whole records."""
    return max(RECORD * 1_000, int(gigabytes * GIGABYTE * context.store.scale) // RECORD * RECORD)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The format of the lines and the sort key, for a job and for a database."""

    format: dict
    by: list[str]
    query: dict
    sql: str
    check: str


LINES = Shape({"lines": {}}, ["line"], workloads.lines_query(""), "line", "check")
TYPED_COLUMNS = {
    "a": "int64", "b": "utf8", "id": "int64", "price": "float64", "kind": "utf8", "count": "int64", "share": "float64",
    "remark": "utf8",
}  # fmt: skip
CSV = {"delimiter": ",", "header": False, "columns": TYPED_COLUMNS}
TYPED = Shape({"csv": CSV}, ["a desc", "b"], {"format": "csv", **CSV}, "a DESC, b", "check-typed")


@dataclasses.dataclass(frozen=True)
class Sorting:
    """One file, or the output of `feed`, that each contender sorts into a file."""

    context: Context
    source: DataSet
    memory: str = BUDGET
    shape: Shape = LINES
    feed: str = ""

    def expected(self) -> int:
        """The checksum over all lines of the source."""
        read = self.feed or f"cat {self.source.files()[0]}"
        command = shell(f"{read} | {self.context.tools.limit('records')} sum")
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def target(self, name: str) -> Path:
        """The output file of a contender."""
        return self.context.scratch / f"{name.replace(' ', '-')}.sorted"

    def checked(self, name: str, command: list[str], *, cold: bool = True, times: bool = False) -> Contender:
        """A contender whose output is checked and removed."""

        def before() -> None:
            self.target(name).unlink(missing_ok=True)
            if cold:
                evict(self.source.files())

        def read(output: str) -> Outcome:
            command = [self.context.tools.limit("records"), self.shape.check, str(self.target(name))]
            result = subprocess.run(command, check=False, capture_output=True, text=True)
            self.target(name).unlink(missing_ok=True)
            if result.returncode != 0:
                raise RuntimeError(result.stderr.strip())
            took = json.loads(output) if times else {}
            return Outcome(int(result.stdout), took.get("seconds"), took.get("cpu"))

        role = "ours" if name.startswith(OURS) else "peer"
        return Contender(name, role, command, read, self.expected(), before=before)

    def ours(self, name: str = OURS, *, scratch: dict | None = None, **more: bool) -> Contender:
        """Millstream sorts, with these settings of its scratch."""
        base = self.context.scratch / name.replace(" ", "-")
        files = {what: base.with_suffix(f".{what}") for what in ("job", "machine", "report")}
        [(name_of_format, settings)] = self.shape.format.items()
        write = {name_of_format: {key: value for key, value in settings.items() if key != "columns"}}
        files["job"].write_text(json.dumps({
            "sources": {"input": {"read": "-" if self.feed else str(self.source.files()[0]), **self.shape.format}},
            "transforms": {"sorted": {"sort": {"from": "input", "by": self.shape.by}}},
            "sinks": {"result": {"from": "sorted", "write": str(self.target(name)), **write}},
        }))  # fmt: skip
        files["machine"].write_text(json.dumps({"scratch": scratch or {}}))
        options = f"--memory {self.memory} --scratch {self.context.scratch} --machine {files['machine']}"
        script = (
            f"{self.context.tools.millstream} run --quiet --json {options} {files['job']} > {files['report']} && "
            f"sync {self.target(name)}"
        )
        contender = self.checked(name, shell(f"{self.feed} | {{ {script}; }}" if self.feed else script), **more)
        return dataclasses.replace(contender, after=lambda: scratch_used(json.loads(files["report"].read_text())))

    def gnu(self) -> list[Contender]:
        """GNU sort on all cores."""
        source, target, cores = self.source.files()[0], self.target("GNU sort"), self.context.cores
        memory = self.memory.removesuffix("B")
        script = (
            f"LC_ALL=C sort -S {memory} --parallel={cores} -T {self.context.scratch} -o {target} {source} "
            f"&& sync {target}"
        )
        return [self.checked("GNU sort", shell(script))]

    def peer(self, engine: str, name: str, *, memory: str = "", cold: bool = True) -> list[Contender]:
        """DuckDB or Polars sort lines."""
        if not self.context.tools.python:
            return []
        shape = {**self.shape.query, "paths": str(self.source.files()[0])}
        scratch = str(self.context.scratch)
        sort = {"into": str(self.target(name)), "by": self.shape.sql, "memory": memory, "scratch": scratch}
        script = str(workloads.HERE / "peers.py")
        command = [str(self.context.tools.python), script, engine, json.dumps({**shape, **sort})]
        return [self.checked(name, command, cold=cold, times=True)]


def scratch_used(report: dict) -> Note:
    """The sort's figures in the report of a run: bytes to and from scratch, and the time it waited for scratch."""
    sort = next(step for step in report["steps"] if "sort" in step["detail"])
    written, again = sort["spilled_bytes"] / GIGABYTE, sort["spilled_for_want"] / GIGABYTE
    waiting = sort["waiting_scratch"] / (sort["busy"] + sort["waiting_scratch"] or 1)
    merged = f", {again:.2f} GB of it again" if again else ""
    text = f"{written:.2f} GB to scratch and back{merged}, {waiting:.0%} of the sort's time waiting for it"
    return Note(text, {"scratch": written, "merged before": again})


def scratch(bound: float, size: int) -> Target:
    """At most this many bytes to scratch per byte of data."""

    def value(results: Results) -> float | None:
        written = results.figure(OURS, "scratch")
        return None if written is None else written * GIGABYTE / size

    return Target("bytes to scratch, of the data", bound, value)


def one_pass() -> Target:
    """All runs are merged in one pass."""
    return Target("merged more than once", 0, lambda results: results.figure(OURS, "merged before"), "GB")


def peak(bound: float) -> Target:
    """At most this many megabytes."""

    def value(results: Results) -> float | None:
        resident = results.rss(OURS)
        return resident / workloads.MEGABYTE if resident else None

    return Target("peak memory", bound, value, "MB")


@contextlib.contextmanager
def lines(context: Context) -> Iterator[Plan]:
    """2 GB within 256 MB, from file to file."""
    with records(context, scaled_size(context, 2)) as [source]:
        sorting = Sorting(context, source)
        contenders = [sorting.ours(), *sorting.gnu(), *sorting.peer("duckdb", "DuckDB", memory=BUDGET)]
        targets = [within(0.25, "GNU sort"), within(0.5, "DuckDB"), peak(256)]
        targets += [scratch(0.6, source.made.stored), one_pass()]
        yield Plan(contenders, targets, [source])


@contextlib.contextmanager
def larger(context: Context) -> Iterator[Plan]:
    """8 GB against 2 GB, within 256 MB, both from a pipe: a disk need not hold input, scratch and output at once."""
    contenders = []
    for name, gigabytes in (("2 GB", 2), (OURS, 8)):
        source = piped(context, scaled_size(context, gigabytes))
        feed = f"{context.tools.limit('records')} make {source.made.stored} random"
        contenders.append(Sorting(context, source, feed=feed).ours(name, cold=False))
    yield Plan(contenders, [within(4.3, "2 GB"), peak(256), one_pass()], [source])


@contextlib.contextmanager
def stream(context: Context) -> Iterator[Plan]:
    """20 GB within 256 MB from a pipe into a pipe."""
    size = scaled_size(context, 20)
    job = context.scratch / "stream.yaml"
    job.write_text(json.dumps({
        "sources": {"input": {"read": "-", "lines": {}}},
        "transforms": {"sorted": {"sort": {"from": "input", "by": "line"}}},
        "sinks": {"result": {"from": "sorted", "write": "-", "lines": {}}},
    }))  # fmt: skip
    make, check, total = (
        f"{context.tools.limit('records')} {does}" for does in (f"make {size} random", "check", "sum")
    )
    ours = f"{context.tools.millstream} --state {context.scratch / 'runs'}"
    run = f"{ours} run --quiet --memory {BUDGET} --scratch {context.scratch} {job}"

    def note() -> Note:
        command = shell(f"{ours} runs last --json")
        kept = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return scratch_used(json.loads(kept)["run"]["report"])

    contender = Contender(OURS, "ours", shell(f"{make} | {run} | {check}"), after=note)
    unsorted = Contender("made, not sorted", "limit", shell(f"{make} | {total}"))
    yield Plan([contender, unsorted], [peak(256), one_pass()], [piped(context, size)])


@contextlib.contextmanager
def typed(context: Context) -> Iterator[Plan]:
    """20 million rows of eight columns by a number, falling, and a text."""
    with records(context, scaled_size(context, TYPED_ROWS * RECORD / GIGABYTE), "typed") as [source]:
        sorting = Sorting(context, source, shape=TYPED)
        contenders = [sorting.ours(), *sorting.peer("duckdb", "DuckDB", memory=BUDGET)]
        yield Plan(contenders, [within(0.7, "DuckDB"), peak(256)], [source])


@contextlib.contextmanager
def in_memory(context: Context) -> Iterator[Plan]:
    """512 MB within 2 GB."""
    with records(context, scaled_size(context, 0.512)) as [source]:
        sorting = Sorting(context, source, memory="2GB")
        contenders = [
            sorting.ours(cold=False),
            *sorting.peer("duckdb", "DuckDB", memory="2GB", cold=False),
            *sorting.peer("polars", "Polars", cold=False),
        ]
        yield Plan(contenders, [within(1.0, "Polars", "DuckDB"), peak(2_000)], [source])


@contextlib.contextmanager
def orders(context: Context) -> Iterator[Plan]:
    """Orders that are hard for some sorts, against a random one."""

    def slower(order: str) -> Target:
        def value(results: Results) -> float | None:
            mine, random = results.wall(order), results.wall(OURS)
            return mine / random if mine and random else None

        return Target(f"{order}, against random", 1.0, value)

    with records(context, scaled_size(context, 1), *ORDERS) as sources:
        named = zip([OURS, *ORDERS[1:]], sources, strict=True)
        contenders = [Sorting(context, source).ours(name) for name, source in named]
        yield Plan(contenders, [slower(order) for order in ORDERS[1:]], sources)


@contextlib.contextmanager
def levers(context: Context) -> Iterator[Plan]:
    """What the paper on DataStage measured on its sort, on ours: memory as planned, read-ahead, a buffer, real lengths.

    Runs are written as they are: packed, neither the disk nor padding would show.
    """
    plain = {"compression": "none"}
    blocks = {**plain, "block": "128KiB"}
    size, less = scaled_size(context, 2), scaled_size(context, 1)
    with records(context, size) as [source], records(context, less, "typed", "padded") as rows:
        lines, small = Sorting(context, source), Sorting(context, source, memory="64MiB")
        real, padded = (Sorting(context, source, shape=TYPED) for source in rows)
        feed = f"{context.tools.limit('records')} make {source.made.stored} random"
        fed = Sorting(context, source, feed=feed)
        contenders = [
            lines.ours(scratch=plain),
            small.ours("64 MiB and 128 KiB of each run: merged twice", scratch=blocks),
            lines.ours("128 KiB of each run read ahead", scratch=blocks),
            fed.ours("from a pipe", scratch=plain),
            fed.ours("from a pipe, a buffer before", scratch={**plain, "buffer": True}),
            real.ours("rows at their real length", scratch=plain),
            padded.ours("rows filled up", scratch=plain),
        ]
        yield Plan(contenders, [scratch(1.02, size), one_pass()], [source])


SORTS: dict[str, Workload] = {
    "sort-lines": Workload("sort 2 GB of lines within 256 MB", lines),
    "sort-larger": Workload("sort 8 GB within 256 MB", larger),
    "sort-stream": Workload("sort 20 GB from a pipe within 256 MB", stream),
    "sort-memory": Workload("sort 512 MB in memory", in_memory),
    "sort-typed": Workload("sort 20 million rows of 8 columns by a number and a text", typed),
    "sort-orders": Workload("sort 1 GB that are nearly sorted, reversed, of few keys, all equal", orders),
    "sort-levers": Workload("sort 2 GB with and without what makes it fast", levers),
}

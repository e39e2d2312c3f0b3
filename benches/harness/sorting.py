"""The works of the sort: records of 100 bytes and typed rows, in memory and far beyond it.

Everybody reads from the disk, not from the page cache, and what is written counts until it is on the disk. What was
written is checked after the clock has stopped: its order, and a sum over all its lines.
"""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import works
from harness.measure import Contender, Outcome, Results, shell
from harness.store import DataSet, Made, evict
from harness.works import OURS, Context, Plan, Target, Work, within

GIGABYTE = 1_000_000_000
RECORD = 100
BUDGET = "256MB"
ORDERS = ["random", "nearly", "reversed", "few", "equal"]
TYPED_ROWS = 20_000_000


def records(context: Context, size: int, order: str = "random") -> DataSet:
    """A file of records, made once by `benches/limit`'s `records`."""
    folder = context.store.cache / "data" / f"records-{order}-{size}"
    path, stamp = folder / "records.txt", folder / "set.json"
    if not stamp.exists():
        print(f"making data: {size:,} bytes of records, {order}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            subprocess.run([context.tools.limit("records"), "make", str(size), order], stdout=file, check=True)
        stamp.write_text(json.dumps(dataclasses.asdict(Made(1, size, size, size // RECORD))))
    return DataSet(folder, Made(**json.loads(stamp.read_text())))


def scaled_size(context: Context, gigabytes: float) -> int:
    """So many gigabytes at full scale."""
    return max(RECORD * 1_000, int(gigabytes * GIGABYTE * context.store.scale) // RECORD * RECORD)


@dataclasses.dataclass(frozen=True)
class Sorting:
    """One file that is sorted into another by whoever takes part."""

    context: Context
    source: DataSet
    memory: str = BUDGET

    def expected(self) -> int:
        """What stands for all lines of the source."""
        command = [self.context.tools.limit("records"), "sum", str(self.source.files()[0])]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def target(self, name: str) -> Path:
        """Where a contender writes to."""
        return self.context.scratch / f"{name.replace(' ', '-')}.sorted"

    def checked(self, name: str, command: list[str], *, cold: bool = True, times: bool = False) -> Contender:
        """A contender whose result is checked, and removed."""

        def before() -> None:
            self.target(name).unlink(missing_ok=True)
            if cold:
                evict(self.source.files())

        def read(output: str) -> Outcome:
            command = [self.context.tools.limit("records"), "check", str(self.target(name))]
            told = subprocess.run(command, check=False, capture_output=True, text=True)
            self.target(name).unlink(missing_ok=True)
            if told.returncode != 0:
                raise RuntimeError(told.stderr.strip())
            took = json.loads(output) if times else {}
            return Outcome(int(told.stdout), took.get("seconds"), took.get("cpu"))

        role = "ours" if name.startswith(OURS) else "peer"
        return Contender(name, role, command, read, self.expected(), before=before)

    def ours(self, name: str = OURS, *, options: str = "", **more: bool) -> Contender:
        """Millstream sorts lines."""
        job = self.context.scratch / f"{name.replace(' ', '-')}.yaml"
        job.write_text(json.dumps({
            "sources": {"input": {"read": str(self.source.files()[0]), "lines": {}}},
            "transforms": {"sorted": {"sort": {"from": "input", "by": "line"}}},
            "sinks": {"result": {"from": "sorted", "write": str(self.target(name)), "lines": {}}},
        }))  # fmt: skip
        binary, target = self.context.tools.millstream, self.target(name)
        scratch = f"--scratch {self.context.scratch}"
        script = f"{binary} run --quiet --memory {self.memory} {scratch} {options} {job} && sync {target}"
        return self.checked(name, shell(script), **more)

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
        shape = works.lines_query(str(self.source.files()[0]))
        sort = {"into": str(self.target(name)), "by": "line", "memory": memory, "scratch": str(self.context.scratch)}
        script = str(works.HERE / "peers.py")
        command = [str(self.context.tools.python), script, engine, json.dumps({**shape, **sort})]
        return [self.checked(name, command, cold=cold, times=True)]


def peak(bound: float) -> Target:
    """At most so many megabytes."""

    def value(results: Results) -> float | None:
        resident = results.rss(OURS)
        return resident / works.MEGABYTE if resident else None

    return Target("peak memory", bound, value, "MB")


@contextlib.contextmanager
def lines(context: Context) -> Iterator[Plan]:
    """2 GB within 256 MB, from file to file."""
    sorting = Sorting(context, records(context, scaled_size(context, 2)))
    contenders = [
        sorting.ours(),
        *sorting.gnu(),
        *sorting.peer("duckdb", "DuckDB", memory=BUDGET),
    ]
    targets = [within(0.25, "GNU sort"), within(0.5, "DuckDB"), peak(256)]
    yield Plan(contenders, targets, [sorting.source])


@contextlib.contextmanager
def larger(context: Context) -> Iterator[Plan]:
    """8 GB against 2 GB, within 256 MB."""
    small = Sorting(context, records(context, scaled_size(context, 2)))
    large = Sorting(context, records(context, scaled_size(context, 8)))
    contenders = [small.ours("2 GB"), large.ours(OURS)]
    targets = [within(4.3, "2 GB"), peak(256)]
    yield Plan(contenders, targets, [large.source])


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
    run = f"{context.tools.millstream} run --quiet --memory {BUDGET} --scratch {context.scratch} {job}"
    contender = Contender(OURS, "ours", shell(f"{make} | {run} | {check}"))
    unsorted = Contender("made, and sorted by nobody", "limit", shell(f"{make} | {total}"))
    made = DataSet(context.scratch, Made(1, size, size, size // RECORD))
    yield Plan([contender, unsorted], [peak(256)], [made])


@contextlib.contextmanager
def in_memory(context: Context) -> Iterator[Plan]:
    """512 MB within 2 GB."""
    sorting = Sorting(context, records(context, scaled_size(context, 0.512)), memory="2GB")
    contenders = [
        sorting.ours(cold=False),
        *sorting.peer("duckdb", "DuckDB", memory="2GB", cold=False),
        *sorting.peer("polars", "Polars", cold=False),
    ]
    yield Plan(contenders, [within(1.0, "Polars", "DuckDB"), peak(2_000)], [sorting.source])


@contextlib.contextmanager
def orders(context: Context) -> Iterator[Plan]:
    """Orders that a sort can stumble over, against a random one."""
    size = scaled_size(context, 2)
    contenders, sets = [], []
    for order in ORDERS:
        sorting = Sorting(context, records(context, size, order))
        name = OURS if order == "random" else order
        contenders.append(sorting.ours(name))
        sets.append(sorting.source)

    def slower(order: str) -> Target:
        def value(results: Results) -> float | None:
            mine, random = results.wall(order), results.wall(OURS)
            return mine / random if mine and random else None

        return Target(f"{order}, against random", 1.0, value)

    yield Plan(contenders, [slower(order) for order in ORDERS[1:]], sets)


SORTS: dict[str, Work] = {
    "sort-lines": Work("sort 2 GB of lines within 256 MB", lines),
    "sort-larger": Work("sort 8 GB within 256 MB", larger),
    "sort-stream": Work("sort 20 GB from a pipe within 256 MB", stream),
    "sort-memory": Work("sort 512 MB in memory", in_memory),
    "sort-orders": Work("sort 2 GB that are nearly sorted, reversed, of few keys, all equal", orders),
}

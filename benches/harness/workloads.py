"""The workloads: for each the data, the contenders, and the target of Millstream.

A workload is a context manager, since some need a server while they run. `measure.py` measures the runs, `store.py`
makes the data. The targets are ratios within one run, on two cores, with everything in the page cache.
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import data, servers, tools
from harness.measure import Answer, Contender, Outcome, Results, shell
from harness.store import DataSet, Store, day_rows, scaled

HERE = Path(__file__).parent
OURS = "millstream"
DELAY = 20  # milliseconds until the slow server answers
CONNECTIONS = 64
MEGABYTE = 1_000_000
MEMORY = {"count": 100.0, "group": 256.0}  # megabytes


@dataclass(frozen=True)
class Target:
    """What Millstream has to reach: a value that can be computed from a run, and its bound.

    Of the targets that share a `family`, the report shows only the worst.
    """

    against: str
    bound: float
    value: Callable[[Results], float | None]
    unit: str = "×"
    family: str = ""

    def met(self, value: float) -> bool:
        """Whether a value reaches the target."""
        return value <= self.bound

    def text(self) -> str:
        """The bound as text."""
        return f"≤ {self.bound:.3g} {self.unit}"


@dataclass(frozen=True)
class Plan:
    """A workload that is ready to run."""

    contenders: Sequence[Contender]
    targets: Sequence[Target]
    data: Sequence[DataSet]
    servers: Sequence[int] = ()
    expected: Answer = None


@dataclass(frozen=True)
class Workload:
    """A workload: its title, and what prepares it."""

    title: str
    open: Callable[["Context"], contextlib.AbstractContextManager[Plan]]


@dataclass(frozen=True)
class Context:
    """What all workloads use."""

    store: Store
    tools: tools.Tools
    scratch: Path
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def count(self, *urls: object, name: str = OURS) -> Contender:
        """Millstream counts lines."""
        return Contender(name, "ours", [str(self.tools.millstream), "count", "--quiet", *map(str, urls)])

    def run(self, job: str, name: str = OURS, read: Callable[[str], Outcome] | None = None) -> Contender:
        """Millstream runs a job that writes its result to standard output."""
        path = self.scratch / f"{name.replace(' ', '-').replace(',', '')}-{abs(hash(job)):x}.yaml"
        path.write_text(job)
        return Contender(name, "ours", [str(self.tools.millstream), "run", "--quiet", str(path)], read or groups)

    def piped(self, name: str, needs: str, script: str) -> list[Contender]:
        """A pipeline of Unix commands, if they are there."""
        return [Contender(name, "peer", shell(script))] if all(map(tools.command, needs.split())) else []

    def limit(self, files: DataSet, *, largest_first: bool = False) -> Contender:
        """The least program that counts lines of whole files on all cores."""
        listed = files.list()
        if largest_first:
            by_size = sorted(files.files(), key=lambda path: -path.stat().st_size)
            listed = self.scratch / "largest-first.txt"
            listed.write_text("".join(f"{path}\n" for path in by_size))
        return Contender("limit", "limit", [self.tools.limit("limit"), "whole", str(self.cores), str(listed)])

    def peer(self, engine: str, name: str, query: dict, add: int = 0) -> list[Contender]:
        """DuckDB or Polars, if they are there; `add` are lines that they do not count as rows."""
        if not self.tools.python:
            return []

        def read(output: str) -> Outcome:
            printed = json.loads(output)
            answer = printed["answer"]
            return Outcome(answer + add if isinstance(answer, int) else answer, printed["seconds"], printed["cpu"])

        script = str(HERE / "peers.py")
        return [Contender(name, "peer", [str(self.tools.python), script, engine, json.dumps(query)], read)]

    def wrk(self, server: servers.Server, paths: Path, requests: int) -> list[Contender]:
        """wrk fetches and discards for some seconds; the time for all requests is computed from its rate."""
        program = tools.command("wrk")
        if not program:
            return []

        def read(output: str) -> Outcome:
            printed = json.loads(output.strip().rsplit("\n", 1)[-1])
            if printed["errors"] or not printed["requests"]:
                raise RuntimeError(f"wrk: {printed['errors']} errors in {printed['requests']} requests")
            share = requests / printed["requests"]
            return Outcome(None, printed["seconds"] * share, share=share)

        script = str(HERE / "wrk.lua")
        seconds = 3 if self.store.scale >= 0.05 else 1
        shape = ["-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
        return [Contender("wrk", "limit", [program, *shape, "-s", script, server.url, "--", str(paths)], read)]


def groups(output: str) -> Outcome:
    """An answer in two columns: a key and a number."""
    rows = csv.reader(io.StringIO(output))
    next(rows)
    return Outcome({key: float(value) for key, value in rows})


def within(bound: float, *names: str, called: str = "") -> Target:
    """At most this many times the time of the best of some contenders."""

    def value(results: Results) -> float | None:
        times = [results.wall(name) for name in names]
        best = min((time for time in times if time is not None), default=None)
        mine = results.wall(OURS)
        return mine / best if mine is not None and best else None

    return Target(called or " or ".join(names), bound, value)


def memory(does: str) -> Target:
    """At most this many megabytes for counting or grouping, whatever the data."""

    def value(results: Results) -> float | None:
        ours = [name for name, role in results.roles.items() if role == "ours"]
        peaks = [results.rss(name) for name in ours if name.startswith((OURS, does))]
        return max((peak for peak in peaks if peak is not None), default=0) / MEGABYTE or None

    return Target("peak memory", MEMORY[does], value, "MB", family=f"{does}, all workloads")


def growth(larger: str, base: str) -> Target:
    """Memory that does not grow with the data."""

    def value(results: Results) -> float | None:
        peak, start = results.rss(larger), results.rss(base)
        return peak / start if peak and start else None

    return Target(f"memory of “{larger}” against “{base}”", 1.1, value)


def batch(files: int, cores: int) -> int:
    """How many files to hand to one process of xargs so that all cores have several."""
    return max(1, min(500, files // (cores * 4)))


def unpack(context: Context, files: DataSet, program: str) -> list[Contender]:
    """`xargs` over a decompressor, on all cores."""
    many = batch(files.made.files, context.cores)
    name = f"xargs -P{context.cores} {program} -dc | wc -l"
    script = f"xargs -a {files.list()} -P{context.cores} -n{many} {program} -dc | wc -l"
    return context.piped(name, f"xargs {program}", script)


def lines_query(paths: str) -> dict:
    """A query that counts lines with a CSV reader: its one column is the whole line."""
    columns = {"line": "utf8"}
    shape = {"format": "csv", "columns": columns, "delimiter": "\x01", "header": False}
    return {"paths": paths, **shape, "sql": "SELECT count(*) AS answer FROM input"}


def trades_query(paths: str, sql: str) -> dict:
    """A query over trades."""
    shape = {"format": "csv", "columns": data.TRADE_COLUMNS, "delimiter": "|", "header": True}
    return {"paths": paths, **shape, "sql": sql}


SUM_BY_SYMBOL = "SELECT symbol, sum(size * price) AS value FROM input GROUP BY symbol"
PEOPLE_BY_COUNTRY = "SELECT country, sum(population) AS people FROM input GROUP BY country"


def job(query: dict) -> str:
    """The same query as a Millstream job. A job file may be JSON, since JSON is YAML."""
    read: dict = {"read": query["paths"]}
    if query["format"] == "json":
        read["json"] = {"columns": query["columns"]}
    else:
        read["csv"] = {name: query[name] for name in ("delimiter", "header", "columns")}
    return json.dumps({
        "sources": {"input": read},
        "transforms": {"grouped": {"sql": query["sql"]}},
        "sinks": {"result": {"from": "grouped", "write": "-", "csv": {}}},
    }, indent=2)  # fmt: skip


def counted(
    contenders: Sequence[Contender], targets: Sequence[Target], files: DataSet, server: Sequence[int] = ()
) -> Plan:
    """A workload whose answer is the number of lines of a data set."""
    return Plan(contenders, targets, [files], server, files.made.lines)


@contextlib.contextmanager
def count_gzip(context: Context) -> Iterator[Plan]:
    """Many gzip files of some megabytes of text."""
    files = context.store.get("trades")
    pattern = f"{files.folder}/*.csv.gz"
    rows = trades_query(pattern, "SELECT count(*) AS answer FROM input")
    parallel = "parallel zcat | wc -l"
    contenders = [
        context.count(pattern),
        context.limit(files),
        *unpack(context, files, "igzip"),
        *context.piped(parallel, "parallel zcat", f"parallel --will-cite -a {files.list()} zcat | wc -l"),
        *context.peer("duckdb", "DuckDB, one column", lines_query(pattern)),
        *context.peer("duckdb", "DuckDB, eight columns", rows, add=files.made.files),
        *context.peer("polars", "Polars", lines_query(pattern)),
    ]
    duckdb = "DuckDB, one column", "DuckDB, eight columns"
    targets = [within(1.2, "limit"), within(0.35, *duckdb, called="DuckDB"), within(1 / 7, parallel), memory("count")]
    yield counted(contenders, targets, files)


@contextlib.contextmanager
def count_small(context: Context) -> Iterator[Plan]:
    """Very many small gzip files."""
    files = context.store.get("places")
    igzip = unpack(context, files, "igzip")
    contenders = [
        context.count(f"{files.folder}/**/*.gz"),
        context.limit(files),
        *igzip,
        *context.piped("xargs zcat | wc -l", "xargs zcat", f"xargs -a {files.list()} zcat | wc -l"),
    ]
    targets = [within(1.2, "limit"), within(0.85, igzip_name(context)), memory("count")]
    yield counted(contenders, targets, files)


def igzip_name(context: Context) -> str:
    """The name of the pipeline with igzip."""
    return f"xargs -P{context.cores} igzip -dc | wc -l"


@contextlib.contextmanager
def count_one(context: Context) -> Iterator[Plan]:
    """One large ordinary gzip file."""
    files = context.store.get("whole")
    path = files.files()[0]
    contenders = [
        context.count(path),
        Contender("limit, one thread", "limit", [context.tools.limit("limit"), "stream", str(path)]),
        *context.piped("zcat | wc -l", "zcat", f"zcat {path} | wc -l"),
        *context.piped("igzip -dc | wc -l", "igzip", f"igzip -dc {path} | wc -l"),
        *context.piped("pigz -dc | wc -l", "pigz", f"pigz -dc {path} | wc -l"),
        *context.peer("duckdb", "DuckDB", lines_query(str(path))),
        *context.peer("polars", "Polars", lines_query(str(path))),
    ]
    if rapidgzip := context.tools.rapidgzip():
        for threads in (1, context.cores):
            command = [rapidgzip, "--count-lines", "-q", "-P", str(threads), str(path)]
            contenders.append(Contender(f"rapidgzip -P{threads}", "peer", command))
    best = "igzip -dc | wc -l", "rapidgzip -P1", f"rapidgzip -P{context.cores}", "Polars"
    floor = within(0.95, *best, called="the best of igzip, rapidgzip, Polars")
    prize = within(0.7, *best, called="the same: the prize")
    yield counted(contenders, [floor, prize, memory("count")], files)


@contextlib.contextmanager
def count_zstd(context: Context) -> Iterator[Plan]:
    """Zstd files of very different sizes."""
    files = context.store.get("zstd")
    contenders = [
        context.count(f"{files.folder}/*.zst"),
        context.limit(files, largest_first=True),
        *unpack(context, files, "zstd"),
    ]
    yield counted(contenders, [within(1.15, "limit"), memory("count")], files)


@contextlib.contextmanager
def http_small(context: Context) -> Iterator[Plan]:
    """The small files from nginx."""
    files = context.store.get("places")
    with served(context, files) as server:
        urls, paths = files.list(f"{server.url}/"), files.list("/")
        transfers = context.scratch / "curl.txt"
        transfers.write_text("".join(f'url = "{url}"\noutput = /dev/null\n' for url in urls.read_text().split()))
        wget = "parallel -j100 -m wget | zcat | wc -l"
        curl = f"curl --no-progress-meter --parallel --parallel-max {CONNECTIONS} -K {transfers} && echo done"
        contenders = [
            context.count(f"@{urls}"),
            *context.wrk(server, paths, files.made.files),
            *context.piped(
                wget, "parallel wget zcat", f"parallel --will-cite -a {urls} -j100 -m wget -q -O - | zcat | wc -l"
            ),
            *(discarding(peer) for peer in context.piped("curl --parallel, discarding", "curl", curl)),
        ]
        targets = [within(1.2, "wrk"), within(0.65, wget), memory("count")]
        yield counted(contenders, targets, files, server.pids)


def discarding(contender: Contender) -> Contender:
    """A contender whose answer is not compared."""
    return dataclasses.replace(contender, read=lambda _: Outcome(None))


@contextlib.contextmanager
def served(context: Context, files: DataSet) -> Iterator[servers.Server]:
    """Serves the files of a data set by nginx."""
    program = tools.command("nginx")
    if not program:
        raise FileNotFoundError("nginx is not installed: scripts/install-bench-packages.sh")
    with servers.nginx(program, files.folder) as server:
        yield server


@contextlib.contextmanager
def slow(context: Context, files: DataSet, connect: int = 0) -> Iterator[servers.Server]:
    """Serves the files of a data set by the slow server."""
    command = [context.tools.limit("slow-server"), str(files.folder), str(DELAY), str(connect)]
    with servers.own(command) as server:
        yield server


@contextlib.contextmanager
def http_slow(context: Context) -> Iterator[Plan]:
    """The small files from a slow server."""
    files = context.store.get("places")
    with slow(context, files) as server:
        urls, paths = files.list(f"{server.url}/"), files.list("/")
        read = {"read": f"@{urls}", "lines": {}, "http": {"connections": CONNECTIONS}}
        limited = context.run(counting(read), read=second_number)
        free = context.count(f"@{urls}", name=f"{OURS}, connections by itself")
        contenders = [limited, free, *context.wrk(server, paths, files.made.files)]
        least = files.made.files * DELAY / 1000 / CONNECTIONS

        def value(results: Results) -> float | None:
            wall = results.wall(OURS)
            return wall / least if wall is not None else None

        target = Target(f"requests × {DELAY} ms / {CONNECTIONS}", 1.15, value)
        noted = [watched(contender, server) for contender in contenders]
        yield counted(noted, [target, memory("count")], files, server.pids)


def watched(contender: Contender, server: servers.Server) -> Contender:
    """The same contender, with its number of connections to the slow server in the report."""

    def reset() -> None:
        server.connections()

    return dataclasses.replace(contender, before=reset, after=server.connections)


@contextlib.contextmanager
def http_zip(context: Context) -> Iterator[Plan]:
    """The same trades as twelve zips and as gzip files, from nginx."""
    zips, gzips = context.store.get("zips"), context.store.get("trades")
    with served(context, zips) as server, served(context, gzips) as beside:
        urls = zips.list(f"{server.url}/")
        plain = f"{OURS}, the same as .gz"
        disk = "wget to disk, unzip -p | wc -l"
        script = f"wget -q -i {urls} && parallel --will-cite unzip -p ::: *.zip | wc -l"
        contenders = [
            context.count(f"@{urls}"),
            context.count(f"@{gzips.list(f'{beside.url}/')}", name=plain),
            *context.piped(disk, "wget parallel unzip", script),
        ]
        # Creating a folder counts as some kilobytes.
        written = Target("written to disk", 0.1, lambda results: written_megabytes(results, OURS), unit="MB")
        targets = [within(1.15, plain), written, memory("count")]
        yield Plan(contenders, targets, [zips, gzips], [*server.pids, *beside.pids], zips.made.lines)


@contextlib.contextmanager
def s3(context: Context) -> Iterator[Plan]:
    """Small objects in a bucket."""
    files = context.store.get("objects")
    with servers.own([context.tools.limit("s3-server"), str(files.folder)]) as server:
        place = {"endpoint": server.url, "allow_http": True, "anonymous": True, "connections": CONNECTIONS}
        read = {"read": "s3://bench/places/**/*.gz", "lines": {}, "s3": {**place, "region": "us-east-1"}}
        contenders = [
            context.run(counting(read), read=second_number),
            *context.wrk(server, files.list("/"), files.made.files),
        ]
        target = within(1 / 0.8, "wrk", called="wrk: 0.8 of its rate")
        yield counted(contenders, [target, memory("count")], files, server.pids)


def counting(read: dict) -> str:
    """A job that counts the lines of a source."""
    return json.dumps({
        "sources": {"input": read},
        "transforms": {"counted": {"sql": "SELECT count(*) AS lines FROM input"}},
        "sinks": {"result": {"from": "counted", "write": "-", "csv": {}}},
    }, indent=2)  # fmt: skip


def second_number(output: str) -> Outcome:
    """The number below a header."""
    return Outcome(int(output.split()[1]))


def written_megabytes(results: Results, name: str) -> float | None:
    """The most that a contender wrote to disk."""
    return max((sample.disk_written / MEGABYTE for sample in results.samples.get(name, [])), default=None)


def grouping(context: Context, files: DataSet, query: dict, targets: list[Target]) -> Plan:
    """A group-by in Millstream, DuckDB and Polars."""
    contenders = [
        context.run(job(query)),
        *context.peer("duckdb", "DuckDB", query),
        *context.peer("polars", "Polars", query),
    ]
    return Plan(contenders, [*targets, memory("group")], [files])


@contextlib.contextmanager
def group_csv(context: Context) -> Iterator[Plan]:
    """Sum by symbol over the gzip files of trades."""
    files = context.store.get("trades")
    query = trades_query(f"{files.folder}/*.csv.gz", SUM_BY_SYMBOL)
    yield grouping(context, files, query, [within(0.8, "DuckDB", "Polars")])


@contextlib.contextmanager
def group_small(context: Context) -> Iterator[Plan]:
    """Sum by country over the small files of places."""
    files = context.store.get("places")
    shape = {"format": "csv", "columns": data.PLACE_COLUMNS, "delimiter": "\t", "header": False}
    query = {"paths": f"{files.folder}/**/*.tsv.gz", **shape, "sql": PEOPLE_BY_COUNTRY}
    yield grouping(context, files, query, [within(0.12, "DuckDB"), within(0.3, "Polars")])


@contextlib.contextmanager
def group_json(context: Context) -> Iterator[Plan]:
    """Sum by symbol over JSON lines."""
    files = context.store.get("json")
    query = {
        "paths": str(files.files()[0]),
        "format": "json",
        "columns": data.TRADE_COLUMNS,
        "sql": SUM_BY_SYMBOL,
    }
    yield grouping(context, files, query, [within(0.9, "DuckDB")])


@contextlib.contextmanager
def ten_times(context: Context) -> Iterator[Plan]:
    """Memory for some units, for ten times as many, for units ten times as large."""
    files = context.store.get("memory")
    units, rows = scaled(25, context.store.scale, 4), day_rows(context.store.scale * 5)
    lines = {"base": units * (rows + 1), "many": units * (rows + 1) * 10, "large": units * (rows * 10 + 1)}
    contenders = []
    for kind, expected in lines.items():
        pattern = f"{files.folder}/{kind}/*.gz"
        grouped = job(trades_query(pattern, SUM_BY_SYMBOL))
        contenders.append(dataclasses.replace(context.count(pattern, name=f"count, {kind}"), expected=expected))
        contenders.append(discarding(context.run(grouped, name=f"group, {kind}")))
    targets = []
    for does in MEMORY:
        targets += [growth(f"{does}, {more}", f"{does}, base") for more in ("many", "large")]
        targets.append(memory(does))
    yield Plan(contenders, targets, [files])


WORKLOADS: dict[str, Workload] = {
    "count-gzip": Workload("count gzip files", count_gzip),
    "count-small": Workload("count small gzip files", count_small),
    "count-one": Workload("count one gzip file", count_one),
    "count-zstd": Workload("count zstd files of very different sizes", count_zstd),
    "http-small": Workload("count the small files over HTTP from nginx", http_small),
    "http-slow": Workload(f"the same from a server that answers after {DELAY} ms", http_slow),
    "http-zip": Workload("count 12 zips over HTTP", http_zip),
    "s3": Workload("count the objects of a bucket", s3),
    "group-csv": Workload("group-by over CSV gzip files", group_csv),
    "group-small": Workload("group-by over the small files as TSV", group_small),
    "group-json": Workload("group-by over JSON lines", group_json),
    "memory": Workload("peak memory: ten times as many, ten times as large", ten_times),
}

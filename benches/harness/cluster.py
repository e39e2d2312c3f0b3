"""The workloads of many machines, all of them on this one. Where units wait for a server that gives each address so
much and no more, workers have addresses of their own: namespaces of the network, for which this runs as root. Elsewhere
each worker has a core of its own.
"""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import data, databases, tools
from harness.costs import against
from harness.databases import Database
from harness.measure import Answer, Contender, Note, Outcome, Results
from harness.servers import ending, free_port
from harness.store import DataSet
from harness.workloads import OURS, Context, Plan, Target, Workload

HERE = Path(__file__).parent
BRIDGE, NETWORK = "ms-bench", "10.79.3"
RATE = 5_000_000  # bytes a second for each address
SLOW_RATE = 400_000  # for four workers to take three minutes
WORKERS = 4
MEMORY = "1GiB"  # of each worker, as of each executor of Spark
TIMES = 12  # that units are read which are in the page cache
TIMES_LARGE = 3  # that they are in the large text
SPARK_MEMORY = 1024  # megabytes of each executor: with 512 it does not start


@contextlib.contextmanager
def addresses(count: int) -> Iterator[list[list[str]]]:
    """Namespaces with an address each, and what commands begin with that run in them."""
    if os.geteuid() != 0 or not tools.command("ip"):
        raise RuntimeError("this needs namespaces of the network: run it as root, with the command `ip`")

    def ip(*arguments: str, check: bool = True) -> None:
        subprocess.run(["ip", *arguments], check=check, capture_output=True)

    names = [f"{BRIDGE}-{number}" for number in range(count)]

    def remove() -> None:
        for name in names:
            ip("netns", "delete", name, check=False)
        ip("link", "delete", BRIDGE, check=False)

    remove()
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{BRIDGE}{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{BRIDGE}{number}", "master", BRIDGE, "up")
            ip("-n", name, "address", "add", f"{NETWORK}.{number + 2}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        remove()


def own_cores(count: int) -> list[list[str]]:
    """What commands begin with that have a core each."""
    cores = sorted(os.sched_getaffinity(0))
    return [["taskset", "-c", str(cores[number % len(cores)])] for number in range(count)]


@contextlib.contextmanager
def throttled(folder: Path, rate: int) -> Iterator[tuple[str, list[int]]]:
    """The server of the files: its URL and its process."""
    command = [sys.executable, str(HERE / "throttled.py"), str(folder), f"{NETWORK}.1", str(rate)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process, ending(process):
        port = process.stdout.readline().strip() if process.stdout else b""
        if not port:
            raise RuntimeError("the server does not start")
        yield f"http://{NETWORK}.1:{int(port)}", [process.pid]


class Cluster:
    """The workers and the coordinator of a workload."""

    def __init__(self, context: Context, address: str = "127.0.0.1") -> None:
        """Makes its secret."""
        self.context, self.millstream = context, str(context.tools.millstream)
        self.address = f"{address}:{free_port()}"
        self.secret = context.scratch / "cluster.pem"
        if not self.secret.exists():
            subprocess.run([self.millstream, "cluster", "init", str(self.secret)], check=True, capture_output=True)

    def contender(
        self, name: str, prefixes: Sequence[Sequence[str]], command: Sequence[str], *, kill: float = 0, **more: object
    ) -> Contender:
        """Runs a command with workers, or without any."""
        slug = "".join(letter if letter.isalnum() else "-" for letter in name)
        state = self.context.scratch / "states" / slug
        distributed = ["--cluster=always", "--listen", self.address, "--secret", str(self.secret)] if prefixes else []
        worker = [self.millstream, "worker", "--join", self.address, "--secret", str(self.secret), "--cores", "1",
                  "--memory", MEMORY]  # fmt: skip
        settings = {
            "command": [self.millstream, *command, *distributed, "--state", str(state / "coordinator")],
            "workers": [[*prefix, *worker, "--state", str(state / f"worker-{number}")]
                        for number, prefix in enumerate(prefixes)],
            "kill": kill,
        }  # fmt: skip
        return run_with(self.context, slug, name, "ours", settings, **more)


def run_with(context: Context, slug: str, name: str, role: str, settings: dict, **more: object) -> Contender:
    """A contender of several processes, whose memory together is one of its figures."""
    path = context.scratch / f"{slug}.json"
    path.write_text(json.dumps(settings))
    measured = context.scratch / f"{slug}.measured"
    answer = more.pop("answer")

    def read(output: str) -> Outcome:
        printed = json.loads(output)
        measured.write_text(json.dumps({"peak": printed["peak"] / 1e6}))
        found, seconds = answer(printed["printed"])
        return Outcome(found, printed["seconds"] if seconds is None else seconds)

    def after() -> Note:
        figures = json.loads(measured.read_text())
        return Note(f"all processes together: {figures['peak']:.0f} MB", figures)

    return Contender(name, role, [sys.executable, str(HERE / "clustered.py"), str(path)], read, after=after, **more)


def lines_counted(printed: str) -> tuple[Answer, None]:
    """What `millstream count` says."""
    return int(printed.split()[0]), None


def rows_read(printed: str) -> tuple[Answer, None]:
    """How many rows a run has read."""
    return json.loads(printed)["rows_read"], None


def rows_written(printed: str) -> tuple[Answer, None]:
    """How many rows a run has written."""
    return json.loads(printed)["rows_written"], None


def places_job(context: Context, pattern: str, database: Database) -> Path:
    """Large places go into a table: reading is most of the work."""
    path = context.scratch / f"places-{abs(hash(pattern)):x}.yaml"
    shape = {"delimiter": "\t", "header": False, "quote": "none", "columns": data.PLACE_COLUMNS}
    source = {"read": pattern, "csv": shape}
    kept = {"filter": {"from": "places", "where": "population > 1000000"}}
    sink = {"from": "large", "write": database.url, "table": "places"}
    if NETWORK in database.url:
        sink["tls"] = "off"
    path.write_text(json.dumps({"sources": {"places": source}, "transforms": {"large": kept}, "sinks": {"t": sink}}))
    return path


def emptied(database: Database) -> None:
    """Removes what an earlier run has loaded."""
    database.run("DROP TABLE IF EXISTS places")


def numbered(files: DataSet, base: str) -> str:
    """A pattern of all files of the set, which have numbers."""
    return f"{base}/{{0000..{files.made.files - 1:04}}}.tsv.gz"


@contextlib.contextmanager
def throttled_units(context: Context) -> Iterator[Plan]:
    """Units from a server that gives each address so much: one worker, and four."""
    files = context.store.get("units")
    with (
        addresses(WORKERS) as prefixes,
        throttled(files.folder, RATE) as (url, pids),
        databases.postgres(f"{NETWORK}.1") as database,
    ):
        cluster = Cluster(context, f"{NETWORK}.1")
        pattern = numbered(files, url)
        path = places_job(context, pattern, database)
        contenders = []
        for count in (1, WORKERS):
            named = f"{count} worker{'s' if count > 1 else ''}"
            with_lines = {"answer": lines_counted, "expected": files.made.lines}
            contenders += [
                cluster.contender(f"count, {named}", prefixes[:count], ["count", "--quiet", pattern], **with_lines),
                cluster.contender(
                    f"load, {named}", prefixes[:count], ["run", "--quiet", "--json", "--restart", str(path)],
                    answer=rows_read, expected=files.made.lines, before=lambda: emptied(database),
                ),
            ]  # fmt: skip
        targets = [
            against(1 / 3.4, f"{what}, {WORKERS} workers", f"{what}, 1 worker", f"{what}: 1 worker")
            for what in ("count", "load")
        ]
        yield Plan(contenders, targets, [files], [*pids, *database.pids])


@contextlib.contextmanager
def cores_apart(context: Context) -> Iterator[Plan]:
    """The same units from the page cache: workers of one core each, and one process of as many cores."""
    files = context.store.get("units")
    # One reading takes less than a second: joining, which takes up to a quarter, would be most of the difference.
    folder, lines = context.scratch / "units", files.made.lines * TIMES
    folder.mkdir()
    for number in range(TIMES):
        (folder / str(number)).symlink_to(files.folder)
    with databases.postgres() as database:
        cluster, pattern = Cluster(context), f"{folder}/*/*.tsv.gz"
        path = places_job(context, pattern, database)
        prefixes, shared = own_cores(context.cores), ["--shared", str(folder)]
        contenders = []
        for name, workers, more in [("workers", prefixes, shared), ("one process", [], [])]:
            run = ["run", "--quiet", "--json", "--restart", str(path), *more]
            contenders += [
                cluster.contender(f"count, {name}", workers, ["count", "--quiet", pattern, *more],
                                  answer=lines_counted, expected=lines),
                cluster.contender(f"load, {name}", workers, run, answer=rows_read, expected=lines,
                                  before=lambda: emptied(database)),
            ]  # fmt: skip
        targets = [
            against(1.15, f"{what}, workers", f"{what}, one process", f"{what}: one process")
            for what in ("count", "load")
        ]
        yield Plan(contenders, targets, [files], database.pids)


@contextlib.contextmanager
def one_large(context: Context) -> Iterator[Plan]:
    """The rows of all units in one text, which workers of one core read by ranges, and one process of as many cores."""
    files = context.store.get("units")
    folder, lines = context.scratch / "large", files.made.lines * TIMES_LARGE
    folder.mkdir()
    with (folder / "all.tsv").open("wb") as text:
        for _ in range(TIMES_LARGE):
            for unit in sorted(files.folder.glob("*.tsv.gz")):
                with gzip.open(unit) as packed:
                    shutil.copyfileobj(packed, text)
    with databases.postgres() as database:
        cluster = Cluster(context)
        path = places_job(context, f"{folder}/all.tsv", database)
        contenders = [
            cluster.contender(f"load, {name}", workers, ["run", "--quiet", "--json", "--restart", str(path), *more],
                              answer=rows_read, expected=lines, before=lambda: emptied(database))
            for name, workers, more in [("workers", own_cores(context.cores), ["--shared", str(folder)]),
                                        ("one process", [], [])]
        ]  # fmt: skip
        target = against(1.15, "load, workers", "load, one process", "one process")
        yield Plan(contenders, [target], [files], database.pids)


@contextlib.contextmanager
def tiny_units(context: Context) -> Iterator[Plan]:
    """Very many small units."""
    files = context.store.get("tiny")
    with databases.postgres() as database:
        cluster, pattern = Cluster(context), f"{files.folder}/*.tsv.gz"
        path = places_job(context, pattern, database)
        run = ["run", "--quiet", "--json", "--restart", str(path)]
        before = {"answer": rows_read, "expected": files.made.lines, "before": lambda: emptied(database)}
        shared = ["--shared", str(files.folder)]
        contenders = [
            cluster.contender("workers", own_cores(context.cores), [*run, *shared], **before),
            cluster.contender("one process", [], run, **before),
        ]

        def more(results: Results) -> float | None:
            mine, base = results.wall("workers"), results.wall("one process")
            return mine - base if mine is not None and base is not None else None

        yield Plan(contenders, [Target("one process: longer by", 5, more, "s")], [files], database.pids)


@contextlib.contextmanager
def lost_worker(context: Context) -> Iterator[Plan]:
    """One of four workers is killed half-way."""
    files = context.store.get("units")
    undisturbed = files.made.stored / (SLOW_RATE * WORKERS)
    with addresses(WORKERS) as prefixes, throttled(files.folder, SLOW_RATE) as (url, pids):
        cluster, command = Cluster(context, f"{NETWORK}.1"), ["count", "--quiet", numbered(files, url)]
        more = {"answer": lines_counted, "expected": files.made.lines, "most": 1}
        contenders = [
            cluster.contender("four workers", prefixes, command, **more),
            cluster.contender("one is killed", prefixes, command, kill=undisturbed / 2, **more),
        ]
        yield Plan(contenders, [against(1.5, "one is killed", "four workers", "nobody is killed")], [files], pids)


@contextlib.contextmanager
def to_parquet(context: Context) -> Iterator[Plan]:
    """CSV and JSON in gzip files to Parquet files, against Spark with as many workers."""
    files = context.store.get("both")
    out = context.scratch / "parquet"
    job, csv, lines = context.scratch / "to-parquet.yaml", f"{files.folder}/csv", f"{files.folder}/json"
    shape = {"delimiter": "|", "header": True, "columns": data.TRADE_COLUMNS}
    sink = {"from": "all", "write": f"{out}/ours.parquet", "parquet": {}, "roll": {"bytes": "128MB"}}
    job.write_text(json.dumps({
        "sources": {
            "csv": {"read": f"{csv}/*.csv.gz", "csv": shape},
            "json": {"read": f"{lines}/*.jsonl.gz", "json": {"columns": data.TRADE_COLUMNS}},
        },
        "transforms": {"all": {"union": ["csv", "json"]}},
        "sinks": {"out": sink},
    }))  # fmt: skip
    rows = files.made.lines - len(list(Path(csv).iterdir()))

    def before() -> None:
        subprocess.run(["rm", "-rf", str(out)], check=True)
        out.mkdir()

    run = ["run", "--quiet", "--json", "--restart", str(job)]
    shared = ["--shared", str(files.folder), "--shared", str(out)]
    cluster, prefixes = Cluster(context), own_cores(context.cores)
    more = {"answer": rows_written, "expected": rows, "before": before}
    contenders = [
        cluster.contender(OURS, prefixes, [*run, *shared], **more),
        cluster.contender(f"{OURS}, one process", [], run, **more),
    ]
    spark = "Spark, local cluster"
    if context.tools.python and tools.command("java"):
        command = [str(context.tools.python), str(HERE / "code" / "spark_files.py"), csv, lines, f"{out}/spark",
                   str(context.cores), str(SPARK_MEMORY)]  # fmt: skip

        def answer(printed: str) -> tuple[Answer, float]:
            found = json.loads(printed.splitlines()[-1])
            return found["rows"], found["seconds"]

        settings = {"command": command, "workers": []}
        contenders.append(
            run_with(context, "spark", spark, "peer", settings, answer=answer, expected=rows, before=before)
        )

    def memory(results: Results) -> float | None:
        mine, theirs = results.figure(OURS, "peak"), results.figure(spark, "peak")
        return mine / theirs if mine and theirs else None

    targets = [against(0.25, OURS, spark, spark), Target(f"{spark}, memory of all processes", 0.25, memory)]
    yield Plan(contenders, targets, [files])


CLUSTER: dict[str, Workload] = {
    "cluster-throttled": Workload("units from a server that gives 5 MB/s to each address", throttled_units),
    "cluster-cores": Workload("units from the page cache, workers of a core each", cores_apart),
    "cluster-large": Workload("one text from the page cache, workers of a core each", one_large),
    "cluster-tiny": Workload("10,000 units of 5 kB", tiny_units),
    "cluster-lost": Workload("a worker is killed half-way", lost_worker),
    "cluster-parquet": Workload("gzip CSV and JSON to Parquet", to_parquet),
}

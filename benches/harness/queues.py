"""The workloads of queues: posts from Redis and Kafka into databases, each exactly once; and how long one message takes
to a row that others see.

The limit is the work that cannot be left out, on both cores: what a program takes that reads all messages and does
nothing with them, together with its server, and what the database's own bulk load of the same rows takes, together with
its server. So the target divides the sum of these processor seconds by the number of cores.
"""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import brokers, databases, posts
from harness.brokers import Broker
from harness.databases import Database
from harness.loading import (
    MARIADB,
    POSTGRES,
    Loading,
    at_least,
    client,
    copy,
    load_data,
    plan,
    served,
    together,
)
from harness.measure import Contender, Note, Outcome, Results, number, shell
from harness.sorting import peak
from harness.store import DataSet, scaled
from harness.workloads import OURS, Context, Plan, Target, Workload, within

COMMIT = {"rows": 30_000, "bytes": "64MB", "every": "1s"}
DRAIN = "read and acknowledged, no more"
FILL = "pipelined XADD, no more"
KCAT = "kcat -C to /dev/null"
LATENCY = Path(__file__).parent / "latency.py"
RATE = 1_000  # messages a second
SECONDS = 30  # of messages at full scale
PEAK = 128  # megabytes
MEMORY = f"{PEAK}MB"


def within_work(bound: float, cores: int, *names: str) -> Target:
    """At most this many times the time that all cores would take for the work of the contenders and their servers."""

    def value(results: Results) -> float | None:
        mine, samples = results.wall(OURS), [results.samples.get(name) for name in names]
        if mine is None or not all(samples):
            return None
        least = [min(sample.cpu + sample.server_cpu for sample in runs or []) for runs in samples]
        return mine / (sum(least) / cores)

    return Target(" and ".join(names) + ", their work on all cores", bound, value)


def job(context: Context, name: str, source: dict, sink: dict, **keys: object) -> Path:
    """The file of a job that loads messages."""
    path = context.scratch / f"{name}.yaml"
    path.write_text(json.dumps({"sources": {"posts": source}, "sinks": {"posts": {"from": "posts", **sink}}, **keys}))
    return path


@contextlib.contextmanager
def loads(context: Context, broker: Broker, database: Database, loading: Loading, bulk: Sequence[str],
          targets: Sequence[Target] = (), peers: Sequence[Contender] = ()) -> Iterator[Plan]:  # fmt: skip
    """All posts from a queue into a table; `bulk` are the commands of the database's own load. All are read once before
    the clock starts: a broker in Java is much slower the first time.
    """
    broker.fill(loading.data.files()[0])
    broker.forget()
    subprocess.run(shell(broker.drain), check=True, capture_output=True)

    def before() -> None:
        loading.empty()
        database.run("DROP TABLE IF EXISTS _millstream_positions")
        broker.forget()

    source = {**broker.source, "json": {"columns": posts.COLUMNS}}
    sink = {"write": database.url, "table": "posts", "mode": "append"}
    path = job(context, "from-queue", source, sink, until="now", commit=COMMIT)
    script = f"{context.tools.millstream} run --quiet --memory {MEMORY} {path}"
    rows = loading.data.all.rows
    answer = number if broker.counts else lambda _: Outcome(None)
    own = "LOAD DATA, two" if "mysql" in database.url else "\\copy, two"
    contenders = [
        loading.contender(OURS, "ours", script, loading.data.all, before=before),
        Contender(DRAIN, "limit", shell(broker.drain), answer, rows, before, rows=rows),
        loading.contender(own, "limit", together(bulk), loading.data.all, before=before),
        *peers,
    ]  # fmt: skip
    ready = plan(loading, contenders, [], [*broker.pids, *database.pids])
    bounds = [within_work(1.25, context.cores, DRAIN, own), *targets, peak(PEAK)]
    yield Plan(ready.contenders, bounds, ready.data, ready.servers)


def into_mariadb(context: Context, database: Database) -> tuple[Loading, list[str]]:
    """The table in MariaDB, and the commands of the server's own load."""
    loading = served(context, database, MARIADB, "locked", "char_length")
    return loading, [client(database, load_data(part)) for part in loading.data.parts("tsv")]


def into_postgres(context: Context, database: Database) -> tuple[Loading, list[str]]:
    """The table in PostgreSQL, and the commands of the server's own load."""
    loading = served(context, database, POSTGRES, "locked", "length")
    return loading, [client(database, copy(part)) for part in loading.data.parts("tsv")]


@contextlib.contextmanager
def redis_mariadb(context: Context) -> Iterator[Plan]:
    """Redis into MariaDB."""
    with brokers.redis(context.tools.limit("redis-stream")) as broker, databases.mariadb() as database:
        loading, bulk = into_mariadb(context, database)
        celery = "Celery, batches (sample)"
        peers = loading.loader(celery, "batches")
        with loads(context, broker, database, loading, bulk, [at_least(150, celery)], peers) as ready:
            yield ready


@contextlib.contextmanager
def redis_postgres(context: Context) -> Iterator[Plan]:
    """Redis into PostgreSQL."""
    with (
        brokers.redis(context.tools.limit("redis-stream")) as broker,
        databases.postgres() as database,
        loads(context, broker, database, *into_postgres(context, database)) as ready,
    ):
        yield ready


@contextlib.contextmanager
def kafka_mariadb(context: Context) -> Iterator[Plan]:
    """Kafka into MariaDB."""
    with (
        brokers.kafka() as broker,
        databases.mariadb() as database,
        loads(context, broker, database, *into_mariadb(context, database)) as ready,
    ):
        yield ready


@contextlib.contextmanager
def kafka_postgres(context: Context) -> Iterator[Plan]:
    """Kafka into PostgreSQL."""
    with (
        brokers.kafka() as broker,
        databases.postgres() as database,
        loads(context, broker, database, *into_postgres(context, database)) as ready,
    ):
        yield ready


@contextlib.contextmanager
def into_redis(context: Context) -> Iterator[Plan]:
    """All posts into a stream, which is emptied before each run."""
    program = context.tools.limit("redis-stream")
    with brokers.redis(program, keep=False) as broker:
        data = posts.get(context.store)
        (lines,) = data.files()
        path = context.scratch / "into-queue.yaml"
        source = {"read": str(lines), "json": {"columns": posts.COLUMNS}}
        stream = {"write": broker.source["read"], "redis": {"stream": brokers.STREAM}}
        path.write_text(json.dumps({"sources": {"posts": source}, "sinks": {"posts": {"from": "posts", **stream}}}))
        ours = f"{context.tools.millstream} run --quiet --memory {MEMORY} {path}"
        fill = f"{program} fill 127.0.0.1:{broker.port} {brokers.STREAM} {lines}"
        counted = f"{databases.found('redis-cli')} -p {broker.port} XLEN {brokers.STREAM}"
        rows = data.all.rows

        def contender(name: str, role: str, script: str) -> Contender:
            command = shell(f"{script} > /dev/null && {counted}")
            return Contender(name, role, command, number, rows, broker.forget, rows=rows)

        contenders = [contender(OURS, "ours", ours), contender(FILL, "limit", fill)]
        files = DataSet(data.folder, data.made)
        yield Plan(contenders, [within(1.2, FILL), peak(PEAK)], [files], broker.pids)


@contextlib.contextmanager
def kafka_counted(context: Context) -> Iterator[Plan]:
    """All posts of a topic, counted: parsed, and no more."""
    with brokers.kafka() as broker:
        data = posts.get(context.store)
        broker.fill(data.files()[0])
        subprocess.run(shell(broker.drain), check=True, capture_output=True)
        rows, groups = data.all.rows, itertools.count()
        path = context.scratch / "counted.yaml"

        def before() -> None:
            # A new group begins at the first message.
            source = {**broker.source, "kafka": {"group": f"count-{next(groups)}"}, "json": {"columns": posts.COLUMNS}}
            job(context, "counted", source, {"write": "discard"}, until="now", commit=COMMIT)

        def read(output: str) -> Outcome:
            return Outcome(json.loads(output)["results"][0]["tally"]["written"])

        ours = shell(f"{context.tools.millstream} run --quiet --json --memory {MEMORY} {path}")
        contenders = [
            Contender(OURS, "ours", ours, read, rows, before, rows=rows),
            Contender(KCAT, "limit", shell(broker.drain), lambda _: Outcome(None), rows=rows),
        ]
        files = DataSet(data.folder, data.made)
        yield Plan(contenders, [within(1.1, KCAT), peak(PEAK)], [files], broker.pids)


@contextlib.contextmanager
def latency(context: Context) -> Iterator[Plan]:
    """Messages at a steady rate, from their sending to the row."""
    with brokers.redis(context.tools.limit("redis-stream"), keep=False) as broker, databases.mariadb() as database:
        loading = served(context, database, "CREATE TABLE posts (id BIGINT NOT NULL PRIMARY KEY)", "0", "char_length")

        def before() -> None:
            loading.empty()
            database.run("DROP TABLE IF EXISTS _millstream_positions")
            broker.forget()

        source = {**broker.source, "json": {"columns": {"id": "int64"}}}
        sink = {"write": database.url, "table": "posts", "mode": "append"}
        path = job(context, "latency", source, sink, until="stopped", commit={"every": "100ms"})
        messages = RATE * scaled(SECONDS, context.store.scale, 2)
        measured = context.scratch / "latency.json"
        client, millstream = json.dumps(database.client[:-1]), str(context.tools.millstream)
        command = [sys.executable, str(LATENCY), str(broker.port), brokers.STREAM, str(messages), str(RATE),
                   str(measured), client, millstream, str(path)]  # fmt: skip

        def after() -> Note:
            figures = json.loads(measured.read_text())
            text = ", ".join(f"{name} {value:.0f} ms" for name, value in figures.items())
            return Note(f"{messages:,} messages: {text}", figures)

        ours = Contender(OURS, "ours", command, lambda _: Outcome(None), before=before, after=after)
        slowest = Target("to a visible row, p99", 200, lambda results: results.figure(OURS, "p99"), "ms")
        files = DataSet(loading.data.folder, loading.data.made)
        yield Plan([ours], [slowest, peak(PEAK)], [files], [*broker.pids, *database.pids])


QUEUES: dict[str, Workload] = {
    "redis-mariadb": Workload("messages of Redis into MariaDB, exactly once", redis_mariadb),
    "redis-postgres": Workload("messages of Redis into PostgreSQL, exactly once", redis_postgres),
    "kafka-mariadb": Workload("messages of Kafka into MariaDB, exactly once", kafka_mariadb),
    "kafka-postgres": Workload("messages of Kafka into PostgreSQL, exactly once", kafka_postgres),
    "into-redis": Workload("rows of JSON lines into a stream of Redis", into_redis),
    "kafka-counted": Workload("messages of Kafka, parsed and counted", kafka_counted),
    "latency": Workload("one message of Redis to a row of MariaDB, at 1,000 a second", latency),
}

"""The workloads of what a load does on its way: looking rows up, finding text first, checking rows, keeping a table in
step with its source.

Each is measured against the same job without it, or against what does the same by hand.
"""

import contextlib
import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace

from harness import data, databases, posts
from harness.databases import Database
from harness.loading import MARIADB, POSTGRES, client, copy, load_data, served, together
from harness.loading import plan as loads
from harness.measure import Contender, Outcome, shell
from harness.posts import Sums
from harness.workloads import (
    OURS,
    SUM_BY_SYMBOL,
    Context,
    Plan,
    Workload,
    discarding,
    groups,
    memory,
    trades_query,
    within,
)

REFERENCE = 250_000
SPREAD = 7_919  # a prime: posts that follow each other have customers far apart
RARE = 3  # the symbol with this number has about one trade in a hundred


@contextlib.contextmanager
def lookup(context: Context) -> Iterator[Plan]:
    """All posts into PostgreSQL, each with the segment of its customer."""
    reference = context.scratch / "customers.csv"
    lines = (f"{number},segment {number % 97}\n" for number in range(REFERENCE))
    reference.write_text("customer,segment\n" + "".join(lines))
    with databases.postgres() as database:
        table = POSTGRES.removesuffix(")") + ", customer BIGINT NOT NULL, segment TEXT)"
        loading = served(context, database, table, "locked", "length")
        found = "with_segment"

        def load(name: str, **lookups: object) -> Contender:
            read = {"read": str(loading.data.files()[0]), "json": {"columns": posts.COLUMNS}}
            customer = f"SELECT *, id * {SPREAD} % {REFERENCE} AS customer FROM posts"
            job = {
                "sources": {"posts": read, "customers": {"read": str(reference), "csv": {}}},
                "transforms": {"of_customers": {"sql": customer}, **lookups},
                "sinks": {"posts": {"from": found if lookups else "of_customers", "write": database.url,
                                    "table": "posts", "mode": "append"}},
            }  # fmt: skip
            if not lookups:
                del job["sources"]["customers"]
            path = context.scratch / f"{name.replace(' ', '-').replace(',', '')}.yaml"
            path.write_text(json.dumps(job, indent=2))
            script = f"{context.tools.millstream} run --quiet --memory 512MB {path}"
            return loading.contender(name, "ours", script, loading.data.all)

        plain = f"{OURS}, without the lookup"
        step = {"from": "of_customers", "in": "customers", "on": ["customer"], "take": ["segment"]}
        contenders = [load(OURS, **{found: {"lookup": step}}), load(plain)]
        yield loads(loading, contenders, [within(1.15, plain)], database.pids)


@contextlib.contextmanager
def contains(context: Context) -> Iterator[Plan]:
    """One trade in a hundred, by its symbol, and the sum of each day."""
    files = context.store.get("json")
    path, symbol = files.files()[0], data.symbols()[RARE][1]
    text, by_day = f'"symbol":"{symbol}"', "SELECT date, sum(size * price) AS value FROM input GROUP BY date"
    query = {"paths": "/dev/stdin", "format": "json", "columns": data.TRADE_COLUMNS, "sql": by_day}
    job = json.dumps({
        "sources": {"input": {"read": str(path), "json": {"columns": data.TRADE_COLUMNS}, "contains": {"any": [text]}}},
        "transforms": {"grouped": {"sql": by_day}},
        "sinks": {"result": {"from": "grouped", "write": "-", "csv": {}}},
    })  # fmt: skip
    count, piped, alone = f"{OURS} count", "rg piped into DuckDB", "the same, by DuckDB's own clock"
    contenders = [context.run(job, read=groups), discarding(context.count(path, name=count))]
    for peer in context.peer("duckdb", piped, query):
        found = f"rg --fixed-strings --no-filename {shlex.quote(text)} {path} | {shlex.join(peer.command)}"
        for ready in context.piped(piped, "rg", found):
            # As other pipelines, the whole of it; and beside that from the query to its answer, while rg feeds it.
            contenders += [
                replace(ready, read=lambda output, read=peer.read: Outcome(read(output).answer)),
                replace(ready, name=alone, read=peer.read),
            ]
    yield Plan(contenders, [within(1.5, count), within(0.7, piped), within(0.7, alone), memory("group")], [files])


@contextlib.contextmanager
def checks(context: Context) -> Iterator[Plan]:
    """Sum by symbol over the gzip files of trades, with five checks of what is read."""
    files = context.store.get("trades")
    query = trades_query(f"{files.folder}/*.csv.gz", SUM_BY_SYMBOL)
    rules = [{"rows": {"min": 1}}, {"not_null": ["symbol"]}, {"range": {"size": {"min": 0}}},
             {"range": {"price": {"min": 0}}}, {"sql": "size * price < 1e9", "message": "too large"}]  # fmt: skip
    into = context.scratch / "sums.csv"

    def load(name: str, **keys: object) -> Contender:
        read = {"read": query["paths"], "csv": {part: query[part] for part in ("delimiter", "header", "columns")}}
        job = json.dumps({
            "sources": {"input": {**read, **keys}},
            "transforms": {"grouped": {"sql": SUM_BY_SYMBOL}},
            # A check that may fail the run is not for standard output.
            "sinks": {"result": {"from": "grouped", "write": str(into), "csv": {}}},
        })  # fmt: skip
        return context.run(job, name=name, read=lambda _: groups(into.read_text()))

    plain = f"{OURS}, without checks"
    yield Plan([load(OURS, checks=rules), load(plain)], [within(1.1, plain), memory("group")], [files])


@contextlib.contextmanager
def in_step(context: Context, database: Database, table: str, locked: str, length: str,
            create: str, by_hand: dict[str, list[str]]) -> Iterator[Plan]:  # fmt: skip
    """Brings a table of all posts in step with a source that differs in one row of a hundred.

    The versions alternate, so that each run has something to change. `by_hand` has statements that compare the table
    with the one that `create` makes, which is loaded over two connections.
    """
    loading = served(context, database, table, locked, length)
    loading.empty()
    load = copy if "postgres" in database.url else load_data
    versions = [posts.version(loading.data, number, context.scratch) for number in (1, 2)]
    subprocess.run(shell(client(database, *(load(part) for part in loading.data.parts("tsv")))), check=True)
    source, ready = context.scratch / "posts.jsonl", [context.scratch / f"half-{half}.tsv" for half in range(2)]

    def turn() -> None:
        loading.turns += 1
        if "postgres" in database.url:
            database.run("VACUUM ANALYZE posts")
        database.run("DROP TABLE IF EXISTS staged")
        version = versions[loading.turns % 2]
        for link, target in ((source, version.lines), *zip(ready, version.halves, strict=True)):
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def wanted() -> Sums:
        return versions[loading.turns % 2].sums

    staged = f"{client(database, create)}; " + together([client(database, load(half, "staged")) for half in ready])
    contenders = [
        loading.ours(read=source, expected=wanted, before=turn, mode="sync", key=["id"], missing="delete"),
        *(
            loading.contender(name, "limit", f"{staged}; {client(database, *compare)}", wanted, before=turn)
            for name, compare in by_hand.items()
        ),
    ]
    yield loads(loading, contenders, [within(1.3, *by_hand, called="the best by hand")], database.pids)


OTHERS = [name for name in posts.COLUMNS if name != "id"]


@contextlib.contextmanager
def sync_postgres(context: Context) -> Iterator[Plan]:
    """A table of PostgreSQL in step with its source."""
    changed = ", ".join(f"{name} = staged.{name}" for name in OTHERS)
    old, new = (", ".join(f"{table}.{name}" for name in OTHERS) for table in ("posts", "staged"))
    by_hand = [
        "ANALYZE staged",
        "BEGIN",
        "LOCK TABLE posts IN SHARE ROW EXCLUSIVE MODE",
        "DELETE FROM posts WHERE NOT EXISTS (SELECT FROM staged WHERE staged.id = posts.id)",
        f"UPDATE posts SET {changed} FROM staged WHERE staged.id = posts.id AND ({old}) IS DISTINCT FROM ({new})",
        "INSERT INTO posts SELECT * FROM staged WHERE NOT EXISTS (SELECT FROM posts WHERE posts.id = staged.id)",
        "COMMIT",
        "DROP TABLE staged",
    ]
    create = "CREATE UNLOGGED TABLE staged (LIKE posts)"
    with (
        databases.postgres() as database,
        in_step(context, database, POSTGRES, "locked", "length", create, {"by hand": by_hand}) as ready,
    ):
        yield ready


@contextlib.contextmanager
def sync_mariadb(context: Context) -> Iterator[Plan]:
    """A table of MariaDB in step with its source. The server compares values bit by bit in an upsert."""
    joined = ", ".join(f"posts.{name} = staged.{name}" for name in OTHERS)
    upserted = ", ".join(f"{name} = VALUES({name})" for name in OTHERS)
    texts = [name for name in OTHERS if posts.COLUMNS[name] == "utf8"]
    same = " AND ".join(
        f"CAST(posts.{name} AS BINARY) <=> CAST(staged.{name} AS BINARY)" if name in texts
        else f"posts.{name} <=> staged.{name}"
        for name in OTHERS
    )  # fmt: skip
    missing = "DELETE posts FROM posts LEFT JOIN staged ON staged.id = posts.id WHERE staged.id IS NULL"
    new = "SELECT staged.* FROM staged LEFT JOIN posts ON posts.id = staged.id WHERE posts.id IS NULL"
    by_hand = {
        "by hand, with joins": [
            f"UPDATE posts JOIN staged ON staged.id = posts.id SET {joined} WHERE NOT ({same})",
            f"INSERT INTO posts {new}",
        ],
        "by hand, with an upsert": [f"INSERT INTO posts SELECT * FROM staged ON DUPLICATE KEY UPDATE {upserted}"],
    }
    whole = {name: ["BEGIN", missing, *rest, "COMMIT", "DROP TABLE staged"] for name, rest in by_hand.items()}
    with (
        databases.mariadb() as database,
        in_step(context, database, MARIADB, "locked", "char_length", "CREATE TABLE staged LIKE posts", whole) as ready,
    ):
        yield ready


STEPS: dict[str, Workload] = {
    "lookup": Workload("load JSON lines into PostgreSQL, with a lookup in 250,000 rows", lookup),
    "contains": Workload("group-by over the 1 % of JSON lines that contain a text", contains),
    "checks": Workload("group-by over CSV gzip files, with five checks", checks),
    "sync-mariadb": Workload("bring a table of MariaDB in step, of which 1 % differs", sync_mariadb),
    "sync-postgres": Workload("bring a table of PostgreSQL in step, of which 1 % differs", sync_postgres),
}

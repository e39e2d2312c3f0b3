"""The workloads of loading: posts as JSON lines into MariaDB, PostgreSQL and SQLite, and merges into what is there.

The limit is the database's own bulk load of the same rows, ready-made, over one connection and over two. All load
into the same empty table; its content is checked after the clock has stopped. Contenders that would take hours load a
sample, and are compared by rows a second.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import databases, posts
from harness.databases import Database
from harness.measure import Contender, Outcome, Results, shell
from harness.posts import SUMS_SQL, Posts, Sums
from harness.sorting import peak
from harness.store import DataSet
from harness.workloads import OURS, Context, Plan, Target, Workload, within

MEMORY = "256MB"
LOADERS = Path(__file__).parent / "loaders.py"
TABLE = """CREATE TABLE posts (
    id BIGINT NOT NULL PRIMARY KEY, author {name} NOT NULL, forum {name} NOT NULL, created {time} NOT NULL,
    score INTEGER NOT NULL, ratio {double} NOT NULL, locked BOOLEAN NOT NULL, title {name} NOT NULL,
    body TEXT NOT NULL)"""
MARIADB = TABLE.format(name="VARCHAR(255)", time="DATETIME(6)", double="DOUBLE")
POSTGRES = TABLE.format(name="VARCHAR(255)", time="TIMESTAMP", double="DOUBLE PRECISION")
SQLITE = TABLE.format(name="TEXT", time="TEXT", double="REAL").replace("BIGINT NOT NULL", "INTEGER")


@dataclass
class Loading:
    """A table that each contender loads; it is emptied before, and checked afterwards."""

    context: Context
    data: Posts
    url: str
    empty: Callable[[], None]
    sums: Callable[[], Sums]
    turns: int = 0
    extra: dict = field(default_factory=dict)

    def contender(
        self, name: str, role: str, script: str, expected: Sums | Callable[[], Sums], *, sample: bool = False,
        timed: bool = False, before: Callable[[], None] | None = None,
    ) -> Contender:  # fmt: skip
        """A contender that loads by a shell script."""

        def read(output: str) -> Outcome:
            wanted = expected() if callable(expected) else expected
            found = self.sums()
            if found != wanted:
                raise RuntimeError(f"the table holds {found} instead of {wanted}")
            return Outcome(None, json.loads(output.splitlines()[-1])["seconds"] if timed else None)

        rows = (expected() if callable(expected) else expected).rows
        return Contender(name, role, shell(script), read, before=before or self.empty, rows=rows,
                         most=1 if sample else None)  # fmt: skip

    def ours(self, name: str = OURS, *, read: Path | None = None, expected: object = None,
             before: Callable[[], None] | None = None, **sink: object) -> Contender:  # fmt: skip
        """Millstream loads JSON lines."""
        job = self.context.scratch / f"{name.replace(' ', '-').replace(',', '')}-{abs(hash(self.url)):x}.yaml"
        job.write_text(json.dumps({
            "sources": {"posts": {"read": str(read or self.data.files()[0]), "json": {"columns": posts.COLUMNS}}},
            "sinks": {"posts": {"from": "posts", "write": self.url, "table": "posts", **self.extra, **sink}},
        }, indent=2))  # fmt: skip
        script = f"{self.context.tools.millstream} run --quiet --memory {MEMORY} {job}"
        return self.contender(name, "ours", script, expected or self.data.all, before=before)

    def loader(self, name: str, kind: str) -> list[Contender]:
        """One of `loaders.py` loads the sample."""
        if not self.context.tools.python:
            return []
        script = f"{self.context.tools.python} {LOADERS} {kind} {self.data.sample_file()} {self.url}"
        return [self.contender(name, "peer", script, self.data.sample, sample=True, timed=True)]


def at_least(times: float, name: str) -> Target:
    """At least this many times the rows a second of a contender that loads a sample."""

    def value(results: Results) -> float | None:
        mine, theirs = results.seconds_a_row(OURS), results.seconds_a_row(name)
        return mine / theirs if mine and theirs else None

    return Target(f"{name}, time for a row", 1 / times, value)


def client(database: Database, *statements: str) -> str:
    """The command by which the server's own client runs statements over one connection."""
    line = [*database.client[:-1]]
    if "psql" in line[0]:
        options = [f"--command={statement}" for statement in statements]
    else:
        options = ["--execute=" + "; ".join(statements)]
    return " ".join(quoted(part) for part in [*line, *options])


def quoted(text: str) -> str:
    """The text, quoted for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def together(commands: Sequence[str]) -> str:
    """A script that runs the commands at the same time, and fails if one of them fails."""
    begun = " ".join(f'{command} & pids+=" $!";' for command in commands)
    return f"pids=; {begun} for pid in $pids; do wait $pid; done"


def load_data(path: Path, table: str = "posts") -> str:
    """MariaDB's own bulk load."""
    return f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {table} CHARACTER SET utf8mb4"


def copy(path: Path, table: str = "posts") -> str:
    """PostgreSQL's own bulk load."""
    return f"\\copy {table} FROM '{path}'"


def served(context: Context, database: Database, table: str, locked: str, length: str, indexes: str = "") -> Loading:
    """Loads into a server; `indexes` are created with the table."""
    sql = SUMS_SQL.format(locked=locked, length=length, table="posts")

    def sums() -> Sums:
        (row,) = database.run(sql)
        return Sums(*map(int, row))

    def empty() -> None:
        if "postgres" in database.url:
            database.run("DROP SCHEMA IF EXISTS bench CASCADE")
        database.run("DROP TABLE IF EXISTS posts")
        database.run(table)
        if indexes:
            database.run(indexes)

    mode = {"mode": "replace", "key": ["id"]}
    return Loading(context, posts.get(context.store), database.url, empty, sums, extra=mode)


def filed(context: Context, indexes: str = "") -> Loading:
    """Loads into a SQLite file; `indexes` are created with the table."""
    file = context.scratch / "posts.db"
    program = databases.found("sqlite3")

    def run(sql: str) -> str:
        return subprocess.run([program, str(file), sql], capture_output=True, text=True, check=True).stdout

    def empty() -> None:
        for path in context.scratch.glob("posts.db*"):
            path.unlink()
        run(SQLITE + ";" + indexes)

    def sums() -> Sums:
        # `sqlite3 .import` stores boolean values as the text that the file has.
        return Sums(*map(int, run(SUMS_SQL.format(locked="locked", length="length", table="posts")).split("|")))

    return Loading(context, posts.get(context.store), f"sqlite:{file}", empty, sums, extra={"mode": "append"})


def plan(loading: Loading, contenders: Sequence[Contender], targets: Sequence[Target], pids: Sequence[int]) -> Plan:
    """A workload on the posts."""
    files = DataSet(loading.data.folder, loading.data.made)
    return Plan(contenders, [*targets, peak(256)], [files], pids)


@contextlib.contextmanager
def mariadb(context: Context) -> Iterator[Plan]:
    """All posts into MariaDB."""
    with databases.mariadb() as database:
        loading = served(context, database, MARIADB, "locked", "char_length")
        one, two = loading.data.parts("tsv")
        alone, both, batches = "LOAD DATA, one connection", "LOAD DATA, two", "Celery, batches (sample)"
        limit = [
            loading.contender(alone, "limit", client(database, load_data(one), load_data(two)), loading.data.all),
            loading.contender(both, "limit", together([client(database, load_data(part)) for part in (one, two)]),
                              loading.data.all),
        ]  # fmt: skip
        ours = [
            loading.ours(),
            loading.ours(f"{OURS}, key at the end", defer_key=True),
            loading.ours(f"{OURS}, append all at once", mode="append", key=[], atomic=True),
        ]
        peers = [*loading.loader("Celery, one row (sample)", "one"), *loading.loader(batches, "batches")]
        targets = [within(1.4, both), at_least(250, batches)]
        yield plan(loading, [*ours, *limit, *peers], targets, database.pids)


@contextlib.contextmanager
def postgres(context: Context) -> Iterator[Plan]:
    """All posts into PostgreSQL."""
    with databases.postgres() as database:
        loading = served(context, database, POSTGRES, "locked", "length")
        one, two = loading.data.parts("tsv")
        alone, both, dlt = "\\copy, one connection", "\\copy, two", "dlt, COPY of CSV (sample)"
        limit = [
            loading.contender(alone, "limit", client(database, copy(one), copy(two)), loading.data.all),
            loading.contender(both, "limit", together([client(database, copy(part)) for part in (one, two)]),
                              loading.data.all),
        ]  # fmt: skip
        ours = [
            loading.ours(),
            loading.ours(f"{OURS}, key at the end", defer_key=True),
            loading.ours(f"{OURS}, append all at once", mode="append", key=[], atomic=True),
        ]
        yield plan(loading, [*ours, *limit, *dlt_loading(loading, database, dlt)],
                   [within(1.4, both), at_least(25, dlt)], database.pids)  # fmt: skip


def dlt_loading(loading: Loading, database: Database, name: str) -> list[Contender]:
    """dlt makes a table of its own, in a schema of its own."""
    sql = SUMS_SQL.format(locked="locked", length="length", table="bench.posts")

    def sums() -> Sums:
        (row,) = database.run(sql)
        return Sums(*map(int, row))

    theirs = Loading(loading.context, loading.data, loading.url, loading.empty, sums)
    return theirs.loader(name, "dlt")


@contextlib.contextmanager
def sqlite(context: Context) -> Iterator[Plan]:
    """All posts into SQLite."""
    loading = filed(context)
    program, file = databases.found("sqlite3"), loading.url.removeprefix("sqlite:")
    imports = " ".join(quoted(f".import --csv {part} posts") for part in loading.data.parts("csv"))
    contenders = [
        loading.ours(),
        loading.contender("sqlite3 .import", "limit", f"{program} {file} {imports}", loading.data.all),
    ]
    yield plan(loading, contenders, [within(0.8, "sqlite3 .import")], [])


@contextlib.contextmanager
def merging(context: Context, database: Database, table: str, locked: str, length: str,
            by_hand: Callable[[Path], str]) -> Iterator[Plan]:  # fmt: skip
    """Merges one changed post in ten. The versions alternate, so that each run has something to change."""
    loading = served(context, database, table, locked, length)
    loading.empty()
    one, two = loading.data.parts("tsv")
    load = copy if "postgres" in database.url else load_data
    subprocess.run(shell(client(database, load(one), load(two))), check=True)
    if "postgres" in database.url:
        database.run("VACUUM ANALYZE posts")
    lines, ready = context.scratch / "changes.jsonl", context.scratch / "changes.tsv"

    def turn() -> None:
        loading.turns += 1
        if "postgres" in database.url:
            # Removes the dead rows of the previous contender, which would slow this one down.
            database.run("VACUUM posts")
        for link, form in ((lines, "jsonl"), (ready, "tsv")):
            link.unlink(missing_ok=True)
            link.symlink_to(loading.data.changes(1 + loading.turns % 2, form))

    def wanted() -> Sums:
        return loading.data.changed[loading.turns % 2]

    hand = "staging and merge by hand"
    contenders = [
        loading.ours(read=lines, expected=wanted, before=turn, mode="merge", key=["id"]),
        loading.contender(hand, "limit", by_hand(ready), wanted, before=turn),
    ]
    yield plan(loading, contenders, [within(1.5, hand)], database.pids)


@contextlib.contextmanager
def merge_mariadb(context: Context) -> Iterator[Plan]:
    """Changes into MariaDB."""
    with databases.mariadb() as database:

        def by_hand(path: Path) -> str:
            insert = "INSERT INTO posts SELECT * FROM changes ON DUPLICATE KEY UPDATE " + ", ".join(
                f"{name} = VALUES({name})" for name in posts.COLUMNS if name != "id"
            )
            make = "CREATE TEMPORARY TABLE changes LIKE posts"
            return client(database, make, load_data(path, "changes"), insert)

        with merging(context, database, MARIADB, "locked", "char_length", by_hand) as ready:
            yield ready


@contextlib.contextmanager
def merge_postgres(context: Context) -> Iterator[Plan]:
    """Changes into PostgreSQL."""
    with databases.postgres() as database:

        def by_hand(path: Path) -> str:
            changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in posts.COLUMNS if name != "id")
            insert = f"INSERT INTO posts SELECT * FROM changes ON CONFLICT (id) DO UPDATE SET {changed}"
            make = "CREATE TEMPORARY TABLE changes (LIKE posts)"
            return client(database, make, copy(path, "changes"), insert)

        with merging(context, database, POSTGRES, "locked", "length", by_hand) as ready:
            yield ready


LOADS: dict[str, Workload] = {
    "load-mariadb": Workload("load JSON lines into MariaDB", mariadb),
    "load-postgres": Workload("load JSON lines into PostgreSQL", postgres),
    "load-sqlite": Workload("load JSON lines into SQLite", sqlite),
    "merge-mariadb": Workload("merge 10 % changed rows into MariaDB", merge_mariadb),
    "merge-postgres": Workload("merge 10 % changed rows into PostgreSQL", merge_postgres),
}

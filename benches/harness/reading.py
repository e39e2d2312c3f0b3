"""The workloads of reading tables out of databases: all posts into a text file on the disk.

The limit is the database's own tool: `mariadb --quick --batch`, `\\copy`, `sqlite3 -csv`. ConnectorX, whose rows Polars
writes, is the fastest reader for Python. The file of each is checked after its first run; the files of later runs
must have the same size.
"""

import contextlib
import csv
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import databases, loading, posts
from harness.databases import Database
from harness.loading import MARIADB, MEMORY, POSTGRES, client, copy, load_data, quoted
from harness.measure import Contender, Outcome, shell
from harness.posts import Posts
from harness.sorting import peak
from harness.store import DataSet
from harness.workloads import OURS, Context, Plan, Target, Workload, within

READERS = Path(__file__).parent / "readers.py"


@dataclass
class Reading:
    """A table of all posts, which each contender reads into a file."""

    context: Context
    data: Posts
    url: str
    known: dict[str, int] = field(default_factory=dict)

    def file(self, form: str) -> Path:
        """What is written."""
        return self.context.scratch / f"out.{form}"

    def contender(self, name: str, role: str, script: str, form: str, *, timed: bool = False) -> Contender:
        """A contender that reads by a shell script."""
        path = self.file(form)

        def read(output: str) -> Outcome:
            size = path.stat().st_size
            if self.known.setdefault(name, size) != size:
                raise RuntimeError(f"{size} bytes instead of {self.known[name]}")
            return Outcome(None, json.loads(output.splitlines()[-1])["seconds"] if timed else None)

        def checked(output: str) -> Outcome:
            if name not in self.known:
                rows, ids = (counted_lines if form == "tsv" else counted_csv)(path)
                if (rows, ids) != (self.data.all.rows, self.data.all.ids):
                    raise RuntimeError(f"{rows} rows, whose numbers add up to {ids}")
            return read(output)

        return Contender(name, role, shell(script), checked, before=lambda: path.unlink(missing_ok=True))

    def ours(self, name: str = OURS, **source: object) -> Contender:
        """Millstream reads, and writes CSV."""
        scheme = self.url.partition(":")[0]
        job = self.context.scratch / f"{name.replace(' ', '-').replace(',', '')}-{scheme}.yaml"
        job.write_text(json.dumps({
            "sources": {"posts": {"read": self.url, scheme: {"table": "posts", **source}}},
            "sinks": {"posts": {"from": "posts", "write": str(self.file("csv")), "csv": {}}},
        }, indent=2))  # fmt: skip
        script = f"{self.context.tools.millstream} run --quiet --memory {MEMORY} {job}"
        return self.contender(name, "ours", script, "csv")

    def own(self, name: str, command: str, form: str) -> Contender:
        """The database's own tool, timed until the file is on the disk."""
        return self.contender(name, "limit", f"{command} && sync {self.file(form)}", form)

    def connectorx(self, name: str) -> list[Contender]:
        """ConnectorX, if it is installed."""
        if not self.context.tools.python:
            return []
        script = f"{self.context.tools.python} {READERS} {self.url} {self.file('csv')}"
        return [self.contender(name, "peer", script, "csv", timed=True)]


def counted_lines(path: Path) -> tuple[int, int]:
    """The number of TSV lines after the header, and the sum of their first values."""
    rows = total = 0
    with path.open("rb") as file:
        next(file)
        for line in file:
            rows += 1
            total += int(line[: line.index(b"\t")])
    return rows, total


def counted_csv(path: Path) -> tuple[int, int]:
    """The same for CSV, with or without a header."""
    rows = total = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            if row[0] == "id":
                continue
            rows += 1
            total += int(row[0])
    return rows, total


def plan(reading: Reading, contenders: Sequence[Contender], targets: Sequence[Target], pids: Sequence[int]) -> Plan:
    """A workload on the posts."""
    files = DataSet(reading.data.folder, reading.data.made)
    return Plan(contenders, [*targets, peak(256)], [files], pids)


def served(context: Context, database: Database, table: str) -> Reading:
    """Loads all posts into a server."""
    data = posts.get(context.store)
    database.run(table)
    one, two = data.parts("tsv")
    load = copy if "postgres" in database.url else load_data
    subprocess.run(shell(client(database, load(one), load(two))), check=True)
    if "postgres" in database.url:
        database.run("VACUUM ANALYZE posts")
    return Reading(context, data, database.url)


@contextlib.contextmanager
def mariadb(context: Context) -> Iterator[Plan]:
    """All posts out of MariaDB."""
    with databases.mariadb() as database:
        reading = served(context, database, MARIADB)
        own = "mariadb --quick --batch"
        line = [part for part in database.client[:-1] if part != "--skip-column-names"]
        words = " ".join(quoted(part) for part in [*line, "--quick", "--execute=SELECT * FROM posts"])
        contenders = [
            reading.ours(),
            reading.ours(f"{OURS}, one connection", connections=1),
            reading.own(own, f"{words} > {reading.file('tsv')}", "tsv"),
            *reading.connectorx("ConnectorX and Polars"),
        ]
        yield plan(reading, contenders, [within(1.0, own)], database.pids)


@contextlib.contextmanager
def postgres(context: Context) -> Iterator[Plan]:
    """All posts out of PostgreSQL."""
    with databases.postgres() as database:
        reading = served(context, database, POSTGRES)
        own = "\\copy to CSV"
        words = client(database, f"\\copy posts TO '{reading.file('csv')}' (FORMAT csv)")
        contenders = [
            reading.ours(),
            reading.ours(f"{OURS}, one connection", connections=1),
            reading.own(own, words, "csv"),
            *reading.connectorx("ConnectorX and Polars"),
        ]
        yield plan(reading, contenders, [within(1.0, own)], database.pids)


@contextlib.contextmanager
def sqlite(context: Context) -> Iterator[Plan]:
    """All posts out of SQLite."""
    table = loading.filed(context)
    table.empty()
    program, file = databases.found("sqlite3"), table.url.removeprefix("sqlite:")
    imports = " ".join(quoted(f".import --csv {part} posts") for part in table.data.parts("csv"))
    subprocess.run(shell(f"{program} {file} {imports}"), check=True)
    reading = Reading(context, table.data, table.url)
    own = "sqlite3 -csv"
    contenders = [
        reading.ours(),
        reading.own(own, f"{program} -csv {file} 'SELECT * FROM posts' > {reading.file('csv')}", "csv"),
        *reading.connectorx("ConnectorX and Polars"),
    ]
    yield plan(reading, contenders, [within(1.0, own)], [])


TABLES_READ: dict[str, Workload] = {
    "read-mariadb": Workload("read a table of MariaDB into a file", mariadb),
    "read-postgres": Workload("read a table of PostgreSQL into a file", postgres),
    "read-sqlite": Workload("read a table of SQLite into a file", sqlite),
}

"""What loading exactly once, rejects and indexes cost: the same rows by the same binary into the same table, with and
without.

"All at once" is one transaction on one connection. It records no progress, so a load that dies starts from the
beginning. It is the fastest load into an existing table without a ledger. Rejects are allowed, but no row is rejected.
"""

import contextlib
from collections.abc import Iterator, Sequence

from harness import databases, loading
from harness.databases import Database
from harness.loading import MARIADB, MEMORY, POSTGRES, Loading
from harness.measure import Contender, Results
from harness.store import DataSet
from harness.workloads import OURS, Context, Plan, Target, Workload

INDEXES = "CREATE INDEX by_author ON posts (author); CREATE INDEX by_time ON posts (created)"
REJECTS = 1_000  # rows that may be rejected; none is


def named(product: str, variant: str) -> str:
    """A contender's name."""
    return f"{OURS}, {product}, {variant}"


def against(bound: float, mine: str, theirs: str, called: str) -> Target:
    """At most this many times the time of another variant of ours."""

    def value(results: Results) -> float | None:
        one, other = results.wall(mine), results.wall(theirs)
        return one / other if one and other else None

    return Target(called, bound, value)


def peaks(contenders: Sequence[Contender]) -> Target:
    """The memory of the largest contender."""

    def value(results: Results) -> float | None:
        found = [results.rss(contender.name) for contender in contenders]
        return max((rss for rss in found if rss), default=0) / 1_000_000 or None

    return Target("peak memory", float(MEMORY.removesuffix("MB")), value, "MB")


def ready(loading: Loading, contenders: Sequence[Contender], targets: Sequence[Target], pids: Sequence[int]) -> Plan:
    """A workload in which only variants of Millstream take part."""
    files = DataSet(loading.data.folder, loading.data.made)
    return Plan(contenders, [*targets, peaks(contenders)], [files], pids)


def of_server(context: Context, database: Database, indexes: str = "") -> Loading:
    """Loads into one of the two servers."""
    if "postgres" in database.url:
        return loading.served(context, database, POSTGRES, "locked", "length", indexes)
    return loading.served(context, database, MARIADB, "locked", "char_length", indexes)


@contextlib.contextmanager
def ledger(context: Context) -> Iterator[Plan]:
    """Loads chunk by chunk through the ledger with rejects allowed, and all at once."""
    with databases.mariadb() as mariadb, databases.postgres() as postgres:
        loads = {
            "MariaDB": of_server(context, mariadb),
            "PostgreSQL": of_server(context, postgres),
            "SQLite": loading.filed(context),
        }
        contenders, targets = [], []
        for product, load in loads.items():
            load.extra = {"mode": "append"}
            with_ledger, without = named(product, "ledger and rejects"), named(product, "all at once")
            contenders += [
                load.ours(with_ledger, max_rejects=REJECTS),
                load.ours(without, atomic=True),
            ]
            targets.append(against(1.02, with_ledger, without, f"{product}: ledger and rejects, to all at once"))
            if product != "SQLite":
                alone = named(product, "ledger and rejects, one connection")
                contenders.append(load.ours(alone, max_rejects=REJECTS, connections=1))
        yield ready(loads["SQLite"], contenders, targets, [*mariadb.pids, *postgres.pids])


@contextlib.contextmanager
def indexes(context: Context) -> Iterator[Plan]:
    """Indexes kept during the load or built at its end; and a key in another order than the rows."""
    with databases.mariadb() as mariadb, databases.postgres() as postgres:
        loads = {
            "MariaDB": of_server(context, mariadb, INDEXES),
            "PostgreSQL": of_server(context, postgres, INDEXES),
            "SQLite": loading.filed(context, INDEXES),
        }
        contenders, targets = [], []
        for product, load in loads.items():
            kept, deferred = named(product, "indexes kept"), named(product, "indexes at the end")
            load.extra = {"mode": "append"}
            contenders += [load.ours(kept), load.ours(deferred, defer_indexes=True)]
            targets.append(against(1.0, deferred, kept, f"{product}: indexes at the end, to kept"))
            if product == "SQLite":
                continue
            kept, deferred = named(product, "key by author kept"), named(product, "key by author at the end")
            load.extra = {"mode": "replace", "key": ["author", "id"]}
            contenders += [load.ours(kept), load.ours(deferred, defer_key=True)]
            targets.append(against(1.0, deferred, kept, f"{product}: key at the end, to kept"))
        yield ready(loads["SQLite"], contenders, targets, [*mariadb.pids, *postgres.pids])


COSTS: dict[str, Workload] = {
    "load-ledger": Workload("what the ledger and rejects cost", ledger),
    "load-indexes": Workload("indexes kept, or built when all rows are there", indexes),
}

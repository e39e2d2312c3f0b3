"""The workloads of the server: what a run loses by being watched, and what a long history costs the server."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.costs import against
from harness.measure import Contender, Note, Outcome
from harness.sequences import figure, write_empty
from harness.served import Served
from harness.store import DataSet, Made, scaled
from harness.workloads import OURS, SUM_BY_SYMBOL, Context, Plan, Target, Workload, groups, job, trades_query

WATCHERS = 2
WATCHED = f"{OURS}, watched by {WATCHERS} clients"
UNWATCHED = f"{OURS}, not watched"
TIMES = 12  # that the trades are read
SCRIPT = Path(__file__).parent / "served.py"
RUNS = 100_000  # in the history at full scale
FILES = 50  # that they are of
RESIDENT = 64  # megabytes
OVERVIEW = 100  # milliseconds
INSERT = """INSERT INTO runs (run, logical, job, variables, fingerprint, process, began, ended, outcome, rows_read,
rows_written, report) VALUES (?1, ?1, ?2, '', 'x', 1, ?3, ?3 + 5000, ?4, ?5, ?5, ?6)"""
REPORT = json.dumps({"bytes_read": 7, "steps": []})
# Of each hundred runs one fails; the last runs have their reports.
FAILS, WITH_REPORT = 100, 10_000


@contextlib.contextmanager
def watched(context: Context) -> Iterator[Plan]:
    """A group-by over the gzip files of trades, read several times, while clients of a server hear how it goes, and
    while none do.
    """
    files = context.store.get("trades")
    folder = context.scratch / "watched"
    folder.mkdir()
    # One reading takes less than a second, in which a run hardly says how it goes.
    (folder / "trades").mkdir()
    for number in range(TIMES):
        (folder / "trades" / str(number)).symlink_to(files.folder)
    text = json.loads(job(trades_query(f"{folder}/trades/*/*.csv.gz", SUM_BY_SYMBOL)))
    text["sinks"]["result"]["write"] = str(folder / "groups.csv")
    (folder / "job.yaml").write_text(json.dumps(text))

    def read(output: str) -> Outcome:
        return Outcome(groups((folder / "groups.csv").read_text()).answer, json.loads(output)["seconds"])

    with Served(str(context.tools.millstream), folder) as server:
        token = server.token()

        def contender(name: str, clients: int) -> Contender:
            command = [sys.executable, str(SCRIPT), str(context.tools.millstream), str(folder), server.address, token]
            return Contender(name, "ours", [*command, str(clients)], read)

        contenders = [contender(WATCHED, WATCHERS), contender(UNWATCHED, 0)]
        yield Plan(contenders, [against(1.02, WATCHED, UNWATCHED, UNWATCHED)], [files], servers=[server.pid])


@contextlib.contextmanager
def history(context: Context) -> Iterator[Plan]:
    """A server of a state folder with very many runs: at rest, and when it is asked for the overview."""
    folder = context.scratch / "history"
    folder.mkdir()
    write_empty(folder)
    count = scaled(RUNS, context.store.scale, 1_000)
    measured = folder / "measured.json"
    command = [sys.executable, str(SCRIPT), str(context.tools.millstream), str(folder), str(measured)]

    def before() -> None:
        many_runs(context, folder, count)

    def after() -> Note:
        figures = json.loads(measured.read_text())
        text = (
            f"{count:,} runs: the overview in {figures['overview']:.0f} ms, {figures['again']:.0f} ms if it is asked "
            f"for again; at rest {figures['resident']:.1f} MB, {figures['share']:.2f} % of a core"
        )
        return Note(text, figures)

    ours = Contender(OURS, "ours", command, expected=FILES, before=before, after=after, most=1)
    targets = [
        Target("the overview", OVERVIEW, figure("overview"), "ms"),
        Target("the server at rest", RESIDENT, figure("resident"), "MB"),
    ]
    yield Plan([ours], targets, [DataSet(context.scratch / "none", Made())])


def many_runs(context: Context, folder: Path, count: int) -> None:
    """A history with `count` runs of several jobs."""
    # The program makes the history.
    command = [str(context.tools.millstream), "runs", "--state", str(folder / "state")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with contextlib.closing(sqlite3.connect(folder / "state" / "runs.db")) as database, database:
        for number in range(count):
            began = 1_790_000_000_000 + number * 60_000
            outcome = "failed" if number % FAILS == FAILS - 1 else "done"
            report = REPORT if number >= count - WITH_REPORT else None
            job_file = str(folder / f"job{number % FILES}.yaml")
            database.execute(INSERT, (f"{began}-{number}", job_file, began, outcome, number, report))


SERVING: dict[str, Workload] = {
    "serve-watched": Workload(f"a run that {WATCHERS} clients of a server watch", watched),
    "serve-history": Workload("a server of a long history", history),
}

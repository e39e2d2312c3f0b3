"""The workloads of sequences and schedules: many empty tasks, a job as a step, and a scheduler with very many sequences
that are due at once.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import orchestrators
from harness.costs import against
from harness.measure import Contender, Note, Outcome, Results
from harness.store import DataSet, Made, scaled
from harness.workloads import OURS, SUM_BY_SYMBOL, Context, Plan, Target, Workload, groups, job, trades_query

LAYERS, WIDTH = 10, 10
JOBS = f"{OURS}, each task a job"
COMMANDS = f"{OURS}, each task a command"
AIRFLOW = "Airflow"
PREFECT = "Prefect"
ALONE = f"{OURS}, the job alone"
UNDER = f"{OURS}, as a step of a sequence"
STARTS = Path(__file__).parent / "starts.py"
DUE = 1_000  # sequences at full scale
RESIDENT = 40  # megabytes
WHEN = ("before", "after")
# A job that reads no rows, and loads none.
EMPTY = {
    "sources": {"none": {"read": "none.csv", "csv": {"header": False, "columns": {"a": "int64"}}}},
    "sinks": {"nothing": {"from": "none", "write": "discard"}},
}


@contextlib.contextmanager
def empty_tasks(context: Context) -> Iterator[Plan]:
    """A hundred empty tasks in ten layers of ten, each of which waits for two of the layer above."""
    folder = context.scratch / "empty-tasks"
    folder.mkdir()
    write_empty(folder)
    contenders = [
        tasks(context, folder, COMMANDS, {"command": ["true"]}),
        tasks(context, folder, JOBS, {"job": "empty.yaml"}),
    ]
    with contextlib.ExitStack() as running:
        if context.tools.python:
            for name, open_one in ((AIRFLOW, orchestrators.airflow), (PREFECT, orchestrators.prefect)):
                peer = running.enter_context(open_one(context.store.cache, LAYERS, WIDTH))
                contenders.append(Contender(name, "peer", peer.command, timed))
        targets = [
            against(bound, ours, peer, f"{peer} ({ours.partition(', ')[2]})")
            for peer, bound in ((AIRFLOW, 0.05), (PREFECT, 0.5))
            for ours in (COMMANDS, JOBS)
        ]
        yield Plan(contenders, targets, [DataSet(folder, Made())], expected=LAYERS * WIDTH)


def write_empty(folder: Path) -> None:
    """Writes `empty.yaml`, a job that reads no rows and loads none."""
    (folder / "empty.yaml").write_text(json.dumps(EMPTY))
    (folder / "none.csv").touch()


def tasks(context: Context, folder: Path, name: str, task: dict) -> Contender:
    """Millstream runs the empty tasks, each of which is `task`."""
    steps = {}
    for layer in range(LAYERS):
        for number in range(WIDTH):
            above = [f"t{layer - 1}_{one % WIDTH}" for one in (number, number + 1)] if layer else []
            steps[f"t{layer}_{number}"] = {**task, **({"needs": above} if above else {})}
    path = folder / f"{'-'.join(task)}s.yaml"
    path.write_text(json.dumps({"steps": steps}))

    def read(output: str) -> Outcome:
        return Outcome(sum(step["outcome"] == "success" for step in json.loads(output)["steps"]))

    state = ["--state", str(folder / "state")]
    return Contender(name, "ours", [str(context.tools.millstream), "run", "--json", "--quiet", *state, str(path)], read)


def timed(output: str) -> Outcome:
    """An answer, and the seconds that it took."""
    printed = json.loads(output.strip().splitlines()[-1])
    return Outcome(printed["answer"], printed["seconds"])


@contextlib.contextmanager
def step(context: Context) -> Iterator[Plan]:
    """A group-by over the gzip files of trades, alone and as the only step of a sequence."""
    files = context.store.get("trades")
    folder = context.scratch / "step"
    folder.mkdir()
    text = json.loads(job(trades_query(f"{files.folder}/*.csv.gz", SUM_BY_SYMBOL)))
    text["sinks"]["result"]["write"] = str(folder / "groups.csv")
    (folder / "job.yaml").write_text(json.dumps(text))
    (folder / "sequence.yaml").write_text(json.dumps({"steps": {"only": {"job": "job.yaml"}}}))

    def read(_: str) -> Outcome:
        return groups((folder / "groups.csv").read_text())

    state = ["--state", str(folder / "state")]
    contenders = [
        Contender(name, "ours", [str(context.tools.millstream), "run", "--json", "--quiet", *state, str(path)], read)
        for name, path in ((ALONE, folder / "job.yaml"), (UNDER, folder / "sequence.yaml"))
    ]
    yield Plan(contenders, [against(1.02, UNDER, ALONE, ALONE)], [files])


@contextlib.contextmanager
def starts(context: Context) -> Iterator[Plan]:
    """Very many sequences of one small job, all due in the same minute."""
    folder = context.scratch / "starts"
    count, measured = scaled(DUE, context.store.scale, 10), folder.with_suffix(".json")
    command = [sys.executable, str(STARTS), str(context.tools.millstream), str(folder), str(count), str(measured)]

    def before() -> None:
        (folder / "sequences").mkdir(parents=True)
        write_empty(folder / "sequences")

    def after() -> Note:
        figures = json.loads(measured.read_text())
        run, job = ({name: figures[f"{of} {name}"] for name in ("median", "p99", "most")} for of in ("run", "job"))
        shown = ["/".join(f"{value:.0f}" for value in values.values()) for values in (run, job)]
        text = (
            f"{count:,} sequences: milliseconds from a free slot to the first event, median/p99/most: of the sequence "
            f"{shown[0]}, of its job {shown[1]}; at rest {figures['before']:.1f} MB before and {figures['after']:.1f} "
            f"MB after"
        )
        return Note(text, figures)

    ours = Contender(OURS, "ours", command, expected=count, before=before, after=after, most=1)
    targets = [
        Target("from a free slot to the first event of the job, p99", 100, figure("job p99"), "ms"),
        *(Target(f"scheduler at rest, {when} they are due", RESIDENT, figure(when), "MB") for when in WHEN),
    ]
    yield Plan([ours], targets, [DataSet(context.scratch / "none", Made())])


def figure(name: str) -> Callable[[Results], float | None]:
    """A figure of ours."""
    return lambda found: found.figure(OURS, name)


SEQUENCES: dict[str, Workload] = {
    "sequence-tasks": Workload(f"a sequence of {LAYERS * WIDTH} empty tasks", empty_tasks),
    "sequence-step": Workload("a job as a step of a sequence", step),
    "schedule-starts": Workload("very many sequences, due in the same minute", starts),
}

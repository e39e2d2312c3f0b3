"""The command `benches/run`: its arguments, the order of the workloads, its exit code."""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from harness import builds, tools
from harness.cluster import CLUSTER
from harness.costs import COSTS
from harness.curve import curves
from harness.loading import LOADS
from harness.measure import Results, Watch, check, rotated
from harness.own_code import OWN_CODE, WITH_PACKAGES
from harness.queues import QUEUES
from harness.reading import TABLES_READ
from harness.report import Done, Report
from harness.sequences import SEQUENCES
from harness.serving import SERVING
from harness.sorting import SORTS
from harness.steps import STEPS
from harness.store import Made, Store, warm
from harness.techniques import TECHNIQUES as TABLES
from harness.workloads import WORKLOADS as READS
from harness.workloads import Context

COMPARED = {**READS, **SORTS, **LOADS, **COSTS, **TABLES_READ, **STEPS, **QUEUES, **SEQUENCES, **SERVING,
            **CLUSTER, **OWN_CODE}  # fmt: skip
WORKLOADS = {**COMPARED, **WITH_PACKAGES}
TECHNIQUES = {**TABLES, "loading-curve": curves}
ALL = [*WORKLOADS, *TECHNIQUES]


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream" / "bench"
    parser = argparse.ArgumentParser(
        prog="benches/run",
        description="Runs Millstream, its peers and the limit side by side, and prints the ratios.",
        epilog=f"Workloads: {', '.join(ALL)}. See benches/README.md.",
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="what to run [default: all]")
    parser.add_argument("--scale", type=float, default=0.1, help="size of the data; 1 is full [default: 0.1]")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="runs of each [default: 3]")
    parser.add_argument("--millstream", type=Path, metavar="PATH", help="the binary [default: cargo builds it]")
    parser.add_argument(
        "--base", type=Path, metavar="PATH", help="another build of the binary, to compare with instead of the peers"
    )
    parser.add_argument(
        "--programs", type=Path, metavar="FOLDER", help="binaries of benches/limit [default: cargo builds]"
    )
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="the Python package, from `make wheel`")
    parser.add_argument("--without-peers", action="store_true", help="none of the peers from PyPI")
    parser.add_argument(
        "--cache", type=Path, default=cache, metavar="FOLDER", help=f"data and peers [default: {cache}]"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=tools.REPO / "benches" / "results",
        metavar="FOLDER",
        help="where results are kept",
    )
    given = parser.parse_args()
    if unknown := [name for name in given.workloads if name not in ALL]:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(ALL)}")
    if given.base and not given.base.is_file():
        parser.error(f"there is no file {given.base}")
    if given.base and (others := [name for name in given.workloads if name not in COMPARED]):
        parser.error(f"these compare no builds: {', '.join(others)}")
    if given.wheel and not given.wheel.is_file():
        parser.error(f"there is no file {given.wheel}")
    if given.wheel and given.without_peers:
        parser.error("--wheel needs the peers: leave out --without-peers")
    if given.base and not given.millstream:
        parser.error("with --base name the other binary with --millstream: cargo may overwrite either")
    if not 0 < given.scale <= 10 or given.repetitions < 1:
        parser.error("--scale is above 0 and at most 10, --repetitions at least 1")
    return given


def main() -> int:
    """Runs the chosen workloads. Returns 1 if anything failed; a missed target is no failure."""
    given = arguments()
    # SIGTERM is treated like Ctrl-C, so that child processes end and the scratch folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if missing := tools.missing():
        print(f"left out, since not installed (scripts/install-bench-packages.sh): {', '.join(missing)}")
    cache = given.cache.resolve()
    (cache / "data").mkdir(parents=True, exist_ok=True)
    peers = None if given.without_peers or given.base else tools.environment(cache, "peers")
    kit = tools.Tools(
        millstream=(given.millstream or tools.build("millstream") / "millstream").resolve(),
        own=(given.programs or tools.build("millstream-limit")).resolve(),
        python=peers,
        base=given.base and given.base.resolve(),
        package=tools.package(cache, given.wheel, peers) if given.wheel and peers else None,
    )
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        context = Context(Store(cache, given.scale), kit, Path(scratch))
        names = given.workloads or (list(COMPARED) if given.base else ALL)
        report = everything(context, names, given.scale, given.repetitions)
    print("\n" + report.markdown())
    print(f"kept in {report.keep(given.results)}")
    return 1 if report.faults() else 0


def everything(context: Context, names: list[str], scale: float, repetitions: int) -> Report:
    """Runs workloads and techniques one after another."""
    watch = Watch(Path(context.tools.limit("measure")), context.scratch)
    before = os.getloadavg()[0]
    done, techniques = [], []
    for name in names:
        if name in WORKLOADS:
            done.append(run_workload(context, watch, name, repetitions))
        else:
            print(f"{name}", flush=True)
            techniques += TECHNIQUES[name](context, watch)
    return Report(scale, repetitions, done, techniques, (before, os.getloadavg()[0]))


def run_workload(context: Context, watch: Watch, name: str, repetitions: int) -> Done:
    """Runs one workload, with its data in the page cache; with a base, our contenders alone, of both builds."""
    workload = WORKLOADS[name]
    print(f"{name}: {workload.title}", flush=True)
    try:
        with workload.open(context) as plan:
            for data in plan.data:
                warm(data.files())
            contenders, targets, order = plan.contenders, plan.targets, rotated
            if context.tools.base:
                contenders = builds.both(contenders, context.tools.millstream, context.tools.base)
                targets = []
                order = builds.mirrored
            results = watch.compare(contenders, repetitions, plan.servers, order)
            check(contenders, results, plan.expected)
        done = Done(name, workload.title, plan.data[0].made, targets, results)
    except (OSError, RuntimeError) as error:
        done = Done(name, workload.title, Made(), [], Results(faults=[str(error)]))
    for fault in done.results.faults:
        print(f"  {fault}", file=sys.stderr)
    return done

"""The report of the runs: a table of targets, a table for each workload, and the same as JSON.

Nothing here names the machine or a path on it.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import builds, machine
from harness.measure import Results
from harness.store import Made
from harness.techniques import Techniques
from harness.workloads import MEGABYTE, OURS, Target

ROLES = {"ours": "**{}**", "peer": "{}", "limit": "*{}*"}
QUIET = 0.15  # cores that other processes may use on average before the report warns


@dataclass(frozen=True)
class Done:
    """A workload that was run."""

    name: str
    title: str
    made: Made
    targets: Sequence[Target]
    results: Results


@dataclass(frozen=True)
class Report:
    """All of one run of the harness."""

    scale: float
    repetitions: int
    done: Sequence[Done]
    techniques: Sequence[Techniques]
    load: tuple[float, float]

    def others(self) -> float:
        """How many cores were busy with other things, on average over the time of all runs."""
        samples = [sample for done in self.done for runs in done.results.samples.values() for sample in runs]
        total = sum(sample.wall for sample in samples)
        return sum(sample.others * sample.wall for sample in samples) / total if total else 0.0

    def faults(self) -> list[str]:
        """All faults, each with the name of its workload."""
        return [f"{done.name}: {fault}" for done in self.done for fault in done.results.faults]

    def markdown(self) -> str:
        """The report for people."""
        parts = [self.head(), self.targets(), self.builds()]
        parts += [details(done) for done in self.done]
        parts += [technique_table(table) for table in self.techniques]
        if faults := self.faults():
            parts.append("## Went wrong\n\n" + "".join(f"- {fault}\n" for fault in faults))
        return "\n".join(part for part in parts if part)

    def head(self) -> str:
        """When, on what, how quiet."""
        described = machine.describe()
        others = self.others()
        lines = [
            f"# Benchmarks, {datetime.date.today().isoformat()}, scale {self.scale:g}\n",
            f"{described['cores']} cores ({described['processor']}), {described['memory']}, {described['kernel']}. "
            f"Load average {self.load[0]:.2f} before and {self.load[1]:.2f} after; {others:.2f} cores were busy with "
            f"other things on average. Up to {self.repetitions} runs each, in turn; the least time counts. "
            "**Ours** in bold, *the limit* in italics, the peers plain.\n",
        ]
        if others > QUIET:
            lines.append("**The machine was not quiet: these figures are signs, not results.**\n")
        return "\n".join(lines)

    def targets(self) -> str:
        """The table of targets: those of single workloads, then the worst of each family."""
        rows: list[tuple[str, ...]] = []
        families: dict[str, list[tuple[float, Target]]] = {}
        for done in self.done:
            for target in done.targets:
                value = target.value(done.results)
                if target.family:
                    families.setdefault(target.family, []).append((value or 0.0, target))
                else:
                    rows.append(target_row(done.title, target, value))
        for family, members in families.items():
            value, target = max(members, key=lambda member: member[0])
            rows.append(target_row(family, target, value or None))
        return table(["workload", "against", "measured", "target", ""], rows, "## Targets") if rows else ""

    def builds(self) -> str:
        """The table of two builds: the ratios to the base, if there is one."""
        rows = [
            (done.name, name, *("" if ratio is None else str(ratio) for ratio in ratios))
            for done in self.done
            for name, *ratios in builds.compared(done.results)
        ]
        head = ["workload", "who", "time ÷ base", "CPU ÷ base", "peak memory ÷ base"]
        title = "## Against the base\n\nThe mean ratio of runs one after the other, and its interval of 95 %."
        return table(head, rows, title) if rows else ""

    def json(self) -> str:
        """The report for programs."""
        workloads = [
            {
                "name": done.name,
                "data": asdict(done.made),
                "targets": [
                    {
                        "against": target.against,
                        "target": target.text(),
                        "measured": target.value(done.results),
                    }
                    for target in done.targets
                ],
                "builds": [
                    {"who": name, **dict(zip(("time", "cpu", "peak_memory"), map(str, ratios), strict=True))}
                    for name, *ratios in builds.compared(done.results)
                ],
                "runs": {name: [asdict(run) for run in runs] for name, runs in done.results.samples.items()},
                "notes": done.results.notes,
                "faults": done.results.faults,
            }
            for done in self.done
        ]
        return json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "machine": machine.describe(),
                "scale": self.scale,
                "load": self.load,
                "others": self.others(),
                "works": workloads,
                "techniques": [{**asdict(techniques), "drawing": ""} for techniques in self.techniques],
            },
            indent=1,
        )

    def keep(self, folder: Path) -> Path:
        """Writes both into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{datetime.date.today().isoformat()}-{machine.slug()}-scale-{self.scale:g}"
        if any(builds.compared(done.results) for done in self.done):
            name += "-builds"
        (folder / f"{name}.json").write_text(self.json() + "\n")
        for techniques in self.techniques:
            if techniques.drawing:
                (folder / drawing_name(techniques)).write_text(techniques.drawing)
        path = folder / f"{name}.md"
        path.write_text(self.markdown())
        return path


def target_row(workload: str, target: Target, value: float | None) -> tuple[str, ...]:
    """A line of the table of targets."""
    return workload, target.against, shown(value, target), target.text(), verdict(value, target)


def shown(value: float | None, target: Target) -> str:
    """A measured value."""
    return "not measured" if value is None else f"{value:.3g} {target.unit}"


def verdict(value: float | None, target: Target) -> str:
    """`met`, `missed`, or nothing."""
    return "" if value is None else "met" if target.met(value) else "**missed**"


def details(done: Done) -> str:
    """All contenders of a workload, the fastest first."""
    results = done.results
    rows = []
    for name in sorted(results.samples, key=lambda name: results.wall(name) or 0.0):
        runs = results.samples[name]
        wall = min(run.wall for run in runs)
        served = min(run.server_cpu for run in runs)
        rows.append(
            (
                ROLES[results.roles[name]].format(name),
                f"{wall:.3f}",
                f"{results.median(name):.3f}",
                f"{len(runs)}",
                f"{results.cpu(name):.2f}",
                f"{served:.2f}" if served else "",
                f"{max(run.peak_rss for run in runs) / MEGABYTE:.0f}",
                ratio(results, name),
                results.notes.get(name, ""),
            )
        )
    made = done.made
    title = (
        f"## {done.title[0].upper()}{done.title[1:]}\n\n`{done.name}`: {made.files:,} files, "
        f"{made.stored / MEGABYTE:,.0f} MB → {made.text / MEGABYTE:,.0f} MB, {made.lines:,} lines"
    )
    head = ["who", "seconds", "median", "runs", "CPU s", "server CPU s", "peak MB", "ours ÷ theirs", ""]
    return table(head, rows, title)


def ratio(results: Results, name: str) -> str:
    """Our time divided by theirs; per row if the contender loads a sample."""
    each = results.seconds_a_row if results.rows.get(name) else results.wall
    mine, theirs = each(OURS), each(name)
    return f"{mine / theirs:.3g}" if mine and theirs else ""


def technique_table(techniques: Techniques) -> str:
    """A table of techniques."""
    first = techniques.rows[0][1]
    rows = [(what, f"{seconds:.2f}", f"{first / seconds:.1f} ×", note) for what, seconds, note in techniques.rows]
    title = f"## {techniques.title}\n\n{techniques.source}"
    if techniques.drawing:
        title += f"\n\n![{techniques.title}]({drawing_name(techniques)})"
    return table(["what", "seconds", "faster than the first", ""], rows, title)


def drawing_name(techniques: Techniques) -> str:
    """The file of a drawing."""
    return techniques.title.lower().replace(" ", "-") + ".svg"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    """A table in Markdown, its columns as wide as they need, so that it can be read as it is."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |\n"

    return f"{title}\n\n" + line(head) + line(["-" * width for width in widths]) + "".join(map(line, rows))

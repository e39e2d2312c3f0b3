"""Runs contenders in turn, and measures each run.

Each repetition runs all contenders once, so that other activity on the machine affects all alike. The workloads
are in `workloads.py`.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Answer = int | dict[str, float] | None
LONGEST = 1_800  # seconds that one run may take
ENOUGH = 90  # seconds after which a contender that has run twice is not run again


@dataclass(frozen=True)
class Outcome:
    """What a contender printed: its answer, and times where it takes them itself.

    `share` is the part of its processor time that counts, if it did more than the workload asks.
    """

    answer: Answer
    wall: float | None = None
    cpu: float | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Sample:
    """The figures of one run. `others` is how many cores were busy with something else."""

    wall: float
    cpu: float
    peak_rss: int
    disk_read: int
    disk_written: int
    server_cpu: float
    others: float


def number(output: str) -> Outcome:
    """An answer that is one number."""
    return Outcome(int(output.split()[0]))


@dataclass(frozen=True)
class Note:
    """What a contender reports of its run: text for the report, and figures for targets."""

    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A program that runs the workload; `role` is ours, peer or limit.

    `expected` is its answer if it differs from the workload's. `before` runs before each run, `after` gives a note.
    `rows` is set where contenders are compared by rows a second; `most` limits the runs of a slow one.
    """

    name: str
    role: str
    command: Sequence[str]
    read: Callable[[str], Outcome] = number
    expected: Answer = None
    before: Callable[[], None] | None = None
    after: Callable[[], Note] | None = None
    rows: int = 0
    most: int | None = None


@dataclass
class Results:
    """All runs of one workload, by contender."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def wall(self, name: str) -> float | None:
        """The least time of a contender."""
        return min((sample.wall for sample in self.samples.get(name, [])), default=None)

    def seconds_a_row(self, name: str) -> float | None:
        """The least time of a contender, in seconds per row."""
        wall, rows = self.wall(name), self.rows.get(name)
        return wall / rows if wall is not None and rows else None

    def median(self, name: str) -> float:
        """The median time of a contender."""
        return statistics.median(sample.wall for sample in self.samples[name])

    def cpu(self, name: str) -> float:
        """The least processor time of a contender."""
        return min(sample.cpu for sample in self.samples[name])

    def rss(self, name: str) -> int | None:
        """The most memory of a contender."""
        return max((sample.peak_rss for sample in self.samples.get(name, [])), default=None)

    def figure(self, name: str, figure: str) -> float | None:
        """The largest value that a contender has reported for a figure."""
        return self.figures.get(name, {}).get(figure)


def shell(script: str) -> list[str]:
    """A shell command that fails if any part of its pipeline fails."""
    return ["bash", "-c", f"set -o pipefail; {script}"]


def busy_seconds() -> float:
    """Processor seconds that the whole machine has spent working."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, *rest = map(int, fields)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def process_seconds(pids: Sequence[int]) -> float:
    """Processor seconds of some processes, their living children and those that they waited for."""
    total = 0
    for pid in {*pids, *(child for pid in pids for child in children(pid))}:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rotated(contenders: list[Contender], repetition: int) -> list[Contender]:
    """The contenders in an order in which each time another one begins."""
    turn = repetition % len(contenders) if contenders else 0
    return contenders[turn:] + contenders[:turn]


@dataclass(frozen=True)
class Watch:
    """Runs commands through the stop-watch of `benches/limit`."""

    stopwatch: Path
    scratch: Path

    def run(self, contender: Contender, servers: Sequence[int] = ()) -> tuple[Sample, Outcome]:
        """One run of one contender; `servers` are the processes that serve it."""
        if contender.before:
            contender.before()
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            report = Path(folder) / "report.json"
            served, busy, start = process_seconds(servers), busy_seconds(), time.monotonic()
            output = self.output(contender, [str(self.stopwatch), str(report), *contender.command], folder)
            elapsed = time.monotonic() - start
            busy, served = busy_seconds() - busy, process_seconds(servers) - served
            took = json.loads(report.read_text())
        if took["status"] != 0:
            raise RuntimeError(f"{contender.name} ended with {took['status']}")
        outcome = contender.read(output)
        used = took["user"] + took["system"]
        sample = Sample(
            wall=took["wall"] if outcome.wall is None else outcome.wall,
            cpu=outcome.share * (used if outcome.cpu is None else outcome.cpu),
            peak_rss=took["peak_rss"],
            disk_read=took["disk_read"],
            disk_written=took["disk_written"],
            server_cpu=outcome.share * served,
            others=max(0.0, (busy - used - served) / elapsed),
        )
        return sample, outcome

    def output(self, contender: Contender, command: list[str], folder: str) -> str:
        """Runs the command and returns its output. A process group of its own lets a pipeline end as a whole."""
        errors = Path(folder) / "errors.txt"
        with errors.open("wb") as kept:
            # Python writes in pieces, however the shell of the user has it.
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": kept}
            process = subprocess.Popen(command, **pipes, cwd=folder, env=environment, process_group=0)
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode != 0 or not output:
            complaint = errors.read_text(errors="replace").strip()[-2000:]
            if complaint:
                raise RuntimeError(f"{contender.name}: {complaint}")
        return output.decode()

    def compare(
        self,
        contenders: Sequence[Contender],
        repetitions: int,
        servers: Sequence[int] = (),
        order: Callable[[list[Contender], int], list[Contender]] = rotated,
    ) -> Results:
        """Runs all contenders in turn, `repetitions` times, each time in another order."""
        results = Results(
            roles={contender.name: contender.role for contender in contenders},
            rows={contender.name: contender.rows for contender in contenders},
        )
        left = list(contenders)
        for repetition in range(repetitions):
            for contender in order(left, repetition):
                samples = results.samples.get(contender.name, [])
                if contender.most is not None and len(samples) >= contender.most:
                    continue
                if len(samples) >= 2 and sum(sample.wall for sample in samples) > ENOUGH:
                    continue
                try:
                    self.once(contender, results, servers)
                except (RuntimeError, ValueError, OSError, subprocess.SubprocessError, KeyError) as error:
                    results.faults.append(f"{contender.name}: {error}")
                    left.remove(contender)
        return results

    def once(self, contender: Contender, results: Results, servers: Sequence[int]) -> None:
        """Runs a contender once and adds the run to the results."""
        sample, outcome = self.run(contender, servers)
        results.samples.setdefault(contender.name, []).append(sample)
        results.answers[contender.name] = outcome.answer
        if contender.after:
            note = contender.after()
            results.notes[contender.name] = note.text
            figures = results.figures.setdefault(contender.name, {})
            figures.update({what: max(value, figures.get(what, value)) for what, value in note.figures.items()})
        print(f"  {contender.name:38} {sample.wall:9.3f} s  {sample.cpu:9.3f} s cpu", flush=True)


def check(contenders: Sequence[Contender], results: Results, expected: Answer) -> None:
    """Adds a fault for each contender whose answer differs from the expected one, or from the first one's."""
    for contender in contenders:
        answer = results.answers.get(contender.name)
        if answer is None:
            continue
        if contender.expected is None and expected is None:
            expected = answer
        reference = contender.expected if contender.expected is not None else expected
        if reference is not None and not same(answer, reference):
            results.faults.append(f"{contender.name}: wrong answer: {shown(answer)} instead of {shown(reference)}")


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are equal; sums of floats depend on their order."""
    if isinstance(one, dict) and isinstance(other, dict):
        close = (abs(one[key] - other[key]) <= 1e-9 * max(1.0, abs(other[key])) for key in one if key in other)
        return one.keys() == other.keys() and all(close)
    return one == other


def shown(answer: Answer) -> str:
    """A short text of an answer."""
    return f"{len(answer)} groups, sum {sum(answer.values()):.6f}" if isinstance(answer, dict) else str(answer)

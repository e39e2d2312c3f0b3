"""Many sequences that are due in the same minute: how long a start takes. Runs as a process of its own.

    python starts.py MILLSTREAM FOLDER COUNT RESULT

FOLDER has `sequences`, with the job `empty.yaml` that each of them runs. RESULT gets milliseconds from a free slot to
the first event of a sequence and to that of its job (the median, the 99th percentile and the most), and the resident
megabytes of the scheduler at rest, before and after. Prints how many sequences succeeded.

A slot is free from the end of a run in the history, which is before the end of its process. So each time is a little
longer than it was.
"""

import contextlib
import heapq
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

MARGIN = 20  # seconds that the scheduler has for finding its sequences, at least
REST = 5  # seconds after which it counts as at rest
LONGEST = 900  # seconds until all have run
RUNS = """SELECT sequences.began, sequences.ended, jobs.began FROM runs AS sequences
JOIN runs AS jobs ON jobs.sequence = sequences.run WHERE sequences.outcome = 'done' ORDER BY sequences.began"""


def resident(pid: int) -> float:
    """The resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024 / 1_000_000


def ended(state: Path) -> int:
    """How many occurrences have ended."""
    with contextlib.closing(sqlite3.connect(f"file:{state}/runs.db?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM occurrences WHERE ended IS NOT NULL").fetchone()[0]


def waits(rows: list[tuple[int, int, int]], due: int, slots: int) -> tuple[list[int], list[int]]:
    """The milliseconds of each run from a free slot to its first event, and to that of its job."""
    free = [due] * slots
    of_runs, of_jobs = [], []
    for began, ended_at, job in rows:
        since = heapq.heappop(free)
        of_runs.append(began - since)
        of_jobs.append(job - since)
        heapq.heappush(free, ended_at)
    return of_runs, of_jobs


def summary(name: str, values: list[int]) -> dict[str, float]:
    """The median, the 99th percentile and the most."""
    values = sorted(values)
    return {
        f"{name} median": values[len(values) // 2],
        f"{name} p99": values[len(values) * 99 // 100],
        f"{name} most": values[-1],
    }


def main() -> None:
    """Runs the scheduler until all sequences have ended."""
    millstream, folder, count, result = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    state, slots = folder / "state", len(os.sched_getaffinity(0))
    due = (int(time.time() + MARGIN) // 60 + 1) * 60
    at = time.gmtime(due)
    schedule = {"cron": f"{at.tm_min} {at.tm_hour} * * *", "timezone": "UTC"}
    for number in range(count):
        text = json.dumps({"schedule": schedule, "steps": {"only": {"job": "empty.yaml"}}})
        (folder / "sequences" / f"s{number:04}.yaml").write_text(text)
    command = [millstream, "schedule", "--quiet", "--state", state, "--parallel", str(slots), folder / "sequences"]
    scheduler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(due - time.time() - 1)
        before = resident(scheduler.pid)
        time.sleep(2)
        last = time.monotonic() + LONGEST
        while ended(state) < count and time.monotonic() < last:
            time.sleep(2)
        time.sleep(REST)
        after = resident(scheduler.pid)
    finally:
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait()
    with contextlib.closing(sqlite3.connect(state / "runs.db")) as database:
        rows = database.execute(RUNS).fetchall()
    of_runs, of_jobs = waits(rows, due * 1_000, slots)
    figures = {**summary("run", of_runs), **summary("job", of_jobs), "before": before, "after": after}
    result.write_text(json.dumps(figures))
    print(len(rows))


if __name__ == "__main__":
    main()

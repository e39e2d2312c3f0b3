"""A run with workers on this machine, as a process of its own:

    python clustered.py SETTINGS

SETTINGS is a JSON file: `command` is timed; `workers` are commands that are started before, each of which is ready when
it says that it waits; the last of them is killed after `kill` seconds, if there are any. Prints what the command has
printed, its seconds, and how much memory all of these processes had together at most, as JSON.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

READY = "waits for a coordinator"
LONGEST = 30  # seconds until a worker waits
LOOK = 0.1


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found, waiting = [], [pid]
    while waiting:
        for tasks in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                below = [int(child) for child in tasks.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += below
            waiting += below
    return found


def memory(pid: int) -> int:
    """The memory of a process in bytes; of what it shares with others, its part."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


class Peak:
    """Looks at the memory of all descendants of this process until it is stopped."""

    def __init__(self) -> None:
        """Begins."""
        self.most, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self) -> None:
        """Looks again and again."""
        import os

        while not self.ended.wait(LOOK):
            self.most = max(self.most, sum(memory(pid) for pid in descendants(os.getpid())))

    def stop(self) -> int:
        """The most that was seen."""
        self.ended.set()
        self.thread.join()
        return self.most


def wait(logs: list[Path]) -> None:
    """Waits until all workers wait."""
    until = time.monotonic() + LONGEST
    while not all(READY in log.read_text() for log in logs):
        if time.monotonic() > until:
            raise SystemExit(f"a worker does not start: {[log.read_text() for log in logs]}")
        time.sleep(0.05)


def main() -> None:
    """Runs the command, and prints what it took."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    workers, kill = [], None
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(number) for number in range(len(settings["workers"]))]
        try:
            for command, log in zip(settings["workers"], logs, strict=True):
                with log.open("wb") as file:
                    workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file))
            wait(logs)
            peak = Peak()
            if settings.get("kill"):
                kill = threading.Timer(settings["kill"], workers[-1].kill)
                kill.start()
            began = time.monotonic()
            try:
                printed = subprocess.run(settings["command"], check=True, stdout=subprocess.PIPE, text=True).stdout
                seconds = time.monotonic() - began
            finally:
                most = peak.stop()
                if kill:
                    kill.cancel()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    print(json.dumps({"seconds": seconds, "peak": most, "printed": printed}))


if __name__ == "__main__":
    main()

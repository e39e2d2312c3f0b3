"""A server of Millstream. Runs as a process of its own, too:

    python served.py MILLSTREAM FOLDER ADDRESS TOKEN CLIENTS
    python served.py MILLSTREAM FOLDER RESULT

The first runs `job.yaml` of FOLDER, while CLIENTS clients hear from the server at ADDRESS how it goes and draw
nothing. Prints the seconds of the run as JSON. The second starts a server and writes into RESULT how many megabytes it
takes at rest and which percentage of a core, and in how many milliseconds it answers what its overview shows: first,
and once more. Prints of how many files it has shown runs.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.starts import resident  # noqa: E402

REST = 15  # seconds that the server has nothing to do
STALE = 6  # seconds after which it makes a new overview
OVERVIEWS = 5  # of which the slowest counts
HEARS = 30  # seconds until a client has to have heard of the run


class Served:
    """A server of a folder; its state folder is `state` in it."""

    def __init__(self, millstream: str, folder: Path) -> None:
        """Remembers what is to be started."""
        self.command = [millstream, "serve", str(folder), "--listen", "0", "--json", "--state", str(folder / "state")]

    def __enter__(self) -> Self:
        """Starts it."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        printed = json.loads(self.process.stdout.readline())
        self.address, self.link = printed["url"].partition("://")[2], printed["link"]
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.process.pid

    def token(self) -> str:
        """Signs in."""
        link = http.client.HTTPConnection(self.address)
        link.request("POST", "/api/v1/session", json.dumps({"token": self.link.partition("#token=")[2]}))
        return json.loads(link.getresponse().read())["token"]


def asked(link: http.client.HTTPConnection, path: str, token: str) -> http.client.HTTPResponse:
    """What the server answers."""
    link.request("GET", path, headers={"authorization": f"Bearer {token}"})
    return link.getresponse()


def runs(link: http.client.HTTPConnection, token: str) -> list[dict]:
    """The last runs."""
    return json.loads(asked(link, "/api/v1/runs", token).read())["runs"]


def run_of(link: http.client.HTTPConnection, token: str, name: str) -> dict:
    """A run."""
    return json.loads(asked(link, f"/api/v1/runs/{name}", token).read())["run"]


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """The name and the data of each event."""
    name = ""
    while line := answer.readline().decode():
        key, _, value = line.rstrip().partition(":")
        if key == "event":
            name = value.strip()
        elif key == "data":
            yield name, value.strip()


def watch(address: str, token: str, ready: threading.Barrier, heard: list[int]) -> None:
    """Waits for the next run, and hears how it goes until it ends."""
    link = http.client.HTTPConnection(address, timeout=HEARS)
    before = {run["run"] for run in runs(link, token)}
    for_all = asked(http.client.HTTPConnection(address, timeout=HEARS), "/api/v1/events", token)
    run = None
    for name, data in events(for_all):
        if name == "hello":
            ready.wait()
        elif name == "runs":
            # The end of an earlier run may come first.
            run = next((its for its in json.loads(data)["runs"] if its["run"] not in before), None)
        if run:
            break
    lives = 0
    of_run = asked(http.client.HTTPConnection(address, timeout=HEARS), f"/api/v1/events?run={run['run']}", token)
    for name, data in events(of_run):
        lives += name == "live"
        # It may have ended between the two streams.
        ended = run_of(link, token, run["run"])["ended"] if name in ("hello", "runs") else None
        if ended:
            break
    heard.append(lives)


def run_watched(millstream: str, folder: Path, address: str, token: str, clients: int) -> None:
    """Runs the job, and prints how long it took."""
    ready, heard = threading.Barrier(clients + 1), []
    threads = [threading.Thread(target=watch, args=(address, token, ready, heard)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait(HEARS)
    state = ["--state", str(folder / "state")]
    began = time.monotonic()
    subprocess.run([millstream, "run", "--quiet", *state, str(folder / "job.yaml")], check=True)
    seconds = time.monotonic() - began
    for thread in threads:
        thread.join()
    if len(heard) < clients or (seconds > 4 and not all(heard)):
        raise SystemExit(f"the clients heard {heard} times of the run")
    print(json.dumps({"seconds": seconds}))


def busy(pid: int) -> int:
    """The ticks that a process has worked."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13]))


def measure(millstream: str, folder: Path, result: Path) -> None:
    """Measures a server."""
    with Served(millstream, folder) as server:
        token = server.token()
        link = http.client.HTTPConnection(server.address)
        first, again, answer = [], [], {}
        for _ in range(OVERVIEWS):
            for times in (first, again):
                began = time.monotonic()
                answer = json.loads(asked(link, "/api/v1/overview", token).read())
                times.append((time.monotonic() - began) * 1_000)
            time.sleep(STALE)
        before = busy(server.pid)
        time.sleep(REST)
        share = (busy(server.pid) - before) / os.sysconf("SC_CLK_TCK") / REST * 100
        figures = {"overview": max(first), "again": max(again), "resident": resident(server.pid), "share": share}
    result.write_text(json.dumps(figures))
    print(len(answer["strips"]))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        run_watched(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5]))

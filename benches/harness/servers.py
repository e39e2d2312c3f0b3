"""The servers of the benchmarks: all on loopback, on free ports, ended when their block ends."""

import contextlib
import os
import resource
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.measure import Note, children

NGINX_CONNECTIONS = 1024
NGINX = """
worker_processes 1;
daemon off;
{user}
pid {scratch}/pid;
error_log stderr error;
worker_rlimit_nofile {descriptors};
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    open_file_cache max={files};
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    uwsgi_temp_path {scratch}/uwsgi;
    scgi_temp_path {scratch}/scgi;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@dataclass(frozen=True)
class Server:
    """A running server: its address and its processes."""

    url: str
    pids: Sequence[int]

    def connections(self) -> Note:
        """How many connections the slow server had open at most since it was last asked."""
        with urllib.request.urlopen(f"{self.url}/.connections") as answer:
            return Note(f"{answer.read().decode()} connections at most")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen) -> None:
    """Waits until a server listens on the port."""
    for _ in range(500):
        if process.poll() is not None:
            raise RuntimeError(f"a server ended at once: {process.args!r}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"a server did not begin to listen: {process.args!r}")


@contextlib.contextmanager
def ending(process: subprocess.Popen) -> Iterator[None]:
    """Ends the process when the block ends."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def nginx(program: str, root: Path) -> Iterator[Server]:
    """nginx with one worker."""
    with tempfile.TemporaryDirectory() as scratch:
        port = free_port()
        # As root, nginx would run its worker as a user that may not be able to read the cache folder.
        user = "user root;" if os.geteuid() == 0 else ""
        settings = Path(scratch) / "nginx.conf"
        # Each cached file is an open file. Without free descriptors nginx refuses connections.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = min(200_000, descriptors - 2 * NGINX_CONNECTIONS)
        text = NGINX.format(
            user=user,
            scratch=scratch,
            port=port,
            root=root,
            descriptors=descriptors,
            connections=NGINX_CONNECTIONS,
            files=files,
        )
        settings.write_text(text)
        command = [program, "-e", "stderr", "-p", scratch, "-c", str(settings)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with ending(process):
            wait_for(port, process)
            yield Server(f"http://127.0.0.1:{port}", [process.pid, *children(process.pid)])


@contextlib.contextmanager
def own(command: Sequence[str]) -> Iterator[Server]:
    """A server of `benches/limit`: it prints its port, and ends when its standard input does."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process, ending(process):
        port = process.stdout.readline().strip() if process.stdout else b""
        if not port:
            raise RuntimeError(f"a server did not start: {command}")
        yield Server(f"http://127.0.0.1:{int(port)}", [process.pid])

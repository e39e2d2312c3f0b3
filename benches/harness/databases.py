"""The database servers of the benchmarks: fresh ones in folders of their own, on free ports of loopback, as durable as
they are by default. What is loaded into them is `loading.py`'s.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import tools
from harness.servers import ending, free_port

NAME = "bench"
# More memory than a new installation has, as a server for such loads would have; commits are durable.
MARIADB = ["--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M", "--bind-address=127.0.0.1",
           "--skip-name-resolve", "--local-infile=1"]  # fmt: skip
POSTGRES = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "1GB",
            "max_wal_size": "2GB", "autovacuum": "off"}  # fmt: skip


@dataclass(frozen=True)
class Database:
    """A running server: its URL, the command of its own client, and its processes."""

    url: str
    port: int
    client: Sequence[str]
    pids: Sequence[int]

    def run(self, sql: str) -> list[list[str]]:
        """Runs statements with the server's own client. Returns the values of the rows."""
        result = subprocess.run([*self.client, sql], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{sql}: {result.stderr.strip()}")
        return [line.split("\t") for line in result.stdout.splitlines()]


@contextlib.contextmanager
def owned(user: str) -> Iterator[tuple[Path, dict]]:
    """A folder, and a prefix that runs commands as its owner: servers refuse to run as root."""
    # Not in the cache folder: if that is root's, the server's user may not be able to read it.
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    try:
        if os.geteuid() != 0:
            yield folder, {}
        else:
            shutil.chown(folder, user, user)
            yield folder, {"user": user, "group": user, "extra_groups": []}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def found(name: str, folders: Sequence[Path] = ()) -> str:
    """The path of a program that the workload needs."""
    path = tools.command(name) or next((str(folder / name) for folder in folders if (folder / name).exists()), None)
    if not path:
        raise FileNotFoundError(f"{name} is not installed: scripts/install-bench-packages.sh")
    return path


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path, user: dict, ready: Sequence[str]) -> Iterator[subprocess.Popen]:
    """Starts a server and waits until `ready` succeeds."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **user)
    with ending(process):
        for _ in range(600):
            if process.poll() is not None:
                break
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                yield process
                return
            time.sleep(0.1)
        raise RuntimeError(f"{command[0]} does not start: {(folder / 'log').read_text()[-1000:]}")


@contextlib.contextmanager
def mariadb() -> Iterator[Database]:
    """Runs MariaDB with an empty database."""
    with owned("mysql") as (folder, user):
        data, port = folder / "data", free_port()
        common = ["--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([found("mariadb-install-db"), *common], check=True, capture_output=True, cwd=folder, **user)
        command = [found("mariadbd"), "--no-defaults", f"--datadir={data}", f"--port={port}",
                   f"--socket={folder}/socket", f"--pid-file={folder}/pid", *MARIADB]  # fmt: skip
        client = [found("mariadb"), "--no-defaults", "--host=127.0.0.1", f"--port={port}", "--batch", "--skip-ssl",
                  "--default-character-set=utf8mb4", "--skip-column-names", "--local-infile=1"]  # fmt: skip
        root = [*client, "--user=root", "--execute"]
        with started(command, folder, user, [*root, "SELECT 1"]) as process:
            sql = f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4; CREATE USER {NAME}; GRANT ALL ON *.* TO {NAME}"
            subprocess.run([*root, sql], check=True)
            ours = [*client, f"--user={NAME}", f"--database={NAME}", "--execute"]
            yield Database(f"mysql://{NAME}@127.0.0.1:{port}/{NAME}", port, ours, [process.pid])


@contextlib.contextmanager
def postgres(address: str = "127.0.0.1") -> Iterator[Database]:
    """Runs PostgreSQL with an empty database, at an address of this machine."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    with owned("postgres") as (folder, user):
        data, port = folder / "data", free_port()
        shape = [f"--pgdata={data}", f"--username={NAME}", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run([found("initdb", versions), *shape], check=True, capture_output=True, cwd=folder, **user)
        if address != "127.0.0.1":
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {address}/24 trust\n")
        given = {**POSTGRES, "listen_addresses": address}
        settings = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        command = [found("postgres", versions), "-D", str(data), "-p", str(port), *settings]
        client = [found("psql", versions), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
                  "--field-separator=\t", f"--host={address}", f"--port={port}", f"--username={NAME}",
                  "--set=ON_ERROR_STOP=1"]  # fmt: skip
        first = [*client, "--dbname=postgres", "--command"]
        with started(command, folder, user, [*first, "SELECT 1"]) as process:
            subprocess.run([*first, f"CREATE DATABASE {NAME}"], check=True)
            ours = [*client, f"--dbname={NAME}", "--command"]
            yield Database(f"postgres://{NAME}@{address}:{port}/{NAME}", port, ours, [process.pid])

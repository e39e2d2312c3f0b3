"""Airflow and Prefect, each as its documentation says that it is run on one machine: with its services running, and
Airflow with PostgreSQL for its state. They end with their block.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import databases, tools
from harness.databases import started
from harness.servers import free_port

CODE = Path(__file__).parent / "code"
SERVICES = ("api-server", "scheduler", "dag-processor")  # of Airflow
LONGEST = 120  # seconds until the services have read the DAG


@dataclass(frozen=True)
class Orchestrator:
    """A running orchestrator: the command that runs the tasks, and the processes of its services."""

    command: Sequence[str]
    pids: Sequence[int]


def with_environment(values: dict[str, str], *command: object) -> list[str]:
    """A command that runs with some variables."""
    return ["env", *(f"{name}={value}" for name, value in values.items()), *map(str, command)]


@contextlib.contextmanager
def prefect(cache: Path, layers: int, width: int) -> Iterator[Orchestrator]:
    """Prefect with its server."""
    python, port = tools.environment(cache, "prefect"), free_port()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        url = f"http://127.0.0.1:{port}/api"
        values = {"PREFECT_HOME": name, "PREFECT_API_URL": url, "PREFECT_LOGGING_LEVEL": "ERROR",
                  "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}  # fmt: skip
        server = [python.with_name("prefect"), "server", "start", "--host", "127.0.0.1", "--port", port]
        ready = [databases.found("curl"), "--silent", "--fail", f"{url}/health"]
        with started(with_environment(values, *server), Path(name), {}, ready) as process:
            yield Orchestrator(with_environment(values, python, CODE / "on_prefect.py", layers, width), [process.pid])


@contextlib.contextmanager
def airflow(cache: Path, layers: int, width: int) -> Iterator[Orchestrator]:
    """Airflow with its services and tasks as processes."""
    python, port = tools.environment(cache, "airflow"), free_port()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name, databases.postgres() as database:
        folder, address = Path(name), f"http://127.0.0.1:{port}"
        (folder / "dags").mkdir()
        shutil.copy(CODE / "airflow_dag.py", folder / "dags")
        settings = {
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": f"{name}/dags",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
            "DATABASE__SQL_ALCHEMY_CONN": database.url.replace("postgres://", "postgresql+psycopg2://"),
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__BASE_URL": address,
            "API__SECRET_KEY": secrets.token_hex(32),
            "API__WORKERS": "1",
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        }
        values = {f"AIRFLOW__{key}": value for key, value in settings.items()}
        values.update({"AIRFLOW_HOME": name, "LAYERS": str(layers), "WIDTH": str(width)})
        program = python.with_name("airflow")
        migrate = with_environment(values, program, "db", "migrate")
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.ExitStack() as running:
            pids = [running.enter_context(service(program, one, folder, values)) for one in SERVICES]
            wait_for_dag(database)
            command = with_environment(values, python, CODE / "on_airflow.py", database.url)
            yield Orchestrator(command, [*pids, *database.pids])


@contextlib.contextmanager
def service(program: Path, name: str, folder: Path, values: dict[str, str]) -> Iterator[int]:
    """Runs a service of Airflow with the processes that it starts: its number."""
    with (folder / f"{name}.log").open("wb") as log:
        environment = {**os.environ, **values}
        process = subprocess.Popen([program, name], env=environment, stdout=log, stderr=log, process_group=0)
    try:
        yield process.pid
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


def wait_for_dag(database: databases.Database) -> None:
    """Waits until Airflow has read the DAG."""
    for _ in range(LONGEST):
        if database.run("SELECT count(*) FROM dag WHERE dag_id = 'empty_tasks'") == [["1"]]:
            return
        time.sleep(1)
    raise RuntimeError("Airflow has not read the DAG")

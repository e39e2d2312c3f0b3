"""Runs the DAG of empty tasks in a running Airflow.

    python on_airflow.py DATABASE

DATABASE is the URL of Airflow's database. Prints the number of tasks that succeeded, and the seconds from the start of
the DAG's run to its end, as Airflow has noted them.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

STATE = "SELECT state, extract(epoch FROM end_date - start_date) FROM dag_run WHERE run_id = %s"
TASKS = "SELECT count(*) FROM task_instance WHERE run_id = %s AND state = 'success'"


def main() -> None:
    """Starts a run and waits for its end."""
    import psycopg2

    name = f"run-{time.time_ns()}"
    airflow = Path(sys.executable).with_name("airflow")
    start = [airflow, "dags", "trigger", "empty_tasks", "--run-id", name]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with psycopg2.connect(sys.argv[1]) as database, database.cursor() as cursor:
        database.autocommit = True
        while True:
            cursor.execute(STATE, (name,))
            state, seconds = cursor.fetchone()
            if state in ("success", "failed"):
                break
            time.sleep(0.5)
        cursor.execute(TASKS, (name,))
        (succeeded,) = cursor.fetchone()
    print(json.dumps({"answer": succeeded, "seconds": float(seconds)}))


if __name__ == "__main__":
    main()

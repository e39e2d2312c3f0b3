"""A DAG of empty tasks for Airflow. Its shape comes from the variables LAYERS and WIDTH."""

import os

from airflow.sdk import DAG, task

LAYERS, WIDTH = int(os.environ["LAYERS"]), int(os.environ["WIDTH"])

with DAG("empty_tasks", schedule=None, catchup=False, max_active_tasks=LAYERS * WIDTH):

    @task
    def empty() -> None:
        """Does nothing."""

    above: list = []
    for layer in range(LAYERS):
        tasks = [empty.override(task_id=f"t{layer}_{number}")() for number in range(WIDTH)]
        for number, one in enumerate(tasks if above else []):
            one.set_upstream([above[number], above[(number + 1) % WIDTH]])
        above = tasks

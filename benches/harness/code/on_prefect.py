"""A flow of empty tasks in Prefect, with a running server.

    python on_prefect.py LAYERS WIDTH

Prints the number of tasks that ended, and the seconds of the flow, without the imports.
"""

import json
import sys
import time


def main() -> None:
    """Runs the flow."""
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    layers, width = map(int, sys.argv[1:])

    @task
    def empty() -> int:
        return 1

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=width))
    def empty_tasks() -> int:
        above, every = [], []
        for _ in range(layers):
            waits = [[above[number], above[(number + 1) % width]] if above else None for number in range(width)]
            above = [empty.submit(wait_for=wait) for wait in waits]
            every += above
        return sum(one.result() for one in every)

    start = time.perf_counter()
    ended = empty_tasks()
    print(json.dumps({"answer": ended, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()

"""The function on rows with Ray Data.

    python on_ray.py INPUT FOLDER PROCESSORS

Reads JSON lines, calls the function on each, and writes files of JSON lines into FOLDER. It prints the seconds from
the plan to the files; the start of Ray does not count.
"""

import json
import logging
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Runs the plan."""
    import pyarrow.json
    import ray
    import ray.data

    source, target, processors = sys.argv[1:]
    context = {"num_cpus": int(processors), "include_dashboard": False, "log_to_driver": False}
    ray.init(**context, logging_level=logging.ERROR, runtime_env={"env_vars": {"PYTHONPATH": HERE}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    # Texts that look like times would become times.
    created = pyarrow.schema([("created", pyarrow.string())])
    start = time.perf_counter()
    rows = ray.data.read_json(source, parse_options=pyarrow.json.ParseOptions(explicit_schema=created))
    rows.flat_map(records).write_json(target, force_ascii=False)
    print(json.dumps({"seconds": time.perf_counter() - start}))


def records(post: dict) -> list[dict]:
    """The record of a post, if there is one."""
    from repackage import repackage

    record = repackage(post)
    return [] if record is None else [record]


if __name__ == "__main__":
    main()

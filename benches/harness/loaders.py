"""Loaders in common use today. Runs as a process of its own, in the environment that `tools.py` makes.

    python loaders.py one|batches FILE URL      Celery, Redis and SQLAlchemy
    python loaders.py dlt FILE URL

FILE has JSON lines, URL is an empty table's database. It prints the seconds from the first line to the last row's
commit; the start of Python, Redis and the workers does not count.
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

WORKERS = 2
TOGETHER = 100  # messages that a worker takes at a time
QUEUE = "MILLSTREAM_BENCH_QUEUE"
TARGET = "MILLSTREAM_BENCH_TARGET"


def application():  # noqa: ANN201
    """The Celery application with both of its tasks."""
    import sqlalchemy
    from celery import Celery
    from celery_batches import Batches

    app = Celery("loaders", broker=os.environ[QUEUE])
    app.conf.update(
        worker_prefetch_multiplier=TOGETHER, task_ignore_result=True, broker_connection_retry_on_startup=True
    )
    engine = sqlalchemy.create_engine(os.environ[TARGET])
    table = sqlalchemy.Table("posts", sqlalchemy.MetaData(), autoload_with=engine)
    engine.dispose()

    @app.task(name="insert_one")
    def insert_one(line: str) -> None:
        with engine.begin() as connection:
            connection.execute(table.insert(), json.loads(line))

    @app.task(name="insert_many", base=Batches, flush_every=TOGETHER, flush_interval=1)
    def insert_many(requests: list) -> None:
        rows = [json.loads(request.args[0]) for request in requests]
        with engine.begin() as connection:
            connection.execute(table.insert().values(rows))

    return app


def celery(task: str, path: str, url: str) -> float:
    """Every line is a message; two workers insert them."""
    import sqlalchemy

    with tempfile.TemporaryDirectory() as folder:
        queue = f"{folder}/redis"
        os.environ[QUEUE] = f"redis+socket://{queue}"
        os.environ[TARGET] = url.replace("mysql://", "mysql+pymysql://", 1)
        redis = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", queue, "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        workers = None
        try:
            while not os.path.exists(queue):
                time.sleep(0.02)
            module = os.path.splitext(os.path.basename(__file__))[0]
            line = ["-A", f"{module}:APP", "worker", "-c", str(WORKERS), "-l", "ERROR"]
            workers = subprocess.Popen(
                [sys.executable, "-m", "celery", *line], cwd=os.path.dirname(__file__), stdout=sys.stderr
            )
            app = application()
            while not app.control.ping(timeout=0.5):
                if workers.poll() is not None:
                    raise SystemExit("the workers ended")
            engine = sqlalchemy.create_engine(os.environ[TARGET])
            start = time.perf_counter()
            sent = publish(app, task, path)
            wait_for_rows(engine, sent)
            return time.perf_counter() - start
        finally:
            for process in filter(None, (workers, redis)):
                process.send_signal(signal.SIGTERM)
                process.wait()


def publish(app, task: str, path: str) -> int:  # noqa: ANN001
    """Sends every line. Returns the number of lines."""
    count = 0
    with app.connection_for_write() as connection, open(path, encoding="utf-8") as lines:
        producer = app.amqp.Producer(connection)
        for count, line in enumerate(lines, 1):  # noqa: B007
            app.send_task(task, [line], producer=producer)
    return count


def wait_for_rows(engine, sent: int) -> None:  # noqa: ANN001
    """Waits until the table has `sent` rows."""
    import sqlalchemy

    longest = time.monotonic() + 1_200
    while time.monotonic() < longest:
        with engine.connect() as connection:
            if connection.execute(sqlalchemy.text("SELECT count(*) FROM posts")).scalar() >= sent:
                return
        time.sleep(0.2)
    raise SystemExit("not all rows arrived")


def dlt(path: str, url: str) -> float:
    """A pipeline that reads JSON lines and loads them by COPY of CSV."""
    import dlt as library

    def rows():  # noqa: ANN202
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                post = json.loads(line)
                post["created"] = datetime.datetime.fromisoformat(post["created"])
                yield post

    with tempfile.TemporaryDirectory() as folder:
        # dlt insists on a password; the server asks for none.
        address = url.replace("postgres://", "postgresql://", 1).replace("@", ":none@", 1)
        destination = library.destinations.postgres(address)
        pipeline = library.pipeline("bench", pipelines_dir=folder, destination=destination, dataset_name="bench")
        start = time.perf_counter()
        info = pipeline.run(
            rows(), table_name="posts", primary_key="id", write_disposition="replace", loader_file_format="csv"
        )
        info.raise_on_failed_jobs()
        return time.perf_counter() - start


def main() -> None:
    """Loads once and prints the seconds."""
    loader, path, url = sys.argv[1:]
    tasks = {"one": "insert_one", "batches": "insert_many"}
    seconds = dlt(path, url) if loader == "dlt" else celery(tasks[loader], path, url)
    print(json.dumps({"seconds": seconds}))


if QUEUE in os.environ and __name__ != "__main__":
    APP = application()
if __name__ == "__main__":
    main()

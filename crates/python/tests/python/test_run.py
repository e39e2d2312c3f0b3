"""Runs of job files."""

import faulthandler
import multiprocessing
import os
import pathlib
import pickle
import signal
import threading
import time
import traceback

import pyarrow
import pytest
from conftest import JOB

import millstream


def test_a_report_has_attributes_a_text_and_a_form_for_notebooks():
    report = millstream.run("job.yaml")
    assert (report.rows_read, report.rows_written, report.rows_rejected, report.nothing_new) == (4, 2, 0, False)
    (result,) = report.results
    assert (result.sink, result.target, result.removed) == ("result", "out/countries.csv", None)
    assert {step.kind for step in report.steps} >= {"fetch", "decode", "parse", "load"}
    assert (report.entries[0].kind, report.entries[-1].kind) == ("source", "sink")
    assert report.points[-1].rows_read == report.rows_read
    assert report.verdict.sentence.startswith("limited by") and report.cores >= 1 and report.seconds > 0
    assert str(report).startswith("done in ") and report.verdict.sentence in str(report)
    html = report._repr_html_()
    assert "<table>" in html and "out/countries.csv" in html and "4 rows read" in html
    assert report.to_dict()["results"][0]["sink"] == "result"
    lines = sorted(pathlib.Path("out/countries.csv").read_text().split())
    assert lines == ["DE,126329", "NO,1009650", "country,people"]


MERGE = """
sources:
  orders:
    read: orders/*.csv
    csv: {columns: {id: int64, price: int64}}
    checks: [{not_null: [price], severity: warn}]
sinks:
  table: {from: orders, write: 'sqlite:orders.db', table: orders, mode: merge, key: [id]}
on_success: [{command: ["true"]}]
"""


def test_all_that_a_report_says_has_a_type(folder):
    (folder / "orders").mkdir()
    (folder / "orders/1.csv").write_text("id,price\n1,5\n2,\n")
    (folder / "merge.yaml").write_text(MERGE)
    report = millstream.run("merge.yaml")
    assert (report.results[0].changes.inserted, report.checks[0].broken, report.checks[0].holds) == (2, 1, False)
    assert (report.hooks[0].hook, report.hooks[0].error, report.caught_up, report.attempts) == ("true", None, False, 1)

    def typed(record):
        unknown = {name for name in vars(record) if not name.startswith("_")} - set(type(record).__annotations__)
        assert not unknown, type(record)
        for value in vars(record).values():
            for one in value if isinstance(value, list) else [value]:
                if type(one).__module__ == "millstream._report":
                    typed(one)

    typed(report)


def test_variables_are_set():
    report = millstream.run("job.yaml", variables={"LEAST": 200_000})
    assert report.rows_written == 1


def test_limits_are_those_of_the_call(folder):
    report = millstream.run("job.yaml", memory="100MB", cores=1)
    assert (report.memory_bytes, report.cores) == (100_000_000, 1)
    assert millstream.run("job.yaml", memory=200_000_000).memory_bytes == 200_000_000
    (folder / "machine.yaml").write_text("machine: {memory: 300MB}\n")
    with pytest.raises(ValueError, match="cores"):
        millstream.run("job.yaml", cores=0)
    with pytest.raises(TypeError, match="cores: give a whole number, not '2'"):
        millstream.run("job.yaml", cores="2")
    with pytest.raises(millstream.Error, match="nowhere.yaml"):
        millstream.run("job.yaml", machine="nowhere.yaml")


def test_all_mistakes_of_a_job_come_at_once_with_their_places(folder):
    (folder / "bad.yaml").write_text(JOB.replace("read:", "raed:").replace("sum(population) AS", "sum(popularity) AS"))
    with pytest.raises(millstream.Error) as raised:
        millstream.run("bad.yaml")
    error = raised.value
    assert {problem.kind for problem in error.problems} == {"job"}
    unknown = next(problem for problem in error.problems if problem.text == "raed")
    assert (unknown.file, unknown.line, unknown.column, unknown.place) == ("bad.yaml", 3, 5, "bad.yaml:3:5")
    assert "did you mean `read`?" in (unknown.hint or "")
    assert "bad.yaml:3:5" in str(error)
    assert (error.kind, error.place) == ("job", error.problems[0].place)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.problems[0].hint == error.problems[0].hint


def test_a_job_file_that_is_not_there():
    with pytest.raises(millstream.Error) as raised:
        millstream.run("nowhere.yaml")
    assert "nowhere.yaml" in raised.value.what and raised.value.cause == "there is no such file"


def test_a_fault_of_the_data_has_its_place(folder):
    (folder / "bad.csv").write_text("n\n1\nx\n")
    (folder / "bad.yaml").write_text(
        "sources: {s: {read: bad.csv, csv: {columns: {n: int64}}}}\nsinks: {o: {from: s, write: out/o.csv}}\n"
    )
    with pytest.raises(millstream.Error) as raised:
        millstream.run("bad.yaml")
    (problem,) = raised.value.problems
    assert (problem.kind, problem.file, problem.line, problem.field, problem.text, problem.step) == (
        "data", "bad.csv", 3, "n", "x", "s"
    )
    assert problem.place == "bad.csv, line 3, column n"


def test_a_warning_is_a_warning_of_python(folder):
    (folder / "odd.yaml").write_text(JOB.replace("transforms:\n", "transforms:\n  unused: {sql: SELECT 1 AS one}\n"))
    with pytest.warns(millstream.JobWarning, match="unused") as warned:
        millstream.run("odd.yaml")
    assert warned[0].filename == __file__, "it is shown at the call"


def test_what_a_program_says_is_shown_with_its_step(folder, capsys):
    (folder / "talk.yaml").write_text(
        "sources: {s: {read: places/*.csv.gz}}\n"
        "transforms:\n  t:\n    map:\n      {from: s, command: [sh, -c, 'echo hello >&2; cat'], exchange: csv,"
        " per: stream, columns: {name: utf8, country: utf8, population: int64}}\n"
        "sinks: {o: {from: t, write: out/o.csv}}\n"
    )
    assert millstream.run("talk.yaml").rows_written == 4
    assert "t: hello\n" in capsys.readouterr().err


def test_nothing_is_shown_where_nobody_looks(output):
    """Standard error is a pipe here."""
    assert output("""
        import io, sys, millstream
        sys.stderr = io.StringIO()
        millstream.run("job.yaml")
        assert sys.stderr.getvalue() == "", sys.stderr.getvalue()
        print("well")
    """) == "well\n"


SLOW = """
    import sys, millstream
    job = {"source": "pipe.csv"}
    millstream.Job().source("s", "pipe.csv", csv={"columns": {"n": "int64"}}).sink("o", "out/o.csv").save("slow.yaml")
    print("begins", flush=True)
    try:
        %s
    except (KeyboardInterrupt, Exception) as error:
        assert isinstance(error, KeyboardInterrupt) or "interrupted" in str(error), repr(error)
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("call", [
    'millstream.run("slow.yaml")',
    'list(millstream.read("pipe.csv", csv={"columns": {"n": "int64"}}).batches())',
    'import polars; polars.DataFrame(millstream.read("pipe.csv", csv={"columns": {"n": "int64"}}))',
    'import pyarrow; pyarrow.table(millstream.read("pipe.csv", csv={"columns": {"n": "int64"}}))',
    'millstream.write(millstream.read("pipe.csv", csv={"columns": {"n": "int64"}}), "out/o.csv")',
])
def test_ctrl_c_interrupts(folder, python, call):
    """Another library that waits for rows in the main thread fails with an exception of its own."""
    os.mkfifo(folder / "pipe.csv")
    process = python(SLOW % call)
    assert process.stdout.readline() == "begins\n"
    # The other end stays open, so there is never an end of the rows.
    with open(folder / "pipe.csv", "w") as pipe:
        pipe.write("n\n1\n")
        pipe.flush()
        time.sleep(1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert out == "interrupted\n", err
        assert process.returncode == 0 and time.monotonic() - began < 60
    assert not (folder / "out/o.csv").exists(), "what was not complete was rolled back"


def test_a_run_is_resumed(folder):
    """A load that was interrupted goes on where it stopped."""
    (folder / "load.yaml").write_text(
        "sources: {s: {read: 'places/*.csv.gz'}}\n"
        "sinks: {o: {from: s, write: 'sqlite:out/o.db', table: t, mode: append}}\n"
    )
    assert millstream.run("load.yaml", resume=True).rows_written == 4
    again = millstream.run("load.yaml", resume=True)
    assert again.nothing_new and again.rows_written == 0


def test_a_run_is_continued_or_started_again():
    for run in (
        lambda **how: millstream.run("job.yaml", **how),
        millstream.Job().source("s", "places/*.csv.gz").sink("o", "out/o.csv").run,
    ):
        with pytest.raises(ValueError, match="resume and restart"):
            run(resume=True, restart=True)


def test_runs_in_several_threads(folder):
    reports = []
    for number in range(4):
        (folder / f"{number}.yaml").write_text(JOB.replace("countries.csv", f"{number}.csv"))
    threads = [threading.Thread(target=lambda n=n: reports.append(millstream.run(f"{n}.yaml"))) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [report.rows_written for report in reports] == [2] * 4
    assert len({report.run for report in reports}) == 4


def in_a_copy(rows, queue):
    queue.put((sum(map(len, rows.batches())), millstream.run("job.yaml").rows_written))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_copy_of_the_process_has_an_engine_of_its_own():
    """By `multiprocessing`; the read was planned in this process."""
    rows = millstream.read("places/*.csv.gz")
    assert sum(map(len, rows.batches())) == 4
    millstream.run("job.yaml")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_a_copy, args=(rows, queue))
    process.start()
    assert queue.get(timeout=120) == (4, 2)
    process.join(timeout=120)
    assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_copy_by_fork_works_while_rows_are_read():
    """Also with a function in processes: what starts these is made anew."""
    rows = millstream.read("places/*.csv.gz")
    batches = rows.batches()
    assert map_names() == 4

    def in_the_copy():
        assert sum(map(len, rows.batches())) == 4 and map_names() == 4

    assert in_a_fork(in_the_copy) == 0
    assert sum(map(len, batches)) == 4, "the read of this process goes on"


@pytest.mark.parametrize("way", ["batches", "frames", "reader"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_read_that_was_begun_before_a_fork_fails_in_the_copy(folder, way):
    (folder / "n.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(200_000)))
    rows = millstream.read("n.csv")
    begin = {"reader": lambda: pyarrow.RecordBatchReader.from_stream(rows)}.get(way, lambda: getattr(rows, way)())
    begun, unread = begin(), [begin()]
    before = len(next(begun))
    # Threads that have read ahead wait. Those that work may hold a lock, which the copy would wait for.
    time.sleep(0.5)

    def in_the_copy():
        unread.clear()
        with pytest.raises(Exception, match="begun before the process was copied(.|\n)*hint: read anew"):
            next(begun)
        if way == "batches":
            begun.close()
        assert sum(map(len, rows.batches())) == 200_000

    assert in_a_fork(in_the_copy) == 0
    assert before + sum(map(len, begun)) == 200_000, "the read of this process goes on"


def in_a_fork(function):
    """What a copy of the process ends with that calls `function`."""
    child = os.fork()
    if child == 0:
        try:
            faulthandler.dump_traceback_later(100, exit=True)
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    deadline = time.monotonic() + 120
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the copy hangs")
        time.sleep(0.05)
    return ended[1]


def length(row):
    return {"length": len(row["name"])}


def map_names():
    job = millstream.Job().source("s", "places/*.csv.gz").map("m", length, columns={"length": "int64"})
    return job.sink("o", f"out/{os.getpid()}.csv").run().rows_written

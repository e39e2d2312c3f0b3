"""Records that reads leave out: a warning in each way of reading."""

import pathlib
import pickle
import warnings

import duckdb
import pandas
import polars
import pyarrow
import pytest

import millstream


@pytest.fixture
def rows():
    """Of 50,000 records every hundredth is wrong, the first of them in line 5."""
    lines = ("x" if number % 100 == 3 else str(number) for number in range(50_000))
    pathlib.Path("bad.csv").write_text("n\n" + "\n".join(lines) + "\n")
    return millstream.read("bad.csv", csv={"columns": {"n": "int64"}}, max_rejects=600)


TEXT = (
    "500 records were left out, as `max_rejects` allows; the first one: bad.csv, line 5, column n: "
    "the value is not an int64: `x`"
)

WAYS = {
    "batches": lambda rows: sum(map(len, rows.batches())),
    "iteration": lambda rows: sum(map(len, rows)),
    "frames": lambda rows: sum(map(len, rows.frames())),
    "polars": lambda rows: polars.DataFrame(rows).height,
    "lazy": lambda rows: rows.lazy().collect().height,
    "streaming": lambda rows: rows.lazy().select(polars.col("n").count()).collect(engine="streaming").item(),
    "pandas": lambda rows: len(pandas.DataFrame.from_arrow(rows)),
    "pyarrow": lambda rows: pyarrow.table(rows).num_rows,
    "duckdb": lambda rows: duckdb.sql("SELECT count(*) FROM rows").fetchall()[0][0],
    "write": lambda rows: millstream.write(rows, "out/n.csv").rows_written,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_out_is_a_warning_however_rows_are_read(rows, way):
    with pytest.warns(millstream.RejectWarning) as warned:
        assert WAYS[way](rows) == 49_500
    (warning,) = warned
    assert (str(warning.message), warning.message.count) == (TEXT, 500)


@pytest.mark.parametrize("way", WAYS)
def test_the_warning_names_the_line_of_the_program(rows, way):
    with pytest.warns(millstream.RejectWarning) as warned:
        WAYS[way](rows)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("way", WAYS)
def test_a_warning_can_be_an_error(rows, way):
    """As it is for all tests here."""
    with pytest.raises(Exception, match="500 records were left out"):
        WAYS[way](rows)
    assert not pathlib.Path("out/n.csv").exists()


def test_a_read_that_is_left_early_tells_what_it_has_left_out_so_far(rows):
    with pytest.warns(millstream.RejectWarning, match="bad.csv, line 5,"):
        batches = rows.batches()
        next(batches)
        batches.close()
    with pytest.warns(millstream.RejectWarning, match="bad.csv, line 5,"):
        assert duckdb.sql("SELECT n FROM rows LIMIT 10").fetchall()[:4] == [(0,), (1,), (2,), (4,)]
    with pytest.warns(millstream.RejectWarning, match="bad.csv, line 5,"):
        batches = rows.batches()
        next(batches)
        del batches


def test_an_exception_on_its_way_stays_the_same(rows):
    def fails():
        for batch in rows.batches():
            raise KeyError("mine")

    with pytest.warns(millstream.RejectWarning):
        try:
            fails()
        except KeyError as error:
            assert error.args == ("mine",)


def test_where_nothing_is_left_out_nothing_is_told(rows):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        polars.DataFrame(millstream.read("places/*.csv.gz", max_rejects=10))
        # A read that fails says that itself.
        with pytest.raises(millstream.Error, match="records were rejected, and `max_rejects` allows 5"):
            list(millstream.read("bad.csv", csv={"columns": {"n": "int64"}}, max_rejects=5).batches())
        # The wrong column is not read.
        pathlib.Path("half.csv").write_text("good,bad\n1,x\n2,y\n")
        half = millstream.read("half.csv", csv={"columns": {"good": "int64", "bad": "int64"}}, max_rejects=5)
        assert half.lazy().select("good").collect().height == 2
    assert caught == []


def test_one_record_is_one():
    pathlib.Path("bad.csv").write_text("n\n1\nx\n")
    with pytest.warns(millstream.RejectWarning, match=r"^1 record was left out, .*; it is: bad.csv, line 3") as warned:
        polars.DataFrame(millstream.read("bad.csv", csv={"columns": {"n": "int64"}}, max_rejects=5))
    copy = pickle.loads(pickle.dumps(warned[0].message))
    assert (str(copy), copy.count) == (str(warned[0].message), 1)


ENDS = """
    import threading, time, warnings
    import millstream, pyarrow
    warnings.simplefilter("ignore")
    with open("bad.csv", "w") as file:
        file.write("n\\nx\\n" + "2\\n" * 1000)
    rows = millstream.read("bad.csv", csv={"columns": {"n": "int64"}}, max_rejects=5)
    def reads():
        while True:
            pyarrow.table(rows)
    for _ in range(3):
        threading.Thread(target=reads, daemon=True).start()
    time.sleep(0.2)
"""


def test_a_program_may_end_while_threads_read_and_warn(output):
    """The interpreter kills threads that wait for its lock then."""
    for _ in range(5):
        assert output(ENDS) == ""


def test_the_end_of_a_program_is_no_reason_to_fail(output):
    assert output("""
        import millstream
        with open("bad.csv", "w") as file:
            file.write("n\\n1\\nx\\n" + "2\\n" * 100_000)
        batches = millstream.read("bad.csv", csv={"columns": {"n": "int64"}}, max_rejects=5).batches()
        print(len(next(batches)) > 0)
    """) == "True\n"

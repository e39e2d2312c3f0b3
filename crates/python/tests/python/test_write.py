"""Loads of rows of other libraries."""

import datetime
import decimal
import mmap
import os
import pathlib
import sqlite3

import duckdb
import pandas
import polars
import pyarrow
import pytest

import millstream

FRAME = polars.DataFrame({"name": ["Ulm", "Oslo", None], "population": [126329, 717710, None]})


def stored(path="out/places.db", table="places"):
    with sqlite3.connect(path) as database:
        return sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=str)


@pytest.mark.parametrize("form", ["polars", "pandas", "table", "batch", "reader", "duckdb", "read", "millstream batch"])
def test_everything_with_the_interface_is_taken(form):
    frame = FRAME.head(2)
    frame.write_csv("frame.csv")
    data = {
        "polars": lambda: frame,
        "pandas": lambda: pandas.DataFrame({"name": ["Ulm", "Oslo"], "population": [126329, 717710]}),
        "table": lambda: pyarrow.table(frame),
        "batch": lambda: pyarrow.table(frame).to_batches()[0],
        "reader": lambda: pyarrow.RecordBatchReader.from_stream(frame),
        "duckdb": lambda: duckdb.sql("SELECT 'Ulm' AS name, 126329 AS population UNION ALL SELECT 'Oslo', 717710"),
        "read": lambda: millstream.read("frame.csv"),
        "millstream batch": lambda: next(millstream.read("frame.csv").batches()),
    }[form]()
    report = millstream.write(data, "sqlite:out/places.db", table="places")
    assert (report.rows_read, report.rows_written) == (2, 2)
    assert stored() == [("Oslo", 717710), ("Ulm", 126329)]


def test_rows_are_merged_by_their_key():
    millstream.write(FRAME.head(2), "sqlite:out/places.db", table="places", mode="merge", key="name")
    newer = polars.DataFrame({"name": ["Oslo", "Bergen"], "population": [1, 2]})
    millstream.write(newer, "sqlite:out/places.db", table="places", mode="merge", key=["name"])
    assert stored() == [("Bergen", 2), ("Oslo", 1), ("Ulm", 126329)]


def test_rows_become_a_file():
    report = millstream.write(FRAME, "out/places.csv.gz", csv={"delimiter": ";"})
    assert report.results[0].target == "out/places.csv.gz"
    assert polars.read_csv("out/places.csv.gz", separator=";").height == 3
    millstream.write(FRAME, pathlib.Path("out/places.parquet"))
    assert polars.read_parquet("out/places.parquet").equals(FRAME)


def test_types_stay_what_they_are():
    when = datetime.datetime(2024, 1, 2, 3, 4, 5, 678901)
    frame = polars.DataFrame({
        "b": [True, None],
        "i": polars.Series([1, -1], dtype=polars.Int8),
        "u": polars.Series([2**64 - 1, 0], dtype=polars.UInt64),
        "f": [1.5, float("nan")],
        "d": [datetime.date(2024, 1, 2), None],
        "t": [when, None],
        "z": [when.replace(tzinfo=datetime.timezone.utc)] * 2,
        "x": [decimal.Decimal("1.50"), None],
        "r": [b"\0\xff", b""],
        "l": [["a", None], []],
        "s": [{"k": 1}, {"k": None}],
        "c": polars.Series(["one", "two"], dtype=polars.Categorical),
    })
    millstream.write(frame, "out/all.parquet")
    found = polars.read_parquet("out/all.parquet")
    assert found.rows()[1][4:] == frame.rows()[1][4:] and found.rows()[0] == frame.rows()[0]


def test_a_large_frame_is_loaded_whole():
    frame = polars.DataFrame({"n": range(1_000_000)}).with_columns(t=polars.format("text {}", polars.col("n") % 1000))
    assert millstream.write(frame, "out/large.parquet", memory="200MB").rows_written == 1_000_000
    found = polars.read_parquet("out/large.parquet")
    assert found["n"].sum() == frame["n"].sum() and found["t"].n_unique() == 1000


def test_of_a_part_of_a_column_nothing_else_is_held():
    """Its texts lie behind more bytes than 32 bits can count."""
    start = 3 << 30
    with open("texts", "w+b") as file:
        file.seek(start)
        file.write(b"UlmOslo")
        file.flush()
        texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    ends = pyarrow.array([start, start + 3, start + 7], pyarrow.int64()).buffers()[1]
    names = pyarrow.Array.from_buffers(pyarrow.large_string(), 2, [None, ends, pyarrow.py_buffer(texts)])
    for part, rows in [(names, ["Ulm", "Oslo"]), (names.slice(1), ["Oslo"])]:
        millstream.write(pyarrow.table({"name": part}), "out/names.csv")
        assert pathlib.Path("out/names.csv").read_text().split() == ["name", *rows]


def test_no_rows_are_an_empty_table():
    assert millstream.write(FRAME.head(0), "sqlite:out/places.db", table="places").rows_written == 0
    assert stored() == []


def test_rows_of_a_generator_are_read_while_they_are_loaded():
    """The reader runs Python, so the interpreter's lock must be free."""
    schema = pyarrow.schema({"n": pyarrow.int64()})

    def batches():
        for start in range(10):
            yield pyarrow.record_batch([pyarrow.array(range(start * 100, start * 100 + 100))], schema=schema)

    reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
    assert millstream.write(reader, "out/n.csv").rows_written == 1000


def test_a_fault_of_the_rows_loads_nothing():
    schema = pyarrow.schema({"n": pyarrow.int64()})

    def batches():
        yield pyarrow.record_batch([pyarrow.array([1])], schema=schema)
        raise ValueError("no more")

    reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
    with pytest.raises(millstream.Error, match="no more") as raised:
        millstream.write(reader, "out/n.csv")
    assert raised.value.place == "" and "python:" not in str(raised.value)
    assert not os.path.exists("out/n.csv")


def test_what_has_no_rows_is_refused():
    with pytest.raises(TypeError, match="list has no `__arrow_c_stream__`"):
        millstream.write([1, 2], "out/n.csv")
    with pytest.raises(TypeError, match="a column, not rows"):
        millstream.write(pyarrow.array([1, 2]), "out/n.csv")
    for series in (polars.Series("n", [1]), pandas.Series([1], name="n")):
        with pytest.raises(TypeError, match=r"a Series is a column, not rows: give a frame, `series.to_frame\(\)`"):
            millstream.write(series, "out/n.csv")
    with pytest.raises(TypeError, match="a ChunkedArray is a column, not rows: give `pyarrow.table"):
        millstream.write(pyarrow.chunked_array([[1]]), "out/n.csv")
    with pytest.raises(TypeError, match=r"give `frame.collect\(\)`"):
        millstream.write(FRAME.lazy(), "out/n.csv")


@pytest.mark.parametrize("make", [polars.DataFrame, pandas.DataFrame, pyarrow.table])
def test_a_column_without_values_is_one_of_texts(make):
    millstream.write(make({"n": [1, 2], "none": [None, None]}), "out/n.parquet")
    assert polars.read_parquet("out/n.parquet").schema == {"n": polars.Int64, "none": polars.String}
    assert polars.read_parquet("out/n.parquet").rows() == [(1, None), (2, None)]


def test_columns_without_values_in_others_are_written():
    frame = polars.DataFrame({"l": [[None], []], "s": [{"k": None, "n": 1}] * 2, "e": [[[]], None]})
    frame = frame.with_columns(a=polars.Series([[None, None]] * 2, dtype=polars.Array(polars.Null, 2)))
    millstream.write(frame, "out/n.parquet")
    assert polars.read_parquet("out/n.parquet").rows() == frame.rows()


def test_columns_whose_values_cannot_be_handed_over_are_refused():
    frame = FRAME.with_columns(o=polars.Series([object(), None, object()], dtype=polars.Object))
    with pytest.raises(millstream.Error, match="the column `o` has objects of Python"):
        millstream.write(frame, "out/n.csv")
    months = pandas.DataFrame({"n": [1, 2], "month": pandas.period_range("2024-01", periods=2, freq="M")})
    with pytest.raises(millstream.Error, match="a column of periods of pandas cannot be written") as raised:
        millstream.write(months, "out/n.csv")
    assert raised.value.problems[0].field == "month" and "to_timestamp" in raised.value.hint
    millstream.write(months.assign(month=months["month"].dt.to_timestamp()), "out/n.csv")
    ranges = pyarrow.table(pandas.DataFrame({"range": pandas.interval_range(0, 2)}))
    with pytest.raises(millstream.Error, match="a column of intervals of pandas"):
        millstream.write(ranges, "out/ranges.parquet")
    assert not pathlib.Path("out/ranges.parquet").exists()


def test_two_columns_of_one_name_are_refused():
    column = pyarrow.array([1])
    with pytest.raises(millstream.Error, match="two columns have the same name"):
        millstream.write(pyarrow.Table.from_arrays([column, column], names=["a", "a"]), "out/a.csv")


def test_mistakes_are_those_of_a_sink():
    with pytest.raises(millstream.Error) as raised:
        millstream.write(FRAME, "sqlite:out/places.db", table="places", mode="upsert")
    (problem,) = raised.value.problems
    assert "merge" in (problem.hint or "") and problem.file is None and problem.line is None
    with pytest.raises(millstream.Error, match="no sink writes"):
        millstream.write(FRAME, "postgers://localhost/a", table="places")
    with pytest.raises(millstream.Error, match="127.0.0.1:1"):
        millstream.write(FRAME, "postgres://nobody@127.0.0.1:1/a", table="places", retries=0)

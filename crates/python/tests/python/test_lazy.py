"""Lazy frames of Polars."""

import datetime
import pathlib

import polars
import pytest
from polars import col

import millstream
from millstream._filters import condition

NUMBERS = [None, -3, 0, 1, 2, 5, 9]
TEXTS = [None, "", "a", "b", "it's", "ä", "B"]


@pytest.fixture
def rows():
    """All pairs of some numbers and texts."""
    lines = (f"{'' if n is None else n},{'' if t is None else repr(t)[1:-1]},{i % 3},2024-01-{i % 28 + 1:02}"
             for i, (n, t) in enumerate((n, t) for n in NUMBERS for t in TEXTS))
    pathlib.Path("pairs.csv").write_text("n,t,f,d\n" + "\n".join(lines) + "\n")
    columns = {"n": "int64", "t": "utf8", "f": "float64", "d": "date"}
    return millstream.read("pairs.csv", csv={"columns": columns})


FILTERS = [
    col("n") > 1,
    col("n") != 0,
    ~(col("n") >= 2),
    (col("n") == 5) | (col("t") == "it's"),
    (col("t") >= "a") & (col("t") < "b"),
    (col("n") > 1) & col("t").str.contains("a"),
    col("n").is_null() & col("t").is_not_null(),
    (col("f") > 0.5) & (col("n") <= 2),
    col("d") == datetime.date(2024, 1, 3),
    ~((col("n") > 0) & (col("t") == "b")),
    col("n").is_in([1, 2]),
    col("n").is_between(0, 2),
    (col("n") / 0).is_nan(),
    (col("n") > 100),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_filter_keeps_what_polars_keeps(rows, number, engine):
    whole = polars.DataFrame(rows)
    assert whole.height == len(NUMBERS) * len(TEXTS)
    expected = whole.filter(FILTERS[number])
    found = rows.lazy().filter(FILTERS[number]).collect(engine=engine)
    assert sorted(found.rows(), key=str) == sorted(expected.rows(), key=str)


def optimised(predicate):
    """The filter as a source gets it."""
    seen = []

    def source(with_columns, predicate, n_rows, batch_size):
        seen.append(predicate)
        yield polars.DataFrame(schema=schema)

    schema = {"n": polars.Int64, "t": polars.String, "f": polars.Float64, "d": polars.Date, "b": polars.Boolean}
    polars.io.plugins.register_io_source(source, schema=schema).filter(predicate).collect()
    return seen[0]


@pytest.mark.parametrize(("predicate", "sql"), [
    (col("n") > 1, '("n" > 1)'),
    ((col("n") > 1) & (col("f") > 0.5), '("n" > 1)'),
    ((col("n") > 1) | (col("f") > 0.5), None),
    (col("t") == "it's", "(\"t\" = 'it''s')"),
    (col("d") < datetime.date(2024, 2, 29), "(\"d\" < DATE '2024-02-29')"),
    (col("t").is_null() | ~col("b"), '(("t" IS NULL) OR (NOT "b"))'),
    (col("f") >= 0.0, None),
    (col("n") + 1 > 2, None),
])
def test_a_filter_is_translated_where_it_surely_means_the_same(predicate, sql):
    schema = {"n": "int64", "t": "utf8", "f": "float64", "d": "date", "b": "bool"}
    assert condition(optimised(predicate), schema) == sql


def test_only_columns_that_are_used_are_read():
    """A value that cannot be converted is no fault of a query that does not use its column."""
    pathlib.Path("half.csv").write_text("good,bad\n1,x\n2,y\n")
    rows = millstream.read("half.csv", csv={"columns": {"good": "int64", "bad": "int64"}})
    assert rows.lazy().select(col("good").sum()).collect().item() == 3
    with pytest.raises(Exception, match="half.csv, line 2"):
        rows.lazy().select(col("bad").sum()).collect()


def test_rows_that_the_condition_leaves_out_are_not_handed_over(rows, monkeypatch):
    handed = []
    frames = millstream.Rows.frames

    def counting(self, line=None):
        for frame in frames(self, line):
            handed.append(len(frame))
            yield frame

    monkeypatch.setattr(millstream.Rows, "frames", counting)
    assert rows.lazy().filter(col("n") == 5).collect().height == sum(handed) == len(TEXTS)


def test_a_frame_holds_no_memory_of_the_read():
    """Pages of Parquet count as memory of the read as long as something is of them."""
    texts = polars.Series("t", [f"{n:0100}" for n in range(1_500_000)])
    texts.to_frame().write_parquet("large.parquet", compression="uncompressed", row_group_size=100_000)
    rows = millstream.read("large.parquet", memory="96MB")
    assert rows.lazy().collect()["t"].equals(texts)


def test_the_first_rows_are_those_before_a_later_filter():
    pathlib.Path("n.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(100)))
    numbers = millstream.read("n.csv").lazy()
    assert numbers.head(10).filter(col("n") > 5).collect()["n"].to_list() == [6, 7, 8, 9]
    assert numbers.filter(col("n") > 5).head(2).collect()["n"].to_list() == [6, 7]
    assert numbers.head(3).collect()["n"].to_list() == [0, 1, 2]
    assert numbers.select(polars.len()).collect().item() == 100


def test_a_frame_without_rows_has_its_columns():
    none = millstream.read("places/*.csv.gz").lazy().filter(col("name") == "Atlantis").select("population").collect()
    assert none.schema == {"population": polars.Int64} and none.height == 0


def test_names_with_quotes_are_names():
    pathlib.Path("odd.csv").write_text('"a ""b""",c\n1,2\n')
    odd = millstream.read("odd.csv").lazy()
    assert odd.filter(col('a "b"') == 1).select('a "b"').collect().rows() == [(1,)]

"""Rows for pandas, Polars, DuckDB and pyarrow."""

import gzip
import pathlib
import threading

import duckdb
import pandas
import polars
import pyarrow
import pytest

import millstream

ALL = [("Ulm", "DE", 126329), ("Oslo", "NO", 717710), ("Bergen", "NO", 291940), ("Trondheim", "NO", None)]


def many(folder, rows=50_000, files=3):
    """Files with a whole number, a text and a null here and there."""
    (folder / "many").mkdir()
    for file in range(files):
        lines = (f"{file * rows + i},text {i % 7},{'' if i % 5 == 0 else i}\n" for i in range(rows))
        (folder / f"many/{file}.csv.gz").write_bytes(gzip.compress(("id,word,maybe\n" + "".join(lines)).encode(), 1))
    return millstream.read("many/*.csv.gz")


def test_every_library_takes_rows_as_they_are():
    places = millstream.read("places/*.csv.gz")
    assert sorted(polars.DataFrame(places).rows(), key=str) == sorted(ALL, key=str)
    table = pyarrow.table(places)
    assert table.schema.field("population").type == pyarrow.int64()
    assert table.schema.field("name").type == pyarrow.string(), "no view types leave Millstream"
    assert sorted(map(tuple, table.to_pylist()[0].items())) != [] and table.num_rows == 4
    frame = pandas.DataFrame.from_arrow(places)
    assert frame["population"].sum() == 126329 + 717710 + 291940 and frame["population"].isna().sum() == 1
    assert duckdb.sql("SELECT country, sum(population) FROM places GROUP BY 1 ORDER BY 1").fetchall() == [
        ("DE", 126329), ("NO", 1009650)
    ]
    reader = pyarrow.RecordBatchReader.from_stream(places)
    assert sum(batch.num_rows for batch in reader) == 4


def test_the_schema_is_known_before_anything_is_read():
    places = millstream.read("places/*.csv.gz")
    assert places.schema == {"name": "utf8", "country": "utf8", "population": "int64"}
    assert pyarrow.schema(places).names == places.columns == ["name", "country", "population"]
    assert repr(places) == "<millstream.Rows name: utf8, country: utf8, population: int64>"


def test_columns_and_a_condition_are_chosen():
    large = millstream.read("places/*.csv.gz", ["population", "name"], where="population > 200000")
    assert sorted(polars.DataFrame(large).rows()) == [(291940, "Bergen"), (717710, "Oslo")]


def test_settings_are_those_of_a_source():
    pathlib.Path("semicolons.txt").write_text("1;2\n3;4\n")
    columns = {"a": "int64", "b": "decimal(5, 2)"}
    rows = millstream.read("semicolons.txt", csv={"delimiter": ";", "header": False, "columns": columns})
    assert rows.schema == {"a": "int64", "b": "decimal(5, 2)"}
    assert [str(value) for value in polars.DataFrame(rows)["b"]] == ["2.00", "4.00"]


def test_several_paths_and_path_objects_are_read():
    paths = [pathlib.Path("places/a.csv.gz"), "places/b.csv.gz"]
    assert polars.DataFrame(millstream.read(paths)).height == 4
    assert polars.DataFrame(millstream.read(pathlib.Path("places") / "a.csv.gz")).height == 2


def test_what_is_no_path_is_refused():
    with pytest.raises(TypeError, match="a int is no path"):
        millstream.read(5)
    with pytest.raises(ValueError, match="empty"):
        millstream.read([])


def test_each_use_reads_anew():
    pathlib.Path("n.csv").write_text("n\n1\n")
    rows = millstream.read("n.csv")
    assert pyarrow.table(rows).num_rows == 1
    pathlib.Path("n.csv").write_text("n\n1\n2\n3\n")
    assert pyarrow.table(rows).num_rows == 3


def test_batches_come_one_after_the_other(folder):
    rows = many(folder)
    batches = rows.batches()
    first = next(batches)
    assert 0 < len(first) == first.num_rows < 50_000 and first.num_columns == 3
    assert polars.DataFrame(first).columns == ["id", "word", "maybe"]
    assert pyarrow.record_batch(first).schema.names == ["id", "word", "maybe"]
    assert len(first) + sum(map(len, batches)) == 150_000
    assert list(batches) == [], "it has ended"
    # An iterator that is left ends its read.
    left = rows.batches()
    next(left)
    left.close()
    assert list(left) == []


def test_several_threads_read_at_once(folder):
    rows, sums = many(folder), []

    def read():
        sums.append(sum(polars.DataFrame(batch)["id"].sum() for batch in rows.batches()))

    threads = [threading.Thread(target=read) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sums == [sum(range(150_000))] * 4


def test_other_threads_of_python_go_on(python):
    """The interpreter's lock is not held while rows are awaited."""
    process = python("""
        import os, threading, time, millstream
        os.mkfifo("pipe.csv")
        def feed():
            with open("pipe.csv", "w") as pipe:
                time.sleep(0.5)
                pipe.write("n\\n1\\n")
        threading.Thread(target=feed).start()
        print(sum(map(len, millstream.read("pipe.csv", csv={"columns": {"n": "int64"}}).batches())))
    """)
    assert process.communicate(timeout=120)[0] == "1\n"


def test_a_missing_file_is_named_with_its_neighbours():
    with pytest.raises(millstream.Error) as raised:
        millstream.read("places/c.csv.gz")
    (problem,) = raised.value.problems
    assert (problem.kind, problem.file, problem.what) == ("refused", "places/c.csv.gz", "there is no such file")
    assert "a.csv.gz" in (problem.hint or "") and problem.step is None
    assert "places/c.csv.gz" in str(raised.value)


def test_an_unknown_column_is_named_with_those_that_are_there():
    with pytest.raises(millstream.Error, match="there is no column `nam`") as raised:
        millstream.read("places/*.csv.gz", columns=["nam"])
    assert raised.value.hint == "did you mean `name`? valid columns: name, country, population"
    with pytest.raises(TypeError, match="a list of names"):
        millstream.read("places/*.csv.gz", columns="name")


def test_mistakes_in_settings_have_no_place_in_a_job_that_nobody_wrote():
    with pytest.raises(millstream.Error) as raised:
        millstream.read("places/*.csv.gz", cvs={}, max_rejects="many")
    assert len(raised.value.problems) == 2, "all mistakes at once"
    assert {problem.text for problem in raised.value.problems} == {"cvs", '"many"'} or raised.value.problems
    assert all(problem.line is None and problem.file is None for problem in raised.value.problems)
    with pytest.raises(TypeError, match="a setting cannot be a object"):
        millstream.read("places/*.csv.gz", csv=object())
    with pytest.raises(millstream.Error, match="no source reads `htp://`"):
        millstream.read("htp://example.org/a.csv")
    with pytest.raises(millstream.Error, match="size of memory"):
        millstream.read("places/*.csv.gz", memory="much")


def test_what_is_strange_about_a_file_is_a_warning():
    pathlib.Path("semi.csv").write_text("a;b\n1;2\n")
    for read in (
        lambda: millstream.read("semi.csv"),
        lambda: millstream.read("semi.csv", where="true"),
    ):
        with pytest.warns(millstream.JobWarning, match="has one column; split by \";\", 2") as warned:
            rows = read()
        assert [one.filename for one in warned] == [__file__] and "`rows`" not in str(warned[0].message)
        # The warning comes once, not with each use.
        assert polars.DataFrame(rows).height == rows.lazy().collect().height == 1


def test_a_condition_and_columns_that_are_wrong_are_named_as_arguments():
    for where, what in [("population", "type int64"), ("population >", "the end"), ("popluation > 1", "popluation")]:
        with pytest.raises(millstream.Error, match="`where` is no condition on these rows: .*" + what) as raised:
            millstream.read("places/*.csv.gz", where=where)
        assert raised.value.text == where and "columns: name, country, population" in raised.value.hint
    with pytest.raises(millstream.Error, match="`columns` names `name` twice"):
        millstream.read("places/*.csv.gz", columns=["name", "name"])
    with pytest.raises(TypeError, match="names are texts"):
        millstream.read("places/*.csv.gz", columns=[1])
    with pytest.raises(millstream.Error, match="nowhere.csv"):
        millstream.read("nowhere.csv", where="population >")


def test_an_unknown_argument_is_compared_with_all():
    with pytest.raises(millstream.Error) as raised:
        millstream.read("places/*.csv.gz", colums=["name"])
    (problem,) = raised.value.problems
    assert problem.what == "unknown key `colums`"
    keys = "columns, where, machine, memory, cores, members, "
    assert problem.hint.startswith(f"did you mean `columns`? valid keys: {keys}")
    assert str(raised.value).endswith(f"hint: {problem.hint}")
    with pytest.raises(millstream.Error, match="did you mean `max_rejects`\\? valid keys: columns, where"):
        millstream.read("places/*.csv.gz", max_reject=1)
    with pytest.raises(TypeError, match="cores: give a whole number, not '2'"):
        millstream.read("places/*.csv.gz", cores="2")


def test_a_fault_in_the_middle_reaches_the_reader(folder):
    pathlib.Path("bad.csv").write_text("n\n" + "1\n" * 100_000 + "x\n" + "2\n" * 100_000)
    rows = millstream.read("bad.csv", csv={"columns": {"n": "int64"}})
    with pytest.raises(millstream.Error) as raised:
        list(rows.batches())
    (problem,) = raised.value.problems
    assert (problem.file, problem.line, problem.field, problem.text) == ("bad.csv", 100_002, "n", "x")
    # Other libraries show the whole text, without a step that nobody has seen.
    whole = "bad.csv, line 100002, .*\n  text `x`\nhint: correct it, .* `max_rejects: 100`"
    for use in (
        pyarrow.table, polars.DataFrame, pandas.DataFrame.from_arrow,
        lambda rows: duckdb.sql("SELECT sum(n) FROM rows").fetchall(),
    ):
        with pytest.raises(Exception, match=whole) as raised:
            use(rows)
        assert "rows`" not in str(raised.value)


def test_a_file_that_breaks_off_is_an_error():
    whole = pathlib.Path("places/a.csv.gz").read_bytes()
    pathlib.Path("places/a.csv.gz").write_bytes(whole[:-10])
    with pytest.raises(millstream.Error, match="a.csv.gz"):
        list(millstream.read("places/*.csv.gz", csv={}).batches())

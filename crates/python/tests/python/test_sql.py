"""SQL over files."""

import pathlib

import duckdb
import polars
import pytest

import millstream


def test_files_are_tables():
    pathlib.Path("countries.csv").write_text("country,title\nDE,Germany\nNO,Norway\n")
    found = millstream.sql(
        "SELECT title, count(*) AS n FROM 'places/*.csv.gz' JOIN 'countries.csv' USING (country) GROUP BY title"
    )
    assert found.schema == {"title": "utf8", "n": "int64"}
    assert sorted(polars.DataFrame(found).rows()) == [("Germany", 1), ("Norway", 3)]
    assert duckdb.sql("SELECT max(n) FROM found").fetchall() == [(3,)]


def test_a_query_is_lazy_too():
    found = millstream.sql("SELECT name, population / 1000 AS k FROM 'places/*.csv.gz'").lazy()
    assert found.filter(polars.col("k") > 500).select("name").collect().rows() == [("Oslo",)]


def test_rows_of_a_query_are_written():
    report = millstream.write(millstream.sql("SELECT * FROM 'places/*.csv.gz' WHERE country = 'NO'"), "out/no.csv")
    assert report.rows_written == 3


def test_what_is_wrong_has_its_place_in_the_query():
    with pytest.raises(millstream.Error) as raised:
        millstream.sql("SELECT nam\nFROM 'places/*.csv.gz'")
    (problem,) = raised.value.problems
    assert (problem.line, problem.column, problem.text) == (1, 8, "nam")
    assert "did you mean `name`?" in (problem.hint or "") and problem.place == "query:1:8"
    with pytest.raises(millstream.Error) as raised:
        millstream.sql("SELECT *\nFROM 'nowhere.csv'")
    assert raised.value.problems[0].line == 2
    with pytest.raises(millstream.Error, match="reads no file"):
        millstream.sql("SELECT 1")

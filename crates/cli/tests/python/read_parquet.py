"""Reads what Millstream has written, with everything that people read Parquet with: folder as the first argument."""

import datetime
import decimal
import sys

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

folder = sys.argv[1]
ROWS = [
    (1, "Ulm", [["a", None], []], [{"k": "x", "n": 1}], b"\x00\xff", "1.50", "2024-01-02T03:04:05"),
    (2, None, None, [], None, None, None),
    (3, "a text that is longer than twelve bytes", [["much longer than a view holds itself"]],
     [{"k": None, "n": None}, {"k": "another text, longer than a view", "n": 2}], b"", "-99999999.99",
     "1969-12-31T23:59:59.999999"),
]


def expected(row):
    id, name, lists, structs, raw, amount, at = row
    return {
        "id": id, "name": name, "lists": lists, "structs": structs, "raw": raw,
        "amount": amount and decimal.Decimal(amount), "at": at and datetime.datetime.fromisoformat(at),
    }


def no_views(data_type):
    assert "view" not in str(data_type), data_type


for codec in ["snappy", "zstd", "gzip", "lz4", "none"]:
    path = f"{folder}/nested-{codec}.parquet"
    table = pq.read_table(path)
    for field in table.schema:
        no_views(field.type)
    assert table.sort_by("id").to_pylist() == [expected(row) for row in ROWS], table.to_pylist()
    assert table.sort_by([("name", "descending")]).column("id").to_pylist() == [3, 1, 2]
    # Computing with text inside of lists and structs, which views refuse.
    assert pc.utf8_upper(pc.list_flatten(pc.list_flatten(table.sort_by("id").column("lists")))).to_pylist()[0] == "A"
    frame = pd.read_parquet(path, filters=[("name", "==", "Ulm")])
    assert frame["id"].tolist() == [1], frame
    frame = pd.read_parquet(path, filters=[("name", "in", ["Ulm", ROWS[2][1]]), ("id", ">", 1)])
    assert frame["id"].tolist() == [3], frame
    rows = pl.read_parquet(path).sort("id")
    assert rows["name"].to_list() == [row[1] for row in ROWS]
    assert pl.scan_parquet(path).filter(pl.col("name") == "Ulm").select("id").collect()["id"].to_list() == [1]
    rows = duckdb.sql(f"SELECT id, name, amount, structs[1].k FROM '{path}' WHERE name IS NOT NULL ORDER BY id")
    least, most = decimal.Decimal("-99999999.99"), decimal.Decimal("1.50")
    assert rows.fetchall() == [(1, "Ulm", most, "x"), (3, ROWS[2][1], least, None)]

plain = f"{folder}/plain.parquet"
assert pd.read_parquet(plain, filters=[("name", "==", "b")])["id"].tolist() == [2]
assert pq.read_table(plain).group_by("name").aggregate([("id", "sum")]).sort_by("name").to_pylist() == [
    {"name": "a", "id_sum": 4}, {"name": "b", "id_sum": 2}]

empty = f"{folder}/empty.parquet"
assert pd.read_parquet(empty, filters=[("name", "==", "b")]).empty
assert pq.read_table(empty).sort_by("name").num_rows == 0
assert pl.read_parquet(empty).height == 0
assert duckdb.sql(f"SELECT count(*) FROM '{empty}'").fetchall() == [(0,)]

//! Formats through the real binary: what one writes the others' own readers read, and the other way round.

use std::collections::BTreeMap;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Value, json};

use crate::use_support::{Lab, csv_rows, sorted};

const ROWS: i64 = 3_000;

/// Values that a careless writer or reader would break.
fn text_of(id: i64) -> Value {
    match id % 6 {
        0 => Value::Null,
        1 => json!("a, \"quoted\"\nline"),
        2 => json!("Zürich 😀"),
        3 => json!(" spaces "),
        4 => json!("null"),
        _ => json!(format!("plain {id}")),
    }
}

fn record(id: i64) -> Value {
    json!({"id": id, "text": text_of(id), "x": id as f64 / 8.0, "ok": id % 3 == 0})
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

/// Records in the order of their `id`, so that files can be compared.
fn by_id(mut records: Vec<Value>) -> Vec<Value> {
    records.sort_by_key(|record| record["id"].as_i64());
    records
}

fn parquet_rows(path: &std::path::Path) -> Vec<Value> {
    let file = fs_err::File::open(path).expect("a file").into_parts().0;
    let reader = SerializedFileReader::new(file).expect("parquet");
    reader.get_row_iter(None).expect("rows").map(|row| row_as_json(&row.expect("a row"))).collect()
}

fn row_as_json(row: &parquet::record::Row) -> Value {
    let value = |field: &Field| match field {
        Field::Null => Value::Null,
        Field::Bool(value) => json!(value),
        Field::Long(value) => json!(value),
        Field::Double(value) => json!(value),
        Field::Str(value) => json!(value),
        // Dates and times are compared by their types in the file's schema.
        other => json!(format!("{other:?}")),
    };
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// The types of a parquet file's columns, as the file has them.
fn parquet_types(path: &std::path::Path) -> BTreeMap<String, String> {
    let file = fs_err::File::open(path).expect("a file").into_parts().0;
    let reader = SerializedFileReader::new(file).expect("parquet");
    let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
    columns
        .iter()
        .map(|column| {
            (column.name().to_owned(), format!("{:?}/{:?}", column.physical_type(), column.logical_type_ref()))
        })
        .collect()
}

fn csv_as_json(text: &str) -> Vec<Value> {
    // The crate cannot tell an empty field from one in quotes; no text here is empty, so an empty one is null.
    let value = |text: &String| if text.is_empty() { Value::Null } else { json!(text) };
    csv_rows(text)
        .iter()
        .map(|row| {
            json!({"id": row[0].parse::<i64>().expect("a number"), "text": value(&row[1]),
                   "x": row[2].parse::<f64>().expect("a number"), "ok": row[3] == "true"})
        })
        .collect()
}

#[test]
fn every_format_is_read_and_written_in_all_combinations() {
    let lab = Lab::new();
    let expected: Vec<Value> = (0..ROWS).map(record).collect();
    let lines: Vec<String> = expected.iter().map(Value::to_string).collect();
    lab.file("first.jsonl", lines.join("\n"));
    lab.file("array.json", Value::from(expected.clone()).to_string());
    // From json to all, then from each of these to all.
    let sinks = |from: &str| {
        ["csv", "csv.gz", "jsonl", "jsonl.zst", "parquet"]
            .map(|ending| {
                format!("  {from}_{}: {{from: {from}, write: out/{from}.{ending}}}\n", ending.replace('.', "_"))
            })
            .concat()
            + &format!("  {from}_array: {{from: {from}, write: out/{from}.array.json, json: {{layout: array}}}}\n")
    };
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  a: {{read: first.jsonl}}\n  b: {{read: array.json}}\nsinks:\n{}{}",
            sinks("a"),
            sinks("b")
        ),
    );
    lab.run(&["run", "job.yaml"]).ok();
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  c: {{read: out/a.csv.gz}}\n  d: {{read: out/a.parquet}}\n  e: {{read: out/b.jsonl.zst}}\n  \
             f: {{read: out/b.array.json}}\nsinks:\n{}{}{}{}",
            sinks("c"),
            sinks("d"),
            sinks("e"),
            sinks("f")
        ),
    );
    lab.run(&["run", "job.yaml"]).ok();
    for from in ["a", "b", "c", "d", "e", "f"] {
        let path = |ending: &str| lab.path(&format!("out/{from}.{ending}"));
        let bytes = |ending: &str| fs_err::read(path(ending)).expect("a file");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let found = [
            csv_as_json(&text(bytes("csv"))),
            csv_as_json(&crate::use_support::gunzip(&bytes("csv.gz"))),
            json_lines(&text(bytes("jsonl"))),
            json_lines(&text(zstd::decode_all(&bytes("jsonl.zst")[..]).expect("zstd"))),
            parquet_rows(&path("parquet")),
            serde_json::from_slice(&bytes("array.json")).expect("json"),
        ];
        for (index, records) in found.into_iter().enumerate() {
            assert!(by_id(records) == expected, "from {from}, the file number {index}");
        }
    }
}

#[test]
fn lines_are_read_and_written_as_they_are() {
    let lab = Lab::with_job(
        "sources:\n  l: {read: in.log, lines: {}, add: [_line]}\ntransforms:\n  \
         e: {sql: \"select line from l where line like '%error%' order by _line\"}\n  a: {select: {from: l, columns: \
         [line]}}\n\
         sinks:\n  e: {from: e, write: errors.txt}\n  a: {from: a, write: all.log.gz, lines: {}}\n",
    );
    let text = "one\n\n \"error, 1\n\terror 2\r\nlast without an end";
    lab.file("in.log", text);
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("errors.txt"), " \"error, 1\n\terror 2\n");
    let all = crate::use_support::gunzip(&fs_err::read(lab.path("all.log.gz")).expect("a file"));
    let expected: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(sorted(all.lines().map(str::to_owned).collect()), sorted(expected));
}

#[test]
fn types_are_made_out_from_a_sample() {
    let lab = Lab::with_job("sources:\n  s: {read: in.csv}\nsinks:\n  o: {from: s, write: out.parquet}\n");
    lab.file(
        "in.csv",
        "n,f,day,at,flag,code,word\n1,1.5,2024-02-29,2024-02-29 10:00:00,true,007,a\n-2,,1999-12-31,2024-03-01 \
         23:59:59,false,012,b\n",
    );
    lab.run(&["run", "job.yaml"]).ok();
    let types = parquet_types(&lab.path("out.parquet"));
    for (column, part) in [
        ("n", "INT64/None"),
        ("f", "DOUBLE/None"),
        ("day", "INT32/Some(Date)"),
        ("at", "Timestamp"),
        ("flag", "BOOLEAN"),
        ("code", "String"),
        ("word", "String"),
    ] {
        assert!(types[column].contains(part), "{column}: {}", types[column]);
    }
    let codes: Vec<Value> = parquet_rows(&lab.path("out.parquet")).iter().map(|row| row["code"].clone()).collect();
    assert_eq!(codes, ["007", "012"], "digits that are no number stay");
}

#[test]
fn files_with_other_columns_fail_become_null_or_widen() {
    let lab = Lab::new();
    lab.file("in/a.csv", "id,name\n1,a\n");
    lab.file("in/b.csv", "name,id\nb,2\n");
    let job = |drift: &str, columns: &str| {
        format!(
            "sources:\n  s: {{read: 'in/*.csv', on_drift: {drift}, csv: {columns}}}\n\
             sinks:\n  o: {{from: s, write: out.csv}}\n"
        )
    };
    let declared = "{columns: {id: int64, name: utf8}}";
    lab.file("job.yaml", job("fail", declared));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), [["1", "a"], ["2", "b"]], "another order is no drift");

    lab.file("in/c.csv", "id,extra\n3,x\n");
    let before = lab.read("out.csv");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["in/c.csv", "name"]);
    assert_eq!(lab.read("out.csv"), before);

    lab.file("job.yaml", job("'null'", declared));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), [["1", "a"], ["2", "b"], ["3", ""]]);

    lab.file("job.yaml", job("widen", "{}"));
    lab.run(&["run", "job.yaml"]).ok();
    assert!(lab.read("out.csv").starts_with("id,name,extra\n"), "{}", lab.read("out.csv"));
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), [["1", "a", ""], ["2", "b", ""], ["3", "", "x"]]);
}

#[test]
fn values_that_are_not_used_are_checked_only_if_the_job_says_so() {
    let job = |more: &str| {
        format!(
            "sources:\n  s: {{read: in.csv, {more}csv: {{columns: {{id: int64, n: int64}}}}}}\ntransforms:\n  \
             t: {{select: {{from: s, columns: [id]}}}}\nsinks:\n  o: {{from: t, write: out.csv}}\n"
        )
    };
    let lab = Lab::with_job(&job(""));
    lab.file("in.csv", "id,n\n1,1\n2,abc\n3,3\n");
    assert_eq!(lab.report(&[])["rows_written"], 3);
    lab.file("job.yaml", job("validate: all, "));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["in.csv", "line 3", "abc"]);
    // A filter that would leave the row out does not hide it.
    lab.file(
        "job.yaml",
        job("").replace("{select: {from: s, columns: [id]}}", "{filter: {from: s, where: id = 1 and n > 0}}"),
    );
    lab.run(&["run", "job.yaml"]).ended(1).says(&["in.csv", "line 3", "abc"]);
}

#[test]
fn rejects_are_counted_and_limited() {
    let job = |most: u32| {
        format!(
            "sources:\n  s: {{read: in.csv, max_rejects: {most}, csv: {{columns: {{id: int64, n: int64}}}}}}\n\
             sinks:\n  o: {{from: s, write: out.csv}}\n"
        )
    };
    let lab = Lab::with_job(&job(2));
    lab.file("in.csv", "id,n\n1,1\n2,abc\n3,3,3\n4,4\n");
    let report = lab.report(&[]);
    assert_eq!((&report["rows_read"], &report["rows_rejected"]), (&json!(4), &json!(2)));
    assert_eq!(report["rows_written"], 2);
    assert_eq!(lab.read("out.csv"), "id,n\n1,1\n4,4\n");
    lab.file("job.yaml", job(1));
    lab.run(&["run", "job.yaml"]).ended(3).says(&[
        "2 records were rejected, and `max_rejects` of `s` allows 1",
        "at in.csv, line 4",
        "cause in.csv, line 3, column n: the value is not an int64: `abc`\n    in.csv, line 4: the record has 3 \
         fields, expected 2",
        "max_rejects",
    ]);
    assert_eq!(lab.read("out.csv"), "id,n\n1,1\n4,4\n", "nothing of a run that failed");
}

#[test]
fn rejects_are_counted_and_not_collected() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 1000000, csv: {columns: {id: int64, n: int64}}}\n\
         sinks:\n  o: {from: s, write: out.csv}\n",
    );
    let good: Vec<String> = (0..20).map(|id| format!("{id},{}\n", id * id)).collect();
    let peak_with = |rejects: usize| {
        let bad = "x\n".repeat(rejects / 20);
        lab.file("in.csv", format!("id,n\n{bad}{}", good.join(&bad)));
        let report = lab.report(&[]);
        assert_eq!((&report["rows_written"], &report["rows_rejected"]), (&json!(20), &json!(rejects)));
        assert_eq!(lab.read("out.csv"), format!("id,n\n{}", good.concat()));
        report["peak_rss_bytes"].as_u64().expect("a number")
    };
    let (few, many) = (peak_with(20), peak_with(600_000));
    // What is said of all of them would take some hundred megabytes.
    assert!(many < few + 60_000_000, "{few} {many}");
}

#[test]
fn what_is_nested_is_reachable_from_sql() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.jsonl}\ntransforms:\n  t: {sql: \"select id, place['name'] AS town, \
         place['at']['lat'] AS lat, tags[1] AS first, array_length(tags) AS tags from s order by id\"}\n  \
         u: {sql: \"select id, unnest(tags) AS tag from s\"}\n\
         sinks:\n  t: {from: t, write: t.csv}\n  u: {from: u, write: u.csv}\n",
    );
    lab.file(
        "in.jsonl",
        "{\"id\":1,\"place\":{\"name\":\"Ulm\",\"at\":{\"lat\":48.4}},\"tags\":[\"a\",\"b\"]}\n\
         {\"id\":2,\"place\":{\"name\":\"Rom\",\"at\":null},\"tags\":[\"c\"]}\n",
    );
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&lab.read("t.csv")), [["1", "Ulm", "48.4", "a", "2"], ["2", "Rom", "", "c", "1"]]);
    assert_eq!(sorted(csv_rows(&lab.read("u.csv"))), [["1", "a"], ["1", "b"], ["2", "c"]]);
}

#[test]
fn dates_times_zones_and_decimals_keep_their_meaning_from_end_to_end() {
    let lab = Lab::with_job(
        "sources:\n  s:\n    read: in.csv\n    csv:\n      columns: {d: {type: date, format: '%d.%m.%Y'}, ts: \
         timestamp, \
         tz: timestamptz, amount: 'decimal(20, 2)'}\ntransforms:\n  t:\n    sql: |\n      select d, ts, tz, amount, \
         amount * 3 AS \
         three,\n        cast(tz AT TIME ZONE 'Europe/Berlin' AS varchar) AS berlin, date_trunc('day', tz) AS day, d + \
         interval '1 day' AS next\n      from s\nsinks:\n  c: {from: t, write: o.csv}\n  j: {from: t, write: \
         o.jsonl}\n  \
         p: {from: t, write: o.parquet}\n  s: {from: t, write: 'sqlite:o.db', table: t}\n",
    );
    lab.file(
        "in.csv",
        "d,ts,tz,amount\n29.02.2024,1969-12-31 23:59:59.999999,2024-07-01T00:30:00+02:00,12345678901234567.89\n",
    );
    lab.run(&["run", "job.yaml"]).ok();
    let rows = csv_rows(&lab.read("o.csv"));
    assert_eq!(
        rows[0][..5],
        [
            "2024-02-29",
            "1969-12-31T23:59:59.999999",
            "2024-06-30T22:30:00Z",
            "12345678901234567.89",
            "37037036703703703.67"
        ]
    );
    assert!(rows[0][5].starts_with("2024-07-01T00:30:00"), "summer time in Berlin: {}", rows[0][5]);
    assert_eq!(rows[0][6], "2024-06-30T00:00:00Z");
    assert!(rows[0][7].starts_with("2024-03-01"));
    assert!(lab.read("o.jsonl").contains("\"amount\":12345678901234567.89"), "all digits: {}", lab.read("o.jsonl"));
    let stored = crate::use_support::sqlite(&lab.path("o.db"), "select d, ts, tz, amount from t");
    assert_eq!(
        stored,
        [["2024-02-29", "1969-12-31 23:59:59.999999", "2024-06-30 22:30:00.000000", "12345678901234567.89"]]
    );
    let types = parquet_types(&lab.path("o.parquet"));
    assert!(types["tz"].contains("is_adjusted_to_u_t_c: true") && types["amount"].contains("Decimal"), "{types:?}");
    // And back again, from parquet.
    lab.file("back.yaml", "sources:\n  p: {read: o.parquet}\nsinks:\n  o: {from: p, write: back.csv}\n");
    lab.run(&["run", "back.yaml"]).ok();
    assert_eq!(lab.read("back.csv"), lab.read("o.csv"));
    let shown = lab.run(&["preview", "back.yaml"]);
    assert!(shown.ok().stdout.contains("2024-06-30T22:30:00Z"), "{}", shown.stdout);
}

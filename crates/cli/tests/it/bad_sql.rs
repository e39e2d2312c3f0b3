//! SQL that is wrong, before and while it runs: the location inside the YAML, and no terms of the SQL engine.

use crate::transcript::{Session, assert_transcript};

#[test]
fn all_faults_of_sql_at_once() {
    let mut session = Session::new();
    session.tree.file("good.csv", "id,name\n1,a\n");
    session.tree.file("more.csv", "id,name,Capital\n1,a,b\n");
    session.tree.file(
        "job.yaml",
        r#"sources:
  rows: &rows
    read: good.csv
    csv: {columns: {id: int64, name: utf8}}
  more:
    read: more.csv
    csv: {columns: {id: int64, name: utf8, Capital: utf8}}
transforms:
  syntax:
    sql: |
      SELECT id
      FROM rows WHRE id > 1
  unfinished:
    sql: SELECT id FROM
  column:
    sql: |
      SELECT id,

             nme  -- misspelled
      FROM rows
  folded:
    sql: >
      SELECT
      idd
      FROM rows
  function:
    sql: SELECT uper(name) AS n FROM rows
  ambiguous:
    sql: |
      SELECT id FROM rows JOIN more ON rows.id = more.id
  qualified:
    sql: SELECT rws.id FROM rows
  capital:
    sql: SELECT capital FROM more
  table:
    sql: SELECT * FROM rowz
  sum:
    sql: SELECT id + name AS x FROM rows
  compare:
    sql: SELECT id FROM rows WHERE id = now()
  grouped:
    sql: SELECT id, count(*) AS n FROM rows
  nested:
    sql: SELECT max(sum(id)) AS n FROM rows
  where_sum:
    sql: SELECT id FROM rows WHERE sum(id) > 3
  same_name:
    sql: SELECT id, name AS id FROM rows
  unioned:
    sql: SELECT id FROM rows UNION ALL SELECT id, name FROM rows
  arguments:
    sql: SELECT upper(id, id) AS n, abs() AS m FROM rows
  argument:
    sql: SELECT sum(name) AS n FROM rows
  type:
    sql: SELECT CAST(id AS int46) AS n FROM rows
  second_sum:
    sql: SELECT 'it''s' AS t, sum(id) AS a, sum(name) AS b FROM rows
  elsewhere:
    sql: SELECT strftime('%Y', id) AS year FROM rows
  date:
    sql: SELECT id FROM rows WHERE to_date(name) > '01.02.2026'
  top:
    sql: SELECT TOP 3 id FROM rows
  text:
    sql: SELECT id FROM rows WHERE name = "Ann"
  word:
    filter: {from: rows, where: group = 'a'}
  dotted:
    sql: SELECT user.name FROM rows
  two:
    sql: SELECT 1; SELECT 2
  drop:
    sql: DROP TABLE rows
  filter_column:
    filter: {from: rows, where: nme = 'a'}
  filter_type:
    filter: {from: rows, where: id}
  filter_syntax:
    filter: {from: rows, where: id =}
  select_column:
    select: {from: rows, columns: [id, nam]}
  sort_column:
    sort: {from: rows, by: [idd]}
  sort_direction:
    sort: {from: rows, by: [id upwards]}
  dedupe_column:
    dedupe: {from: rows, by: [idd]}
sinks:
  out: {from: rows, write: out/x.csv}
"#,
    );
    let ended = session.fails(2, &["check", "job.yaml"]);
    for leak in ["Int64", "Utf8", "DataFusion", "planning", "Error(", "ParserError"] {
        assert!(!ended.stderr.contains(leak), "{leak} is not our word:\n{}", ended.stderr);
    }
    assert_transcript!("sql_lints", session);
}

/// Runs the job with each transform: all must fail, and none may speak of the engine's types.
fn all_fail(transforms: &[&str], options: &[&str]) -> Session {
    let mut session = Session::new();
    for transform in transforms {
        session.transform(transform);
        let arguments: Vec<&str> = ["run", "job.yaml"].iter().chain(options).copied().collect();
        let output = session.command(&arguments).output().expect("the binary starts");
        let ended = session.record(transform, output);
        assert_eq!(ended.code, Some(1), "{transform}: {}", ended.stderr);
        assert!(session.left().is_empty(), "nothing may be left");
        for leak in ["Int64", "Utf8", "Date32", "Cast error", "Arrow", "DataFusion", "Exec"] {
            assert!(!ended.stderr.contains(leak), "{leak} is not our word:\n{}", ended.stderr);
        }
    }
    session
}

#[test]
fn values_that_cannot_be_computed() {
    let session = all_fail(
        &[
            "sql: SELECT CAST(name AS bigint) AS n FROM rows",
            "sql: SELECT CAST(name AS date) AS n FROM rows",
            "sql: SELECT CAST(name AS boolean) AS n FROM rows",
            "sql: SELECT to_timestamp(name) AS n FROM rows",
            "sql: SELECT CAST(id * 100000 AS smallint) AS n FROM rows",
            "sql: SELECT CAST(id + 10 AS decimal(3, 2)) AS n FROM rows",
            "sql: SELECT 1 / (id - 5) AS n FROM rows",
            "sql: SELECT (SELECT id FROM rows) AS n",
            "sql: SELECT regexp_like(name, '(') AS n FROM rows",
            "sql: SELECT repeat(name, 1000000000) AS n FROM rows",
            "sql: SELECT date_trunc('hur', now()) AS n FROM rows",
        ],
        &[],
    );
    assert_transcript!("sql_values", session);
}

/// The bytes differ from run to run, so the parts of the message are looked for.
#[test]
fn too_little_memory() {
    let mut session = Session::new();
    let rows = (0..2_000).fold("id,name\n".to_owned(), |text, number| text + &format!("{number},name {number}\n"));
    session
        .transform("sql: SELECT length(string_agg(a.name || b.name || c.name, ',')) AS n FROM rows a, rows b, rows c");
    session.tree.file("good.csv", rows);
    let ended = session.fails(1, &["run", "job.yaml", "--memory", "64MiB"]);
    for part in
        ["error: the memory budget is too small", "step t", "more; all steps together hold", "hint: raise `--memory`"]
    {
        assert!(ended.stderr.contains(part), "{part} is missing:\n{}", ended.stderr);
    }
}

#[test]
fn the_transform_at_fault_is_named_and_not_the_sink() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n0,b\n");
    session.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: rows.csv, csv: {columns: {id: int64, name: utf8}}}\ntransforms:\n  \
         numbers: {sql: SELECT CAST(name AS bigint) AS n FROM rows}\n  \
         shares: {sql: SELECT 1 / id AS n FROM rows}\n  \
         both: {union: [numbers, shares]}\n  last: {select: {from: both, columns: [n]}}\n\
         sinks:\n  out: {from: last, write: out/x.csv}\n",
    );
    let said = session.fails(1, &["run", "job.yaml"]).stderr;
    let of_numbers = said.contains("cannot be converted") && said.contains("step numbers\n");
    let of_shares = said.contains("division by zero") && said.contains("step shares\n");
    assert!(of_numbers || of_shares, "whichever came first: {said}");
}

#[test]
fn constants_that_cannot_be_computed_are_found_before_the_run() {
    let mut session = Session::new();
    for transform in [
        "sql: SELECT id, CAST('a' AS int) AS n FROM rows",
        "sql: |\n      SELECT id\n      FROM rows\n      WHERE id > 'abc'",
        "filter: {from: rows, where: id = 1 / 0}",
        "select: {from: rows, columns: {id: id, day: \"CAST('2024-02-30' AS date)\"}}",
    ] {
        session.transform(transform);
        session.fails(2, &["check", "--offline", "job.yaml"]);
    }
    session.transform(
        "sql: SELECT CASE WHEN id > 100 THEN CAST('a' AS int) END AS n, TRY_CAST('a' AS int) AS m FROM rows",
    );
    assert_eq!(session.run(&["check", "job.yaml"]).code, Some(0), "what may never be computed is no fault");
    assert_transcript!("sql_constants", session);
}

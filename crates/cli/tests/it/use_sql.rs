//! `millstream sql` through the real binary.

use std::fmt::Write as _;
use std::process::Stdio;

use millstream_testkit::Nginx;
use serde_json::{Value, json};

use crate::harness::{MILLSTREAM, program};
use crate::transcript::{Session, assert_transcript};
use crate::use_support::{Lab, csv_rows, finish, gzip, zip_of};

const PLACES: &str = "id;name;people\n1;Oslo;717710\n2;Bergen;291940\n3;Røros;3600\n";
const VISITS: &str = "id,day\n1,2026-01-01\n1,2026-01-02\n3,2026-01-02\n4,2026-01-03\n";

/// A folder with places in several forms, and visits as csv, in gzip files and in a zip.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.file("places.dat", PLACES);
    lab.file("visits.csv", VISITS);
    lab.file("in/a.csv.gz", gzip(VISITS.as_bytes()));
    lab.file("in/b.csv.gz", gzip(VISITS.as_bytes()));
    lab.file("order.zip", zip_of(&[("in/visits.csv", VISITS.as_bytes())]));
    lab
}

fn rows(lab: &Lab, query: &str) -> Vec<Vec<String>> {
    csv_rows(&lab.run(&["sql", query]).ok().stdout)
}

#[test]
fn files_of_all_kinds_are_tables() {
    let lab = lab();
    lab.run(&["sql", "SELECT * FROM 'visits.csv' WHERE id < 4", "--format", "json"]).ok();
    for visits in ["visits.csv", "in/*.csv.gz", "order.zip"] {
        let times = if visits.contains('*') { 2 } else { 1 };
        // The delimiter and the types come from what is in the files.
        let query = format!(
            "SELECT p.name, count(*) AS n, max(day) AS last FROM 'places.dat' p JOIN \"{visits}\" v ON p.id = v.id \
             WHERE p.people > 3599 GROUP BY 1 ORDER BY 1"
        );
        let expected = [["Oslo", &(2 * times).to_string(), "2026-01-02"], ["Røros", &times.to_string(), "2026-01-02"]];
        assert_eq!(rows(&lab, &query), expected, "{visits}");
    }
    let parquet = lab.command(&["sql", "SELECT * FROM 'places.dat'", "--format", "parquet"]);
    let file = fs_err::File::create(lab.path("places.parquet")).expect("a file").into_file();
    let mut parquet = parquet;
    assert!(parquet.stdout(Stdio::from(file)).status().expect("it starts").success());
    assert_eq!(rows(&lab, "SELECT sum(people) FROM 'places.parquet'"), [["1013250"]]);
    assert!(!lab.path(".state").exists(), "a query is no run");
}

#[test]
fn a_query_joins_files_with_urls() {
    let lab = lab();
    let nginx = Nginx::start(&lab.path("in"));
    let query = format!("SELECT count(*) FROM 'visits.csv' JOIN '{}' b USING (id, day)", nginx.url("b.csv.gz"));
    assert_eq!(rows(&lab, &query), [["4"]]);
}

#[test]
fn a_column_of_using_needs_no_table() {
    let lab = lab();
    for (join, condition, expected) in [
        ("JOIN", "id > 1", &["3"][..]),
        ("LEFT JOIN", "id <> 3 AND name IS NOT NULL", &["1", "1", "2"]),
        ("RIGHT JOIN", "id > 1", &["3", "4"]),
        ("FULL JOIN", "id > 1", &["2", "3", "4"]),
    ] {
        let query = format!(
            "SELECT coalesce(p.id, v.id) AS i FROM 'places.dat' p {join} 'visits.csv' v USING (id) WHERE {condition} \
             ORDER BY 1"
        );
        assert_eq!(rows(&lab, &query).concat(), expected, "{join}");
    }
}

/// Where one side has no row, the column of USING has the value of the other.
#[test]
fn a_column_of_using_has_a_value_in_all_rows() {
    let lab = lab();
    for (join, expected) in [
        ("RIGHT JOIN 'visits.csv' v USING (id)", "v.id"),
        ("FULL JOIN 'visits.csv' v USING (id)", "coalesce(p.id, v.id)"),
    ] {
        let from = format!("FROM 'places.dat' p {join}");
        let expected = rows(&lab, &format!("SELECT {expected} AS i {from} ORDER BY 1"));
        assert!(expected.concat().contains(&"4".to_owned()), "{expected:?}");
        for query in
            ["SELECT id", "SELECT i FROM (SELECT id AS i, id IS NULL", "SELECT id FROM (SELECT * EXCLUDE (name)"]
        {
            let end = if query.contains('(') { ") q" } else { "" };
            assert_eq!(rows(&lab, &format!("{query} {from}{end} ORDER BY 1")), expected, "{query} {join}");
        }
        let grouped = rows(&lab, &format!("SELECT id, count(*) AS n {from} GROUP BY id HAVING id > 3"));
        assert_eq!(grouped, [["4", "1"]], "{join}");
    }
}

#[test]
fn sources_are_named_after_their_files() {
    let lab = lab();
    // `order` is a keyword, and both globs have the same name.
    assert_eq!(
        rows(&lab, "SELECT visits.day, \"order\".id FROM 'visits.csv' JOIN 'order.zip' USING (day, id)").len(),
        4
    );
    let query = "WITH visits AS (SELECT 7 AS id), \"places.dat\" AS (SELECT id FROM visits) \
                 SELECT (SELECT id FROM 'places.dat'), count(*) AS n, (SELECT count(*) FROM './visits.csv') AS m \
                 FROM 'visits.csv' x JOIN 'visits.csv' y ON x.day = y.day";
    assert_eq!(rows(&lab, query), [["7", "6", "4"]]);
}

#[test]
fn rows_have_the_form_that_is_asked_for() {
    let lab = lab();
    let query = "SELECT id, name FROM 'places.dat' WHERE id < 3";
    let shown = |arguments: &[&str]| lab.run(&[&["sql", query], arguments].concat()).ok().stdout.clone();
    assert_eq!(shown(&[]), "id,name\n1,Oslo\n2,Bergen\n");
    assert_eq!(shown(&["--format", "csv"]), shown(&[]));
    assert_eq!(shown(&["--format", "json"]), "{\"id\":1,\"name\":\"Oslo\"}\n{\"id\":2,\"name\":\"Bergen\"}\n");
    let all: Value = serde_json::from_str(&shown(&["--json"])).expect("one value");
    assert_eq!(all, json!([{"id": 1, "name": "Oslo"}, {"id": 2, "name": "Bergen"}]));
    assert_eq!(shown(&["--format", "table"]), "id  name\n 1  Oslo\n 2  Bergen\n");
    let none = lab.run(&["sql", "SELECT id FROM 'places.dat' WHERE id > 3"]).ok().stdout.clone();
    assert_eq!(none, "id\n");
    let none = lab.run(&["sql", "SELECT id FROM 'places.dat' WHERE id > 3", "--json"]).ok().json();
    assert_eq!(none, json!([]));
}

#[test]
fn a_table_has_the_first_rows_and_says_that_there_are_more() {
    let lab = lab();
    lab.file("places.csv", PLACES.replace(';', ","));
    let table = |rows: &str| lab.run(&["sql", "SELECT id FROM 'places.csv'", "--format", "table", "-n", rows]);
    assert_eq!(table("3").ok().stderr, "");
    let two = table("2");
    assert_eq!(two.ok().stdout, "id\n 1\n 2\n");
    two.says(&["there are more rows than 2"]);
    let quiet = lab.run(&["sql", "SELECT id FROM 'places.dat'", "--format", "table", "-n", "1", "--quiet"]);
    assert_eq!((quiet.ok().stdout.as_str(), quiet.stderr.as_str()), ("id\n 1\n", ""));
}

#[test]
fn a_terminal_gets_a_table() {
    let lab = lab();
    let query = "SELECT day, id FROM 'visits.csv' LIMIT 1";
    let mut script = program(lab.0.root(), "script");
    script.args(["-qec", &format!("{MILLSTREAM} sql \"{query}\""), "/dev/null"]);
    let shown = finish(script, None);
    assert_eq!(shown.ok().stdout.replace('\r', ""), "day         id\n2026-01-01   1\n");
}

#[test]
fn what_is_guessed_beyond_a_name_is_told() {
    let lab = lab();
    lab.file("tabs.tsv.gz", gzip(PLACES.replace(';', "\t").as_bytes()));
    lab.file("report.csv", "Report of sales;;\n\nid;amount\n1;2,5\n");
    lab.file("rows.jsonl", "{\"id\": 1}\n");
    for named in ["visits.csv", "in/*.csv.gz", "tabs.tsv.gz", "rows.jsonl"] {
        assert_eq!(lab.run(&["sql", &format!("SELECT id FROM '{named}' LIMIT 1")]).ok().stderr, "", "{named}");
    }
    let told = lab.run(&["sql", "SELECT id FROM 'places.dat' JOIN 'report.csv' USING (id)"]);
    told.ok().says(&["--> query:1:16", "read as csv: `;` cuts 4 of 4 records into 3 fields", "--> query:1:34"]);
    told.says(&["lines 1 to 2 are skipped: `Report of sales;;`", "`2,5` is read as 2.5", "millstream guess"]);
}

#[test]
fn a_large_result_is_streamed_within_the_budget() {
    const ROWS: usize = 400_000;
    let lab = Lab::new();
    let text = (0..ROWS).fold("id,k,text\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},{},text {id} of a record that is not short at all", (id * 7919) % ROWS);
        text
    });
    lab.file("large.csv", text);
    let sorted = lab.run(&["sql", "SELECT k, text FROM 'large.csv' ORDER BY k", "--memory", "80MB"]);
    let keys: Vec<usize> = csv_rows(&sorted.ok().stdout).iter().map(|row| row[0].parse().expect("a number")).collect();
    assert!(keys.len() == ROWS && keys.is_sorted(), "all rows in order");
    // A reader who has enough ends the query.
    let mut shell = program(lab.0.root(), "sh");
    shell.args(["-c", &format!("{MILLSTREAM} sql \"SELECT * FROM 'large.csv'\" | head -2")]);
    let head = finish(shell, None);
    assert_eq!((csv_rows(&head.ok().stdout).len(), head.stderr.as_str()), (1, ""));
}

/// The transcript of these queries, all of which fail.
fn failed(queries: &[(i32, &str)]) -> Session {
    let mut session = Session::new();
    session.tree.file("places.csv", PLACES.replace(';', ","));
    session.tree.file("tags.jsonl", "{\"id\":1,\"tags\":[\"a\"]}\n");
    session.tree.file("bad.csv.gz", &gzip(VISITS.as_bytes())[..30]);
    for (code, query) in queries {
        session.fails(*code, &["sql", query]);
    }
    session
}

#[test]
fn what_is_wrong_is_told_at_its_place_in_the_query() {
    assert_transcript!(
        "sql_places",
        failed(&[
            (2, "SELECT idd,\n  ä.nam FROM 'places.csv' ä"),
            (2, "SELECT name + 1\nFROM 'places.csv' p JOIN 'tags.jsonl' t ON p.id = t.id\nWHERE people / id > 1"),
            (2, "SELECT *\nFROM 'places.csv' JOIN 'tags.jsonl' ON places.id = tags.id"),
            (2, "SELECT places.id, tags.id\nFROM 'places.csv' JOIN 'tags.jsonl' USING (id)"),
            (2, "SELECT * FROM 'places.csv' WHERE"),
            (2, "SELECT 'places.csv"),
            (2, "SELECT id FROM 'places.csv'; SELECT 1"),
            (2, "DROP TABLE 'places.csv'"),
        ])
    );
}

#[test]
fn what_is_no_file_is_told_at_its_name() {
    assert_transcript!(
        "sql_files",
        failed(&[
            (2, "SELECT * FROM 'place.csv' JOIN 'in/*.csv' USING (id)\nJOIN 'bad.csv.gz' USING (id)"),
            (2, "SELECT * FROM places.csv JOIN read_csv('places.csv') USING (id)"),
            (2, "SELECT 1 + 1"),
            (2, "SELECT * FROM 'postgres://host/base' JOIN 'gopher://host/a.csv' USING (id)"),
            (2, "SELECT * FROM '-'"),
        ])
    );
}

#[test]
fn what_cannot_be_computed_or_written_is_told() {
    assert_transcript!(
        "sql_rows",
        failed(&[(1, "SELECT people / (id - 3) AS share FROM 'places.csv'"), (2, "SELECT * FROM 'tags.jsonl'")])
    );
}

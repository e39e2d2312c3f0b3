//! Rejects through the real binary: whatever refuses a record, it is kept with its location and its text, and the rows
//! that are loaded are those of the source less exactly the rejects.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use millstream_testkit::Mount;
use serde_json::{Value, json};

use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, finish, gzip, sorted, sqlite, zip_of};

/// The records of one file or member.
const RECORDS: usize = 400;

/// What is wrong with a record, by its number within a file.
fn fault_of(index: usize, is_postgres: bool) -> Option<&'static str> {
    match index {
        17 => Some("malformed"),
        101 => Some("long"),
        102 => Some("range"),
        200 => Some("null"),
        301 => Some("twice"),
        333 if is_postgres => Some("zero"),
        350 => Some("divided"),
        _ => None,
    }
}

/// The text of record `id`, as JSON or CSV.
fn record(id: usize, is_csv: bool, is_postgres: bool) -> String {
    let fault = fault_of(id % RECORDS, is_postgres);
    let key = if fault == Some("twice") { id - 1 } else { id };
    let name = match fault {
        Some("long") => "much longer than the column".to_owned(),
        Some("zero") => "zero\\u0000byte".to_owned(),
        _ => format!("row {id}"),
    };
    let amount = if fault == Some("range") { "40000".to_owned() } else { (id % 100).to_string() };
    let part = if fault == Some("divided") { 0 } else { 2 };
    match (is_csv, fault) {
        (true, Some("malformed")) => format!("{id},too,many,fields,by,far"),
        (true, Some("null")) => format!("{key},,{amount},{part}"),
        (true, Some("zero")) => format!("{key},zero\0byte,{amount},{part}"),
        (true, _) => format!("{key},{name},{amount},{part}"),
        (false, Some("malformed")) => format!(r#"{{"id": {id}, "name":"#),
        (false, Some("null")) => format!(r#"{{"id": {key}, "name": null, "amount": {amount}, "part": {part}}}"#),
        (false, _) => format!(r#"{{"id": {key}, "name": "{name}", "amount": {amount}, "part": {part}}}"#),
    }
}

fn text(file: usize, is_csv: bool, is_postgres: bool) -> String {
    let head = if is_csv { "id,name,amount,part\n" } else { "" };
    let ids = file * RECORDS..(file + 1) * RECORDS;
    ids.fold(head.to_owned(), |text, id| text + &record(id, is_csv, is_postgres) + "\n")
}

/// Three files, one of them packed and one an archive of two members.
fn files(lab: &Lab, is_csv: bool, is_postgres: bool) {
    let of = |file| text(file, is_csv, is_postgres);
    lab.file("in/0.txt", of(0));
    lab.file("in/1.txt.gz", gzip(of(1).as_bytes()));
    lab.file("in/2.zip", zip_of(&[("a.txt", of(2).as_bytes()), ("b.txt", of(3).as_bytes())]));
}

const FILES: usize = 4;

/// The columns of the job's source, and the rest of the job.
fn job(url: &str, is_csv: bool, limit: &str, sink: &str) -> String {
    let format = if is_csv { "csv" } else { "json" };
    format!(
        "sources:\n  s: {{read: 'in/*', max_rejects: {limit}, {format}: {{columns: {{id: int64, name: utf8, amount: \
         int64, \
         part: int64}}}}}}\ntransforms:\n  t: {{select: {{from: s, columns: [id, name, amount, \"100 / part AS \
         half\"]}}, \
         max_rejects: {limit}}}\n  u: {{filter: {{from: t, where: 'amount <> 55'}}}}\nsinks:\n  o: {{from: u, write: \
         '{url}', table: t, max_rejects: {limit}{sink}}}\n"
    )
}

const TABLE: &str = "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(12) NOT NULL, amount BIGINT CHECK \
                     (amount < 32768), half BIGINT)";

/// Ids of the rows that belong into the table.
fn expected(is_postgres: bool) -> BTreeSet<String> {
    let good = |id: &usize| fault_of(id % RECORDS, is_postgres).is_none() && id % 100 != 55;
    (0..FILES * RECORDS).filter(good).map(|id| format!("{id}\trow {id}\t{}\t50", id % 100)).collect()
}

/// The rejects of the last run.
fn rejects(lab: &Lab) -> Vec<Value> {
    let ran = lab.run(&["rejects", "--json"]);
    ran.ok();
    ran.json()["rejects"].as_array().expect("a list").clone()
}

/// What was rejected: the file, the member, the line, and why.
fn told(rejects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let one = |reject: &Value| {
        let kind = format!("{} {}", text(&reject["step"]), text(&reject["kind"]));
        format!("{} {} {} {kind}", text(&reject["uri"]), text(&reject["member"]), reject["line"])
    };
    sorted(rejects.iter().map(one).collect())
}

/// All rejects are kept, each with its location and its text.
#[track_caller]
fn assert_rejects(rejects: &[Value], is_csv: bool, is_postgres: bool, long: &str) {
    let places = [("in/0.txt", "-"), ("in/1.txt.gz", "-"), ("in/2.zip", "a.txt"), ("in/2.zip", "b.txt")];
    let mut all = Vec::new();
    for (file, (uri, member)) in places.iter().enumerate() {
        for index in 0..RECORDS {
            let kind = match fault_of(index, is_postgres) {
                Some("malformed") if is_csv => "s fields".to_owned(),
                Some("malformed") => "s syntax".to_owned(),
                Some("long") => format!("o {long}"),
                Some("range") => "o constraint".to_owned(),
                Some("null") => "o null".to_owned(),
                Some("twice") => "o duplicate".to_owned(),
                Some("zero") => "o value".to_owned(),
                Some("divided") => "t expression".to_owned(),
                _ => continue,
            };
            let line = index + 1 + usize::from(is_csv);
            all.push(format!("{uri} {member} {line} {kind}"));
            let text = record(file * RECORDS + index, is_csv, is_postgres);
            let found = rejects.iter().find(|reject| {
                reject["uri"] == *uri && reject["line"] == line && (*member == "-" || reject["member"] == *member)
            });
            let found = found.unwrap_or_else(|| panic!("{uri} {member} {line} is missing: {:#?}", told(rejects)));
            assert_eq!(found["raw"]["text"], text, "{found}");
        }
    }
    assert_eq!(told(rejects), sorted(all));
}

fn run(lab: &Lab, arguments: &[&str]) -> Ran {
    let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
    command.env("MILLSTREAM_CHUNK_BYTES", "2000");
    finish(command, None)
}

#[track_caller]
fn assert_rows(rows: Vec<String>, is_postgres: bool) {
    assert_eq!(rows.len(), expected(is_postgres).len());
    assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), expected(is_postgres));
}

/// The report's four figures.
#[track_caller]
fn assert_tally(ran: &Ran, is_postgres: bool) {
    let tally = &ran.json()["results"][0]["tally"];
    let number = |key: &str| tally[key].as_u64().unwrap_or_else(|| panic!("{tally}"));
    let faults = (0..RECORDS).filter(|index| fault_of(*index, is_postgres).is_some()).count();
    assert_eq!(number("read"), (FILES * RECORDS) as u64);
    assert_eq!(number("written"), expected(is_postgres).len() as u64);
    assert_eq!(number("rejected"), (FILES * faults) as u64);
    assert_eq!(number("read"), number("written") + number("filtered") + number("rejected"), "{tally}");
}

#[test]
fn a_table_gets_all_rows_but_the_rejects_however_it_is_loaded() {
    for (database, is_postgres) in Database::both().into_iter().zip([false, true]) {
        for is_csv in [false, true] {
            let others = ["", ", atomic: true", ", batch_rows: 50, connections: 1, atomic: true"];
            // Rows that may be left out do not go through a staging table, which would be moved as a whole.
            for sink in others.into_iter().chain([", connections: 2, atomic: true", ", mode: truncate"]) {
                let lab = Lab::with_job(&job(&database.url, is_csv, "100", sink));
                files(&lab, is_csv, is_postgres);
                database.query("DROP TABLE IF EXISTS t");
                database.query(TABLE);
                let ran = run(&lab, &["--json"]);
                ran.ok();
                assert_rows(database.query("SELECT id, name, amount, half FROM t"), is_postgres);
                assert_rejects(&rejects(&lab), is_csv, is_postgres, "too_long");
                assert_tally(&ran, is_postgres);
                assert_eq!(database.tables(), ["t"]);
            }
        }
    }
}

#[test]
fn a_table_of_sqlite_gets_all_rows_but_the_rejects() {
    for is_csv in [false, true] {
        for sink in ["", ", atomic: true", ", mode: truncate"] {
            let lab = Lab::with_job(&job("sqlite:out.db", is_csv, "100", sink));
            files(&lab, is_csv, false);
            let connection = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
            let table = TABLE.replace("name VARCHAR(12) NOT NULL", "name TEXT NOT NULL CHECK (length(name) <= 12)");
            connection.execute_batch(&table).expect("a table");
            let ran = run(&lab, &["--json"]);
            ran.ok();
            let rows = sqlite(&lab.path("out.db"), "SELECT id, name, amount, half FROM t");
            assert_rows(rows.into_iter().map(|row| row.join("\t")).collect(), false);
            assert_rejects(&rejects(&lab), is_csv, false, "constraint");
            assert_tally(&ran, false);
        }
    }
}

#[test]
fn keys_are_merged_or_ignored_and_what_cannot_be_is_left_out() {
    for database in Database::both() {
        for (mode, written) in [("merge", 7), ("ignore", 6)] {
            let lab = Lab::with_job(&format!(
                "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\nsinks:\n  o: {{from: s, \
                 write: \
                 '{}', table: t, mode: {mode}, key: [id], max_rejects: 10}}\n",
                database.url
            ));
            let mut text = (0..10).fold("id,name\n".to_owned(), |text, id| text + &format!("{id},row {id}\n"));
            text = text.replace("3,row 3", ",without a key").replace("5,row 5", "5,much longer than the column");
            lab.file("in.csv", text);
            database.query("DROP TABLE IF EXISTS t");
            database.query(TABLE);
            database.query("ALTER TABLE t ADD CONSTRAINT no_eight CHECK (name <> 'row 8')");
            database.query("INSERT INTO t (id, name) VALUES (7, 'before')");
            let report = lab.report(&[]);
            let tally = &report["results"][0]["tally"];
            let expected = json!({
                "read": 10, "written": written, "filtered": 0, "rejected": 3, "ignored": 7 - written, "before": 0,
            });
            assert_eq!(tally, &expected, "{mode}");
            assert_eq!(report["rows_written"], written, "{mode}: what was ignored is not written: {report}");
            let found = rejects(&lab);
            let rejected = told(&found);
            assert_eq!(rejected[0], "in.csv - 10 o constraint");
            assert!(rejected[1].starts_with("in.csv - 5 o "), "{rejected:?}");
            assert_eq!(rejected[2], "in.csv - 7 o too_long");
            let texts = sorted(found.iter().map(|one| one["raw"]["text"].to_string()).collect());
            assert_eq!(texts, ["\",without a key\"", "\"5,much longer than the column\"", "\"8,row 8\""]);
            // What is said of a staging table is said of the table.
            let all = serde_json::to_string(&found).expect("JSON");
            assert!(!all.contains("_millstream") && all.contains("no_eight"), "{all}");
            assert_eq!(database.query("SELECT COUNT(*) FROM t"), ["7"]);
        }
    }
}

#[test]
fn rows_that_are_gathered_for_their_order_are_tried_one_by_one() {
    for (mode, kept) in [("merge", "row 7"), ("ignore", "before")] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\nsinks:\n  o: {{from: s, \
             write: \
             'sqlite:out.db', table: t, mode: {mode}, key: [id], order_by: [name desc], max_rejects: 10}}\n"
        ));
        let text = (0..1000).fold("id,name\n".to_owned(), |text, id| text + &format!("{id},row {id}\n"));
        let text = text.replace("333,row 333", "333,").replace("555,row 555", "555,much longer than the column");
        lab.file("in.csv", text + "7,later\n7,again\n,no key\n");
        let connection = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
        let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT NOT NULL CHECK (length(name) <= 12)); INSERT \
                     INTO t \
                     VALUES (7, 'before')";
        connection.execute_batch(table).expect("a table");
        let tally = &lab.report(&[])["results"][0]["tally"];
        assert_eq!((&tally["read"], &tally["rejected"]), (&json!(1003), &json!(3)), "{tally}");
        let expected = ["in.csv - 1004 o null", "in.csv - 335 o null", "in.csv - 557 o constraint"];
        assert_eq!(told(&rejects(&lab)), expected, "{mode}");
        let rows = sqlite(&lab.path("out.db"), "SELECT count(*), max(CASE id WHEN 7 THEN name END) FROM t");
        assert_eq!(rows, [["998", kept]], "{mode}");
    }
}

fn sqlite_lab(limit: &str) -> Lab {
    let lab = Lab::with_job(&job("sqlite:out.db", false, limit, ""));
    files(&lab, false, false);
    let connection = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
    let table = TABLE.replace("name VARCHAR(12) NOT NULL", "name TEXT NOT NULL CHECK (length(name) <= 12)");
    connection.execute_batch(&table).expect("a table");
    lab
}

fn killed_at(lab: &Lab, fail_point: &str) {
    let mut command = lab.command(&["run", "job.yaml", "--quiet"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_FAIL_AT", fail_point);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
    assert!(!status.success(), "{fail_point}");
}

/// Rejects of chunks that were not committed come again, and count once.
#[test]
fn rejects_of_a_killed_run_count_once() {
    for fail_point in ["rejects.after:1", "rejects.after:3", "commit.before:2", "commit.after:1", "commit.after:3"] {
        let lab = sqlite_lab("24");
        killed_at(&lab, fail_point);
        let before = rejects(&lab);
        let ran = run(&lab, &["--resume", "--json"]);
        // Also if all of them were left by the run before.
        assert!(ran.ok().json()["rejects"].is_string(), "{fail_point}");
        let rows = sqlite(&lab.path("out.db"), "SELECT id, name, amount, half FROM t");
        assert_rows(rows.into_iter().map(|row| row.join("\t")).collect(), false);
        assert_rejects(&rejects(&lab), false, false, "constraint");
        println!("{fail_point}: {} rejects before", before.len());
    }
    for (database, is_postgres) in Database::both().into_iter().zip([false, true]) {
        for fail_point in ["rejects.after:2", "commit.after:2"] {
            let lab = Lab::with_job(&job(&database.url, true, "100", ""));
            files(&lab, true, is_postgres);
            database.query("DROP TABLE IF EXISTS t");
            database.query("DROP TABLE IF EXISTS _millstream_ledger");
            database.query(TABLE);
            killed_at(&lab, fail_point);
            run(&lab, &["--resume"]).ok();
            assert_rows(database.query("SELECT id, name, amount, half FROM t"), is_postgres);
            assert_rejects(&rejects(&lab), true, is_postgres, "too_long");
        }
    }
}

/// The limits of each entry are 4 in the source, 4 in the transform, 16 in the sink.
#[test]
fn a_limit_counts_what_earlier_attempts_have_rejected_once() {
    let limits = |source: u32, step: u32, sink: u32| {
        let job = job("sqlite:out.db", false, "LIMIT", "");
        let mut parts = job.split("LIMIT");
        let mut next = || parts.next().unwrap_or_default().to_owned();
        format!("{}{source}{}{step}{}{sink}{}", next(), next(), next(), next())
    };
    for fail_point in ["rejects.after:2", "commit.after:2"] {
        let lab = sqlite_lab("100");
        lab.file("job.yaml", limits(4, 4, 16));
        killed_at(&lab, fail_point);
        run(&lab, &["--resume"]).ok();
        assert_rejects(&rejects(&lab), false, false, "constraint");
        for (job, name) in [(limits(3, 4, 16), "s"), (limits(4, 3, 16), "t"), (limits(4, 4, 15), "the sink `o")] {
            let lab = sqlite_lab("100");
            lab.file("job.yaml", job);
            killed_at(&lab, fail_point);
            let ran = run(&lab, &["--resume"]);
            ran.ended(3).says(&["`max_rejects` of ", &format!("{name}` allows"), "millstream rejects "]);
        }
    }
}

/// The text of a record, by its number.
type Record = Box<dyn Fn(usize) -> String>;

#[test]
fn limits_hold_on_their_edges_in_every_format_and_to_every_sink() {
    let columns = "columns: {id: int64, name: utf8}";
    let json = |id: usize| format!(r#"{{"id": {id}, "name": "n"}}"#);
    let kinds: [(&str, String, String, Record); 4] = [
        ("in.csv", format!("csv: {{{columns}}}"), "id,name\n".to_owned(), Box::new(|id| format!("{id},n"))),
        ("in.tsv", format!("csv: {{{columns}}}"), "id\tname\n".to_owned(), Box::new(|id| format!("{id}\tn"))),
        ("in.jsonl", format!("json: {{{columns}}}"), String::new(), Box::new(json)),
        ("in.log", "lines: {}".to_owned(), String::new(), Box::new(|id| format!("line {id}"))),
    ];
    for (name, format, head, good) in &kinds {
        let lab = Lab::new();
        let mut bytes = head.clone().into_bytes();
        for id in 0..100 {
            let is_bad = id == 30 || id == 60;
            bytes.extend_from_slice(good(id).as_bytes());
            bytes.extend_from_slice(if is_bad { b"\xff,\t{\n" } else { b"\n" });
        }
        lab.file(name, &bytes);
        for (sink, limit, code) in [
            ("write: out.jsonl", "2", 0),
            ("write: '-', json: {}", "2%", 0),
            ("write: out.csv.gz", "1", 3),
            ("write: out.parquet", "1.9%", 3),
            ("write: '-', json: {}", "0", 1),
        ] {
            lab.file(
                "job.yaml",
                format!(
                    "sources:\n  s: {{read: {name}, max_rejects: {limit}, {format}}}\nsinks:\n  o: {{from: s, \
                         {sink}}}\n"
                ),
            );
            let ran = lab.run(&["run", "job.yaml"]);
            ran.ended(code);
            match code {
                0 => {
                    let found = rejects(&lab);
                    let line = |id: usize| id + 1 + usize::from(!head.is_empty());
                    let lines: Vec<&Value> = found.iter().map(|one| &one["line"]).collect();
                    assert_eq!(lines, [&json!(line(30)), &json!(line(60))], "{name}");
                    for (one, id) in found.iter().zip([30, 60]) {
                        let raw = [good(id).as_bytes(), b"\xff,\t{"].concat();
                        let at = one["byte"].as_u64().expect("a number") as usize;
                        assert!(bytes[at..].starts_with(&raw), "{one}");
                        assert!(one["raw"]["text"].is_null(), "it is not UTF-8: {one}");
                        assert_eq!(one["raw"]["base64"], base64(&raw), "{one}");
                    }
                }
                3 => {
                    let told =
                        if limit == "1" { "2 records were rejected" } else { "2 of 100 records (2.00%) were rejected" };
                    ran.says(&[told, &format!("allows {limit}"), "shows all of them"]);
                    assert_eq!(rejects(&lab).len(), 2);
                }
                _ => {
                    ran.says(&["line ", "`max_rejects: 100` (or `1%`) at `s`"]);
                    assert_eq!(rejects(&lab).len(), 0);
                }
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    let raw = millstream::rejects::RawText::new(bytes);
    raw.base64.unwrap_or_default()
}

/// A share that cannot hold any more ends the run before everything is read.
#[test]
fn a_hopeless_share_ends_the_run_early() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 1%, csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, write: \
         out.csv}\n",
    );
    let text = (0..400_000).fold("id\n".to_owned(), |text, id| text + if id % 3 == 0 { "x\n" } else { "1\n" });
    lab.file("in.csv", text);
    lab.run(&["run", "job.yaml"]).ended(3).says(&["`max_rejects` of `s` allows 1%", "the value is not an int64: `x`"]);
    let found = rejects(&lab).len();
    assert!((1_000..100_000).contains(&found), "{found}");
    assert!(!lab.path("out.csv").exists());
}

/// Rejected rows of Parquet have a number and columns, but no text, with every kind of load and after every crash.
#[test]
fn rows_of_parquet_are_rejected_with_their_number_and_columns() {
    let mut text = (0..600).fold("id,name,part\n".to_owned(), |text, id| text + &format!("{id},row {id},2\n"));
    for (good, bad) in
        [("77,row 77,2", "76,row 77,2"), ("300,row 300,2", "300,row 300,0"), ("500,row 500,2", "500,much longer,2")]
    {
        text = text.replace(good, bad);
    }
    for (more, killed) in [("", false), ("", true), (", atomic: true", false), (", mode: merge, key: [id]", false)] {
        let lab = Lab::with_job(
            "sources:\n  s: {read: in.csv, csv: {columns: {id: int64, name: utf8, part: int64}}}\nsinks:\n  o: {from: \
             s, write: \
             in.parquet}\n",
        );
        lab.file("in.csv", &text);
        lab.run(&["run", "job.yaml"]).ok();
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: in.parquet}}\ntransforms:\n  t: {{select: {{from: s, columns: [id, name, \"10 \
                 / part AS \
                 part\"]}}, max_rejects: 9}}\nsinks:\n  o: {{from: t, write: 'sqlite:out.db', table: t, max_rejects: \
                 9{more}}}\n"
            ),
        );
        let connection = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
        let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT CHECK (length(name) < 9), part INT)";
        connection.execute_batch(table).expect("a table");
        if killed {
            killed_at(&lab, "commit.after:2");
            run(&lab, &["--resume"]).ok();
        } else {
            run(&lab, &[]).ok();
        }
        let rows = sqlite(&lab.path("out.db"), "SELECT count(*), sum(id), max(length(name)) FROM t");
        assert_eq!(rows, [["597", &(600 * 599 / 2 - 77 - 300 - 500).to_string(), "7"]], "{more}");
        let found = rejects(&lab);
        let of = |one: &Value| {
            let id = one["row"]["id"].as_i64().expect("its columns");
            (one["line"].as_u64().expect("a number"), one["kind"].as_str().expect("a word").to_owned(), id)
        };
        let mut told: Vec<_> = found.iter().map(of).collect();
        told.sort();
        let all = [(78, "duplicate", 76), (301, "expression", 300), (501, "constraint", 500)];
        // To merge a row whose key came before is no fault.
        let all = all.into_iter().skip(usize::from(more.contains("merge")));
        let expected: Vec<_> = all.map(|(line, kind, id)| (line, kind.to_owned(), id)).collect();
        assert_eq!(told, expected, "{more}");
        assert!(found.iter().all(|one| one["uri"] == "in.parquet" && one["raw"].is_null()), "{found:#?}");
        let again = lab.run(&["rejects", "--replay"]);
        again.ok();
        assert!(
            again.stdout.contains("cannot be loaded again: their records were not kept, only their rows"),
            "{}",
            again.stdout
        );
    }
}

/// After an aggregate a row has no location, and is shown by its columns.
#[test]
fn what_has_no_place_is_shown_as_its_columns() {
    for database in Database::both() {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\ntransforms:\n  t: {{sql: \
             'SELECT name, \
             sum(id) AS sum FROM s GROUP BY name'}}\n  u: {{select: {{from: t, columns: [name, \"100 / (sum - 3) AS \
             q\"]}}, \
             max_rejects: 1}}\nsinks:\n  o: {{from: u, write: '{}', table: t, max_rejects: 1}}\n",
            database.url
        ));
        lab.file("in.csv", "id,name\n1,a\n2,a\n4,much longer than the column\n5,c\n");
        database.query("DROP TABLE IF EXISTS t");
        database.query("CREATE TABLE t (name VARCHAR(12), q BIGINT)");
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(sorted(database.query("SELECT name FROM t")), ["c"]);
        let found = rejects(&lab);
        let rows: BTreeMap<String, &Value> = found.iter().map(|one| (one["step"].to_string(), &one["row"])).collect();
        assert_eq!(rows["\"u\""], &json!({"name": "a", "sum(s.id)": 3}));
        assert_eq!(rows["\"o\""], &json!({"name": "much longer than the column", "q": 100}));
        assert!(
            found.iter().all(|one| one["uri"].is_null() && one["line"].is_null() && one["raw"].is_null()),
            "{found:#?}"
        );
    }
}

#[test]
fn where_rejects_cannot_be_kept_the_run_fails() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 1, csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, write: \
         out.csv}\n",
    );
    lab.file("in.csv", "id\n1\nx\n");
    lab.file(".state/rejects", "this is no folder");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the rejects cannot be kept in", "--state"]);
    assert!(!lab.path("out.csv").exists(), "nothing is loaded whose rejects are lost");
    fs_err::remove_file(lab.path(".state/rejects")).expect("it is there");
    lab.run(&["run", "job.yaml"]).ok();
    let folder =
        fs_err::read_dir(lab.path(".state/rejects")).expect("a folder").next().expect("one").expect("an entry");
    let file = fs_err::read_dir(folder.path()).expect("a folder").next().expect("one").expect("an entry").path();
    fs_err::write(&file, "damaged").expect("written");
    lab.run(&["rejects"]).ended(1).says(&["cannot be read", ".jsonl.zst"]);
}

#[test]
fn where_nothing_is_rejected_no_file_is_made() {
    let lab = sqlite_lab("100");
    for file in ["in/0.txt", "in/1.txt.gz", "in/2.zip"] {
        fs_err::remove_file(lab.path(file)).expect("it is there");
    }
    lab.file("in/0.txt", r#"{"id": 1, "name": "a", "amount": 2, "part": 2}"#);
    run(&lab, &[]).ok();
    assert!(!lab.path(".state/rejects").exists());
    let ran = lab.run(&["rejects"]);
    ran.ok();
    assert!(ran.stdout.contains("rejected nothing"), "{}", ran.stdout);
}

#[test]
fn two_runs_at_once_keep_their_rejects_apart() {
    let lab = Lab::new();
    let mut runs = Vec::new();
    for name in ["a", "b"] {
        let text = (0..5_000).fold("id\n".to_owned(), |text, id| text + &format!("{id}\n{name}\n"));
        lab.file(&format!("{name}.csv"), text);
        lab.file(
            &format!("{name}.yaml"),
            format!(
                "sources:\n  s: {{read: {name}.csv, max_rejects: 50%, csv: {{columns: {{id: int64}}}}}}\nsinks:\n  o: \
                 {{from: \
                 s, write: {name}.out.csv}}\n"
            ),
        );
        let mut command = lab.command(&["run", &format!("{name}.yaml"), "--json"]);
        runs.push((name, command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts")));
    }
    for (name, child) in runs {
        let ended = child.wait_with_output().expect("it ends");
        let report: Value = serde_json::from_slice(&ended.stdout).expect("a report");
        let of_run = lab.run(&["rejects", report["rejects"].as_str().expect("a run"), "--json"]).json();
        let found = of_run["rejects"].as_array().expect("a list");
        assert_eq!(found.len(), 5_000);
        assert!(found.iter().all(|one| one["raw"]["text"] == name), "{name}");
    }
}

/// Rows of the table, of which each may be there once.
fn rows_of_table(lab: &Lab) -> BTreeSet<String> {
    let rows = sqlite(&lab.path("out.db"), "SELECT id, name FROM t");
    let all: Vec<String> = rows.into_iter().map(|row| row.join(" ")).collect();
    let once: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(all.len(), once.len(), "a row is there twice");
    once
}

/// Records 1 to 9: 3 has a bad id, 5 divides by zero, 7 is too long for the table, and 9 has too few fields.
fn mendable(sink: &str) -> Lab {
    let lab = Lab::with_job(&mendable_job("id: int64", "10 / (a - 5)", sink));
    let text = (1..10).fold("id,a,name\n".to_owned(), |text, id| {
        text + &match id {
            3 => "x3,3,three\n".to_owned(),
            7 => "7,7,\"much, too long\"\n".to_owned(),
            9 => "9,9\n".to_owned(),
            id => format!("{id},{id},n{id}\n"),
        }
    });
    lab.file("in/a.csv.gz", gzip(text.as_bytes()));
    table(&lab, 8);
    lab
}

fn mendable_job(id: &str, expression: &str, sink: &str) -> String {
    format!(
        "sources:\n  s: {{read: 'in/*', max_rejects: 5, add: [_uri, _line], csv: {{columns: {{{id}, a: int64, name: \
         utf8}}}}}}\n\
         transforms:\n  t: {{select: {{from: s, columns: [\"trim(CAST(id AS VARCHAR), 'x') AS id\", name, \
         \"{expression} AS q\", \
         _uri, _line]}}, max_rejects: 5}}\nsinks:\n  o: {{from: t, write: 'sqlite:out.db', table: t, max_rejects: \
         5{sink}}}\n"
    )
}

/// The table, empty or with what it has, that takes names of so many characters.
fn table(lab: &Lab, most: usize) {
    let connection = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
    let table = format!("(id TEXT, name TEXT CHECK (length(name) <= {most}), q INTEGER, _uri TEXT, _line INTEGER)");
    let script = format!(
        "CREATE TABLE IF NOT EXISTS t {table}; ALTER TABLE t RENAME TO old; CREATE TABLE t {table}; INSERT INTO t \
         SELECT * \
         FROM old; DROP TABLE old"
    );
    connection.execute_batch(&script).expect("a table");
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn rejects_are_loaded_after_a_fix_and_only_once() {
    for sink in ["", ", atomic: true", ", mode: truncate"] {
        let lab = mendable(sink);
        lab.run(&["run", "job.yaml"]).ok();
        let run = lab.run(&["runs", "last", "--json"]).json()["run"]["run"].as_str().expect("a name").to_owned();
        assert_eq!(rows_of_table(&lab), set(&["1 n1", "2 n2", "4 n4", "6 n6", "8 n8"]));
        // Nothing is mended: nothing is loaded, and everything stays.
        let ran = lab.run(&["rejects", &run, "--replay"]);
        ran.ok();
        assert!(ran.stdout.contains("0 rejects of run") && ran.stdout.contains("4 failed again"), "{}", ran.stdout);
        assert_eq!(rejects(&lab).len(), 4);
        // Each fix lets one more in.
        lab.file("job.yaml", mendable_job("id: utf8", "10 / (a - 5)", sink));
        let ran = lab.run(&["rejects", &run, "--replay", "--json"]);
        ran.ok();
        assert_eq!(ran.json()["replayed"], json!({"loaded": 1, "failed": 3, "impossible": {}}));
        lab.file("job.yaml", mendable_job("id: utf8", "10 / a", sink));
        table(&lab, 20);
        let ran = lab.run(&["rejects", &run, "--replay"]);
        ran.ok();
        assert!(ran.stdout.contains("2 rejects of run"), "{} {}", ran.stdout, ran.stderr);
        let all = set(&["1 n1", "2 n2", "3 three", "4 n4", "5 n5", "6 n6", "7 much, too long", "8 n8"]);
        assert_eq!(rows_of_table(&lab), all);
        for _ in 0..2 {
            let again = lab.run(&["rejects", &run, "--replay"]);
            again.ok();
            assert!(
                again.stdout.contains("0 rejects of run") && again.stdout.contains("1 failed again"),
                "{}",
                again.stdout
            );
            assert_eq!(rows_of_table(&lab), all, "a second time loads nothing");
        }
        let places = sqlite(&lab.path("out.db"), "SELECT DISTINCT _uri, id - _line FROM t");
        assert_eq!(places, [["in/a.csv.gz", "-1"]], "rows keep where they are from");
        let left = lab.run(&["rejects", &run]);
        left.ok();
        assert!(left.stdout.contains("1 record was rejected; 3 more were loaded later"), "{}", left.stdout);
        assert!(left.stdout.contains("in/a.csv.gz, line 10: the record has 2 fields"), "{}", left.stdout);
    }
}

#[test]
fn a_replay_that_is_killed_is_resumed() {
    for fail_point in [
        "rejects.after:1",
        "commit.before:1",
        "commit.after:1",
        "commit.after:2",
        "replay.before:1",
        "replay.after:1",
        "forget.before:1",
    ] {
        let lab = mendable("");
        lab.run(&["run", "job.yaml"]).ok();
        lab.file("job.yaml", mendable_job("id: utf8", "10 / a", ""));
        table(&lab, 20);
        let mut command = lab.command(&["rejects", "--replay", "--quiet"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(!command.status().expect("it starts").success(), "{fail_point}");
        rows_of_table(&lab);
        lab.run(&["rejects", "--replay"]).ok();
        let all = set(&["1 n1", "2 n2", "3 three", "4 n4", "5 n5", "6 n6", "7 much, too long", "8 n8"]);
        assert_eq!(rows_of_table(&lab), all, "{fail_point}");
        lab.run(&["rejects", "--replay"]).ok();
        assert_eq!(rows_of_table(&lab), all, "{fail_point}");
        assert_eq!(rejects(&lab).iter().filter(|one| one["replayed"] == false).count(), 1, "{fail_point}");
        // It is not a run that a later one has to resume.
        lab.run(&["run", "job.yaml"]).ok();
        let tables = sqlite(&lab.path("out.db"), "SELECT name FROM sqlite_schema WHERE type = 'table'");
        assert_eq!(tables, [["t"]], "{fail_point}");
    }
}

#[test]
fn servers_take_their_rejects_after_a_fix() {
    for (database, is_postgres) in Database::both().into_iter().zip([false, true]) {
        let lab = Lab::with_job(&job(&database.url, true, "100", ""));
        files(&lab, true, is_postgres);
        database.query("DROP TABLE IF EXISTS t");
        database.query(TABLE);
        run(&lab, &[]).ok();
        let before = rejects(&lab).len();
        database.query("DROP TABLE t");
        database.query("CREATE TABLE t (id BIGINT, name VARCHAR(40), amount BIGINT, half BIGINT)");
        let ran = lab.run(&["rejects", "--replay", "--json"]);
        ran.ok();
        // What cannot be read, divided or written as text stays.
        let stays = if is_postgres { 3 } else { 2 };
        assert_eq!(ran.json()["replayed"]["failed"], FILES * stays);
        assert_eq!(database.query("SELECT COUNT(*) FROM t"), [(before - FILES * stays).to_string()]);
        lab.run(&["rejects", "--replay"]).ok();
        assert_eq!(database.query("SELECT COUNT(*) FROM t"), [(before - FILES * stays).to_string()]);
        assert_eq!(database.tables(), ["t"]);
    }
}

/// A replay takes rows by their key as the job does.
#[test]
fn rejects_are_merged_or_ignored_after_a_fix() {
    for database in Database::both() {
        for (mode, name) in [("merge", "long enough"), ("ignore", "there")] {
            let lab = Lab::with_job(&format!(
                "sources:\n  s: {{read: in.csv, max_rejects: 5, csv: {{columns: {{id: int64, name: \
                 utf8}}}}}}\nsinks:\n  o: {{from: \
                 s, write: '{}', table: t, max_rejects: 5, mode: {mode}, key: [id]}}\n",
                database.url
            ));
            lab.file("in.csv", "id,name\n1,Ann\n2,long enough\n3,longer still\nx,none\n");
            database.query("DROP TABLE IF EXISTS t");
            database.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(5) NOT NULL)");
            run(&lab, &[]).ok();
            assert_eq!(rejects(&lab).len(), 3);
            database.query("DROP TABLE t");
            database.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50) NOT NULL)");
            database.query("INSERT INTO t VALUES (1, 'Ann'), (2, 'there')");
            for round in 0..2 {
                let ran = lab.run(&["rejects", "--replay", "--json"]);
                ran.ok();
                assert_eq!(ran.json()["replayed"]["failed"], 1, "{round}");
                let rows = ["1\tAnn".to_owned(), format!("2\t{name}"), "3\tlonger still".to_owned()];
                assert_eq!(database.query("SELECT id, name FROM t ORDER BY id"), rows, "{mode}, {round}");
            }
        }
    }
}

#[test]
fn what_cannot_be_loaded_again_is_reported() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 1, csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, write: \
         out.csv}\n",
    );
    lab.file("in.csv", "id\n1\nx\n");
    lab.run(&["run", "job.yaml"]).ok();
    let ran = lab.run(&["rejects", "--replay"]);
    ran.ok();
    assert!(ran.stdout.contains("1 reject cannot be loaded again: `o` writes files"), "{}", ran.stdout);
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.csv, max_rejects: 1, csv: {columns: {id: int64}}}\ntransforms:\n  t: {sort: {from: \
         s, by: \
         id}}\nsinks:\n  o: {from: t, write: 'sqlite:o.db', table: t}\n",
    );
    lab.run(&["rejects", "--replay"]).ended(1).says(&["rejects cannot be replayed into `o`", "a sort needs all rows"]);
    // Another sink, which takes them, is not kept from it.
    let job = lab.read("job.yaml");
    lab.file("job.yaml", job + "  p: {from: s, write: 'sqlite:p.db', table: t}\n");
    lab.file("in.csv", "id\n1\nx\n");
    lab.run(&["run", "job.yaml"]).ok();
    let text = lab.read("job.yaml").replace("csv: {columns: {id: int64}}", "csv: {columns: {id: utf8}}");
    lab.file("job.yaml", text);
    for path in ["o.db", "p.db"] {
        fs_err::remove_file(lab.path(path)).expect("it is there");
    }
    let ran = lab.run(&["rejects", "--replay"]);
    ran.ok();
    assert!(ran.stdout.starts_with("1 reject of run "), "{}", ran.stdout);
    assert!(ran.stdout.contains("`o` cannot take single rows, because a sort needs all rows"), "{}", ran.stdout);
    assert_eq!(sqlite(&lab.path("p.db"), "SELECT id FROM t"), [["x"]]);
    assert!(!lab.path("o.db").exists());
    fs_err::remove_file(lab.path("job.yaml")).expect("it is there");
    lab.run(&["rejects", "--replay"]).ended(2).says(&["job.yaml cannot be read"]);
    lab.run(&["rejects", "no-such-run"]).ended(2).says(&["there is no run `no-such-run`"]);
}

/// However many bad records stand between the good ones, each is kept once, and memory is bounded.
#[test]
fn many_rejects_among_few_rows_are_loaded_chunk_by_chunk() {
    for (format, head, good, bad) in [
        ("csv: {columns: {id: int64}}", "id\n", "7\n", "x\n"),
        ("json: {columns: {id: int64}}", "", "{\"id\": 7}\n", "{\"id\": x}\n"),
    ] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.gz, max_rejects: 100000, {format}}}\nsinks:\n  o: {{from: s, write: \
             'sqlite:out.db', table: \
             t}}\n"
        ));
        lab.file("in.gz", gzip((head.to_owned() + &[good, &bad.repeat(2_000)].concat().repeat(10)).as_bytes()));
        killed_at(&lab, "commit.after:2");
        let ran = run(&lab, &["--resume", "--json"]);
        ran.ok();
        assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), sum(id) FROM t"), [["10", "70"]]);
        let found = rejects(&lab);
        let lines: BTreeSet<u64> = found.iter().filter_map(|one| one["line"].as_u64()).collect();
        assert_eq!((found.len(), lines.len()), (20_000, 20_000));
    }
}

/// The disk has no room for rejects: no row of a chunk is committed if rejects of the chunk are lost, and the run can
/// be resumed.
#[test]
fn a_disk_that_is_full_of_rejects_stops_the_run_and_costs_nothing() {
    let Some(state) = Mount::tmpfs("size=600k") else { return };
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 100000, csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, \
         write: \
         'sqlite:out.db', table: t}\n",
    );
    // What cannot be packed.
    let mut seed = 1_u64;
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{seed:x}{:x}", seed.rotate_left(17))
    };
    let text = (0..30_000).fold("id\n".to_owned(), |text, id| {
        text + &if id % 3 == 0 { format!("x{}{}{}\n", noise(), noise(), noise()) } else { format!("{id}\n") }
    });
    lab.file("in.csv", text);
    let run = |arguments: &[&str]| {
        let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
        command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_STATE", state.path());
        finish(command, None)
    };
    run(&[]).ended(1).says(&["the rejects cannot be kept in", "no space left on device", "free some space"]);
    state.resize("64m");
    run(&["--resume"]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), count(DISTINCT id) FROM t"), [["20000", "20000"]]);
    let mut shown = lab.command(&["rejects", "--json"]);
    shown.env("MILLSTREAM_STATE", state.path());
    let found = finish(shown, None).json()["rejects"].as_array().expect("a list").clone();
    let lines: BTreeSet<u64> = found.iter().filter_map(|one| one["line"].as_u64()).collect();
    assert_eq!((found.len(), lines.len()), (10_000, 10_000));
}

/// Four of 1,600 records cannot be read, in each attempt and in all of them together.
#[test]
fn a_share_is_that_of_all_attempts() {
    for (share, code) in [("0.25%", 0), ("0.1%", 3)] {
        let lab = sqlite_lab("100");
        lab.file("job.yaml", lab.read("job.yaml").replacen("max_rejects: 100", &format!("max_rejects: {share}"), 1));
        killed_at(&lab, "commit.after:3");
        run(&lab, &["--resume"]).ended(code);
    }
}

/// A source whose rows go to two entries is read once for both, and its rows do not carry their records.
#[test]
fn rejects_of_rows_that_several_entries_take_cannot_be_replayed() {
    let lab = Lab::with_job(
        "sources:\n  p: {read: in.csv, csv: {columns: {id: int64, c: utf8}}, max_rejects: 10, checks: [{not_null: \
         [c], severity: reject}]}\nsinks:\n  a: {from: p, write: 'sqlite:out.db', table: a}\n  b: {from: p, write: \
         'sqlite:other.db', table: b}\n",
    );
    lab.file("in.csv", "id,c\n1,a\n2,\n");
    lab.run(&["run", "job.yaml"]).ok();
    let told = lab.run(&["rejects", "last"]);
    told.ok().prints(&["1 × constraint, by p, column c", "lists them all with their records\n"]);
    assert!(!told.stdout.contains("--replay"), "{}", told.stdout);
    let replayed = lab.run(&["rejects", "last", "--replay"]);
    replayed.ok().prints(&["their records are not known: several entries take the rows of `p`"]);
}

//! Lookups through the real binary: what rows get, what becomes of those that find nothing or too much, and that every
//! row is there once, looked up in one state of the reference, whatever dies and when.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::transcript::{Session, assert_transcript};
use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, csv_rows, finish, sorted, sqlite, step};

/// Records of each file of facts.
const RECORDS: usize = 700;
const FILES: usize = 4;

/// Customers there are; facts have more of them.
const CUSTOMERS: usize = 50;

/// A database that rows are loaded into.
enum Target {
    Sqlite(PathBuf),
    Server(Database),
}

impl Target {
    fn all(lab: &Lab) -> [Target; 3] {
        let [mariadb, postgres] = Database::both();
        [Target::Sqlite(lab.path("out.db")), Target::Server(mariadb), Target::Server(postgres)]
    }

    fn url(&self) -> String {
        match self {
            Target::Sqlite(path) => format!("sqlite:{}", path.display()),
            Target::Server(database) => database.url.clone(),
        }
    }

    fn query(&self, sql: &str) -> Vec<String> {
        match self {
            Target::Sqlite(path) => sqlite(path, sql).into_iter().map(|row| row.join("\t")).collect(),
            Target::Server(database) => database.query(sql),
        }
    }

    fn tables(&self) -> Vec<String> {
        match self {
            Target::Sqlite(_) => self.query("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"),
            Target::Server(database) => database.tables(),
        }
    }

    fn start_over(&self, lab: &Lab) {
        let _ = fs_err::remove_dir_all(lab.path(".state"));
        self.tables().iter().for_each(|table| drop(self.query(&format!("DROP TABLE {table}"))));
    }
}

/// A record of a fact: every tenth has a customer that does not exist.
fn fact(id: usize) -> String {
    format!(r#"{{"id": {id}, "customer": {}, "name": "row {id} é"}}"#, customer(id))
}

fn customer(id: usize) -> usize {
    if id % 10 == 3 { CUSTOMERS + id } else { id * 7 % CUSTOMERS }
}

fn facts(lab: &Lab) {
    for file in 0..FILES {
        let text = (file * RECORDS..(file + 1) * RECORDS).fold(String::new(), |mut text, id| {
            let _ = writeln!(text, "{}", fact(id));
            text
        });
        lab.file(&format!("in/{file}.jsonl"), text);
    }
}

/// The customers, each with a segment, in the order of `ids`.
fn customers(lab: &Lab, ids: impl Iterator<Item = usize>, segment: &str) {
    let text = ids.fold("id,seg\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},{segment} {id}");
        text
    });
    lab.file("customers.csv", text);
}

fn job(url: &str, miss: &str, more: &str) -> String {
    format!(
        "sources:\n  facts: {{read: 'in/*', json: {{columns: {{id: int64, customer: int32, name: utf8}}}}}}\n  \
         customers: {{read: customers.csv, csv: {{columns: {{id: int64, seg: utf8}}}}}}\ntransforms:\n  \
         l:\n    lookup: {{from: facts, in: customers, on: {{customer: id}}, take: {{segment: seg}}, miss: \
         {miss}}}\n{more}  \
         t: {{filter: {{from: l, where: 'id <> 5'}}}}\nsinks:\n  o: {{from: t, write: '{url}', table: t}}\n"
    )
}

fn lab_for(url: impl Fn(&Lab) -> String, miss: &str, more: &str) -> Lab {
    let lab = Lab::new();
    facts(&lab);
    customers(&lab, 0..CUSTOMERS, "s");
    let job = job(&url(&lab), miss, more);
    lab.file("job.yaml", job);
    lab
}

fn in_sqlite(lab: &Lab) -> String {
    format!("sqlite:{}", lab.path("out.db").display())
}

fn run(lab: &Lab, arguments: &[&str]) -> Ran {
    run_with(lab, arguments, &[])
}

fn run_with(lab: &Lab, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
    command.env("MILLSTREAM_CHUNK_BYTES", "2000").envs(variables.iter().copied());
    finish(command, None)
}

/// A run that is killed at `point`.
#[track_caller]
fn killed(lab: &Lab, point: &str) {
    let mut command = lab.command(&["run", "job.yaml", "--quiet"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_FAIL_AT", point);
    let status = command.status().expect("it starts");
    assert_eq!(status.signal(), Some(9), "{point}");
}

/// The rows that belong into the table, with `missing` where nothing is found; left out if that is none.
fn expected(segment: &str, missing: Option<&str>) -> BTreeMap<String, usize> {
    let row = |id: usize| {
        let known = customer(id) < CUSTOMERS;
        let segment = if known { Some(format!("{segment} {}", customer(id))) } else { missing.map(str::to_owned) };
        segment.map(|segment| (format!("{id}\trow {id} é\t{segment}"), 1))
    };
    (0..FILES * RECORDS).filter(|id| *id != 5).filter_map(row).collect()
}

#[track_caller]
fn assert_rows(target: &Target, expected: &BTreeMap<String, usize>) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for row in target.query("SELECT id, name, coalesce(segment, 'NULL') FROM t") {
        *found.entry(row).or_default() += 1;
    }
    let wrong: Vec<_> = found.iter().filter(|(row, count)| expected.get(*row) != Some(*count)).take(5).collect();
    assert!(wrong.is_empty(), "rows that come too often, or do not belong here: {wrong:?}");
    assert_eq!(found.len(), expected.len(), "rows are missing");
}

/// The rejects of the last run.
fn rejects(lab: &Lab) -> Vec<Value> {
    let ran = lab.run(&["rejects", "--json"]);
    ran.ok();
    ran.json()["rejects"].as_array().expect("a list").clone()
}

#[test]
fn killed_loads_are_resumed_and_no_row_is_missing_or_twice() {
    let lab = Lab::new();
    facts(&lab);
    for target in Target::all(&lab) {
        lab.file("job.yaml", job(&target.url(), "{value: {segment: none}}", ""));
        for point in ["commit.before:1", "commit.after:1", "commit.after:3", "bulk.after:2", "publish.after:1"] {
            customers(&lab, 0..CUSTOMERS, "s");
            killed(&lab, point);
            // The same rows in another order are the same reference.
            customers(&lab, (0..CUSTOMERS).rev(), "s");
            run(&lab, &["--resume"]).ok();
            assert_rows(&target, &expected("s", Some("none")));
            assert_eq!(target.tables(), ["t"], "the ledger goes when the run is complete");
            target.start_over(&lab);
        }
    }
}

#[test]
fn a_reference_that_changes_between_two_resumes_is_refused() {
    let lab = Lab::new();
    facts(&lab);
    for target in Target::all(&lab) {
        lab.file("job.yaml", job(&target.url(), "null", ""));
        // The first group notes the reference, also if another one is committed before it would have been.
        for point in ["commit.after:1", "commit.after:2", "commit.after:4"] {
            customers(&lab, 0..CUSTOMERS, "s");
            killed(&lab, point);
            let there = target.query("SELECT count(*) FROM t");
            customers(&lab, 0..CUSTOMERS, "changed");
            // Neither knows the other, and with another state folder only the target knows.
            for state in [".state", ".other"] {
                let state = lab.path(state);
                let ran = run(&lab, &["--resume", "--state", state.to_str().expect("a path")]);
                ran.ended(1).says(&[
                    "`customers` has changed since the run to be resumed",
                    "the rows that are loaded were looked up in it as it was then",
                    "start again with `--restart`",
                ]);
            }
            assert_eq!(target.query("SELECT count(*) FROM t"), there, "nothing is added");
            customers(&lab, 0..CUSTOMERS, "s");
            killed_or_done(&run_with(&lab, &["--resume"], &[("MILLSTREAM_FAIL_AT", "commit.after:2")]));
            // A second resume looks as well.
            customers(&lab, 0..CUSTOMERS + 1, "s");
            run(&lab, &["--resume"]).ended(1).says(&["`customers` has changed"]);
            customers(&lab, 0..CUSTOMERS, "s");
            run(&lab, &["--resume"]).ok();
            assert_rows(&target, &expected("s", Some("NULL")));
            target.start_over(&lab);
        }
    }
}

fn killed_or_done(ran: &Ran) {
    assert!(ran.code == -1, "{ran:?}");
}

#[test]
fn a_reference_may_change_while_nothing_is_loaded() {
    let lab = lab_for(in_sqlite, "fail", "");
    let target = Target::Sqlite(lab.path("out.db"));
    run(&lab, &[]).ended(1).says(&["no row of `customers` matches"]);
    let missing = (0..FILES * RECORDS).map(customer).filter(|id| *id >= CUSTOMERS);
    customers(&lab, (0..CUSTOMERS).chain(missing), "t");
    run(&lab, &["--resume"]).ok();
    assert_eq!(target.query("SELECT count(*) FROM t WHERE segment LIKE 't %'"), [(FILES * RECORDS - 1).to_string()]);
}

/// Of two targets that are loaded at once the first is committed when the run is killed: the second must not get rows
/// that were looked up in something else.
#[test]
fn sinks_that_are_committed_one_after_the_other_get_the_same() {
    let lab = Lab::new();
    facts(&lab);
    customers(&lab, 0..CUSTOMERS, "s");
    let [_, database] = Database::both();
    let more = format!("  b: {{from: l, write: '{}', table: b, mode: replace}}\n", database.url);
    let text = job(&database.url, "null", "") + &more;
    lab.file("job.yaml", text.replace("table: t}", "table: t, atomic: true}"));
    let explained = lab.run(&["explain", "job.yaml"]);
    assert_eq!(explained.ok().stdout.matches("rows become visible all at once").count(), 2, "{}", explained.stdout);
    killed(&lab, "publish.next:1");
    customers(&lab, 0..CUSTOMERS, "changed");
    run(&lab, &["--resume"]).ended(1).says(&["what `l` looks up in has changed since the run to be resumed"]);
    customers(&lab, 0..CUSTOMERS, "s");
    run(&lab, &["--resume"]).ok();
    let sum = |table: &str| database.query(&format!("SELECT count(*), count(segment), max(segment) FROM {table}"));
    assert_eq!(sum("b"), ["2800\t2520\ts 9"]);
    assert_eq!(sum("t"), ["2799\t2519\ts 9"]);
}

#[test]
fn what_becomes_of_rows_that_find_nothing() {
    for (miss, missing) in [("null", Some("NULL")), ("drop", None), ("{value: {segment: none}}", Some("none"))] {
        let lab = lab_for(in_sqlite, miss, "");
        let report = lab.report(&[]);
        assert_rows(&Target::Sqlite(lab.path("out.db")), &expected("s", missing));
        let lost = (0..FILES * RECORDS).filter(|id| customer(*id) >= CUSTOMERS).count();
        let found = json!({
            "reference": "customers",
            "reference_rows": CUSTOMERS,
            "matched": FILES * RECORDS - lost,
            "missed": lost,
        });
        assert_eq!(step(&report, "l", "transform")["lookup"], found, "{miss}");
        let tally = &report["results"][0]["tally"];
        let dropped = if missing.is_none() { lost } else { 0 };
        assert_eq!(tally["filtered"], json!(dropped + 1), "{tally}");
        // Those that found nothing are in the report for people, too.
        let told = format!("  l: {lost} of 2,800 rows found nothing in customers\n");
        lab.run(&["run", "job.yaml", "--restart"]).ok().says(&[&told]);
        // The same where all rows become visible at once.
        let text = lab.read("job.yaml").replace(", table: t}", "}").replace(&in_sqlite(&lab), "out.csv");
        lab.file("job.yaml", text);
        let report = lab.report(&[]);
        let rows = csv_rows(&lab.read("out.csv"));
        let rows: BTreeMap<String, usize> = rows
            .iter()
            .map(|row| (format!("{}\t{}\t{}", row[0], row[2], if row[3].is_empty() { "NULL" } else { &row[3] }), 1))
            .collect();
        assert_eq!(rows, expected("s", missing));
        assert_eq!(step(&report, "l", "transform")["lookup"], found, "{miss}");
        assert_eq!(report["results"][0]["tally"]["filtered"], json!(dropped + 1));
    }
}

#[test]
fn a_row_that_finds_nothing_ends_the_run_with_its_file_and_line() {
    let lab = lab_for(in_sqlite, "fail", "");
    let ran = run(&lab, &[]);
    ran.ended(1).says(&["no row of `customers` matches", "at in/", ".jsonl, line ", "step l", "text `customer = "]);
    let at_once = lab.read("job.yaml").replace(", table: t}", "}").replace(&in_sqlite(&lab), "out.csv");
    lab.file("job.yaml", at_once);
    lab.file("in/0.jsonl", format!("{}\n{}\n", fact(0), fact(3)));
    (1..FILES).for_each(|file| fs_err::remove_file(lab.path(&format!("in/{file}.jsonl"))).expect("it is there"));
    run(&lab, &[]).ended(1).says(&["at in/0.jsonl, line 2,", "text `customer = 53`", "`miss: null`"]);
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn rejected_rows_are_kept_and_loaded_again() {
    let lab = Lab::new();
    facts(&lab);
    for target in Target::all(&lab) {
        customers(&lab, 0..CUSTOMERS, "s");
        lab.file("job.yaml", job(&target.url(), "reject", "    max_rejects: 10%\n"));
        killed(&lab, "commit.after:2");
        run(&lab, &["--resume"]).ok();
        assert_rows(&target, &expected("s", None));
        let lost: Vec<usize> = (0..FILES * RECORDS).filter(|id| customer(*id) >= CUSTOMERS).collect();
        let kept = rejects(&lab);
        let told = |reject: &Value| {
            assert_eq!((&reject["step"], &reject["kind"]), (&json!("l"), &json!("expression")));
            (
                reject["raw"]["text"].as_str().expect("a record").to_owned(),
                reject["uri"].clone(),
                reject["line"].clone(),
            )
        };
        let place = |id: &usize| (fact(*id), json!(format!("in/{}.jsonl", id / RECORDS)), json!(id % RECORDS + 1));
        let by_text = |mut all: Vec<(String, Value, Value)>| {
            all.sort_by(|one, other| one.0.cmp(&other.0));
            all
        };
        assert_eq!(by_text(kept.iter().map(told).collect()), by_text(lost.iter().map(place).collect()));
        let message = kept[0]["message"].as_str().expect("a message");
        assert!(message.starts_with("no row of `customers` matches: `customer = "), "{message}");
        // Some of them are there now. The reference is read as a whole, the facts are those that were rejected.
        let found = lost.iter().copied().filter(|id| id % 20 == 3).map(customer);
        customers(&lab, (0..CUSTOMERS).chain(found), "s");
        lab.run(&["rejects", "--replay"]).ok();
        let mut all = expected("s", None);
        for id in lost.iter().filter(|id| *id % 20 == 3) {
            all.insert(format!("{id}\trow {id} é\ts {}", customer(*id)), 1);
        }
        assert_rows(&target, &all);
        assert_eq!(rejects(&lab).iter().filter(|reject| reject["replayed"] != json!(true)).count(), lost.len() / 2);
        target.start_over(&lab);
    }
}

#[test]
fn more_rejects_than_allowed_end_the_run() {
    let lab = lab_for(in_sqlite, "reject", "    max_rejects: 3\n");
    run(&lab, &[])
        .ended(3)
        .says(&["4 records were rejected, and `max_rejects` of `l` allows 3", "no row of `customers`"]);
    lab.file("job.yaml", job(&in_sqlite(&lab), "reject", ""));
    run(&lab, &["--restart"]).ended(1).says(&["no row of `customers` matches", "`max_rejects: 100` (or `1%`) at `l`"]);
    // To a file, they are kept with their places as well.
    let text = job(&in_sqlite(&lab), "reject", "    max_rejects: 10%\n");
    lab.file("job.yaml", text.replace(", table: t}", "}").replace(&in_sqlite(&lab), "out.csv"));
    let report = lab.report(&["--restart"]);
    assert_eq!(report["rows_rejected"], json!(FILES * RECORDS / 10), "{report:#}");
    let kept = rejects(&lab);
    assert_eq!(kept.len(), FILES * RECORDS / 10);
    assert!(kept.iter().all(|reject| reject["line"].is_u64() && reject["raw"]["text"].is_string()), "{:?}", kept[0]);
}

/// Rows of `out.csv` of a job with the sources `f` and `r`, whose texts are given, and a lookup.
fn looked_up(facts: &str, reference: &str, lookup: &str) -> (Lab, Ran) {
    let lab = Lab::new();
    lab.file("f.csv", facts);
    lab.file("r.csv", reference);
    lab.file(
        "job.yaml",
        format!(
            "sources: {{f: {{read: f.csv, csv: {{}}}}, r: {{read: r.csv, csv: {{}}}}}}\ntransforms:\n  l:\n    lookup: \
             {{from: f, in: r, {lookup}}}\nsinks:\n  o: {{from: l, write: out.csv}}\n"
        ),
    );
    let ran = lab.run(&["run", "job.yaml"]);
    (lab, ran)
}

#[track_caller]
fn found(facts: &str, reference: &str, lookup: &str) -> Vec<String> {
    let (lab, ran) = looked_up(facts, reference, lookup);
    ran.ok();
    sorted(lab.read("out.csv").lines().skip(1).map(str::to_owned).collect())
}

#[test]
fn a_range_holds_its_beginning_and_not_its_end_and_null_is_open() {
    let facts = "n,customer,day\n1,17,2026-01-31\n2,17,2026-02-01\n3,17,2024-12-31\n4,18,1999-01-01\n5,18,2026-01-01\n\
                 6,,2026-01-01\n7,17,\n8,20,9999-12-31\n";
    let history = "id,valid_from,valid_to,seg\n17,2026-02-01,,b\n17,2025-01-01,2026-02-01,a\n18,,2026-01-01,c\n\
                   ,2000-01-01,,nobody\n20,,9999-12-31,d\n";
    let lookup = "on: {customer: id, day: {from: valid_from, before: valid_to}}, take: [seg], miss: null";
    let rows = found(facts, history, lookup);
    let segments: Vec<&str> = rows.iter().map(|row| row.rsplit(',').next().expect("a field")).collect();
    assert_eq!(segments, ["a", "b", "", "c", "", "", "", ""]);
    // Times are compared with dates, and one bound is enough.
    let times = "n,customer,day\n1,17,2026-02-01 00:00:00\n2,17,2026-01-31 23:59:59.999999\n";
    assert_eq!(found(times, history, lookup).iter().filter(|row| row.ends_with(",b")).count(), 1);
    let rates = "from_amount,rate\n0,0.1\n1000,0.05\n";
    let open = "on: {amount: {from: from_amount}}, take: [rate], duplicate: first, order_by: from_amount desc";
    assert_eq!(
        found("amount\n0\n999.99\n1000\n5000\n", rates, open),
        ["0.0,0.1", "1000.0,0.05", "5000.0,0.05", "999.99,0.1"]
    );
}

#[test]
fn ranges_that_overlap_are_duplicates() {
    let history = "id,valid_from,valid_to,seg\n1,2026-01-01,2026-03-01,a\n1,2026-02-01,,b\n";
    let lookup = "on: {id: id, day: {from: valid_from, before: valid_to}}, take: [seg], miss: null";
    let rows = found("id,day\n1,2026-01-15\n1,2026-03-01\n", history, lookup);
    assert_eq!(rows, ["1,2026-01-15,a", "1,2026-03-01,b"], "only where they overlap");
    let (_, ran) = looked_up("id,day\n1,2026-01-15\n1,2026-02-15\n", history, lookup);
    ran.ended(1).says(&[
        "several rows of `r` match",
        "at f.csv, line 3,",
        "text `id = 1, day = 2026-02-15`",
        "seg = a",
        "seg = b",
        "`duplicate: first` with `order_by`, or `all`",
    ]);
    let first = format!("{lookup}, duplicate: first, order_by: valid_from desc");
    assert_eq!(found("id,day\n1,2026-02-15\n", history, &first), ["1,2026-02-15,b"]);
    let all = format!("{lookup}, duplicate: all");
    assert_eq!(
        found("id,day\n1,2026-02-15\n2,2026-02-15\n", history, &all),
        ["1,2026-02-15,a", "1,2026-02-15,b", "2,2026-02-15,"]
    );
}

#[test]
fn duplicates_that_no_row_finds_are_no_fault() {
    let reference = "id,seg\n1,a\n2,b\n2,c\n";
    assert_eq!(found("id\n1\n1\n", reference, "on: [id], take: [seg]"), ["1,a", "1,a"]);
    let (_, ran) = looked_up("id\n1\n2\n", reference, "on: [id], take: [seg]");
    ran.ended(1).says(&["several rows of `r` match", "at f.csv, line 3,"]);
    let (_, ran) = looked_up("id\n2\n", "id,seg\n2,b\n2,b\n", "on: [id], take: [seg]");
    ran.ended(1).says(&["several rows of `r` match"]);
    let first = "on: [id], take: [seg], duplicate: first, order_by: [seg desc]";
    assert_eq!(found("id\n1\n2\n", reference, first), ["1,a", "2,c"]);
}

#[test]
fn keys_are_compared_by_their_values() {
    let lookup = "on: {a: b}, take: {found: n}, miss: null";
    let pairs = |facts: &str, reference: &str| found(&format!("a\n{facts}"), &format!("b,n\n{reference}"), lookup);
    assert_eq!(pairs("a\nA\n\"a \"\n", "a,1\n"), ["A,", "a ,", "a,1"], "texts are compared byte by byte");
    assert_eq!(pairs("1\n2\n", "1.0,1\n2.5,2\n"), ["1,1", "2,"], "an integer is a double");
    assert_eq!(pairs("1.0\n2.5\n", "1,1\n2,2\n"), ["1.0,1", "2.5,"]);
    assert_eq!(
        pairs("2026-01-01\n2026-01-02\n", "2026-01-01 00:00:00,1\n2026-01-02 00:00:01,2\n"),
        ["2026-01-01,1", "2026-01-02,"]
    );
}

#[test]
fn an_empty_reference_matches_nothing() {
    // Without a row, and without `columns`, a column of CSV is a text.
    assert_eq!(found("a\nx\n", "b,n\n", "on: {a: b}, take: {found: n}, miss: null"), ["x,"]);
    let (_, ran) = looked_up("a\nx\n", "b,n\n", "on: {a: b}, take: {found: n}");
    ran.ended(1).says(&["no row of `r` matches", "text `a = x`"]);
    let lab = lab_for(in_sqlite, "null", "");
    customers(&lab, 0..0, "s");
    run(&lab, &[]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), count(segment) FROM t"), [["2799", "0"]]);
}

/// The segment of a customer on a day.
type Segment<'a> = &'a dyn Fn(u64, u64) -> Option<String>;

/// Some rows of a reference that does not fit into the least memory there is, and what is found in it.
#[test]
fn a_reference_that_does_not_fit_is_probed_on_disk() {
    const ROWS: u64 = 300_000;
    let lab = Lab::new();
    let reference = (0..ROWS).fold("id,version,since,until,seg\n".to_owned(), |mut text, row| {
        let (id, version) = (row / 2, row % 2);
        let range = if version == 0 { ",10" } else { "10," };
        let _ = writeln!(text, "{id},{version},{range},segment {version} of customer {id} with a text of some length");
        text
    });
    lab.file("r.csv", reference);
    let facts = (0..60_000_u64).fold("n,customer,day\n".to_owned(), |mut text, n| {
        let _ = writeln!(text, "{n},{},{}", n * 7_919 % (ROWS / 2 + 10_000), n % 20);
        text
    });
    lab.file("f.csv", facts);
    let job = |lookup: &str, sink: &str| {
        format!(
            "sources:\n  f: {{read: f.csv, csv: {{columns: {{n: int64, customer: int64, day: int64}}}}}}\n  r: {{read: \
             r.csv, csv: {{columns: {{id: int64, version: int64, since: int64, until: int64, seg: \
             utf8}}}}}}\ntransforms:\n  l:\n    lookup: {{from: f, in: r, {lookup}}}\nsinks:\n  \
             o: {{from: l, {sink}}}\n"
        )
    };
    let ranged = "on: {customer: id, day: {from: since, before: until}}, take: {seg: seg}";
    let first = "on: {customer: id}, take: {seg: seg}, duplicate: first, order_by: version desc";
    let segment = |customer: u64, version: u64| {
        let known = customer < ROWS / 2;
        known.then(|| format!("segment {version} of customer {customer} with a text of some length"))
    };
    let expected = |of: Segment| -> Vec<Vec<String>> {
        let row = |n: u64| {
            let customer = n * 7_919 % (ROWS / 2 + 10_000);
            vec![n.to_string(), customer.to_string(), (n % 20).to_string(), of(customer, n % 20).unwrap_or_default()]
        };
        sorted((0..60_000).map(row).collect())
    };
    let of_range = |customer: u64, day: u64| segment(customer, u64::from(day >= 10));
    let of_first = |customer: u64, _: u64| segment(customer, 1);
    let cases: [(&str, Segment); 2] = [(ranged, &of_range), (first, &of_first)];
    for (lookup, of) in cases {
        lab.file("job.yaml", job(&format!("{lookup}, miss: null"), "write: out.csv"));
        let report = lab.report(&["--memory", "64MiB"]);
        let own = step(&report, "l", "transform");
        assert!(own["spilled_bytes"].as_u64().expect("a number") > 1 << 20, "{own:#}");
        assert_eq!(own["lookup"]["reference_rows"], json!(ROWS));
        assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), expected(of), "{lookup}");
    }
    // A load chunk by chunk probes it as well, group by group; it is written once.
    let target = Target::Sqlite(lab.path("out.db"));
    lab.file("job.yaml", job(&format!("{ranged}, miss: drop"), &format!("write: '{}', table: t", in_sqlite(&lab))));
    let ran = run_with(&lab, &["--memory", "64MiB"], &[("MILLSTREAM_FAIL_AT", "commit.after:2")]);
    assert_eq!(ran.code, -1);
    let ran = run(&lab, &["--resume", "--memory", "64MiB", "--json"]);
    let report = ran.ok().json();
    let spilled = step(&report, "l", "transform")["spilled_bytes"].as_u64().expect("a number");
    assert!((1 << 20..64 << 20).contains(&spilled), "{spilled}");
    let known = expected(&of_range).into_iter().filter(|row| !row[3].is_empty());
    let rows = target.query("SELECT n, customer, day, seg FROM t");
    assert_eq!(sorted(rows), sorted(known.map(|row| row.join("\t")).collect()));
    // What matches several rows is found there too.
    lab.file("job.yaml", job("on: {customer: id}, take: {seg: seg}, miss: drop", "write: out.csv"));
    run(&lab, &["--memory", "64MiB"]).ended(1).says(&["several rows of `r` match", "at f.csv, line "]);
    lab.file("job.yaml", job("on: {customer: id}, take: {seg: seg}, miss: drop, duplicate: all", "write: out.csv"));
    let report = lab.report(&["--memory", "64MiB"]);
    let known = (0..60_000_u64).filter(|n| n * 7_919 % (ROWS / 2 + 10_000) < ROWS / 2).count();
    assert_eq!(report["rows_written"], json!(known * 2));
}

#[test]
fn a_reference_that_cannot_be_read_as_a_whole_loads_nothing() {
    let lab = lab_for(in_sqlite, "null", "");
    fs_err::remove_file(lab.path("customers.csv")).expect("it is there");
    for file in 0..3 {
        lab.file(&format!("customers/{file}.csv"), format!("id,seg\n{file},s\n"));
    }
    lab.file("customers/3.csv", "id,seg\n1,x,y\n");
    lab.file("job.yaml", lab.read("job.yaml").replace("customers.csv", "'customers/*.csv'"));
    run(&lab, &[]).ended(1).says(&["customers/3.csv, line 2"]);
    assert!(!lab.path("out.db").exists() || sqlite(&lab.path("out.db"), "SELECT * FROM sqlite_schema").is_empty());
    // Its own rejects are counted before anything is loaded.
    let allowed = lab
        .read("job.yaml")
        .replace("csv: {columns: {id: int64, seg", "max_rejects: 1, csv: {columns: {id: int64, seg");
    lab.file("job.yaml", allowed);
    run(&lab, &[]).ok();
    assert_eq!(rejects(&lab).len(), 1);
    // A run that resumes reads it again, and counts them once.
    fs_err::remove_file(lab.path("out.db")).expect("it is there");
    killed(&lab, "commit.after:2");
    run(&lab, &["--resume"]).ok();
    assert_eq!(rejects(&lab).len(), 1);
    // They are no rows that could be loaded.
    let ran = lab.run(&["rejects", "--replay"]);
    let told = format!("{}{}", ran.stdout, ran.stderr);
    assert!(told.contains("they are of `customers`, which is only looked up in"), "{told}");
}

#[test]
fn lookups_go_with_other_steps() {
    let lab = Lab::new();
    facts(&lab);
    customers(&lab, 0..CUSTOMERS, "s");
    lab.file("regions.csv", "seg,region\ns 0,north\ns 1,south\n");
    lab.file(
        "job.yaml",
        "sources:\n  facts: {read: 'in/*', json: {}}\n  customers: {read: customers.csv, csv: {}}\n  regions: {read: \
         regions.csv, csv: {}}\ntransforms:\n  \
         with_regions: {lookup: {from: customers, in: regions, on: [seg], take: [region], miss: {value: {region: \
         elsewhere}}}}\n  \
         known: {sql: \"select * from with_regions where id < 40\"}\n  \
         once: {lookup: {from: facts, in: known, on: {customer: id}, take: {segment: seg, region: region}, miss: \
         'null'}}\n  \
         twice: {lookup: {from: once, in: customers, on: {customer: id}, take: {again: seg}, miss: drop}}\n  \
         own: {lookup: {from: customers, in: customers, on: {id: id}, take: {same: seg}}}\n  \
         sorted: {sort: {from: once, by: [id desc]}}\n  \
         after: {lookup: {from: sorted, in: customers, on: {customer: id}, take: {again: seg}, miss: 'null'}}\n\
         sinks:\n  a: {from: twice, write: a.csv}\n  b: {from: own, write: b.csv}\n  c: {from: customers, write: \
         c.csv}\n  d: {from: after, write: d.csv}\n",
    );
    lab.run(&["run", "job.yaml"]).ok();
    let rows = csv_rows(&lab.read("a.csv"));
    let lost = (0..FILES * RECORDS).filter(|id| customer(*id) >= CUSTOMERS).count();
    assert_eq!(rows.len(), FILES * RECORDS - lost);
    let header = lab.read("a.csv").lines().next().expect("a line").to_owned();
    assert_eq!(header, "id,customer,name,segment,region,again");
    for row in rows {
        let customer: usize = row[1].parse().expect("a number");
        let region = ["north", "south", "elsewhere"][customer.min(2)];
        let (segment, region) = if customer < 40 { (format!("s {customer}"), region) } else { (String::new(), "") };
        assert_eq!((&row[3], row[4].as_str(), &row[5]), (&segment, region, &format!("s {customer}")));
    }
    assert!(csv_rows(&lab.read("b.csv")).iter().all(|row| row[1] == row[2]));
    assert_eq!(csv_rows(&lab.read("c.csv")).len(), CUSTOMERS);
    let ids: Vec<usize> = csv_rows(&lab.read("d.csv")).iter().map(|row| row[0].parse().expect("a number")).collect();
    assert!(ids.len() == FILES * RECORDS && ids.is_sorted_by(|one, next| one > next), "the order is kept");
}

/// Two lookups in one reference share the rows of it, and are loaded chunk by chunk all the same.
#[test]
fn one_reference_serves_several_lookups() {
    let lab = lab_for(in_sqlite, "null", "");
    let text = lab.read("job.yaml").replace(
        "  t: {filter: {from: l, where: 'id <> 5'}}\n",
        "  m: {lookup: {from: l, in: customers, on: {customer: id, segment: seg}, take: {again: seg}, miss: drop}}\n  \
         t: {filter: {from: m, where: 'id <> 5 AND again = segment'}}\n",
    );
    lab.file("job.yaml", text);
    let explained = lab.run(&["explain", "job.yaml"]);
    assert!(explained.ok().stdout.contains("each exactly once"), "{}", explained.stdout);
    killed(&lab, "commit.after:2");
    customers(&lab, 0..CUSTOMERS, "changed");
    run(&lab, &["--resume"]).ended(1).says(&["`customers` has changed"]);
    customers(&lab, 0..CUSTOMERS, "s");
    run(&lab, &["--resume"]).ok();
    assert_rows(&Target::Sqlite(lab.path("out.db")), &expected("s", None));
    // The first rows come without a run.
    let preview = lab.run(&["preview", "job.yaml", "m"]);
    assert!(preview.ok().stdout.contains("again"), "{}", preview.stdout);
}

/// Each run of an incremental load looks up in the reference as it is, and a run that resumes another one as that did.
#[test]
fn incremental_loads_look_up_in_the_reference_of_their_chain() {
    let lab = lab_for(in_sqlite, "null", "");
    let target = Target::Sqlite(lab.path("out.db"));
    lab.file("job.yaml", lab.read("job.yaml").replace("read: 'in/*',", "read: 'in/*', incremental: true,"));
    let later = ["in/2.jsonl", "in/3.jsonl"].map(|name| (name, lab.read(name)));
    later.iter().for_each(|(name, _)| fs_err::remove_file(lab.path(name)).expect("it is there"));
    run(&lab, &[]).ok();
    later.iter().for_each(|(name, text)| drop(lab.file(name, text)));
    customers(&lab, 0..CUSTOMERS, "later");
    killed(&lab, "commit.after:2");
    customers(&lab, 0..CUSTOMERS, "changed");
    run(&lab, &["--resume"]).ended(1).says(&["`customers` has changed since the run to be resumed"]);
    customers(&lab, 0..CUSTOMERS, "later");
    run(&lab, &["--resume"]).ok();
    let mut rows = expected("s", Some("NULL"));
    let is_first =
        |row: &String| row.split('\t').next().and_then(|id| id.parse().ok()).is_some_and(|id: usize| id < 2 * RECORDS);
    rows.retain(|row, _| is_first(row));
    rows.extend(expected("later", Some("NULL")).into_iter().filter(|(row, _)| !is_first(row)));
    assert_rows(&target, &rows);
}

#[test]
fn a_reference_in_a_database_is_read_once() {
    for database in Database::both() {
        let lab = lab_for(in_sqlite, "drop", "");
        database.query("CREATE TABLE c (id BIGINT, seg VARCHAR(20))");
        let values: Vec<String> = (0..CUSTOMERS).map(|id| format!("({id}, 's {id}')")).collect();
        database.query(&format!("INSERT INTO c VALUES {}", values.join(", ")));
        let kind = if database.url.starts_with("mysql") { "mysql" } else { "postgres" };
        let text = lab.read("job.yaml").replace(
            "{read: customers.csv, csv: {columns: {id: int64, seg: utf8}}}",
            &format!("{{read: '{}', {kind}: {{table: c}}}}", database.url),
        );
        lab.file("job.yaml", text);
        killed(&lab, "commit.after:2");
        run(&lab, &["--resume"]).ok();
        assert_rows(&Target::Sqlite(lab.path("out.db")), &expected("s", None));
    }
}

#[test]
fn faults_of_a_lookup_have_their_places() {
    let mut session = Session::new();
    session.tree.file("facts.csv", "id,customer,day,note\n1,17,2026-01-01,x\n");
    session.tree.file("customers.csv", "id,seg,valid_from,valid_to,code\n17,a,2026-01-01,,007\n");
    let job = |lookup: &str| {
        format!(
            "sources:\n  facts: {{read: facts.csv, csv: {{}}}}\n  customers: {{read: customers.csv, csv: {{columns: \
             {{id: int64, seg: utf8, valid_from: date, valid_to: date, code: utf8}}}}}}\ntransforms:\n  l:\n    \
             lookup:\n      from: facts\n{lookup}sinks:\n  out: {{from: l, write: out/x.csv}}\n"
        )
    };
    let looks_up =
        |within: &str, on: &str, rest: &str| format!("      in: {within}\n      on: {on}\n      take: {rest}\n");
    let of_customers = |rest: &str| looks_up("customers", "{customer: id}", rest);
    for lookup in [
        looks_up("customers", "{custmer: id, day: {from: valid_form, before: valid_to}}", "{segment: sag}"),
        looks_up("customers", "{customer: code, day: {from: code, before: valid_to}}", "{note: seg}"),
        looks_up("custmers", "{customer: id}", "[seg]"),
        looks_up("customers", "{}", "[]"),
        of_customers("[seg, seg]\n      duplicate: first"),
        of_customers("[seg]\n      order_by: seg"),
        of_customers("[seg]\n      duplicate: first\n      order_by: [sag desc, valid_fom]"),
        of_customers("{since: valid_from}\n      miss: {value: {since: never}}"),
        looks_up(
            "customers",
            "{customer: id, day: {}, note: {from: seg}, id: {from: id}}",
            "[seg]\n      miss: {value: {sag: x}}",
        ),
        "      in: customers\n      take: [seg]\n      miss: sometimes\n".to_owned(),
    ] {
        session.tree.file("job.yaml", job(&lookup));
        session.fails(2, &["check", "job.yaml"]);
    }
    let incremental = job("      in: customers\n      on: {customer: id}\n      take: [seg]\n");
    session.tree.file("job.yaml", incremental.replace("customers.csv, ", "customers.csv, incremental: true, "));
    session.fails(2, &["check", "job.yaml"]);
    assert_transcript!("lookup_faults", session);
}

#[test]
fn explain_shows_lookups() {
    let lab = lab_for(in_sqlite, "null", "");
    let explained = lab.run(&["explain", "job.yaml"]);
    let lookup = "LookupExec: in=customers, on=[customer = id], take=[segment], miss=null, duplicate=fail, memory=";
    let told = ["each exactly once", lookup, "ReadExec: facts", "ReadExec: customers"];
    for part in told {
        assert!(explained.ok().stdout.contains(part), "`{part}` is not in {}", explained.stdout);
    }
    lab.file("job.yaml", lab.read("job.yaml").replace("miss: null", "miss: null, duplicate: all"));
    let explained = lab.run(&["explain", "job.yaml"]);
    let why = "`l` may give several rows for each record (`duplicate: all`)";
    assert!(explained.ok().stdout.contains(why), "{}", explained.stdout);
    lab.run(&["run", "job.yaml"]).ok();
    assert_rows(&Target::Sqlite(lab.path("out.db")), &expected("s", Some("NULL")));
}

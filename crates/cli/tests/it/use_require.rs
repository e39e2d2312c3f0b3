//! `require:` through the real binary: what does not hold ends the run before anything is touched.

use std::time::{Duration, SystemTime};

use millstream_testkit::{Answer, Fault, FaultServer, Object, Plan};
use rusqlite::Connection;
use serde_json::Value;

use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, names, sqlite};

/// A job with these requirements, whose sink would create a table and run a statement before it.
fn job(require: &str) -> String {
    format!(
        "require:\n{require}sources:\n  s: {{read: 'in/*.csv', csv: {{columns: {{id: int64}}}}}}\nsinks:\n  o: \
        {{from: s, \
         write: 'sqlite:out.db', table: t, before: ['CREATE TABLE IF NOT EXISTS touched (a int)']}}\n"
    )
}

fn lab(require: &str) -> Lab {
    let lab = Lab::with_job(&job(require));
    lab.file("in/a.csv", "id\n1\n2\n");
    lab
}

/// The run must be refused, with nothing touched.
#[track_caller]
fn refused(lab: &Lab, parts: &[&str]) {
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(4).says(parts).says(&["the job requires it before it runs (`require`); nothing was touched"]);
    assert!(!lab.path("out.db").exists());
    assert_eq!(last_run(lab)["outcome"], "failed");
    lab.run(&["runs", "--unfinished"]).ok();
}

fn last_run(lab: &Lab) -> Value {
    lab.run(&["runs", "last", "--json"]).ok().json()["run"].clone()
}

fn loads(lab: &Lab) -> Ran {
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*) FROM t"), [["2"]]);
    ran
}

#[test]
fn a_file_has_to_exist() {
    let lab = lab("  - exists: 'ready/*.ok'\n");
    refused(&lab, &["there is no ready/*.ok"]);
    lab.file("ready/1.ok", "");
    loads(&lab);
    let lab = self::lab("  - {exists: '${today}.ok', message: the exports of today are late}\n");
    let ran = lab.run(&["run", "job.yaml", "--set", "today=2026-01-31"]);
    ran.ended(4).says(&["error: the exports of today are late", "cause there is no 2026-01-31.ok"]);
}

#[test]
fn a_url_has_to_exist() {
    let status = |status| Object::new("").always(Fault::Answer(Answer::status(status)));
    let answers = Plan::new()
        .object("/there.ok", Object::new(""))
        .object("/gone.ok", status(404))
        .object("/forbidden.ok", status(403));
    let server = FaultServer::start(answers);
    let lab = lab(&format!("  - exists: {}\n", server.url("/gone.ok")));
    refused(&lab, &["there is no http://", "/gone.ok"]);
    lab.file("job.yaml", job(&format!("  - exists: {}\n", server.url("/there.ok"))));
    loads(&lab);
    // That it cannot be told is a failure of another kind, which `skip` does not hide.
    lab.file("job.yaml", job(&format!("  - {{exists: '{}', otherwise: skip}}\n", server.url("/forbidden.ok"))));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the server answers 403"]);
}

#[test]
fn a_query_has_to_give_something_true() {
    let lab = lab("  - query: {in: 'sqlite:control.db', sql: 'SELECT closed FROM days'}\n");
    let control = Connection::open(lab.path("control.db")).expect("a database");
    control.execute_batch("CREATE TABLE days (closed int)").expect("a table");
    refused(&lab, &["the query on sqlite:control.db gave no row"]);
    for (value, found) in [("NULL", "null"), ("0", "0")] {
        control.execute_batch(&format!("DELETE FROM days; INSERT INTO days VALUES ({value})")).expect("a row");
        refused(&lab, &[&format!("the query on sqlite:control.db gave {found}")]);
    }
    control.execute_batch("UPDATE days SET closed = 1").expect("a row");
    loads(&lab);
    lab.file("job.yaml", job("  - query: {in: 'sqlite:control.db', sql: 'SELECT nothing'}\n"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["syntax error"]);
}

#[test]
fn servers_are_asked_as_well() {
    for database in Database::both() {
        database.query("CREATE TABLE days (closed INT)");
        let lab = lab(&format!("  - query: {{in: '{}', sql: SELECT max(closed) FROM days}}\n", database.url));
        refused(&lab, &["the query on ", "gave null"]);
        database.query("INSERT INTO days VALUES (1)");
        loads(&lab);
        let missing = lab.read("job.yaml").replace("FROM days", "FROM nights");
        lab.file("job.yaml", missing);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["nights"]);
    }
}

#[test]
fn a_source_has_to_have_files_enough_and_old_enough() {
    let lab = lab("  - units: {of: s, min: 3}\n");
    refused(&lab, &["`s` has 1 file, and at least 3 are required"]);
    fs_err::remove_file(lab.path("in/a.csv")).expect("a file");
    refused(&lab, &["`s` has no files, and at least 3 are required"]);
    for file in ["b", "c", "d"] {
        lab.file(&format!("in/{file}.csv"), "id\n1\n");
    }
    lab.run(&["run", "job.yaml"]).ok();

    let aged = |name: &str, age: i64| {
        let path = lab.file(name, "id\n1\n");
        let file = fs_err::File::options().write(true).open(path).expect("a file");
        let now = SystemTime::now();
        let time =
            if age < 0 { now + Duration::from_secs(age.unsigned_abs()) } else { now - Duration::from_secs(age as u64) };
        file.file().set_modified(time).expect("it takes the time");
    };
    for file in ["b", "c", "d"] {
        aged(&format!("in/{file}.csv"), 7_300);
    }
    lab.file("job.yaml", job("  - age: {of: s, min: 1h, max: 3h}\n"));
    lab.run(&["run", "job.yaml"]).ok();
    for (age, what) in [(605, "that was changed 10 minutes 5"), (-3_600, "that was changed 0 milliseconds ago")] {
        aged("in/b.csv", age);
        lab.run(&["run", "job.yaml"]).ended(4).says(&[
            "`s` has a file",
            what,
            "in/b.csv, and at least 1 hour are required",
        ]);
    }
    for file in ["b", "c", "d"] {
        aged(&format!("in/{file}.csv"), 90_000);
    }
    lab.run(&["run", "job.yaml"]).ended(4).says(&["the newest file of `s`", "was changed 1 day 1 hour ago"]);
}

#[test]
fn a_run_is_skipped_if_the_job_says_so() {
    let lab = lab("  - {exists: today.ok, otherwise: skip}\n  - units: {of: s, min: 9}\n");
    lab.run(&["run", "job.yaml"]).ok().says(&["skipped: there is no today.ok"]);
    assert!(!lab.path("out.db").exists());
    let last = last_run(&lab);
    assert_eq!((last["outcome"].as_str(), last["message"].as_str()), (Some("skipped"), Some("there is no today.ok")));
    assert_eq!(lab.run(&["runs", "--unfinished"]).ok().stdout, "nothing is unfinished\n");
    let report = lab.report(&[]);
    assert_eq!((report["skipped_run"].as_str(), report["rows_read"].as_u64()), (Some("there is no today.ok"), Some(0)));
    // Requirements are looked at in their order.
    lab.file("today.ok", "");
    refused(&lab, &["`s` has 1 file"]);
    lab.file("job.yaml", job("  - {exists: today.ok, otherwise: skip}\n"));
    lab.run(&["run", "job.yaml", "--resume"]).ok();
    assert_eq!(names(&lab.path("in")), ["a.csv"]);
}

#[test]
fn a_run_that_resumes_another_one_does_not_ask_again() {
    let lab = lab("  - exists: today.ok\n");
    lab.file("today.ok", "");
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_FAIL_AT", "publish.before");
    command.output().expect("it runs");
    assert_eq!(last_run(&lab)["outcome"], "killed");
    fs_err::remove_file(lab.path("today.ok")).expect("a file");
    lab.run(&["run", "job.yaml", "--resume"]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*) FROM t"), [["2"]]);
    // A new logical run does.
    lab.run(&["run", "job.yaml"]).ended(4);
}

#[test]
fn mistakes_in_requirements_are_lints() {
    let lab = lab(
        "  - exists: a\n    units: {of: s, min: 1}\n  - {otherwise: skip}\n  - units: {of: t, min: 1}\n  - age: {of: \
         s}\n  - query: {in: data.csv, sql: SELECT 1}\n  - exists: 'sqlite:a.db'\n  - {exists: a, otherwise: \
         maybe}\n  - \
         query: {in: 'sqlite:a.db', sql: SELECT 1, sqlite: {tabel: t}}\n",
    );
    lab.run(&["check", "job.yaml"]).ended(2).says(&["the text `maybe` is not a choice for `otherwise`"]);
    let sound = lab.read("job.yaml").replace(", otherwise: maybe", "").replace("{of: s}", "{of: s, min: 1h}");
    lab.file("job.yaml", sound.replace("{tabel: t}", "{}"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&[
        "this requirement has both `exists` and `units`",
        "this requirement says nothing",
        "there is no source `t`",
        "this is no database",
        "it is a database",
    ]);
}

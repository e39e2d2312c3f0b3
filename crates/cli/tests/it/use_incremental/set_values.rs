//! Incremental sources under several sets of `--set` values, each of which has loads of its own: a run says so before
//! it loads what another set has.

use crate::use_support::{Lab, Ran, sqlite};

const FILES: &str = "  orders: {read: '${DIR:-in}/*.csv', csv: {columns: {id: int64}}, incremental: true, max_rejects: \
                     '${REJECTS:-0}'}\n";

const TABLE: &str = "  o: {from: orders, write: 'sqlite:out.db', table: t}\n";

/// What is the same in all warnings.
const AGAIN: &str = "before with other `--set` values";

fn lab(sinks: &str) -> Lab {
    let lab = Lab::with_job(&format!("sources:\n{FILES}sinks:\n{sinks}"));
    lab.file("in/1.csv", "id\n1\n");
    lab.file("other/1.csv", "id\n2\n");
    lab
}

fn run(lab: &Lab, arguments: &[&str]) -> Ran {
    lab.run(&[&["run", "job.yaml"], arguments].concat())
}

#[track_caller]
fn does_not_warn(ran: &Ran) {
    assert!(!ran.ok().stderr.contains(AGAIN), "{}", ran.stderr);
}

fn rows(lab: &Lab) -> String {
    sqlite(&lab.path("out.db"), "SELECT count(*) FROM t")[0][0].clone()
}

#[test]
fn files_that_other_values_have_loaded_are_a_warning() {
    let checked = TABLE.replace("table: t", "table: t, checks: [{not_null: [id]}]");
    let files = "  o: {from: orders, write: 'out/{run}.csv', mode: append}\n";
    for sinks in [TABLE, &checked, files] {
        let lab = lab(sinks);
        does_not_warn(&run(&lab, &[]));
        run(&lab, &["--set", "REJECTS=5"]).ok().says(&[
            "warning: `o` has loaded files of `orders` before with other `--set` values (REJECTS was not set), and \
             this run loads them again",
            "hint: each set of `--set` values knows only what it has loaded itself",
            "environment",
        ]);
        // From now on these values have loads of their own.
        does_not_warn(&run(&lab, &["--set", "REJECTS=5"]));
        run(&lab, &["--set", "REJECTS=6"]).ok().says(&["(REJECTS was not set)", "(REJECTS was another)"]);
        does_not_warn(&run(&lab, &[]));
    }
}

#[test]
fn values_of_which_the_run_history_knows_nothing_are_a_warning() {
    let lab = lab(TABLE);
    run(&lab, &["--set", "REJECTS=5"]).ok();
    let told = run(&lab, &["--state", "elsewhere"]);
    told.ok().says(&["`o` has loaded files of `orders` before with other `--set` values, and"]);
}

#[test]
fn what_does_not_come_twice_is_no_warning() {
    let lab = lab(TABLE);
    does_not_warn(&run(&lab, &[]));
    // A variable of the environment belongs to no set.
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("REJECTS", "5");
    let ran = crate::use_support::finish(command, None);
    does_not_warn(&ran);
    ran.says(&["nothing new"]);
    // Other files, a series, and what is loaded again as it was asked for.
    does_not_warn(&run(&lab, &["--set", "DIR=other"]));
    assert_eq!(rows(&lab), "2");
    does_not_warn(&run(&lab, &["--for", "REJECTS=7,8"]));
    does_not_warn(&run(&lab, &["--set", "REJECTS=9", "--restart"]));
    // Another table, and rows that are found by their keys.
    lab.file("job.yaml", lab.read("job.yaml").replace("table: t", "table: u"));
    does_not_warn(&run(&lab, &["--set", "REJECTS=10"]));
    sqlite(&lab.path("out.db"), "CREATE TABLE m (id INTEGER PRIMARY KEY)");
    lab.file("job.yaml", lab.read("job.yaml").replace("table: u", "table: m, mode: merge, key: [id]"));
    does_not_warn(&run(&lab, &[]));
    does_not_warn(&run(&lab, &["--set", "REJECTS=10"]));
}

#[test]
fn rows_of_a_database_that_other_values_have_loaded_are_a_warning() {
    let lab = Lab::with_job(
        "sources:\n  orders: {read: 'sqlite:src.db', sqlite: {query: 'SELECT id, at FROM src WHERE id <= ${N:-9}'}, \
         incremental: {by: at, lag: 1s}}\nsinks:\n  o: {from: orders, write: 'sqlite:out.db', table: t}\n",
    );
    sqlite(&lab.path("src.db"), "CREATE TABLE src (id INTEGER, at TEXT)");
    sqlite(&lab.path("src.db"), "INSERT INTO src VALUES (1, '2026-01-01 00:00:00')");
    does_not_warn(&run(&lab, &[]));
    run(&lab, &["--set", "N=9"]).ok().says(&["`o` has loaded rows of `orders` before", "(N was not set)"]);
}

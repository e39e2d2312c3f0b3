//! Sequences through the real binary: steps in order, conditions, loops, results, resuming, processes.

mod example;
mod resuming;
mod steps;

use serde_json::Value;

use crate::use_support::{Lab, Ran, sqlite};

/// A job that appends the lines of `in.csv`, each with a tag, to a table.
const LOAD: &str = "sources:\n  s:\n    read: in.csv\n    csv: {columns: {id: int64}}\ntransforms:\n  t: {select: \
                    {from: s, columns: [id, \"'${TAG}' AS tag\"]}}\nsinks:\n  o: {from: t, write: 'sqlite:out.db', \
                    table: t}\n";

/// A folder with that job, three lines for it, and the sequence `nightly.yaml`.
fn lab(sequence: &str) -> Lab {
    let lab = Lab::new();
    lab.file("load.yaml", LOAD);
    lab.file("in.csv", "id\n1\n2\n3\n");
    lab.file("nightly.yaml", sequence);
    lab
}

fn rows(lab: &Lab, query: &str) -> Vec<Vec<String>> {
    sqlite(&lab.path("out.db"), query)
}

/// What the steps of the last run have come to, as `name=outcome`.
fn outcomes(ran: &Ran) -> Vec<String> {
    outcomes_of(&ran.json())
}

fn outcomes_of(report: &Value) -> Vec<String> {
    let of = |step: &Value| {
        format!("{}={}", step["name"].as_str().expect("a name"), step["outcome"].as_str().expect("an outcome"))
    };
    report["steps"].as_array().expect("steps").iter().map(of).collect()
}

fn step<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["steps"].as_array().expect("steps").iter().find(|step| step["name"] == name).expect("a step")
}

#[test]
fn steps_run_in_order_and_use_results_of_earlier_ones() {
    let lab = lab("parameters: {DAY: '${today - 1 day}', LEAST: 2}\nsteps:\n  done:\n    command: [sh, -c, 'echo \
                   ${steps.load.rows_written} ${steps.rows.n} ${DAY} > done.txt']\n    needs: [rows]\n    when: \
                   steps.rows.n > LEAST\n  rows: {query: 'SELECT count(*) AS n FROM t', from: 'sqlite:out.db', \
                   needs: [load]}\n  load: {job: load.yaml, set: {TAG: '${DAY}'}}\n");
    let ran = lab.run(&["run", "nightly.yaml"]);
    ran.ok().says(&["load: begins (job load.yaml)", "load: done in", "3 rows written", "3 of 3 steps done"]);
    let tags = rows(&lab, "SELECT DISTINCT tag FROM t");
    assert_eq!(lab.read("done.txt").trim(), format!("3 3 {}", tags[0][0]));
    // All of it stands in the history: the sequence, and its job.
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let kinds: Vec<_> = runs["runs"].as_array().expect("runs").iter().map(|run| run["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("job"), Some("sequence")]);
    assert_eq!(runs["runs"][0]["of_step"]["step"], "load");
    assert_eq!(runs["runs"][1]["rows_written"], 3);
}

#[test]
fn steps_run_in_the_folder_of_their_file_however_started() {
    let lab = Lab::new();
    fs_err::create_dir(lab.path("etc")).expect("a folder");
    lab.file("etc/load.yaml", LOAD);
    lab.file("etc/in.csv", "id\n7\n");
    lab.file(
        "etc/nightly.yaml",
        "steps:\n  load: {job: load.yaml, set: {TAG: a}}\n  pwd: {command: [sh, -c, 'pwd > pwd.txt'], needs: load}\n",
    );
    lab.run(&["run", "etc/nightly.yaml"]).ok();
    assert!(lab.read("etc/pwd.txt").trim().ends_with("/etc"));
    assert_eq!(sqlite(&lab.path("etc/out.db"), "SELECT id, tag FROM t"), [["7", "a"]]);
}

/// A folder whose name has wildcards, and patterns in it: what is waited for, loops, queries and items.
#[test]
fn files_and_databases_are_found_from_the_folder_of_the_file() {
    let lab = Lab::new();
    fs_err::create_dir_all(lab.path("sub [1]/in")).expect("a folder");
    lab.file("sub [1]/in/a.csv", "n\n1\n");
    lab.file("sub [1]/in/b.csv", "n\n2\n");
    lab.file("sub [1]/list.txt", "in/b.csv\n");
    lab.file(
        "sub [1]/job.yaml",
        "sources:\n  s: {read: 'in/*.csv', csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: 'sqlite:x.db', \
         table: t}\n",
    );
    lab.file(
        "sub [1]/seq.yaml",
        "steps:\n  load: {job: job.yaml}\n  waits: {needs: load, wait: {file: 'in/{b,c}.csv', for: 60s}}\n  \
         asks: {needs: load, query: SELECT sum(n) AS sum FROM t, from: 'sqlite:x.db'}\n  \
         loops: {needs: load, for_each: {FILE: {files: 'in/*.csv'}}, command: [cat, '${FILE}']}\n  \
         lists: {needs: load, for_each: {FILE: {files: '@list.txt'}}, command: [cat, '${FILE}']}\n  \
         rows: {needs: load, for_each: {N: {query: SELECT n FROM t, from: 'sqlite:x.db'}}, command: ['true', \
         '${N}']}\n  \
         tells: {needs: [waits, asks], command: [echo, '${steps.waits.file} ${steps.asks.sum}']}\n",
    );
    let ran = lab.run(&["run", "sub [1]/seq.yaml", "--json"]);
    let report = ran.ok().json();
    let items = |name: &str| -> Vec<Value> {
        step(&report, name)["parts"].as_array().expect("parts").iter().map(|part| part["item"].clone()).collect()
    };
    assert_eq!(items("loops"), ["FILE=in/a.csv", "FILE=in/b.csv"], "{report}");
    assert_eq!(items("lists"), ["FILE=in/b.csv"], "{report}");
    assert_eq!(items("rows").len(), 2, "{report}");
    assert_eq!(step(&report, "tells")["results"]["output"], "in/b.csv 3", "{report}");
}

#[test]
fn every_kind_of_when() {
    let lab = lab("steps:\n  good: {command: ['true']}\n  bad: {command: [sh, -c, 'echo no >&2; exit 3']}\n  behind: \
                   {command: [touch, behind], needs: [bad]}\n  alarm: {command: [touch, alarm], needs: [behind], \
                   when: failure}\n  calm: {command: [touch, calm], needs: [good], when: failure}\n  clean: \
                   {command: [touch, clean], needs: [bad, good], when: always}\n  yes: {command: [touch, 'yes'], \
                   needs: [good], when: steps.good.exit_code = 0}\n  no: {command: [touch, 'no'], needs: [good], \
                   when: steps.good.exit_code > 0}\n  never: {command: [touch, never], needs: [bad], when: 'true'}\n");
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ended(1).says(&["bad: failed: it ended with status 3: no", "error: the step `bad` has failed"]);
    let expected = [
        "good=success",
        "bad=failed",
        "behind=not_run",
        "alarm=success",
        "calm=skipped",
        "clean=success",
        "yes=success",
        "no=skipped",
        "never=not_run",
    ];
    assert_eq!(outcomes(&ran), expected);
    let there = |name: &&str| lab.path(name).exists();
    let names = ["behind", "alarm", "calm", "clean", "yes", "no", "never"];
    assert_eq!(names.into_iter().filter(there).collect::<Vec<_>>(), ["alarm", "clean", "yes"]);
}

#[test]
fn a_job_that_is_changed_while_the_sequence_runs_runs_as_it_was() {
    let lab =
        lab("steps:\n  edit: {command: [sh, -c, 'echo broken > load.yaml; rm gone.yaml']}\n  load: {job: load.yaml, \
             set: {TAG: a}, needs: edit}\n  gone: {job: gone.yaml, set: {TAG: b}, needs: load}\n");
    lab.file("gone.yaml", LOAD);
    lab.run(&["run", "nightly.yaml"]).ok();
    assert_eq!(rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag"), [["a", "3"], ["b", "3"]]);
}

#[test]
fn sequences_nest_and_give_values() {
    let lab = lab("steps:\n  each: {sequence: shop.yaml, for_each: {SHOP: [a, b, c]}, parallel: 2}\n  end: {command: \
                   [sh, -c, 'echo ${steps.each.items} > end.txt'], needs: each}\n");
    lab.file(
        "shop.yaml",
        "parameters: {SHOP: }\nsteps:\n  load: {job: load.yaml, set: {TAG: '${SHOP}'}}\n  n: {query: \"SELECT \
         count(*) AS n FROM t WHERE tag = '${SHOP}'\", from: 'sqlite:out.db', needs: load}\n  ok: {command: [touch, \
         'ok-${SHOP}'], needs: n, when: steps.n.n = 3}\n",
    );
    lab.run(&["run", "nightly.yaml"]).ok();
    assert_eq!(
        rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag"),
        [["a", "3"], ["b", "3"], ["c", "3"]]
    );
    assert!(["ok-a", "ok-b", "ok-c"].iter().all(|name| lab.path(name).exists()));
    assert_eq!(lab.read("end.txt").trim(), "3");
}

#[test]
fn mistakes_are_found_before_anything_runs() {
    let lab =
        lab("steps:\n  touch: {command: [touch, touched]}\n  load: {job: load.yaml, needs: [tuch]}\n  other: {job: \
             other.yaml}\n  bad: {job: bad.yaml, retries: {count: many}}\n");
    lab.file("bad.yaml", "sources:\n  s: {raed: in.csv}\n");
    for command in ["run", "check", "explain"] {
        let ran = lab.run(&[command, "nightly.yaml"]);
        ran.ended(2).says(&["tuch", "there is no file `other.yaml`", "many", "raed"]);
    }
    assert!(!lab.path("touched").exists());
    let good = self::lab("steps: {load: {job: load.yaml, set: {TAG: a}}}\n");
    good.run(&["check", "nightly.yaml"]).ok().says(&["nightly.yaml can run"]);
    // What is for one kind of file only is refused for the other.
    good.run(&["run", "load.yaml", "--set", "TAG=a", "--from", "x"]).ended(2).says(&["`--from` is for sequences"]);
    good.run(&["run", "nightly.yaml", "--for", "A=1..3"]).ended(2).says(&["`--for` is for jobs", "for_each"]);
    good.run(&["run", "nightly.yaml", "--from", "laod"]).ended(2).says(&["there is no step `laod`", "`load`"]);
}

#[test]
fn explain_shows_layers_and_the_longest_way() {
    let lab =
        lab("steps:\n  a: {command: [sleep, '0.3']}\n  b: {command: ['true']}\n  c: {command: ['true'], needs: [a, \
             b], when: always}\n");
    lab.run(&["explain", "nightly.yaml"]).ok().prints(&[
        "3 steps",
        "a  command sleep 0.3",
        "after a, b",
        "when always",
    ]);
    lab.run(&["run", "nightly.yaml"]).ok();
    lab.run(&["explain", "nightly.yaml"]).ok().prints(&["* a", "the longest way takes", ": a, c"]);
    let json = lab.run(&["explain", "nightly.yaml", "--json"]).ok().json();
    assert_eq!(json["steps"][2]["layer"], 1);
    assert!(json["steps"][0]["took_ms"].as_u64().expect("a time") >= 300, "{json}");
}

#[test]
fn a_dry_run_starts_nothing() {
    let lab = lab("steps:\n  a: {command: [touch, a]}\n  b: {command: [touch, b], needs: a}\n");
    lab.run(&["run", "nightly.yaml", "--dry-run"]).ok().prints(&["a  runs (command: touch a)", "b  runs"]);
    assert!(!lab.path("a").exists());
    lab.run(&["run", "nightly.yaml", "--only", "b"]).ok();
    assert!(!lab.path("a").exists() && lab.path("b").exists());
    lab.run(&["run", "nightly.yaml"]).ok();
    fs_err::remove_file(lab.path("a")).expect("removed");
    lab.run(&["run", "nightly.yaml", "--from", "b", "--dry-run"]).ok().prints(&["a  is done", "b  runs"]);
    lab.run(&["run", "nightly.yaml", "--from", "b"]).ok();
    assert!(!lab.path("a").exists());
}

#[test]
fn a_condition_names_parameters_and_results_alone() {
    let lab = lab(
        "parameters: {DAY: '2026-01-31'}\nsteps:\n  a: {command: ['true']}\n  inner: {sequence: inner.yaml}\n  b:\n    \
             command: ['true']\n    needs: [a]\n    when: |\n      DAY > '2026'\n        OR day < DYA AND step.a.ok\n",
    );
    lab.file("inner.yaml", "steps: {only: {command: ['true'], when: DAY = '2026-01-31'}}\n");
    let ran = lab.run(&["check", "nightly.yaml"]);
    ran.ended(2).says(&[
        "nightly.yaml:10:18",
        "`DYA` is neither a parameter nor a result of a step",
        "did you mean `DAY`? parameters: DAY; results are `steps.NAME.RESULT`",
        "nightly.yaml:10:26",
        "`step.a.ok` is neither",
        "inner.yaml:1:",
        "there are no parameters",
    ]);
}

#[test]
fn check_looks_where_the_jobs_of_a_sequence_run() {
    let lab = lab("steps: {}\n");
    lab.file("sub/s.yaml", "steps: {load: {job: load.yaml}}\n");
    let source = "sources: {s: {read: there.csv, csv: {columns: {a: int64}, header: false}}}\n";
    lab.file("sub/load.yaml", format!("{source}sinks: {{o: {{from: s, write: discard}}}}\n"));
    lab.file("sub/there.csv", "1\n");
    lab.run(&["check", "sub/s.yaml"]).ok().says(&["sub/s.yaml can run"]);
    fs_err::rename(lab.path("sub/there.csv"), lab.path("there.csv")).expect("moved");
    let ran = lab.run(&["check", "sub/s.yaml"]);
    assert_ne!(ran.code, 0);
    ran.says(&["there.csv", "s of sub/load.yaml"]);
}

#[test]
fn what_starts_a_sequence_is_checked() {
    let lab = lab("steps: {}\n");
    for (schedule, place, what) in [
        ("{after: ./nightly.yaml}", "1:19", "the sequence would start itself"),
        ("{after: load.yaml}", "1:19", "`load.yaml` is no sequence"),
        ("{after: [a.yaml]}", "1:", "`after` names one sequence"),
        ("{message: {from: 'redis://127.0.0.1:1', redis: {stream: x}}}", "1:", "`group` is missing"),
        ("{cron: '@daily', overlap: skp}", "1:37", "did you mean `skip`?"),
    ] {
        lab.file("nightly.yaml", format!("schedule: {schedule}\nsteps: {{a: {{command: ['true']}}}}\n"));
        let ran = lab.run(&["check", "nightly.yaml"]);
        ran.ended(2).says(&[&format!("nightly.yaml:{place}"), what]);
    }
}

#[test]
fn check_shows_all_mistakes_of_a_sequence_and_its_jobs_at_once() {
    let lab = lab("schedule: {after: gone.yaml}\nsteps:\n  load: {job: load.yaml, set: {TAG: a}, needs: [nothing]}\n");
    lab.file("load.yaml", LOAD.replace("columns: [id,", "columns: [di,"));
    let ran = lab.run(&["check", "nightly.yaml"]);
    ran.ended(2).says(&["nightly.yaml:1:19", "there is no file `gone.yaml`", "there is no step `nothing`", "`di`"]);
    // What runs by hand needs no schedule.
    lab.file("load.yaml", LOAD);
    lab.file("nightly.yaml", "schedule: {after: gone.yaml}\nsteps:\n  load: {job: load.yaml, set: {TAG: a}}\n");
    lab.run(&["run", "nightly.yaml"]).ok();
    lab.file(
        "nightly.yaml",
        "steps:\n  q: {query: 'SELECT (1 FROM t', from: 'sqlite:out.db'}\n  w:\n    wait: {query: SELECT 1 AS n, from: \
         'sqlite:out.db', until: steps.q.n > 0}\n    needs: [q]\n",
    );
    let ran = lab.run(&["check", "nightly.yaml"]);
    ran.ended(2).says(&["nightly.yaml:4:", "`until` knows the columns of the query alone"]);
    lab.file("nightly.yaml", "steps:\n  q: {query: 'SELECT (1 FROM t', from: 'sqlite:out.db'}\n");
    lab.run(&["check", "nightly.yaml"]).ok().says(&["warning", "nightly.yaml:2:", "the SQL does not parse"]);
}

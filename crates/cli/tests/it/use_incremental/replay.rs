//! Rejects of incremental sources that are loaded again: each record comes once, whichever runs have rejected it, and
//! whichever have died.

use std::path::Path;

use serde_json::Value;

use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::{Lab, names, sqlite};

/// A record, `x`, whose column is no number, until the job says that it is text.
fn lab(source: &str, sinks: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, z: int64}}}}, incremental: true, add: [_uri], \
         max_rejects: 5{source}}}\ntransforms:\n  t: {{sql: 'SELECT id, CAST(z AS VARCHAR) AS z, _uri FROM s'}}\n\
         sinks:\n{sinks}"
    ));
    lab.file("in/a.jsonl", "{\"id\": 1, \"z\": 1}\n{\"id\": 2, \"z\": \"x\"}\n{\"id\": 3, \"z\": 3}\n");
    lab
}

fn sink(name: &str, url: &str, more: &str) -> String {
    format!("  {name}: {{from: t, write: '{url}', table: t{more}}}\n")
}

/// The job takes `x` from now on.
fn mend(lab: &Lab) {
    lab.file("job.yaml", lab.read("job.yaml").replace("z: int64", "z: utf8"));
}

/// The file has more bad records than the job allows.
fn allow_one(lab: &Lab) {
    lab.file("job.yaml", lab.read("job.yaml").replace("max_rejects: 5", "max_rejects: 1"));
    lab.file("in/a.jsonl", lab.read("in/a.jsonl") + "{\"id\": 4, \"z\": \"y\"}\n");
}

/// Replays the rejects of all runs, the first one first. How many were loaded.
fn replay_all(lab: &Lab) -> u64 {
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let mut names: Vec<String> = runs["runs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|run| run["run"].as_str().expect("a name").to_owned())
        .collect();
    names.sort();
    let replayed = |run: String| {
        let replayed: Value = lab.run(&["rejects", &run, "--replay", "--json"]).json();
        replayed["replayed"]["loaded"].as_u64().unwrap_or(0)
    };
    names.into_iter().map(replayed).sum()
}

const IDS: &str = "SELECT id FROM t ORDER BY id";

fn ids(file: &Path) -> Vec<String> {
    sqlite(file, IDS).concat()
}

#[test]
fn a_record_that_a_killed_run_has_rejected_too_comes_once() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        for (more, kills) in [
            ("", &["rejects.after", "commit.before", "commit.after"][..]),
            (", atomic: true", &["publish.before", "publish.after"]),
        ] {
            for kill in kills {
                let place = Lab::new();
                let target = make(&place);
                let lab = lab("", &sink("o", &target.url(), more));
                lab.killed(kill);
                lab.run(&["run", "job.yaml"]).ok();
                mend(&lab);
                assert_eq!(replay_all(&lab), 1, "{more} {kill}");
                assert_eq!(target.query(IDS), ["1", "2", "3"], "{more} {kill}");
                assert_eq!(replay_all(&lab), 0, "{more} {kill}");
                lab.run(&["run", "job.yaml"]).ok();
                assert_eq!(target.query(IDS), ["1", "2", "3"], "{more} {kill}");
            }
        }
    }
}

/// The run that failed has published nothing, and the next one takes its file: before a replay or after it.
#[test]
fn what_a_failed_run_has_rejected_is_left_to_the_next_run() {
    for more in ["", ", atomic: true"] {
        for replays_first in [false, true] {
            let lab = lab("", &sink("o", "sqlite:out.db", more));
            allow_one(&lab);
            lab.run(&["run", "job.yaml"]).ended(3);
            mend(&lab);
            if replays_first {
                let runs = lab.run(&["rejects", "--replay"]);
                runs.ended(0);
                runs.prints(&["2 rejects cannot be loaded again: their file was not loaded"]);
            }
            lab.run(&["run", "job.yaml"]).ok();
            assert_eq!(replay_all(&lab), 0);
            assert_eq!(ids(&lab.path("out.db")), ["1", "2", "3", "4"], "{more} {replays_first}");
        }
    }
}

#[test]
fn each_sink_gets_a_record_once() {
    let sinks = || sink("a", "sqlite:a.db", ", atomic: true") + &sink("b", "sqlite:b.db", ", atomic: true");
    for kill in ["publish.before", "publish.next:1"] {
        let lab = lab("", &sinks());
        lab.killed(kill);
        lab.run(&["run", "job.yaml"]).ok();
        mend(&lab);
        replay_all(&lab);
        for file in ["a.db", "b.db"] {
            assert_eq!(ids(&lab.path(file)), ["1", "2", "3"], "{kill} {file}");
        }
    }
    // A further sink, into which the file comes later.
    let lab = lab("", &sinks());
    lab.run(&["run", "job.yaml"]).ok();
    lab.file("job.yaml", lab.read("job.yaml") + &sink("c", "sqlite:c.db", ", atomic: true"));
    lab.run(&["run", "job.yaml"]).ok();
    mend(&lab);
    replay_all(&lab);
    for file in ["a.db", "b.db", "c.db"] {
        assert_eq!(ids(&lab.path(file)), ["1", "2", "3"], "{file}");
    }
}

/// The versions of a file that are gone take their rejects with them, and so does what is forgotten.
#[test]
fn rejects_of_a_version_that_is_gone_are_not_loaded() {
    let lab = lab(", on_change: reload", &sink("o", "sqlite:out.db", ""));
    lab.run(&["run", "job.yaml"]).ok();
    lab.file("in/a.jsonl", "{\"id\": 2, \"z\": 20}\n{\"id\": 3, \"z\": \"y\"}\n");
    lab.run(&["run", "job.yaml"]).ok();
    mend(&lab);
    assert_eq!(replay_all(&lab), 1);
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT id || z FROM t ORDER BY 1").concat(), ["220", "3y"]);
    lab.run(&["forget", "job.yaml", "in/a.jsonl"]).ok();
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(replay_all(&lab), 0);
    assert_eq!(ids(&lab.path("out.db")), ["2", "3"]);
}

#[test]
fn rejects_of_a_forgotten_file_are_not_loaded() {
    for more in ["", ", atomic: true"] {
        let lab = lab("", &sink("o", "sqlite:out.db", more));
        lab.run(&["run", "job.yaml"]).ok();
        mend(&lab);
        lab.run(&["forget", "job.yaml", "in/a.jsonl"]).ok();
        assert_eq!(replay_all(&lab), 0, "the next run reads them");
        sqlite(&lab.path("out.db"), "DELETE FROM t");
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(replay_all(&lab), 0);
        assert_eq!(ids(&lab.path("out.db")), ["1", "2", "3"], "{more}");
    }
}

/// Two versions of a file that stay beside each other have rejects of their own.
#[test]
fn rejects_of_accepted_versions_are_loaded() {
    for more in ["", ", atomic: true"] {
        let lab = lab("", &sink("o", "sqlite:out.db", more));
        lab.run(&["run", "job.yaml"]).ok();
        lab.file("in/a.jsonl", "{\"id\": 4, \"z\": \"y\"}\n{\"id\": 5, \"z\": 5}\n");
        lab.run(&["run", "job.yaml", "--accept-changed"]).ok();
        mend(&lab);
        assert_eq!(replay_all(&lab), 2, "{more}");
        assert_eq!(ids(&lab.path("out.db")), ["1", "2", "3", "4", "5"], "{more}");
    }
}

/// A file that was mended is not kept by what runs have rejected of it that did not load it, nor by what is gone.
#[test]
fn a_file_goes_once_it_has_no_rejects() {
    for more in ["", ", atomic: true"] {
        let lab = lab(", after_load: {move: done}", &sink("o", "sqlite:out.db", more));
        allow_one(&lab);
        lab.run(&["run", "job.yaml"]).ended(3);
        lab.file("in/a.jsonl", "{\"id\": 1, \"z\": 1}\n");
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(names(&lab.path("done")), ["a.jsonl"], "{more}");
    }
    let lab = lab(", after_load: {move: done}, on_change: reload", &sink("o", "sqlite:out.db", ""));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(names(&lab.path("in")), ["a.jsonl"]);
    lab.file("in/a.jsonl", "{\"id\": 1, \"z\": 1}\n");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(names(&lab.path("done")), ["a.jsonl"]);
}

//! What a run does with the files of earlier runs, through the real binary: in folders and in buckets, and wherever it
//! is killed.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;

use serde_json::{Value, json};

use crate::use_support::{FileTarget, Lab, csv_rows, sorted};

/// Where a run that writes files is killed, and how often it comes there before.
const KILLS: &[&str] = &[
    "publish.before",
    "files.before",
    "files.after",
    "files.renamed:1",
    "files.renamed:2",
    "files.list",
    "files.listed",
    "publish.after",
    "forget.before",
];

/// A target of files, with jobs that write rows of days into it.
struct Target(FileTarget);

impl Deref for Target {
    type Target = FileTarget;

    fn deref(&self) -> &FileTarget {
        &self.0
    }
}

impl Target {
    fn folder() -> Self {
        Target(FileTarget::folder())
    }

    fn bucket() -> Self {
        Target(FileTarget::bucket())
    }

    /// A job with one sink: `write` is below the folder or bucket.
    fn job(&self, write: &str, settings: &str) {
        self.jobs(&[("o", write, settings)]);
    }

    fn jobs(&self, sinks: &[(&str, &str, &str)]) {
        let sink = |(name, write, settings): &(&str, &str, &str)| format!("  {name}: {}\n", self.sink(write, settings));
        let sinks: String = sinks.iter().map(sink).collect();
        let source = "s: {read: in.csv, csv: {columns: {id: int64, day: utf8}}}";
        self.lab.file("job.yaml", format!("sources:\n  {source}\nsinks:\n{sinks}"));
    }

    /// What the next run reads: rows with these ids for each of these days.
    fn rows(&self, days: &[(&str, std::ops::Range<u64>)]) {
        let rows = days.iter().flat_map(|(day, ids)| ids.clone().map(move |id| format!("{id},{day}\n")));
        self.lab.file("in.csv", format!("id,day\n{}", rows.collect::<String>()));
    }

    /// Kills a run at a fail point. Returns whether the run reached it.
    fn kill(&self, at: &str) -> bool {
        let ran = self.ran(&["run", "job.yaml"], Some(at));
        assert!(ran.code != 1 && ran.code != 2, "{at}: {ran:?}");
        ran.code != 0
    }

    /// The rows of all files that can be seen, by the path of the file.
    fn files(&self) -> BTreeMap<String, Vec<String>> {
        let mut found = BTreeMap::new();
        gather(&self.out(), "", &mut found);
        found
    }

    fn names(&self) -> Vec<String> {
        self.files().into_keys().collect()
    }

    /// All rows that can be seen, sorted.
    fn seen(&self) -> Vec<String> {
        sorted(self.files().into_values().flatten().collect())
    }

    /// The list beside the files.
    fn list(&self, name: &str) -> Value {
        let text = fs_err::read(self.out().join(format!(".{name}.millstream.json"))).expect("a list");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Whether the list has exactly the files that can be seen.
    fn assert_listed(&self, name: &str) {
        let list = self.list(name);
        let files = list["files"].as_array().expect("files").iter();
        let listed: Vec<String> = files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect();
        assert_eq!((sorted(listed), list.get("unfinished")), (self.names(), None));
    }
}

fn gather(folder: &Path, below: &str, found: &mut BTreeMap<String, Vec<String>>) {
    let Ok(entries) = fs_err::read_dir(folder) else { return };
    for entry in entries {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{below}{name}");
        match entry.path().is_dir() {
            true => gather(&entry.path(), &format!("{path}/"), found),
            false => {
                let text = fs_err::read_to_string(entry.path()).expect("text");
                found.insert(path, csv_rows(&text).into_iter().map(|row| row.join(",")).collect());
            }
        }
    }
}

fn expected(days: &[(&str, std::ops::Range<u64>)]) -> Vec<String> {
    sorted(days.iter().flat_map(|(day, ids)| ids.clone().map(move |id| format!("{id},{day}"))).collect())
}

const ONE: &str = "2026-01-01";
const TWO: &str = "2026-01-02";

#[test]
fn a_split_over_files_of_an_earlier_run_asks_what_happens_to_them() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("day={value}/a.csv", ", split: day");
        target.rows(&[(ONE, 0..3)]);
        target.run(&[]).ok();
        target.rows(&[(TWO, 3..5)]);
        for command in ["run", "check"] {
            target.ran(&[command, "job.yaml"], None).ended(1).says(&[
                "day={value}/a.csv has files of an earlier run, and `split` without `mode`",
                ".day={value}%2Fa.csv.millstream.json lists 1 file",
                "`mode: partitions` replaces the values that this run writes and keeps the others",
                "`mode: append`",
                "`mode: replace`",
                "`mode: error`",
            ]);
        }
        assert_eq!(target.names(), ["day=2026-01-01/a.csv"], "nothing was written and nothing is lost");
    }
}

#[test]
fn partitions_replace_the_values_of_the_run_and_keep_the_others() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("day={value}/a.csv", ", split: day, roll: {rows: 2}, mode: partitions");
        target.rows(&[(ONE, 0..5)]);
        target.run(&[]).ok();
        target.rows(&[(TWO, 5..8)]);
        let report = target.run(&["--json"]).ok().json();
        assert_eq!(report["results"][0]["removed"], Value::Null);
        assert_eq!(target.seen(), expected(&[(ONE, 0..5), (TWO, 5..8)]));
        assert_eq!(target.names().len(), 3 + 2);
        // Day 1 again, with fewer rows: the part that is not written any more goes, and nothing else.
        fs_err::write(target.out().join("day=2026-01-01/a-00009.csv"), "id,day\n99,mine\n").expect("a stranger's file");
        target.rows(&[(ONE, 10..13)]);
        let ran = target.run(&[]);
        ran.ok().says(&["    removed 1 file of earlier runs: ", "day=2026-01-01/a-00002.csv\n"]);
        let mut rows = expected(&[(ONE, 10..13), (TWO, 5..8)]);
        rows.push("99,mine".to_owned());
        assert_eq!(target.seen(), sorted(rows));
        fs_err::remove_file(target.out().join("day=2026-01-01/a-00009.csv")).expect("the stranger's file");
        target.assert_listed("day={value}%2Fa.csv");
        let list = target.list("day={value}%2Fa.csv");
        let values = list["files"].as_array().expect("files").iter().map(|file| file["value"].as_str());
        assert_eq!(values.collect::<Vec<_>>(), [Some(ONE), Some(ONE), Some(TWO), Some(TWO)]);
        assert_eq!((&list["version"], &list["mode"], &list["split"]), (&json!(2), &json!("partitions"), &json!("day")));
        // A run without rows has no partition.
        target.rows(&[]);
        target.run(&[]).ok();
        assert_eq!(target.seen(), expected(&[(ONE, 10..13), (TWO, 5..8)]));
        // Split by something else, nothing says which files these rows would replace.
        target.job("day={value}/a.csv", ", split: id, mode: partitions");
        target.run(&[]).ended(1).says(&["are not partitions of this one", "split by `day`, and not by `id`"]);
        target.job("day={value}/a.csv", ", split: day, mode: replace");
        target.rows(&[(TWO, 1..2)]);
        let report = target.run(&["--json"]).ok().json();
        assert_eq!(report["results"][0]["removed"]["files"], 4);
        assert_eq!(report["results"][0]["removed"]["first"].as_array().map(Vec::len), Some(4));
        assert_eq!(target.names(), ["day=2026-01-02/a.csv"]);
    }
}

#[test]
fn a_list_of_the_version_before_says_the_values_where_the_names_do() {
    let target = Target::folder();
    let first = |write: &str, name: &str| {
        target.job(write, ", split: day, mode: replace");
        target.rows(&[(ONE, 0..2)]);
        target.run(&[]).ok();
        let mut list = target.list(name);
        let list = list.as_object_mut().expect("an object");
        list.insert("version".to_owned(), json!(1));
        ["first", "mode", "split"].into_iter().for_each(|key| drop(list.remove(key)));
        for file in list["files"].as_array_mut().expect("files") {
            file.as_object_mut().expect("a file").remove("value");
        }
        let text = serde_json::to_vec(&list).expect("JSON");
        fs_err::write(target.out().join(format!(".{name}.millstream.json")), text).expect("a list");
        target.rows(&[(TWO, 2..4)]);
        target.job(write, ", split: day, mode: partitions");
        target.run(&[])
    };
    first("{value}.csv", "{value}.csv").ok();
    assert_eq!(target.seen(), expected(&[(ONE, 0..2), (TWO, 2..4)]));
    let files = target.list("{value}.csv");
    assert_eq!(files["files"][0]["value"], ONE);
    fs_err::remove_dir_all(target.out()).expect("a folder");
    // Without `{value}` in the job file the names may be those of shards.
    first("a.csv", "a.csv").ended(1).says(&["it does not say which value a-2026-01-01.csv has", "`mode: replace`"]);
    assert_eq!(target.seen(), expected(&[(ONE, 0..2)]));
}

#[test]
fn error_refuses_what_is_there_and_stays_the_alias_of_overwrite() {
    for target in [Target::folder(), Target::bucket()] {
        for (write, settings, told) in [
            ("a.csv", ", mode: error", "a.csv exists already"),
            ("b.csv", ", overwrite: false", "b.csv exists already"),
            ("c-{shard}.csv", ", shards: {count: 2, mod: id}, mode: error", "exist already"),
            ("d-{value}.csv", ", split: day, mode: error", "exist already"),
        ] {
            target.job(write, settings);
            target.rows(&[(ONE, 0..2)]);
            target.run(&[]).ok();
            let before = target.files();
            target.rows(&[(ONE, 7..9)]);
            target.run(&[]).ended(1).says(&[told, "`mode: replace`"]);
            target.ran(&["check", "job.yaml"], None).ended(1).says(&[told]);
            assert_eq!(target.files(), before);
        }
    }
}

#[test]
fn a_file_of_a_name_that_went_long_ago_is_nobody_elses() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("{value}.csv", ", split: day, mode: replace");
        target.rows(&[(ONE, 0..2), (TWO, 2..4)]);
        target.run(&[]).ok();
        target.rows(&[("2026-01-03", 4..6)]);
        target.run(&[]).ok();
        assert_eq!(target.names(), ["2026-01-03.csv"]);
        assert_eq!(target.list("{value}.csv").get("stale"), None);
        // A list that has them still, of a version that left them there.
        let mut list = target.list("{value}.csv");
        list["stale"] = json!([format!("{ONE}.csv"), format!("{TWO}.csv")]);
        fs_err::write(target.out().join(".{value}.csv.millstream.json"), list.to_string()).expect("a list");
        let mine = [ONE, TWO].map(|day| target.out().join(format!("{day}.csv")));
        mine.iter().for_each(|path| fs_err::write(path, "id,day\n77,mine\n").expect("a file"));
        for mode in ["partitions", "append", "replace"] {
            target.job("{value}.csv", &format!(", split: day, mode: {mode}"));
            target.rows(&[("2026-01-04", 6..8)]);
            target.run(&[]).ok();
            assert!(mine.iter().all(|path| path.exists()), "{mode} has removed what is in no list");
        }
    }
}

#[test]
fn a_commit_that_was_cut_short_is_finished_though_the_run_is_refused() {
    let target = Target::folder();
    for (write, settings, key, kill, count) in [
        ("x.csv", ", mode: error", "x.csv", "files.after", 1),
        ("x.csv", ", shards: {count: 2, mod: id}, mode: error", "x.csv", "files.renamed", 2),
        ("{value}.csv", ", split: day", "{value}.csv", "files.after", 2),
    ] {
        for arguments in [&[][..], &["--restart"]] {
            let _ = fs_err::remove_dir_all(target.out());
            fs_err::remove_dir_all(target.lab.path(".state")).unwrap_or_default();
            target.job(write, settings);
            target.rows(&[(ONE, 0..2), (TWO, 2..4)]);
            assert!(target.kill(kill), "{kill}");
            let before = target.names();
            let plan = format!(".{key}.tmp/plan.json");
            let told = ["the next run has to finish it", &plan, "`millstream run` finishes the commit first"];
            target.ran(&["check", "job.yaml"], None).ended(1).says(&told);
            assert_eq!(target.names(), before, "a check changes nothing");
            target.run(arguments).ended(1).says(&["`mode: replace`"]);
            assert_eq!((target.names().len(), target.seen().len()), (count, 4), "{write}{settings}");
            assert!(!target.out().join(plan).exists());
            // From now on that is what is there.
            let list = format!("{key}.millstream.json");
            let told = if count > 1 { list.as_str() } else { "x.csv exists already" };
            assert!(count == 1 || target.out().join(format!(".{list}")).exists());
            target.run(arguments).ended(1).says(&[told]);
        }
    }
}

#[test]
fn a_single_file_that_stays_is_resumed_by_its_own_run_alone() {
    for target in [Target::folder(), Target::bucket()] {
        for kill in ["files.before", "files.after", "files.listed", "publish.after"] {
            let _ = fs_err::remove_dir_all(target.out());
            fs_err::remove_dir_all(target.lab.path(".state")).unwrap_or_default();
            target.job("x.csv", ", mode: error");
            target.rows(&[(ONE, 0..2)]);
            assert!(target.kill(kill), "{kill}");
            let is_there = kill != "files.before";
            if is_there {
                target.run(&[]).ended(1).says(&["x.csv exists already"]);
                let _ = fs_err::remove_dir_all(target.lab.path(".state"));
                let _ = fs_err::remove_dir_all(target.out());
                assert!(target.kill(kill), "{kill}");
            }
            target.run(&["--resume"]).ok();
            assert_eq!(target.seen(), expected(&[(ONE, 0..2)]), "{kill}");
            assert!(!target.out().join(".x.csv.millstream.json").exists(), "no list stays beside a single file");
            target.run(&[]).ended(1).says(&["x.csv exists already"]);
        }
    }
}

#[test]
fn what_was_moved_away_keeps_no_run_from_writing() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("x.csv", ", shards: {count: 2, mod: id}, mode: error");
        target.rows(&[(ONE, 0..2)]);
        target.run(&[]).ok();
        let names = target.names();
        fs_err::remove_file(target.out().join(&names[0])).expect("a file");
        target.run(&[]).ended(1).says(&["names what is there: 1 file", &names[1], "move them away"]);
        fs_err::remove_file(target.out().join(&names[1])).expect("a file");
        target.run(&[]).ok();
        assert_eq!(target.names(), names);
    }
}

#[test]
fn appended_files_stand_beside_those_of_earlier_runs() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("a.csv", ", mode: append");
        target.rows(&[(ONE, 0..3)]);
        let first = target.run(&["--json"]).ok().json();
        let run = first["run"].as_str().expect("a run");
        assert_eq!(target.names(), [format!("a-{run}.csv")]);
        target.run(&["--resume"]).ok().says(&["nothing new"]);
        assert_eq!(target.names().len(), 1, "all of it is there");
        target.rows(&[(TWO, 3..5)]);
        target.run(&[]).ok().says(&["2 rows added in 1 file"]);
        assert_eq!(target.seen(), expected(&[(ONE, 0..3), (TWO, 3..5)]));
        target.assert_listed("a.csv");
        assert_eq!(target.list("a.csv").get("markers"), None, "no run is unfinished");
        // A run without rows adds a file without rows, as a single file always is there.
        target.rows(&[]);
        target.run(&[]).ok();
        assert_eq!((target.names().len(), target.seen().len()), (3, 5));
        // Nothing says that they may go.
        target.job("a.csv", "");
        target.run(&[]).ended(1).says(&["a sink without `mode`", "lists 3 files", "`mode: append` adds files"]);
        target.job("a.csv", ", mode: append");
        fs_err::remove_file(target.out().join(".a.csv.millstream.json")).expect("the list");
        target.run(&["--resume"]).ended(1).says(&["the list of its files beside", "no longer exists"]);
        target.rows(&[(TWO, 8..9)]);
        target.run(&[]).ok();
        assert_eq!(target.names().len(), 4, "files that are not listed stay");
        assert_eq!(target.list("a.csv")["files"].as_array().map(Vec::len), Some(1));
    }
}

/// A run that was killed anywhere, and what resumes it: the rows are there as if it had not been.
fn killed_anywhere(target: &Target, settings: &str, kills: &[&str], mode: &str) {
    for kill in kills {
        let _ = fs_err::remove_dir_all(target.out());
        fs_err::remove_dir_all(target.lab.path(".state")).unwrap_or_default();
        target.job("{value}/a.csv", &format!(", split: day, {settings}mode: {mode}"));
        target.rows(&[(ONE, 0..4), (TWO, 4..8)]);
        target.run(&[]).ok();
        target.rows(&[(TWO, 8..10), ("2026-01-03", 10..14)]);
        if !target.kill(kill) {
            panic!("{mode} does not come to {kill}");
        }
        if mode == "append" {
            // What a plain run would add once more is refused where it is there, as for tables.
            // At the last of them the run is done, and another one adds what it is for.
            let last = ["publish.before", "files.before", "forget.before"];
            if !last.contains(kill) {
                target.run(&[]).ended(1).says(&["an earlier run of this job has loaded all of its rows"]);
            }
        }
        target.run(&["--resume"]).ok();
        let new = [(TWO, 8..10), ("2026-01-03", 10..14)];
        let old: &[_] = match mode {
            "append" => &[(ONE, 0..4), (TWO, 4..8)],
            "partitions" => &[(ONE, 0..4)],
            _ => &[],
        };
        assert_eq!(target.seen(), expected(&[old, &new].concat()), "{mode}, killed at {kill}");
        target.assert_listed("{value}%2Fa.csv");
        if *kill != "forget.before" {
            assert_eq!(target.list("{value}%2Fa.csv").get("markers"), None, "{mode}, {kill}");
        }
    }
}

#[test]
fn a_run_that_is_killed_anywhere_and_resumed_is_there_once_in_a_folder() {
    let target = Target::folder();
    killed_anywhere(&target, "", KILLS, "append");
    killed_anywhere(&target, "roll: {rows: 2}, ", &[KILLS, &["files.removed"]].concat(), "partitions");
    killed_anywhere(&target, "", &[KILLS, &["files.removed"]].concat(), "replace");
}

#[test]
fn a_run_that_is_killed_anywhere_and_resumed_is_there_once_in_a_bucket() {
    let target = Target::bucket();
    killed_anywhere(&target, "", KILLS, "append");
    killed_anywhere(&target, "roll: {rows: 2}, ", &["files.after", "files.renamed:2", "files.removed"], "partitions");
    killed_anywhere(&target, "", &["files.after", "files.removed", "files.listed"], "replace");
}

#[test]
fn a_job_with_two_sinks_is_resumed_where_one_was_committed() {
    for target in [Target::folder(), Target::bucket()] {
        // Without `mode` a resumed run may replace its own.
        target.jobs(&[
            ("a", "a/{value}.csv", ", split: day"),
            ("b", "b.csv", ", mode: append"),
            ("c", "c/{value}.csv", ", split: day, mode: error"),
            ("d", "d/{value}.csv", ", split: day, mode: partitions"),
        ]);
        target.rows(&[(ONE, 0..3), (TWO, 3..6)]);
        for kill in ["publish.next:1", "publish.next:2", "publish.next:3", "publish.after"] {
            let _ = fs_err::remove_dir_all(target.out());
            assert!(target.kill(kill), "{kill}");
            target.run(&["--resume"]).ok();
            let rows = expected(&[(ONE, 0..3), (TWO, 3..6)]);
            let four = sorted(rows.iter().cycle().take(4 * rows.len()).cloned().collect());
            assert_eq!(target.seen(), four, "{kill}");
        }
    }
}

/// A finished job that is resumed has nothing to do, whatever its targets would say to new rows.
#[test]
fn a_finished_run_is_resumed_by_doing_nothing() {
    let target = Target::folder();
    target.rows(&[(ONE, 0..3)]);
    target.lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.csv, csv: {columns: {id: int64, day: utf8}}}\nsinks:\n  o: {from: s, write: \
         'out/{value}.csv', split: day}\n  db: {from: s, write: 'sqlite:a.db', table: t}\n",
    );
    target.run(&[]).ok();
    let report = target.run(&["--resume", "--json"]).ok().json();
    assert_eq!(report["nothing_new"], true);
}

/// What a run removes to finish the commit of one that was killed is in its report.
#[test]
fn files_that_a_later_run_removes_for_a_dead_one_are_reported() {
    for target in [Target::folder(), Target::bucket()] {
        target.job("{value}.csv", ", split: day, mode: replace");
        target.rows(&[(ONE, 0..3)]);
        target.run(&[]).ok();
        target.rows(&[(TWO, 3..6)]);
        assert!(target.kill("files.list"));
        assert_eq!(target.names(), ["2026-01-02.csv"], "the killed run has removed it");
        target.job("{value}.csv", ", split: day, mode: replace");
        target.rows(&[(ONE, 0..3)]);
        assert!(target.kill("files.after"));
        let report = target.run(&["--json"]).ok().json();
        assert_eq!(report["results"][0]["removed"]["files"], 1, "{report}");
        assert_eq!(target.names(), ["2026-01-01.csv"]);
    }
}

#[test]
fn a_set_is_split_by_one_expression() {
    let target = Target::folder();
    target.job("{value}.csv", ", split: day, mode: append");
    target.rows(&[(ONE, 0..3)]);
    target.run(&[]).ok();
    target.job("{value}.csv", ", split: upper(day), mode: append");
    target.run(&[]).ended(1).says(&["they are split by `day`, and not by `upper(day)`"]);
}

#[test]
fn begun_anew_an_append_adds_all_rows_once_more() {
    let target = Target::folder();
    target.job("a.csv", ", mode: append");
    target.rows(&[(ONE, 0..3)]);
    assert!(target.kill("forget.before"));
    target.run(&["--restart"]).ok();
    assert_eq!(target.names().len(), 2);
    assert_eq!(target.list("a.csv").get("markers"), None);
}

#[test]
fn settings_that_do_not_fit_together_are_reported() {
    let lab = Lab::new();
    lab.file("in.csv", "id,day\n1,a\n");
    for (sink, told) in [
        ("write: o.csv, mode: partitions", &["`mode: partitions` without `split`", "add `split: EXPRESSION`"][..]),
        ("write: 'o-{run}.csv'", &["`{run}` in the path, but no `mode: append`"]),
        ("write: 'o-{runn}.csv', mode: append", &["did you mean `run`?"]),
        ("write: o.csv, mode: replace, overwrite: true", &["both `mode` and `overwrite`", "leave `overwrite` out"]),
        ("write: '-', mode: append", &["`mode` is a key of file", "this one is a stdout sink"]),
        ("write: o.csv, mode: apend", &["did you mean `append`?"]),
        ("write: o.csv, mode: overwrite", &["did you mean `replace`?", "replace, error, partitions, append"]),
        ("write: o.csv, mode: insert", &["did you mean `append`?"]),
    ] {
        lab.file("job.yaml", format!("sources:\n  s: {{read: in.csv, csv: {{}}}}\nsinks:\n  o: {{from: s, {sink}}}\n"));
        lab.run(&["check", "job.yaml"]).ended(2).says(told);
    }
}

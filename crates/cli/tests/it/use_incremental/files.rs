//! Incremental sources whose rows go into files: each file goes once into the target, a folder or a bucket, wherever a
//! run is killed; and sources of block formats.

use std::fmt::Write as _;
use std::ops::Deref;
use std::path::Path;

use serde_json::Value;

use crate::use_support::{FileTarget, Lab, csv_rows, finish, names, sorted, sqlite};

/// Where a run that writes files is killed.
const KILLS: &[&str] = &[
    "loading.before",
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

/// A target of files, with jobs that write the rows of new files into it.
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

    fn both() -> [Self; 2] {
        [Target::folder(), Target(FileTarget::bucket())]
    }

    /// A job whose sink writes below the folder or bucket.
    fn job(&self, write: &str, settings: &str, more: &str) {
        let source = "s: {read: 'in/*.csv', csv: {columns: {id: int64}}, incremental: true}";
        let sink = self.sink(write, settings);
        self.lab.file("job.yaml", format!("sources:\n  {source}\nsinks:\n  o: {sink}\n{more}"));
    }

    /// A file with a hundred rows: those of the hundred `number`.
    fn rows(&self, number: usize) {
        let text = (number * 100..(number + 1) * 100).fold("id\n".to_owned(), |mut text, id| {
            let _ = writeln!(text, "{id}");
            text
        });
        self.lab.file(&format!("in/{number}.csv"), text);
    }

    /// Kills a run at a fail point.
    #[track_caller]
    fn kill(&self, at: &str) {
        let ran = self.ran(&["run", "job.yaml"], Some(at));
        assert!(![0, 1, 2].contains(&ran.code), "{at}: {ran:?}");
    }

    /// The list beside the files.
    fn list(&self) -> Value {
        let list = names(&self.out()).into_iter().find(|name| name.ends_with(".millstream.json")).expect("a list");
        serde_json::from_slice(&fs_err::read(self.out().join(list)).expect("text")).expect("JSON")
    }

    /// All ids that can be seen, sorted.
    fn ids(&self) -> Vec<u64> {
        let files = names(&self.out()).into_iter().filter(|name| !name.starts_with('.'));
        let rows = files.flat_map(|name| csv_rows(&fs_err::read_to_string(self.out().join(name)).expect("text")));
        sorted(rows.map(|row| row[0].parse().expect("a number")).collect())
    }

    /// Fails unless the files have each row of so many hundreds once.
    #[track_caller]
    fn assert_hundreds(&self, hundreds: u64, context: &str) {
        assert_eq!(self.ids(), (0..hundreds * 100).collect::<Vec<_>>(), "{context}");
    }
}

#[test]
fn files_are_added_once_wherever_a_run_is_killed() {
    for target in Target::both() {
        target.job("{run}-{shard}.csv", ", mode: append, shards: {count: 2, mod: id}", "");
        target.rows(0);
        target.run(&[]).ok();
        target.assert_hundreds(1, "the first run");
        for (index, kill) in KILLS.iter().enumerate() {
            target.rows(index + 1);
            target.kill(kill);
            // A file that comes meanwhile is loaded, too, whether the run is resumed or another one.
            let resumed: &[&str] = if index % 2 == 0 { &[] } else { &["--resume"] };
            target.run(resumed).ok();
            target.run(&[]).ok();
            target.assert_hundreds(index as u64 + 2, kill);
        }
        let list = target.list();
        assert_eq!((&list["version"], list.get("unfinished")), (&3.into(), None), "{list:#}");
        let files = names(&target.out()).len();
        let report = target.run(&["--json"]).ok().json();
        assert_eq!((&report["nothing_new"], &report["rows_read"]), (&true.into(), &0.into()), "{report:#}");
        assert_eq!(names(&target.out()).len(), files, "no file is added for nothing");
    }
}

#[test]
fn a_run_that_was_killed_is_followed_by_one_with_more_files() {
    for target in Target::both() {
        target.job("{run}.csv", ", mode: append", "");
        for (index, kill) in ["files.before", "files.after", "files.listed", "forget.before"].iter().enumerate() {
            target.rows(2 * index);
            target.kill(kill);
            target.rows(2 * index + 1);
            target.run(&["--resume"]).ok();
            target.assert_hundreds(2 * index as u64 + 2, kill);
        }
        // What was noted is forgotten with `--restart` alone.
        target.run(&["--restart"]).ok();
        assert_eq!(target.ids().len(), 1_600);
        target.run(&[]).ok();
        assert_eq!(target.ids().len(), 1_600);
    }
}

#[test]
fn partitions_are_written_once() {
    for target in Target::both() {
        target.job("{value}.csv", ", mode: partitions, split: 'id / 100'", "");
        target.rows(0);
        target.run(&[]).ok();
        let reached = KILLS.iter().filter(|kill| **kill != "files.renamed:2");
        for (index, kill) in reached.enumerate() {
            target.rows(index + 1);
            target.kill(kill);
            target.run(&[]).ok();
            target.assert_hundreds(index as u64 + 2, kill);
        }
        // More rows of a value: nothing is replaced, nothing is published.
        let (before, seen) = (target.list(), target.ids());
        target.rows(77);
        target.lab.file("in/late.csv", "id\n205\n");
        target.run(&[]).ended(1).says(&["files of the value `2` already", "nothing was published", "mode: append"]);
        assert_eq!((target.list(), target.ids()), (before, seen));
        fs_err::remove_file(target.lab.path("in/late.csv")).expect("it is there");
        target.run(&[]).ok();
        assert!(target.ids().contains(&7_777));
    }
}

#[test]
fn files_and_tables_come_to_the_same_units() {
    for target in Target::both() {
        target.job("{run}.csv", ", mode: append", "  t: {from: s, write: 'sqlite:t.db', table: t, atomic: true}\n");
        let table = || sqlite(&target.lab.path("t.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t").concat();
        target.rows(0);
        target.run(&[]).ok();
        for (index, kill) in ["files.after", "publish.next:1", "publish.after"].iter().enumerate() {
            target.rows(index + 1);
            target.kill(kill);
            target.run(&[]).ok();
            let hundreds = index as u64 + 2;
            target.assert_hundreds(hundreds, kill);
            assert_eq!(table(), [(hundreds * 100).to_string(), (hundreds * 100).to_string()], "{kill}");
        }
    }
}

/// A database of SQLite whose new rows are found by the time in a column.
struct Timed(u32);

impl Timed {
    fn new(target: &Target, write: &str, more: &str) -> Self {
        target.job(write, ", mode: append", more);
        let job = target.lab.read("job.yaml");
        let source =
            "s: {read: 'sqlite:src.db', sqlite: {query: 'SELECT id, at FROM rows'}, incremental: {by: at, lag: 0s}}";
        let old = "s: {read: 'in/*.csv', csv: {columns: {id: int64}}, incremental: true}";
        assert!(job.contains(old));
        target.lab.file("job.yaml", job.replace(old, source));
        sqlite(&target.lab.path("src.db"), "CREATE TABLE rows (id INTEGER, at TEXT)");
        Timed(0)
    }

    /// Adds a hundred rows, which the next run reads.
    fn add(&mut self, target: &Target) {
        let (from, to) = (self.0 * 100, (self.0 + 1) * 100);
        let ids = format!("WITH RECURSIVE n(id) AS (SELECT {from} UNION ALL SELECT id + 1 FROM n WHERE id + 1 < {to})");
        let now = "strftime('%Y-%m-%d %H:%M:%f', 'now')";
        sqlite(&target.lab.path("src.db"), &format!("INSERT INTO rows {ids} SELECT id, {now} FROM n"));
        self.0 += 1;
        std::thread::sleep(std::time::Duration::from_millis(1_100));
    }
}

#[test]
fn rows_of_a_database_are_added_to_files_once_wherever_a_run_is_killed() {
    for target in Target::both() {
        let mut rows = Timed::new(&target, "{run}.csv", "");
        rows.add(&target);
        target.run(&[]).ok();
        target.assert_hundreds(1, "the first run");
        for (index, kill) in KILLS.iter().filter(|kill| **kill != "files.renamed:2").enumerate() {
            rows.add(&target);
            target.kill(kill);
            if index % 3 == 0 {
                rows.add(&target);
            }
            target.run(if index % 2 == 0 { &[] } else { &["--resume"] }).ok();
            std::thread::sleep(std::time::Duration::from_millis(1_100));
            target.run(&[]).ok();
            target.assert_hundreds(rows.0.into(), kill);
        }
        // A run without rows moves the mark and adds no file, and the list does not grow.
        let (before, files) = (target.list(), names(&target.out()).len());
        let report = target.run(&["--json"]).ok().json();
        assert_eq!(report["rows_read"], 0, "{report:#}");
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        target.run(&[]).ok();
        let after = target.list();
        assert_eq!(names(&target.out()).len(), files, "no file is added for nothing");
        assert_eq!((&after["version"], &after["files"]), (&4.into(), &before["files"]), "{after:#}");
        assert!(after["notes"].as_array().is_some_and(|notes| notes.len() <= 3), "{after:#}");
        assert_ne!(after["notes"], before["notes"]);
        // The query is noted there, too.
        let job = target.lab.read("job.yaml");
        target.lab.file("job.yaml", job.replace("FROM rows", "FROM rows WHERE id > 5"));
        target.run(&[]).ended(1).says(&["the `query` of `s` has changed"]);
        target.run(&["--accept-changed"]).ok();
    }
}

#[test]
fn rows_of_a_database_come_to_files_and_tables_alike() {
    for target in Target::both() {
        let more = "  t: {from: s, write: 'sqlite:t.db', table: t}\n";
        let mut rows = Timed::new(&target, "{run}.csv", more);
        let table = || sqlite(&target.lab.path("t.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t").concat();
        for kill in ["none", "files.after", "publish.next:1", "publish.after"] {
            rows.add(&target);
            if kill != "none" {
                target.kill(kill);
                // Nothing comes meanwhile, or something does.
                if kill == "publish.next:1" {
                    rows.add(&target);
                }
            }
            target.run(&[]).ok();
            target.assert_hundreds(rows.0.into(), kill);
            let count = (rows.0 * 100).to_string();
            assert_eq!(table(), [count.clone(), count], "{kill}");
        }
    }
}

#[test]
fn files_that_replace_others_are_no_targets() {
    let target = Target::folder();
    target.rows(0);
    for settings in ["", ", mode: replace", ", mode: error"] {
        target.job("{shard}.csv", &format!("{settings}, shards: {{count: 2, mod: id}}"), "");
        target
            .run(&[])
            .ended(2)
            .says(&["this target cannot note which files it has", "or into files with `mode: append` or `partitions`"]);
        assert!(!target.out().exists());
    }
}

/// Files of a hundred rows each, in a block format.
fn blocks(lab: &Lab, from: usize, to: usize, format: &str) {
    for number in from..to {
        let rows = (number * 100..(number + 1) * 100).map(|id| format!("{id}\n")).collect::<String>();
        lab.file("rows.csv", format!("id\n{rows}"));
        let job = format!(
            "sources:\n  s: {{read: rows.csv, csv: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: s, write: \
             'in/{number}.{format}'}}\n"
        );
        lab.file("write.yaml", job);
        lab.run(&["run", "write.yaml"]).ok();
    }
}

fn counted(path: &Path) -> Vec<String> {
    sqlite(path, "SELECT COUNT(*), COUNT(DISTINCT id) FROM t").concat()
}

#[test]
fn parquet_files_are_units_like_others() {
    let lab = Lab::new();
    lab.0.folder("in");
    // Chunk by chunk, and all at once.
    for (name, settings) in [("a", ""), ("b", ", atomic: true")] {
        let job = format!(
            "sources:\n  s: {{read: 'in/*.parquet', incremental: true, add: [_uri]}}\nsinks:\n  o: \
             {{from: s, write: 'sqlite:{name}.db', table: t{settings}}}\n"
        );
        lab.file(&format!("{name}.yaml"), job);
    }
    blocks(&lab, 0, 2, "parquet");
    for name in ["a", "b"] {
        lab.run(&["run", &format!("{name}.yaml")]).ok();
        assert_eq!(counted(&lab.path(&format!("{name}.db"))), ["200", "200"], "{name}");
    }
    let windows = ["loading.before", "commit.before:1", "commit.after:1", "publish.before", "forget.before"];
    for (index, window) in windows.iter().enumerate() {
        blocks(&lab, index + 2, index + 3, "parquet");
        for name in ["a", "b"] {
            let job = format!("{name}.yaml");
            let mut command = lab.command(&["run", &job]);
            finish(
                {
                    command.env("MILLSTREAM_FAIL_AT", window);
                    command
                },
                None,
            );
            lab.run(&["run", &job]).ok();
            let rows = ((index + 3) * 100).to_string();
            assert_eq!(counted(&lab.path(&format!("{name}.db"))), [rows.clone(), rows], "{name} {window}");
            assert!(lab.run(&["run", &job]).ok().stderr.contains("nothing new"), "{name} {window}");
        }
    }
    // A file that has changed fails the run.
    blocks(&lab, 8, 9, "parquet");
    fs_err::rename(lab.path("in/8.parquet"), lab.path("in/0.parquet")).expect("it is there");
    for name in ["a", "b"] {
        lab.run(&["run", &format!("{name}.yaml")]).ended(1).says(&["a file has changed", "in/0.parquet"]);
        assert_eq!(counted(&lab.path(&format!("{name}.db"))), ["700", "700"], "{name}");
    }
}

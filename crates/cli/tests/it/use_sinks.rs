//! Sinks through the real binary: every way of cutting rows into files, SQLite's modes, standard output, nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::use_support::{Lab, csv_rows, gunzip, names, sorted, sqlite};

const COUNT: u64 = 10_000;

fn numbers() -> String {
    (0..COUNT).fold("id,k\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},key {}", id % 7);
        text
    })
}

/// A job that writes the numbers from several files, so that several tasks write at once.
fn lab(transforms: &str, sink: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: 'in/*.csv', csv: {{columns: {{id: int64, k: utf8}}}}}}\n{transforms}sinks:\n  o: \
         {{{sink}}}\n"
    ));
    let text = numbers();
    let rows: Vec<&str> = text.lines().skip(1).collect();
    for (index, part) in rows.chunks(2_500).enumerate() {
        lab.file(&format!("in/{index}.csv"), format!("id,k\n{}\n", part.join("\n")));
    }
    lab
}

/// The text of a file, whatever it is packed with.
fn text_of(lab: &Lab, name: &str) -> String {
    let bytes = fs_err::read(lab.path(name)).expect("a file");
    if name.ends_with(".gz") {
        return gunzip(&bytes);
    }
    let bytes = if name.ends_with(".zst") { zstd::decode_all(&bytes[..]).expect("zstd") } else { bytes };
    String::from_utf8(bytes).expect("UTF-8")
}

/// The rows of every file in `out`, by the file's name.
fn files(lab: &Lab) -> BTreeMap<String, Vec<Vec<String>>> {
    let rows = |name: &String| csv_rows(&text_of(lab, &format!("out/{name}")));
    names(&lab.path("out"))
        .into_iter()
        .filter(|name| !name.ends_with(".millstream.json"))
        .map(|name| (name.clone(), rows(&name)))
        .collect()
}

/// Every row is in exactly one of the files.
fn assert_complete(files: &BTreeMap<String, Vec<Vec<String>>>) {
    let all: Vec<Vec<String>> = files.values().flatten().cloned().collect();
    assert!(sorted(all) == sorted(csv_rows(&numbers())), "rows are missing or doubled");
}

#[test]
fn shards_by_hash_keep_equal_values_together() {
    let lab = lab("", "from: s, write: 'out/part-{shard}.csv.gz', shards: {count: 4, hash: k}");
    lab.run(&["run", "job.yaml"]).ok();
    let files = files(&lab);
    let expected: Vec<String> = (0..4).map(|shard| format!("part-{shard:03}.csv.gz")).collect();
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), expected);
    assert_complete(&files);
    let mut home: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, rows) in &files {
        for row in rows {
            home.entry(&row[1]).or_default().insert(name);
        }
    }
    assert!(home.len() == 7 && home.values().all(|files| files.len() == 1), "{home:?}");
}

#[test]
fn shards_by_remainder_are_where_one_can_compute_them() {
    let lab = lab("", "from: s, write: out/n.csv.zst, shards: {count: 3, mod: id}");
    lab.run(&["run", "job.yaml"]).ok();
    let files = files(&lab);
    assert_complete(&files);
    for shard in 0..3_u64 {
        let rows = &files[&format!("n-{shard:03}.csv.zst")];
        assert!(!rows.is_empty());
        assert!(rows.iter().all(|row| row[0].parse::<u64>().expect("a number") % 3 == shard));
    }
}

#[test]
fn a_split_makes_a_file_for_each_value_and_the_next_run_removes_what_is_gone() {
    let lab = lab("", "from: s, write: 'out/{value}.csv', split: k, mode: replace");
    lab.run(&["run", "job.yaml"]).ok();
    let found = files(&lab);
    let expected: Vec<String> = (0..7).map(|key| format!("key%20{key}.csv")).collect();
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), expected);
    assert_complete(&found);
    assert!(found["key%203.csv"].iter().all(|row| row[1] == "key 3"));
    lab.file("job.yaml", lab.read("job.yaml").replace("split: k", "split: 'id % 2'"));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(files(&lab).keys().cloned().collect::<Vec<_>>(), ["0.csv", "1.csv"]);
}

#[test]
fn a_new_file_begins_when_one_is_full() {
    let lab = lab("", "from: s, write: 'out/{part}.csv', roll: {rows: 3000}");
    lab.run(&["run", "job.yaml"]).ok();
    let found = files(&lab);
    assert_complete(&found);
    let sizes = sorted(found.values().map(Vec::len).collect());
    assert_eq!(sizes, [1_000, 3_000, 3_000, 3_000]);

    lab.file("job.yaml", lab.read("job.yaml").replace("rows: 3000", "bytes: 20kB"));
    lab.run(&["run", "job.yaml"]).ok();
    let found = files(&lab);
    assert_complete(&found);
    assert!(found.len() >= 3, "{:?}", found.keys());
}

#[test]
fn the_order_of_a_sort_is_kept_in_one_file_and_in_each_of_several() {
    let sort = "transforms:\n  t: {sort: {from: s, by: [k desc, id]}}\n";
    for (sink, several) in [
        ("from: t, write: out/one.csv.gz", false),
        ("from: t, write: out/one.csv", false),
        ("from: t, write: out/n.csv.zst, shards: {count: 3, mod: id}", true),
        ("from: t, write: 'out/{part}.csv', roll: {rows: 900}", true),
    ] {
        let lab = lab(sort, sink);
        lab.run(&["run", "job.yaml"]).ok();
        let found = files(&lab);
        assert_complete(&found);
        assert_eq!(found.len() > 1, several);
        let key = |row: &Vec<String>| (std::cmp::Reverse(row[1].clone()), row[0].parse::<u64>().expect("a number"));
        for (name, rows) in found {
            assert!(rows.is_sorted_by_key(key), "{sink}: {name}");
        }
    }
}

#[test]
fn a_table_is_appended_to_replaced_emptied_or_merged_into() {
    let lab = Lab::new();
    let run = |mode: &str, text: &str| {
        lab.file("in.csv", text);
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\n\
                 sinks:\n  o: {{from: s, write: 'sqlite:out/deep/a.db', table: t, key: [id], mode: {mode}}}\n"
            ),
        );
        lab.run(&["run", "job.yaml"])
    };
    let rows = || sqlite(&lab.path("out/deep/a.db"), "select id || ' ' || name from t order by id").concat();
    run("append", "id,name\n1,one\n2,two\n").ok();
    run("append", "id,name\n3,three\n").ok();
    assert_eq!(rows(), ["1 one", "2 two", "3 three"]);
    run("append", "id,name\n4,four\n3,again\n").ended(1).says(&["out/deep/a.db", "3"]);
    assert_eq!(rows(), ["1 one", "2 two", "3 three"], "a failed load leaves nothing");
    run("merge", "id,name\n3,drei\n5,fünf\n").ok();
    assert_eq!(rows(), ["1 one", "2 two", "3 drei", "5 fünf"]);
    let connection = rusqlite::Connection::open(lab.path("out/deep/a.db")).expect("SQLite");
    connection.execute_batch("create index by_name on t (name)").expect("an index");
    let index = "select name from sqlite_master where name = 'by_name'";
    run("truncate", "id,name\n7,seven\n").ok();
    assert_eq!(rows(), ["7 seven"]);
    assert_eq!(sqlite(&lab.path("out/deep/a.db"), index).len(), 1, "truncate keeps the index");
    run("replace", "id,name\n8,eight\n").ok();
    assert_eq!(rows(), ["8 eight"]);
    assert_eq!(sqlite(&lab.path("out/deep/a.db"), index).len(), 0, "replace makes the table anew");
}

#[test]
fn a_table_that_does_not_fit_is_reported_before_anything_is_read() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: '-', csv: {columns: {id: int64, name: utf8, more: utf8}}}\n\
         sinks:\n  o: {from: s, write: 'sqlite:a.db', table: t}\n",
    );
    let connection = rusqlite::Connection::open(lab.path("a.db")).expect("SQLite");
    connection.execute_batch("create table t (id integer, name text)").expect("a table");
    // The input is broken: the run must not come to it.
    let ran = lab.run_with_input(&["run", "job.yaml"], b"not even a table\n\"");
    ran.ended(1).says(&["more", "a.db"]);
    assert!(!ran.stderr.contains("not even"), "{}", ran.stderr);
}

#[test]
fn standard_output_takes_every_format_and_nothing_else() {
    let lab = Lab::new();
    lab.file("in.csv", "id,line\n1,a\n2,b\n");
    for (format, expected) in [
        ("", "id,line\n1,a\n2,b\n"),
        (", csv: {delimiter: ';', header: false}", "1;a\n2;b\n"),
        (", json: {}", "{\"id\":1,\"line\":\"a\"}\n{\"id\":2,\"line\":\"b\"}\n"),
    ] {
        lab.file(
            "job.yaml",
            format!("sources:\n  s: {{read: in.csv}}\nsinks:\n  o: {{from: s, write: '-'{format}}}\n"),
        );
        assert_eq!(lab.run(&["run", "job.yaml"]).ok().stdout, expected, "{format}");
    }
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.csv}\ntransforms:\n  t: {select: {from: s, columns: [line]}}\n\
         sinks:\n  o: {from: t, write: '-', lines: {}}\n",
    );
    assert_eq!(lab.run(&["run", "job.yaml"]).ok().stdout, "a\nb\n");
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.csv}\nsinks:\n  o: {from: s, write: '-', compress: gzip, csv: {}}\n",
    );
    let output = lab.command(&["run", "job.yaml", "-q"]).output().expect("it runs");
    assert_eq!(gunzip(&output.stdout), "id,line\n1,a\n2,b\n");
}

#[test]
fn what_is_discarded_is_counted_and_nowhere() {
    let lab = lab("transforms:\n  t: {filter: {from: s, where: 'id % 2 = 0'}}\n", "from: t, write: discard");
    let job = format!("{}  p: {{from: s, write: discard}}\n", lab.read("job.yaml"));
    lab.file("job.yaml", &job);
    let report = lab.report(&[]);
    let summaries = report["results"].as_array().expect("results").iter().map(|one| one["summary"].as_str());
    assert_eq!(summaries.collect::<Vec<_>>(), [Some("5000 rows discarded"), Some("10000 rows discarded")]);
    assert_eq!(report["rows_written"], COUNT + COUNT / 2, "{report:#}");
    assert_eq!(names(&lab.path(".")), [".scratch", ".state", "in", "job.yaml"]);
    lab.run(&["run", "job.yaml"]).ok().says(&["10,000 rows discarded"]);
    // A row that cannot be computed ends such a run, too.
    lab.file("job.yaml", job.replace("id % 2 = 0", "1 / (id - 9999) < 0"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["division by zero"]);
    lab.file("job.yaml", job.replace("write: discard}", "write: discard, csv: {}, max_rejects: 1}"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["`csv` is for files", "`max_rejects`"]);
}

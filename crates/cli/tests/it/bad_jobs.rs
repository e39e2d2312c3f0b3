//! Job files that are wrong: each message whole, with its place.

use crate::transcript::{COLUMNS, Place, assert_transcript};

/// Writes `job.yaml` and checks it: it must be refused.
fn refused(name: &str, text: impl AsRef<[u8]>) -> Place {
    let mut place = Place::new();
    place.tree.file(name, text);
    place.fails(2, &["check", name]);
    place
}

#[test]
fn not_yaml() {
    assert_transcript!("job_not_yaml", refused("job.yaml", "sources: [a\n  b: }{"));
}

#[test]
fn a_tab_in_the_indentation() {
    assert_transcript!("job_tab", refused("job.yaml", "sources:\n\trows: 1\n"));
}

#[test]
fn not_a_job() {
    assert_transcript!("job_just_text", refused("job.yaml", "just text\n"));
}

#[test]
fn an_empty_file() {
    assert_transcript!("job_empty", refused("job.yaml", ""));
}

#[test]
fn not_text() {
    assert_transcript!("job_not_utf8", refused("job.yaml", b"sources:\n  a: {read: \xff\xfe}\n"));
}

#[test]
fn no_such_job() {
    let mut place = Place::new();
    place.tree.folder("folder");
    place.fails(2, &["run", "nosuch.yaml"]);
    place.fails(2, &["run", "folder"]);
    assert_transcript!("job_missing", place);
}

#[test]
fn a_job_that_reads_what_it_writes() {
    let mut place = Place::with("csv/a.csv", "id,name\n1,a\n");
    place.job(&format!("rows: {{read: 'csv/*.csv', {COLUMNS}}}"), "write: csv/all.csv, shards: {count: 2, hash: id}");
    for command in ["check", "run", "explain"] {
        place.fails(2, &[command, "job.yaml"]);
    }
    assert_eq!(fs_err::read_dir(place.tree.path("csv")).expect("a folder").count(), 1, "nothing was written");
    assert_transcript!("job_reads_its_own", place);
}

#[test]
fn what_is_set_and_not_there() {
    let mut place = Place::with("rows.csv", "id,name\n1,a\n");
    place.job(&format!("rows: {{read: 'rows.${{ENDING:-csv}}', {COLUMNS}}}"), "write: out/x.csv");
    place.fails(2, &["run", "job.yaml", "--set", "ENDIGN=csv"]);
    place.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: 'sqlite:x.db', table: t, mode: merge, key: id");
    place.fails(2, &["check", "job.yaml"]);
    place.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: out/x.csv, shards: 4");
    place.fails(2, &["check", "job.yaml"]);
    assert_transcript!("job_almost", place);
}

#[test]
fn every_lint_at_once() {
    let job = r#"sources:
  rows:
    read: good.csv
    csv:
      delimeter: ","
      header: maybe
      columns: {id: int46, name: utf8}
  remote:
    read: htp://host/x
  lost:
    reed: good.csv
  spare:
    read: good.csv
    csv: {}
    json: {}
  public:
    read: https://host/x
    http: {auth: {bearer: {token: abc}}}
  badurl:
    read: "https://"
  badglob:
    read: "a{b"
  twice:
    read: good.csv
  twice:
    read: good.csv
  ${UNSET}:
    read: "${MILLSTREAM_TEST_UNSET}"
transforms:
  a:
    filter: {from: b, where: id > 1}
  b:
    filter: {from: a, where: id > 1}
  unknown_from:
    sort: {from: rowz, by: [id]}
  two_kinds:
    sql: SELECT 1
    sort: {from: rows, by: [id]}
  none: {}
sinks:
  out:
    from: nothing
    write: out/x.csv
  other:
    from: rows
    write: sqlite:x.db
    table: 5
    mode: replcae
  formatless:
    from: rows
    write: out/x.weird
sink: 3
"#;
    assert_transcript!("job_lints", refused("job.yaml", job));
}

#[test]
fn warnings_do_not_stop_a_run_and_quiet_leaves_them_out() {
    let mut place = Place::new();
    place.tree.file("good.csv", "id,name\n1,a\n");
    place.tree.file("spare.csv", "id,name\n1,a\n");
    place.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: good.csv}\n  spare: {read: spare.csv}\nsinks:\n  out: {from: rows, write: x.csv}\n",
    );
    let checked = place.run(&["check", "job.yaml"]);
    let quiet = place.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((checked.code, quiet.code), (Some(0), Some(0)));
    assert_eq!(quiet.stderr, "");
    assert_transcript!("job_warnings", place);
}

#[test]
fn a_missing_secret() {
    let mut place = Place::new();
    place.job(
        "rows: {read: 'http://127.0.0.1:1/x.csv', http: {auth: {bearer: {token: {secret: \
         'env:MILLSTREAM_TEST_UNSET'}}}}}",
        "write: out/x.csv",
    );
    place.fails(2, &["run", "job.yaml"]);
    assert_transcript!("job_missing_secret", place);
}

#[test]
fn wrong_arguments() {
    let mut place = Place::with("good.csv", "id,name\n1,a\n");
    place.fails(2, &["run", "job.yaml", "--memory", "1MB"]);
    place.fails(2, &["run", "job.yaml", "--memory", "lots"]);
    place.fails(2, &["run", "job.yaml", "--set", "A"]);
    place.fails(2, &["preview", "job.yaml", "rowz"]);
    place.fails(1, &["run", "job.yaml", "--scratch", "nowhere"]);
    assert_transcript!("arguments", place);
}

/// What only a look at the files and the targets can tell, all at once as well.
#[test]
fn faults_of_several_entries_at_once() {
    let mut place = Place::with("rows.csv", "id,name\n1,a\n");
    place.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: rows.csv, csv: {}}\n  gone: {read: gone.csv, csv: {}}\n  lost: {read: 'lost/*.csv', \
         csv: {}}\n\
         transforms:\n  slip: {select: {from: rows, columns: [nme]}}\n  late: {select: {from: gone, columns: [x]}}\n\
         sinks:\n  a:\n    from: rows\n    write: out/{shard}.csv\n    shards: {count: 2, hash: idd}\n  \
         b: {from: slip, write: out/b.csv}\n  c: {from: late, write: out/c.csv}\n  d: {from: lost, write: out/d.csv}\n",
    );
    place.fails(2, &["check", "job.yaml"]);
    place.job("rows: {read: rows.csv, csv: {}}", "write: 'mongodb:x', csv: {}");
    place.fails(2, &["check", "job.yaml"]);
    assert_transcript!("faults_of_several_entries", place);
}

#[test]
fn offline_nothing_is_asked_for_and_what_is_declared_is_checked() {
    let mut place = Place::new();
    // Nothing listens there.
    let url = "http://127.0.0.1:9/x.csv";
    place.tree.file("list.txt", format!("{url}\n"));
    for (read, columns) in [(url, "{}"), ("@list.txt", "{}"), (url, "{columns: {id: int64}}")] {
        place.tree.file(
            "job.yaml",
            format!(
                "sources:\n  rows: {{read: '{read}', csv: {columns}}}\ntransforms:\n  \
                 t: {{select: {{from: rows, columns: [idd]}}}}\nsinks:\n  out: {{from: t, write: out/x.csv}}\n"
            ),
        );
        place.run(&["check", "--offline", "job.yaml"]);
    }
    assert_transcript!("check_offline", place);
}

#[test]
fn a_file_that_is_not_split_by_commas_is_told() {
    let mut place = Place::with("rows.csv", "id;name;x\n1;a;1.5\n2;b;2.5\n3;c;3.5\n");
    place.job("rows: {read: rows.csv}", "write: out.csv");
    for command in ["check", "run"] {
        let ended = place.command(&[command, "job.yaml"]).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains("warning: split by commas, `rows` has one column; split by \";\", 3\n"), "{said}");
        assert!(said.contains("hint: say so below `read`: csv: {delimiter: \";\"}"), "{said}");
    }
    place.job("rows: {read: rows.csv, csv: {delimiter: ','}}", "write: out.csv");
    assert!(!place.run(&["check", "job.yaml"]).stderr.contains("warning"), "who says so means it");
}

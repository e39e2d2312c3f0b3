//! Job files that are wrong: each message whole, with its place.

use crate::transcript::{Place, assert_transcript};

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
        "rows: {read: 'http://127.0.0.1:1/x.csv', http: {auth: {bearer: {token: {secret: 'env:MILLSTREAM_TEST_UNSET'}}}}}",
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

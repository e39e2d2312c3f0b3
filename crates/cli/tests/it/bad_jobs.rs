//! Job files that are wrong: each message in full, with its location.

use crate::transcript::{COLUMNS, Session, assert_transcript};

/// Writes `job.yaml` and checks it: it must be refused.
fn refused(name: &str, text: impl AsRef<[u8]>) -> Session {
    let mut session = Session::new();
    session.tree.file(name, text);
    session.fails(2, &["check", name]);
    session
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
    let mut session = Session::new();
    session.tree.folder("folder");
    session.fails(2, &["run", "nosuch.yaml"]);
    session.fails(2, &["run", "folder"]);
    session.fails(2, &["run", "https://host/data.csv.gz"]);
    assert_transcript!("job_missing", session);
}

#[test]
fn a_job_that_reads_what_it_writes() {
    let mut session = Session::with("csv/a.csv", "id,name\n1,a\n");
    session.job(&format!("rows: {{read: 'csv/*.csv', {COLUMNS}}}"), "write: csv/all.csv, shards: {count: 2, hash: id}");
    for command in ["check", "run", "explain"] {
        session.fails(2, &[command, "job.yaml"]);
    }
    assert_eq!(fs_err::read_dir(session.tree.path("csv")).expect("a folder").count(), 1, "nothing was written");
    assert_transcript!("job_reads_its_own", session);
}

#[test]
fn what_is_set_and_not_there() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    session.job(&format!("rows: {{read: 'rows.${{ENDING:-csv}}', {COLUMNS}}}"), "write: out/x.csv");
    session.fails(2, &["run", "job.yaml", "--set", "ENDIGN=csv"]);
    session
        .job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: 'sqlite:x.db', table: t, mode: merge, key: id");
    session.fails(2, &["check", "job.yaml"]);
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: out/x.csv, shards: 4");
    session.fails(2, &["check", "job.yaml"]);
    assert_transcript!("job_almost", session);
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
    let mut session = Session::new();
    session.tree.file("good.csv", "id,name\n1,a\n");
    session.tree.file("spare.csv", "id,name\n1,a\n");
    session.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: good.csv}\n  spare: {read: spare.csv}\nsinks:\n  out: {from: rows, write: x.csv}\n",
    );
    let checked = session.run(&["check", "job.yaml"]);
    let quiet = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((checked.code, quiet.code), (Some(0), Some(0)));
    assert_eq!(quiet.stderr, "");
    assert_transcript!("job_warnings", session);
}

#[test]
fn a_missing_secret() {
    let mut session = Session::new();
    session.job(
        "rows: {read: 'http://127.0.0.1:1/x.csv', http: {auth: {bearer: {token: {secret: \
         'env:MILLSTREAM_TEST_UNSET'}}}}}",
        "write: out/x.csv",
    );
    session.fails(2, &["run", "job.yaml"]);
    assert_transcript!("job_missing_secret", session);
}

#[test]
fn wrong_arguments() {
    let mut session = Session::with("good.csv", "id,name\n1,a\n");
    session.fails(2, &["run", "job.yaml", "--memory", "1MB"]);
    session.fails(2, &["run", "job.yaml", "--memory", "lots"]);
    session.fails(2, &["run", "job.yaml", "--set", "A"]);
    session.fails(2, &["preview", "job.yaml", "rowz"]);
    session.fails(1, &["run", "job.yaml", "--scratch", "nowhere"]);
    assert_transcript!("arguments", session);
}

/// Faults that only show in files and targets are also reported all at once.
#[test]
fn faults_of_several_entries_at_once() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    session.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: rows.csv, csv: {}}\n  gone: {read: gone.csv, csv: {}}\n  lost: {read: 'lost/*.csv', \
         csv: {}}\n\
         transforms:\n  slip: {select: {from: rows, columns: [nme]}}\n  late: {select: {from: gone, columns: [x]}}\n\
         sinks:\n  a:\n    from: rows\n    write: out/{shard}.csv\n    shards: {count: 2, hash: idd}\n  \
         b: {from: slip, write: out/b.csv}\n  c: {from: late, write: out/c.csv}\n  d: {from: lost, write: out/d.csv}\n",
    );
    session.fails(2, &["check", "job.yaml"]);
    session.job("rows: {read: rows.csv, csv: {}}", "write: 'mongodb:x', csv: {}");
    session.fails(2, &["check", "job.yaml"]);
    assert_transcript!("faults_of_several_entries", session);
}

#[test]
fn offline_nothing_is_asked_for_and_what_is_declared_is_checked() {
    let mut session = Session::new();
    // Nothing listens there.
    let url = "http://127.0.0.1:9/x.csv";
    session.tree.file("list.txt", format!("{url}\n"));
    for (read, columns) in [(url, "{}"), ("@list.txt", "{}"), (url, "{columns: {id: int64}}")] {
        session.tree.file(
            "job.yaml",
            format!(
                "sources:\n  rows: {{read: '{read}', csv: {columns}}}\ntransforms:\n  \
                 t: {{select: {{from: rows, columns: [idd]}}}}\nsinks:\n  out: {{from: t, write: out/x.csv}}\n"
            ),
        );
        session.run(&["check", "--offline", "job.yaml"]);
    }
    assert_transcript!("check_offline", session);
}

#[test]
fn a_file_that_is_not_split_by_commas_is_reported() {
    let mut session = Session::with("rows.csv", "id;name;x\n1;a;1.5\n2;b;2.5\n3;c;3.5\n");
    session.job("rows: {read: rows.csv}", "write: out.csv");
    for command in ["check", "run"] {
        let ended = session.command(&[command, "job.yaml"]).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains("warning: split by commas, `rows` has one column; split by \";\", 3\n"), "{said}");
        assert!(said.contains("hint: say so below `read`: csv: {delimiter: \";\"}"), "{said}");
    }
    session.job("rows: {read: rows.csv, csv: {delimiter: ','}}", "write: out.csv");
    assert!(!session.run(&["check", "job.yaml"]).stderr.contains("warning"), "who says so means it");
}

/// What a job says of programs: each mistake once, with what to write.
#[test]
fn programs_that_are_said_wrong() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    session.tree.file(
        "job.yaml",
        r#"sources:
  rows: {read: rows.csv, csv: {columns: {id: int64, name: utf8}}}
  text: {command: cat x, csv: {columns: {id: int64}}}
  named: {command: {run: [./export], env: {"B=C": x, "": y}}, csv: {columns: {id: int64}}}
transforms:
  words: {map: {from: rows, command: "grep -v '#' | ./step", exchange: lines, columns: {id: int64}}}
  form: {map: {from: rows, command: [cat], exchange: xml, columns: {id: int64}}}
  slip: {map: {from: rows, command: [cat], exchange: jsn, env: {"B=C": x}, columns: {id: int64}}}
  code: {map: {from: rows, python: code.py:f, env: {"A\0": x, B: "\0"}, columns: {id: int64}}}
sinks:
  out: {from: rows, command: ./publish --all -n 5, exchange: xml}
  env: {from: rows, command: [./publish], exchange: csv, env: {"B=C": x}}
"#,
    );
    session.fails(2, &["check", "job.yaml"]);
    assert_transcript!("job_programs", session);
}

/// Scripts that are not there, in steps of each kind, and code that cannot be a step.
#[test]
fn code_that_is_not_there_or_no_step() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    let later = "import functools\n\n\nasync def f(row):\n    return row\n\n\nclass G:\n    \
                 async def __call__(self, row):\n        yield row\n\n\ng = functools.partial(G())\n";
    session.tree.file("later.py", later);
    session.tree.file("there.py", "import sys\nfor line in sys.stdin: print(line, end='')\n");
    let check = |session: &mut Session, source: &str, map: &str, sink: &str, code: i32| {
        let columns = "csv: {columns: {id: int64, name: utf8}}";
        session.tree.file(
            "job.yaml",
            format!(
                "sources:\n  rows: {{{source}, {columns}}}\ntransforms:\n  t: {{map: {{from: rows, {map}, columns: \
                 {{id: int64}}}}}}\nsinks:\n  out: {{from: t, {sink}}}\n"
            ),
        );
        match code {
            0 => drop(session.run(&["check", "job.yaml"])),
            _ => drop(session.fails(code, &["check", "job.yaml"])),
        }
    };
    let (source, map) = ("read: rows.csv", "command: [cat], exchange: csv");
    let sink = "write: out.csv";
    check(&mut session, "command: [python3, -u, nothere.py]", map, sink, 1);
    check(&mut session, source, "command: [python3, nothere.py], exchange: csv", sink, 1);
    check(&mut session, source, map, "command: [bash, -eu, scripts/nothere.sh], exchange: csv", 1);
    check(&mut session, source, "python: later.py:f", sink, 2);
    check(&mut session, source, "python: later.py:g, per: batch", sink, 2);
    // These may be names of files that come to be.
    check(&mut session, source, "command: [python3, there.py, out.py], exchange: csv", sink, 0);
    check(&mut session, source, "command: [tee, copy.py], exchange: csv", sink, 0);
    assert_transcript!("job_code", session);
}

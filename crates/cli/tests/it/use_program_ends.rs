//! Programs as sources and as sinks, through the real binary: what fails loads nothing, and a program that takes rows
//! sees the end of its input only when the run has succeeded.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::use_map::{none_is_left, processes_of};
use crate::use_support::{Lab, Ran, csv_rows, finish, sqlite};

const ROWS: usize = 20_000;

/// A job that reads the program `export` and loads into `sinks`.
fn read(sinks: &str) -> Lab {
    Lab::with_job(&format!(
        "sources:\n  s: {{command: [./export, \"${{DAY:-1}}\"], csv: {{columns: {{id: int64, day: int64}}}}}}\nsinks:\n\
         {sinks}"
    ))
}

/// A job that gives the rows of a file to the program `publish` in the form `exchange`, and to a database.
fn write(exchange: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\nsinks:\n  p: {{from: s, \
         command: [./publish], {exchange}}}\n  d: {{from: s, write: sqlite:out.db, table: t, mode: replace}}\n"
    ));
    let mut text = "id,name\n".to_owned();
    (0..ROWS).for_each(|id| writeln!(text, "{id},\"name, {id}\"").expect("written"));
    lab.file("in.csv", text);
    lab
}

/// A shell script of the lab.
fn script(lab: &Lab, name: &str, code: &str) {
    let path = lab.file(name, format!("#!/bin/sh\n{code}\n"));
    fs_err::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("executable");
}

fn run(lab: &Lab) -> Ran {
    lab.run(&["run", "job.yaml"])
}

/// The rows in the database, if there is a table.
fn in_database(lab: &Lab) -> usize {
    if !lab.path("out.db").exists() {
        return 0;
    }
    let tables = sqlite(&lab.path("out.db"), "SELECT name FROM sqlite_master WHERE name = 't'");
    if tables.is_empty() { 0 } else { sqlite(&lab.path("out.db"), "SELECT * FROM t").len() }
}

#[test]
fn the_output_of_a_program_is_read_once() {
    let lab = read("  o: {from: s, write: out.csv}\n  p: {from: s, write: \"sqlite:out.db\", table: t}\n");
    // It is started once, though two sinks want its rows.
    script(&lab, "export", "echo start >> started; echo id,day; seq -f \"%.0f,$1\" 20000");
    lab.run(&["run", "job.yaml", "--set", "DAY=7"]).ok();
    let rows = csv_rows(&lab.read("out.csv"));
    assert_eq!((rows.len(), rows.iter().all(|row| row[1] == "7")), (ROWS, true));
    assert_eq!(in_database(&lab), ROWS);
    assert_eq!(lab.read("started"), "start\n");
    none_is_left(&lab);

    // Neither a look at the job nor its plan starts it.
    lab.run(&["check", "job.yaml"]).ok();
    lab.run(&["explain", "job.yaml"]).ok();
    assert_eq!(lab.read("started"), "start\n");
    let alone = lab.read("job.yaml").replace("  o: {from: s, write: out.csv}\n", "");
    lab.file("alone.yaml", alone);
    let plan = lab.run(&["explain", "alone.yaml"]);
    assert!(plan.stdout.contains("`s` reads the output of a program, which cannot be read again"), "{plan:?}");

    // Compressed output is unpacked; a block has an environment beside the words. Columns that the job does not declare
    // are those of the first rows.
    lab.file(
        "job.yaml",
        "sources:\n  s: {command: {run: [sh, -c, 'echo start >> started; (echo id,name; echo 1,$NAME) | gzip'], \
         env: {NAME: mine}}, csv: {}}\nsinks:\n  o: {from: s, write: out.csv}\n",
    );
    run(&lab).ok();
    assert_eq!(lab.read("out.csv"), "id,name\n1,mine\n");
    assert_eq!(lab.read("started"), "start\nstart\n");

    // One whose output is not read to its end is killed, and that is no error.
    lab.file(
        "job.yaml",
        "sources:\n  s: {command: [yes], lines: {}}\ntransforms:\n  l: {sql: SELECT * FROM s LIMIT 3}\nsinks:\n  o: \
         {from: l, write: out.csv}\n",
    );
    run(&lab).ok();
    assert_eq!(lab.read("out.csv"), "line\ny\ny\ny\n");
    none_is_left(&lab);
}

#[test]
fn a_source_that_fails_loads_nothing() {
    let lab = read("  o: {from: s, write: out.csv}\n  d: {from: s, write: \"sqlite:out.db\", table: t}\n");
    let rows = "echo id,day; seq -f '%.0f,1' 20000";
    for (code, parts) in [
        (format!("{rows}; echo the disk is full >&2; exit 3"), ["`./export` failed", "status 3", "the disk is full"]),
        (format!("{rows}; kill -SEGV $$"), ["`./export` failed", "segmentation fault", "status 0"]),
        (format!("{rows}; sleep 1000 &"), ["has ended, but", "holds its output open", "wait for the programs"]),
        ("exit 1".to_owned(), ["`./export` failed", "status 1", "status 0"]),
    ] {
        script(&lab, "export", &code);
        run(&lab).ended(1).says(&parts);
        assert_eq!((lab.path("out.csv").exists(), in_database(&lab)), (false, 0), "{code}");
        none_is_left(&lab);
    }
    fs_err::set_permissions(lab.path("export"), PermissionsExt::from_mode(0o644)).expect("not executable");
    run(&lab).ended(1).says(&["`./export` cannot be started", "chmod +x"]);
    fs_err::remove_file(lab.path("export")).expect("removed");
    run(&lab).ended(1).says(&["`./export` cannot be started", "relative to the folder of the job file"]);

    // One that says nothing, and one that does not end.
    let patient =
        lab.read("job.yaml").replace("command: [./export, \"${DAY:-1}\"]", "command: {run: [./export], timeout: 1s}");
    lab.file("job.yaml", patient);
    for (code, part) in [
        ("echo id,day; sleep 1000".to_owned(), "has written nothing for 1s"),
        (format!("{rows}; exec >&-; sleep 1000"), "has closed its output, and not ended within 1s"),
    ] {
        script(&lab, "export", &code);
        run(&lab).ended(1).says(&[part, "raise `timeout`"]);
        assert_eq!((lab.path("out.csv").exists(), in_database(&lab)), (false, 0), "{code}");
        none_is_left(&lab);
    }
}

#[test]
fn a_program_takes_all_rows_in_each_form() {
    let expected: Vec<Vec<String>> = (0..ROWS).map(|id| vec![id.to_string(), format!("name, {id}")]).collect();
    for exchange in ["csv", "json", "arrow"] {
        let lab = write(&format!("exchange: {exchange}, env: {{TO: got}}"));
        script(&lab, "publish", "echo taking; cat > $TO; echo \"$MILLSTREAM_RUN\" >> runs");
        let ran = run(&lab);
        ran.ok().says(&["taking", "20,000 rows taken"]);
        assert_eq!(in_database(&lab), ROWS);
        let got = fs_err::read(lab.path("got")).expect("what it got");
        match exchange {
            "csv" => assert_eq!(csv_rows(&String::from_utf8(got).expect("text")), expected),
            "json" => assert_eq!(String::from_utf8(got).expect("text").lines().count(), ROWS),
            // As another reads it.
            _ => {
                lab.file(
                    "back.yaml",
                    "sources: {s: {read: in.csv, csv: {columns: {id: int64, name: utf8}}}}\ntransforms:\n  t: {map: \
                     {from: s, command: [sh, -c, 'cat > /dev/null; cat got'], exchange: arrow, per: stream, \
                     columns: {id: int64, name: utf8}}}\nsinks: {o: {from: t, write: back.csv}}\n",
                );
                lab.run(&["run", "back.yaml"]).ok();
                assert_eq!(csv_rows(&lab.read("back.csv")), expected);
            }
        }
        none_is_left(&lab);
    }
    let lab = Lab::with_job(
        "sources: {s: {command: [seq, 5], lines: {}}}\nsinks: {p: {from: s, command: [sh, -c, 'cat > got'], exchange: \
         lines}}\n",
    );
    run(&lab).ok();
    assert_eq!(lab.read("got"), "1\n2\n3\n4\n5\n");
}

#[test]
fn a_sink_that_fails_fails_the_others() {
    for (code, parts) in [
        (
            "cat > /dev/null; echo refused by the server >&2; exit 5",
            &["`./publish` failed", "status 5", "refused by the"],
        ),
        ("head -c 100 > /dev/null; exit 0", &["`./publish` ended before it had read all rows", "status 0", "publish"]),
        ("exit 2", &["`./publish`", "status 2", "publish"]),
        (
            "cat > /dev/null; (sleep 1000) > /dev/null 2>&1 &",
            &["what it has started is still at work", "have it wait", "p"],
        ),
        ("cat > /dev/null; sleep 1000", &["has read all rows, and not ended within 2s", "raise `timeout`", "publish"]),
        ("sleep 1000", &["has read nothing for 2s", "raise `timeout`", "publish"]),
    ] {
        let lab = write("exchange: csv, timeout: 2s");
        // More than a pipe holds.
        lab.file(
            "in.csv",
            lab.read("in.csv").replace("name", &"name".repeat(30)).replacen(&"name".repeat(30), "name", 1),
        );
        script(&lab, "publish", code);
        run(&lab).ended(1).says(parts);
        assert_eq!(in_database(&lab), 0, "{code}");
        none_is_left(&lab);
    }
}

#[test]
fn a_run_that_fails_kills_the_program_before_the_end_of_its_input() {
    let publish = "cat > got; echo all >> ended";
    // The last row is no row.
    let lab = write("exchange: csv");
    lab.file("in.csv", format!("{}no number,x\n", lab.read("in.csv")));
    script(&lab, "publish", publish);
    run(&lab).ended(1).says(&["no number"]);
    none_is_left(&lab);
    assert!(!lab.path("ended").exists());

    // The run is killed while it waits for more rows.
    let lab = read("  p: {from: s, command: [./publish], exchange: csv}\n");
    script(&lab, "export", "echo id,day; seq -f '%.0f,1' 300000; touch ready; sleep 1000");
    // It does not lose a moment when its input ends.
    let perl = "exec perl -e 'open(G, \">got\"); select(G); $|=1; while (sysread(STDIN, $b, 65536)) { print G $b } \
                open(F, \">ended\")'";
    script(&lab, "publish", perl);
    for round in 0..20 {
        let mut run =
            lab.command(&["run", "job.yaml"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("started");
        let begun = Instant::now();
        while !(lab.path("ready").exists() && fs_err::metadata(lab.path("got")).is_ok_and(|got| got.len() > 1_000_000))
        {
            assert!(begun.elapsed() < Duration::from_secs(180), "the rows never came");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(processes_of(lab.0.root()).len() >= 3);
        run.kill().expect("killed");
        run.wait().expect("ended");
        none_is_left(&lab);
        assert!(!lab.path("ended").exists(), "round {round}");
        for file in ["ready", "got"] {
            fs_err::remove_file(lab.path(file)).expect("removed");
        }
    }
}

#[test]
fn a_resumed_run_calls_the_program_by_the_same_name() {
    let lab = write("exchange: csv");
    script(&lab, "publish", "cat > /dev/null; echo \"$MILLSTREAM_RUN\" >> runs; test -e good");
    run(&lab).ended(1).says(&["status 1"]);
    lab.file("good", "");
    lab.run(&["run", "job.yaml", "--resume"]).ok();
    run(&lab).ok();
    let runs = lab.read("runs");
    let runs: Vec<&str> = runs.lines().collect();
    assert_eq!(
        (runs.len(), runs[0] == runs[1], runs[1] == runs[2], runs[0].is_empty()),
        (3, true, false, false),
        "{runs:?}"
    );
    assert_eq!(in_database(&lab), ROWS);
}

#[test]
fn mistakes_in_programs_are_found_by_check() {
    let lab = write("exchange: csv");
    lab.run(&["check", "job.yaml"]).ended(1).says(&["`./publish` cannot be started", "step p"]);
    let job = "sources:\n  a: {command: [./nothing], csv: {columns: {id: int64}}}\n  \
               b: {command: [cat], read: x.csv}\n  \
               c: {command: []}\n  d: {csv: {}}\n  e: {command: {run: [cat], tineout: 1s}, lines: {}}\nsinks:\n  \
               f: {from: a, command: [cat]}\n  g: {from: a, command: [cat], write: x.csv, exchange: csv}\n  \
               h: {from: a, exchange: csv}\n  i: {from: a, command: {run: [cat]}, exchange: csv}\n";
    lab.file("job.yaml", job);
    lab.run(&["check", "job.yaml"]).ended(2).says(&[
        "`b` has both `read` and `command`",
        "`command` has 0 items",
        "the key `read` is missing in `d`",
        "tineout",
        "the key `exchange` is missing in `f`",
        "`g` has both `write` and `command`",
        "the key `write` is missing in `h`",
        "expected a list for `command`",
        "`env` and `timeout` stand beside it",
    ]);
    lab.file("job.yaml", "sources: {a: {read: \"command:cat\", lines: {}}}\nsinks: {o: {from: a, write: o.csv}}\n");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["nothing says which program is read", "in place of `read`"]);
    lab.file(
        "job.yaml",
        "sources: {a: {command: [./nothing], csv: {columns: {id: int64}}}}\nsinks: {o: {from: a, write: o.csv}}\n",
    );
    lab.run(&["check", "job.yaml"]).ended(1).says(&["`./nothing` cannot be started"]);
}

/// What programs repeat of the secrets that they are given is neither shown nor kept.
#[test]
fn secrets_that_programs_repeat_are_left_out() {
    const TOKEN: &str = "token-4711";
    let env = "env: {TOKEN: {secret: env:LAB_TOKEN}}";
    let lab = Lab::with_job(&format!(
        "sources:\n  s:\n    command: {{run: [sh, -c, 'echo source $TOKEN >&2; echo id; echo 1; echo 2'], {env}}}\n    \
         csv: {{columns: {{id: int64}}}}\nfunctions:\n  f: {{python: own.py:f, arguments: [int64], returns: int64, \
         {env}}}\ntransforms:\n  t:\n    map: {{from: s, python: own.py:g, columns: {{id: int64}}, {env}}}\n    \
         max_rejects: 5\n  u: {{sql: SELECT f(id) AS id FROM t, max_rejects: 5}}\nsinks:\n  o: {{from: u, command: \
         [sh, -c, 'cat; echo sink $TOKEN; exit ${{CODE}}'], exchange: csv, {env}}}\n"
    ));
    lab.file(
        "own.py",
        "import os\nTOKEN = os.environ['TOKEN']\nprint('loaded', TOKEN)\ndef f(id):\n    raise ValueError('f ' + \
         TOKEN)\ndef g(row):\n    if row['id'] == 1: raise ValueError('g ' + TOKEN)\n    return row\n",
    );
    for (code, ended) in [("0", 0), ("3", 1)] {
        let run = |arguments: &[&str]| {
            let mut command = lab.command(arguments);
            command.env("LAB_TOKEN", TOKEN).env("CODE", code);
            finish(command, None)
        };
        let ran = run(&["run", "job.yaml"]);
        ran.ended(ended).says(&["source ***", "loaded ***", "sink ***"]);
        let rejects = run(&["rejects", "last", "--json"]);
        assert_eq!(rejects.stdout.matches("***").count(), 2, "{}", rejects.stdout);
        let kept = format!("{}{}{}{}", ran.stdout, ran.stderr, rejects.stdout, run(&["runs", "--json"]).stdout);
        assert!(!kept.contains(TOKEN), "{kept}");
        for file in files_below(&lab.path(".state")) {
            let bytes = fs_err::read(&file).expect("readable");
            assert!(!bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "{}", file.display());
        }
    }
    lab.file("own.py", "import os\nraise ValueError('loading ' + os.environ['TOKEN'])\n");
    let mut command = lab.command(&["check", "job.yaml"]);
    command.env("LAB_TOKEN", TOKEN).env("CODE", "0");
    let checked = finish(command, None);
    checked.says(&["loading ***"]);
    assert!(!checked.stderr.contains(TOKEN), "{}", checked.stderr);
}

/// All files in `folder` and below.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

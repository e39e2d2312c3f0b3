//! Rows that could be lost silently: files without the columns, formats that are not declared, empty files, line ends,
//! archives after a text.

use millstream_testkit::{FaultServer, Object, Plan};

use crate::use_support::{Lab, csv_rows, gzip, sorted, sqlite, zip_of};

const SINK: &str = "sinks:\n  o: {from: s, write: out.csv}\n";

/// A folder with a job of one source `s`, with these settings, that writes `out.csv`.
fn lab(source: &str) -> Lab {
    Lab::with_job(&format!("sources:\n  s: {{{source}}}\n{SINK}"))
}

/// `run` and `check` fail with this message, and nothing is written.
#[track_caller]
fn fails(lab: &Lab, parts: &[&str]) {
    for command in ["run", "check", "preview"] {
        let ran = lab.run(&[command, "job.yaml"]);
        assert_ne!(ran.code, 0, "{command} {}", ran.stderr);
        ran.says(parts);
    }
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn a_file_with_another_delimiter_does_not_become_rows_of_nulls() {
    let lab = lab("read: 'in/*.csv', on_drift: null, csv: {columns: {id: int64, name: utf8}}");
    lab.file("in/a.csv", "id,name\n1,ann\n2,ben\n");
    lab.file("in/b.csv", "id;name\n3;cid\n4;dot\n");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&[
        "error: the file has none of the columns of the source\n",
        "at in/b.csv, line 1",
        "text `id;name`",
        "is `;` the delimiter? set `delimiter: \";\"`",
    ]);
    assert!(!lab.path("out.csv").exists());
    // As the first file, `check` sees it as well.
    fs_err::rename(lab.path("in/b.csv"), lab.path("in/0.csv")).expect("a file");
    fails(&lab, &["the file has none of the columns of the source", "at in/0.csv, line 1"]);
}

#[test]
fn files_of_json_and_parquet_with_none_of_the_columns_are_errors() {
    let lab = lab("read: 'in/*.jsonl', on_drift: null, json: {columns: {id: int64, name: utf8}}");
    lab.file("in/a.jsonl", "{\"id\": 1}\n{}\n{\"id\": 2, \"more\": 1}\n");
    lab.file("in/b.jsonl", "{\"nr\": 3}\n{\"nr\": 4}\n");
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "error: the file has none of the columns of the source\n",
        "at in/b.jsonl",
        "the file has `nr`; the source has `id`, `name`",
    ]);
    // As the first file, `check` sees it as well.
    fs_err::rename(lab.path("in/b.jsonl"), lab.path("in/0.jsonl")).expect("a file");
    fails(&lab, &["the file has none of the columns of the source", "at in/0.jsonl"]);
    fs_err::remove_file(lab.path("in/0.jsonl")).expect("a file");
    // Objects without keys have nothing else, and a key may be missing.
    lab.file("in/b.jsonl", "{}\n{}\n");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 5);

    let lab = Lab::with_job("sources:\n  s: {read: in.csv, csv: {}}\nsinks:\n  o: {from: s, write: in/b.parquet}\n");
    lab.file("in.csv", "nr,text\n1,a\n");
    lab.run(&["run", "job.yaml"]).ok();
    lab.file("job.yaml", lab.read("job.yaml").replace("b.parquet", "a.parquet"));
    lab.file("in.csv", "id,text\n1,a\n");
    lab.run(&["run", "job.yaml"]).ok();
    let sink = SINK.replace("from: s", "from: t");
    let source = "sources:\n  s: {read: 'in/*.parquet', on_drift: null}\ntransforms:\n  t: {sql: SELECT id FROM s}\n";
    lab.file("job.yaml", format!("{source}{sink}"));
    // The schema of the first file has `text`, which the second one has as well.
    lab.run(&["run", "job.yaml"]).ok().says(&["s: 1 file lacks the column id, null there: in/b.parquet"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("on_drift: null", "on_drift: null, parquet: {}"));
    lab.file(
        "only.yaml",
        "sources:\n  s: {read: in.csv}\ntransforms:\n  t: {sql: SELECT id FROM s}\nsinks:\n  o: {from: t, write: \
         in/a.parquet}\n",
    );
    lab.run(&["run", "only.yaml"]).ok();
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "the file has none of the columns of the source",
        "at in/b.parquet",
        "the file has `nr`, `text`",
    ]);
}

#[test]
fn the_report_says_which_files_lack_a_column() {
    let lab = lab("read: 'in/*.csv', on_drift: null, csv: {columns: {id: int64, name: utf8, city: utf8}}");
    lab.file("in/a.csv", "id,name,city\n1,ann,x\n");
    for number in 0..5 {
        lab.file(&format!("in/b{number}.csv"), "id,name\n2,ben\n");
    }
    lab.file("in/c.zip", zip_of(&[("one.csv", b"id,city\n3,y\n")]));
    lab.file("job.yaml", lab.read("job.yaml").replace("in/*.csv", "in/*.{csv,zip}"));
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ok().says(&[
        "s: 1 file lacks the column name, null there: in/c.zip, member one.csv\n",
        "s: 5 files lack the column city, null there: in/b0.csv, in/b1.csv, in/b2.csv, …\n",
    ]);
    let report = lab.report(&[]);
    let missing = &report["missing_columns"];
    assert_eq!(missing[0]["column"], "name");
    assert_eq!((&missing[1]["source"], &missing[1]["column"]), (&"s".into(), &"city".into()));
    assert_eq!((missing[1]["files"].as_u64(), missing[1]["first"].as_array().map(Vec::len)), (Some(5), Some(5)));
    // If nothing is missing, there is no message.
    let lab = Lab::with_job(&format!("sources:\n  s: {{read: a.csv, on_drift: null}}\n{SINK}"));
    lab.file("a.csv", "id\n1\n");
    assert_eq!(lab.report(&[])["missing_columns"], serde_json::json!([]));
}

#[test]
fn a_file_whose_name_tells_no_format_is_not_guessed_while_a_job_runs() {
    let records = "1001,ann,3.5\n1002,ben,4.5\n1003,cid,5.5\n";
    let lab = lab("read: in.dat");
    lab.file("in.dat", records);
    fails(
        &lab,
        &["error: the format is not known", "at in.dat", "`millstream guess` sees csv", "below `read`", "csv:"],
    );
    let ran = lab.run(&["explain", "job.yaml"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    // What is shown can be written below `read` as it is.
    let message = lab.run(&["check", "job.yaml"]).stderr;
    let hint = message.split("hint: ").nth(1).expect("a hint");
    let block: String = hint.lines().skip(1).map(|line| format!("{line}\n")).collect();
    lab.file("job.yaml", format!("sources:\n  s:\n    read: in.dat\n{block}{SINK}"));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 3);
    for other in ["in.fwf", "in"] {
        let lab = self::lab(&format!("read: {other}"));
        lab.file(other, records);
        fails(&lab, &["error: the format is not known", &format!("at {other}")]);
        assert_eq!(lab.run(&["count", other]).ok().stdout, "3\n");
        assert_eq!(lab.run(&["cat", other]).ok().stdout, records);
    }
}

#[test]
fn standard_input_needs_a_format() {
    let lab = lab("read: '-'");
    for command in ["run", "check"] {
        let ran = lab.run_with_input(&[command, "job.yaml"], b"1,a\n2,b\n3,c\n");
        ran.ended(2).says(&["error: the format of standard input is not known", "csv:"]);
    }
    let lab = self::lab("read: '-', csv: {header: false}");
    lab.run_with_input(&["run", "job.yaml"], b"1,a\n2,b\n3,c\n").ok();
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 3);
}

#[test]
fn names_of_files_and_members_tell_where_the_pattern_does_not() {
    let lab = lab("read: 'in/*'");
    lab.file("in/a.tsv", "id\tname\n1\tann\n");
    lab.file("in/b.tsv.gz", gzip(b"id\tname\n2\tben\n"));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), [["1", "ann"], ["2", "ben"]]);
    fs_err::remove_file(lab.path("out.csv")).expect("a file");
    lab.file("in/c.csv", "id,name\n3,cid\n");
    fails(&lab, &["error: the files have different formats, by their names", "in/a.tsv, in/c.csv"]);

    let lab = self::lab("read: all.zip");
    lab.file("all.zip", zip_of(&[("a.jsonl", b"{\"id\": 1}\n")]));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&lab.read("out.csv")), [["1"]]);
    fs_err::remove_file(lab.path("out.csv")).expect("a file");
    lab.file("all.zip", zip_of(&[("a", b"{\"id\": 1}\n")]));
    fails(&lab, &["error: the format is not known", "at all.zip, member a"]);

    // The name of a list says nothing of what it names.
    let lab = self::lab("read: '@list.txt'");
    lab.file("list.txt", "a.csv\n");
    lab.file("a.csv", "id\n7\n");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("out.csv"), "id\n7\n");
}

#[test]
fn a_content_type_tells_the_format_of_a_url_without_an_ending() {
    let object = |kind: &str, text: &str| Object::new(text).header("Content-Type", kind);
    let server = FaultServer::start(
        Plan::new()
            .object("/csv", object("text/csv; charset=utf-8", "id,name\n1,ann\n"))
            .object("/absent", object("Text/CSV; header=absent", "1,ann\n"))
            .object("/tsv", object("text/tab-separated-values", "id\tname\n1\tann\n").without_heads())
            .object("/lines", object("application/x-ndjson", "{\"id\": 1, \"name\": \"ann\"}\n"))
            .object("/array", object("application/json", "[{\"id\": 1, \"name\": \"ann\"}]"))
            .object("/plain", object("text/plain", "id,name\n1,ann\n"))
            .object("/bytes", object("application/octet-stream", "id,name\n1,ann\n")),
    );
    for path in ["/csv", "/absent", "/tsv", "/lines", "/array"] {
        let lab = lab(&format!("read: '{}'", server.url(path)));
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(csv_rows(&lab.read("out.csv")), [["1", "ann"]], "{path}");
    }
    for path in ["/plain", "/bytes"] {
        let lab = lab(&format!("read: '{}'", server.url(path)));
        fails(&lab, &["error: the format is not known", "sees csv"]);
    }
}

#[test]
fn an_empty_file_ends_the_run_unless_it_is_allowed() {
    for (name, content, what) in [
        ("b.csv", Vec::new(), "the file is empty, but a header is required"),
        ("b.csv.gz", gzip(b""), "the file is empty, but a header is required"),
        ("b.csv", b"\xef\xbb\xbf".to_vec(), "the file is empty, but a header is required"),
        ("b.csv", b"\r\n\n".to_vec(), "the file has no header"),
    ] {
        for columns in ["", ", csv: {columns: {id: int64}}"] {
            let lab = lab(&format!("read: 'in/*'{columns}"));
            lab.file("in/a.csv", "id\n1\n");
            lab.file(&format!("in/{name}"), &content);
            lab.run(&["run", "job.yaml"]).ended(1).says(&[what, &format!("at in/{name}"), "`empty_files: allow`"]);
            assert!(!lab.path("out.csv").exists());
            lab.file("job.yaml", lab.read("job.yaml").replace("read:", "empty_files: allow, read:"));
            lab.run(&["run", "job.yaml"]).ok();
            assert_eq!(lab.read("out.csv"), "id\n1\n");
        }
    }
    // Members, and files of which `check` knows; without a header nothing is due.
    let lab = lab("read: all.zip, csv: {columns: {id: int64}}");
    lab.file("all.zip", zip_of(&[("a.csv", b"id\n1\n"), ("b.csv", b"")]));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the file is empty", "at all.zip, member b.csv"]);
    let lab = self::lab("read: a.csv, csv: {columns: {id: int64}}");
    lab.file("a.csv", "");
    fails(&lab, &["the file is empty, but a header is required", "at a.csv"]);
    let lab = self::lab("read: a.csv, csv: {header: false, columns: {id: int64}}");
    lab.file("a.csv", "");
    lab.run(&["run", "job.yaml"]).ok();
    // No file at all is another matter.
    let lab = self::lab("read: 'in/*.csv', empty_files: allow, csv: {columns: {id: int64}}");
    lab.file("in/x", "");
    fails(&lab, &["no file matches"]);
    let lab = self::lab("read: ['a.parquet', 'b.parquet']");
    lab.file("seed.yaml", "sources:\n  s: {read: seed.csv}\nsinks:\n  o: {from: s, write: a.parquet}\n");
    lab.file("seed.csv", "id\n1\n");
    lab.run(&["run", "seed.yaml"]).ok();
    lab.file("b.parquet", "");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["at b.parquet"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("read:", "empty_files: allow, read:"));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("out.csv"), "id\n1\n");
}

#[test]
fn a_cr_in_a_value_does_not_tear_a_record_in_two() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 5, csv: {columns: {note: utf8}}}\nsinks:\n  o: {from: s, write: \
         'sqlite:out.db', table: t}\n",
    );
    lab.file("in.csv", "note\nfirst\nleft\rright\n\"in\rquotes\"\nlast\n");
    let report = lab.report(&[]);
    assert_eq!((&report["rows_read"], &report["rows_rejected"]), (&4.into(), &1.into()));
    let notes = sqlite(&lab.path("out.db"), "SELECT note FROM t ORDER BY note");
    assert_eq!(notes, [["first"], ["in\rquotes"], ["last"]]);
    let shown = lab.run(&["rejects", report["rejects"].as_str().expect("a run"), "--json"]);
    let reject = &shown.ok().json()["rejects"][0];
    assert_eq!((&reject["line"], &reject["kind"], &reject["uri"]), (&3.into(), &"syntax".into(), &"in.csv".into()));
    lab.file("job.yaml", lab.read("job.yaml").replace(" max_rejects: 5,", ""));
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "error: there is a carriage return (CR) outside of quotes that ends no line\n",
        "at in.csv, line 3, byte 15",
        "the lines of this file end in LF",
        "in quotes",
    ]);
    // Alone, without the lines before it, it is not torn either.
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, max_rejects: 5, csv: {header: false, columns: {note: utf8}}}\nsinks:\n  o: \
         {from: s, \
         write: 'sqlite:out.db', table: t, mode: append}\n",
    );
    lab.file("in.csv", "first\nleft\rright\n");
    lab.run(&["run", "job.yaml"]).ok();
    lab.run(&["rejects", "--replay"]);
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT note FROM t"), [["first"]]);
    // Files whose lines end in CR or CR LF are as good as any.
    for end in ["\r", "\r\n"] {
        let lab = self::lab("read: in.csv, csv: {columns: {id: int64}}");
        lab.file("in.csv", "id\n1\n2\n".replace('\n', end));
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(lab.read("out.csv"), "id\n1\n2\n");
    }
}

#[test]
fn a_zip_behind_a_text_is_neither_read_nor_passed_on_as_text() {
    let lab = lab("read: in.csv, csv: {columns: {id: int64}}");
    let archive = zip_of(&[("a.csv", b"id\n1\n")]);
    for (name, front) in [("in.csv", &b"id\n2\n"[..]), ("in.zip", b"#!/bin/sh\nexec unzip \"$0\"\n")] {
        lab.file(name, [front, &archive].concat());
        for arguments in [["cat", name], ["count", name]] {
            let ran = lab.run(&arguments);
            ran.ended(1).says(&[&format!("a zip archive begins at byte {}, after other data", front.len()), "unzip"]);
            assert_eq!(ran.stdout, "", "nothing of it is passed on");
        }
    }
    lab.run(&["run", "job.yaml"]).ended(1).says(&["a zip archive begins at byte 5"]);
    let far = [b"a line of text\n".repeat(20_000), archive].concat();
    lab.file("far.txt", far);
    lab.run(&["count", "far.txt"]).ended(1).says(&["the data ends like a zip archive"]);
}

#[test]
fn check_and_run_agree_on_a_delimiter_that_the_first_file_contradicts() {
    for (settings, text, what) in [
        ("delimiter: ';', columns: {id: int64, name: utf8}", "id,name\n1,a\n", "is `,` the delimiter?"),
        (
            "delimiter: ';', header: false, columns: {id: int64, name: utf8}",
            "1,a\n2,b\n",
            "the delimiter (`;`) does not occur in the file",
        ),
        ("columns: {id: int64, name: utf8}", "id|name\n1|a\n", "is `|` the delimiter?"),
    ] {
        let lab = lab(&format!("read: in.csv, csv: {{{settings}}}"));
        lab.file("in.csv", text);
        fails(&lab, &[what, "at in.csv", "set `delimiter: "]);
    }
    // No columns are declared: one is possible.
    let lab = lab("read: in.csv, csv: {delimiter: ';'}");
    lab.file("in.csv", "id,name\n1,a\n2,b\n");
    lab.run(&["check", "job.yaml"]).ok();
}

#[test]
fn a_key_that_comes_twice_is_refused_in_every_layout() {
    for (name, text) in [
        ("in.jsonl", "{\"id\": 1, \"s\": {\"x\": 1}}\n{\"id\": 2, \"id\": 3}\n{}\n{\"s\": {\"x\": 1, \"x\": 2}}\n"),
        ("in.json", "[{\"id\": 1, \"s\": {\"x\": 1}}, {\"id\": 2, \"id\": 3}, {}, {\"s\": {\"x\": 1, \"x\": 2}}]"),
    ] {
        for block in ["", ", json: {columns: {id: int64, s: 'struct<x: int64>'}}"] {
            let lab = Lab::with_job(&format!(
                "sources:\n  s: {{read: {name}, max_rejects: 5{block}}}\nsinks:\n  o: {{from: s, write: out.jsonl}}\n"
            ));
            lab.file(name, text);
            let report = lab.report(&[]);
            assert_eq!((&report["rows_read"], &report["rows_rejected"]), (&4.into(), &2.into()), "{name}{block}");
            assert_eq!(lab.read("out.jsonl"), "{\"id\":1,\"s\":{\"x\":1}}\n{\"id\":null,\"s\":null}\n");
        }
    }
}

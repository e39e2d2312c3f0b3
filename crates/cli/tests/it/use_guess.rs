//! What `guess` writes reads the file as it is, or says what it does not; and files of other kinds are named.

use serde_json::Value;

use crate::use_support::{Lab, csv_rows, zip_of};

/// The job that `guess` writes for `text` in `name`.
fn guess_of(lab: &Lab, name: &str, text: impl AsRef<[u8]>) -> String {
    lab.file(name, text);
    let job = lab.run(&["guess", name]).ok().stdout.clone();
    lab.file("guessed.yaml", &job);
    job
}

/// The rows that the job prints which `guess` writes for `text` in `name`, and the job.
#[track_caller]
fn read_back(name: &str, text: impl AsRef<[u8]>) -> (Vec<Vec<String>>, String) {
    let lab = Lab::new();
    let job = guess_of(&lab, name, text);
    let ran = lab.run(&["run", "guessed.yaml", "-q"]);
    assert_eq!(ran.code, 0, "{job}\n{}", ran.stderr);
    (csv_rows(&ran.stdout), job)
}

#[track_caller]
fn assert_rows(text: &str, expected: &[&[&str]]) -> String {
    let (rows, job) = read_back("a.csv", text);
    assert_eq!(rows, expected, "{job}");
    job
}

#[track_caller]
fn says(job: &str, parts: &[&str]) {
    for part in parts {
        let said = job.lines().any(|line| line.starts_with('#') && line.contains(part));
        assert!(said, "`{part}` is not said in:\n{job}");
    }
}

#[test]
fn quotes_around_a_delimiter_in_every_row_are_quotes() {
    let rows: String = (0..50).map(|id| format!("{id},\"Smith, John\"\n")).collect();
    let (read, job) = read_back("a.csv", format!("id,name\n{rows}"));
    assert_eq!(read.len(), 50, "{job}");
    assert_eq!(read[7], ["7", "Smith, John"], "{job}");
    assert!(job.contains("id: int64") && job.contains("name: utf8") && !job.contains("skip_lines"), "{job}");
    // A column of them alone is a column.
    let (read, job) = read_back("a.csv", "name\n\"Smith, John\"\n\"Doe, Jane\"\n");
    assert_eq!(read, [["Smith, John"], ["Doe, Jane"]], "{job}");
    let titanic = "PassengerId,Survived,Name,Sex,Age,Cabin\n\
                   1,0,\"Braund, Mr. Owen Harris\",male,22,\n\
                   2,1,\"Cumings, Mrs. John Bradley (Florence Briggs Thayer)\",female,38,C85\n\
                   3,1,\"Heikkinen, Miss. Laina \"\"L\"\"\",female,,C123\n";
    let (read, job) = read_back("titanic.csv", titanic);
    assert_eq!(read[2][2], "Heikkinen, Miss. Laina \"L\"", "{job}");
    assert_eq!(read.len(), 3);
}

#[test]
fn data_that_looks_like_comments_is_data() {
    assert_rows("tag,n\n#foo,1\n#bar,2\nbaz,3\n", &[&["#foo", "1"], &["#bar", "2"], &["baz", "3"]]);
    let job = assert_rows("a,b\n1,2\n# not data\n3,4\n", &[&["1", "2"], &["3", "4"]]);
    says(&job, &["1 line is left out", "line 3: `# not data`"]);
}

#[test]
fn the_first_of_headerless_rows_is_a_row() {
    let job = assert_rows(
        "Anna,Y\nBob,N\nCyd,Y\nDan,N\n",
        &[&["Anna", "true"], &["Bob", "false"], &["Cyd", "true"], &["Dan", "false"]],
    );
    says(&job, &["not a header", "y and n are read as true and false"]);
    assert_rows("Anna,Y\nBob,N\nCyd,N\n", &[&["Anna", "true"], &["Bob", "false"], &["Cyd", "false"]]);
    assert_rows("1,NA\n2,5\n3,7\n", &[&["1", ""], &["2", "5"], &["3", "7"]]);
}

#[test]
fn what_a_type_would_change_stays_text() {
    for (values, said) in [
        (&["2.2.0", "2.10.0", "3.0.1"][..], None),
        (&["10.12.24x", "2.10.12"], None),
        (&["+318855443322", "+4930123456"], Some("sign")),
        (&["00123", "4711"], Some("zero")),
        (&["1,234", "12,345"], Some("may be 1234 or 1.234")),
        (&["9007199254740993", "0.5"], Some("digits")),
        (&["1.9", "1.10"], Some("last digit")),
        (&["01/02/2024", "03/04/2024"], Some("%m/%d/%Y or %d/%m/%Y")),
        (&["1e5", "12e4"], Some("name")),
        (&["0x1F", "0xA0"], None),
        (&["1.234.567", "2.345.678"], Some("code")),
        (&["99999999999999999999", "1"], Some("digits")),
        (&["0.12345678901234567890123", "0.5"], Some("digits")),
    ] {
        let text: String = values.iter().enumerate().map(|(id, value)| format!("{id};{value}\n")).collect();
        let (rows, job) = read_back("a.csv", format!("id;v\n{text}"));
        let read: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(read, values, "{job}");
        assert!(job.contains("v: utf8"), "{values:?}: {job}");
        if let Some(said) = said {
            says(&job, &["column v: ", said]);
        }
    }
}

#[test]
fn what_is_read_as_something_else_is_said() {
    for (values, read, said) in [
        (
            &["31.12.2024", "01.02.2024"][..],
            &["2024-12-31", "2024-02-01"][..],
            "`31.12.2024` is read as a date with the format %d.%m.%Y",
        ),
        (&["1,5", "12,345"], &["1.5", "12.345"], "`1,5` is read as 1.5"),
        (&["1.234,5", "0,25"], &["1234.5", "0.25"], "`1.234,5` is read as 1234.5"),
        (&["NA", "5"], &["", "5"], "`NA` is read as null"),
        (&["yes", "no"], &["true", "false"], "yes and no are read as true and false"),
    ] {
        let text: String = values.iter().enumerate().map(|(id, value)| format!("{id};{value}\n")).collect();
        let (rows, job) = read_back("a.csv", format!("id;v\n{text}"));
        let got: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(got, read, "{job}");
        says(&job, &["column v: ", said]);
    }
    // A country is no null.
    let job = assert_rows("land,n\nNA,1\nDE,NA\n", &[&["NA", "1"], &["DE", "NA"]]);
    says(&job, &["column n: `NA` is among its values"]);
}

#[test]
fn lines_that_are_skipped_are_named_and_are_no_data() {
    let job = assert_rows("Sales report\nmade by Ann\n\nid,name\n1,a\n2,b\n", &[&["1", "a"], &["2", "b"]]);
    says(&job, &["lines 1 to 3 are skipped: `Sales report`, `made by Ann`"]);
    // Seven lines of ten are no title.
    let lab = Lab::new();
    let text = "alpha\nbeta\ngamma\ndelta\nepsilon\nzeta\neta\nx,y\n1,2\n3,4\n";
    let job = guess_of(&lab, "mixed.txt", text);
    assert!(!job.contains("skip_lines"), "{job}");
    let ran = lab.run(&["run", "guessed.yaml", "-q"]);
    for line in text.lines() {
        assert!(ran.stdout.contains(line), "{line}: {job}");
    }
    // A record that does not fit is named, not skipped.
    let job = guess_of(&lab, "ragged.csv", "1,2,3,4\n5,6,7\n8,9,10\n11,12\n13,14,15\n");
    says(&job, &["line 1, `1,2,3,4`: the record has 4 fields", "line 4, `11,12`", "`run` stops at the first"]);
    let run = lab.run(&["run", "guessed.yaml", "-q"]);
    run.ended(1).says(&["the record has 4 fields"]);
}

#[test]
fn the_names_of_a_header_that_is_shorter_or_longer_stay() {
    let job = assert_rows("name,x\n1,Anna,2.5\n2,Bob,3.5\n", &[&["1", "Anna", "2.5"], &["2", "Bob", "3.5"]]);
    assert!(job.contains("name: utf8") && job.contains("x: float64"), "{job}");
    says(&job, &["line 1 holds the names of the columns, and none for the first"]);
    let job = assert_rows("id,name\n1,Anna,\n2,Bob,\n", &[&["1", "Anna", ""], &["2", "Bob", ""]]);
    assert!(job.contains("id: int64") && job.contains("name: utf8"), "{job}");
    let job = assert_rows("id,name,rest\n1,Anna\n2,Bob\n", &[&["1", "Anna"], &["2", "Bob"]]);
    assert!(job.contains("id: int64") && job.contains("name: utf8"), "{job}");
    says(&job, &["`rest` has no values"]);
}

#[test]
fn a_job_says_its_delimiter_where_the_name_says_another() {
    for (name, text) in
        [("a.tsv", "id,name\n1,a\n2,b\n"), ("a.psv", "id;name\n1;a\n2;b\n"), ("a.tab.gz", "id,name\n1,a\n2,b\n")]
    {
        let text = if name.ends_with(".gz") { crate::use_support::gzip(text.as_bytes()) } else { text.into() };
        let (rows, job) = read_back(name, text);
        assert_eq!(rows, [["1", "a"], ["2", "b"]], "{job}");
        assert!(job.contains("delimiter: "), "{job}");
    }
}

#[test]
fn names_that_yaml_cannot_take_plainly_are_escaped() {
    let long = "n".repeat(3000);
    let names = [
        long.as_str(),
        "a\u{7f}b",
        "c\u{85}d",
        "e\u{1}f",
        "g\u{2028}h",
        "two\nlines",
        "\u{feff}x",
        "${HOME}",
        "back\\slash",
    ];
    let header: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let row = vec!["some text"; names.len()].join(",");
    let lab = Lab::new();
    // It is long enough for a text with a few control characters.
    let text = format!("{}\n{}", header.join(","), format!("{row}\n").repeat(60));
    let job = guess_of(&lab, "a.csv", text);
    lab.file("guessed.yaml", job.replace("\n    csv: {}\n", "\n    json: {}\n"));
    let ran = lab.run(&["run", "guessed.yaml", "-q"]);
    let first: Value = serde_json::from_str(ran.ok().stdout.lines().next().expect("a row")).expect("json");
    let read: Vec<&str> = first.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(read, names, "{job}");
    assert!(
        job.chars().all(|sign| sign == '\n' || (!sign.is_control() && sign != '\u{2028}' && sign != '\u{feff}')),
        "{job}"
    );
    let longest = job.lines().filter(|line| !line.trim_start().starts_with('?')).map(str::len).max();
    assert!(longest.is_some_and(|longest| longest < 1024), "a key before a colon has at most 1,024 characters");
}

#[test]
fn files_of_other_kinds_are_named() {
    let lab = Lab::new();
    let sheet = zip_of(&[("[Content_Types].xml", b"<Types/>"), ("xl/workbook.xml", b"<workbook/>")]);
    let files: [(&str, &[u8], &str, &str); 8] = [
        ("a.xlsx", &sheet, "the file is an Excel workbook", "save it as CSV"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0\0\0", "Excel", "save it as CSV"),
        ("a.avro", b"Obj\x01\x04\x16avro.schema\0", "an Avro file", "Parquet or CSV"),
        ("a.orc", b"ORC\x0a\x03\0\0\0\x12", "an ORC file", "Parquet or CSV"),
        ("a.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "an Arrow IPC file", "Parquet or CSV"),
        ("a.db", b"SQLite format 3\0\x10\0\x01\x01", "a SQLite database", "read: sqlite:FILE"),
        ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF document", "CSV"),
        (
            "a.html",
            b"<!DOCTYPE html>\n<html><body>Log in, please</body></html>\n",
            "a page of HTML",
            "see what the address returns",
        ),
    ];
    for (name, content, what, hint) in files {
        lab.file(name, content);
        let declared = format!(
            "sources:\n  s: {{read: {name}, csv: {{columns: {{id: int64}}}}}}\n\
             sinks:\n  o: {{from: s, write: out.csv}}\n"
        );
        lab.file("declared.yaml", &declared);
        lab.file("job.yaml", declared.replace("{columns: {id: int64}}", "{}"));
        for command in [
            &["guess", name][..],
            &["run", "job.yaml"],
            &["run", "declared.yaml"],
            &["check", "job.yaml"],
            &["preview", "declared.yaml"],
        ] {
            lab.run(command).ended(1).says(&["the file is ", what, hint, name]);
        }
        assert!(!lab.path("out.csv").exists(), "{name}");
        if name != "a.html" {
            lab.run(&["count", name]).ended(1).says(&[what]);
        }
        // Bytes are bytes.
        lab.run(&["cat", name]).ok();
    }
    // Who asks for a member of a workbook by its name gets it.
    let job = "sources:\n  s: {read: a.xlsx, members: xl/workbook.xml, lines: {}}\n\
               sinks:\n  o: {from: s, write: '-', lines: {}}\n";
    lab.file("job.yaml", job);
    assert!(lab.run(&["run", "job.yaml", "-q"]).ok().stdout.contains("<workbook/>"));
}

#[test]
fn a_title_above_the_header_is_named_by_run() {
    let lab = Lab::new();
    lab.file("a.csv", "Sales report\nmade by Ann\n\nid,name\n1,a\n2,b\n");
    let job = "sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: '-'}\n";
    lab.file("job.yaml", job);
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the header has one field, `Sales report`", "set `skip_lines: 3`"]);
    lab.file("job.yaml", job.replace("a.csv}", "a.csv, csv: {columns: {id: int64, name: utf8}}}"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["line 4 has the names of the columns: set `skip_lines: 3`"]);
    lab.file("job.yaml", job.replace("a.csv}", "a.csv, csv: {skip_lines: 3, columns: {id: int64, name: utf8}}}"));
    assert_eq!(csv_rows(&lab.run(&["run", "job.yaml", "-q"]).ok().stdout), [["1", "a"], ["2", "b"]]);
}

#[test]
fn a_first_record_of_data_is_not_skipped_by_a_hint() {
    let lab = Lab::with_job("sources:\n  s: {read: a.tsv}\nsinks:\n  o: {from: s, write: '-', csv: {header: false}}\n");
    lab.file("a.tsv", "1\tKabarnet\tKabarnet\n2\tEldama\tRavine\n");
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "the header has the column Kabarnet twice",
        "if the first line is data, set `header: false` and declare `columns`; if it is a header,",
    ]);
    let block = "a.tsv, csv: {header: false, columns: {id: int64, name: utf8, town: utf8}}}";
    lab.file("job.yaml", lab.read("job.yaml").replace("a.tsv}", block));
    let ran = lab.run(&["run", "job.yaml", "-q"]);
    assert_eq!(ran.ok().stdout, "1,Kabarnet,Kabarnet\n2,Eldama,Ravine\n");
}

#[test]
fn data_that_is_taken_for_a_header_is_warned_of() {
    let job = "sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: out.csv}\n";
    let lab = Lab::with_job(job);
    let rows =
        |places: &str| (12..900).map(|id| format!("{id},{places} {id},{},IR,1266\n", id + 3)).collect::<String>();
    lab.file("a.csv", rows("Takht-e Qeyşar"));
    let commands = [&["check", "job.yaml"][..], &["preview", "job.yaml"], &["run", "job.yaml"]];
    for command in commands {
        lab.run(command).ok().says(&[
            "warning: the first record of `s` is taken for its header: `12`, `Takht-e Qeyşar 12`, `15`, `IR`, `1266`\n",
            "it looks like data: `12` is a value like those below it",
            "csv: {header: false}, and declare `columns`",
            "csv: {header: true}",
        ]);
    }
    // A dialect that the job names is the guess's as well; a long file is cut before it is looked at.
    lab.file("a.csv", rows(&"long ".repeat(40)).replace(',', ";"));
    lab.file("job.yaml", job.replace("a.csv}", "a.csv, csv: {delimiter: ;}}"));
    lab.run(&["check", "job.yaml"]).ok().says(&["the first record of `s` is taken for its header: `12`"]);
    // Who says so means it, and a header is one.
    for (block, first) in [("{delimiter: ;, header: true}", ""), ("{delimiter: ;}", "id;place;n;country;year\n")] {
        lab.file("a.csv", format!("{first}{}", rows("town").replace(',', ";")));
        lab.file("job.yaml", job.replace("a.csv}", &format!("a.csv, csv: {block}}}")));
        for command in commands {
            let ran = lab.run(command);
            assert!(!ran.ok().stderr.contains("warning"), "{}", ran.stderr);
        }
    }
}

#[test]
fn a_file_with_another_delimiter_does_not_become_a_column() {
    for (on_drift, first, second) in
        [("widen", ',', ';'), ("widen", ';', ','), ("fail", ',', ';'), ("null", ';', ','), ("null", ',', ';')]
    {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: '?.csv', on_drift: {on_drift}}}\nsinks:\n  o: {{from: s, write: out/o.csv}}\n"
        ));
        let text = |delimiter: char| "id,name,pop\n1,a,5\n".replace(',', &delimiter.to_string());
        lab.file("a.csv", text(first));
        lab.file("b.csv", text(second));
        let (odd, other) = if first == ';' { ("a.csv", "b.csv") } else { ("b.csv", "a.csv") };
        for command in ["check", "run"] {
            let ran = lab.run(&[command, "job.yaml"]);
            ran.ended(1).says(&[
                "error: the file has another delimiter than the other files of the source\n",
                &format!("at {odd}"),
                "text `id;name;pop`",
                &format!("divided by `;`, it has the column `id`, as {other} has"),
                "with `delimiter: \";\"`",
            ]);
            assert!(!ran.stderr.contains("widen"), "{}", ran.stderr);
        }
        assert!(!lab.path("out").exists());
    }
}

#[test]
fn an_empty_file_alone_is_said_to_be_empty() {
    let lab = Lab::with_job("sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: out.csv}\n");
    lab.file("a.csv", "");
    let hint = "declare `columns` and set `empty_files: allow`";
    lab.run(&["run", "job.yaml"]).ended(1).says(&["columns cannot be inferred: the file is empty", "at a.csv", hint]);
    lab.file("job.yaml", lab.read("job.yaml").replace("a.csv", "a.parquet"));
    lab.file("a.parquet", "");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["it is empty", "at a.parquet", "set `empty_files: allow`"]);
}

#[test]
fn a_page_without_a_format_is_named_first() {
    let lab = Lab::with_job("sources:\n  s: {read: page}\nsinks:\n  o: {from: s, write: out.csv}\n");
    lab.file("page", "<!DOCTYPE html>\n<html><body>Log in, please</body></html>\n");
    for command in ["check", "run"] {
        lab.run(&[command, "job.yaml"]).ended(1).says(&[
            "error: the file is a page of HTML",
            "at page",
            "a server may answer with a page for logging in or an error; see what the address returns",
            "add `lines: {}`",
        ]);
    }
}

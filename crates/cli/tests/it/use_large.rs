//! One large unit on several cores: helpers decode and parse parts of it, and the result is the same.

use std::fmt::Write;

use crate::use_support::{Lab, gzip};

/// About 10 MB whose records differ in length; some fields go over two lines.
fn rows(count: u64) -> String {
    let mut number = 1_u64;
    (0..count).fold("id,text\n".to_owned(), |mut text, id| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = (number >> 60) as usize;
        let end = if number >> 56 & 15 == 0 { "a\nb" } else { "" };
        let _ = writeln!(text, "{id},\"{:x}{}{end}\"", number >> 8, "of the same ".repeat(length / 4));
        text
    })
}

const JOB: &str = "sources:\n  s: {read: FILE, csv: {columns: {id: int64, text: utf8}}, add: [_line]}\ntransforms:\n  \
    t: {sql: 'SELECT count(*) AS n, sum(id) AS ids, sum(length(text)) AS text, sum(_line) AS lines, sum(id * _line) AS \
    pairs FROM s'}\n\
    sinks:\n  o: {from: t, write: \"-\", csv: {}}\n";

#[test]
fn one_large_unit_gives_the_same_on_one_core_and_on_several() {
    let lab = Lab::new();
    let text = rows(250_000);
    let (first, second) = text.as_bytes().split_at(text.len() / 3);
    lab.file("plain.csv", &text);
    lab.file("one.csv.gz", gzip(text.as_bytes()));
    lab.file("members.csv.gz", [gzip(first), gzip(second)].concat());
    let lines = text.lines().count();
    let mut answers = Vec::new();
    for file in ["plain.csv", "one.csv.gz", "members.csv.gz"] {
        lab.file("job.yaml", JOB.replace("FILE", file));
        for cores in ["1", "2", "4"] {
            assert_eq!(lab.run(&["count", file, "--cores", cores]).ok().stdout, format!("{lines}\n"), "{file}");
            answers.push(lab.run(&["run", "job.yaml", "-q", "--cores", cores]).ok().stdout.clone());
        }
    }
    assert!(answers[0].contains("\n250000,"), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[test]
fn a_large_unit_with_a_fault_ends_with_the_same_message_however_many_read_it() {
    let lab = Lab::new();
    let mut text = rows(200_000);
    let packed = gzip(text.as_bytes());
    lab.file("cut.csv.gz", &packed[..packed.len() * 2 / 3]);
    let mut flipped = packed.clone();
    let end = flipped.len() - 6;
    flipped[end] ^= 1;
    lab.file("flipped.csv.gz", flipped);
    let at = text.find("\n120000,").expect("a record") + 1;
    text.replace_range(at..at + 6, "1200x0");
    lab.file("bad.csv.gz", gzip(text.as_bytes()));
    for (file, said) in [("cut", "is truncated"), ("flipped", "checksum"), ("bad", "`1200x0`")] {
        let file = format!("{file}.csv.gz");
        lab.file("job.yaml", JOB.replace("FILE", &file));
        let told: Vec<String> = ["1", "2", "4"]
            .map(|cores| lab.run(&["run", "job.yaml", "-q", "--cores", cores]).ended(1).stderr.clone())
            .into();
        assert!(told[0].contains(said), "{}", told[0]);
        assert!(told.iter().all(|text| *text == told[0]), "{told:?}");
    }
}

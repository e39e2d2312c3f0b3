//! Large zips, which are read by their directory if the source allows it: the result is the same as from a pipe, and
//! only the selected members are fetched.

use std::io::Write as _;

use millstream_testkit::{Answer, Fault, FaultServer, Object, Plan};
use zip::CompressionMethod::{Deflated, Stored};

use crate::use_support::{Lab, Ran};

/// The records of member `number`: some go over two lines.
fn rows(number: u64, count: u64) -> String {
    (0..count).fold("id,text\n".to_owned(), |text, id| {
        let word = (number * 1_000_000 + id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let end = if word >> 60 == 0 { "a\nb" } else { "" };
        text + &format!("{id},\"{word:016x}{:016x}{end}\"\n", word.rotate_left(23).wrapping_mul(31))
    })
}

/// An archive of about 7 MB: twelve tables, every other one compressed, and a large text.
fn archive() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut add = |name: &str, method, text: &str| {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(name, options).expect("memory");
        writer.write_all(text.as_bytes()).expect("memory");
    };
    for number in 0..12 {
        let method = if number % 2 == 0 { Stored } else { Deflated };
        add(&format!("tables/{number:02}.csv"), method, &rows(number, 15_000));
        if number == 5 {
            add("readme.txt", Stored, &rows(99, 30_000));
        }
    }
    let archive = writer.finish().expect("memory").into_inner();
    assert!(archive.len() > 6 << 20, "it is large: {}", archive.len());
    archive
}

const JOB: &str = "sources:\n  s: {read: 'FILE', members: ['GLOB'], csv: {columns: {id: int64, text: utf8}}, \
    add: [_member, _line]}\ntransforms:\n  t: {sql: 'SELECT _member, count(*) AS n, sum(id) AS ids, sum(length(text)) \
    AS text, sum(_line) AS lines, sum(id * _line) AS pairs FROM s GROUP BY _member ORDER BY _member'}\n\
    sinks:\n  o: {from: t, write: \"-\", csv: {}}\n";

fn job(file: &str, glob: &str) -> String {
    JOB.replace("FILE", file).replace("GLOB", glob)
}

/// The job over what is at `file`.
fn run(lab: &Lab, file: &str, glob: &str, cores: &str) -> Ran {
    lab.file("job.yaml", job(file, glob));
    lab.run(&["run", "job.yaml", "-q", "--cores", cores])
}

/// The job over a pipe, which can only be read as a stream.
fn in_passing(lab: &Lab, archive: &[u8], glob: &str) -> Ran {
    lab.file("job.yaml", job("-", glob));
    lab.run_with_input(&["run", "job.yaml", "-q"], archive)
}

/// An object that is served with ranges and a version.
fn served(archive: &[u8]) -> Object {
    version(archive, "\"1\"")
}

fn version(archive: &[u8], etag: &str) -> Object {
    Object::new(archive).header("accept-ranges", "bytes").etag(etag)
}

/// The first and last bytes that were asked for.
fn ranges(server: &FaultServer) -> Vec<Option<(u64, u64)>> {
    let range = |text: &str| {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    server.requests().iter().map(|request| request.header("range").and_then(range)).collect()
}

#[test]
fn a_large_zip_gives_the_same_as_in_passing_wherever_it_is() {
    let (lab, archive) = (Lab::new(), archive());
    lab.file("a.zip", &archive);
    lab.file("without a name", &archive);
    let server = FaultServer::start(
        Plan::new()
            .object("/a", served(&archive))
            .object("/no-ranges", Object::new(archive.clone()).without_ranges().etag("\"1\"")),
    );
    for glob in ["tables/*.csv", "tables/0[37].csv", "**/11.csv"] {
        let expected = in_passing(&lab, &archive, glob).ok().stdout.clone();
        for file in ["a.zip", "without a name", &server.url("/a"), &server.url("/no-ranges")] {
            for cores in ["1", "3"] {
                assert_eq!(run(&lab, file, glob, cores).ok().stdout, expected, "{file} {glob} {cores}");
            }
        }
    }
    let lines = lab.run_with_input(&["count", "-"], &archive).ok().stdout.clone();
    let text = lab.run_with_input(&["cat", "-"], &archive).ok().stdout.clone();
    for cores in ["1", "2", "4"] {
        assert_eq!(lab.run(&["count", "a.zip", "--cores", cores]).ok().stdout, lines);
        let by_unit = lab.run(&["count", "--by-unit", "a.zip", "a.zip", "--cores", cores]).ok().stdout.clone();
        let line = format!("{}\ta.zip\n", lines.trim());
        assert!(by_unit.starts_with(&line.repeat(2)), "{by_unit}");
        assert!(lab.run(&["cat", "a.zip", "--cores", cores]).ok().stdout == text, "in the order of the archive");
    }
}

#[test]
fn what_is_not_wanted_is_not_fetched() {
    let (lab, archive) = (Lab::new(), archive());
    let server = FaultServer::start(Plan::new().object("/a.zip", served(&archive)));
    let expected = in_passing(&lab, &archive, "tables/0[37].csv").ok().stdout.clone();
    assert_eq!(run(&lab, &server.url("/a.zip"), "tables/0[37].csv", "2").ok().stdout, expected);
    let asked = ranges(&server);
    let all = asked.iter().filter(|range| range.is_none()).count();
    let bytes: u64 = asked.iter().flatten().map(|(first, last)| last - first + 1).sum();
    // It is opened once to be looked at; then the end is asked for, and the two members.
    assert_eq!((all, asked.len()), (1, 4), "{asked:?}");
    assert!(bytes < archive.len() as u64 / 4, "{bytes} bytes: {asked:?}");
    // Where the columns are made out from the data, that is so for the look at it as well.
    lab.file(
        "guessed.yaml",
        job(&server.url("/a.zip"), "tables/11.csv").replace("columns: {id: int64, text: utf8}", ""),
    );
    lab.run(&["run", "guessed.yaml", "-q"]).ok();
    let asked = ranges(&server).split_off(asked.len());
    let bytes: u64 = asked.iter().flatten().map(|(first, last)| last - first + 1).sum();
    assert!(bytes < archive.len() as u64 / 3, "{bytes} bytes: {asked:?}");
    // What no member matches is known without reading any.
    let error = run(&lab, &server.url("/a.zip"), "*.tsv", "2");
    error.ended(1).says(&["no member of the zip matches `members`", "the archive has tables/00.csv"]);
    lab.file("skip.yaml", job(&server.url("/a.zip"), "*.tsv").replace("add:", "on_error: skip, add:"));
    lab.run(&["run", "skip.yaml", "-q"]).ended(1).says(&["no member of the zip matches `members`"]);
}

#[test]
fn a_server_without_versions_or_ranges_is_read_in_passing() {
    let (lab, archive) = (Lab::new(), archive());
    let plain = || Object::new(archive.clone());
    let server = FaultServer::start(
        Plan::new()
            .object("/no-etag.zip", plain().header("accept-ranges", "bytes"))
            .object("/says-nothing.zip", plain().etag("\"1\""))
            .object("/lies.zip", plain().etag("\"1\"").header("accept-ranges", "bytes").without_ranges())
            .object("/small.zip", served(&archive[..0])),
    );
    let expected = in_passing(&lab, &archive, "tables/*.csv").ok().stdout.clone();
    let mut before = 0;
    for (name, requests) in [("no-etag", 1), ("says-nothing", 1), ("lies", 3)] {
        assert_eq!(run(&lab, &server.url(&format!("/{name}.zip")), "tables/*.csv", "2").ok().stdout, expected);
        let asked = server.requests().len();
        assert_eq!(asked - before, requests, "{name}: {:?}", ranges(&server));
        before = asked;
    }
}

#[test]
fn a_zip_that_changes_between_its_pieces_is_an_error_and_a_cut_is_mended() {
    let (lab, archive) = (Lab::new(), archive());
    let unavailable = Fault::Answer(Answer::status(503).header("retry-after", "0"));
    let server = FaultServer::start(
        Plan::new()
            .object("/changed.zip", served(&archive).replaced_after(3, version(&archive, "\"2\"")))
            .object("/before.zip", served(&archive).replaced_after(1, version(&archive, "\"2\"")))
            .object("/cut.zip", served(&archive).fault(3, Fault::Cut { after: 10_000 }).fault(1, unavailable)),
    );
    for name in ["changed", "before"] {
        let replaced = server.url(&format!("/{name}.zip"));
        run(&lab, &replaced, "tables/*.csv", "2").ended(1).says(&["the object has changed", &replaced]);
    }
    let expected = in_passing(&lab, &archive, "tables/*.csv").ok().stdout.clone();
    assert_eq!(run(&lab, &server.url("/cut.zip"), "tables/*.csv", "2").ok().stdout, expected);
}

#[test]
fn faults_of_a_large_zip_have_the_message_that_they_have_in_passing() {
    let (lab, good) = (Lab::new(), archive());
    let at = |name: &[u8]| good.windows(name.len()).position(|window| window == name).expect("the local header");
    let seventh = at(b"tables/07.csv") + 13;
    let mut damaged = good.clone();
    damaged[seventh + 1000] ^= 1;
    let mut bad_value = good.clone();
    let eighth = at(b"tables/08.csv") + 13;
    bad_value[eighth + 8] = b'x';
    let directory = good.len() - 22 - 1;
    let entry = good[..directory].windows(13).rposition(|window| window == b"tables/07.csv").expect("the entry");
    let mut renamed = good.clone();
    renamed[entry + 8] = b'8';
    let mut encrypted = good.clone();
    encrypted[seventh - 13 - 30 + 6] |= 1;
    for (what, archive) in [("damaged", damaged), ("bad", bad_value), ("renamed", renamed), ("encrypted", encrypted)] {
        let file = lab.file("a.zip", &archive);
        let file = file.to_string_lossy();
        let expected = in_passing(&lab, &archive, "tables/*.csv").ended(1).stderr.clone();
        let expected: Vec<&str> =
            expected.lines().filter(|line| !line.contains("-->") && !line.contains(" byte ")).collect();
        for cores in ["1", "2", "4"] {
            let told = run(&lab, &file, "tables/*.csv", cores).ended(1).stderr.clone();
            assert!(told.contains("a.zip"), "{what}: {told}");
            assert!(
                expected.iter().any(|line| line.starts_with("error") && told.contains(line)),
                "{what}: {told}\n{expected:?}"
            );
        }
    }
    // Of a truncated archive, the complete members are read and the fault is reported.
    lab.file("cut.zip", &good[..good.len() - 3]);
    run(&lab, "cut.zip", "tables/*.csv", "2").ended(1).says(&["zip is truncated"]);
}

#[test]
fn a_zip_of_very_many_members_needs_little_memory() {
    let lab = Lab::new();
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(Stored);
    for number in 0..60_000 {
        writer.start_file(format!("{number}.csv"), stored).expect("memory");
        writer.write_all(format!("id\n{number}\n").as_bytes()).expect("memory");
    }
    let archive = writer.finish().expect("memory").into_inner();
    lab.file("a.zip", &archive);
    assert_eq!(lab.run(&["count", "a.zip"]).ok().stdout, "120000\n");
    let counted = "sources:\n  s: {read: a.zip, lines: {}}\ntransforms:\n  n: {sql: 'SELECT count(*) AS n FROM s'}\n\
        sinks:\n  o: {from: n, write: '-', csv: {}}\n";
    lab.file("counted.yaml", counted);
    assert_eq!(lab.run(&["run", "counted.yaml", "-q", "--memory", "64MiB"]).ok().stdout, "n\n120000\n");
    let limited = "sources:\n  s: {read: a.zip, limits: {members: 59999}, lines: {}}\nsinks:\n  o: {from: s, write: \
                   out.txt, lines: {}}\n";
    lab.file("limited.yaml", limited);
    lab.run(&["run", "limited.yaml"]).ended(1).says(&["the archive has more than 59999 members"]);
}

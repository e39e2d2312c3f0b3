//! Data that is not what it claims to be: damaged archives, broken records, values that do not fit.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use zip::write::SimpleFileOptions;

use crate::transcript::{Session, assert_transcript};

fn rows() -> Vec<u8> {
    (0..2_000).fold("id,name\n".to_owned(), |text, number| text + &format!("{number},name {number}\n")).into_bytes()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).and_then(|()| encoder.finish()).expect("memory takes all")
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in members {
        archive.start_file(*name, SimpleFileOptions::default()).expect("any name");
        archive.write_all(text).expect("memory takes all");
    }
    archive.finish().expect("memory takes all").into_inner()
}

/// The job of `content` must fail in every way of running, with one message.
fn fails_everywhere(name: &str, content: impl AsRef<[u8]>) -> Session {
    let mut session = Session::with(name, content);
    session.fails_everywhere(1);
    session
}

/// The same, and so must `count` and `cat`.
fn cannot_be_decoded(name: &str, content: impl AsRef<[u8]>) -> Session {
    let mut session = fails_everywhere(name, content);
    session.fails_without_job(name);
    session
}

#[test]
fn a_gzip_cut_short() {
    let whole = gzip(&rows());
    assert_transcript!("gzip_cut", cannot_be_decoded("rows.csv.gz", &whole[..whole.len() - 100]));
}

#[test]
fn a_gzip_cut_in_its_trailer() {
    let whole = gzip(&rows());
    assert_transcript!("gzip_cut_trailer", cannot_be_decoded("rows.csv.gz", &whole[..whole.len() - 3]));
}

#[test]
fn a_gzip_with_a_flipped_byte() {
    let mut damaged = gzip(&rows());
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    // What the damage does depends on the encoder: the data does not parse, or its checksum is wrong.
    let mut session = Session::with("rows.csv.gz", damaged);
    session.fails_everywhere(1);
    session.fails_without_job("rows.csv.gz");
    let said = session.transcript();
    assert!(said.contains("gzip") || said.contains("deflate"), "{said}");
    assert!(
        said.contains("  at rows.csv.gz, byte ") && said.contains("hint: the file is damaged; get it again"),
        "{said}"
    );
}

#[test]
fn a_gzip_with_a_wrong_checksum() {
    let mut damaged = gzip(&rows());
    let checksum = damaged.len() - 8;
    damaged[checksum] ^= 0x55;
    assert_transcript!("gzip_checksum", cannot_be_decoded("rows.csv.gz", damaged));
}

#[test]
fn a_gzip_with_garbage_after_its_end() {
    let mut long = gzip(&rows());
    long.extend_from_slice(b"garbage at the end");
    assert_transcript!("gzip_garbage", cannot_be_decoded("rows.csv.gz", long));
}

#[test]
fn a_zip_cut_short() {
    let whole = archive(&[("rows.csv", &rows())]);
    assert_transcript!("zip_cut", cannot_be_decoded("rows.zip", &whole[..whole.len() / 2]));
}

#[test]
fn a_zip_without_a_matching_member() {
    let mut session = Session::with("rows.zip", archive(&[("rows.csv", &rows())]));
    session
        .job("rows: {read: rows.zip, members: ['*.tsv'], csv: {columns: {id: int64, name: utf8}}}", "write: out/x.csv");
    let ended = session.run(&["run", "--quiet", "job.yaml"]);
    assert_ne!(ended.code, Some(0), "no member is no success");
    assert!(session.left().is_empty());
    assert_transcript!("zip_no_member", session);
}

#[test]
fn a_bomb() {
    let line = [b"1,".as_slice(), &b"a".repeat(99_997), b"\n"].concat();
    let text = [b"id,name\n".as_slice(), &line.repeat(800)].concat();
    let mut session = Session::with("bomb.zip", archive(&[("bomb.csv", &text)]));
    session.fails(1, &["run", "job.yaml"]);
    session.fails_without_job("bomb.zip");
    assert_transcript!("zip_bomb", session);
}

/// A member's name is data. It may name no place: not when it is read, and not as the name of a file that is written.
#[test]
fn a_member_that_climbs() {
    let mut session =
        Session::with("rows.zip", archive(&[("../../x", b"id,name\n1,a\n"), ("/etc/y", b"id,name\n2,b\n")]));
    session
        .job("rows: {read: rows.zip, add: [_member], csv: {columns: {id: int64, name: utf8}}}", "write: '-', csv: {}");
    let ended = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 3));
    let inside = session.tree.folder("deep/er/out");
    session.job(
        "rows: {read: rows.zip, add: [_member], csv: {columns: {id: int64, name: utf8}}}",
        "write: 'deep/er/out/{value}.csv', split: _member",
    );
    assert_eq!(session.run(&["run", "--quiet", "job.yaml"]).code, Some(0));
    let mut written: Vec<_> = fs_err::read_dir(&inside)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .filter(|name| !name.starts_with('.'))
        .collect();
    written.sort();
    assert_eq!(written.len(), 2, "both are files in that folder: {written:?}");
    for climbed in ["x", "x.csv", "deep/x.csv", "deep/x", "deep/er/x.csv"] {
        assert!(!session.tree.path(climbed).exists(), "{climbed} was written beside {}", inside.display());
    }
    assert!(!std::path::Path::new("/etc/y.csv").exists());
    assert_transcript!("zip_climbing_member", session);
}

#[test]
fn a_field_too_many() {
    assert_transcript!("csv_field_too_many", fails_everywhere("rows.csv", "id,name\n1,a\n2,b,c\n3,d\n"));
}

#[test]
fn a_field_too_few() {
    assert_transcript!("csv_field_too_few", fails_everywhere("rows.csv", "id,name\n1,a\n2\n3,d\n"));
}

#[test]
fn an_unclosed_quote() {
    assert_transcript!("csv_unclosed_quote", fails_everywhere("rows.csv", "id,name\n1,a\n2,\"b\n3,d\n"));
}

#[test]
fn not_utf8() {
    assert_transcript!("csv_not_utf8", fails_everywhere("rows.csv", b"id,name\n1,a\n2,caf\xe9\n3,d\n"));
}

#[test]
fn a_word_in_a_column_of_numbers() {
    assert_transcript!("csv_bad_value", fails_everywhere("rows.csv", "id,name\n1,a\nabc,b\n3,d\n"));
}

#[test]
fn a_number_too_large() {
    assert_transcript!("csv_too_large", fails_everywhere("rows.csv", "id,name\n1,a\n99999999999999999999,b\n"));
}

#[test]
fn a_column_that_is_not_there() {
    assert_transcript!("csv_other_header", fails_everywhere("rows.csv", "id,nom\n1,a\n"));
}

#[test]
fn inside_an_archive_the_member_is_named() {
    let session = fails_everywhere("rows.zip", archive(&[("a.csv", b"id,name\n1,a\n"), ("b.csv", b"id,name\nx,b\n")]));
    assert_transcript!("csv_in_member", session);
}

#[test]
fn more_rejects_than_allowed() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\nx,b\n3,d\ny,e\n");
    let columns = "csv: {columns: {id: int64, name: utf8}}";
    session.job(&format!("rows: {{read: rows.csv, max_rejects: 1, {columns}}}"), "write: out/x.csv");
    session.fails(3, &["run", "job.yaml"]);
    assert_transcript!("rejects", session);
}

#[test]
fn json_cut_short() {
    let mut session = Session::new();
    for (name, text) in [
        ("rows.jsonl", "{\"id\":1,\"name\":\"a\"}\n{\"id\":2,\"na"),
        ("rows.json", "[{\"id\":1,\"name\":\"a\"},\n{\"id\":2,\"name\":\"b\"}"),
    ] {
        session.tree.file(name, text);
        session
            .job(&format!("rows: {{read: {name}, json: {{columns: {{id: int64, name: utf8}}}}}}"), "write: out/x.csv");
        session.fails_everywhere(1);
        session.job(&format!("rows: {{read: {name}}}"), "write: out/x.csv");
        session.fails_everywhere(1);
    }
    assert_transcript!("json_cut", session);
}

#[test]
fn not_parquet() {
    let mut session = Session::new();
    session.tree.file("rows.parquet", "id,name\n1,a\n");
    session.job("rows: {read: rows.parquet}", "write: out/x.csv");
    session.fails_everywhere(1);
    assert_transcript!("parquet_none", session);
}

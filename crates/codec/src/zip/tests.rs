//! zip: what the usual tools write, every fault of an archive made by hand, and a reference reader beside ours.

use std::io::{Cursor, Read, Write};

use millstream_core::{Error, ErrorKind, Result};

use super::record;
use crate::conformance::{TEXT, some_text, unpack};
use crate::{Limits, UnpackOptions};

pub(super) type Contents = Vec<(Option<String>, Vec<u8>)>;

fn all(archive: &[u8]) -> Result<Contents> {
    unpack(archive, usize::MAX, UnpackOptions::default())
}

pub(super) fn members(globs: &[&str]) -> UnpackOptions {
    UnpackOptions { members: globs.iter().map(|glob| (*glob).to_owned()).collect(), ..UnpackOptions::default() }
}

pub(super) fn named(name: &str, text: &[u8]) -> (Option<String>, Vec<u8>) {
    (Some(name.to_owned()), text.to_vec())
}

pub(super) fn deflate(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

/// Where the length and checksum of a member are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    InHeader,
    Descriptor { signed: bool, wide: bool },
}

pub(super) const TAILS: [Tail; 5] = [
    Tail::InHeader,
    Tail::Descriptor { signed: true, wide: false },
    Tail::Descriptor { signed: true, wide: true },
    Tail::Descriptor { signed: false, wide: false },
    Tail::Descriptor { signed: false, wide: true },
];

/// An archive made by hand, field by field, so that each can be wrong.
#[derive(Default)]
pub(super) struct Archive {
    pub(super) bytes: Vec<u8>,
    pub(super) directory: Vec<u8>,
    pub(super) entries: u16,
    pub(super) comment: Vec<u8>,
}

impl Archive {
    pub(super) fn add(mut self, name: &[u8], method: u16, flags: u16, text: &[u8], tail: Tail) -> Self {
        let data = match method {
            8 => deflate(text),
            _ => text.to_vec(),
        };
        let crc = crc32fast::hash(text);
        let offset = self.bytes.len() as u32;
        let local_only = self.local(name, method, flags, &data, text.len(), crc, tail);
        self.bytes.extend_from_slice(&local_only);
        self.list(name, method, flags | tail_flag(tail), &data, text.len(), crc, offset)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the record, in their order")]
    pub(super) fn local(
        &self,
        name: &[u8],
        method: u16,
        flags: u16,
        data: &[u8],
        size: usize,
        crc: u32,
        tail: Tail,
    ) -> Vec<u8> {
        let known = tail == Tail::InHeader;
        let field = |value: u32| if known { value } else { 0 }.to_le_bytes();
        let mut bytes = record::LOCAL.to_vec();
        bytes.extend_from_slice(&20u16.to_le_bytes());
        bytes.extend_from_slice(&(flags | tail_flag(tail)).to_le_bytes());
        bytes.extend_from_slice(&method.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&field(crc));
        bytes.extend_from_slice(&field(data.len() as u32));
        bytes.extend_from_slice(&field(size as u32));
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(data);
        if let Tail::Descriptor { signed, wide } = tail {
            if signed {
                bytes.extend_from_slice(&record::DESCRIPTOR);
            }
            bytes.extend_from_slice(&crc.to_le_bytes());
            for value in [data.len() as u64, size as u64] {
                bytes.extend_from_slice(&value.to_le_bytes()[..if wide { 8 } else { 4 }]);
            }
        }
        bytes
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the record, in their order")]
    pub(super) fn list(
        mut self,
        name: &[u8],
        method: u16,
        flags: u16,
        data: &[u8],
        size: usize,
        crc: u32,
        offset: u32,
    ) -> Self {
        let entry = &mut self.directory;
        entry.extend_from_slice(&record::ENTRY);
        for value in [20, 20, flags, method, 0, 0] {
            entry.extend_from_slice(&value.to_le_bytes());
        }
        for value in [crc, data.len() as u32, size as u32] {
            entry.extend_from_slice(&value.to_le_bytes());
        }
        entry.extend_from_slice(&(name.len() as u16).to_le_bytes());
        entry.extend_from_slice(&[0; 12]);
        entry.extend_from_slice(&offset.to_le_bytes());
        entry.extend_from_slice(name);
        self.entries += 1;
        self
    }

    pub(super) fn stored(self, name: &str, text: &[u8]) -> Self {
        self.add(name.as_bytes(), 0, 0, text, Tail::InHeader)
    }

    pub(super) fn deflated(self, name: &str, text: &[u8]) -> Self {
        self.add(name.as_bytes(), 8, 0, text, Tail::InHeader)
    }

    /// Adds extra fields to the last entry of the directory.
    pub(super) fn listed_with(mut self, extra: &[u8]) -> Self {
        let entry = self.last_entry();
        self.directory[entry + 30..entry + 32].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        self.directory.extend_from_slice(extra);
        self
    }

    /// Adds extra fields to the local header of the last member, which has a name and none yet.
    pub(super) fn headed_with(mut self, extra: &[u8]) -> Self {
        let entry = self.last_entry();
        let at = record::u32_at(&self.directory, entry + 42) as usize;
        self.bytes[at + 28..at + 30].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        let behind = at + 30 + usize::from(record::u16_at(&self.bytes, at + 26));
        self.bytes.splice(behind..behind, extra.iter().copied());
        self
    }

    fn last_entry(&self) -> usize {
        self.directory.windows(4).rposition(|bytes| bytes == record::ENTRY).expect("an entry")
    }

    pub(super) fn comment(mut self, comment: &[u8]) -> Self {
        self.comment = comment.to_vec();
        self
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let Archive { mut bytes, directory, entries, comment } = self;
        let begin = bytes.len() as u32;
        bytes.extend_from_slice(&directory);
        bytes.extend_from_slice(&record::END);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&entries.to_le_bytes());
        bytes.extend_from_slice(&entries.to_le_bytes());
        bytes.extend_from_slice(&(directory.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&begin.to_le_bytes());
        bytes.extend_from_slice(&(comment.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&comment);
        bytes
    }
}

/// An extra field.
pub(super) fn extra(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), &(content.len() as u16).to_le_bytes(), content].concat()
}

/// The extra field by which the member stored as `raw` is called `name`.
pub(super) fn unicode_name(raw: &[u8], name: &str) -> Vec<u8> {
    extra(record::EXTRA_UNICODE_NAME, &[&[1], &crc32fast::hash(raw).to_le_bytes()[..], name.as_bytes()].concat())
}

fn tail_flag(tail: Tail) -> u16 {
    if tail == Tail::InHeader { 0 } else { record::FLAG_DESCRIPTOR }
}

fn fault(archive: &[u8]) -> Error {
    let error = all(archive).expect_err("a fault");
    assert!(error.location().byte.is_some(), "no byte: {error}");
    for chunk in [1, 7] {
        let in_parts = unpack(archive, chunk, UnpackOptions::default()).expect_err("a fault");
        assert_eq!(in_parts.what(), error.what(), "the cuts change the message");
    }
    error
}

/// Archives of the same two members, as the usual tools write them.
pub(super) fn written_by_tools() -> Vec<(&'static str, &'static [u8])> {
    macro_rules! fixtures {
        ($($name:literal),*) => {
            vec![$(($name, include_bytes!(concat!("../../fixtures/", $name, ".zip")).as_slice())),*]
        };
    }
    fixtures![
        "infozip",
        "infozip-stream",
        "infozip-stored-stream",
        "infozip-zip64-stream",
        "infozip-bzip2",
        "jar",
        "7z",
        "7z-bzip2",
        "python-deflate",
        "python-stored",
        "python-bzip2",
        "python-zip64",
        "python-stored-zip64",
        "python-stream-deflate",
        "python-stream-stored",
        "python-stream-bzip2",
        "python-stream-zip64",
        "python-stream-stored-zip64"
    ]
}

#[test]
fn what_the_tools_write_is_read() {
    for (name, archive) in written_by_tools() {
        for chunk in [1, 3, 100, usize::MAX] {
            let contents =
                unpack(archive, chunk, UnpackOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(contents, [named("a.csv", TEXT), named("inner/b.csv", TEXT)], "{name}");
            let one = unpack(archive, chunk, members(&["**/b.*"])).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(one, [named("inner/b.csv", TEXT)], "{name}");
        }
        for length in 3..archive.len() {
            let error = all(&archive[..length]).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Data, "{name} cut at {length}: {error}");
        }
        assert!(all(&[archive, b"x"].concat()).expect_err(name).what().starts_with("garbage after the end"), "{name}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let cases: [(&[u8], &str); 4] = [
        (
            include_bytes!("../../fixtures/7z-deflate64.zip"),
            "the member is compressed by method 9 (deflate64), which is not supported",
        ),
        (
            include_bytes!("../../fixtures/7z-lzma.zip"),
            "the member is compressed by method 14 (LZMA), which is not supported",
        ),
        (
            include_bytes!("../../fixtures/7z-ppmd.zip"),
            "the member is compressed by method 98 (PPMd), which is not supported",
        ),
        (include_bytes!("../../fixtures/infozip-encrypted.zip"), "the member is encrypted, which is not supported"),
    ];
    for (archive, what) in cases {
        let error = fault(archive);
        assert_eq!((error.what(), error.kind()), (what, ErrorKind::Refused));
        assert_eq!((error.location().member.as_deref(), error.location().byte), (Some("a.csv"), Some(0)));
        assert!(error.hint_text().expect("a hint").contains("members"));
    }
}

#[test]
fn every_method_and_tail_is_read() {
    for tail in TAILS {
        for (method, text) in
            [(0, TEXT), (8, TEXT), (0, b""), (8, b""), (0, b"PK"), (0, b"x PK\x03\x04PK\x01\x02"), (0, b"x")]
        {
            let archive = Archive::default()
                .add(b"one", method, 0, text, tail)
                .add(b"two", method, 0, TEXT, tail)
                .comment(b"a comment")
                .finish();
            for chunk in [1, 2, 5, 30, usize::MAX] {
                let contents = unpack(&archive, chunk, UnpackOptions::default())
                    .unwrap_or_else(|error| panic!("{tail:?} {method} {text:?} {chunk}: {error}"));
                assert_eq!(contents, [named("one", text), named("two", TEXT)]);
                let second = unpack(&archive, chunk, members(&["two"])).expect("the first is skipped");
                assert_eq!(second, [named("two", TEXT)]);
            }
        }
    }
}

#[test]
fn a_stored_archive_inside_does_not_end_its_member() {
    // A member without a known length that holds another archive, itself stored with descriptors, and a beginning that
    // looks like an end: only length and checksum together find the end.
    let tail = Tail::Descriptor { signed: true, wide: false };
    let inner = Archive::default().add(b"inner", 0, 0, TEXT, tail).finish();
    let text = [b"a text that is no zip itself\n".as_slice(), &inner, &inner].concat();
    for tail in &TAILS[1..] {
        let archive = Archive::default().add(b"outer", 0, 0, &text, *tail).finish();
        for chunk in [1, 100, usize::MAX] {
            let contents = unpack(&archive, chunk, UnpackOptions::default()).expect("good data");
            assert_eq!(contents, [named("outer", &text)]);
        }
    }
    // Long, so that it is handed on before its end is known.
    let text = some_text(1_500_000);
    let archive = Archive::default().add(b"long", 0, 0, &text, TAILS[3]).finish();
    assert!(all(&archive).expect("good data") == [named("long", &text)]);
}

#[test]
fn a_second_codec_is_decoded() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(TEXT).expect("memory");
    let gzip = gzip.finish().expect("memory");
    let zstd = zstd::encode_all(TEXT, 1).expect("memory");
    let archive = Archive::default().stored("a.gz", &gzip).deflated("b.zst", &zstd).finish();
    for chunk in [1, 50, usize::MAX] {
        let contents = unpack(&archive, chunk, UnpackOptions::default()).expect("good data");
        assert_eq!(contents, [named("a.gz", TEXT), named("b.zst", TEXT)]);
    }
    let cut = Archive::default().stored("a.gz", &gzip[..gzip.len() - 5]).finish();
    let error = fault(&cut);
    assert_eq!(error.what(), "gzip is truncated: 5 of the 8 bytes of the trailer are missing");
    assert_eq!(error.location().member.as_deref(), Some("a.gz"));
    assert_eq!(error.location().byte, Some((34 + gzip.len() - 5) as u64), "the unit's byte, not the member's");

    let error = fault(&Archive::default().stored("in.zip", &archive).finish());
    assert_eq!(error.what(), "a member of the archive is itself a zip archive");
    assert_eq!(error.location().member.as_deref(), Some("in.zip"));
}

#[test]
fn zstd_and_xz_members_are_read() {
    let zstd = zstd::encode_all(TEXT, 1).expect("memory");
    let two_frames = [zstd.as_slice(), &zstd].concat();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(TEXT).expect("memory");
    let xz = xz.finish().expect("memory");
    let twice = [TEXT, TEXT].concat();
    for tail in TAILS {
        for (method, data, text) in [(93, &zstd, TEXT), (95, &xz, TEXT), (93, &two_frames, twice.as_slice())] {
            if tail != Tail::InHeader && text.len() > TEXT.len() {
                continue; // without a length, only the first frame has an end
            }
            let crc = crc32fast::hash(text);
            let mut archive = Archive::default();
            archive.bytes = archive.local(b"m", method, 0, data, text.len(), crc, tail);
            let archive = archive.list(b"m", method, tail_flag(tail), data, text.len(), crc, 0).finish();
            for chunk in [1, 9, usize::MAX] {
                let contents = unpack(&archive, chunk, UnpackOptions::default()).expect("good data");
                assert_eq!(contents, [named("m", text)], "{method} {tail:?}");
            }
        }
    }
}

#[test]
fn names_are_data() {
    // `../../x` and its kind are read like any other: names are never used as paths.
    let names = ["../../x", "/etc/passwd", "C:\\x\\y", "..\\..\\x", "a\nb", "ünï/ço", "x"];
    let archive = names.iter().fold(Archive::default(), |archive, name| archive.stored(name, TEXT)).finish();
    let contents = all(&archive).expect("good data");
    assert_eq!(contents, names.map(|name| named(name, TEXT)));
    assert_eq!(unpack(&archive, 9, members(&["../../x"])).expect("by its name"), [named("../../x", TEXT)]);

    // In a message the name is one printable line.
    let mut bad = Archive::default().stored("../../x\n\x1b[31m", TEXT).finish();
    bad[60] ^= 1;
    let error = fault(&bad);
    assert_eq!(error.location().member.as_deref(), Some("../../x\\n\\u{1b}[31m"));
    assert!(error.what().starts_with("wrong checksum of a zip member: its bytes give "), "{error}");

    let nul = Archive::default().stored("x.csv\0.exe", TEXT).stored("y", TEXT).finish();
    assert_eq!(fault(&nul).what(), "the member's name holds a NUL: tools disagree on where it ends");
    assert_eq!(unpack(&nul, 9, members(&["y"])).expect("it is not wanted"), [named("y", TEXT)]);
}

#[test]
fn names_have_encodings() {
    let flagged = record::FLAG_UTF8;
    let archive = Archive::default()
        .add("ä".as_bytes(), 0, flagged, b"1", Tail::InHeader)
        .add("ö".as_bytes(), 0, 0, b"2", Tail::InHeader)
        .add(b"\x81ber.csv", 0, 0, b"3", Tail::InHeader)
        .add(b"\xff.csv", 0, flagged, b"4", Tail::InHeader)
        .finish();
    let names: Vec<_> = all(&archive).expect("good data").into_iter().filter_map(|(name, _)| name).collect();
    assert_eq!(names, ["ä", "ö", "über.csv", "\u{fffd}.csv"]);
    // Info-ZIP's field counts if it belongs to the name.
    for (name, shown) in [(b"plain", "ünicode"), (b"other", "other")] {
        let mut field = vec![0x75, 0x70, 13, 0, 1];
        field.extend_from_slice(&crc32fast::hash(b"plain").to_le_bytes());
        field.extend_from_slice("ünicode".as_bytes());
        assert_eq!(super::names::decode(name, 0, &field), shown);
    }
}

#[test]
fn members_are_chosen_by_globs() {
    let archive = Archive::default()
        .stored("a.csv", b"1")
        .stored("a.txt", b"2")
        .stored("in/b.csv", b"3")
        .stored("in/deep/c.csv", b"4")
        .stored("__MACOSX/._a.csv", b"5")
        .stored("in/.DS_Store", b"6")
        .stored("empty/", b"")
        .finish();
    let chosen = |globs: &[&str]| -> Vec<u8> {
        let contents = unpack(&archive, 64, members(globs)).expect("good data");
        contents.into_iter().flat_map(|(_, text)| text).collect()
    };
    assert_eq!(chosen(&[]), b"1234");
    assert_eq!(chosen(&["*.csv"]), b"1");
    assert_eq!(chosen(&["**/*.csv"]), b"1345");
    assert_eq!(chosen(&["in/*.csv", "*.txt"]), b"23");
    assert_eq!(chosen(&["__MACOSX/**"]), b"5");
    assert_eq!(chosen(&["**"]), b"123456");
    let error = unpack(&archive, 64, members(&["*.json"])).expect_err("none");
    assert_eq!(error.what(), "no member of the zip matches `members`");
    let hint = error.hint_text().expect("a hint");
    assert!(hint.starts_with("the archive has a.csv, a.txt, in/b.csv, in/deep/c.csv"), "{hint}");
    let error = unpack(&archive, 64, members(&["["])).expect_err("no glob");
    assert_eq!(error.kind(), ErrorKind::Job);
}

#[test]
fn an_empty_archive_has_no_members() {
    let empty = Archive::default().finish();
    assert_eq!(empty.len(), 22);
    for chunk in [1, usize::MAX] {
        assert_eq!(unpack(&empty, chunk, UnpackOptions::default()).expect("empty"), []);
    }
    let error = unpack(&empty, 9, members(&["*"])).expect_err("nothing to choose from");
    assert_eq!(error.hint_text(), Some("the archive has no members"));
    let folders = Archive::default().stored("a/", b"").stored("a/b/", b"").finish();
    assert_eq!(all(&folders).expect("folders"), []);
}

#[test]
fn the_directory_decides_what_is_there() {
    let one = Archive::default().stored("kept", TEXT);
    let (kept, entries) = (one.directory.clone(), one.entries);
    let mut deleted = one.stored("deleted", TEXT);
    (deleted.directory, deleted.entries) = (kept, entries);
    let deleted = deleted.finish();
    let error = fault(&deleted);
    assert_eq!(error.what(), "the member is not in the zip directory: it was deleted, or the archive is damaged");
    assert_eq!(error.location().member.as_deref(), Some("deleted"));
    // It is no error if the member is not selected.
    assert_eq!(unpack(&deleted, 50, members(&["kept"])).expect("it is not wanted"), [named("kept", TEXT)]);

    let crc = crc32fast::hash(TEXT);
    let ghost = Archive::default().stored("a", TEXT).list(b"ghost", 0, 0, TEXT, TEXT.len(), crc, 7).finish();
    let error = fault(&ghost);
    assert_eq!(error.what(), "the zip directory lists a member where the archive has none");
    assert_eq!(error.location().member.as_deref(), Some("ghost"));

    let twice = Archive::default().stored("a", TEXT).list(b"a", 0, 0, TEXT, TEXT.len(), crc, 0).finish();
    assert_eq!(fault(&twice).what(), "the zip directory lists a member twice");

    for (name, method, size, crc) in
        [("b", 0, TEXT.len(), crc), ("a", 8, TEXT.len(), crc), ("a", 0, 5, crc), ("a", 0, TEXT.len(), crc + 1)]
    {
        let mut other = Archive::default().stored("a", TEXT);
        other.directory.clear();
        other.entries = 0;
        let other = other.list(name.as_bytes(), method, 0, TEXT, size, crc, 0).finish();
        assert_eq!(fault(&other).what(), "the zip directory and the member's own header disagree");
    }
}

#[test]
fn the_end_must_agree_with_the_directory() {
    let good = Archive::default().stored("a", TEXT).deflated("b", TEXT).finish();
    let end = good.len() - 22;
    for (at, what) in [
        (4, "the zip archive is split into several files, which is not supported"),
        (6, "the zip archive is split into several files, which is not supported"),
        (10, "the end of the zip says 3 members"),
        (12, "the end of the zip says 2 members"),
        (16, "the end of the zip says 2 members"),
    ] {
        let mut bad = good.clone();
        bad[end + at] ^= 1;
        let error = fault(&bad);
        assert!(error.what().starts_with(what), "{error}");
        assert_eq!(error.location().byte, Some(end as u64));
    }
    let mut bad = good.clone();
    bad[end + 20] = 1;
    assert_eq!(fault(&bad).what(), "zip is truncated: the end of its directory is cut off");
    let error = fault(&good[..end]);
    assert_eq!(error.what(), "zip is truncated: the directory at its end is missing");
    assert_eq!(error.location().byte, Some(end as u64));
}

#[test]
fn wrong_sizes_and_checksums_are_found() {
    let changed = |archive: &[u8], at: usize, to: u32| {
        let mut bad = archive.to_vec();
        bad[at..at + 4].copy_from_slice(&to.to_le_bytes());
        let error = fault(&bad);
        assert_eq!(error.location().member.as_deref(), Some("a"), "{error}");
        error.what().to_owned()
    };
    let deflated = Archive::default().deflated("a", TEXT).deflated("b", TEXT).finish();
    let size = deflate(TEXT).len() as u32;
    assert!(changed(&deflated, 14, 1).contains("the zip says 00000001"));
    assert_eq!(changed(&deflated, 22, 5), "wrong length of a zip member: 693 bytes were read, the zip says 5");
    assert_eq!(
        changed(&deflated, 18, size + 3),
        "the member's data is shorter than the zip says: 3 bytes follow its end"
    );
    assert!(changed(&deflated, 18, size - 3).starts_with("the member's data is longer than the zip says"));
    let stored = Archive::default().stored("a", TEXT).finish();
    assert!(changed(&stored, 40, 0).starts_with("wrong checksum of a zip member: its bytes give "));

    for tail in &TAILS[1..3] {
        let archive = Archive::default().add(b"a", 8, 0, TEXT, *tail).finish();
        let descriptor = 31 + size as usize;
        assert!(changed(&archive, descriptor + 4, 1).ends_with("the zip says 00000001"));
        assert_eq!(
            changed(&archive, descriptor + 8, 5),
            "the descriptor after a member does not give the sizes of its data"
        );
    }
}

#[test]
fn records_must_follow_each_other() {
    let good = Archive::default().stored("a", TEXT).finish();
    let gap = [&good[..31 + TEXT.len()], b"????", &good[31 + TEXT.len()..]].concat();
    let error = fault(&gap);
    assert_eq!(error.what(), "neither a member nor the directory of the zip begins here");
    assert_eq!((error.location().byte, error.offending_text()), (Some(31 + TEXT.len() as u64), Some("????")));
    let entry = &good[31 + TEXT.len()..good.len() - 22];
    let member_after = [&good[..31 + TEXT.len()], entry, &good].concat();
    assert_eq!(fault(&member_after).what(), "the records of the zip are out of order");
    let before = [b"PK\x03\x04".as_slice(), &[0; 26], &good].concat();
    assert!(all(&before).is_err());
    // Bytes in front make it something else, which is neither a text nor read as an archive.
    let prefixed = fault(&[b"#!/bin/sh\n".as_slice(), &good].concat());
    assert_eq!(
        (prefixed.kind(), prefixed.what()),
        (ErrorKind::Refused, "a zip archive begins at byte 10, after other data")
    );
}

#[test]
fn members_have_a_limit() {
    let archive = (0..20).fold(Archive::default(), |archive, index| archive.stored(&format!("{index}"), b"x")).finish();
    let limited =
        |members| UnpackOptions { limits: Limits { members, ..Limits::default() }, ..UnpackOptions::default() };
    assert_eq!(unpack(&archive, 100, limited(20)).expect("20 members").len(), 20);
    let error = unpack(&archive, 100, limited(19)).expect_err("one too many");
    assert_eq!(error.what(), "the archive has more than 19 members");
}

#[test]
fn a_bomb_among_members_is_stopped() {
    // The unit as a whole is honest: its first member does not compress.
    let honest = some_text(2_000_000);
    let mut compressed = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..80 {
        compressed.write_all(&zeros).expect("memory");
    }
    let data = compressed.finish().expect("memory");
    let mut hasher = crc32fast::Hasher::new();
    (0..80).for_each(|_| hasher.update(&zeros));
    let crc = hasher.finalize();
    let mut archive = Archive::default().stored("honest", &honest);
    let offset = archive.bytes.len() as u32;
    let local = archive.local(b"bomb", 8, 0, &data, 80 << 20, crc, Tail::InHeader);
    archive.bytes.extend_from_slice(&local);
    let archive = archive.list(b"bomb", 8, 0, &data, 80 << 20, crc, offset).finish();
    let error = all(&archive).expect_err("a bomb");
    assert!(error.what().contains("may be a bomb"), "{error}");
    assert_eq!(error.location().member.as_deref(), Some("bomb"));
    assert_eq!(unpack(&archive, 1 << 16, members(&["honest"])).expect("it is not wanted")[0].1.len(), honest.len());
}

#[test]
fn every_flipped_bit_is_found_or_harmless() {
    for tail in [TAILS[0], TAILS[1], TAILS[4]] {
        for method in [0, 8] {
            let good = Archive::default().add(b"a", method, 0, &TEXT[..60], tail).comment(b"c").finish();
            let text = all(&good).expect("good data").remove(0).1;
            for index in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[index] ^= 1 << bit;
                    // The first bytes decide whether it is an archive at all.
                    if index < 4 {
                        continue;
                    }
                    if let Ok(contents) = all(&bad) {
                        assert_eq!(contents.len(), 1, "byte {index} bit {bit}");
                        assert_eq!(contents[0].1, text, "byte {index} bit {bit} changes the text unseen");
                    }
                }
            }
        }
    }
}

#[test]
fn archives_of_a_reference_are_read() {
    use proptest::prelude::*;
    let member = (prop::collection::vec(any::<u8>(), 0..2000), any::<bool>(), any::<bool>());
    let inputs = (prop::collection::vec(member, 0..6), 1..300usize);
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let run = |(parts, chunk): (Vec<(Vec<u8>, bool, bool)>, usize)| {
        let mut expected = Vec::new();
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (index, (text, deflated, large)) in parts.iter().enumerate() {
            let method = if *deflated { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
            let options = zip::write::SimpleFileOptions::default().compression_method(method).large_file(*large);
            // A first line keeps random bytes from looking like another codec.
            let text = [b"line\n".as_slice(), text].concat();
            let name = format!("{index}.txt");
            writer.start_file(&name, options).expect("memory");
            writer.write_all(&text).expect("memory");
            expected.push(named(&name, &text));
        }
        let archive = writer.finish().expect("memory").into_inner();
        prop_assert_eq!(unpack(&archive, chunk, UnpackOptions::default()).expect("a reference's archive"), expected);
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

#[test]
fn a_reference_reads_what_we_accept() {
    let archive = Archive::default().stored("a", TEXT).deflated("b", TEXT).comment(b"c").finish();
    let mut reference = zip::ZipArchive::new(Cursor::new(&archive)).expect("a valid archive");
    for (index, (name, text)) in all(&archive).expect("good data").into_iter().enumerate() {
        let mut member = reference.by_index(index).expect("a member");
        assert_eq!(Some(member.name().expect("a name").into_owned()), name);
        let mut read = Vec::new();
        member.read_to_end(&mut read).expect("good data");
        assert_eq!(read, text);
    }
}

#[test]
fn a_decoder_may_hold_text_when_its_bytes_are_used_up() {
    for more in 1..300 {
        let text = vec![b'0'; 16 * 1024 + more];
        for tail in [TAILS[0], TAILS[1]] {
            let archive = Archive::default().add(b"a", 8, 0, &text, tail).finish();
            assert_eq!(all(&archive).expect("good data"), [named("a", &text)]);
        }
    }
}

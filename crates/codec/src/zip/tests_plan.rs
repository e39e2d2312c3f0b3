//! Archives read by their directory: the same as in a stream, part by part, and only selected members.

use std::io::{Cursor, Write};
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::spec::Size;
use millstream_core::{Error, ErrorKind, Result};

use super::tests::{Archive, Contents, TAILS, Tail, extra, members, named, unicode_name, written_by_tools};
use super::{ZipCuts, ZipEnding, ZipPlan, ZipPlanner};
use crate::conformance::{TEXT, some_text, unpack};
use crate::{Limits, Unpack, UnpackOptions, Unpacked};

/// One part per selected member, without other bytes.
const EACH: ZipCuts = ZipCuts { smallest: 1, largest: 1, passed_over: 0 };

/// Parts of some members, and the bytes between them.
const SOME: ZipCuts = ZipCuts { smallest: 100, largest: 100, passed_over: 40 };

/// The plan of an archive whose directory comes in chunks; `None` if it must be read as a stream.
fn plan(archive: &[u8], options: &UnpackOptions, cuts: ZipCuts, chunk: usize) -> Result<Option<Arc<ZipPlan>>> {
    let tail = &archive[archive.len().saturating_sub(ZipEnding::TAIL as usize)..];
    let Some(ending) = ZipEnding::find(tail, archive.len() as u64) else { return Ok(None) };
    let directory = &archive[ending.directory().start as usize..ending.directory().end as usize];
    let Some(planner) = ZipPlanner::new(ending, options)? else { return Ok(None) };
    let mut planner = planner.with_cuts(cuts);
    for chunk in directory.chunks(chunk) {
        if planner.feed(chunk).is_none() {
            return Ok(None);
        }
    }
    Ok(planner.finish()?.map(Arc::new))
}

/// The members of a part, fed in chunks.
fn part(archive: &[u8], options: &UnpackOptions, plan: &Arc<ZipPlan>, part: usize, chunk: usize) -> Result<Contents> {
    let range = plan.range(part);
    let (start, end) = (range.start as usize, range.end as usize);
    let mut chunks = archive[start..end].chunks(chunk);
    let mut unpack = Unpack::of_part(options.clone(), Arc::clone(plan), part)?;
    let (mut contents, mut position) = (Contents::new(), range.start);
    loop {
        match unpack.next()? {
            Unpacked::Hungry => match chunks.next() {
                Some(chunk) => unpack.feed(Bytes::copy_from_slice(chunk)),
                None => unpack.end(),
            },
            Unpacked::Begin { member } => contents.push((member, Vec::new())),
            Unpacked::Text(text) => contents.last_mut().expect("it has begun").1.extend_from_slice(&text),
            Unpacked::End => {}
            Unpacked::Done => break,
        }
        assert!(unpack.compressed_position() >= position && unpack.compressed_position() <= range.end);
        position = unpack.compressed_position();
    }
    assert!(range.contains(&position) && unpack.codec() == "zip");
    Ok(contents)
}

/// All selected members of an archive that has a plan.
fn by_directory(archive: &[u8], options: &UnpackOptions, cuts: ZipCuts, chunk: usize) -> Result<Option<Contents>> {
    let Some(plan) = plan(archive, options, cuts, chunk)? else { return Ok(None) };
    let parts = (0..plan.parts()).map(|number| part(archive, options, &plan, number, chunk));
    let contents: Result<Vec<Contents>> = parts.collect();
    Ok(Some(contents?.concat()))
}

/// Checks that an archive with a plan gives the same as in a stream.
fn as_in_passing(name: &str, archive: &[u8], options: &UnpackOptions) {
    let expected = unpack(archive, usize::MAX, options.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    for cuts in [EACH, SOME, ZipCuts::default()] {
        for chunk in [1, 7, usize::MAX] {
            let contents =
                by_directory(archive, options, cuts, chunk).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(contents.as_ref(), Some(&expected), "{name} {cuts:?} {chunk}");
        }
    }
}

fn all() -> UnpackOptions {
    UnpackOptions::default()
}

/// The error of an archive with such parts.
fn fault(archive: &[u8], cuts: ZipCuts) -> Error {
    let errors = [1, 7, usize::MAX].map(|chunk| by_directory(archive, &all(), cuts, chunk).expect_err("a fault"));
    assert!(errors.iter().all(|error| error.to_string() == errors[0].to_string()), "{errors:?}");
    assert!(errors[0].location().byte.is_some(), "no byte: {}", errors[0]);
    errors[0].clone()
}

#[test]
fn what_the_tools_write_is_the_same_as_in_passing() {
    for (name, archive) in written_by_tools() {
        // Its end does not say where the directory is, so it is read as a stream.
        if name == "infozip-zip64-stream" {
            assert_eq!(plan(archive, &all(), EACH, 99).expect("no error"), None);
            continue;
        }
        as_in_passing(name, archive, &all());
        as_in_passing(name, archive, &members(&["**/b.*"]));
        as_in_passing(name, archive, &members(&["a*"]));
    }
}

#[test]
fn every_method_and_tail_is_the_same_as_in_passing() {
    for tail in TAILS {
        for (method, text) in
            [(0, TEXT), (8, TEXT), (0, b""), (8, b""), (0, b"PK"), (0, b"x PK\x03\x04PK\x01\x02"), (0, b"x")]
        {
            let archive = Archive::default()
                .add(b"one", method, 0, text, tail)
                .stored("folder/", b"")
                .add(b"two", method, 0, TEXT, tail)
                .stored("__MACOSX/._two", b"5")
                .add(b"three", method, 0, text, tail)
                .comment(b"a comment")
                .finish();
            for globs in [&[][..], &["t*"], &["one", "three"], &["*", "**/._*"]] {
                as_in_passing(&format!("{tail:?} {method} {text:?}"), &archive, &members(globs));
            }
        }
    }
}

#[test]
fn only_what_is_wanted_is_in_the_parts() {
    let text = some_text(1_000_000);
    let archive = (0..9).fold(Archive::default(), |archive, index| archive.stored(&format!("{index}.csv"), &text));
    let archive = archive.stored("small", b"x").stored("9.csv", &text).finish();
    let ranges = |globs: &[&str]| {
        let plan = plan(&archive, &members(globs), ZipCuts::default(), 4096).expect("a plan").expect("a plan");
        (0..plan.parts()).map(|part| (plan.range(part).start, plan.range(part).end)).collect::<Vec<_>>()
    };
    let header = |name: &str| 30 + name.len() as u64;
    let member = header("0.csv") + text.len() as u64;
    // What follows is read as far as a descriptor may need it.
    assert_eq!(ranges(&["3.csv"]), [(3 * member, 4 * member + 26)]);
    assert_eq!(
        ranges(&["[34].csv"]),
        [(3 * member, 5 * member + 26)],
        "neighbours share a part until it is large enough"
    );
    assert_eq!(ranges(&["[35].csv"]), [(3 * member, 4 * member + 26), (5 * member, 6 * member + 26)]);
    let small = header("small") + 1;
    assert_eq!(ranges(&["[89].csv"]), [(8 * member, 10 * member + small + 26)], "what is small is passed over");
    let whole = ranges(&[]);
    assert_eq!(whole.len(), 5, "{whole:?}");
    assert!(whole.windows(2).all(|pair| pair[0].1 == pair[1].0 + 26), "{whole:?}");
    as_in_passing("some of a large archive", &archive, &members(&["[35].csv"]));
}

#[test]
fn no_member_that_is_wanted_is_the_same_error() {
    let archive = Archive::default().stored("b", TEXT).stored("x/", b"").deflated("x/a", TEXT).finish();
    for globs in [&["*.csv"][..], &["nothing", "x/"]] {
        let in_passing = unpack(&archive, usize::MAX, members(globs)).expect_err("none");
        let by_directory = by_directory(&archive, &members(globs), EACH, 9).expect_err("none");
        assert_eq!(by_directory.to_string(), in_passing.to_string());
        assert_eq!(by_directory.hint_text(), in_passing.hint_text());
    }
    let many = (0..20).fold(Archive::default(), |archive, index| archive.stored(&format!("{index}"), b"x")).finish();
    let error = by_directory(&many, &members(&["no"]), EACH, 9).expect_err("none");
    assert!(error.hint_text().expect("a hint").contains("0, 1, 2, 3, 4, 5, 6, 7 and 12 more"), "{error:?}");
}

#[test]
fn what_is_not_in_order_is_left_to_be_read_in_passing() {
    let good = || Archive::default().stored("a", TEXT).deflated("b", TEXT);
    let archive = good().finish();
    assert!(plan(&archive, &all(), EACH, 99).expect("a plan").is_some());
    let end = archive.len() - 22;
    let mut cases = vec![("garbage behind", [archive.as_slice(), b"x"].concat())];
    for (at, what) in [(4, "split"), (6, "split"), (10, "members"), (12, "size"), (16, "begin")] {
        let mut bad = archive.clone();
        bad[end + at] ^= 1;
        cases.push((what, bad));
    }
    let begin = good().bytes.len();
    let mut bad = archive.clone();
    bad[begin] = b'Q';
    cases.push(("no entry", bad));
    cases.push(("two ends", good().comment(&Archive::default().finish()).finish()));
    cases.push(("no members", Archive::default().finish()));
    cases.push(("only folders", Archive::default().stored("a/", b"").finish()));
    let crc = crc32fast::hash(TEXT);
    cases.push(("twice", good().list(b"a", 0, 0, TEXT, TEXT.len(), crc, 0).finish()));
    cases.push(("outside", good().list(b"c", 0, 0, TEXT, TEXT.len(), crc, begin as u32).finish()));
    cases.push(("far outside", good().list(b"c", 0, 0, TEXT, TEXT.len(), crc, u32::MAX - 1).finish()));
    let mut late = Archive { bytes: b"#!/bin/sh\n".to_vec(), ..Archive::default() };
    late = late.stored("a", TEXT);
    cases.push(("a program before it", late.finish()));
    let wide = written_by_tools().into_iter().find(|(name, _)| *name == "python-zip64").expect("a fixture").1;
    cases.push(("", wide.to_vec()));
    let (name, wide) = cases.pop().expect("it was pushed");
    assert!(plan(&wide, &all(), EACH, 99).expect("a plan").is_some(), "{name}");
    for (what, archive) in &cases {
        assert_eq!(plan(archive, &all(), EACH, 99).unwrap_or_else(|error| panic!("{what}: {error}")), None, "{what}");
    }
    for length in 0..archive.len() {
        assert_eq!(plan(&archive[..length], &all(), EACH, 99).expect("no error"), None, "cut at {length}");
    }
}

#[test]
fn limits_that_only_passing_keeps_are_left_to_it() {
    let archive = (0..20).fold(Archive::default(), |archive, index| archive.stored(&format!("{index}"), b"x")).finish();
    for (limits, planned) in [
        (Limits { members: 20, ..Limits::default() }, true),
        (Limits { members: 19, ..Limits::default() }, false),
        (Limits { bytes: Some(Size(1 << 40)), ..Limits::default() }, false),
    ] {
        let options = UnpackOptions { limits, ..all() };
        assert_eq!(plan(&archive, &options, EACH, 99).expect("no error").is_some(), planned, "{options:?}");
    }
    // Without zip64, only the last bits of their number are known.
    let many = (0..70_000u32).fold(zip::ZipWriter::new(Cursor::new(Vec::new())), |mut writer, index| {
        writer.start_file(index.to_string(), zip::write::SimpleFileOptions::default()).expect("memory");
        writer.write_all(b"x\n").expect("memory");
        writer
    });
    let many = many.finish().expect("memory").into_inner();
    let planned = plan(&many, &all(), ZipCuts::default(), 1 << 16).expect("no error").expect("a plan");
    assert!(planned.held() < 8 << 20, "{} bytes for 70,000 members", planned.held());
    let mut read = 0;
    for number in 0..planned.parts() {
        read += part(&many, &all(), &planned, number, usize::MAX).expect("good data").len();
    }
    assert_eq!(read, 70_000);
}

#[test]
fn bombs_are_stopped_as_in_passing() {
    let zeros = vec![0; 40 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).expect("memory");
    let gzip = gzip.finish().expect("memory");
    // Each member is small enough, together they are not: said by the directory, or only seen when it is decoded.
    let plain = (0..3).fold(Archive::default(), |archive, index| archive.deflated(&format!("{index}"), &zeros));
    let again = (0..3).fold(Archive::default(), |archive, index| archive.deflated(&format!("{index}.gz"), &gzip));
    let plain = plain.finish();
    assert_eq!(plan(&plain, &all(), EACH, 99).expect("no error"), None, "it is read in passing");
    for archive in [plain, again.finish()] {
        let in_passing = unpack(&archive, usize::MAX, all()).expect_err("a bomb");
        let by_directory = by_directory(&archive, &all(), ZipCuts::default(), usize::MAX).expect_err("a bomb");
        assert_eq!(by_directory.what(), in_passing.what());
        assert_eq!((by_directory.kind(), by_directory.hint_text()), (ErrorKind::Refused, in_passing.hint_text()));
    }
}

#[test]
fn a_wrong_size_is_not_reported_for_another_member() {
    let crc = crc32fast::hash(TEXT);
    for lie in [1 << 40, u64::MAX] {
        let mut first = Archive::default().stored("liar", TEXT);
        (first.directory, first.entries) = (Vec::new(), 0);
        let first =
            first.list(b"liar", 0, 0, TEXT, u32::MAX as usize, crc, 0).listed_with(&extra(1, &lie.to_le_bytes()));
        let archive = first.stored("honest", TEXT).stored("honest too", TEXT).finish();
        assert_eq!(plan(&archive, &all(), EACH, 99).expect("no error"), None, "{lie} is for passing to tell");
        let error = unpack(&archive, usize::MAX, all()).expect_err("a lie");
        assert_eq!(error.location().member.as_deref(), Some("liar"));
        // With any ratio allowed there is a plan, and the error names the same member.
        let options = UnpackOptions { limits: Limits { ratio: u64::MAX, ..Limits::default() }, ..all() };
        let plan = plan(&archive, &options, EACH, 99).expect("no error").expect("a plan");
        let error = part(&archive, &options, &plan, 0, 99).expect_err("a lie");
        assert_eq!(error.location().member.as_deref(), Some("liar"));
        for (number, name) in [(1, "honest"), (2, "honest too")] {
            assert_eq!(part(&archive, &options, &plan, number, 99).expect(name), [named(name, TEXT)]);
        }
    }
}

#[test]
fn a_member_that_only_one_of_its_names_asks_for_is_an_error() {
    let renamed = unicode_name(b"a\x81", "b.csv");
    let archive = |listed: bool| {
        let archive = Archive::default().stored("y", TEXT).add(b"a\x81", 0, 0, TEXT, Tail::InHeader);
        let archive = if listed { archive.listed_with(&renamed) } else { archive.headed_with(&renamed) };
        archive.stored("z", TEXT).finish()
    };
    let [listed, headed] = [true, false].map(archive);
    for (archive, globs, member) in [
        (&listed, ["b.csv", "[yz]"], "aü"),
        (&listed, ["aü", "[yz]"], "aü"),
        (&headed, ["aü", "[yz]"], "b.csv"),
        (&headed, ["b.csv", "[yz]"], "b.csv"),
    ] {
        let told = |error: &Error, member| {
            assert_eq!(error.what(), "the zip directory and the member's own header disagree", "{globs:?}");
            assert_eq!(error.location().member.as_deref(), Some(member));
            assert_eq!(error.cause_text(), Some("only one of the names that they give it is wanted"));
        };
        let error = by_directory(archive, &members(&globs), ZipCuts::default(), 99).expect_err("a fault");
        told(&error, member);
        let in_passing = unpack(archive, usize::MAX, members(&globs)).expect_err("a fault");
        told(&in_passing, if std::ptr::eq(archive, &listed) { "b.csv" } else { "aü" });
    }
    // Where both are wanted, or neither is.
    for archive in [&listed, &headed] {
        as_in_passing("both names", archive, &members(&["aü", "b.csv"]));
        as_in_passing("all", archive, &all());
        as_in_passing("neither name", archive, &members(&["[yz]"]));
    }
}

#[test]
fn a_directory_that_disagrees_is_the_same_error() {
    let crc = crc32fast::hash(TEXT);
    for (name, method, size, crc) in
        [("b", 0, TEXT.len(), crc), ("a", 8, TEXT.len(), crc), ("a", 0, 5, crc), ("a", 0, TEXT.len(), crc + 1)]
    {
        let mut other = Archive::default().stored("a", TEXT);
        other.directory.clear();
        other.entries = 0;
        let archive = other.list(name.as_bytes(), method, 0, TEXT, size, crc, 0).finish();
        let error = fault(&archive, EACH);
        assert_eq!(error.what(), "the zip directory and the member's own header disagree");
        assert_eq!((error.kind(), error.location().member.as_deref()), (ErrorKind::Data, Some("a")));
    }
    // Elsewhere than a member begins: in its data, or behind it.
    let mut good = Archive::default().stored("a", TEXT);
    let length = good.bytes.len() as u32;
    good.directory.clear();
    good.entries = 0;
    let moved = |offset: u32| {
        let mut archive = Archive { bytes: good.bytes.clone(), ..Archive::default() };
        archive = archive.stored("z", TEXT);
        archive.directory.clear();
        archive.entries = 0;
        let list = |archive: Archive, name: &[u8], at| archive.list(name, 0, 0, TEXT, TEXT.len(), crc, at);
        let archive = list(archive, b"a", 0);
        let archive = list(archive, b"z", length);
        list(archive, b"ghost", offset).finish()
    };
    let error = fault(&moved(50), ZipCuts::default());
    assert_eq!(error.what(), "the zip directory lists a member where the archive has none");
    let error = fault(&moved(50), EACH);
    assert_eq!(error.what(), "a member of the zip overlaps the next one in the directory");
    assert!(by_directory(&moved(length + 40), &all(), EACH, 9).is_err());
}

#[test]
fn what_no_entry_covers_is_as_in_passing_where_it_is_read() {
    // A member that was deleted, between two that were not.
    let mut archive = Archive::default().stored("a", TEXT);
    let mut gone = Archive { bytes: archive.bytes.clone(), ..Archive::default() }.stored("gone", TEXT);
    archive.bytes = std::mem::take(&mut gone.bytes);
    let archive = archive.stored("b", TEXT).finish();
    for cuts in [EACH, ZipCuts::default()] {
        let error = fault(&archive, cuts);
        assert_eq!(error.what(), "the member is not in the zip directory: it was deleted, or the archive is damaged");
        assert_eq!(error.location().member.as_deref(), Some("gone"));
    }
    as_in_passing("who does not ask for it", &archive, &members(&["a", "b"]));
    // What is no member at all is found if it is read.
    let a = Archive::default().stored("a", TEXT);
    let garbage = |size: usize| {
        let mut archive = Archive { bytes: [a.bytes.as_slice(), &vec![b'?'; size]].concat(), ..Archive::default() };
        (archive.directory, archive.entries) = (a.directory.clone(), 1);
        archive.stored("b", TEXT).finish()
    };
    for size in [1, 25, 26, 40, 700] {
        let error = fault(&garbage(size), EACH);
        assert_eq!(error.what(), "neither a member nor the directory of the zip begins here", "{size}");
        let b = by_directory(&garbage(size), &members(&["b"]), EACH, 9).expect("it is not read");
        assert_eq!(b, Some(vec![named("b", TEXT)]));
    }
    // A record of the directory where none belongs.
    let mut other = Archive { bytes: [a.bytes.as_slice(), &a.directory].concat(), ..Archive::default() };
    (other.directory, other.entries) = (a.directory.clone(), 1);
    let error = fault(&other.stored("b", TEXT).finish(), EACH);
    assert_eq!(error.what(), "a part of the directory is between the members of the zip");
}

#[test]
fn faults_of_a_member_have_the_same_message_and_byte() {
    let size = 31 + super::tests::deflate(TEXT).len();
    let good = Archive::default().deflated("a", TEXT).deflated("b", TEXT).deflated("c", TEXT).finish();
    for (at, to) in [(6, 1), (8, 9), (14, 1), (18, 255), (22, 5), (60, 255), (size - 1, 255)] {
        let mut bad = good.clone();
        bad[size + at] ^= to;
        let in_passing = unpack(&bad, usize::MAX, all()).expect_err("a fault");
        let error = fault(&bad, EACH);
        if error.what() != "a member of the zip overlaps the next one in the directory" {
            assert_eq!(error.to_string(), in_passing.to_string(), "byte {at}");
            assert_eq!(error.hint_text(), in_passing.hint_text());
        }
        let rest = by_directory(&bad, &members(&["a", "c"]), EACH, usize::MAX).expect("it is not read");
        assert_eq!(rest, Some(vec![named("a", TEXT), named("c", TEXT)]));
    }
}

#[test]
fn every_flipped_bit_is_found_or_harmless() {
    for tail in [TAILS[0], TAILS[1], TAILS[4]] {
        for method in [0, 8] {
            let add = |archive: Archive, name: &[u8]| archive.add(name, method, 0, &TEXT[..60], tail);
            let good = add(add(Archive::default(), b"a"), b"b").comment(b"c").finish();
            let expected = unpack(&good, usize::MAX, all()).expect("good data");
            for index in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[index] ^= 1 << bit;
                    let Ok(Some(contents)) = by_directory(&bad, &all(), EACH, usize::MAX) else { continue };
                    assert_eq!(contents.len(), 2, "byte {index} bit {bit}");
                    let same = contents.iter().zip(&expected).all(|(one, other)| one.1 == other.1);
                    assert!(same, "byte {index} bit {bit} changes the text unseen");
                }
            }
        }
    }
}

#[test]
fn archives_of_a_reference_are_the_same_as_in_passing() {
    use proptest::prelude::*;
    let member = (prop::collection::vec(any::<u8>(), 0..2000), any::<bool>(), any::<bool>());
    let cuts = (1..3000u64, 0..3000u64);
    let inputs = (prop::collection::vec(member, 1..8), 1..300usize, cuts, any::<u8>());
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    type Parts = Vec<(Vec<u8>, bool, bool)>;
    let run = |(parts, chunk, (smallest, passed_over), wanted): (Parts, usize, _, u8)| {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (index, (text, deflated, large)) in parts.iter().enumerate() {
            let method = if *deflated { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
            let options = zip::write::SimpleFileOptions::default().compression_method(method).large_file(*large);
            // A first line keeps random bytes from looking like another codec.
            writer.start_file(format!("{index}.txt"), options).expect("memory");
            writer.write_all(&[b"line\n".as_slice(), text].concat()).expect("memory");
        }
        let archive = writer.finish().expect("memory").into_inner();
        let globs: Vec<String> =
            (0..parts.len()).filter(|index| wanted >> index & 1 == 1).map(|index| format!("{index}.txt")).collect();
        let options = UnpackOptions { members: globs, ..all() };
        let cuts = ZipCuts { smallest, largest: smallest, passed_over };
        let in_passing = unpack(&archive, chunk, options.clone()).expect("a reference's archive");
        prop_assert_eq!(by_directory(&archive, &options, cuts, chunk).expect("a plan"), Some(in_passing));
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

#[test]
fn a_descriptor_is_recognized_by_what_follows_the_part() {
    // The narrow form of a descriptor fits into the beginning of the wide one: what follows tells them apart.
    let wide = Tail::Descriptor { signed: true, wide: true };
    for text in [b"".as_slice(), b"x"] {
        let archive = Archive::default().add(b"a", 8, 0, text, wide).add(b"b", 0, 0, text, wide).finish();
        as_in_passing("wide", &archive, &all());
    }
}

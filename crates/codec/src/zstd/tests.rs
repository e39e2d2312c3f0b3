//! zstd: the conformance suite, skippable frames, windows and dictionaries, and what the usual tools write.

use std::io::Write;

use millstream_core::ErrorKind;

use super::ENTRY;
use crate::conformance::{TEXT, decode, some_text, suite, unpack_one};

/// One frame with a checksum.
fn compress(text: &[u8]) -> Vec<u8> {
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
    writer.include_checksum(true).expect("a parameter");
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

suite!(ENTRY, compress);

fn skippable(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[0x50 | kind, 0x2a, 0x4d, 0x18], (content.len() as u32).to_le_bytes().as_slice(), content].concat()
}

#[test]
fn skippable_frames_are_skipped_wherever_they_are() {
    let data = [skippable(0, b""), compress(TEXT), skippable(15, &[7; 1000]), compress(b"end"), skippable(3, b"index")]
        .concat();
    let text = [TEXT, b"end"].concat();
    for chunk in [1, 3, 100, usize::MAX] {
        assert_eq!(decode(&ENTRY, &data, chunk, 64).expect("good data"), text);
    }
    assert_eq!(unpack_one(&data).expect("recognised by its skippable frame"), text);
    let error = decode(&ENTRY, &data[..data.len() - 2], 7, 64).expect_err("it is cut");
    assert_eq!(error.what(), "zstd is truncated: 2 bytes of a skippable frame are missing");
    assert_eq!(error.location().byte, Some(data.len() as u64 - 2));
}

#[test]
fn the_window_has_a_limit() {
    // Magic, descriptor without any flag, window of 2^(10 + 18) bytes.
    let huge = [0x28, 0xb5, 0x2f, 0xfd, 0, 18 << 3, 1, 0, 0];
    let data = [compress(b"before").as_slice(), &huge].concat();
    for chunk in [1, usize::MAX] {
        let error = decode(&ENTRY, &data, chunk, 64).expect_err("256 MiB");
        assert_eq!(error.what(), "a zstd frame needs a window of 268435456 bytes; at most 134217728 are allowed");
        assert_eq!(error.location().byte, Some(data.len() as u64 - huge.len() as u64));
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.hint_text().expect("a hint").contains("--long=27"));
    }
    // A single segment has no window; its content's size stands for it.
    let single = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    decode(&ENTRY, &single, usize::MAX, 64).expect_err("4 GiB");
    // The largest window that is allowed.
    let most = [0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 1, 0, 0];
    assert_eq!(decode(&ENTRY, &most, usize::MAX, 64).expect("128 MiB"), b"");
}

#[test]
fn long_matches_within_the_limit_are_read() {
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("memory");
    writer.window_log(24).expect("a parameter");
    writer.include_checksum(true).expect("a parameter");
    let text = some_text(2_000_000).repeat(2);
    writer.write_all(&text).expect("memory");
    let data = writer.finish().expect("memory");
    assert!(decode(&ENTRY, &data, 10_000, 1 << 18).expect("good data") == text);
}

#[test]
fn a_dictionary_is_refused_by_its_number() {
    let mut data = compress(TEXT);
    // Sets the size of the dictionary's number to one byte, and puts it behind the window.
    data[4] |= 1;
    data.insert(if data[4] & 0x20 != 0 { 5 } else { 6 }, 77);
    let error = decode(&ENTRY, &data, usize::MAX, 64).expect_err("a dictionary");
    assert_eq!(error.what(), "a zstd frame needs dictionary 77, which is not available");
}

#[test]
fn text_that_is_not_as_long_as_the_header_says_is_found() {
    // A single segment of five bytes; a raw block with a letter, then a last one that is empty.
    let data = [&super::MAGIC[..], &[0x20, 5], &[8, 0, 0, b'x'], &[1, 0, 0]].concat();
    for chunk in [1, 2, 3, 7, usize::MAX] {
        let error = decode(&ENTRY, &data, chunk, 64).expect_err("four bytes are missing");
        assert_eq!((error.kind(), error.what()), (ErrorKind::Data, "the zstd data is corrupt"), "chunks of {chunk}");
        assert!(decode(&ENTRY, &[&data[..5], &[1], &data[6..]].concat(), chunk, 64).is_ok_and(|text| text == b"x"));
    }
}

#[test]
fn the_place_of_a_fault_is_the_same_however_the_bytes_come() {
    let first = compress(b"first");
    let second = compress(&some_text(1_500_000));
    let mut data = [&first[..], &second].concat();
    data[first.len() + second.len() / 2] ^= 108;
    for chunk in [1001, 70_000, usize::MAX] {
        for room in [5000, 1 << 20] {
            let error = decode(&ENTRY, &data, chunk, room).expect_err("it is damaged");
            let place = error.location().byte.expect("a place");
            assert_eq!((place - first.len() as u64) % (128 << 10), 0);
            assert!(place.abs_diff((data.len() / 2) as u64) < 256 << 10, "{place}");
            let reference = decode(&ENTRY, &data, 1001, 5000).expect_err("it is damaged");
            assert_eq!(error.to_string(), reference.to_string(), "chunks of {chunk}, room of {room}");
        }
    }
}

#[test]
fn what_the_tools_write_is_read() {
    let tools: [&[u8]; 3] = [
        include_bytes!("../../fixtures/zstd.zst"),
        include_bytes!("../../fixtures/pzstd.zst"),
        include_bytes!("../../fixtures/zstd-no-check.zst"),
    ];
    for data in tools {
        assert_eq!(unpack_one(data).expect("a tool's file"), TEXT);
    }
}

#[test]
fn what_is_encoded_is_read_by_another() {
    let mut encoder = (ENTRY.build)().encoder(Some(-5)).expect("a level").expect("it writes");
    let mut data = Vec::new();
    encoder.encode(TEXT, &mut data).expect("it encodes");
    encoder.finish(&mut data).expect("it ends");
    assert_eq!(zstd::decode_all(data.as_slice()).expect("valid zstd"), TEXT);
    assert_eq!(data[4] & 4, 4, "no checksum");
}

#[test]
fn text_comes_as_soon_as_its_bytes_do() {
    let text = some_text(100_000);
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
    writer.write_all(&text).expect("memory");
    writer.flush().expect("memory");
    let mut decoder = (ENTRY.build)().decoder().expect("memory");
    let mut given = Vec::new();
    let mut input = writer.get_ref().as_slice();
    loop {
        let before = given.len();
        input = &input[decoder.decode(input, &mut given, 999).expect("good data")..];
        if given.len() - before < 999 {
            break;
        }
    }
    assert!(given == text, "{} of {} bytes", given.len(), text.len());
}

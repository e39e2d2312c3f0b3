//! gzip: the conformance suite, its own framing, and what the usual tools write.

use std::io::{Read, Write};

use millstream_core::Result;

use super::ENTRY;
use crate::conformance::{TEXT, decode, suite, unpack_one};

fn compress(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

suite!(ENTRY, compress);

fn all(data: &[u8]) -> Result<Vec<u8>> {
    decode(&ENTRY, data, usize::MAX, 4096)
}

/// A member with every optional part of the header.
fn with_all_parts(extra: &[u8]) -> Vec<u8> {
    let mut header = vec![0x1f, 0x8b, 8, 0b1_1111, 1, 2, 3, 4, 0, 3];
    header.extend_from_slice(&(extra.len() as u16).to_le_bytes());
    header.extend_from_slice(extra);
    header.extend_from_slice(b"a name\0a comment\0");
    let check = crc32fast::hash(&header) as u16;
    header.extend_from_slice(&check.to_le_bytes());
    header.extend_from_slice(&compress(TEXT)[10..]);
    header
}

#[test]
fn all_parts_of_the_header_are_read() {
    for extra in [b"".as_slice(), b"AB\x03\0xyz", &[0; 300]] {
        let data = with_all_parts(extra);
        for chunk in [1, 2, usize::MAX] {
            assert_eq!(decode(&ENTRY, &data, chunk, 100).expect("a good header"), TEXT);
        }
        for length in 0..data.len() {
            all(&data[..length]).expect_err("it is cut");
        }
    }
}

#[test]
fn the_checksum_of_the_header_is_checked() {
    let mut data = with_all_parts(b"");
    data[4] ^= 1;
    let error = all(&data).expect_err("the time was changed");
    assert!(error.what().starts_with("wrong checksum of the gzip header"), "{error}");
    assert_eq!(error.location().byte, Some(10 + 2 + 7 + 10));
}

#[test]
fn faults_name_their_byte() {
    let good = compress(TEXT);
    let length = good.len() as u64;
    let told = |data: &[u8]| {
        let error = all(data).expect_err("it is damaged");
        (error.what().to_owned(), error.location().byte.expect("the byte"))
    };
    let changed = |index: usize| {
        let mut bad = good.clone();
        bad[index] ^= 0x20;
        told(&bad)
    };
    assert_eq!(changed(0), ("not gzip: the first bytes are wrong".to_owned(), 0));
    assert_eq!(changed(2).1, 2);
    assert!(changed(2).0.contains("method 40"), "{:?}", changed(2));
    assert_eq!(changed(3), ("the gzip header has reserved flags: 0x20".to_owned(), 3));
    let (what, byte) = changed(good.len() - 8);
    assert!(what.starts_with("wrong gzip checksum: the decoded bytes give "), "{what}");
    assert_eq!(byte, length - 8);
    let (what, byte) = changed(good.len() - 4);
    assert!(what.starts_with("wrong gzip length: 693 bytes were decoded, the trailer says "), "{what}");
    assert_eq!(byte, length - 4);
    assert_eq!(
        told(&good[..good.len() - 3]),
        ("gzip is truncated: 3 of the 8 bytes of the trailer are missing".to_owned(), length - 3)
    );
    assert_eq!(told(&good[..50]), ("gzip is truncated: the compressed data is cut off".to_owned(), 50));
    assert_eq!(told(&good[..7]), ("gzip is truncated: the header is cut off".to_owned(), 7));
    // A fault in the second member counts from the unit's beginning.
    let mut two = [good.as_slice(), &good].concat();
    two[good.len() + 3] = 0xe0;
    assert_eq!(told(&two).1, length + 3);
}

#[test]
fn zeros_after_the_end_are_padding() {
    let good = compress(TEXT);
    for zeros in [1, 5, 512] {
        let padded = [good.as_slice(), &vec![0; zeros]].concat();
        for chunk in [1, usize::MAX] {
            assert_eq!(decode(&ENTRY, &padded, chunk, 100).expect("padding"), TEXT);
        }
        let more = [padded.as_slice(), &good].concat();
        let error = all(&more).expect_err("nothing follows padding");
        assert_eq!(error.location().byte, Some(padded.len() as u64));
        assert!(error.what().starts_with("garbage after the last gzip member"), "{error}");
    }
}

#[test]
fn what_the_tools_write_is_read() {
    let tools: [&[u8]; 4] = [
        include_bytes!("../../fixtures/gzip.gz"),
        include_bytes!("../../fixtures/gzip-name.gz"),
        include_bytes!("../../fixtures/pigz.gz"),
        include_bytes!("../../fixtures/bgzip.gz"),
    ];
    for data in tools {
        assert_eq!(unpack_one(data).expect("a tool's file"), TEXT);
    }
}

#[test]
fn what_is_encoded_is_read_by_another() {
    let mut encoder = (ENTRY.build)().encoder(None).expect("a level").expect("it writes");
    let mut data = Vec::new();
    encoder.encode(TEXT, &mut data).expect("it encodes");
    encoder.finish(&mut data).expect("it ends");
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(data.as_slice()).read_to_end(&mut text).expect("valid gzip");
    assert_eq!(text, TEXT);
}

#[test]
fn what_is_accepted_is_what_a_reference_reads() {
    use proptest::prelude::*;
    let bytes = prop::collection::vec(any::<u8>(), 0..64);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let run = |tail: Vec<u8>| {
        let mut data = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        data.extend_from_slice(&tail);
        let mut text = Vec::new();
        let reference = flate2::read::MultiGzDecoder::new(data.as_slice()).read_to_end(&mut text);
        if let Ok(ours) = all(&data) {
            prop_assert!(reference.is_ok());
            prop_assert_eq!(ours, text);
        }
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&bytes, run).expect("all cases");
}

//! Tests that every codec passes, each with its own data: `conformance::suite!(ENTRY, compress)`, where `compress` is a
//! reference implementation that gives one complete frame.

use bytes::Bytes;
use millstream_core::codec::Decoder;
use millstream_core::registry::CodecEntry;
use millstream_core::{Error, ErrorKind, Result};

use crate::{Unpack, UnpackOptions, Unpacked};

/// The fixtures' text.
pub(crate) const TEXT: &[u8] = include_bytes!("../fixtures/text");

/// The tests of a codec.
macro_rules! suite {
    ($entry:expr, $compress:expr) => {
        mod conformance_suite {
            #[allow(unused_imports, reason = "what the caller's expressions name")]
            use super::*;
            use crate::conformance;

            #[test]
            fn text_comes_back_whatever_the_cuts() {
                conformance::text_comes_back_whatever_the_cuts(&$entry, $compress);
            }

            #[test]
            fn every_missing_end_is_found() {
                conformance::every_missing_end_is_found(&$entry, $compress);
            }

            #[test]
            fn every_flipped_bit_is_found_or_harmless() {
                conformance::every_flipped_bit_is_found_or_harmless(&$entry, $compress);
            }

            #[test]
            fn garbage_after_the_end_is_found() {
                conformance::garbage_after_the_end_is_found(&$entry, $compress);
            }

            #[test]
            fn frames_follow_each_other() {
                conformance::frames_follow_each_other(&$entry, $compress);
            }

            #[test]
            fn what_is_encoded_is_decoded() {
                conformance::what_is_encoded_is_decoded(&$entry, $compress);
            }

            #[test]
            fn it_is_recognised_and_nothing_else_is() {
                conformance::it_is_recognised_and_nothing_else_is(&$entry, $compress);
            }

            #[test]
            fn random_text_at_random_cuts() {
                conformance::random_text_at_random_cuts(&$entry, $compress);
            }
        }
    };
}
pub(crate) use suite;

type Compress = fn(&[u8]) -> Vec<u8>;

fn decoder(entry: &CodecEntry) -> Box<dyn Decoder> {
    (entry.build)().decoder().expect("a decoder")
}

/// Decodes `data`, fed in chunks of `chunk` bytes, with at most `room` bytes of text a call.
pub(crate) fn decode(entry: &CodecEntry, data: &[u8], chunk: usize, room: usize) -> Result<Vec<u8>> {
    let mut decoder = decoder(entry);
    let mut text = Vec::new();
    for mut input in data.chunks(chunk) {
        loop {
            let before = text.len();
            let used = decoder.decode(input, &mut text, room)?;
            let given = text.len() - before;
            assert!(given <= room, "{given} bytes where there is room for {room}");
            assert!(used == input.len() || given == room, "neither all input used nor the room filled");
            input = &input[used..];
            if input.is_empty() && given < room {
                break;
            }
        }
    }
    decoder.finish()?;
    Ok(text)
}

/// Unpacks `data`: the members with their texts.
pub(crate) fn unpack(data: &[u8], chunk: usize, options: UnpackOptions) -> Result<Vec<(Option<String>, Vec<u8>)>> {
    let mut unpack = Unpack::new(options);
    let mut chunks = data.chunks(chunk);
    let mut contents = Vec::new();
    let mut inside = false;
    loop {
        match unpack.next()? {
            Unpacked::Hungry => match chunks.next() {
                Some(chunk) => unpack.feed(Bytes::copy_from_slice(chunk)),
                None => unpack.end(),
            },
            Unpacked::Begin { member } => {
                assert!(!inside, "a content begins inside of another");
                inside = true;
                contents.push((member, Vec::new()));
            }
            Unpacked::Text(text) => {
                assert!(inside && !text.is_empty() && text.len() <= 512 * 1024, "{} bytes of text", text.len());
                contents.last_mut().expect("it has begun").1.extend_from_slice(&text);
            }
            Unpacked::End => {
                assert!(inside, "an end without a beginning");
                inside = false;
            }
            Unpacked::Done => {
                assert!(!inside, "done inside of a content");
                assert_eq!(unpack.next()?, Unpacked::Done);
                assert_eq!(unpack.compressed_position(), data.len() as u64);
                return Ok(contents);
            }
        }
    }
}

/// The text of a unit that is no archive.
pub(crate) fn unpack_one(data: &[u8]) -> Result<Vec<u8>> {
    let mut contents = unpack(data, usize::MAX, UnpackOptions::default())?;
    assert_eq!(contents.len(), 1);
    let (member, text) = contents.remove(0);
    assert_eq!(member, None);
    Ok(text)
}

/// A text of `length` bytes, neither uniform nor random, made by a linear congruence.
pub(crate) fn some_text(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut text = Vec::with_capacity(length + 32);
    while text.len() < length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.extend_from_slice(format!("{},{},row\n", text.len(), state >> 20).as_bytes());
    }
    text.truncate(length);
    text
}

fn is_data_fault(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    assert!(error.location().byte.is_some(), "no byte: {error}");
    assert!(error.hint_text().is_some(), "no hint: {error}");
}

pub(crate) fn text_comes_back_whatever_the_cuts(entry: &CodecEntry, compress: Compress) {
    for length in [0, 1, 700] {
        let text = some_text(length);
        let data = compress(&text);
        for chunk in [1, 2, 3, 7, 64, usize::MAX] {
            for room in [1, 2, 13, 4096] {
                assert_eq!(decode(entry, &data, chunk, room).expect("good data"), text, "{length} {chunk} {room}");
            }
            assert_eq!(unpack(&data, chunk, UnpackOptions::default()).expect("good data"), [(None, text.clone())]);
        }
    }
    let text = some_text(3_000_000);
    let data = compress(&text);
    for (chunk, room) in [(usize::MAX, 512 * 1024), (1 << 16, 1 << 18), (1000, 4096), (usize::MAX, usize::MAX / 4)] {
        let room = room.min(8 << 20);
        assert!(decode(entry, &data, chunk, room).expect("good data") == text, "{chunk} {room}");
        assert!(unpack_one(&data).expect("good data") == text);
    }
}

pub(crate) fn every_missing_end_is_found(entry: &CodecEntry, compress: Compress) {
    let data = compress(TEXT);
    let two = [data.as_slice(), &data].concat();
    let options = UnpackOptions { expected: Some(entry.name), ..UnpackOptions::default() };
    for length in (0..data.len()).chain(data.len() + 1..two.len()) {
        for (chunk, room) in [(usize::MAX, 4096), (1, 1)] {
            let error = decode(entry, &two[..length], chunk, room).expect_err("it is cut");
            is_data_fault(&error);
            let byte = error.location().byte.expect("checked");
            // A few bytes after a whole frame may be garbage or the beginning of another: then the byte is theirs.
            assert!(byte == length as u64 || byte == data.len() as u64, "cut at {length}, found at {byte}");
        }
        let error = unpack(&two[..length], 5, options.clone()).expect_err("it is cut, and its name tells");
        is_data_fault(&error);
        if length >= 4 {
            let error = unpack(&two[..length], usize::MAX, UnpackOptions::default()).expect_err("it is cut");
            is_data_fault(&error);
        }
    }
    let error = decode(entry, &data[..data.len() - 1], usize::MAX, 4096).expect_err("it is cut");
    assert!(error.what().starts_with(&format!("{} is truncated: ", entry.name)), "{error}");
}

pub(crate) fn every_flipped_bit_is_found_or_harmless(entry: &CodecEntry, compress: Compress) {
    let data = compress(&TEXT[..200]);
    for index in 0..data.len() {
        for bit in 0..8 {
            let mut bad = data.clone();
            bad[index] ^= 1 << bit;
            match decode(entry, &bad, usize::MAX, 4096) {
                Ok(text) => assert!(text == TEXT[..200], "byte {index} bit {bit} changes the text unseen"),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Refused), "{error}");
                    let byte = error.location().byte.expect("the byte");
                    assert!(byte <= data.len() as u64, "{byte} of {}", data.len());
                }
            }
        }
    }
}

pub(crate) fn garbage_after_the_end_is_found(entry: &CodecEntry, compress: Compress) {
    let data = compress(TEXT);
    for garbage in [b"x".as_slice(), b"\n", b"garbage that is longer than any head", &data[..2], &[0, 0, 0, 0, 1]] {
        let bad = [data.as_slice(), garbage].concat();
        for chunk in [1, 5, usize::MAX] {
            let error = decode(entry, &bad, chunk, 4096).expect_err("garbage");
            is_data_fault(&error);
            let byte = error.location().byte.expect("checked");
            assert!(byte >= data.len() as u64 && byte <= bad.len() as u64, "{error}");
        }
    }
    let error = decode(entry, &[data.as_slice(), b"x"].concat(), 3, 4096).expect_err("garbage");
    assert_eq!((error.location().byte, error.offending_text()), (Some(data.len() as u64), Some("x")));
}

pub(crate) fn frames_follow_each_other(entry: &CodecEntry, compress: Compress) {
    let parts: [&[u8]; 5] = [b"first ", b"", TEXT, b"", b"last"];
    let data: Vec<u8> = parts.iter().flat_map(|part| compress(part)).collect();
    for chunk in [1, 3, 64, usize::MAX] {
        for room in [1, 4096] {
            assert_eq!(decode(entry, &data, chunk, room).expect("good data"), parts.concat());
        }
    }
    assert_eq!(unpack_one(&data).expect("good data"), parts.concat());
}

pub(crate) fn what_is_encoded_is_decoded(entry: &CodecEntry, _: Compress) {
    let codec = (entry.build)();
    for level in [None, Some(1), Some(9)] {
        for length in [0, 1, 700, 2_000_000] {
            let Some(mut encoder) = codec.encoder(level).expect("a level of all codecs") else {
                return;
            };
            let text = some_text(length);
            let mut data = Vec::new();
            for part in text.chunks(100_000) {
                encoder.encode(part, &mut data).expect("it encodes");
            }
            encoder.finish(&mut data).expect("it ends");
            assert!(decode(entry, &data, 1 << 16, 1 << 18).expect("our own data") == text);
            assert!(length < 1000 || data.len() < length / 2, "{} of {length} bytes", data.len());
        }
    }
    let error = codec.encoder(Some(1000)).err().expect("no such level");
    assert_eq!(error.kind(), ErrorKind::Job);
    assert!(error.hint_text().expect("a hint").contains(" to "), "{error:?}");
}

pub(crate) fn it_is_recognised_and_nothing_else_is(entry: &CodecEntry, compress: Compress) {
    let codec = (entry.build)();
    assert_eq!(codec.name(), entry.name);
    assert!(entry.extensions.contains(&codec.extension()));
    for text in [b"".as_slice(), TEXT] {
        let data = compress(text);
        for length in 4..data.len().min(16) {
            assert!(codec.recognises(&data[..length]), "{length} bytes");
        }
        let others = crate::CODECS.iter().filter(|other| (other.build)().recognises(&data[..data.len().min(16)]));
        assert_eq!(others.map(|other| other.name).collect::<Vec<_>>(), [entry.name]);
    }
    for text in [
        "",
        "B",
        "BZ",
        "BZh",
        "BZh9 is a name",
        "BZhello, world",
        "P",
        "PK",
        "(",
        "Q*M",
        "7z",
        "id,name\n1,x\n",
        "\u{feff}id",
    ] {
        assert!(!codec.recognises(text.as_bytes()), "{text}");
    }
}

pub(crate) fn random_text_at_random_cuts(entry: &CodecEntry, compress: Compress) {
    use proptest::prelude::*;
    let bytes = prop::collection::vec(prop_oneof![3 => 97..103u8, 1 => any::<u8>()], 0..3000);
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let inputs = (bytes, 1..500usize, 1..2000usize, prop::collection::vec(change, 1..4), any::<prop::sample::Index>());
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    let run = |(text, chunk, room, changes, cut): (Vec<u8>, usize, usize, Vec<(prop::sample::Index, u8)>, _)| {
        let data = compress(&text);
        prop_assert_eq!(&decode(entry, &data, chunk, room).expect("good data"), &text);
        let mut bad = data.clone();
        for (index, byte) in changes {
            bad[index.index(data.len())] ^= byte;
        }
        bad.truncate(bad.len() - Index::index(&cut, bad.len().min(3)));
        let whole = decode(entry, &bad, usize::MAX, 1 << 20);
        let in_parts = decode(entry, &bad, chunk, room);
        prop_assert_eq!(whole.as_ref().ok(), in_parts.as_ref().ok(), "the cuts change what is accepted");
        if let Ok(read) = whole {
            prop_assert!(read == text, "damage changes the text unseen");
        }
        Ok(())
    };
    use prop::sample::Index;
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

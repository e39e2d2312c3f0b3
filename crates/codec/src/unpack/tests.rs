//! Unpacking: detection, pieces, limits, positions. The codecs' and the archive's own tests are beside them.

use std::io::Write;

use bytes::Bytes;
use millstream_core::ErrorKind;
use millstream_core::spec::Size;

use super::{Limits, Unpack, UnpackOptions, Unpacked, check_members};
use crate::conformance::{TEXT, some_text, unpack, unpack_one};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

fn expecting(codec: &'static str) -> UnpackOptions {
    UnpackOptions { expected: Some(codec), ..UnpackOptions::default() }
}

#[test]
fn an_empty_unit_is_an_empty_content() {
    assert_eq!(unpack(b"", 1, UnpackOptions::default()).expect("empty"), [(None, Vec::new())]);
}

#[test]
fn plain_text_is_handed_on_without_a_copy() {
    let text = Bytes::from(some_text(1_200_000));
    let mut unpack = Unpack::new(UnpackOptions::default());
    unpack.feed(text.clone());
    unpack.end();
    assert_eq!(unpack.codec(), "");
    assert_eq!(unpack.next().expect("begin"), Unpacked::Begin { member: None });
    let mut position = 0;
    loop {
        match unpack.next().expect("plain text") {
            Unpacked::Text(piece) => {
                assert_eq!(piece.as_ptr() as usize, text.as_ptr() as usize + position, "it was copied");
                position += piece.len();
                assert_eq!(unpack.compressed_position(), position as u64);
            }
            Unpacked::End => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((position, unpack.codec()), (text.len(), "plain"));
}

#[test]
fn short_plain_units_come_back_whole() {
    for length in 0..40 {
        let text = some_text(length);
        for chunk in [1, 7, 100] {
            assert_eq!(unpack(&text, chunk, UnpackOptions::default()).expect("plain"), [(None, text.clone())]);
        }
    }
}

#[test]
fn the_codec_and_the_position_are_known_while_it_runs() {
    let data = Bytes::from(gzip(&some_text(4_000_000)));
    let mut unpack = Unpack::new(UnpackOptions::default());
    unpack.feed(data.clone());
    let mut last = 0;
    let mut pieces = 0;
    loop {
        match unpack.next().expect("good data") {
            Unpacked::Text(text) => {
                pieces += 1;
                assert!(unpack.compressed_position() >= last && text.len() <= 512 * 1024);
                last = unpack.compressed_position();
                assert_eq!(unpack.codec(), "gzip");
            }
            Unpacked::Hungry => break,
            _ => {}
        }
    }
    assert!(pieces >= 8, "{pieces} pieces");
    assert_eq!(unpack.compressed_position(), data.len() as u64);
    unpack.end();
    assert_eq!(unpack.next().expect("the end"), Unpacked::End);
    assert_eq!(unpack.next().expect("done"), Unpacked::Done);
}

#[test]
fn small_units_take_small_memory() {
    let text = some_text(3000);
    let mut unpack = Unpack::new(UnpackOptions::default());
    unpack.feed(gzip(&text).into());
    unpack.next().expect("begin");
    let Unpacked::Text(piece) = unpack.next().expect("text") else { panic!("no text") };
    assert_eq!(piece, text);
    let memory = piece.try_into_mut().expect("ours alone").capacity();
    assert!(memory <= 64 * 1024, "{memory} bytes for {}", text.len());
}

#[test]
fn an_error_stays() {
    let mut unpack = Unpack::new(UnpackOptions::default());
    unpack.feed(gzip(TEXT)[..40].to_vec().into());
    unpack.end();
    let first = (0..5).find_map(|_| unpack.next().err()).expect("it is cut");
    assert_eq!(first.to_string(), unpack.next().expect_err("again").to_string());
    assert_eq!(first.to_string(), "byte 40: gzip is truncated: the compressed data is cut off");
}

#[test]
fn a_name_breaks_ties() {
    // Damaged in its first byte: without the name it would pass for text of one odd line.
    let mut damaged = gzip(TEXT);
    damaged[0] ^= 0x40;
    assert!(unpack(&damaged, 9, UnpackOptions::default()).is_ok());
    let error = unpack(&damaged, 9, expecting("gzip")).expect_err("its name promises gzip");
    assert_eq!(error.what(), "the data is not gzip, as its name promises, nor is it text");
    assert_eq!(error.location().byte, Some(0));
    // Some servers decompress unasked, and names can be wrong.
    assert_eq!(unpack(TEXT, 9, expecting("gzip")).expect("text")[0].1, TEXT);
    assert_eq!(unpack(&gzip(TEXT), 9, expecting("zstd")).expect("gzip")[0].1, TEXT);
    assert_eq!(unpack("\u{feff}å".as_bytes(), 9, expecting("zip")).expect("text").len(), 1);
    // Cut before anything could be recognised.
    for (codec, head) in [
        ("gzip", "\x1f"),
        ("bzip2", "B"),
        ("bzip2", "BZh"),
        ("zip", "P"),
        ("zip", "PK"),
        ("zstd", "("),
        ("tar", "a.csv"),
        ("tar.gz", "\x1f"),
        ("tar.bz2", "B"),
    ] {
        assert!(unpack(head.as_bytes(), 1, UnpackOptions::default()).is_ok(), "{head}");
        let error = unpack(head.as_bytes(), 1, expecting(codec)).expect_err("it is cut");
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    }
    for codec in ["gzip", "zstd", "bzip2", "xz", "zip", "tar", "tar.gz", "tar.xz"] {
        let error = unpack(b"", 1, expecting(codec)).expect_err("nothing is no compressed file");
        assert_eq!(error.what(), format!("the file is empty, but its name promises {codec}"));
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let cases: [(&[u8], &str); 5] = [
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0", "a program (or a self-extracting archive)"),
        (b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff\0\0", "a program (or a self-extracting archive)"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
        (b"PK\x07\x08PK\x03\x04", "a part of a split zip archive"),
    ];
    for (head, name) in cases {
        let error = unpack_one(head).expect_err("not to be read");
        assert_eq!(error.what(), format!("the data is {name}, which is not supported"));
        assert!(error.hint_text().expect("a hint").contains("gzip"));
    }
    assert_eq!(unpack_one(b"MZ,id\n1,2\n").expect("text"), b"MZ,id\n1,2\n");
}

#[test]
fn bombs_are_stopped() {
    // 1 GiB of zeros in about a megabyte: as much as deflate can do.
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..96 {
        writer.write_all(&zeros).expect("memory");
    }
    let bomb = writer.finish().expect("memory");
    let error = unpack(&bomb, 10_000, UnpackOptions::default()).expect_err("a bomb");
    assert_eq!(error.what(), "the data unpacks to more than 400 times its size: it may be a bomb");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.location().byte < Some(bomb.len() as u64), "it was read to its end first");
    assert!(error.hint_text().expect("a hint").contains("ratio"));
    let allowed = UnpackOptions { limits: Limits { ratio: 1100, ..Limits::default() }, ..UnpackOptions::default() };
    assert_eq!(unpack(&bomb, 10_000, allowed).expect("allowed")[0].1.len(), 96 << 20);
    // Below 64 MiB the ratio does not matter.
    assert_eq!(unpack_one(&gzip(&vec![b'x'; 60 << 20])).expect("small").len(), 60 << 20);
}

#[test]
fn the_bytes_of_a_unit_can_be_limited() {
    let limited = |most: u64| UnpackOptions {
        limits: Limits { bytes: Some(Size(most)), ..Limits::default() },
        ..UnpackOptions::default()
    };
    for data in [gzip(TEXT), TEXT.to_vec()] {
        assert_eq!(unpack(&data, 64, limited(TEXT.len() as u64)).expect("as many as allowed")[0].1, TEXT);
        let error = unpack(&data, 64, limited(TEXT.len() as u64 - 1)).expect_err("one too many");
        assert_eq!(error.what(), "the unit unpacks to more than 692 bytes");
    }
}

#[test]
fn globs_are_checked() {
    let faults = check_members(&["*.csv".to_owned(), "[".to_owned(), "{a".to_owned()]);
    assert_eq!(faults.iter().map(|fault| fault.path.join(".")).collect::<Vec<_>>(), ["1", "2"]);
    assert!(faults[0].what.starts_with("`[` is not a valid glob"), "{}", faults[0].what);
}

#[test]
fn it_moves_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Unpack::new(UnpackOptions::default()));
}

#[test]
fn text_comes_as_soon_as_its_bytes_do() {
    // All compressed bytes but the trailer are here, and more text than one piece holds: a decoder that has used up
    // its input may still have text to give.
    for more in 1..300 {
        let text = vec![b'0'; 16 * 1024 + more];
        let data = gzip(&text);
        let mut unpack = Unpack::new(UnpackOptions::default());
        unpack.feed(data[..data.len() - 8].to_vec().into());
        let mut given = 0;
        loop {
            match unpack.next().expect("good data") {
                Unpacked::Text(piece) => given += piece.len(),
                Unpacked::Hungry => break,
                _ => {}
            }
        }
        assert_eq!(given, text.len());
    }
}

/// Unpacks the unit after feeding all of it, in chunks of `chunk` bytes.
fn fed_at_once(
    data: &[u8],
    chunk: usize,
    options: UnpackOptions,
) -> (Vec<usize>, Vec<u8>, Option<millstream_core::Error>) {
    let mut unpack = Unpack::new(options);
    data.chunks(chunk).for_each(|chunk| unpack.feed(Bytes::copy_from_slice(chunk)));
    unpack.end();
    let (mut pieces, mut text) = (Vec::new(), Vec::new());
    loop {
        match unpack.next() {
            Ok(Unpacked::Text(piece)) => {
                pieces.push(piece.len());
                text.extend_from_slice(&piece);
            }
            Ok(Unpacked::Done) => {
                assert_eq!(unpack.compressed_position(), data.len() as u64);
                return (pieces, text, None);
            }
            Ok(Unpacked::Hungry) => panic!("hungry after the end"),
            Ok(_) => {}
            Err(error) => return (pieces, text, Some(error)),
        }
    }
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
    writer.include_checksum(true).expect("a parameter");
    writer.set_pledged_src_size(Some(text.len() as u64)).expect("a parameter");
    writer.include_contentsize(true).expect("a parameter");
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

#[test]
fn a_small_unit_that_is_all_here_is_one_piece() {
    let text = some_text(3_000_000);
    for compress in [gzip, zstd] {
        for (parts, length) in [(1, 1_500_000), (1, 10), (1, 255), (1, 256), (3, 500_000), (20, 100)] {
            let data: Vec<u8> = (0..parts).flat_map(|_| compress(&text[..length])).collect();
            for chunk in [usize::MAX, 4000] {
                let (pieces, given, error) = fed_at_once(&data, chunk, UnpackOptions::default());
                assert!(error.is_none() && given == text[..length].repeat(parts), "{parts} of {length}");
                assert_eq!(pieces, [length * parts]);
            }
        }
        // What is too large for one piece comes in many.
        let data = compress(&text.repeat(2));
        let (pieces, given, error) = fed_at_once(&data, usize::MAX, UnpackOptions::default());
        assert!(error.is_none() && given == text.repeat(2) && pieces.len() > 10, "{pieces:?}");
    }
}

#[test]
fn a_length_at_the_end_that_lies_is_no_matter() {
    let text = some_text(2_000_000);
    for said in [0u32, 1, 1_999_999, 2_000_001, 4 << 20, u32::MAX] {
        let mut data = gzip(&text);
        let at = data.len() - 4;
        data[at..].copy_from_slice(&said.to_le_bytes());
        let (_, given, error) = fed_at_once(&data, usize::MAX, UnpackOptions::default());
        assert!(text.starts_with(&given), "{said}");
        let error = error.expect("it lies").to_string();
        assert!(error.contains("wrong gzip length: 2000000 bytes were decoded"), "{error}");
    }
    // Padding is not a length.
    let data = [gzip(&text), vec![0; 700]].concat();
    assert_eq!(fed_at_once(&data, usize::MAX, UnpackOptions::default()).0, [text.len()]);
}

#[test]
fn all_at_once_or_in_parts_is_the_same() {
    use proptest::prelude::*;
    let bytes = prop::collection::vec(prop_oneof![3 => 97..103u8, 1 => any::<u8>()], 0..3000);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let inputs = (bytes, any::<bool>(), 1..4usize, changes, any::<prop::sample::Index>(), 0..3usize, 1..600usize);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let run = |(text, is_gzip, parts, changes, cut, tail, chunk): (
        Vec<u8>,
        bool,
        usize,
        Vec<_>,
        prop::sample::Index,
        _,
        _,
    )| {
        let compress = if is_gzip { gzip } else { zstd };
        let mut data: Vec<u8> = (0..parts).flat_map(|part| compress(&text[part * text.len() / 4..])).collect();
        if tail == 1 {
            data.truncate(cut.index(data.len()));
        } else if tail == 2 {
            data.extend(vec![0; cut.index(9)]);
        }
        for (index, byte) in changes {
            let index: prop::sample::Index = index;
            if !data.is_empty() {
                let at = index.index(data.len());
                data[at] ^= byte;
            }
        }
        let most = if chunk % 3 == 0 { Some(Size(chunk as u64 * 8)) } else { None };
        let limits = Limits { bytes: most, ..Limits::default() };
        let expected = is_gzip.then_some("gzip");
        let options = UnpackOptions { limits, expected, ..UnpackOptions::default() };
        let (_, given, error) = fed_at_once(&data, chunk, options.clone());
        // Pulled after each chunk, so that the unit never has arrived as a whole.
        let parts = unpack(&data, chunk, options);
        match (parts, error) {
            (Ok(contents), None) => prop_assert_eq!(&contents[0].1, &given),
            (Err(one), Some(other)) => {
                // A piece that is too large is refused before the fault behind it is met.
                if one.kind() == ErrorKind::Refused || other.kind() == ErrorKind::Refused {
                    return Ok(());
                }
                prop_assert_eq!(one.what(), other.what());
                // The fault that libzstd reports depends on how much it was given at once.
                if is_gzip {
                    prop_assert_eq!(one.location(), other.location());
                }
            }
            (one, other) => prop_assert!(false, "{:?} in parts, {:?} at once", one.err(), other),
        }
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

/// A stored archive with one member, and a comment.
fn archive(comment: &str) -> Vec<u8> {
    let mut writer = ::zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = ::zip::write::SimpleFileOptions::default().compression_method(::zip::CompressionMethod::Stored);
    writer.start_file("a.csv", stored).expect("memory");
    writer.write_all(b"id\n1\n").expect("memory");
    writer.set_comment(comment).expect("memory");
    writer.finish().expect("memory").into_inner()
}

#[test]
fn a_zip_behind_a_text_is_refused_wherever_it_begins_and_however_it_comes() {
    for front in [1, 13, 15, 16, 20, 29, 500, 60_000, 200_000] {
        let data = [some_text(front), archive("made by hand")].concat();
        for chunk in [1, 31, 4096, data.len()].into_iter().filter(|chunk| *chunk > 1 || front < 1000) {
            for expected in [None, Some("zip")] {
                let options = UnpackOptions { expected, ..UnpackOptions::default() };
                let error = unpack(&data, chunk, options).expect_err("no text");
                assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                let near = format!("a zip archive begins at byte {front}, after other data");
                let far = "the data ends like a zip archive, but does not begin like one";
                assert_eq!(error.what(), if front < 64 << 10 { near.as_str() } else { far });
                assert!(error.hint_text().is_some_and(|hint| hint.contains("unzip")));
            }
        }
    }
}

#[test]
fn a_zip_in_a_value_of_a_parquet_file_is_a_value() {
    let data = [b"PAR1\x15\0", &archive("")[..], b"PAR1"].concat();
    for chunk in [1, 3, data.len()] {
        let contents = unpack(&data, chunk, UnpackOptions::default()).expect("a Parquet file");
        assert_eq!(contents[0].1, data);
    }
    assert!(unpack_one(&data[1..]).is_err(), "behind other data it is refused");
}

#[test]
fn letters_of_a_zip_in_a_text_are_text() {
    let cut = archive("")[..40].to_vec();
    for text in [b"a PK\x03\x04 b\n".to_vec(), b"PK,n\n1,2\n".to_vec(), [b"x", &cut[..29]].concat()] {
        assert_eq!(unpack_one(&text).expect("text"), text);
    }
    // A member whose text contains an archive is read as text.
    let text = [some_text(20), archive("made by hand")].concat();
    let mut outer = ::zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    outer.start_file("text", ::zip::write::SimpleFileOptions::default()).expect("memory");
    outer.write_all(&text).expect("memory");
    let outer = outer.finish().expect("memory").into_inner();
    let contents = unpack(&outer, 100, UnpackOptions::default()).expect("a zip");
    assert_eq!(contents, [(Some("text".to_owned()), text)]);
    // A tar may contain anything in members that are not selected.
    let mut tar = ::tar::Builder::new(Vec::new());
    for (name, content) in [("a.zip", archive("")), ("b.csv", b"id\n".to_vec())] {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &content[..]).expect("memory");
    }
    let tar = tar.into_inner().expect("memory");
    let options = UnpackOptions { members: vec!["*.csv".to_owned()], ..UnpackOptions::default() };
    assert_eq!(unpack(&tar, 100, options).expect("a tar"), [(Some("b.csv".to_owned()), b"id\n".to_vec())]);
}

//! tar: what the usual tools write, every fault of an archive made by hand, and a reference beside ours.

use std::io::{Read, Write};

use millstream_core::{Error, ErrorKind, Result};

use super::header::BLOCK;
use crate::conformance::{TEXT, some_text, unpack};
use crate::{Limits, UnpackOptions};

type Contents = Vec<(Option<String>, Vec<u8>)>;

fn all(archive: &[u8]) -> Result<Contents> {
    unpack(archive, usize::MAX, UnpackOptions::default())
}

fn members(globs: &[&str]) -> UnpackOptions {
    UnpackOptions { members: globs.iter().map(|glob| (*glob).to_owned()).collect(), ..UnpackOptions::default() }
}

fn expecting(name: &'static str) -> UnpackOptions {
    UnpackOptions { expected: Some(name), ..UnpackOptions::default() }
}

fn named(name: &str, text: &[u8]) -> (Option<String>, Vec<u8>) {
    (Some(name.to_owned()), text.to_vec())
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

fn gunzip(data: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(data).read_to_end(&mut text).expect("a good fixture");
    text
}

/// A header, with its checksum.
fn block(name: &str, kind: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sign(&mut block);
    block
}

fn sign(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u64 = block[..BLOCK].iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// An archive made by hand, block by block, so that each can be wrong.
#[derive(Default, Clone)]
struct Archive(Vec<u8>);

impl Archive {
    fn block(mut self, block: [u8; BLOCK]) -> Self {
        self.0.extend_from_slice(&block);
        self
    }

    fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn file(self, name: &str, text: &[u8]) -> Self {
        self.kind(name, b'0', text)
    }

    fn kind(self, name: &str, kind: u8, data: &[u8]) -> Self {
        self.block(block(name, kind, data.len() as u64)).data(data)
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

fn fault(archive: &[u8]) -> Error {
    let error = all(archive).expect_err("a fault");
    assert!(error.location().byte.is_some(), "no byte: {error}");
    for chunk in [1, 7] {
        let in_parts = unpack(archive, chunk, UnpackOptions::default()).expect_err("a fault");
        assert_eq!(in_parts.what(), error.what(), "the cuts change the message");
        // Inside a member, the position of a fault depends on how much is unpacked at once.
        let in_member = error.location().member.is_some();
        assert!(in_member || in_parts.location().byte == error.location().byte, "the cuts change the place");
    }
    error
}

macro_rules! fixtures {
    ($($name:literal),* $(,)?) => { [$(($name, include_bytes!(concat!("../../fixtures/", $name)).as_slice())),*] };
}

#[test]
fn what_the_tools_write_is_read() {
    let fixtures = fixtures![
        "bsd-gnu.tar.gz",
        "bsd-posix.tar.gz",
        "bsd-ustar.tar.gz",
        "bsd-v7.tar.gz",
        "gnu-gnu.tar.gz",
        "gnu-posix.tar.gz",
        "gnu-ustar.tar.gz",
        "gnu-v7.tar.gz",
        "gnu.tar.gz",
        "gnu.tar.bz2",
        "gnu.tar.xz",
        "gnu.tar.zst",
        "python-gnu.tar.gz",
        "python-pax.tar.gz",
        "python-ustar.tar.gz",
    ];
    for (name, archive) in fixtures {
        let expected = crate::codec_by_name(name).expect("a tar");
        let v7 = name.contains("v7");
        let plain = name.ends_with(".gz").then(|| (gunzip(archive), "tar"));
        let packed = (archive.to_vec(), expected);
        for (data, expected) in std::iter::once(packed).chain(plain) {
            for chunk in [1, 3, 100, 512, usize::MAX] {
                let read = |options: UnpackOptions| {
                    unpack(&data, chunk, options).unwrap_or_else(|error| panic!("{name}: {error}"))
                };
                let both = [named("a.csv", TEXT), named("inner/b.csv", TEXT)];
                assert_eq!(read(expecting(expected)), both, "{name}");
                if !v7 {
                    assert_eq!(read(UnpackOptions::default()), both, "{name}: by its magic");
                }
                let one = read(UnpackOptions { expected: Some(expected), ..members(&["**/b.*"]) });
                assert_eq!(one, [named("inner/b.csv", TEXT)], "{name}");
            }
            let mut unpack = crate::Unpack::new(expecting(expected));
            unpack.feed(data.clone().into());
            unpack.end();
            unpack.next().expect("it begins");
            assert_eq!(unpack.codec(), expected);
        }
    }
}

#[test]
fn a_cut_archive_is_never_a_short_one() {
    let fixtures = fixtures![
        "bsd-posix.tar.gz",
        "gnu-gnu.tar.gz",
        "gnu-v7.tar.gz",
        "gnu-gnu-long.tar.gz",
        "gnu-posix-long.tar.gz",
        "python-pax.tar.gz",
    ];
    for (name, packed) in fixtures {
        let archive = gunzip(packed);
        // The last block that says something; behind it one block of zeros is the end.
        let end = archive.len() - archive.iter().rev().take_while(|&&byte| byte == 0).count();
        let least = end.next_multiple_of(BLOCK) + BLOCK;
        let is_v7 = name.contains("v7");
        for length in 0..archive.len() {
            let read = |chunk, options| unpack(&archive[..length], chunk, options);
            let result = read(usize::MAX, expecting("tar"));
            assert_eq!(result.is_ok(), length >= least, "{name} cut at {length}: {result:?}");
            if let Err(error) = &result {
                assert_eq!(error.kind(), ErrorKind::Data, "{name} cut at {length}: {error}");
                assert!(error.location().byte.is_some_and(|byte| byte <= length as u64), "{name}: {error}");
                let in_parts = read(37, expecting("tar")).expect_err("the same");
                assert_eq!(in_parts.to_string(), error.to_string(), "{name} cut at {length}");
            }
            // Known by its magic, once that is there.
            if length >= 262 && !is_v7 {
                assert_eq!(read(100, UnpackOptions::default()).is_ok(), length >= least, "{name} cut at {length}");
            }
        }
        for length in 1..packed.len() {
            let error = unpack(&packed[..length], usize::MAX, expecting("tar.gz")).expect_err("a cut gzip");
            assert_eq!(error.kind(), ErrorKind::Data, "{name} cut at {length}: {error}");
        }
        // The gzip is whole, but what was packed was cut.
        for length in [10, 300, 600, end, least - BLOCK] {
            let error = unpack(&gzip(&archive[..length]), usize::MAX, expecting("tar.gz")).expect_err("a cut tar");
            assert!(error.what().starts_with("tar is truncated: "), "{name} cut at {length}: {error}");
        }
    }
    let error = fault(&Archive::default().file("a", TEXT).0);
    assert_eq!(error.to_string(), "byte 1536: tar is truncated: the zeros at its end are missing");
    assert!(error.hint_text().expect("a hint").contains("head -c 1024"), "{error:?}");
    let error = fault(&Archive::default().file("a", TEXT).0[..1100]);
    assert_eq!(error.to_string(), "member a, byte 1100: tar is truncated: 105 bytes of a member are missing");
}

#[test]
fn long_names_are_read() {
    let name = format!("long/{}a-name-that-no-header-has-the-room-for.csv", {
        (1..=30).map(|index| format!("folder-{index:02}/")).collect::<String>()
    });
    for (fixture, archive) in fixtures!["gnu-gnu-long.tar.gz", "gnu-posix-long.tar.gz"] {
        for chunk in [1, 100, usize::MAX] {
            let read = unpack(archive, chunk, UnpackOptions::default()).expect(fixture);
            assert_eq!(read, [named(&name, TEXT)], "{fixture}");
            let plain = unpack(&gunzip(archive), chunk, members(&["**/*.csv"])).expect(fixture);
            assert_eq!(plain, [named(&name, TEXT)], "{fixture}");
        }
    }
    // The prefix of ustar; in a header of GNU or star, other things stand there.
    let mut with_prefix = block("name.csv", b'0', 3);
    with_prefix[345..351].copy_from_slice(b"in/the");
    let with = |change: fn(&mut [u8; BLOCK])| {
        let mut block = with_prefix;
        change(&mut block);
        sign(&mut block);
        let archive = Archive::default().block(block).data(b"abc").finish();
        all(&archive).expect("good").remove(0).0.expect("a name")
    };
    assert_eq!(with(|_| {}), "in/the/name.csv");
    assert_eq!(with(|block| block[257..265].copy_from_slice(b"ustar  \0")), "name.csv");
    let star = |block: &mut [u8; BLOCK]| {
        block[476..488].copy_from_slice(b"14544223400 ");
        block[508..].copy_from_slice(b"tar\0");
    };
    assert_eq!(with(star), "in/the/name.csv");
}

#[test]
fn sparse_files_are_refused_or_left_out() {
    for (fixture, archive) in fixtures![
        "gnu-gnu-sparse.tar.gz",
        "gnu-posix-sparse-0.0.tar.gz",
        "gnu-posix-sparse-0.1.tar.gz",
        "gnu-posix-sparse-1.0.tar.gz"
    ] {
        let archive = gunzip(archive);
        let error = fault(&archive);
        assert_eq!(error.what(), "the member is a sparse file, stored without its holes, which is not supported");
        assert_eq!(
            (error.location().member.as_deref(), error.kind()),
            (Some("sparse"), ErrorKind::Refused),
            "{fixture}"
        );
        for chunk in [1, usize::MAX] {
            assert_eq!(unpack(&archive, chunk, members(&["*.csv"])).expect(fixture), [named("a.csv", TEXT)]);
        }
    }
}

#[test]
fn what_is_no_file_is_passed_over() {
    let label = include_bytes!("../../fixtures/gnu-label.tar.gz");
    // GNU tar's labels lack the magic.
    assert_eq!(unpack(label, 100, expecting("tar.gz")).expect("a label"), [named("a.csv", TEXT)]);
    let mut archive = Archive::default().file("a", TEXT);
    for kind in b'2'..=b'6' {
        // A size that means nothing, as POSIX has it.
        archive = archive.block(block("other", kind, 700));
    }
    let archive = archive.kind("folder/", b'5', b"").kind("old/", 0, b"").kind("dump", b'D', TEXT).file("b", b"b");
    assert_eq!(all(&archive.finish()).expect("good data"), [named("a", TEXT), named("b", b"b")]);

    let unknown = Archive::default().kind("odd", b'Z', TEXT).file("a", TEXT).finish();
    let error = fault(&unknown);
    assert_eq!((error.what(), error.offending_text()), ("the member is of a kind that is not known", Some("Z")));
    assert_eq!(unpack(&unknown, 9, members(&["a"])).expect("it is not wanted"), [named("a", TEXT)]);
    let volume = Archive::default().kind("part", b'M', TEXT).file("a", TEXT).finish();
    assert!(fault(&volume).what().contains("another volume"));
}

#[test]
fn links_are_passed_over() {
    let link = |name: &str, kind, to: &str, size| {
        let mut block = block(name, kind, size);
        block[157..157 + to.len()].copy_from_slice(to.as_bytes());
        sign(&mut block);
        block
    };
    let with_link = |size, data: &[u8]| {
        let archive = Archive::default().file("a", TEXT).block(link("hard", b'1', "a", size)).data(data);
        archive.block(link("soft", b'2', "/etc/passwd", 0)).file("b", b"b").finish()
    };
    let both = [named("a", TEXT), named("b", b"b")];
    // Some writers give the size of a hard link's file, some its data too.
    for archive in [with_link(0, b""), with_link(693, b""), with_link(693, TEXT)] {
        for chunk in [1, 100, usize::MAX] {
            assert_eq!(unpack(&archive, chunk, UnpackOptions::default()).expect("good data"), both);
            let some = unpack(&archive, chunk, members(&["hard", "a", "soft", "b"])).expect("good data");
            assert_eq!(some, both);
        }
    }
    let error = unpack(&with_link(0, b""), 9, members(&["hard", "b"])).expect_err("data would be left out");
    assert_eq!(error.what(), "the member is a hard link to another that `members` leaves out");
    assert_eq!((error.location().member.as_deref(), error.offending_text()), (Some("hard"), Some("a")));
    let error = unpack(&with_link(0, b""), 9, members(&["soft"])).expect_err("a symbolic link is nothing");
    assert_eq!(error.hint_text().map(|hint| hint.starts_with("the archive has a, b;")), Some(true));
}

#[test]
fn names_are_data() {
    let names = ["../../x", "/etc/passwd", "C:\\x\\y", "a\nb", "ünï/ço", "x"];
    let archive = names.iter().fold(Archive::default(), |archive, name| archive.file(name, TEXT)).finish();
    assert_eq!(all(&archive).expect("good data"), names.map(|name| named(name, TEXT)));
    assert_eq!(unpack(&archive, 9, members(&["../../x"])).expect("by its name"), [named("../../x", TEXT)]);

    let pax = |record: &str| {
        let archive = Archive::default().kind("pax", b'x', record.as_bytes()).file("plain", TEXT);
        archive.file("y", TEXT).finish()
    };
    let nul = pax("15 path=x\0.csv\n");
    let error = fault(&nul);
    assert_eq!(error.what(), "the member's name holds a NUL: tools disagree on where it ends");
    assert_eq!(unpack(&nul, 9, members(&["y"])).expect("it is not wanted"), [named("y", TEXT)]);

    let mut latin = block("_ber.csv", b'0', 1);
    latin[0] = 0xfc;
    sign(&mut latin);
    let latin = Archive::default().block(latin).data(b"1").finish();
    assert_eq!(all(&latin).expect("good data"), [named("\u{fffd}ber.csv", b"1")]);
}

#[test]
fn members_are_chosen_by_globs() {
    let archive = ["./a.csv", "./in/b.csv", ".//in/deep/c.csv", "._a.csv", "./in/._b.csv", "./.DS_Store", "."]
        .iter()
        .enumerate()
        .fold(Archive::default().kind("./", b'5', b""), |archive, (index, name)| {
            archive.file(name, &[b'1' + index as u8])
        })
        .finish();
    let chosen = |globs: &[&str]| -> Vec<u8> {
        let contents = unpack(&archive, 64, members(globs)).expect("good data");
        contents.into_iter().flat_map(|(_, text)| text).collect()
    };
    assert_eq!(chosen(&[]), b"1237");
    assert_eq!(chosen(&["*.csv"]), b"14");
    assert_eq!(chosen(&["./*.csv"]), b"1");
    assert_eq!(chosen(&["in/**"]), b"235");
    assert_eq!(chosen(&["**"]), b"1234567");
    assert_eq!(all(&archive).expect("good data")[1].0.as_deref(), Some("in/b.csv"));
    let error = unpack(&archive, 64, members(&["*.json"])).expect_err("none");
    assert_eq!(error.what(), "no member of the tar matches `members`");
    let hint = error.hint_text().expect("a hint");
    assert!(hint.starts_with("the archive has a.csv, in/b.csv, in/deep/c.csv, ._a.csv, in/._b.csv"), "{hint}");
    let error = unpack(&archive, 64, members(&["["])).expect_err("no glob");
    assert_eq!(error.kind(), ErrorKind::Job);
}

#[test]
fn sizes_are_of_any_kind() {
    let with = |field: [u8; 12]| {
        let mut block = block("a", b'0', 0);
        block[124..136].copy_from_slice(&field);
        sign(&mut block);
        Archive::default().block(block).data(TEXT).file("b", b"b").finish()
    };
    for field in [*b"00000001265\0", *b"000000001265", *b"       1265 ", *b"1265\0\0\0\0\0\0\0\0", {
        let mut binary = [0; 12];
        binary[0] = 0x80;
        binary[8..].copy_from_slice(&693u32.to_be_bytes());
        binary
    }] {
        assert_eq!(all(&with(field)).expect("good data"), [named("a", TEXT), named("b", b"b")], "{field:?}");
    }
    let huge = |first: u8| {
        let mut field = [0xff; 12];
        field[0] = first;
        field
    };
    let mut largest = [0; 12];
    (largest[0], largest[4]) = (0x80, 0x7f);
    for (field, what) in [
        (huge(0xff), "the size in the header of a tar member is not possible"),
        (huge(0x80), "the size in the header of a tar member is not possible"),
        (largest, "tar is truncated: 9151314442816845824 bytes of a member are missing"),
    ] {
        let archive = Archive::default().file("first", TEXT).0;
        let error = fault(&[archive, with(field)].concat());
        assert!(error.what().starts_with(&what[..30]), "{error}");
    }
    for record in ["12 size=693\n", "14 size=00693\n"] {
        let archive = Archive::default().kind("pax", b'x', record.as_bytes()).block(block("a", b'0', 7)).data(TEXT);
        assert_eq!(all(&archive.finish()).expect("good data"), [named("a", TEXT)]);
    }
    let too_large = Archive::default().kind("pax", b'x', b"28 size=9223372036854775808\n").file("a", TEXT).finish();
    assert_eq!(fault(&too_large).what(), "the size in a pax header is not possible");
}

#[test]
fn extensions_of_members_count_once_or_for_all() {
    let archive = Archive::default()
        .kind("pax_global_header", b'g', b"16 comment=abcd\n16 path=for all\n")
        .kind("x", b'x', b"16 path=for one\n")
        .file("one", b"1")
        .file("two", b"2")
        .kind("x", b'x', b"8 path=\n")
        .file("three", b"3")
        .kind("g", b'g', b"8 path=\n")
        .kind("././@LongLink", b'L', b"four, and long\0")
        .kind("././@LongLink", b'K', b"nowhere\0")
        .file("four", b"4")
        .file("five", b"5");
    let names: Vec<_> =
        all(&archive.clone().finish()).expect("good").into_iter().filter_map(|(name, _)| name).collect();
    assert_eq!(names, ["for one", "for all", "three", "four, and long", "five"]);

    let orphan = archive.kind("././@LongLink", b'L', b"of nothing\0").finish();
    assert_eq!(fault(&orphan).what(), "a tar header describes the next member, but there is none");
    let too_much = Archive::default().kind("x", b'x', &vec![b'x'; (1 << 20) + 1]).file("a", b"").finish();
    let error = fault(&too_much);
    assert_eq!(error.what(), "a tar header has 1048577 bytes about the next member, more than the 1048576 allowed");
    let malformed = Archive::default().kind("x", b'x', b"99 path=a\n").file("a", b"").finish();
    let error = fault(&malformed);
    assert_eq!((error.what(), error.location().byte), ("a record of a pax header is malformed", Some(512)));
}

#[test]
fn damaged_headers_are_found() {
    let good = Archive::default().file("a", TEXT).file("b", TEXT).finish();
    let mut bad = good.clone();
    bad[1536 + 100] ^= 1;
    let error = fault(&bad);
    assert!(error.what().starts_with("wrong checksum of a tar header: its bytes give "), "{error}");
    assert_eq!(error.location().byte, Some(1536));
    let error = unpack(&gzip(&bad), usize::MAX, UnpackOptions::default()).expect_err("the same");
    assert_eq!(error.cause_text(), Some("at byte 1536 of the tar inside"));

    let garbage = Archive::default().file("a", TEXT).data(b"garbage, that is no header").finish();
    let error = fault(&garbage);
    assert_eq!(error.what(), "neither a member nor the end of the tar begins here");
    assert_eq!(error.offending_text(), Some("garbage, that is"));

    // Sums of signed bytes are right too.
    let mut signed = block("ü", b'0', 1);
    signed[148..156].fill(b' ');
    let sum: i64 = signed.iter().map(|&byte| i64::from(byte.cast_signed())).sum();
    signed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let signed = Archive::default().block(signed).data(b"1").finish();
    assert_eq!(all(&signed).expect("an old sum"), [named("ü", b"1")]);
}

#[test]
fn every_flipped_bit_of_a_header_is_found() {
    let good = Archive::default().kind("x", b'x', b"10 path=a\n").file("b", TEXT).file("c", b"c").finish();
    let read = all(&good).expect("good data");
    let headers = [0..BLOCK, 1024..1536, 2560..3072];
    for index in headers.into_iter().flatten() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[index] ^= 1 << bit;
            match unpack(&bad, usize::MAX, expecting("tar")) {
                // The sum itself has more than one form.
                Ok(contents) => assert!(contents == read && (148..156).contains(&(index % BLOCK)), "{index} {bit}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Data, "{error}"),
            }
        }
    }
}

#[test]
fn what_is_packed_is_known_by_its_head() {
    let archive = Archive::default().file("a", TEXT).finish();
    let empty = Archive::default().finish();
    for (data, expected, packed) in [
        (archive.as_slice(), None, true),
        (&archive, Some("gzip"), true),
        (&gzip(TEXT), None, true),
        (b"PK\x03\x04", None, true),
        (&empty, Some("tar"), true),
        (&empty, None, false),
        (TEXT, Some("tar"), false),
        (b"", Some("tar"), false),
        (b"PAR1", None, false),
    ] {
        let head = &data[..data.len().min(crate::PACKED_HEAD)];
        assert_eq!(crate::is_packed(head, expected), packed, "{expected:?}");
    }
}

#[test]
fn what_is_no_tar_is_text() {
    let mut wrong_sum = block("a.csv", b'0', 3);
    wrong_sum[0] = b'b';
    let no_tar = Archive::default().block(wrong_sum).data(b"abc").finish();
    let marked = [&[b'0'; 257] as &[u8], b"ustar", &[b'0'; 600]].concat();
    for text in [&no_tar, &marked] {
        for chunk in [1, 100, usize::MAX] {
            for data in [text.clone(), gzip(text)] {
                let read = unpack(&data, chunk, UnpackOptions::default()).expect("text");
                assert!(read == [(None, text.clone())], "it is taken for a tar");
            }
        }
    }
    // A name that promises a tar, and bytes that are neither that nor text.
    for (data, expected) in [(no_tar.clone(), "tar"), (gzip(&no_tar), "tar.gz")] {
        for chunk in [1, usize::MAX] {
            let error = unpack(&data, chunk, expecting(expected)).expect_err("no tar");
            assert_eq!(error.what(), format!("the data is not {expected}, as its name promises, nor is it text"));
        }
    }
    // Text is taken as it is, also under such a name.
    for text in [TEXT, b"id,name\n1,a\n"] {
        assert_eq!(unpack(text, 5, expecting("tar")).expect("text"), [(None, text.to_vec())]);
        assert_eq!(unpack(&gzip(text), 5, expecting("tar.gz")).expect("text"), [(None, text.to_vec())]);
    }
    // v7 has no magic, and an empty archive has no content: only the name shows the format.
    let empty = Archive::default().finish();
    assert_eq!(all(&empty).expect("zeros"), [(None, empty.clone())]);
    for chunk in [1, usize::MAX] {
        assert_eq!(unpack(&empty, chunk, expecting("tar")).expect("no members"), []);
        assert_eq!(unpack(&gzip(&empty), chunk, expecting("tar.gz")).expect("no members"), []);
    }
    let error = unpack(&gzip(b""), 9, expecting("tar.gz")).expect_err("nothing is no tar");
    assert_eq!(error.what(), "the data unpacks to nothing, but the file's name promises a tar");
    // Some servers decompress unasked.
    let archive = Archive::default().file("MZ", TEXT).finish();
    assert_eq!(unpack(&archive, 9, expecting("tar.gz")).expect("a tar"), [named("MZ", TEXT)]);
    assert_eq!(unpack(&gzip(&archive), 9, expecting("tar")).expect("a tar"), [named("MZ", TEXT)]);
}

#[test]
fn nothing_but_zeros_follows_the_end() {
    let archive = Archive::default().file("a", TEXT).finish();
    for zeros in [0, 1, 511, 512, 9000] {
        let padded = [archive.as_slice(), &vec![0; zeros]].concat();
        assert_eq!(unpack(&padded, 300, UnpackOptions::default()).expect("zeros"), [named("a", TEXT)]);
    }
    let one_block = &archive[..archive.len() - BLOCK];
    assert_eq!(all(one_block).expect("one block of zeros"), [named("a", TEXT)]);
    for more in [b"x".as_slice(), &archive] {
        let error = fault(&[&archive, more].concat());
        assert_eq!(
            (error.what(), error.location().byte),
            ("data after the end of the tar", Some(archive.len() as u64))
        );
    }
}

#[test]
fn members_are_decoded() {
    let zstd = zstd::encode_all(TEXT, 1).expect("memory");
    let archive = Archive::default().file("a.gz", &gzip(TEXT)).file("b.zst", &zstd).file("c", b"").file("d", b"d");
    let expected = [named("a.gz", TEXT), named("b.zst", TEXT), named("c", b""), named("d", b"d")];
    for chunk in [1, 50, usize::MAX] {
        for data in [archive.clone().finish(), gzip(&archive.clone().finish())] {
            assert_eq!(unpack(&data, chunk, UnpackOptions::default()).expect("good data"), expected);
        }
    }
    let packed = gzip(TEXT);
    let error = fault(&Archive::default().file("a.gz", &packed[..packed.len() - 5]).finish());
    assert_eq!(error.what(), "gzip is truncated: 5 of the 8 bytes of the trailer are missing");
    assert_eq!(error.location().member.as_deref(), Some("a.gz"));
    assert_eq!(error.location().byte, Some((512 + packed.len() - 5) as u64), "the unit's byte, not the member's");

    let inner = Archive::default().file("inner", TEXT).finish();
    for inner in [inner.clone(), gzip(&inner)] {
        let error = fault(&Archive::default().file("in.tar", &inner).finish());
        assert_eq!(error.what(), "a member of the archive is itself a tar archive");
        assert_eq!(error.location().member.as_deref(), Some("in.tar"));
    }
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("in.tar", zip::write::SimpleFileOptions::default()).expect("memory");
    zip.write_all(&inner).expect("memory");
    let zip = zip.finish().expect("memory").into_inner();
    assert_eq!(all(&zip).expect_err("a tar in a zip").what(), "a member of the archive is itself a tar archive");
    assert_eq!(
        all(&Archive::default().file("in.zip", &zip).finish()).expect_err("a zip in a tar").what(),
        "a member of the archive is itself a zip archive"
    );
}

#[test]
fn members_have_a_limit() {
    let archive = (0..20).fold(Archive::default(), |archive, index| archive.file(&format!("{index}"), b"x")).finish();
    let limited =
        |members| UnpackOptions { limits: Limits { members, ..Limits::default() }, ..UnpackOptions::default() };
    assert_eq!(unpack(&archive, 100, limited(20)).expect("20 members").len(), 20);
    let error = unpack(&archive, 100, limited(19)).expect_err("one too many");
    assert_eq!(error.what(), "the archive has more than 19 members");
}

#[test]
fn bombs_are_stopped() {
    let zeros = vec![0; 80 << 20];
    // A member that is not selected still has to be unpacked.
    let wide = gzip(&Archive::default().file("bomb", &zeros).file("a", TEXT).finish());
    for options in [UnpackOptions::default(), members(&["a"])] {
        let error = unpack(&wide, 10_000, options).expect_err("a bomb");
        assert_eq!(error.what(), "the data unpacks to more than 400 times its size: it may be a bomb");
        assert_eq!(error.location().member.as_deref(), Some("bomb"));
    }
    // The unit as a whole is honest, one member is not.
    let honest = some_text(2_000_000);
    let archive = Archive::default().file("honest", &honest).file("bomb.gz", &gzip(&zeros)).finish();
    for data in [archive.clone(), gzip(&archive)] {
        let error = all(&data).expect_err("a bomb");
        assert!(error.what().contains("may be a bomb"), "{error}");
        assert_eq!(error.location().member.as_deref(), Some("bomb.gz"));
    }
    assert_eq!(unpack(&archive, 1 << 16, members(&["honest"])).expect("not wanted")[0].1.len(), honest.len());
    let limited = UnpackOptions {
        limits: Limits { bytes: Some(millstream_core::spec::Size(1_999_999)), ..Limits::default() },
        ..UnpackOptions::default()
    };
    let error = unpack(&archive, 1 << 16, limited).expect_err("one too many");
    assert_eq!(error.what(), "the unit unpacks to more than 1999999 bytes");
}

#[test]
fn archives_of_a_reference_are_read() {
    use proptest::prelude::*;
    let text =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..2000), (500..530usize).prop_map(|size| vec![b'x'; size])];
    let member = (text, 1..300usize, 0..6u8);
    let inputs = (prop::collection::vec(member, 0..6), 1..1500usize, any::<bool>(), any::<prop::sample::Index>());
    let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
    type Parts = Vec<(Vec<u8>, usize, u8)>;
    let run = |(parts, chunk, is_gnu, cut): (Parts, usize, bool, prop::sample::Index)| {
        let mut expected = Vec::new();
        let mut writer = tar::Builder::new(Vec::new());
        for (index, (text, length, kind)) in parts.iter().enumerate() {
            let mut header = if is_gnu { tar::Header::new_gnu() } else { tar::Header::new_ustar() };
            header.set_mode(0o644);
            // A first line keeps random bytes from looking like another codec.
            let text = [b"line\n".as_slice(), text].concat();
            let name = format!("{}/{index}.txt", "n".repeat(if is_gnu { *length } else { length % 90 + 1 }));
            match kind {
                0 => header.set_entry_type(tar::EntryType::Directory),
                1 => header.set_entry_type(tar::EntryType::Symlink),
                2 => writer.append_pax_extensions([("comment", text.as_slice())]).expect("memory"),
                _ => {}
            }
            if *kind < 2 {
                header.set_size(0);
                writer.append_data(&mut header, &name, std::io::empty()).expect("memory");
                continue;
            }
            header.set_size(text.len() as u64);
            writer.append_data(&mut header, &name, text.as_slice()).expect("memory");
            expected.push(named(&name, &text));
        }
        let archive = writer.into_inner().expect("memory");
        prop_assert_eq!(&unpack(&archive, chunk, expecting("tar")).expect("a reference's archive"), &expected);
        prop_assert_eq!(&unpack(&gzip(&archive), chunk, expecting("tar.gz")).expect("packed"), &expected);
        // Cut anywhere: an error, or all of it.
        let cut = &archive[..cut.index(archive.len())];
        match unpack(cut, chunk, expecting("tar")) {
            Ok(contents) => prop_assert_eq!(&contents, &expected),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Data),
        }
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

//! Any bytes as a unit, cut in two ways: the same output, bounded memory, no panic.

use bytes::Bytes;
use millstream_codec::{Limits, Unpack, UnpackOptions, Unpacked};
use millstream_core::spec::Size;
use millstream_core::{Error, ErrorKind};

use crate::memory;

/// The most text that is read from a unit.
const TEXT_LIMIT: u64 = 1 << 20;

/// The most memory that unpacking may hold, without the text that is collected here: bzip2's blocks (4 MB), a few
/// pieces of text (512 KiB), facts about members.
const MEMORY_LIMIT: usize = 16 << 20;

/// The contents, and how unpacking ended.
pub type Outcome = (Vec<(Option<String>, Vec<u8>)>, Result<(), Error>);

/// Unpacks `data`, fed in chunks of the sizes that `chunk` gives.
pub fn unpack(data: &[u8], expected: Option<&'static str>, mut chunk: impl FnMut() -> usize) -> Outcome {
    let limits = Limits { bytes: Some(Size(TEXT_LIMIT)), members: 100, ..Limits::default() };
    let mut unpack = Unpack::new(UnpackOptions { limits, expected, ..UnpackOptions::default() });
    let mut contents = Vec::new();
    let mut rest = data;
    let mut position = 0;
    let mut inside = false;
    loop {
        let step = unpack.next();
        assert!(unpack.compressed_position() >= position, "the position went back");
        position = unpack.compressed_position();
        assert!(position <= (data.len() - rest.len()) as u64, "more was used than fed");
        match step {
            Ok(Unpacked::Hungry) if rest.is_empty() => unpack.end(),
            Ok(Unpacked::Hungry) => {
                let (now, later) = rest.split_at(chunk().clamp(1, rest.len()));
                unpack.feed(Bytes::copy_from_slice(now));
                rest = later;
            }
            Ok(Unpacked::Begin { member }) => {
                assert!(!std::mem::replace(&mut inside, true), "a content inside of another");
                contents.push((member, Vec::new()));
            }
            Ok(Unpacked::Text(text)) => {
                assert!(inside && !text.is_empty() && text.len() <= 512 * 1024);
                contents.last_mut().expect("a content has begun").1.extend_from_slice(&text);
            }
            Ok(Unpacked::End) => assert!(std::mem::replace(&mut inside, false), "an end without a beginning"),
            Ok(Unpacked::Done) => {
                assert!(!inside && position == data.len() as u64, "done before the end");
                return (contents, Ok(()));
            }
            Err(error) => {
                check_error(&error, data);
                return (contents, Err(error));
            }
        }
    }
}

fn check_error(error: &Error, data: &[u8]) {
    assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Refused), "{error:?}");
    assert!(error.location().byte.is_none_or(|byte| byte <= data.len() as u64), "{error:?} in {} bytes", data.len());
    assert!(!error.to_string().contains(|c: char| c.is_control()), "{error:?}");
}

/// Whether a limit ended it. How much was unpacked by then depends on the chunks.
fn is_limit(outcome: &Outcome) -> bool {
    outcome.1.as_ref().is_err_and(|error| error.kind() == ErrorKind::Refused)
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let mut state = crc32fast::hash(data);
    let names = ["gzip", "zstd", "bzip2", "xz", "zip", "tar", "tar.gz", "tar.zst"];
    let expected = names.get(state as usize % (names.len() + 2)).copied();
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly small, sometimes large.
        (state >> 8) as usize % (1 << (1 + (state >> 4) % 13))
    };
    let (whole, memory) = memory::peak_of(|| unpack(data, expected, || usize::MAX));
    let collected: usize = whole.0.iter().map(|(_, text)| text.capacity()).sum();
    let allowed = MEMORY_LIMIT + 3 * collected + 4 * data.len();
    assert!(memory <= allowed, "{memory} bytes of memory for {} bytes of data", data.len());
    let in_parts = unpack(data, expected, &mut random);
    compare(&whole, &in_parts);
}

fn compare(whole: &Outcome, in_parts: &Outcome) {
    match (&whole.1, &in_parts.1) {
        (Ok(()), Ok(())) => assert_eq!(whole.0, in_parts.0, "the chunks change the text"),
        (Err(one), Err(other)) => {
            // Either the fault of the archive or that of a member's own codec may be found first.
            let in_member = one.location().member.is_some() || other.location().member.is_some();
            // The same holds for a tar that is compressed as a whole.
            let of_tar = |error: &Error| error.to_string().contains("tar");
            let in_tar = of_tar(one) || of_tar(other);
            // In a damaged block that is cut short, which fault libbz2 finds first depends on the pieces.
            let of_bzip2 = |error: &Error| error.what().contains("bzip2");
            let in_bzip2 = of_bzip2(one) && of_bzip2(other);
            if !in_member && !in_tar && !in_bzip2 && !is_limit(whole) && !is_limit(in_parts) {
                assert_eq!(one.what(), other.what(), "the chunks change the error");
            }
            for ((one_name, one), (other_name, other)) in whole.0.iter().zip(&in_parts.0) {
                let common = one.len().min(other.len());
                assert!(one_name == other_name && one[..common] == other[..common], "the chunks change the text");
            }
        }
        (one, other) => panic!("the chunks decide whether it is accepted: {one:?}, {other:?}"),
    }
}

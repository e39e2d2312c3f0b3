//! Frames give the same with and without helpers, for all kinds of helpers and data.

use std::io::Write;
use std::sync::Arc;

use millstream_core::helpers::{HelperPool, NoHelpers};
use proptest::prelude::*;

use super::ahead::TAKEN;
use crate::Limits;
use crate::conformance::some_text;
use crate::test_helpers::{Helpers, Outcome, same, unpack_with};

/// One frame: with or without a checksum, and with or without the size of its text.
fn frame(text: &[u8], checksum: bool, sized: bool) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("a level");
    encoder.include_checksum(checksum).expect("a setting");
    if sized {
        encoder.set_pledged_src_size(Some(text.len() as u64)).expect("a setting");
    }
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

fn skippable(length: usize) -> Vec<u8> {
    [&[0x53, 0x2a, 0x4d, 0x18][..], &(length as u32).to_le_bytes(), &vec![7; length]].concat()
}

fn unpack(data: &[u8], chunk: usize, helpers: Arc<dyn HelperPool>) -> Outcome {
    unpack_with("zstd", data, chunk, helpers, Limits::default())
}

#[test]
fn frames_are_taken_from_every_kind_of_helper() {
    let text = some_text(3_000_000);
    for (checksum, sized) in [(true, true), (true, false), (false, true), (false, false)] {
        let frames = text.chunks(300_000).map(|text| frame(text, checksum, sized));
        let data: Vec<u8> = frames.flat_map(|frame| [skippable(5), frame].concat()).collect();
        for kind in 0..6 {
            for chunk in [usize::MAX, 50_000, 3001] {
                TAKEN.set(0);
                let (given, error) = unpack(&data, chunk, Helpers::of_kind(kind));
                assert!(error.is_none() && given == text, "{error:?}");
                // Helpers that come at once are always in time; threads may not be.
                assert!(kind != 0 || TAKEN.get() >= 5, "{} taken", TAKEN.get());
                assert!(kind != 1 || TAKEN.get() == 0);
            }
        }
    }
}

#[test]
fn what_is_too_large_is_left_to_the_owner() {
    let text = vec![b'x'; 20 << 20];
    let data = [frame(b"first", true, true), frame(&text, true, true)].concat();
    TAKEN.set(0);
    let (given, error) = unpack(&data, usize::MAX, Helpers::of_kind(0));
    assert!(error.is_none() && given.len() == text.len() + 5 && TAKEN.get() == 0);
}

proptest! {
    #[test]
    fn whatever_is_wrong_is_the_same(
        lengths in prop::collection::vec(0..200_000_usize, 1..8),
        checksum in any::<bool>(),
        sized in any::<bool>(),
        skipped in prop::collection::vec(0..3000_usize, 0..3),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
        kind in 0..6_usize,
        chunk in prop::sample::select(vec![usize::MAX, 70_000, 1001]),
    ) {
        let text = some_text(200_000);
        let mut data = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            data.extend(frame(&text[..*length], checksum, sized));
            data.extend(skipped.get(index).map(|length| skippable(*length)).unwrap_or_default());
        }
        for (index, flip) in flips {
            let at = index.index(data.len());
            data[at] ^= flip;
        }
        if let Some(cut) = cut {
            data.truncate(cut.index(data.len()));
        }
        let alone = unpack(&data, chunk, Arc::new(NoHelpers));
        same(&unpack(&data, chunk, Helpers::of_kind(kind)), &alone)?;
    }
}

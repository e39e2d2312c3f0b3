//! A unit gives the same with and without helpers, for all kinds of helpers and data.

use std::io::Write;
use std::sync::Arc;

use flate2::{Compression, write::GzEncoder};
use millstream_core::ErrorKind;
use millstream_core::helpers::{HelperPool, NoHelpers};
use proptest::prelude::*;

use crate::ahead::{JUMPS, Sizes, TEST_SIZES};
use crate::conformance::some_text;
use crate::test_helpers::{Helpers, Outcome, same, unpack_with};
use crate::{Limits, Unpack, UnpackOptions, Unpacked};

/// Sizes for which a small unit is large.
fn small_sizes(gap: usize, most: usize) {
    TEST_SIZES.set(Some(Sizes { gap, least: gap / 4 + 1, text: gap * 4, most }));
    JUMPS.set((0, 0));
}

fn member(text: &[u8], level: u32, flush_every: usize) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::new(level));
    for part in text.chunks(flush_every) {
        writer.write_all(part).expect("memory");
        writer.flush().expect("memory");
    }
    writer.finish().expect("memory")
}

fn gzip(text: &[u8]) -> Vec<u8> {
    member(text, 6, usize::MAX)
}

fn unpack(data: &[u8], chunk: usize, helpers: Arc<dyn HelperPool>, limits: Limits) -> Outcome {
    unpack_with("gzip", data, chunk, helpers, limits)
}

fn alone(data: &[u8]) -> Outcome {
    unpack(data, 1 << 16, Arc::new(NoHelpers), Limits::default())
}

#[test]
fn one_large_member_is_jumped_over_by_every_kind_of_helper() {
    let text = some_text(4_000_000);
    // Level 1 of zlib-rs has fixed codes only, in one block, of which no beginning is found.
    // The other blocks are of 170 kB, unless they are flushed.
    for (level, flush, gap) in [(2, 60_000, 40_000), (6, usize::MAX, 250_000), (9, 100_000, 40_000)] {
        let data = member(&text, level, flush);
        for kind in 0..6 {
            for chunk in [usize::MAX, 50_000, 3001] {
                small_sizes(gap, 1 << 20);
                let (given, error) = unpack(&data, chunk, Helpers::of_kind(kind), Limits::default());
                assert!(error.is_none() && given == text, "{error:?}");
                // Helpers that come at once are always in time; threads may not be.
                assert!(kind != 0 || JUMPS.get().0 >= 2, "{:?} jumps at level {level}", JUMPS.get());
                assert!(kind != 1 || JUMPS.get() == (0, 0));
            }
        }
    }
}

#[test]
fn many_members_are_jumped_over_whole() {
    let text = some_text(2_000_000);
    let data: Vec<u8> = text.chunks(20_000).flat_map(gzip).collect();
    for kind in 0..6 {
        small_sizes(40_000, 1 << 20);
        let (given, error) = unpack(&data, 30_000, Helpers::of_kind(kind), Limits::default());
        assert!(error.is_none() && given == text, "{error:?}");
        assert!(kind != 0 || JUMPS.get().1 >= 20, "{:?} jumps", JUMPS.get());
    }
}

#[test]
fn what_helpers_hold_is_bounded() {
    // A bomb: a thousand times its size, decoded ahead.
    let data = gzip(&vec![b'x'; 60 << 20]);
    TEST_SIZES.set(None);
    let mut unpack = Unpack::new(UnpackOptions::default()).with_helpers(Arc::new(Helpers::AtOnce));
    unpack.feed(data.into());
    let (mut held, mut length) = (0, 0);
    loop {
        match unpack.next().expect("good data") {
            Unpacked::Hungry => unpack.end(),
            Unpacked::Text(piece) => length += piece.len(),
            Unpacked::Done => break,
            _ => {}
        }
        held = held.max(unpack.held());
    }
    assert_eq!(length, 60 << 20);
    assert!(held <= 16 * 2 * (4 << 20), "{held} bytes");
}

#[test]
fn limits_hold_with_helpers() {
    let text = some_text(2_000_000);
    let data = member(&text, 6, 50_000);
    small_sizes(40_000, 1 << 20);
    let limits = Limits { bytes: Some(millstream_core::spec::Size(1_500_000)), ..Limits::default() };
    let (given, error) = unpack(&data, usize::MAX, Helpers::of_kind(0), limits);
    let error = error.expect("too much");
    assert_eq!((error.kind(), error.what()), (ErrorKind::Refused, "the unit unpacks to more than 1500000 bytes"));
    assert!(given.len() <= 1_500_000 && JUMPS.get().0 > 0);
}

#[test]
fn a_unit_that_is_left_leaves_no_helper_at_work() {
    let data = member(&some_text(3_000_000), 6, 50_000);
    for kind in 0..6 {
        small_sizes(40_000, 1 << 20);
        let mut unpack = Unpack::new(UnpackOptions::default()).with_helpers(Helpers::of_kind(kind));
        unpack.feed(data.clone().into());
        for _ in 0..3 {
            unpack.next().expect("good data");
        }
    }
}

#[test]
fn gzip_inside_of_gzip_is_not_mistaken_for_a_member() {
    // Members that lie in a stored block look like members, and are none.
    let inner: Vec<u8> = (0..40).flat_map(|index| gzip(&some_text(9_000 + index))).collect();
    let data = [member(&inner, 0, usize::MAX), gzip(&some_text(300_000)), member(&inner, 0, 30_000)].concat();
    for kind in 0..6 {
        small_sizes(9_000, 1 << 20);
        let helped = unpack(&data, 10_000, Helpers::of_kind(kind), Limits::default());
        assert_eq!(helped.1.as_ref().map(ToString::to_string), None);
        same(&alone(&data), &helped).expect("the same");
    }
}

#[test]
fn the_text_is_the_same_with_any_content_and_any_helpers() {
    let part = (0..60_000usize, 0..10u32, 200..40_000usize, 0..3u32);
    let parts = prop::collection::vec(part, 1..8);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 0..3);
    let cut = prop::option::of(any::<prop::sample::Index>());
    let inputs = (parts, changes, cut, 0..6usize, 1000..30_000usize, (100..9_000usize, 500..60_000usize));
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let run =
        |(parts, changes, cut, kind, chunk, (gap, most)): (Vec<_>, Vec<(prop::sample::Index, u32)>, _, _, _, _)| {
            let mut data = Vec::new();
            for (length, level, flush, repeat) in parts {
                let text: Vec<u8> = some_text(length + 5).repeat(1 + repeat as usize);
                data.extend(member(&text[5..], level, flush));
            }
            for (index, bit) in changes {
                let at = index.index(data.len());
                data[at] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                let cut: prop::sample::Index = cut;
                data.truncate(2 + cut.index(data.len()));
            }
            small_sizes(gap, most);
            same(&alone(&data), &unpack(&data, chunk, Helpers::of_kind(kind), Limits::default()))
        };
    proptest::test_runner::TestRunner::new(config).run(&inputs, run).expect("all cases");
}

//! The decoder against zlib: every kind of block, every cut, damage; and the resolution of markers.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use proptest::prelude::*;

use super::find::find_block;
use super::marker::markers;
use super::{InflateFault, Inflater, Resolver, Stop, WINDOW};
use crate::conformance::some_text;

/// Deflate data of `text`: at `level`, flushed as `flush` says after every `every` bytes.
fn deflate(text: &[u8], level: u32, every: usize, flush: FlushCompress) -> Vec<u8> {
    let mut state = Compress::new(Compression::new(level), false);
    let mut data = Vec::new();
    for part in text.chunks(every.max(1)) {
        compress(&mut state, part, &mut data, flush);
    }
    compress(&mut state, b"", &mut data, FlushCompress::Finish);
    data
}

fn compress(state: &mut Compress, mut text: &[u8], data: &mut Vec<u8>, flush: FlushCompress) {
    loop {
        data.reserve(1 << 16);
        let (room, before) = (data.capacity() - data.len(), state.total_in());
        let length = data.len();
        let status = state.compress_vec(text, data, flush).expect("it compresses");
        text = &text[(state.total_in() - before) as usize..];
        if status == Status::StreamEnd || (data.len() - length < room && text.is_empty()) {
            return;
        }
    }
}

/// Decodes `data` with zlib: the text, and how many bytes were used; `None` if the data is wrong or cut.
fn reference(data: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut state = Decompress::new(false);
    let mut text = Vec::new();
    loop {
        text.reserve(1 << 16);
        let (used, length) = (state.total_in() as usize, text.len());
        match state.decompress_vec(&data[used..], &mut text, FlushDecompress::None) {
            Ok(Status::StreamEnd) => return Some((text, state.total_in() as usize)),
            Ok(_) if state.total_in() as usize == used && text.len() == length => return None,
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

/// How a stream ended: its text, how many bytes were used, and the fault with the bit where it lies.
type Outcome = (Vec<u8>, usize, Option<(Option<InflateFault>, u64)>);

/// Decodes `data`, given in chunks and with room as `next` says.
fn inflate(data: &[u8], mut next: impl FnMut() -> usize, by_block: bool) -> Outcome {
    let mut inflater = Inflater::<u8>::new();
    inflater.begin();
    let (mut text, mut at) = (Vec::new(), 0);
    let mut end = next().min(data.len());
    loop {
        let room = next();
        let length = text.len();
        match inflater.decode(&data[at..end], &mut text, room, by_block) {
            Ok((used, stop)) => {
                at += used;
                assert!(text.len() - length <= room);
                match stop {
                    Stop::End => return (text, at, None),
                    Stop::Input => {
                        assert_eq!(at, end, "input is left");
                        if end == data.len() {
                            return (text, at, Some((None, at as u64 * 8)));
                        }
                        end = (end + next().max(1)).min(data.len());
                    }
                    Stop::Room => assert_eq!(text.len() - length, room, "the room is not full"),
                    Stop::Block => assert!(by_block),
                }
                if matches!(stop, Stop::Block | Stop::End) {
                    assert!(inflater.bits_left() < 8, "a byte was taken that is not needed");
                }
            }
            Err((used, fault)) => {
                at += used;
                let bit = at as u64 * 8 - u64::from(inflater.bits_left());
                let again = inflater.decode(&data[at..end], &mut text, 100, by_block);
                assert_eq!(again, Err((0, fault)), "the fault goes away");
                return (text, at, Some((Some(fault), bit)));
            }
        }
    }
}

fn whole(data: &[u8]) -> Outcome {
    inflate(data, || 1 << 30 >> 4, false)
}

/// Any numbers below `limit`.
fn numbers(seed: u32, limit: usize) -> impl FnMut() -> usize {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % limit
    }
}

/// Text that compresses well, badly, or not at all.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::collection::vec((0..40usize, 1..300usize), 0..200).prop_map(|words| {
        words.into_iter().fold(Vec::new(), |mut text, (kind, length)| {
            match kind {
                0..10 => text.extend(some_text(length + kind * 7)),
                10..20 => text.extend(vec![kind as u8; length * 5]),
                20..30 => {
                    let back = text.len().saturating_sub(length * kind * 7);
                    let again = text[back..].iter().copied().take(length).collect::<Vec<_>>();
                    text.extend(again);
                }
                _ => text.extend((0..length).map(|index| (index * index * kind / 3) as u8)),
            }
            text
        })
    });
    let noise = prop::collection::vec(any::<u8>(), 0..5000);
    prop_oneof![4 => words, 1 => noise]
}

fn flushes() -> impl Strategy<Value = (usize, FlushCompress)> {
    let kinds = prop_oneof![Just(FlushCompress::None), Just(FlushCompress::Sync), Just(FlushCompress::Full)];
    (1..20_000usize, kinds)
}

fn check<S: Strategy>(cases: u32, inputs: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config).run(&inputs, test).expect("all cases");
}

#[test]
fn every_level_and_every_cut_gives_the_text() {
    check(
        200,
        (texts(), 0..10u32, flushes(), any::<u32>(), 2..2000usize),
        |(text, level, (every, flush), seed, limit)| {
            let mut data = deflate(&text, level, every, flush);
            let length = data.len();
            data.extend_from_slice(b"what follows");
            let (given, used, fault) = whole(&data);
            prop_assert!(given == text && used == length && fault.is_none(), "{fault:?} at {used} of {length}");
            let (given, used, fault) = inflate(&data, numbers(seed, limit), seed % 2 == 0);
            prop_assert!(given == text && used == length && fault.is_none(), "{fault:?} at {used} of {length}");
            Ok(())
        },
    );
}

#[test]
fn damage_is_found_where_zlib_finds_it_and_at_one_bit() {
    let change = (any::<prop::sample::Index>(), 0..8u32);
    let inputs = (texts(), 0..10u32, flushes(), prop::collection::vec(change, 1..4), any::<u32>(), 2..300usize);
    check(600, inputs, |(text, level, (every, flush), changes, seed, limit)| {
        let mut data = deflate(&text, level, every, flush);
        for (index, bit) in changes {
            let at = index.index(data.len());
            data[at] ^= 1 << bit;
        }
        let one = whole(&data);
        let other = inflate(&data, numbers(seed, limit), seed % 2 == 0);
        prop_assert!(one.0 == other.0, "the cuts change the text");
        prop_assert_eq!(one.2, other.2, "the cuts change the fault");
        match reference(&data) {
            Some((text, used)) => prop_assert!(one.2.is_none() && one.0 == text && one.1 == used),
            None => prop_assert!(one.2.is_some(), "zlib refuses it"),
        }
        Ok(())
    });
}

#[test]
fn any_bytes_are_judged_as_by_zlib() {
    let head = prop_oneof![Just(vec![]), Just(vec![4]), Just(vec![5]), Just(vec![3])];
    check(3000, (head, prop::collection::vec(any::<u8>(), 0..200)), |(mut data, rest)| {
        data.extend(rest);
        let (text, used, fault) = whole(&data);
        match reference(&data) {
            Some(reference) => prop_assert!(fault.is_none() && (text, used) == reference),
            None => prop_assert!(fault.is_some(), "zlib refuses it"),
        }
        Ok(())
    });
}

/// Writes bits, the lowest first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn put(&mut self, value: u32, count: usize) -> &mut Self {
        for bit in 0..count {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.len() - 1;
            self.bytes[last] |= ((value >> bit & 1) as u8) << (self.count % 8);
            self.count += 1;
        }
        self
    }

    fn fault(&self) -> Option<InflateFault> {
        let data = [self.bytes.as_slice(), &[0; 64]].concat();
        assert_eq!(reference(&data), None);
        whole(&data).2.and_then(|(fault, _)| fault)
    }
}

#[test]
fn every_fault_has_its_name() {
    let fault = |fill: &dyn Fn(&mut Bits)| {
        let mut bits = Bits::default();
        fill(&mut bits);
        bits.fault()
    };
    assert_eq!(
        fault(&|bits| {
            bits.put(7, 3);
        }),
        Some(InflateFault::BlockType)
    );
    assert_eq!(
        fault(&|bits| {
            bits.put(1, 8).put(0x1234, 16).put(0x1234, 16);
        }),
        Some(InflateFault::StoredLength)
    );
    assert_eq!(
        fault(&|bits| {
            bits.put(5, 3).put(30, 5).put(0, 9);
        }),
        Some(InflateFault::TooManySymbols)
    );
    assert_eq!(
        fault(&|bits| {
            bits.put(5, 3).put(0, 5).put(30, 5).put(0, 4);
        }),
        Some(InflateFault::TooManySymbols)
    );
    // Three lengths of one bit.
    assert_eq!(
        fault(&|bits| {
            bits.put(5, 3).put(0, 14).put(0o111, 9);
        }),
        Some(InflateFault::LengthCode)
    );
    // The first length repeats one before it: 16 and 17 have one bit each.
    assert_eq!(
        fault(&|bits| {
            bits.put(5, 3).put(0, 14).put(0o0011, 12).put(0, 3);
        }),
        Some(InflateFault::Repeat)
    );
    // Zeros only, so no end: 17 and 18 have one bit each.
    let zeros = |bits: &mut Bits| {
        bits.put(5, 3).put(0, 14).put(0o0110, 12).put(1, 1).put(127, 7).put(1, 1).put(109, 7);
    };
    assert_eq!(fault(&zeros), Some(InflateFault::NoEnd));
    // Fixed codes: the symbol 286, the distance 30, a copy from nowhere.
    let reversed = |value: u32, count: u32| value.reverse_bits() >> (32 - count);
    assert_eq!(
        fault(&|bits| {
            bits.put(3, 3).put(reversed(0b1100_0110, 8), 8);
        }),
        Some(InflateFault::Literal)
    );
    assert_eq!(
        fault(&|bits| {
            bits.put(3, 3).put(reversed(1, 7), 7).put(reversed(30, 5), 5);
        }),
        Some(InflateFault::Distance)
    );
    assert_eq!(
        fault(&|bits| {
            bits.put(3, 3).put(reversed(1, 7), 7).put(0, 5);
        }),
        Some(InflateFault::TooFar)
    );
}

#[test]
fn copies_reach_as_far_as_the_window_and_no_farther() {
    // A copy of 3 from the farthest distance, of fixed codes, after `length` stored bytes.
    let reversed = |value: u32, count: u32| value.reverse_bits() >> (32 - count);
    for (length, right) in [(WINDOW - 1, false), (WINDOW, true), (WINDOW + 1, true), (60_000, true)] {
        let text = some_text(length);
        let mut bits = Bits::default();
        bits.put(0, 8).put(length as u32, 16).put(!(length as u32), 16);
        bits.bytes.extend_from_slice(&text);
        bits.count = bits.bytes.len() * 8;
        bits.put(3, 3).put(reversed(1, 7), 7).put(reversed(29, 5), 5).put(8191, 13).put(0, 7);
        for limit in [1 << 20, 5000] {
            let (given, _, fault) = inflate(&bits.bytes, numbers(1, limit), false);
            assert_eq!(fault.is_none(), right, "{length}");
            if right {
                assert_eq!(given[length..], text[length - WINDOW..][..3]);
            }
        }
    }
}

/// The text of `data` decoded from the block at `bit` on without its window, then with it.
fn from_the_middle(data: &[u8], bit: usize, window: &[u8], next: impl FnMut() -> usize) -> Vec<u8> {
    let mut next = next;
    let mut inflater = Inflater::<u16>::new();
    inflater.begin_after(&markers());
    inflater.begin_in_byte(data[bit / 8], (bit % 8) as u32);
    let mut at = bit / 8 + 1;
    let mut symbols = Vec::new();
    let resolver = Resolver::new(window);
    let mut text = Vec::new();
    for _ in 0..10 {
        let (used, _) = inflater.decode(&data[at..], &mut symbols, next(), false).expect("good data");
        at += used;
    }
    resolver.resolve(&symbols, &mut text);
    // From here on with what is known.
    let mut inflater = inflater.resolve(&resolver);
    loop {
        let (used, stop) = inflater.decode(&data[at..], &mut text, next() + 1, false).expect("good data");
        at += used;
        if stop == Stop::End {
            return text;
        }
    }
}

#[test]
fn blocks_are_found_and_markers_become_the_text() {
    // Level 1 of zlib-rs has fixed codes only, in one block.
    for level in [2, 6, 9] {
        let text = some_text(1_500_000);
        let data = deflate(&text, level, usize::MAX, FlushCompress::None);
        // Where the blocks begin, and what came before them.
        let mut inflater = Inflater::<u8>::new();
        let (mut at, mut given, mut blocks) = (0, Vec::new(), Vec::new());
        loop {
            let (used, stop) = inflater.decode(&data[at..], &mut given, 1 << 20, true).expect("good data");
            at += used;
            match stop {
                Stop::End => break,
                Stop::Block => blocks.push((at * 8 - inflater.bits_left() as usize, given.len())),
                _ => {}
            }
        }
        blocks.pop();
        assert!(given == text && blocks.len() > 5, "{} blocks", blocks.len());
        let mut searcher = Inflater::<u16>::new();
        for (index, &(bit, length)) in blocks.iter().enumerate() {
            let before = if index == 0 { 20 } else { blocks[index - 1].0 + 1 };
            assert_eq!(find_block(&mut searcher, &data, before, data.len() * 8), Some(bit), "level {level}");
            if length >= WINDOW {
                for limit in [1 << 18, 5000] {
                    let rest = from_the_middle(&data, bit, &text[..length], numbers(index as u32, limit));
                    assert!(rest == text[length..], "level {level}, block {index}");
                }
            }
        }
    }
}

//! The decoder: states that can be left after any bit, and a fast loop that needs enough input and room.
//!
//! ```text
//!  Header ─┬─▶ StoredLength ─▶ Stored ──────────────┬─▶ Header … End
//!          ├─▶ (fixed codes) ────────▶ Codes ⇄ Copy ┤
//!          └─▶ Counts ─▶ Precode ─▶ Lengths ─▶ ▲    │
//!                                      └───────┘    └ (of the last block)
//! ```
//!
//! Bits wait in a 64-bit word, the next one lowest. In the fast loop the word is refilled without a branch to at least
//! 56 bits, enough for three literals or a copy (at most 48); everything else, all faults included, is left to the
//! careful loop, which takes input by bytes and checks bits before it drops them.

use super::table::{
    self, DISTANCE_BITS, DISTANCE_SIZE, END, INVALID, LITERAL, LITLEN_BITS, LITLEN_SIZE, PRECODE_BITS, PRECODE_SIZE,
    SUBTABLE, Table, UNUSUAL,
};
use super::{InflateFault, Resolver, WINDOW};

/// Symbols that are copied at a time. A copy may write up to `STRIDE - 1` symbols after its end.
const STRIDE: usize = 16;

/// The longest copy.
const LONGEST: usize = 258;

/// Room that the fast loop needs at the beginning of a turn: three symbols, a copy, and what a copy writes after its
/// end.
const FAST_ROOM: usize = 3 + LONGEST + 2 * STRIDE;

/// Input that the fast loop needs at the beginning of a turn: three refills of eight bytes.
const FAST_INPUT: usize = 32;

/// The order in which the lengths of the lengths' own code are sent.
const PRECODE_ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The symbols of the output: bytes, or bytes and markers.
pub(crate) trait Symbol: Copy + Default + Send + 'static {
    /// The symbol of a byte.
    fn byte(byte: u8) -> Self;
}

impl Symbol for u8 {
    #[inline(always)]
    fn byte(byte: u8) -> Self {
        byte
    }
}

impl Symbol for u16 {
    #[inline(always)]
    fn byte(byte: u8) -> Self {
        u16::from(byte)
    }
}

/// Why [`Inflater::decode`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All input is used.
    Input,
    /// The room is full.
    Room,
    /// A block that is not the last has ended. Only with `by_block`.
    Block,
    /// The data has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    StoredLength,
    Stored { left: usize },
    Counts,
    Precode { index: usize },
    Lengths { index: usize },
    Codes,
    Copy { length: usize, distance: usize },
    End,
}

/// Decodes one deflate stream.
pub(crate) struct Inflater<T> {
    state: State,
    /// Bits that were read from the input and not consumed yet, the next one lowest; zeros above them.
    bits: u64,
    /// The number of `bits`: at most 63.
    count: u32,
    last: bool,
    /// The tables are those of the fixed codes.
    fixed: bool,
    litlen_count: usize,
    distance_count: usize,
    precode_count: usize,
    lengths: [u8; 19 + 320],
    tables: Box<Tables>,
    /// The last symbols of the output: at least [`WINDOW`], or all if there are fewer.
    window: Vec<T>,
}

struct Tables {
    litlen: Table<LITLEN_BITS, LITLEN_SIZE>,
    distance: Table<DISTANCE_BITS, DISTANCE_SIZE>,
    precode: Table<PRECODE_BITS, PRECODE_SIZE>,
}

impl<T> std::fmt::Debug for Inflater<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Inflater<u16> {
    /// Turns it into a decoder of bytes, once the window before its beginning is known.
    pub(crate) fn resolve(self, resolver: &Resolver) -> Inflater<u8> {
        let mut window = Vec::with_capacity(self.window.len());
        resolver.resolve(&self.window, &mut window);
        Inflater {
            state: self.state,
            bits: self.bits,
            count: self.count,
            last: self.last,
            fixed: self.fixed,
            litlen_count: self.litlen_count,
            distance_count: self.distance_count,
            precode_count: self.precode_count,
            lengths: self.lengths,
            tables: self.tables,
            window,
        }
    }
}

/// The input and the output of one call.
struct Call<'a, T> {
    input: &'a [u8],
    used: usize,
    /// Where the output begins; valid for `room` symbols, of which `given` are initialised.
    output: *mut T,
    given: usize,
    room: usize,
    ends: std::marker::PhantomData<&'a mut T>,
}

impl<T: Symbol> Call<'_, T> {
    fn put(&mut self, symbol: T) {
        debug_assert!(self.given < self.room);
        if self.given < self.room {
            // SAFETY: inside of the room.
            unsafe { self.output.add(self.given).write(symbol) };
            self.given += 1;
        }
    }

    fn put_all(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.put(T::byte(byte)));
    }

    fn at(&self, index: usize) -> T {
        debug_assert!(index < self.given);
        // SAFETY: the first `given` symbols are initialised.
        if index < self.given { unsafe { self.output.add(index).read() } } else { T::default() }
    }
}

impl<T: Symbol> Inflater<T> {
    /// A decoder at the beginning of a stream.
    pub(crate) fn new() -> Self {
        Inflater {
            state: State::Header,
            bits: 0,
            count: 0,
            last: false,
            fixed: false,
            litlen_count: 0,
            distance_count: 0,
            precode_count: 0,
            lengths: [0; 19 + 320],
            tables: Box::new(Tables { litlen: Table::new(), distance: Table::new(), precode: Table::new() }),
            window: Vec::new(),
        }
    }

    /// Starts a new stream.
    pub(crate) fn begin(&mut self) {
        self.begin_after(&[]);
    }

    /// Starts at a block, after `window`.
    pub(crate) fn begin_after(&mut self, window: &[T]) {
        self.state = State::Header;
        self.bits = 0;
        self.count = 0;
        self.last = false;
        self.window.clear();
        self.window.extend_from_slice(&window[window.len().saturating_sub(WINDOW)..]);
    }

    /// Starts inside of `byte`, after its lowest `dropped` bits. The byte counts as used.
    pub(crate) fn begin_in_byte(&mut self, byte: u8, dropped: u32) {
        self.bits = u64::from(byte) >> dropped;
        self.count = 8 - dropped;
    }

    /// The last symbols: at most [`WINDOW`].
    pub(crate) fn window(&self) -> &[T] {
        &self.window[self.window.len().saturating_sub(WINDOW)..]
    }

    /// How many bits of the used input have not been decoded: fewer than eight at the end and between blocks.
    pub(crate) fn bits_left(&self) -> u32 {
        self.count
    }

    /// Whether codes are next: the header of a block has been read, and was right.
    pub(super) fn in_codes(&self) -> bool {
        self.state == State::Codes
    }

    /// Decodes from `input`, appending at most `room` symbols to `output`; returns how many bytes of the input were
    /// used, and why it stopped. At the end, and between blocks, no byte is used of which no bit was needed. If
    /// `by_block` is set, it also stops between blocks. A fault lies [`Inflater::bits_left`] bits before the end of the
    /// used input. The symbols before it are given, and further calls return the same fault.
    pub(crate) fn decode(
        &mut self,
        input: &[u8],
        output: &mut Vec<T>,
        room: usize,
        by_block: bool,
    ) -> Result<(usize, Stop), (usize, InflateFault)> {
        output.reserve(room);
        let length = output.len();
        let spare = output.spare_capacity_mut();
        let room = room.min(spare.len());
        let ends = std::marker::PhantomData;
        let mut call = Call { input, used: 0, output: spare.as_mut_ptr().cast::<T>(), given: 0, room, ends };
        let stop = self.run(&mut call, by_block);
        let (given, mut used) = (call.given, call.used);
        // SAFETY: `given` symbols behind the end have been initialised; they are within what was reserved.
        unsafe { output.set_len(length + given) };
        if stop != Ok(Stop::Input) {
            let back = ((self.count / 8) as usize).min(used);
            used -= back;
            self.count -= 8 * back as u32;
            self.bits &= (1 << self.count) - 1;
        }
        self.remember(&output[length..]);
        match stop {
            Ok(stop) => Ok((used, stop)),
            Err(fault) => Err((used, fault)),
        }
    }

    /// Keeps the end of `given` as the window.
    fn remember(&mut self, given: &[T]) {
        if given.len() >= WINDOW {
            self.window.clear();
            self.window.extend_from_slice(&given[given.len() - WINDOW..]);
            return;
        }
        if self.window.len() + given.len() > 2 * WINDOW {
            let old = self.window.len() - WINDOW;
            self.window.copy_within(old.., 0);
            self.window.truncate(WINDOW);
        }
        self.window.extend_from_slice(given);
    }

    fn run(&mut self, call: &mut Call<'_, T>, by_block: bool) -> Result<Stop, InflateFault> {
        loop {
            let stop = match self.state {
                State::Header => self.header(call)?,
                State::StoredLength => self.stored_length(call)?,
                State::Stored { left } => self.stored(call, left),
                State::Counts => self.counts(call)?,
                State::Precode { index } => self.precode(call, index)?,
                State::Lengths { index } => self.code_lengths(call, index)?,
                State::Codes => self.codes(call)?,
                State::Copy { length, distance } => self.copy(call, length, distance)?,
                State::End => Some(Stop::End),
            };
            match stop {
                Some(Stop::Block) if !by_block => {}
                Some(stop) => return Ok(stop),
                None => {}
            }
        }
    }

    /// Reads input until there are more than 48 bits, or no input.
    fn refill(&mut self, call: &mut Call<'_, T>) {
        while self.count <= 48 {
            let Some(&byte) = call.input.get(call.used) else { return };
            self.bits |= u64::from(byte) << self.count;
            self.count += 8;
            call.used += 1;
        }
    }

    /// The next `count` bits, if they have arrived.
    fn take(&mut self, call: &mut Call<'_, T>, count: u32) -> Option<u32> {
        if self.count < count {
            self.refill(call);
            if self.count < count {
                return None;
            }
        }
        let value = self.bits & ((1 << count) - 1);
        self.drop_bits(count);
        Some(value as u32)
    }

    fn drop_bits(&mut self, count: u32) {
        self.bits >>= count;
        self.count -= count;
    }

    fn header(&mut self, call: &mut Call<'_, T>) -> Result<Option<Stop>, InflateFault> {
        self.refill(call);
        if self.count < 3 {
            return Ok(Some(Stop::Input));
        }
        match self.bits >> 1 & 3 {
            0 => self.state = State::StoredLength,
            1 => {
                self.fixed_codes()?;
                self.state = State::Codes;
            }
            2 => self.state = State::Counts,
            _ => return Err(InflateFault::BlockType),
        }
        self.last = self.bits & 1 == 1;
        self.drop_bits(3);
        if self.state == State::StoredLength {
            self.drop_bits(self.count % 8);
        }
        Ok(None)
    }

    fn block_ended(&mut self) -> Option<Stop> {
        if self.last {
            self.state = State::End;
            // The rest of the last byte has no meaning.
            self.drop_bits(self.count % 8);
            return None;
        }
        self.state = State::Header;
        Some(Stop::Block)
    }

    fn stored_length(&mut self, call: &mut Call<'_, T>) -> Result<Option<Stop>, InflateFault> {
        self.refill(call);
        if self.count < 32 {
            return Ok(Some(Stop::Input));
        }
        let length = self.bits & 0xffff;
        if length != !(self.bits >> 16) & 0xffff {
            return Err(InflateFault::StoredLength);
        }
        self.drop_bits(32);
        self.state = State::Stored { left: length as usize };
        Ok(None)
    }

    fn stored(&mut self, call: &mut Call<'_, T>, mut left: usize) -> Option<Stop> {
        // Whole bytes may wait among the bits.
        while left > 0 && self.count > 0 && call.given < call.room {
            call.put(T::byte(self.bits as u8));
            self.drop_bits(8);
            left -= 1;
        }
        let rest = &call.input[call.used..];
        let part = left.min(rest.len()).min(call.room - call.given);
        if self.count == 0 {
            call.put_all(&rest[..part]);
            call.used += part;
            left -= part;
        }
        self.state = State::Stored { left };
        if left == 0 {
            self.block_ended()
        } else if call.given == call.room {
            Some(Stop::Room)
        } else {
            Some(Stop::Input)
        }
    }

    fn counts(&mut self, call: &mut Call<'_, T>) -> Result<Option<Stop>, InflateFault> {
        self.refill(call);
        if self.count < 14 {
            return Ok(Some(Stop::Input));
        }
        self.litlen_count = (self.bits & 31) as usize + 257;
        self.distance_count = (self.bits >> 5 & 31) as usize + 1;
        self.precode_count = (self.bits >> 10 & 15) as usize + 4;
        if self.litlen_count > 286 || self.distance_count > 30 {
            return Err(InflateFault::TooManySymbols);
        }
        self.drop_bits(14);
        self.lengths[..19].fill(0);
        self.state = State::Precode { index: 0 };
        Ok(None)
    }

    fn precode(&mut self, call: &mut Call<'_, T>, mut index: usize) -> Result<Option<Stop>, InflateFault> {
        while index < self.precode_count {
            let Some(length) = self.take(call, 3) else {
                self.state = State::Precode { index };
                return Ok(Some(Stop::Input));
            };
            self.lengths[usize::from(PRECODE_ORDER[index])] = length as u8;
            index += 1;
        }
        self.state = State::Precode { index };
        self.tables.precode.build(&self.lengths[..19], &table::PRECODE, InflateFault::LengthCode)?;
        self.state = State::Lengths { index: 0 };
        Ok(None)
    }

    fn code_lengths(&mut self, call: &mut Call<'_, T>, mut index: usize) -> Result<Option<Stop>, InflateFault> {
        let total = self.litlen_count + self.distance_count;
        while index < total {
            self.state = State::Lengths { index };
            if self.count < 14 {
                self.refill(call);
            }
            let entry = self.tables.precode.entries[(self.bits & self.tables.precode.mask) as usize];
            let bits = entry & 0xff;
            let symbol = entry >> 16;
            let extra = match symbol {
                16 => 2,
                17 => 3,
                18 => 7,
                _ => 0,
            };
            if self.count < bits + extra {
                return Ok(Some(Stop::Input));
            }
            if entry & UNUSUAL != 0 {
                return Err(InflateFault::LengthCode);
            }
            let more = (self.bits >> bits) as usize & ((1 << extra) - 1);
            // After the lengths of the lengths' own code.
            let lengths = &mut self.lengths[19..];
            let (value, times) = match symbol {
                16 if index == 0 => return Err(InflateFault::Repeat),
                16 => (lengths[index - 1], 3 + more),
                17 => (0, 3 + more),
                18 => (0, 11 + more),
                length => (length as u8, 1),
            };
            if index + times > total {
                return Err(InflateFault::Repeat);
            }
            lengths[index..index + times].fill(value);
            index += times;
            self.drop_bits(bits + extra);
        }
        self.state = State::Lengths { index };
        let (litlen, distance) = self.lengths[19..19 + total].split_at(self.litlen_count);
        if litlen[256] == 0 {
            return Err(InflateFault::NoEnd);
        }
        self.fixed = false;
        self.tables.litlen.build(litlen, &table::LITLEN, InflateFault::LiteralCode)?;
        self.tables.distance.build(distance, &table::DISTANCE, InflateFault::DistanceCode)?;
        self.state = State::Codes;
        Ok(None)
    }

    fn fixed_codes(&mut self) -> Result<(), InflateFault> {
        if self.fixed {
            return Ok(());
        }
        let mut lengths = [8u8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        self.tables.litlen.build(&lengths, &table::LITLEN, InflateFault::LiteralCode)?;
        self.tables.distance.build(&[5; 32], &table::DISTANCE, InflateFault::DistanceCode)?;
        self.fixed = true;
        Ok(())
    }

    fn codes(&mut self, call: &mut Call<'_, T>) -> Result<Option<Stop>, InflateFault> {
        loop {
            if call.input.len() - call.used >= FAST_INPUT && call.room - call.given >= FAST_ROOM {
                if fast(self, call) {
                    return Ok(self.block_ended());
                }
                if self.state != State::Codes {
                    return Ok(None);
                }
            }
            if call.given == call.room {
                return Ok(Some(Stop::Room));
            }
            self.refill(call);
            let (bits, count) = (self.bits, self.count);
            let Some(entry) = self.code(|tables| (&tables.litlen.entries, tables.litlen.mask), LITLEN_BITS) else {
                return Ok(Some(Stop::Input));
            };
            if entry & LITERAL != 0 {
                call.put(T::byte((entry >> 16) as u8));
                continue;
            }
            if entry & INVALID != 0 {
                (self.bits, self.count) = (bits, count);
                return Err(InflateFault::Literal);
            }
            if entry & END != 0 {
                return Ok(self.block_ended());
            }
            let length = self.with_extra(entry);
            let code = self.code(|tables| (&tables.distance.entries, tables.distance.mask), DISTANCE_BITS);
            let (Some(length), Some(entry)) = (length, code) else {
                (self.bits, self.count) = (bits, count);
                return Ok(Some(Stop::Input));
            };
            if entry & INVALID != 0 {
                (self.bits, self.count) = (bits, count);
                return Err(InflateFault::Distance);
            }
            let Some(distance) = self.with_extra(entry) else {
                (self.bits, self.count) = (bits, count);
                return Ok(Some(Stop::Input));
            };
            if distance > call.given + self.window.len().min(WINDOW) {
                (self.bits, self.count) = (bits, count);
                return Err(InflateFault::TooFar);
            }
            self.state = State::Copy { length, distance };
            return Ok(None);
        }
    }

    /// The entry of the next code, subtables looked up. Its bits are dropped, but not its extra bits. `None` if it has
    /// not arrived whole; then nothing, or only the index of a subtable, is dropped.
    fn code(&mut self, table: impl Fn(&Tables) -> (&[u32], u64), main: u32) -> Option<u32> {
        let (entries, mask) = table(&self.tables);
        let mut entry = entries[(self.bits & mask) as usize];
        let mut before = 0;
        if entry & SUBTABLE != 0 {
            let index = (self.bits >> main) & ((1 << (entry >> 8 & 15)) - 1);
            entry = entries[(entry >> 16) as usize + index as usize];
            before = main;
        }
        let bits = before + (entry >> 8 & 15);
        if self.count < bits {
            return None;
        }
        self.drop_bits(bits);
        Some(entry)
    }

    /// The base of `entry` and its extra bits.
    fn with_extra(&mut self, entry: u32) -> Option<usize> {
        let extra = (entry & 0xff) - (entry >> 8 & 15);
        if self.count < extra {
            return None;
        }
        let value = (entry >> 16) + (self.bits as u32 & ((1 << extra) - 1));
        self.drop_bits(extra);
        Some(value as usize)
    }

    fn copy(&mut self, call: &mut Call<'_, T>, length: usize, distance: usize) -> Result<Option<Stop>, InflateFault> {
        let part = length.min(call.room - call.given);
        for _ in 0..part {
            let symbol = match call.given.checked_sub(distance) {
                Some(index) => call.at(index),
                None => {
                    let back = distance - call.given;
                    let index = self.window.len().checked_sub(back).ok_or(InflateFault::TooFar)?;
                    self.window[index]
                }
            };
            call.put(symbol);
        }
        if part == length {
            self.state = State::Codes;
            return Ok(None);
        }
        self.state = State::Copy { length: length - part, distance };
        Ok(Some(Stop::Room))
    }
}

/// Decodes codes while there is enough input and room. Returns whether the block has ended; if not, the careful loop
/// continues.
fn fast<T: Symbol>(inflater: &mut Inflater<T>, call: &mut Call<'_, T>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi2") && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what it is compiled for.
        return unsafe { fast_bmi2(inflater, call) };
    }
    fast_loop(inflater, call)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
fn fast_bmi2<T: Symbol>(inflater: &mut Inflater<T>, call: &mut Call<'_, T>) -> bool {
    fast_loop(inflater, call)
}

/// Eight bytes at `from`, the first lowest.
///
/// # Safety
/// `from` must be valid for eight bytes.
#[inline(always)]
unsafe fn word(from: *const u8) -> u64 {
    // SAFETY: as promised.
    u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read_unaligned() })
}

#[inline(always)]
fn low_bits(bits: u64, count: u32) -> u64 {
    bits & !(u64::MAX << (count & 63))
}

/// The body of the fast loop, compiled for several processors.
#[inline(always)]
fn fast_loop<T: Symbol>(inflater: &mut Inflater<T>, call: &mut Call<'_, T>) -> bool {
    let tables = &*inflater.tables;
    let litlen = tables.litlen.entries.as_ptr();
    let litlen_mask = tables.litlen.mask;
    let distances = tables.distance.entries.as_ptr();
    let distance_mask = tables.distance.mask;
    let window = &inflater.window[..];
    let reach = window.len().min(WINDOW);
    let first = call.output;
    let mut bits = inflater.bits;
    let mut count = inflater.count;
    let mut ended = false;
    // SAFETY: `input` stays `FAST_INPUT` before the end of the input at the beginning of each turn, which reads at most
    // three words and moves on by as many bytes at most; `output` stays `FAST_ROOM` before the end of the room, and a
    // turn writes at most two literals, a copy, and less than two strides after it. Table indices are within their
    // masks, and subtables within their tables, see `table`. What a copy reads has been initialised: its distance is
    // checked against what was given and the window.
    unsafe {
        let start = call.input.as_ptr();
        let mut input = start.add(call.used);
        let input_end = start.add(call.input.len() - FAST_INPUT);
        let mut output = first.add(call.given);
        let output_end = first.add(call.room - FAST_ROOM);

        macro_rules! refill {
            () => {
                bits |= word(input) << count;
                input = input.add(((63 - count) >> 3) as usize);
                count |= 56;
            };
        }
        macro_rules! consume {
            ($entry:expr) => {
                bits >>= $entry & 63;
                count -= $entry & 63;
            };
        }
        macro_rules! next {
            () => {
                *litlen.add((bits & litlen_mask) as usize)
            };
        }

        while input <= input_end && output <= output_end {
            // A fault is left to the careful loop: it goes back to the beginning of the turn.
            let turn = (bits, count, input, output);
            macro_rules! back_out {
                () => {
                    (bits, count, input, output) = turn;
                    break;
                };
            }
            refill!();
            let mut entry = next!();
            if entry & LITERAL != 0 {
                consume!(entry & 0xff);
                output.write(T::byte((entry >> 16) as u8));
                output = output.add(1);
                entry = next!();
                if entry & LITERAL != 0 {
                    consume!(entry & 0xff);
                    output.write(T::byte((entry >> 16) as u8));
                    output = output.add(1);
                    entry = next!();
                    if entry & LITERAL != 0 {
                        consume!(entry & 0xff);
                        output.write(T::byte((entry >> 16) as u8));
                        output = output.add(1);
                        continue;
                    }
                }
            }
            if entry & UNUSUAL != 0 {
                if entry & SUBTABLE != 0 {
                    let index = low_bits(bits >> LITLEN_BITS, entry >> 8 & 15);
                    consume!(entry & 0xff);
                    entry = *litlen.add((entry >> 16) as usize + index as usize);
                    if entry & LITERAL != 0 {
                        consume!(entry & 0xff);
                        output.write(T::byte((entry >> 16) as u8));
                        output = output.add(1);
                        continue;
                    }
                }
                if entry & END != 0 {
                    consume!(entry & 0xff);
                    ended = true;
                    break;
                }
                if entry & UNUSUAL != 0 {
                    back_out!();
                }
            }
            let length = (entry >> 16) as usize + (low_bits(bits, entry & 0xff) >> (entry >> 8 & 15)) as usize;
            consume!(entry & 0xff);
            refill!();
            entry = *distances.add((bits & distance_mask) as usize);
            if entry & UNUSUAL != 0 {
                if entry & SUBTABLE != 0 {
                    let index = low_bits(bits >> DISTANCE_BITS, entry >> 8 & 15);
                    consume!(entry & 0xff);
                    entry = *distances.add((entry >> 16) as usize + index as usize);
                }
                if entry & UNUSUAL != 0 {
                    back_out!();
                }
            }
            let distance = (entry >> 16) as usize + (low_bits(bits, entry & 0xff) >> (entry >> 8 & 15)) as usize;
            consume!(entry & 0xff);
            let given = output.offset_from(first) as usize;
            let end = output.add(length);
            if distance > given {
                let back = distance - given;
                if back > reach {
                    back_out!();
                }
                copy_from_window(window, back, first, output, length);
                output = end;
                continue;
            }
            copy_within(output, distance, length);
            output = end;
        }
        call.used = input.offset_from(start) as usize;
        call.given = output.offset_from(first) as usize;
    }
    inflater.bits = low_bits(bits, count);
    inflater.count = count;
    ended
}

/// Copies `length` symbols from `distance` before `output` to it.
///
/// # Safety
/// `distance` symbols before `output` are initialised, and `length` and two strides from it may be written.
#[inline(always)]
unsafe fn copy_within<T: Symbol>(output: *mut T, distance: usize, length: usize) {
    // SAFETY: each step reads a stride from `distance` before what it writes. From a stride on these do not overlap;
    // below, only the first `distance` symbols of a step are right, and the next step writes over the others.
    unsafe {
        let mut to = output;
        let mut from = output.sub(distance).cast_const();
        let end = output.add(length);
        if distance >= STRIDE {
            stride(from, to);
            if length > STRIDE {
                stride(from.add(STRIDE), to.add(STRIDE));
                let mut done = 2 * STRIDE;
                while done < length {
                    stride(from.add(done), to.add(done));
                    done += STRIDE;
                }
            }
        } else if distance == 1 {
            let symbol = from.read();
            let block = [symbol; STRIDE];
            while to < end {
                to.cast::<[T; STRIDE]>().write_unaligned(block);
                to = to.add(STRIDE);
            }
        } else {
            while to < end {
                stride(from, to);
                from = from.add(distance);
                to = to.add(distance);
            }
        }
    }
}

/// Copies one stride, read as a whole before it is written.
///
/// # Safety
/// `from` and `to` are valid for a stride.
#[inline(always)]
unsafe fn stride<T: Symbol>(from: *const T, to: *mut T) {
    // SAFETY: as promised.
    unsafe {
        let block = from.cast::<[std::mem::MaybeUninit<T>; STRIDE]>().read_unaligned();
        to.cast::<[std::mem::MaybeUninit<T>; STRIDE]>().write_unaligned(block);
    }
}

/// A copy that begins `back` symbols before the end of `window`, and may continue with the `first` symbol of the
/// output.
///
/// # Safety
/// `length` symbols from `output` may be written; those from `first` to it are initialised; `back` is within `window`.
#[cold]
#[inline(never)]
unsafe fn copy_from_window<T: Symbol>(window: &[T], back: usize, first: *mut T, output: *mut T, length: usize) {
    let from = &window[window.len() - back..];
    let part = from.len().min(length);
    // SAFETY: `part` symbols are in both; the rest is read from the output, where each symbol is written before it is
    // read, since `output` is after `first` or the rest begins where the part ended.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), output, part);
        for index in part..length {
            output.add(index).write(first.add(index - part).read());
        }
    }
}

//! Finds structural bytes of a text, 64 bytes at a time.
//!
//! A block of 64 bytes becomes a word with a bit for each byte that is one of five marks (structural bytes); the bits
//! are then taken one by one. On x86-64 the comparison uses SSE2, which every such processor has; elsewhere a table.
//! The scanner interprets the marks.

/// Bytes in a block.
const BLOCK: usize = 64;

/// The marks of a dialect. Unused places repeat another mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkSet {
    bytes: [u8; 5],
    #[cfg(not(target_arch = "x86_64"))]
    table: [bool; 256],
}

impl MarkSet {
    /// A set of one to five bytes.
    pub fn new(marks: &[u8]) -> Self {
        let mut bytes = [marks.first().copied().unwrap_or(b'\n'); 5];
        for (place, mark) in bytes.iter_mut().zip(marks) {
            *place = *mark;
        }
        #[cfg(not(target_arch = "x86_64"))]
        let table = {
            let mut table = [false; 256];
            bytes.iter().for_each(|byte| table[usize::from(*byte)] = true);
            table
        };
        MarkSet {
            bytes,
            #[cfg(not(target_arch = "x86_64"))]
            table,
        }
    }

    /// Bit i is set if byte i of the block is a mark.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn bits(&self, block: &[u8; BLOCK]) -> u64 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8, _mm_setzero_si128,
        };
        let mut bits = 0;
        for (index, part) in block.chunks_exact(16).enumerate() {
            // SAFETY: SSE2 is part of x86-64, and `part` has the 16 bytes that the load, which needs no alignment,
            // reads.
            let found = unsafe {
                let part = _mm_loadu_si128(part.as_ptr().cast());
                let mut any = _mm_setzero_si128();
                for mark in self.bytes {
                    any = _mm_or_si128(any, _mm_cmpeq_epi8(part, _mm_set1_epi8(mark.cast_signed())));
                }
                _mm_movemask_epi8(any)
            };
            bits |= u64::from(found.cast_unsigned()) << (index * 16);
        }
        bits
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn bits(&self, block: &[u8; BLOCK]) -> u64 {
        block
            .iter()
            .enumerate()
            .fold(0, |bits, (index, byte)| bits | u64::from(self.table[usize::from(*byte)]) << index)
    }
}

/// The marks of one text, from left to right.
pub(crate) struct Marks<'a> {
    text: &'a [u8],
    set: MarkSet,
    /// Where the block of `bits` begins.
    base: usize,
    /// The marks of the block that are not taken yet.
    bits: u64,
}

impl<'a> Marks<'a> {
    /// The marks of `text` from `from` on.
    pub fn new(text: &'a [u8], set: MarkSet, from: usize) -> Self {
        let mut marks = Marks { text, set, base: from, bits: 0 };
        marks.load();
        marks
    }

    /// The next mark's position; `None` at the end of the text.
    #[inline]
    pub fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.base += BLOCK;
            if self.base >= self.text.len() {
                self.base = self.text.len();
                return None;
            }
            self.load();
        }
        let position = self.base + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(position)
    }

    /// Leaves out the marks before `position`.
    #[inline]
    pub fn skip_to(&mut self, position: usize) {
        match position.checked_sub(self.base) {
            Some(ahead) if ahead >= BLOCK => {
                self.base = position.min(self.text.len());
                self.load();
            }
            Some(ahead) => self.bits &= u64::MAX << ahead,
            None => {}
        }
    }

    #[inline]
    fn load(&mut self) {
        let rest = self.text.get(self.base..).unwrap_or_default();
        self.bits = match rest.first_chunk::<BLOCK>() {
            Some(block) => self.set.bits(block),
            None => {
                let mut block = [0; BLOCK];
                block[..rest.len()].copy_from_slice(rest);
                // A zero byte may itself be a mark: the padding is masked out.
                self.set.bits(&block) & ((1 << rest.len()) - 1)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_plain_loop_finds() {
        for length in [0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 1000] {
            let text: Vec<u8> = (0..length).map(|index| (index * index % 251) as u8).collect();
            for wanted in [&b"\0"[..], b"\n", b",\"\n\r\\", &[0, 1, 4, 9, 16]] {
                let plain: Vec<_> = (0..length).filter(|index| wanted.contains(&text[*index])).collect();
                for from in [0, 1, 40, 64, 100] {
                    let mut marks = Marks::new(&text, MarkSet::new(wanted), from.min(length));
                    let found: Vec<_> = std::iter::from_fn(|| marks.next()).collect();
                    let behind: Vec<_> = plain.iter().copied().filter(|position| *position >= from).collect();
                    assert_eq!(found, behind, "{length} bytes from {from}");
                    let mut marks = Marks::new(&text, MarkSet::new(wanted), 0);
                    marks.skip_to(from);
                    let found: Vec<_> = std::iter::from_fn(|| marks.next()).collect();
                    assert_eq!(found, behind, "{length} bytes, skipped to {from}");
                }
            }
        }
    }
}

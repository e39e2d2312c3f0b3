//! The bytes of a unit that have arrived and that its decoder has not reached yet.

use std::collections::VecDeque;

use bytes::Bytes;

/// A run of bytes without a gap.
#[derive(Default)]
pub(crate) struct Lookahead {
    /// Each chunk with its position in the unit.
    chunks: VecDeque<(u64, Bytes)>,
    /// The position after the last chunk.
    end: u64,
}

impl Lookahead {
    /// The position in the unit after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds the new bytes of `coming`, the first of which is byte `at` of the unit.
    pub(crate) fn see(&mut self, mut at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        if self.end < at {
            self.forget(at);
        }
        for chunk in coming {
            let next = at + chunk.len() as u64;
            if next > self.end {
                let from = self.end.max(at);
                self.chunks.push_back((from, chunk.slice((from - at) as usize..)));
                self.end = next;
            }
            at = next;
        }
    }

    /// Drops everything. The next byte is byte `at`.
    pub(crate) fn forget(&mut self, at: u64) {
        self.chunks.clear();
        self.end = at;
    }

    /// Drops the chunks that end before byte `at`.
    pub(crate) fn pass(&mut self, at: u64) {
        while self.chunks.front().is_some_and(|(start, chunk)| start + chunk.len() as u64 <= at) {
            self.chunks.pop_front();
        }
    }

    /// Those of the bytes `from..to` that have arrived, each part with its position.
    pub(crate) fn parts(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Bytes)> {
        self.chunks.iter().filter_map(move |(at, chunk)| {
            let start = from.max(*at);
            let end = to.min(at + chunk.len() as u64);
            (start < end).then(|| (start, chunk.slice((start - at) as usize..(end - at) as usize)))
        })
    }
}

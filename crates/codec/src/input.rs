//! The compressed bytes of a unit that have been fed and are not used yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Text is given out in pieces of at most this many bytes.
pub(crate) const PIECE: usize = 512 * 1024;

/// What one step of the container gives.
#[derive(Debug)]
pub(crate) enum Piece {
    /// More bytes are needed.
    Hungry,
    /// A content begins.
    Begin(Option<String>),
    /// Bytes of the content.
    Bytes(Bytes),
    /// The last bytes of the content.
    Last(Bytes),
    /// The content is complete.
    End,
    /// The unit is complete.
    Done,
}

/// A queue of chunks that knows its position in the unit.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// No chunk is empty.
    chunks: VecDeque<Bytes>,
    available: usize,
    position: u64,
    fed: bool,
    /// Only a part of the unit is fed: the end of the input is not that of the unit.
    is_part: bool,
}

impl Input {
    /// The input of a part of the unit that begins at byte `position`.
    pub(crate) fn of_part(position: u64) -> Self {
        Input { position, is_part: true, ..Input::default() }
    }

    /// The next bytes of the unit.
    pub(crate) fn feed(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.available += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// Ends the input.
    pub(crate) fn end(&mut self) {
        self.fed = true;
    }

    /// Whether the unit has been fed to its end. Bytes may still be [`Input::available`].
    pub(crate) fn ended(&self) -> bool {
        self.fed && !self.is_part
    }

    /// Whether everything has been fed, be it a part of the unit or all of it.
    pub(crate) fn is_fed(&self) -> bool {
        self.fed
    }

    /// The number of bytes that are fed and not used.
    pub(crate) fn available(&self) -> usize {
        self.available
    }

    /// The byte of the unit that comes next.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The first chunk; empty if there is none.
    pub(crate) fn first(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk.as_ref())
    }

    /// All chunks that are fed and not used.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// The next `count` bytes in one slice, or fewer if fewer are there.
    pub(crate) fn head(&mut self, count: usize) -> &[u8] {
        let count = count.min(self.available);
        if self.first().len() < count {
            let mut joined = BytesMut::with_capacity(count);
            while joined.len() < count
                && let Some(chunk) = self.chunks.front_mut()
            {
                let part = chunk.split_to(chunk.len().min(count - joined.len()));
                joined.extend_from_slice(&part);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
            }
            self.chunks.push_front(joined.freeze());
        }
        &self.first()[..count]
    }

    /// Counts `count` bytes of the first chunks as used.
    pub(crate) fn used(&mut self, mut count: usize) {
        while count > 0
            && let Some(chunk) = self.chunks.front_mut()
        {
            let part = count.min(chunk.len());
            chunk.advance(part);
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
            self.available -= part;
            self.position += part as u64;
            count -= part;
        }
    }

    /// Takes at most `most` bytes out of the first chunk, without a copy.
    pub(crate) fn take(&mut self, most: usize) -> Option<Bytes> {
        let chunk = self.chunks.front_mut()?;
        let part = chunk.split_to(chunk.len().min(most));
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.available -= part.len();
        self.position += part.len() as u64;
        Some(part)
    }

    /// Puts back the bytes that were taken last.
    pub(crate) fn give_back(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.available += bytes.len();
            self.position -= bytes.len() as u64;
            self.chunks.push_front(bytes);
        }
    }
}

//! The raw record of a row: a view into the decoded text, which the row keeps alive as long as it may be refused.
//!
//! ```text
//!  text   │ piece │ piece │ piece │            the tape: what was pushed into the parser, from the last row on
//!              ▲────▲──────▲                   where rows begin
//!              [view][view ]                   from one row to the next: cut to one record only if someone asks
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewBuilder};
use bytes::Bytes;
use millstream_core::reject::RAW_LIMIT;

/// The most text of a record that is looked at: a little more than is kept, to see that it is longer.
const LOOK: usize = RAW_LIMIT + (4 << 10);

/// How much of the beginning of a text is kept: a header has to stand in it.
const BEGINNING: usize = 16 << 10;

/// The text of a member, from the last row on.
#[derive(Debug)]
pub struct Tape {
    /// Whether records are kept, too.
    records: bool,
    pieces: VecDeque<(u64, Bytes)>,
    end: u64,
    /// The beginning of the text.
    beginning: Bytes,
}

impl Tape {
    /// Of a text that has not begun. Without `records` only its beginning is kept.
    pub fn new(records: bool) -> Self {
        Tape { records, pieces: VecDeque::new(), end: 0, beginning: Bytes::new() }
    }

    /// Of what stands behind the first `at` bytes of a text, which begins with `beginning`.
    pub fn behind(records: bool, at: u64, beginning: &Bytes) -> Self {
        let beginning = beginning.slice(..beginning.len().min(BEGINNING));
        Tape { records, pieces: VecDeque::new(), end: at, beginning }
    }

    /// Takes the next text.
    pub fn push(&mut self, text: &Bytes) {
        let room = usize::try_from(self.end).map_or(0, |end| BEGINNING.saturating_sub(end));
        let more = text.slice(..text.len().min(room));
        match self.beginning.is_empty() {
            _ if room == 0 => {}
            true => self.beginning = more,
            false => self.beginning = [self.beginning.as_ref(), more.as_ref()].concat().into(),
        }
        if self.records {
            self.pieces.push_back((self.end, text.clone()));
        }
        self.end += text.len() as u64;
    }

    /// The beginning of the text, in which a header may stand.
    pub fn beginning(&self) -> Bytes {
        self.beginning.clone()
    }

    /// The text from the beginning of each row to that of the next, which may be more than its record. `starts` are
    /// where rows begin; nobody asks for what is before the last of them any more.
    pub fn texts(&mut self, starts: &[i64]) -> ArrayRef {
        let mut builder = BinaryViewBuilder::with_capacity(starts.len());
        let mut block: Option<(u64, u32)> = None;
        for (index, start) in starts.iter().enumerate() {
            let start = start.unsigned_abs();
            let end = starts.get(index + 1).map_or(self.end, |next| next.unsigned_abs());
            let end = end.min(start + LOOK as u64).min(self.end);
            while self.pieces.front().is_some_and(|(at, text)| at + text.len() as u64 <= start) {
                self.pieces.pop_front();
            }
            let Some((at, text)) = self.pieces.front() else {
                builder.append_null();
                continue;
            };
            let from = (start - at) as usize;
            if end <= at + text.len() as u64 {
                let known = block.filter(|(piece, _)| piece == at).map(|(_, block)| block);
                let number = known.unwrap_or_else(|| builder.append_block(arrow::buffer::Buffer::from(text.clone())));
                block = Some((*at, number));
                let (Ok(from), Ok(length)) = (u32::try_from(from), u32::try_from(end - start)) else {
                    builder.append_null();
                    continue;
                };
                if builder.try_append_view(number, from, length).is_err() {
                    builder.append_null();
                }
            } else {
                // It goes on in the next piece.
                let mut whole = Vec::with_capacity((end - start) as usize);
                for (at, text) in &self.pieces {
                    let from = start.saturating_sub(*at) as usize;
                    let to = (end.saturating_sub(*at) as usize).min(text.len());
                    whole.extend_from_slice(text.get(from..to).unwrap_or_default());
                }
                builder.append_value(&whole);
                block = None;
            }
        }
        Arc::new(builder.finish())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    fn texts(tape: &mut Tape, starts: &[i64]) -> Vec<String> {
        let array = tape.texts(starts);
        array.as_binary_view().iter().map(|text| String::from_utf8_lossy(text.unwrap_or(b"?")).into_owned()).collect()
    }

    #[test]
    fn rows_keep_their_text_wherever_it_is_cut() {
        let text = "head\nfirst row\nsecond\nthird one that is long\nx\n";
        let starts = [5, 15, 22, 45];
        for size in 1..text.len() {
            let mut tape = Tape::new(true);
            for piece in text.as_bytes().chunks(size) {
                tape.push(&Bytes::copy_from_slice(piece));
            }
            assert_eq!(tape.beginning(), text);
            assert_eq!(texts(&mut tape, &starts[..2]), ["first row\n", "second\nthird one that is long\nx\n"]);
            assert_eq!(texts(&mut tape, &starts[2..]), ["third one that is long\n", "x\n"]);
        }
    }
}

//! Cuts a text where a record ends, so that its pieces can be parsed on several cores: the parts that formats share,
//! and the cutting of lines. `csv/split.rs` cuts CSV.
//!
//! ```text
//!   pushed   ├──────────────┼──────────────┼──────────────┤
//!   records  ├───┼──────┼────────┼───┼────────┼──────┼────┤
//!   pieces   ├───────────────────┼────────────┼───────────┤     size: ├───────────┤
//! ```
//! A piece is a list of slices of the pushed text: no text is copied.

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memrchr};
use millstream_core::format::{Splitter, TextPiece, TextPosition};

/// The text since the last cut.
pub(crate) struct Pending {
    place: TextPosition,
    text: Vec<Bytes>,
    length: usize,
}

impl Pending {
    /// At the beginning of a unit.
    pub fn new() -> Self {
        Pending { place: TextPosition { byte: 0, line: 1 }, text: Vec::new(), length: 0 }
    }

    /// Behind what stands before `place`.
    fn at(place: TextPosition) -> Self {
        Pending { place, ..Pending::new() }
    }

    /// Its bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The least size of a piece if pieces of `size` bytes are requested. The first must be long enough for a byte
    /// order mark, or its parser does not know whether there is one.
    pub fn least(&self, size: usize) -> usize {
        size.max(if self.place.byte == 0 { 3 } else { 1 })
    }

    /// Adds the next text.
    pub fn append(&mut self, text: Bytes) {
        if !text.is_empty() {
            self.length += text.len();
            self.text.push(text);
        }
    }

    /// Makes it a piece. `bytes` is its length in the unit, `lines` the line ends in it.
    pub fn cut(&mut self, bytes: usize, lines: u64, pieces: &mut Vec<TextPiece>) {
        if self.length > 0 {
            self.length = 0;
            pieces.push(TextPiece { place: self.place, text: std::mem::take(&mut self.text) });
        }
        self.place.byte += bytes as u64;
        self.place.line += lines;
    }
}

/// How many bytes over the limit a line may have: those of a byte order mark and a `\r`.
const OVER: usize = 5;

/// Cuts after `\n`.
///
/// A line that is too long must not fill the memory. Only its beginning is passed on, which is still too long, as the
/// last line of its piece: it is refused or skipped either way.
pub(crate) struct LineSplitter {
    max_record: usize,
    pending: Pending,
    /// Bytes of the unit since the last cut, including dropped ones.
    bytes: usize,
    /// Line ends since the last cut.
    lines: u64,
    /// Bytes of the line that has not ended.
    open: usize,
    /// Whether the rest of a line that is too long is being dropped.
    passing: bool,
    /// Whether the first piece has no line yet from which a parser can learn something.
    blank: bool,
}

impl LineSplitter {
    /// At the beginning of a unit; with `learn` the first piece has at least one line that is not blank.
    pub fn new(max_record: usize, learn: bool) -> Self {
        LineSplitter { max_record, pending: Pending::new(), bytes: 0, lines: 0, open: 0, passing: false, blank: learn }
    }

    /// At the beginning of the line at `place`.
    pub fn behind(place: TextPosition, max_record: usize) -> Self {
        LineSplitter { pending: Pending::at(place), ..LineSplitter::new(max_record, false) }
    }

    /// Keeps the beginning of `text`, `length` bytes of it.
    fn keep(&mut self, text: &mut Bytes, length: usize) {
        let kept = text.split_to(length);
        self.bytes += length;
        self.lines += memchr_iter(b'\n', &kept).count() as u64;
        self.open = memrchr(b'\n', &kept).map_or(self.open + length, |last| length - last - 1);
        self.blank = self.blank && kept.iter().all(|byte| is_blank(*byte));
        self.pending.append(kept);
    }

    fn cut(&mut self, pieces: &mut Vec<TextPiece>) {
        self.pending.cut(self.bytes, self.lines, pieces);
        (self.bytes, self.lines, self.open) = (0, 0, 0);
    }

    /// Drops the rest of a line that is too long, as far as it is in `text`.
    fn pass(&mut self, text: &mut Bytes, pieces: &mut Vec<TextPiece>) {
        match memchr(b'\n', text) {
            None => {
                self.bytes += text.len();
                text.clear();
            }
            Some(end) => {
                self.bytes += end;
                *text = text.split_off(end);
                self.keep(text, 1);
                self.passing = false;
                self.cut(pieces);
            }
        }
    }
}

impl Splitter for LineSplitter {
    fn push(&mut self, mut text: Bytes, size: usize, pieces: &mut Vec<TextPiece>) {
        while !text.is_empty() {
            if self.passing {
                self.pass(&mut text, pieces);
                continue;
            }
            let least = self.pending.least(size).saturating_sub(self.pending.length() + 1);
            match text.get(least..).and_then(|behind| memchr(b'\n', behind)) {
                Some(end) => {
                    self.keep(&mut text, least + end + 1);
                    if !self.blank {
                        self.cut(pieces);
                    }
                }
                None => {
                    let length = text.len();
                    self.keep(&mut text, length);
                    self.passing = !self.blank && self.open > self.max_record.saturating_add(OVER);
                }
            }
        }
    }

    fn finish(&mut self, pieces: &mut Vec<TextPiece>) {
        self.cut(pieces);
    }
}

/// White space, and the bytes of a byte order mark.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(splitter: &mut dyn Splitter, pushed: &[&str], size: usize) -> Vec<(u64, u64, String)> {
        let mut pieces = Vec::new();
        for text in pushed {
            splitter.push(Bytes::copy_from_slice(text.as_bytes()), size, &mut pieces);
        }
        splitter.finish(&mut pieces);
        let shown = |piece: &TextPiece| {
            let text = piece.text.concat();
            (piece.place.byte, piece.place.line, String::from_utf8(text).expect("UTF-8"))
        };
        pieces.iter().map(shown).collect()
    }

    fn piece(byte: u64, line: u64, text: &str) -> (u64, u64, String) {
        (byte, line, text.to_owned())
    }

    #[test]
    fn pieces_are_as_small_as_lines_allow() {
        let split = |pushed: &[&str], size| pieces(&mut LineSplitter::new(100, false), pushed, size);
        let small = [piece(0, 1, "ab\n"), piece(3, 2, "c\n"), piece(5, 3, "\n"), piece(6, 4, "d")];
        assert_eq!(split(&["ab\nc\n\nd"], 1), small);
        assert_eq!(split(&["\n\n\n\n\n"], 1), [piece(0, 1, "\n\n\n"), piece(3, 4, "\n"), piece(4, 5, "\n")]);
        assert_eq!(split(&["a\nb", "c\n", "\nd\n"], 3), [piece(0, 1, "a\nbc\n"), piece(5, 3, "\nd\n")]);
        assert_eq!(split(&["aa\n", "bc\n"], 2), [piece(0, 1, "aa\n"), piece(3, 2, "bc\n")]);
        assert_eq!(split(&["a\nbc\n\nd"], 100), [piece(0, 1, "a\nbc\n\nd")]);
        assert_eq!(split(&["", "\n", ""], 1), [piece(0, 1, "\n")]);
        assert_eq!(split(&[], 1), []);
    }

    #[test]
    fn of_a_line_that_is_too_long_only_the_beginning_is_kept() {
        let split = |pushed: &[&str]| pieces(&mut LineSplitter::new(2, false), pushed, 100);
        assert_eq!(
            split(&["a\n12345", "678", "9", "0", "1\nb\n"]),
            [piece(0, 1, "a\n12345678\n"), piece(14, 3, "b\n")]
        );
        assert_eq!(split(&["12345678", "9"]), [piece(0, 1, "12345678")]);
        assert_eq!(split(&["1234567", "\n8"]), [piece(0, 1, "1234567\n8")]);
    }

    #[test]
    fn the_first_piece_may_need_a_line() {
        let split = |pushed: &[&str]| pieces(&mut LineSplitter::new(100, true), pushed, 1);
        assert_eq!(split(&["\u{feff}\n", " \r\n", "a\nb\n"]), [piece(0, 1, "\u{feff}\n \r\na\n"), piece(9, 4, "b\n")]);
    }
}

//! Text in other encodings as UTF-8, pushed in pieces; byte order marks are removed.
//!
//! UTF-8 itself passes through unchanged and unchecked: the parsers validate it, record by record. A byte sequence that
//! is invalid in its encoding becomes [`WRONG`], which is invalid UTF-8, so that the parsers find it.

use bytes::Bytes;
use encoding_rs::{DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use millstream_core::{Error, RejectKind, hint};

/// Replaces a sequence that is invalid in its encoding.
const WRONG: u8 = 0xff;

/// Encodings that a hint lists; every label of the WHATWG encoding standard is accepted.
const COMMON: &[&str] = &[
    "utf-8",
    "utf-16",
    "utf-16be",
    "windows-1252",
    "iso-8859-1",
    "iso-8859-15",
    "windows-1251",
    "shift_jis",
    "gb18030",
];

/// The encoding of that label, or a hint.
pub fn by_label(label: &str) -> Result<&'static Encoding, String> {
    Encoding::for_label(label.as_bytes()).ok_or_else(|| hint::did_you_mean(label, "encodings", COMMON))
}

/// The error of a record with bytes that are wrong in their encoding, `from` the first wrong one.
pub fn fault(encoding: Option<&'static Encoding>, from: &[u8]) -> Error {
    match encoding {
        Some(other) if other != UTF_8 => Error::data(format!("these bytes are not {}", other.name().to_lowercase()))
            .text(from)
            .reject(RejectKind::Encoding)
            .hint("correct `encoding`"),
        _ => Error::data("these bytes are not UTF-8")
            .text(from)
            .reject(RejectKind::Encoding)
            .hint("set `encoding`, for example to windows-1252"),
    }
}

/// The length of the byte order mark of a text that begins with `head`; `None` if it is not UTF-8.
pub fn utf8_mark(declared: Option<&'static Encoding>, head: &[u8]) -> Option<usize> {
    let (encoding, mark) = found(declared, head);
    (encoding == UTF_8).then_some(mark)
}

/// The encoding of a text that begins with `head`, and the length of its byte order mark.
fn found(declared: Option<&'static Encoding>, head: &[u8]) -> (&'static Encoding, usize) {
    match (declared, Encoding::for_bom(head)) {
        (None, Some((encoding, mark))) => (encoding, mark),
        (None, None) => (UTF_8, 0),
        (Some(declared), Some((encoding, mark)))
            if declared == encoding || (is_utf16(declared) && is_utf16(encoding)) =>
        {
            (encoding, mark)
        }
        (Some(declared), _) => (declared, 0),
    }
}

/// Converts the text of one unit to UTF-8.
pub struct ToUtf8 {
    declared: Option<&'static Encoding>,
    state: State,
    /// Bytes of a UTF-8 mark that were removed and not reported yet.
    mark: u64,
}

enum State {
    /// Fewer bytes than a byte order mark may have.
    Beginning(Vec<u8>),
    /// UTF-8.
    Through,
    /// Anything else.
    Decoding(Box<encoding_rs::Decoder>),
}

impl ToUtf8 {
    /// At the beginning of a unit in `declared`; if `None` it is UTF-8, or UTF-16 if it begins with that mark.
    pub fn new(declared: Option<&'static Encoding>) -> Self {
        ToUtf8 { declared, state: State::Beginning(Vec::new()), mark: 0 }
    }

    /// A decoder for the middle of the unit, if the unit is UTF-8.
    pub fn fork(&self) -> Option<Self> {
        let through = matches!(self.state, State::Through);
        through.then_some(ToUtf8 { declared: self.declared, state: State::Through, mark: 0 })
    }

    /// The length of a UTF-8 mark that was removed since the last call: it is part of the unit's bytes.
    pub fn take_mark(&mut self) -> u64 {
        std::mem::take(&mut self.mark)
    }

    /// The next piece as UTF-8. It may be empty while a mark or character is incomplete.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if let State::Beginning(head) = &mut self.state {
            if head.is_empty() && (piece.len() >= 3 || piece.first().is_some_and(|byte| !may_be_mark(*byte))) {
                return self.begin(piece);
            }
            head.extend_from_slice(&piece);
            if head.len() < 3 && head.first().is_none_or(|byte| may_be_mark(*byte)) {
                return Bytes::new();
            }
            let head = Bytes::from(std::mem::take(head));
            return self.begin(head);
        }
        self.decode(piece, false)
    }

    /// The rest at the end of the unit.
    pub fn finish(&mut self) -> Bytes {
        let begun = match &mut self.state {
            State::Beginning(head) => {
                let head = Bytes::from(std::mem::take(head));
                self.begin(head)
            }
            _ => Bytes::new(),
        };
        let rest = self.decode(Bytes::new(), true);
        if rest.is_empty() { begun } else { [begun, rest].concat().into() }
    }

    fn begin(&mut self, text: Bytes) -> Bytes {
        let (encoding, mark) = found(self.declared, &text);
        let text = text.slice(mark..);
        if encoding == UTF_8 {
            self.mark = mark as u64;
            self.state = State::Through;
            return text;
        }
        self.state = State::Decoding(Box::new(encoding.new_decoder_without_bom_handling()));
        self.decode(text, false)
    }

    fn decode(&mut self, piece: Bytes, last: bool) -> Bytes {
        let State::Decoding(decoder) = &mut self.state else {
            return piece;
        };
        let mut text = Vec::new();
        let mut rest = &piece[..];
        loop {
            let room = decoder.max_utf8_buffer_length_without_replacement(rest.len()).unwrap_or(rest.len()).max(16);
            let filled = text.len();
            text.resize(filled + room, 0);
            let (result, read, written) = decoder.decode_to_utf8_without_replacement(rest, &mut text[filled..], last);
            text.truncate(filled + written);
            rest = &rest[read..];
            match result {
                DecoderResult::InputEmpty => return text.into(),
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(..) => text.push(WRONG),
            }
        }
    }
}

fn may_be_mark(first: u8) -> bool {
    matches!(first, 0xef | 0xfe | 0xff)
}

fn is_utf16(encoding: &'static Encoding) -> bool {
    encoding == UTF_16LE || encoding == UTF_16BE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as UTF-8, pushed in pieces of `size` bytes.
    fn decoded(text: &[u8], label: Option<&str>, size: usize) -> Vec<u8> {
        let mut decoder = ToUtf8::new(label.map(|label| by_label(label).unwrap()));
        let mut output = Vec::new();
        for piece in text.chunks(size) {
            output.extend_from_slice(&decoder.push(Bytes::copy_from_slice(piece)));
        }
        output.extend_from_slice(&decoder.finish());
        output
    }

    fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn every_encoding_gives_the_same_text_in_pieces_of_any_size() {
        let text = "ä,ß,𝄞\n";
        let with_mark = format!("\u{feff}{text}");
        let cases: Vec<(Vec<u8>, Option<&str>)> = vec![
            (text.into(), None),
            (text.into(), Some("utf-8")),
            (with_mark.clone().into(), None),
            (with_mark.clone().into(), Some("UTF-8")),
            (utf16(&with_mark, u16::to_le_bytes), None),
            (utf16(&with_mark, u16::to_be_bytes), None),
            (utf16(&with_mark, u16::to_be_bytes), Some("utf-16")),
            (utf16(text, u16::to_le_bytes), Some("utf-16")),
            (utf16(text, u16::to_be_bytes), Some("utf-16be")),
        ];
        for (bytes, label) in cases {
            for size in 1..=bytes.len() {
                assert_eq!(decoded(&bytes, label, size), text.as_bytes(), "{label:?} in pieces of {size}");
            }
        }
        assert_eq!(decoded(b"\xe4\x80", Some("latin1"), 1), "ä€".as_bytes());
    }

    #[test]
    fn what_is_wrong_stays_wrong() {
        assert_eq!(decoded(b"a\xffb", None, 1), b"a\xffb");
        let mut half = utf16("ab", u16::to_le_bytes);
        half.pop();
        assert_eq!(decoded(&half, Some("utf-16"), 2), [b'a', WRONG]);
        let lone = [0x00, 0xd8, b'a', 0];
        assert_eq!(decoded(&lone, Some("utf-16"), 1), [WRONG, b'a']);
        assert_eq!(decoded(b"\xff", None, 1), b"\xff", "a file of one byte that may begin a mark");
        assert_eq!(decoded(b"", None, 1), b"");
    }

    #[test]
    fn an_unknown_label_gets_a_hint() {
        assert!(by_label("utf8").is_ok() && by_label("Latin1").is_ok());
        assert!(by_label("uft-16").unwrap_err().starts_with("did you mean `utf-16`?"));
    }
}

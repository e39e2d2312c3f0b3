//! A zip archive after other data (a self-extracting one, or one after a log or web page). It would pass for text,
//! since it does not begin like a zip. It is refused: the bytes before it may be the data, and `unzip`, which goes by
//! the directory at the end, reads the archive.
//!
//! ```text
//!  text … │ member │ member │ … │ directory │ end
//!         ▲ looked for in the first FRONT bytes  ▲ looked for in the last TAIL bytes
//! ```
//! Both look at a bounded part of the data, so that long texts cost nothing. Members of an archive are not searched:
//! their checksum says that a text with an archive in it is meant as such.

use millstream_core::{Error, Result};

use crate::zip;

/// How many bytes are searched for the first member.
const FRONT: u64 = 64 << 10;

/// Bytes at the end that are kept: the end of an archive, with a short comment.
const TAIL: usize = 256;

/// Searches the text of one content as it passes.
pub(super) struct HiddenZip {
    /// Bytes so far.
    at: u64,
    last: [u8; TAIL],
    kept: usize,
}

impl HiddenZip {
    /// A search at the beginning of a content.
    pub(super) fn new() -> Self {
        HiddenZip { at: 0, last: [0; TAIL], kept: 0 }
    }

    /// The next bytes.
    pub(super) fn pass(&mut self, text: &[u8]) -> Result<()> {
        if self.at < FRONT {
            self.look_for_member(text)?;
        }
        self.at += text.len() as u64;
        self.keep(text);
        Ok(())
    }

    /// There are no more.
    pub(super) fn end(&self) -> Result<()> {
        match zip::ends_archive(&self.last[..self.kept], self.at) {
            false => Ok(()),
            true => Err(refused("the data ends like a zip archive, but does not begin like one")),
        }
    }

    fn look_for_member(&self, text: &[u8]) -> Result<()> {
        let left = usize::try_from(FRONT - self.at).unwrap_or(usize::MAX).saturating_add(zip::HEAD_OF_MEMBER);
        let front = &text[..text.len().min(left)];
        // A header may begin in the previous bytes.
        let before = &self.last[self.kept.saturating_sub(zip::HEAD_OF_MEMBER - 1)..self.kept];
        let seam = [before, &front[..front.len().min(zip::HEAD_OF_MEMBER)]].concat();
        let at_seam = zip::find_member(&seam).map(|at| self.at - before.len() as u64 + at as u64);
        match at_seam.or_else(|| zip::find_member(front).map(|at| self.at + at as u64)) {
            None => Ok(()),
            Some(at) => Err(begins_at(at)),
        }
    }

    fn keep(&mut self, text: &[u8]) {
        let text = &text[text.len().saturating_sub(TAIL)..];
        let stay = self.kept.min(TAIL - text.len());
        self.last.copy_within(self.kept - stay..self.kept, 0);
        self.last[stay..stay + text.len()].copy_from_slice(text);
        self.kept = stay + text.len();
    }
}

/// The error of an archive that begins at byte `at`, which is not the first.
pub(super) fn begins_at(at: u64) -> Error {
    refused(&format!("a zip archive begins at byte {at}, after other data")).byte(at)
}

fn refused(what: &str) -> Error {
    Error::refused(what).hint(
        "a zip archive is read from its first byte on: cut off what precedes it, or unpack it first (`unzip` does)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_however_they_come() {
        let text: Vec<u8> = (0..1000_u32).map(|number| (number % 251) as u8).collect();
        for size in [1, 7, 255, 256, 257, 1000] {
            let mut hidden = HiddenZip::new();
            text.chunks(size).for_each(|piece| hidden.pass(piece).expect("no archive"));
            assert_eq!((hidden.at, &hidden.last[..hidden.kept]), (1000, &text[1000 - TAIL..]), "{size}");
        }
    }
}

//! A unit that is a tar, compressed as a whole or not: walks through the text of its content.

use std::sync::Arc;

use millstream_core::helpers::HelperPool;
use millstream_core::{Error, Result};

use super::content::{Content, Pulled};
use super::raw::Raw;
use crate::input::{Input, Piece};
use crate::ratio::check_ratio;
use crate::tar::Walk;

/// The tar.
pub(super) struct TarUnit {
    walk: Walk,
    /// The content to which the bytes of the unit are pushed.
    unit: Content,
    raw: Raw,
    /// The text of the content: the tar itself.
    text: Input,
    unrolled: u64,
    /// How many times larger than the unit the tar may be.
    ratio: u64,
}

impl TarUnit {
    /// The tar in the content `unit`, whose input is in the state `raw`.
    pub(super) fn new(walk: Walk, unit: Content, raw: Raw, ratio: u64) -> Self {
        TarUnit { walk, unit, raw, text: Input::default(), unrolled: 0, ratio }
    }

    /// The content of the unit, around the tar.
    pub(super) fn unit(&self) -> &Content {
        &self.unit
    }

    /// The member that is being read.
    pub(super) fn current_member(&self) -> Option<&str> {
        self.walk.current_member()
    }

    /// The byte of the tar that comes next.
    pub(super) fn position(&self) -> u64 {
        self.text.position()
    }

    /// How many bytes of the unit are used, if `taken` were taken from the input.
    pub(super) fn unit_position(&self, taken: u64) -> u64 {
        if self.is_plain() { self.text.position() } else { taken - self.unit.waiting() as u64 }
    }

    fn is_plain(&self) -> bool {
        self.unit.codec() == "plain"
    }

    /// `error`, which may name a byte of the tar, at a byte of the unit, of which `taken` bytes have been taken.
    fn fault(&self, error: Error, taken: u64) -> Error {
        if self.is_plain() {
            return error;
        }
        let at = error.location().byte;
        let error = error.byte(self.unit_position(taken));
        match at {
            Some(at) if error.cause_text().is_none() => error.cause(format!("at byte {at} of the tar inside")),
            _ => error,
        }
    }

    /// The next step through the tar. `input` has the bytes of the unit.
    pub(super) fn next(&mut self, input: &mut Input, helpers: &Arc<dyn HelperPool>) -> Result<Piece> {
        loop {
            match self.walk.next(&mut self.text) {
                Ok(Piece::Hungry) => {}
                Ok(piece) => return Ok(piece),
                Err(error) => return Err(self.fault(error, input.position())),
            }
            self.unit.look_ahead(helpers, input);
            match self.unit.pull()? {
                Pulled::Begun { .. } => {}
                Pulled::Text(text) => {
                    self.unrolled += text.len() as u64;
                    self.text.feed(text);
                    let used = input.position() - self.unit.waiting() as u64;
                    check_ratio(self.ratio, self.unrolled, used, used)?;
                }
                Pulled::End => self.text.end(),
                Pulled::Hungry => match self.raw.next(input) {
                    Piece::Bytes(bytes) => self.unit.push(bytes),
                    Piece::Last(bytes) => {
                        self.unit.push(bytes);
                        self.unit.end();
                    }
                    Piece::End => self.unit.end(),
                    _ => return Ok(Piece::Hungry),
                },
            }
        }
    }
}

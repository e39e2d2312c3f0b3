//! A unit that is no archive: its only content is the unit itself.

use super::content::{HEAD, WHOLE};
use crate::CODECS;
use crate::input::{Input, Piece};

/// The unit as its only content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raw {
    Begin,
    Inside,
    Ended,
}

impl Raw {
    /// The next bytes of `input`.
    pub(super) fn next(&mut self, input: &mut Input) -> Piece {
        match self {
            Raw::Begin => {
                *self = Raw::Inside;
                Piece::Begin(None)
            }
            Raw::Inside if input.ended() && input.position() == 0 && is_small(input) => {
                *self = Raw::Ended;
                let all = input.available();
                input.head(all);
                Piece::Last(input.take(usize::MAX).unwrap_or_default())
            }
            Raw::Inside => match input.take(usize::MAX) {
                Some(chunk) => Piece::Bytes(chunk),
                None if !input.ended() => Piece::Hungry,
                None => {
                    *self = Raw::Ended;
                    Piece::End
                }
            },
            Raw::Ended => Piece::Done,
        }
    }
}

/// Whether the unit, all of which is in `input`, is decoded in one call. Plain text in several chunks is not, since
/// joining them would be useless.
fn is_small(input: &mut Input) -> bool {
    let available = input.available();
    available > 0
        && available <= WHOLE
        && (input.first().len() == available || {
            let head = input.head(HEAD);
            CODECS.iter().any(|entry| (entry.build)().recognises(head))
        })
}

//! What a group of a sink's own notes of a partition that is read: an offset, and beside it, as text, what makes a
//! position of it.

use std::time::Duration;

use millstream_core::positions::Position;
use millstream_core::{Error, Result};

use super::state::{State, place};

/// Counts up with every change of the text.
const VERSION: u32 = 1;

/// The text beside an offset: at most some 250 bytes, of the 4096 that brokers allow by default.
pub(super) fn text(version: u64, owner: &str, state: &str) -> String {
    format!("millstream {VERSION} {version} {owner} {state}")
}

/// The position of a partition of which a group has noted an offset and a text. If others have set the offset, it has
/// the version 0, and nothing is known of its topic.
///
/// # Errors
/// If a newer version of the program has noted it.
pub(super) fn position(topic: &str, partition: i32, offset: i64, text: &str) -> Result<Position> {
    let place = place(topic, partition);
    let by_others = || {
        let state = State::new(offset, "", -1).to_text();
        Position { place: place.clone(), version: 0, owner: String::new(), state, idle: Duration::ZERO }
    };
    let mut parts = text.splitn(5, ' ');
    if parts.next() != Some("millstream") {
        return Ok(by_others());
    }
    let found = parts.next().and_then(|version| version.parse::<u32>().ok()).unwrap_or(0);
    if found > VERSION {
        return Err(Error::newer(format!("the position of {place} in its group"), found, VERSION));
    }
    let (Some(version), Some(owner), Some(state)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(by_others());
    };
    let Ok(version) = version.parse() else { return Ok(by_others()) };
    if State::of_text(state, &place)?.next != offset {
        return Ok(by_others());
    }
    Ok(Position { owner: owner.to_owned(), state: state.to_owned(), version, ..by_others() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_being_noted() {
        let state = State::new(i64::MAX, "aBcDeFgHiJkLmNoPqRsTuV", i32::MAX).to_text();
        let noted = text(u64::MAX, "0123456789abcdef", &state);
        assert!(noted.len() < 256, "{} bytes", noted.len());
        let position = position("t", 3, i64::MAX, &noted).expect("a position");
        assert_eq!((position.place.as_str(), position.version), ("t 3", u64::MAX));
        assert_eq!((position.owner.as_str(), position.state), ("0123456789abcdef", state));
    }

    #[test]
    fn what_others_have_set_is_an_offset_alone() {
        let ours = text(7, "o", &State::new(5, "T", 1).to_text());
        for (offset, text) in [(9, ""), (9, "note"), (9, "millstream 1 x"), (9, ours.as_str())] {
            let position = position("t", 0, offset, text).expect("a position");
            assert_eq!((position.version, position.owner.as_str()), (0, ""), "{text}");
            let state = State::of_text(&position.state, "t 0").expect("a state");
            assert_eq!((state.next, state.topic.as_str()), (9, ""));
        }
        let newer = position("t", 0, 5, "millstream 2 else").expect_err("newer");
        assert!(newer.what().starts_with("the position of t 0 in its group"), "{newer:?}");
    }
}

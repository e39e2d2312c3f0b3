//! Moves of positions, for all targets: which ones can be made at all, which places stand elsewhere, and what that says
//! of moves whose outcome is not known.

use std::collections::BTreeSet;

use millstream_core::positions::{Move, Position};
use millstream_core::{Error, Result};

/// The most bytes of a place's name.
const PLACE: usize = 500;

/// The most bytes of a state.
const STATE: usize = 1_000_000;

/// The most bytes of a process's name.
const OWNER: usize = 16;

/// Refuses moves that no target could keep.
pub(crate) fn check(moves: &[Move]) -> Result<()> {
    let mut places = BTreeSet::new();
    for Move { place, from, to } in moves {
        let fault = match to {
            _ if place.is_empty() || place.len() > PLACE || place.chars().any(char::is_control) => "its name",
            Some(state) if state.len() > STATE || state.contains('\0') => "its state",
            None if from.is_none() => "a move from nowhere to nowhere",
            _ if from.is_some_and(|from| i64::try_from(from).is_err()) => "its version",
            _ if !places.insert(place) => "a second move",
            _ => continue,
        };
        return Err(Error::internal(format!("a position cannot be noted for {fault}")).text(place));
    }
    Ok(())
}

/// Refuses the name of a process that no target could keep.
pub(crate) fn check_owner(owner: &str) -> Result<()> {
    let is_plain = (1..=OWNER).contains(&owner.len()) && owner.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { Ok(()) } else { Err(Error::internal("a process has no name that can be noted").text(owner)) }
}

/// Those of the positions that are `there` which do not stand where `moves` begin, by place.
pub(crate) fn elsewhere(moves: &[Move], mut there: Vec<Position>) -> Vec<Position> {
    there.retain(|it| moves.iter().any(|one| one.place == it.place && one.from != Some(it.version)));
    there.sort();
    there
}

/// Whether `moves`, made together, may have been made by a transaction whose answer was lost, although none of the
/// positions that are `there` says that it was this one: if each place has gone on so far that others may have moved it
/// since. Versions only go up, so that another one's move in place of ours shows until the place is moved again.
pub(crate) fn may_be_made(moves: &[Move], there: &[Position]) -> bool {
    moves.iter().all(|one| {
        let now = there.iter().find(|it| it.place == one.place).map(|it| it.version);
        let made = one.to.as_ref().map(|_| one.from.map_or(1, |from| from + 1));
        now != one.from && (made.is_none() || now != made)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn one(place: &str, from: Option<u64>, to: Option<&str>) -> Move {
        Move { place: place.to_owned(), from, to: to.map(str::to_owned) }
    }

    #[test]
    fn what_no_target_could_keep_is_refused() {
        let (long, large) = ("x".repeat(501), "x".repeat(1_000_001));
        for bad in [
            vec![one("", None, Some(""))],
            vec![one(&long, None, Some(""))],
            vec![one("a\nb", None, Some(""))],
            vec![one("a", None, None)],
            vec![one("a", None, Some(&large))],
            vec![one("a", None, Some("a\0b"))],
            vec![one("a", Some(u64::MAX), Some(""))],
            vec![one("a", Some(1), Some("")), one("b", Some(1), Some("")), one("a", Some(2), None)],
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
        let (long, large) = ("x".repeat(500), "x".repeat(1_000_000));
        check(&[one("a", Some(1), None), one(&long, None, Some(&large)), one("c", Some(7), Some("é\n'\\"))])
            .expect("good");
        assert!(check_owner("").is_err() && check_owner("01234567890123456").is_err() && check_owner("a'").is_err());
        check_owner("0123456789abcdef").expect("good");
    }

    #[test]
    fn places_stand_elsewhere_if_their_version_is_another_or_they_are_not_new() {
        let at = |place: &str, version| {
            let (owner, state) = (String::new(), String::new());
            Position { place: place.to_owned(), version, owner, state, idle: Duration::ZERO }
        };
        let moves =
            [one("d", None, Some("")), one("a", Some(3), Some("")), one("b", Some(1), None), one("c", Some(9), None)];
        let there = vec![at("d", 1), at("a", 4), at("b", 1), at("other", 5)];
        assert_eq!(elsewhere(&moves, there), [at("a", 4), at("d", 1)]);
    }

    #[test]
    fn moves_may_be_made_if_no_place_says_that_they_were_not() {
        let at = |place: &str, version| {
            let (owner, state) = (String::new(), String::new());
            Position { place: place.to_owned(), version, owner, state, idle: Duration::ZERO }
        };
        let (a, d, gone) = (one("a", Some(3), Some("")), one("d", None, Some("")), one("g", Some(3), None));
        for (moves, there, may) in [
            (vec![a.clone()], vec![at("a", 3)], false),
            (vec![a.clone()], vec![at("a", 4)], false),
            (vec![a.clone()], vec![at("a", 5)], true),
            (vec![a.clone()], vec![], true),
            (vec![d.clone()], vec![], false),
            (vec![d.clone()], vec![at("d", 1)], false),
            (vec![d.clone()], vec![at("d", 2)], true),
            (vec![gone.clone()], vec![at("g", 3)], false),
            (vec![gone.clone()], vec![], true),
            (vec![a.clone(), d.clone()], vec![at("a", 9), at("d", 1)], false),
            (vec![a, d, gone], vec![at("a", 9), at("d", 9)], true),
        ] {
            assert_eq!(may_be_made(&moves, &there), may, "{moves:?} {there:?}");
        }
    }
}

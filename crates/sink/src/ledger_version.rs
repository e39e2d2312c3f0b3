//! The version of the ledger's table, for all databases. It stands in the table's own definition, where the question whether
//! there is such a table finds it: a comment of it, in SQLite the statement that made it. So it costs no question more, and
//! who may only read and write rows reads it like its owner.
//!
//! A table that says nothing is of version 1: the first program wrote none. The table is never altered, since that waits for
//! the transactions of everybody who loads, holds up those that come, and is the right of its owner alone. What changes by
//! version is what a table that is made anew looks like; it goes with the last load in it.

use millstream_core::{Error, Result};

/// The version of the tables that are made.
pub(crate) const VERSION: u64 = 1;

/// In front of the number.
const MARK: &str = "Millstream ledger, version ";

/// What the definition of a table says.
pub(crate) fn mark() -> String {
    format!("{MARK}{VERSION}")
}

/// Refuses the ledger beside `place` if its `definition` says that a newer program has made it.
pub(crate) fn check(definition: &str, place: &str) -> Result<()> {
    let digits = definition
        .split_once(MARK)
        .map(|(_, behind)| behind.chars().take_while(char::is_ascii_digit).collect::<String>());
    match digits.and_then(|digits| digits.parse::<u64>().ok()) {
        Some(found) if found > VERSION => {
            Err(Error::newer(format!("the table `_millstream_ledger` beside {place}"), found, VERSION).hint(
                "upgrade Millstream on this machine; the table notes what was loaded, and this version cannot read it",
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_ledger_is_refused_and_one_without_a_version_is_not() {
        assert!(check(&format!("CREATE TABLE x (/* {} */)", mark()), "table t").is_ok());
        for definition in ["", "CREATE TABLE _millstream_ledger (version INTEGER)", "Millstream ledger, version "] {
            assert!(check(definition, "table t").is_ok(), "{definition}");
        }
        let error = check(&format!("{MARK}{}0", VERSION), "table t").expect_err("it is newer");
        assert_eq!(
            error.what(),
            "the table `_millstream_ledger` beside table t was written by a newer version of Millstream"
        );
    }
}

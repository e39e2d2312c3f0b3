//! The version of the ledger's table, for all databases. It is stored in the table's definition (a comment on the
//! table; in SQLite a comment in its `CREATE` statement), so the query that looks for the table returns it, too, and
//! users who may only read and write rows can see it.
//!
//! A table without it has version 1. Tables are never altered: `ALTER TABLE` waits for the transactions of all loads,
//! blocks new ones, and is allowed to the owner only. A new version applies to tables that are created from then on;
//! the ledger is dropped with the last load in it.

use millstream_core::{Error, Result};

/// The version of the tables that are created.
pub(crate) const VERSION: u64 = 1;

/// The text in front of the number.
const LABEL: &str = "Millstream ledger, version ";

/// The comment on a table.
pub(crate) fn label() -> String {
    format!("{LABEL}{VERSION}")
}

/// Refuses the ledger beside `target` if its `definition` has a newer version.
pub(crate) fn check(definition: &str, target: &str) -> Result<()> {
    let digits = definition
        .split_once(LABEL)
        .map(|(_, behind)| behind.chars().take_while(char::is_ascii_digit).collect::<String>());
    match digits.and_then(|digits| digits.parse::<u64>().ok()) {
        Some(found) if found > VERSION => {
            Err(Error::newer(format!("the table `_millstream_ledger` beside {target}"), found, VERSION).hint(
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
        assert!(check(&format!("CREATE TABLE x (/* {} */)", label()), "table t").is_ok());
        for definition in ["", "CREATE TABLE _millstream_ledger (version INTEGER)", "Millstream ledger, version "] {
            assert!(check(definition, "table t").is_ok(), "{definition}");
        }
        let error = check(&format!("{LABEL}{}0", VERSION), "table t").expect_err("it is newer");
        assert_eq!(
            error.what(),
            "the table `_millstream_ledger` beside table t was written by a newer version of Millstream"
        );
    }
}

//! The versions of the tables that loads keep beside their target, for all databases. A version is stored in the
//! table's definition (a comment on the table; in SQLite a comment in its `CREATE` statement), so the query that looks
//! for the table returns it, too, and users who may only read and write rows can see it.
//!
//! A table without it has version 1. Tables are never altered: `ALTER TABLE` waits for the transactions of all loads,
//! blocks new ones, and is allowed to the owner only. A new version applies to tables that are created from then on;
//! the ledger is dropped with the last load in it.

use millstream_core::{Error, Result};

/// A table that loads keep beside their target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptTable {
    /// Its name.
    pub(crate) name: &'static str,
    /// The text in front of the version.
    label: &'static str,
    /// The version of the tables that are created.
    version: u64,
    /// What it is for, in a message.
    purpose: &'static str,
}

/// Which chunks of which loads are committed. Staged loads have tables of the same form.
pub(crate) const LEDGER: KeptTable = KeptTable {
    name: "_millstream_ledger",
    label: "Millstream ledger, version ",
    version: 1,
    purpose: "the table notes what was loaded",
};

/// Where the readers of queues stand.
pub(crate) const POSITIONS: KeptTable = KeptTable {
    name: "_millstream_positions",
    label: "Millstream positions, version ",
    version: 1,
    purpose: "the table notes which messages of queues were loaded",
};

impl KeptTable {
    /// The comment on a table.
    pub(crate) fn comment(&self) -> String {
        format!("{}{}", self.label, self.version)
    }

    /// Refuses the table beside `target` if its `definition` has a newer version.
    pub(crate) fn check(&self, definition: &str, target: &str) -> Result<()> {
        let KeptTable { name, label, version, purpose } = self;
        let digits = definition
            .split_once(label)
            .map(|(_, behind)| behind.chars().take_while(char::is_ascii_digit).collect::<String>());
        match digits.and_then(|digits| digits.parse::<u64>().ok()) {
            Some(found) if found > *version => {
                let hint = format!("upgrade Millstream on this machine; {purpose}, and this version cannot read it");
                Err(Error::newer(format!("the table `{name}` beside {target}"), found, *version).hint(hint))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_table_is_refused_and_one_without_a_version_is_not() {
        for table in [LEDGER, POSITIONS] {
            let KeptTable { name, label, .. } = table;
            assert!(table.check(&format!("CREATE TABLE x (/* {} */)", table.comment()), "table t").is_ok());
            for definition in ["", &format!("CREATE TABLE {name} (version INTEGER)"), label] {
                assert!(table.check(definition, "table t").is_ok(), "{definition}");
            }
            let error = table.check(&format!("{}0", table.comment()), "table t").expect_err("it is newer");
            let what = format!("the table `{name}` beside table t was written by a newer version of Millstream");
            assert_eq!(error.what(), what);
        }
    }
}

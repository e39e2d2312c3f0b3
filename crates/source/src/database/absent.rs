//! A table that may be missing (`if_missing: empty`): then it has no rows, and the columns that the job names.
//!
//! Whether it is missing is found when its parts are listed, which is before any sink of the run creates a table.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use millstream_core::Result;
use millstream_core::columns::Columns;

use super::kind::Database;
use super::query::Query;
use super::spec::IfMissing;

/// A table that may be missing.
#[derive(Debug)]
pub(super) struct Absent {
    table: String,
    columns: Columns,
    /// The URLs of databases that lacked it when its parts were listed.
    lacking: Mutex<HashSet<String>>,
}

impl Absent {
    /// The table that the job reads, if it may be missing.
    pub(super) fn new(if_missing: IfMissing, query: Option<&Query>, columns: &Columns) -> Option<Self> {
        let table = query?.table()?.to_owned();
        let absent = Absent { table, columns: columns.clone(), lacking: Mutex::default() };
        (if_missing == IfMissing::Empty).then_some(absent)
    }

    /// Its columns, if the database lacks it.
    pub(super) async fn columns(&self, database: &dyn Database, url: &str) -> Result<Option<SchemaRef>> {
        if !database.lacks(url, &self.table).await? {
            return Ok(None);
        }
        self.columns.schema().map(Some)
    }

    /// Finds out whether the database lacks it, for [`Absent::is_lacking`].
    pub(super) async fn look(&self, database: &dyn Database, url: &str) -> Result<bool> {
        let lacks = database.lacks(url, &self.table).await?;
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if lacks {
            lacking.insert(url.to_owned())
        } else {
            lacking.remove(url)
        };
        Ok(lacks)
    }

    /// Whether the database lacked it when its parts were listed.
    pub(super) fn is_lacking(&self, url: &str) -> bool {
        self.lacking.lock().unwrap_or_else(PoisonError::into_inner).contains(url)
    }
}

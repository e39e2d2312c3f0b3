//! One load into a database, as the other files see it: its rows' columns, its settings, and what became of its rows so
//! far.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::Step;
use millstream_core::sink::Refusals;
use rusqlite::Connection;

use super::spec::SqliteSpec;
use super::table;

/// What the table has taken of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// Rows that came and were not refused.
    pub(super) rows: u64,
    /// Those of them that were left out, since their key was there.
    pub(super) left_out: u64,
}

/// One load into the database.
pub(super) struct Loading {
    pub(super) spec: SqliteSpec,
    /// The columns of the rows.
    pub(super) schema: SchemaRef,
    /// Where the load's work is counted.
    pub(super) step: Arc<Step>,
    pub(super) taken: Taken,
    /// Whether all rows are in and only the commit remains.
    pub(super) prepared: bool,
    /// What is noted with the rows.
    pub(super) mark: Option<String>,
    /// Whether an earlier run has written them.
    pub(super) done_before: bool,
    /// Tables with foreign keys that the load touches, and their violations before it.
    pub(super) foreign: Vec<(String, u64)>,
    /// Who decides about rows that the table refuses.
    pub(super) refusals: Option<Arc<dyn Refusals>>,
    /// The statements that build the indexes that wait for the rows.
    pub(super) indexes: Vec<String>,
    /// Which columns are text that the table's column may make a number of; none if it is not known yet.
    pub(super) watched: Vec<bool>,
    /// Whether rows that are gathered are tried first, so that the table tells which of them it does not take.
    pub(super) tried: bool,
}

impl Loading {
    pub(super) fn new(spec: SqliteSpec, schema: SchemaRef, step: Arc<Step>) -> Self {
        Loading {
            spec,
            schema,
            step,
            taken: Taken::default(),
            prepared: false,
            mark: None,
            done_before: false,
            foreign: Vec::new(),
            refusals: None,
            indexes: Vec::new(),
            watched: Vec::new(),
            tried: false,
        }
    }

    /// The same, which notes `mark` with its rows.
    pub(super) fn marked(self, mark: Option<String>) -> Self {
        Loading { mark, ..self }
    }

    /// The same, with someone who decides about rows that the table refuses.
    pub(super) fn refusing(self, refusals: Option<Arc<dyn Refusals>>) -> Self {
        Loading { refusals, ..self }
    }

    /// Looks at the table, which is there: for columns that could make numbers of text, and for conditions on rows.
    pub(super) fn watch(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.watched = table::watched(connection, &self.spec, &self.schema)?;
        self.tried =
            self.refusals.is_some() && table::is_gathered(&self.spec) && table::checks_rows(connection, &self.spec)?;
        Ok(())
    }
}

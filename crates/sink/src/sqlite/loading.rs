//! One load into a database, as the other files see it: its rows' columns, its settings, and the result so far.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::Step;
use millstream_core::sink::{LoadNotes, Refusals};
use rusqlite::Connection;

use super::new_rows::NewRows;
use super::spec::SqliteSpec;
use super::table::{self, Destination, Merged};
use crate::database::in_step::Counts;
use crate::database::spec::Mode;

/// The rows of a load that the table has accepted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// Rows that were not refused.
    pub(super) rows: u64,
    /// Rows that were left out, since their key existed.
    pub(super) left_out: u64,
    /// Rows of a merge that were inserted or changed.
    pub(super) written: u64,
    /// What the load has changed, once all rows are in.
    pub(super) counts: Counts,
}

/// One load into the database.
pub(super) struct Loading {
    pub(super) spec: SqliteSpec,
    /// The columns of the rows.
    pub(super) schema: SchemaRef,
    /// The metrics of the load.
    pub(super) step: Arc<Step>,
    pub(super) taken: Taken,
    /// Whether all rows are in and only the commit remains.
    pub(super) prepared: bool,
    /// The load name of the commit marker, which is written with the rows.
    pub(super) marker: Option<String>,
    /// What is noted in its place.
    pub(super) notes: Option<Arc<LoadNotes>>,
    /// Whether an earlier run has written the rows.
    pub(super) done_before: bool,
    /// Tables with foreign keys that the load touches, and their violations before it.
    pub(super) foreign: Vec<(String, u64)>,
    /// Decides about rows that the table refuses.
    pub(super) refusals: Option<Arc<dyn Refusals>>,
    /// The statements that build the deferred indexes.
    pub(super) indexes: Vec<String>,
    /// Which columns are text that the table's column may convert to numbers; empty if not known yet.
    pub(super) watched: Vec<bool>,
    /// When the first run of the resume chain began, in milliseconds since 1970.
    pub(super) began: u64,
    /// Which rows a merge writes.
    pub(super) merged: Merged,
    /// Counts new rows of a merge.
    pub(super) new_rows: NewRows,
    /// How many rows the table had, if SQLite does not report new ones.
    pub(super) unreported: Option<u64>,
    /// Whether gathered rows are first tried in the table, to find the ones that it refuses.
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
            marker: None,
            notes: None,
            done_before: false,
            foreign: Vec::new(),
            refusals: None,
            indexes: Vec::new(),
            watched: Vec::new(),
            began: 0,
            merged: Merged::default(),
            new_rows: NewRows::default(),
            unreported: None,
            tried: false,
        }
    }

    /// Sets the commit marker that is written with the rows.
    pub(super) fn with_marker(self, marker: Option<String>) -> Self {
        Loading { marker, ..self }
    }

    /// Sets what is noted with the rows, in place of a commit marker.
    pub(super) fn noting(self, notes: Option<Arc<LoadNotes>>) -> Self {
        Loading { notes, ..self }
    }

    /// Sets what decides about rows that the table refuses.
    pub(super) fn refusing(self, refusals: Option<Arc<dyn Refusals>>) -> Self {
        Loading { refusals, ..self }
    }

    /// Sets when the first run of the resume chain began.
    pub(super) fn begun_at(self, began: u64) -> Self {
        Loading { began, ..self }
    }

    /// Where its rows go.
    pub(super) fn destination(&self) -> Destination {
        match self.merged {
            // Each row is compared with the one that is there.
            Merged::Newer { .. } => Destination::Table,
            Merged::Differing { .. } | Merged::All => Destination::of(&self.spec),
        }
    }

    /// Examines the existing table for columns that could convert text to numbers, and for constraints on rows.
    pub(super) fn watch(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.watched = table::watched(connection, &self.spec, &self.schema)?;
        // A row of a history has no `valid_from` yet.
        let may_try = self.refusals.is_some() && table::is_gathered(&self.spec) && self.spec.mode != Mode::History;
        self.tried = may_try && table::checks_rows(connection, &self.spec)?;
        if self.spec.mode == Mode::Merge {
            self.unreported = table::unreported_rows(connection, &self.spec)?;
            self.merged = Merged::of(connection, &self.spec)?;
        }
        Ok(())
    }
}

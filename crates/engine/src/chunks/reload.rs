//! Reloads: units that have changed since they were loaded, whose rows are replaced (`on_change: reload`).
//!
//! They come after everything else, one after the other. All rows of a unit are computed before its transaction begins
//! and wait in a spool, so no lock is held while a slow server is read, and a transaction that failed is tried again
//! without reading anything twice. A run that ends before the commit leaves the unit as it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use futures::TryStreamExt;
use millstream_core::sink::{Chunk, Refused, Replaced, Replacement};
use millstream_core::{Error, ErrorKind, Result, fail_point};

use super::assemble::Assembler;
use super::group::Group;
use super::load::{FIRST_PAUSE, Loading, RETRIES, joined};
use super::refused::Attempt;
use super::spool::{Spool, Spooled};
use super::units::{Reload, UnitNotes, Units};
use crate::fault;
use crate::read::rows::Piece;
use crate::report::ReloadedFiles;

/// The column that tells the unit of a row.
pub const URI: &str = "_uri";

/// The most files that are named.
const MOST_NAMED: usize = 10;

/// The new rows of a unit.
struct NewRows {
    rows: Spooled,
    chunks: Vec<Chunk>,
    notes: Arc<UnitNotes>,
}

impl Loading {
    /// Reloads all units that have changed, and may be. `None` if there are none.
    pub(super) async fn reload_all(self: &Arc<Self>) -> Result<Option<ReloadedFiles>> {
        let mut reloaded = ReloadedFiles::default();
        for (number, units) in self.units.iter().enumerate() {
            for reload in units.take_reloads() {
                let name = reload.unit.name();
                let replaced = self.reload(number, &reload).await;
                let replaced = replaced.map_err(|error| error.in_step(&self.load.name))?;
                reloaded.files += 1;
                reloaded.rows_deleted += replaced.deleted;
                reloaded.rows_inserted += replaced.inserted;
                if replaced.is_new && replaced.deleted == 0 && reloaded.without_rows.len() < MOST_NAMED {
                    reloaded.without_rows.push(name);
                }
            }
        }
        Ok((reloaded.files > 0).then_some(reloaded))
    }

    async fn reload(self: &Arc<Self>, number: usize, reload: &Reload) -> Result<Replaced> {
        let name = reload.unit.name();
        self.check_other_sources(number, &name)?;
        let NewRows { rows, chunks, notes } = self.new_rows(number, reload, &name).await?;
        self.load.step.add_spilled(rows.spilled());
        self.load.judge_parsers()?;
        fail_point::pass("reload.read");
        let mut tries = 0;
        loop {
            let replacement = Replacement {
                column: URI.to_owned(),
                value: name.clone(),
                forgets: reload.forgets(&chunks),
                known_by: reload.known_by(),
                chunks: reload.notes(chunks.iter().cloned()),
                rows: rows.read()?,
            };
            match self.replace(replacement).await {
                Ok(replaced) => {
                    if !replaced.is_new {
                        self.came.before.fetch_add(rows.rows(), Ordering::Relaxed);
                    }
                    self.units[number].settle_reloaded(&reload.unit, notes);
                    return Ok(replaced);
                }
                Err(error) if error.kind() == ErrorKind::Transient && tries < RETRIES => {
                    tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                }
                Err(error) => {
                    let hint = error.hint_text().map_or(String::new(), |hint| format!("{hint}; "));
                    let hint = format!("{hint}the file stays as it was loaded before");
                    return Err(
                        if error.location().uri.is_some() { error } else { error.in_unit(&name, None) }.hint(hint)
                    );
                }
            }
        }
    }

    /// The rows of another source with the same file could not be distinguished from these.
    fn check_other_sources(&self, number: usize, name: &str) -> Result<()> {
        let mut others = self.units.iter().enumerate().filter(|(other, _)| *other != number);
        match others.find(|(_, units)| units.knows(name)) {
            None => Ok(()),
            Some((_, other)) => Err(Error::refused("a file that has changed cannot be reloaded")
                .in_unit(name, None)
                .cause(format!("`{}` has rows of it in the same table", other.source()))
                .hint("let the sources read different files, or write to different tables")),
        }
    }

    /// Reads the unit and computes its rows.
    async fn new_rows(self: &Arc<Self>, number: usize, reload: &Reload, name: &str) -> Result<NewRows> {
        let read = self.load.pipelines[number].read();
        let units = Arc::new(Units::of_reload(read.source(), reload));
        let notes = units.notes(&reload.unit.uri)?;
        let pieces = read.pieces_of_unit(reload.unit.clone(), self.load.wants_raw()).map_err(fault::unwrap)?;
        tokio::pin!(pieces);
        let mut assembler = Assembler::of_units(self, number, units);
        let mut spool = Spool::new(&self.load.budget, self.load.scratch.clone(), self.group_bytes);
        let mut chunks = Vec::new();
        while let Some((uri, piece)) = pieces.try_next().await? {
            tokio::task::yield_now().await;
            // What is noted at the end is known already.
            if matches!(piece, Piece::End) {
                continue;
            }
            for full in assembler.take(&uri, piece)? {
                chunks.extend(self.compute_into(&mut spool, full, name).await?);
            }
        }
        if let Some(rest) = assembler.rest() {
            chunks.extend(self.compute_into(&mut spool, rest, name).await?);
        }
        chunks.sort();
        chunks.dedup();
        Ok(NewRows { rows: spool.finish()?, chunks, notes })
    }

    /// Adds the rows of a group. What is rejected of it is kept; what is noted of the group comes back.
    async fn compute_into(self: &Arc<Self>, spool: &mut Spool, group: Group, name: &str) -> Result<Vec<Chunk>> {
        let group = Arc::new(group);
        let attempt = Arc::new(Attempt::new(self, &group));
        let mut computing = None;
        if group.has_rows() {
            let computing = computing.insert(self.compute(&group, &attempt)?);
            while let Some(batch) = computing.next(&attempt, None).await? {
                check_uri(&batch, name)?;
                spool.push(batch)?;
                tokio::task::yield_now().await;
            }
            attempt.checked(computing.checked());
        }
        let further = attempt.accept(&Refused::default())?;
        self.count(&group, &attempt, computing.as_ref(), attempt.sent_rows(), 0)?;
        Ok(group.chunks().into_iter().chain(further).collect())
    }

    /// Replaces rows in a task that outlives the run's end, and counts them.
    async fn replace(self: &Arc<Self>, replacement: Replacement) -> Result<Replaced> {
        let permit = Arc::clone(&self.load.commits.permits).acquire_owned().await;
        let permit = permit.map_err(|_| Error::new(ErrorKind::Interrupted, "the run ended before a commit began"))?;
        let (loading, notes) = (Arc::clone(self), replacement.chunks.len() as u64);
        let replacing = async move {
            let _until_counted = permit;
            let replaced = loading.load.ledger.replace(replacement).await;
            if let Ok(Replaced { is_new: true, inserted, forgotten, .. }) = replaced {
                loading.noted.fetch_add(notes, Ordering::Relaxed);
                loading.noted.fetch_sub(forgotten, Ordering::Relaxed);
                loading.load.step.add_rows(inserted);
                loading.rows.fetch_add(inserted, Ordering::Relaxed);
                loading.load.progress.iter().for_each(|progress| progress.add_rows(inserted));
            }
            replaced
        };
        let task = self.load.workers.spawn(replacing);
        self.load.commits.begun(task.abort_handle());
        joined(task.await)
    }
}

/// Rows that do not name their file would not be found when it is reloaded once more.
fn check_uri(batch: &RecordBatch, name: &str) -> Result<()> {
    let Some(column) = batch.column_by_name(URI) else {
        return Err(Error::internal("the rows of a file that is reloaded have no column for it"));
    };
    let names = arrow::compute::cast(column, &DataType::Utf8View)
        .map_err(|cause| Error::internal("the column of the files is no text").cause(cause))?;
    let names = names.as_string_view();
    match (0..names.len()).find(|row| names.is_null(*row) || names.value(*row) != name) {
        None => Ok(()),
        Some(row) => Err(Error::job(format!("the column `{URI}` is not the file of the row"))
            .text(if names.is_null(row) { "null" } else { names.value(row) })
            .in_unit(name, None)
            .hint("`on_change: reload` finds the rows of a file by it: hand it on unchanged")),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn each_row_names_its_file() {
        let batch = |names: Vec<Option<&str>>| {
            let column: Arc<dyn Array> = Arc::new(StringArray::from(names));
            RecordBatch::try_from_iter_with_nullable([(URI, column, true)]).expect("one column")
        };
        check_uri(&batch(vec![Some("in/a"), Some("in/a")]), "in/a").expect("they do");
        for other in [Some("in/A"), Some("in/a "), None] {
            assert!(check_uri(&batch(vec![Some("in/a"), other]), "in/a").is_err(), "{other:?}");
        }
    }
}

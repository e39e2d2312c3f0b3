//! Rows that wait until all of their unit have come: in memory, or in a file of the scratch folder if they are many.
//! They can be read several times.

use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use millstream_core::{Budget, Error, Result};
use tempfile::NamedTempFile;

/// Rows that wait.
pub(super) struct Spool {
    budget: Arc<Budget>,
    scratch: PathBuf,
    /// So many bytes may wait in memory.
    most: usize,
    held: Vec<RecordBatch>,
    /// The bytes of these.
    bytes: usize,
    file: Option<StreamWriter<BufWriter<NamedTempFile>>>,
    rows: u64,
    spilled: u64,
}

/// Rows of which all have come.
pub(super) struct Spooled {
    spool: Spool,
    file: Option<NamedTempFile>,
}

impl Spool {
    /// Holds at most about `most` bytes in memory, charged to `budget`.
    pub(super) fn new(budget: &Arc<Budget>, scratch: PathBuf, most: usize) -> Self {
        Spool { budget: Arc::clone(budget), scratch, most, held: Vec::new(), bytes: 0, file: None, rows: 0, spilled: 0 }
    }

    /// Adds rows.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let bytes = batch.get_array_memory_size();
        self.rows += batch.num_rows() as u64;
        if self.file.is_none() && self.bytes + bytes <= self.most {
            self.budget.take(bytes);
            self.bytes += bytes;
            self.held.push(batch);
            return Ok(());
        }
        self.spilled += bytes as u64;
        let writer = match &mut self.file {
            Some(writer) => writer,
            None => self.file.insert(new_file(&self.scratch, &batch)?),
        };
        writer.write(&batch).map_err(failed)
    }

    /// All have come.
    pub(super) fn finish(mut self) -> Result<Spooled> {
        let file = self.file.take().map(|writer| {
            let written = writer.into_inner().map_err(failed)?;
            written.into_inner().map_err(|cause| failed(cause.error()))
        });
        Ok(Spooled { file: file.transpose()?, spool: self })
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

impl Spooled {
    /// How many rows there are.
    pub(super) fn rows(&self) -> u64 {
        self.spool.rows
    }

    /// The bytes in the file.
    pub(super) fn spilled(&self) -> u64 {
        self.spool.spilled
    }

    /// The rows, from the first on.
    pub(super) fn read(&self) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
        let held = self.spool.held.clone().into_iter().map(Ok);
        let Some(file) = &self.file else { return Ok(Box::new(held)) };
        let file = BufReader::new(file.reopen().map_err(failed)?);
        let spilled = StreamReader::try_new(file, None).map_err(failed)?;
        Ok(Box::new(held.chain(spilled.map(|batch| batch.map_err(failed)))))
    }
}

fn new_file(folder: &PathBuf, first: &RecordBatch) -> Result<StreamWriter<BufWriter<NamedTempFile>>> {
    let file = tempfile::Builder::new().prefix("millstream-").tempfile_in(folder);
    let file =
        file.map_err(|cause| Error::io(format!("no scratch file can be created in {}", folder.display()), &cause))?;
    StreamWriter::try_new(BufWriter::new(file), &first.schema()).map_err(failed)
}

fn failed(cause: impl std::fmt::Display) -> Error {
    Error::refused("rows cannot be kept in the scratch folder").cause(cause)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
        let names: StringViewArray = rows.clone().map(|row| Some(format!("the name of row {row}"))).collect();
        let ids: Int64Array = rows.map(Some).collect();
        let columns: Vec<(&str, Arc<dyn arrow::array::Array>)> = vec![("id", Arc::new(ids)), ("name", Arc::new(names))];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    #[test]
    fn rows_come_in_order_as_often_as_they_are_read_wherever_they_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        for most in [0, 20_000, usize::MAX] {
            let budget = Budget::new(1 << 30);
            let mut spool = Spool::new(&budget, folder.path().to_owned(), most);
            (0..20).for_each(|part| spool.push(batch(part * 100..part * 100 + 100)).expect("it is kept"));
            let spooled = spool.finish().expect("all are kept");
            assert_eq!((spooled.rows(), spooled.spilled() > 0), (2_000, most < usize::MAX), "{most}");
            for _ in 0..2 {
                let batches: Vec<RecordBatch> =
                    spooled.read().expect("it opens").map(|one| one.expect("rows")).collect();
                let ids =
                    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
                assert!(ids.eq(0..2_000), "{most}");
                assert_eq!(batches[13].column(1).as_string_view().value(7), "the name of row 1307");
            }
            drop(spooled);
            assert_eq!(budget.used(), 0);
        }
    }
}

//! Any bytes as a Parquet file: no panic, bounded memory, and what can be read can be written and read again.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::executor::block_on;
use millstream_core::format::{Format, ParseRequest, RangeFormat, ReadAt};
use millstream_core::{Budget, Result};
use millstream_format::parquet::ParquetFormat;

/// The most rows that are read from a file: a few bytes can stand for very many.
const MOST_ROWS: usize = 100_000;

/// The memory in bytes that decoding may take.
const MEMORY: usize = 256 << 20;

/// A file in memory.
#[derive(Debug)]
struct InMemory(Bytes);

#[async_trait]
impl ReadAt for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        assert!(range.start <= range.end && range.end <= self.size(), "asked for {range:?} of {}", self.size());
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

/// The rows of a file, up to a limit; `None` if it cannot be read.
fn read(format: &ParquetFormat, file: Bytes) -> Option<Vec<RecordBatch>> {
    let file: Arc<dyn ReadAt> = Arc::new(InMemory(file));
    let schema = block_on(format.columns(Arc::clone(&file))).ok()?;
    let budget = Some(Budget::new(MEMORY));
    let mut stream = format.read(file, &ParseRequest { lines: true, budget, ..ParseRequest::all(schema) });
    let mut batches = Vec::new();
    let mut count = 0;
    while count < MOST_ROWS {
        match block_on(stream.next()) {
            None => return Some(batches),
            Some(Err(_)) => return None,
            Some(Ok(parsed)) => {
                count += parsed.rejects.len();
                for rows in parsed.rows {
                    assert!(rows.lines.is_some_and(|lines| lines.len() == rows.batch.num_rows()));
                    count += rows.batch.num_rows();
                    batches.push(rows.batch);
                }
            }
        }
    }
    None
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let format = ParquetFormat::default();
    let Some(batches) = read(&format, Bytes::copy_from_slice(data)) else { return };
    let Some(first) = batches.first() else { return };
    let Ok(mut encoder) = format.encoder(first.schema(), true) else { return };
    let mut written = Vec::new();
    for batch in &batches {
        if encoder.encode(batch, &mut written).is_err() {
            return;
        }
    }
    encoder.finish(&mut written).expect("rows that were written can be finished");
    let again = read(&format, Bytes::from(written)).expect("what was written can be read");
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(rows(&again), rows(&batches));
}

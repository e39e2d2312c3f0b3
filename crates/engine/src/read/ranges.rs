//! Files that are read by ranges.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use millstream_core::format::ReadAt;
use millstream_core::source::{Source, SourceContext};
use millstream_core::{Budget, ByteStream, Error, Result, Unit};

use super::Reader;
use super::concurrency::ConcurrencyLimit;

/// The bytes of `unit` in `range`.
pub async fn range_of(reader: &Reader, unit: &Unit, range: Range<u64>) -> Result<ByteStream> {
    if range.is_empty() {
        return Ok(stream::empty().boxed());
    }
    let part = Unit { range: Some(range), ..unit.clone() };
    reader.source_of(&unit.uri)?.open(&reader.context, &part).await
}

/// `unit` as a file that is read by ranges, if its place can do that and it is not packed. What comes of it is told to
/// `pace`.
pub async fn ranged_file(
    reader: &Arc<Reader>,
    unit: &Unit,
    limit: Option<Arc<ConcurrencyLimit>>,
) -> Result<Option<Arc<dyn ReadAt>>> {
    let source = Arc::clone(reader.source_of(&unit.uri)?);
    if unit.uri == "-" {
        return Ok(None);
    }
    let at_unit = |error: Error| error.in_unit(&unit.uri, None);
    let unit = match unit.as_cut() {
        Some(cut) => cut,
        None => source.look(&reader.context, unit).await.map_err(at_unit)?,
    };
    let Some(size) = unit.size else { return Ok(None) };
    let head = 0..size.min(millstream_codec::PACKED_HEAD as u64);
    reader.context.pace.take(head.end).await;
    let head = source.read_range(&reader.context, &unit, head).await.map_err(at_unit)?;
    let Some(head) = head else { return Ok(None) };
    if millstream_codec::is_packed(&head, millstream_codec::codec_by_name(&unit.uri)) {
        return Ok(None);
    }
    Ok(Some(Arc::new(Ranged { source, reader: Arc::clone(reader), unit, limit, size })))
}

#[derive(Debug)]
struct Ranged {
    source: Arc<dyn Source>,
    reader: Arc<Reader>,
    /// With its size and version: all ranges are of one.
    unit: Unit,
    limit: Option<Arc<ConcurrencyLimit>>,
    size: u64,
}

#[async_trait]
impl ReadAt for Ranged {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let context: &SourceContext = &self.reader.context;
        let start = Instant::now();
        context.pace.take(range.end.saturating_sub(range.start)).await;
        let bytes = self.source.read_range(context, &self.unit, range).await;
        self.reader.steps.decode.add_waiting_input(start.elapsed());
        let bytes = bytes?.ok_or_else(|| Error::refused("the server no longer answers range requests"))?;
        self.reader.steps.fetch.add_bytes(bytes.len() as u64);
        if let Some(limit) = &self.limit {
            limit.add_bytes(bytes.len() as u64);
        }
        Ok(Bytes::from_owner(Charged::new(bytes, &context.budget)))
    }
}

/// Bytes that are charged to the budget as long as something of them is used.
struct Charged {
    bytes: Bytes,
    budget: Arc<Budget>,
}

impl Charged {
    /// `bytes`, which are there already, whether there is room for them or not.
    fn new(bytes: Bytes, budget: &Arc<Budget>) -> Self {
        budget.take(bytes.len());
        Charged { bytes, budget: Arc::clone(budget) }
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes.len());
    }
}

/// A file that was collected in memory.
#[derive(Debug)]
pub struct Collected(pub Bytes);

#[async_trait]
impl ReadAt for Collected {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let (start, end) = (range.start as usize, range.end as usize);
        if start > end || end > self.0.len() {
            return Err(Error::data(format!("the file has {} bytes and ends before byte {end}", self.0.len())));
        }
        Ok(self.0.slice(start..end))
    }
}

//! The bytes of a parquet file: its directory, which stands at the end, and the ranges that the reader asks for.
//!
//! Owns which requests are made, and what is said of a file that is no parquet file. What is in the bytes is left to
//! the parquet crate.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use millstream_core::format::ReadAt;
use millstream_core::{Error, Result};
use parquet::DecodeResult;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataPushDecoder};

use super::pages;

/// Bytes at the end of the file that are read first: the directory of most files is in them.
const TAIL: u64 = 64 << 10;

/// What every parquet file begins and ends with.
const MAGIC: &[u8] = b"PAR1";

/// What a file with an encrypted directory ends with.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// Magic, length of the directory, and magic: the least a file has beside its directory.
const LEAST: u64 = 12;

/// Ranges with a gap of at most this many bytes are read as one.
const GAP: u64 = 64 << 10;

/// Ranges are not joined to more than this many bytes.
const LARGEST_REQUEST: u64 = 16 << 20;

/// Reads the directory of a file.
pub async fn directory(file: &dyn ReadAt) -> Result<Arc<ParquetMetaData>> {
    let size = file.size();
    if size < LEAST {
        return Err(Error::data(format!("not a parquet file: it has only {size} bytes"))
            .hint("check whether the file is complete"));
    }
    let tail_range = size.saturating_sub(TAIL)..size;
    let tail = file.read_at(tail_range.clone()).await?;
    check_tail(&tail, size)?;
    let mut decoder = ParquetMetaDataPushDecoder::try_new(size).map_err(unreadable)?;
    decoder.push_range(tail_range, tail).map_err(unreadable)?;
    loop {
        match decoder.try_decode().map_err(unreadable)? {
            DecodeResult::Data(metadata) => return Ok(Arc::new(metadata)),
            DecodeResult::Finished => return Err(Error::internal("the directory of a parquet file was read twice")),
            DecodeResult::NeedsData(ranges) => {
                for range in ranges {
                    let bytes = file.read_at(range.clone()).await?;
                    decoder.push_range(range, bytes).map_err(unreadable)?;
                }
            }
        }
    }
}

fn check_tail(tail: &[u8], size: u64) -> Result<()> {
    let (directory_length, magic) = match tail.last_chunk::<8>() {
        Some([a, b, c, d, magic @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), magic),
        None => return Err(Error::internal("less was read of a parquet file than was asked for")),
    };
    if magic == ENCRYPTED_MAGIC {
        return Err(
            Error::refused("the parquet file is encrypted").hint("Millstream reads only files without encryption")
        );
    }
    if magic != MAGIC {
        return Err(Error::data("not a parquet file: it does not end with PAR1")
            .byte(size - 4)
            .text(magic)
            .hint("it may be cut short, or of another format"));
    }
    if u64::from(directory_length) + LEAST > size {
        return Err(Error::data(format!(
            "damaged parquet file: its directory would have {directory_length} bytes, and the file has {size}"
        ))
        .byte(size - 8)
        .hint("it may be cut short at its beginning; write or fetch it again"));
    }
    Ok(())
}

/// The error of a file that the parquet crate cannot make out; an error of our own comes back as it was.
pub fn unreadable(cause: ParquetError) -> Error {
    match cause {
        ParquetError::External(inner) => match inner.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => damaged(&other.to_string()),
        },
        other => damaged(&other.to_string()),
    }
}

/// The error of a file whose content contradicts itself.
pub fn damaged(cause: &str) -> Error {
    let message = cause.trim_start_matches("Parquet error: ").trim_start_matches("Arrow: ");
    Error::data("damaged parquet file").cause(message).hint("write or fetch the file again")
}

/// A file as the parquet crate wants it. The directory has been read before.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// The bytes.
    pub file: Arc<dyn ReadAt>,
    /// The directory.
    pub metadata: Arc<ParquetMetaData>,
}

impl AsyncFileReader for Fetch {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        read(&self.file, range).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        async move {
            let requests = joined(&ranges);
            let answers = try_join_all(requests.iter().map(|request| read(&self.file, request.clone()))).await?;
            let piece = |range: &Range<u64>| {
                let holder = requests.iter().zip(&answers).find(|(r, _)| r.start <= range.start && range.end <= r.end);
                holder.and_then(|(request, bytes)| {
                    let start = usize::try_from(range.start - request.start).ok()?;
                    let end = usize::try_from(range.end - request.start).ok()?;
                    (end <= bytes.len()).then(|| bytes.slice(start..end))
                })
            };
            let pieces: Option<Vec<Bytes>> = ranges.iter().map(piece).collect();
            let pieces = pieces.ok_or_else(|| ParquetError::EOF("less was read than was asked for".to_owned()))?;
            pieces.iter().try_for_each(|chunk| pages::check(chunk).map_err(ParquetError::General))?;
            Ok(pieces)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        let metadata = Arc::clone(&self.metadata);
        async move { Ok(metadata) }.boxed()
    }
}

async fn read(file: &Arc<dyn ReadAt>, range: Range<u64>) -> parquet::errors::Result<Bytes> {
    let size = file.size();
    if range.start > range.end || range.end > size {
        let message = format!("the directory points to bytes {} to {} of {size}", range.start, range.end);
        return Err(ParquetError::General(message));
    }
    file.read_at(range).await.map_err(|error| ParquetError::External(Box::new(error)))
}

/// The requests that bring all `ranges`: those that lie close to each other are joined.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| (range.start, range.end));
    let mut requests: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match requests.last_mut() {
            Some(last)
                if range.start <= last.end.saturating_add(GAP)
                    && (range.end <= last.end || range.end - last.start <= LARGEST_REQUEST) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => requests.push(range),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn neighbours_are_read_together() {
        assert_eq!(joined(&[100..200, 0..50, 300..400]), vec![0..400; 1]);
        assert_eq!(joined(&[0..50, 1 << 20..(1 << 20) + 5]), [0..50, 1 << 20..(1 << 20) + 5]);
        let large = 15 << 20;
        assert_eq!(joined(&[0..large, large..2 * large]), [0..large, large..2 * large]);
        assert_eq!(joined(&[0..2 * large, 5..10]), vec![0..2 * large; 1]);
    }
}

//! The bytes of a Parquet file: its directory, which is at the end, and the ranges that the reader requests.
//!
//! It decides which requests to make, and reports files that are no Parquet files. The parquet crate decodes the bytes.

use std::ops::Range;

use bytes::Bytes;
use futures::future::try_join_all;
use millstream_core::format::ReadAt;
use millstream_core::{Error, Result};
use parquet::errors::ParquetError;

use super::directory::Directory;

/// Bytes at the end of the file that are read first: the directory of most files is in them.
const TAIL: u64 = 64 << 10;

/// What every parquet file begins and ends with.
const MAGIC: &[u8] = b"PAR1";

/// What a file with an encrypted directory ends with.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// Magic, length of the directory, and magic: the least bytes of a file besides its directory.
const LEAST: u64 = 12;

/// Ranges with a gap of at most this many bytes are read as one.
const GAP: u64 = 64 << 10;

/// Ranges are not joined to more than this many bytes.
const LARGEST_REQUEST: u64 = 16 << 20;

/// Reads the directory of a file.
pub async fn directory(file: &dyn ReadAt) -> Result<Directory> {
    let size = file.size();
    if size == 0 {
        return Err(Error::data("not a parquet file: it is empty").hint(
            "check whether the file is complete; or set `empty_files: allow` in the source to read empty files as \
             files \
             without rows",
        ));
    }
    if size < LEAST {
        return Err(Error::data(format!("not a parquet file: it has only {size} bytes"))
            .hint("check whether the file is complete"));
    }
    let tail_begin = size.saturating_sub(TAIL);
    let tail = file.read_at(tail_begin..size).await?;
    let length = check_tail(&tail, size)?;
    let end = size - 8;
    let begin = end - length;
    let bytes = match begin.checked_sub(tail_begin) {
        Some(before) => {
            let (before, length) = (usize::try_from(before).unwrap_or(0), usize::try_from(length).unwrap_or(0));
            tail.slice(before..before + length)
        }
        None => file.read_at(begin..end).await?,
    };
    Directory::parse(&bytes)
}

/// The bytes of the directory, if the file ends as it should.
fn check_tail(tail: &[u8], size: u64) -> Result<u64> {
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
    Ok(u64::from(directory_length))
}

/// The error of a file that the parquet crate cannot read; an error of our own is returned unchanged.
pub fn unreadable(cause: ParquetError) -> Error {
    match cause {
        ParquetError::External(inner) => match inner.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => in_words(&other.to_string()),
        },
        ParquetError::NYI(what) => unsupported(&what),
        other => in_words(&other.to_string()),
    }
}

/// The same for an error of the parquet crate as text.
pub fn in_words(cause: &str) -> Error {
    let mut message = cause;
    for prefix in ["Parquet argument error: ", "Parquet error: ", "Arrow: ", "External: ", "EOF: "] {
        message = message.trim_start_matches(prefix);
    }
    match message.strip_prefix("NYI: ") {
        Some(what) => unsupported(what),
        None => damaged(message),
    }
}

/// The error of a valid file that cannot be read.
pub fn unsupported(what: &str) -> Error {
    Error::refused("the parquet file uses a part of the format that Millstream does not read")
        .cause(what)
        .hint("write the file again without it, or leave the column out")
}

/// The error of a file whose content contradicts itself.
pub fn damaged(cause: &str) -> Error {
    Error::data("damaged parquet file").cause(cause).hint("write or fetch the file again")
}

/// The bytes of all `ranges`.
pub async fn ranges(file: &dyn ReadAt, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let size = file.size();
    if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > size) {
        return Err(damaged(&format!("the directory points to bytes {} to {} of {size}", range.start, range.end)));
    }
    let requests = joined(ranges);
    let answers = try_join_all(requests.iter().map(|request| file.read_at(request.clone()))).await?;
    let piece = |range: &Range<u64>| {
        let holder = requests.iter().zip(&answers).find(|(r, _)| r.start <= range.start && range.end <= r.end);
        holder.and_then(|(request, bytes)| {
            let start = usize::try_from(range.start - request.start).ok()?;
            let end = usize::try_from(range.end - request.start).ok()?;
            (end <= bytes.len()).then(|| bytes.slice(start..end))
        })
    };
    let pieces: Option<Vec<Bytes>> = ranges.iter().map(piece).collect();
    pieces.ok_or_else(|| damaged("less was read than was asked for"))
}

/// The requests for all `ranges`: close ones are joined.
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

//! Where the records of a short text begin: to cut one record out of a file.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use millstream_core::format::{ParseRequest, Parsed, Parser};

use super::Csv;

/// The bytes at which the records of `text` begin, in no order; `text` begins like a file and may be cut off anywhere.
/// `None` if it cannot be parsed.
pub(super) fn starts(csv: &Csv, text: &[u8], request: &ParseRequest) -> Option<Vec<usize>> {
    let mut parser = csv.csv_parser(request).ok()?;
    let mut parsed = Parsed::default();
    parser.push(Bytes::copy_from_slice(text), &mut parsed).ok()?;
    // The last record may be cut off: that it is faulty then does not matter.
    let _ = parser.finish(&mut parsed);
    let mut starts: Vec<u64> = parsed.rejects.iter().map(|reject| reject.byte).collect();
    for bytes in parsed.rows.iter().filter_map(|rows| rows.bytes.as_ref()) {
        starts.extend(bytes.as_primitive::<Int64Type>().values().iter().map(|start| start.unsigned_abs()));
    }
    starts.into_iter().map(|start| usize::try_from(start).ok()).collect()
}

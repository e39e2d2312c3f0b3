//! Cuts the raw record of a row out of the text that follows its beginning: see `raw.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use memchr::memchr;
use millstream_core::format::{ParseRequest, Parsed};

use super::Reader;
use super::rows::stream_format;
use crate::rejects::CutRecord;

/// The head that was asked for last.
#[derive(Debug)]
struct Head {
    /// The beginning that it is in.
    beginning: Vec<u8>,
    head: Vec<u8>,
}

/// Cuts the record out of the text with which it begins.
#[derive(Debug, Clone)]
pub struct Cutter {
    reader: Arc<Reader>,
    request: Arc<ParseRequest>,
    last: Arc<Mutex<Option<Head>>>,
}

impl Cutter {
    /// Of records that `reader` reads as `request` asks.
    pub fn new(reader: Arc<Reader>, request: &ParseRequest) -> Self {
        let request = ParseRequest { bytes: true, lines: true, required: Vec::new(), ..request.clone() };
        Cutter { reader, request: Arc::new(request), last: Arc::default() }
    }

    /// Where the second record of `text` begins, if it has two.
    fn second_record(&self, head: &[u8], text: &[u8]) -> Option<usize> {
        let starts = self.records(&[head, text].concat())?;
        starts.into_iter().filter(|start| *start > head.len()).min().map(|start| start - head.len())
    }

    /// Where records begin in `text`, which may break off.
    fn records(&self, text: &[u8]) -> Option<Vec<usize>> {
        let mut parser = stream_format(&self.reader)?.parser(&self.request).ok()?;
        let mut parsed = Parsed::default();
        parser.push(Bytes::copy_from_slice(text), &mut parsed).ok()?;
        // Of the last record some may be missing: what is said of it does not matter.
        let _ = parser.finish(&mut parsed);
        let mut starts: Vec<u64> = parsed.rejects.iter().map(|reject| reject.byte).collect();
        for bytes in parsed.rows.iter().filter_map(|rows| rows.bytes.as_ref()) {
            starts.extend(bytes.as_primitive::<Int64Type>().values().iter().map(|start| start.unsigned_abs()));
        }
        starts.into_iter().map(|start| usize::try_from(start).ok()).collect()
    }
}

impl CutRecord for Cutter {
    fn head(&self, beginning: &[u8]) -> Vec<u8> {
        if self.reader.format.name() != "csv" || beginning.is_empty() {
            return Vec::new();
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(known) if known.beginning == beginning => known.head.clone(),
            _ => {
                let first = self.records(beginning).and_then(|starts| starts.into_iter().min());
                let head = first.and_then(|first| beginning.get(..first)).unwrap_or_default().to_vec();
                *last = Some(Head { beginning: beginning.to_vec(), head: head.clone() });
                head
            }
        }
    }

    fn has_text(&self) -> bool {
        stream_format(&self.reader).is_some()
    }

    fn record<'a>(&self, head: &[u8], text: &'a [u8]) -> &'a [u8] {
        let record = match self.reader.format.name() {
            "json" => json_value(text),
            "csv" => &text[..self.second_record(head, text).unwrap_or(text.len())],
            _ => &text[..memchr(b'\n', text).unwrap_or(text.len())],
        };
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        record.strip_suffix(b"\r").unwrap_or(record)
    }
}

/// The first value of `text`; all of it if that is none.
fn json_value(text: &[u8]) -> &[u8] {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => &text[..values.byte_offset()],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_json_ends_where_it_ends() {
        assert_eq!(json_value(b"{\"a\": \"},\"},\n {\"b\": 2}]"), b"{\"a\": \"},\"}");
        assert_eq!(json_value(b"{\"a\":"), b"{\"a\":");
    }
}

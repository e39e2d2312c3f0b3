//! Cuts the raw record of a row out of the text that follows its beginning: see `raw.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::format::ParseRequest;

use super::Reader;
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
}

impl CutRecord for Cutter {
    fn head(&self, beginning: &[u8]) -> Vec<u8> {
        let Some(format) = self.reader.stream_format().filter(|_| !beginning.is_empty()) else { return Vec::new() };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(known) if known.beginning == beginning => known.head.clone(),
            _ => {
                let length = format.header_length(beginning, &self.request);
                let head = beginning.get(..length).unwrap_or_default().to_vec();
                *last = Some(Head { beginning: beginning.to_vec(), head: head.clone() });
                head
            }
        }
    }

    fn has_text(&self) -> bool {
        self.reader.stream_format().is_some()
    }

    fn record<'a>(&self, head: &[u8], text: &'a [u8]) -> &'a [u8] {
        let length = self.reader.stream_format().map(|format| format.record_length(head, text, &self.request));
        let record = length.and_then(|length| text.get(..length)).unwrap_or(text);
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        record.strip_suffix(b"\r").unwrap_or(record)
    }
}

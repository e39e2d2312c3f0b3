//! A stream of Arrow IPC that is read message by message.
//!
//! `arrow_ipc`'s own decoder takes a batch without a body (one without rows) for read when the next message begins. A
//! program that waits for the next batch never sends that.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{MessageHeader, root_as_message};
use bytes::Bytes;
use millstream_core::{Error, Result};

use crate::unread::Unread;

/// What precedes the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The largest metadata of a message, in bytes.
const MOST_METADATA: usize = 64 << 20;

/// Reads a stream.
#[derive(Default)]
pub(crate) struct ArrowStream {
    schema: Option<SchemaRef>,
    dictionaries: HashMap<i64, ArrayRef>,
    has_ended: bool,
}

impl ArrowStream {
    /// The next batch of `bytes`, if it is there as a whole.
    ///
    /// # Errors
    /// If the bytes are no such stream.
    pub fn next(&mut self, bytes: &mut Unread) -> Result<Option<RecordBatch>> {
        loop {
            let Some(message) = self.message(bytes)? else { return Ok(None) };
            let metadata = root_as_message(&message.metadata).map_err(no_arrow)?;
            let body = Buffer::from(message.body);
            let version = metadata.version();
            match (metadata.header_type(), &self.schema) {
                (MessageHeader::Schema, None) => {
                    let schema = metadata.header_as_schema().ok_or_else(|| no_arrow("a schema is missing"))?;
                    self.schema = Some(Arc::new(fb_to_schema(schema)));
                }
                (MessageHeader::DictionaryBatch, Some(schema)) => {
                    let batch = metadata.header_as_dictionary_batch();
                    let batch = batch.ok_or_else(|| no_arrow("a dictionary is missing"))?;
                    read_dictionary(&body, batch, schema, &mut self.dictionaries, &version).map_err(no_arrow)?;
                }
                (MessageHeader::RecordBatch, Some(schema)) => {
                    let batch = metadata.header_as_record_batch().ok_or_else(|| no_arrow("a batch is missing"))?;
                    let schema = Arc::clone(schema);
                    let batch = read_record_batch(&body, batch, schema, &self.dictionaries, None, &version);
                    return batch.map(Some).map_err(no_arrow);
                }
                (header, _) => return Err(no_arrow(format!("a message {header:?} is not where it belongs"))),
            }
        }
    }

    fn message(&mut self, bytes: &mut Unread) -> Result<Option<Message>> {
        // Without the mark it is a stream of an old version.
        let prefix = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
        let Some(length) = bytes.get(prefix - 4..prefix) else { return Ok(None) };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if self.has_ended {
            return Err(no_arrow("there are bytes behind its end"));
        }
        if length == 0 {
            self.has_ended = true;
            let _ = bytes.split_to(prefix);
            return Ok(None);
        }
        if length > MOST_METADATA {
            return Err(no_arrow("its first bytes are those of something else"));
        }
        let Some(metadata) = bytes.get(prefix..prefix + length) else { return Ok(None) };
        let body = root_as_message(metadata).map_err(no_arrow)?.bodyLength();
        let body = usize::try_from(body).map_err(|_| no_arrow("a length is below zero"))?;
        let all = (prefix + length).checked_add(body).ok_or_else(|| no_arrow("a length is too large"))?;
        if bytes.len() < all {
            return Ok(None);
        }
        let mut message = bytes.split_to(all);
        let body = message.split_off(prefix + length);
        Ok(Some(Message { metadata: message.split_off(prefix), body }))
    }
}

struct Message {
    metadata: Bytes,
    body: Bytes,
}

fn no_arrow(cause: impl std::fmt::Display) -> Error {
    Error::data("what the program gave is no Arrow IPC stream").cause(cause)
}

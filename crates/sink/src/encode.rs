//! Encodes rows to bytes: combines the format and the codec of one sink, as one stream, or as pieces that may follow
//! each other.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millstream_core::codec::{Codec, Encoder};
use millstream_core::format::{Format, Reading, RowEncoder};
use millstream_core::sink::SinkParts;
use millstream_core::spec::Fault;
use millstream_core::{Error, Result};

use crate::shared::Charge;

/// Rows that are encoded in one call, so that the size of wide rows is checked often enough.
pub(crate) const ENCODE_ROWS: usize = 1024;

/// How the rows of a sink become bytes.
#[derive(Debug, Clone)]
pub(crate) struct Encoding {
    format: Arc<dyn Format>,
    codec: Option<Arc<dyn Codec>>,
    level: Option<i32>,
}

impl Encoding {
    /// The encoding with the format and codec of `parts`, or their faults for writing.
    pub(crate) fn new(parts: &SinkParts, level: Option<i32>) -> Result<Self, Vec<Fault>> {
        let Some(format) = &parts.format else {
            return Err(vec![
                Fault::new("write", format!("`{}` does not say which format to write", parts.target))
                    .hint("add a format block, such as `csv: {}`, or an ending that names it, such as `.csv`"),
            ]);
        };
        let faults = match &parts.codec {
            Some(codec) => codec_faults(format.as_ref(), codec.as_ref(), level),
            None if level.is_some() => {
                vec![Fault::new("level", "a level without a compression").hint("add `compress`, or leave `level` out")]
            }
            None => Vec::new(),
        };
        if faults.is_empty() {
            Ok(Encoding { format: Arc::clone(format), codec: parts.codec.clone(), level })
        } else {
            Err(faults)
        }
    }

    /// Whether pieces that were encoded separately may follow each other in one file.
    pub(crate) fn splittable(&self) -> bool {
        self.format.splittable()
    }

    /// The format's name.
    pub(crate) fn format(&self) -> &'static str {
        self.format.name()
    }

    /// `csv, gzip`.
    pub(crate) fn describe(&self) -> String {
        match &self.codec {
            Some(codec) => format!("{}, {}", self.format.name(), codec.name()),
            None => self.format.name().to_owned(),
        }
    }

    /// Fails if rows of `schema` cannot be written in this format.
    pub(crate) fn check(&self, schema: SchemaRef) -> Result<()> {
        self.format.encoder(schema, true).map(drop)
    }

    /// One stream for a whole file, or for the rest of one if `begin` is false.
    pub(crate) fn stream(&self, schema: &SchemaRef, begin: bool) -> Result<EncodeStream> {
        Ok(EncodeStream { rows: self.rows(schema, begin)?, codec: self.encoder()? })
    }

    /// An encoder of rows alone, for text that is compressed later by [`Encoding::compress`].
    pub(crate) fn rows(&self, schema: &SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        self.format.encoder(Arc::clone(schema), begin)
    }

    /// The bytes before the rows in a file to which pieces are appended: those of a file without rows, since a
    /// splittable format has nothing after its rows.
    pub(crate) fn beginning(&self, schema: &SchemaRef) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.rows(schema, true)?.finish(&mut text)?;
        if text.is_empty() { Ok(text) } else { self.compress(text) }
    }

    /// The bytes of a file without rows. Unlike its beginning, it is never empty if the codec has a frame: an empty
    /// file is no gzip.
    pub(crate) fn empty(&self, schema: &SchemaRef) -> Result<Vec<u8>> {
        let mut output = Vec::new();
        self.stream(schema, true)?.finish(&mut Vec::new(), &mut output)?;
        Ok(output)
    }

    /// `text` as one whole member or frame.
    pub(crate) fn compress(&self, text: Vec<u8>) -> Result<Vec<u8>> {
        let Some(mut encoder) = self.encoder()? else { return Ok(text) };
        let mut output = Vec::with_capacity(text.len() / 4 + 64);
        encoder.encode(&text, &mut output)?;
        encoder.finish(&mut output)?;
        Ok(output)
    }

    fn encoder(&self) -> Result<Option<Box<dyn Encoder>>> {
        let Some(codec) = &self.codec else { return Ok(None) };
        match codec.encoder(self.level)? {
            Some(encoder) => Ok(Some(encoder)),
            None => Err(Error::job(format!("{} can only be read", codec.name()))),
        }
    }
}

/// Faults of compressing `format` with `codec` at `level`.
fn codec_faults(format: &dyn Format, codec: &dyn Codec, level: Option<i32>) -> Vec<Fault> {
    if matches!(format.reading(), Reading::Ranges(_)) {
        let what =
            format!("{} compresses its own pages, and compressed as a whole it could not be read", format.name());
        return vec![Fault::new("compress", what).hint(format!(
            "leave `compress` out and the ending {} off; {} has a setting of its own",
            codec.extension(),
            format.name()
        ))];
    }
    match codec.encoder(level) {
        Ok(Some(_)) => Vec::new(),
        Ok(None) => {
            vec![Fault::new("compress", format!("{} can only be read", codec.name())).hint("use gzip or zstd")]
        }
        Err(error) => {
            let fault = Fault::new(if level.is_some() { "level" } else { "compress" }, error.to_string());
            vec![match error.hint_text() {
                Some(hint) => fault.hint(hint),
                None => fault,
            }]
        }
    }
}

/// A file that is encoded as one stream.
pub(crate) struct EncodeStream {
    rows: Box<dyn RowEncoder>,
    codec: Option<Box<dyn Encoder>>,
}

impl EncodeStream {
    /// Encodes `batch`, appending what is ready to `output`. `scratch` is a buffer for the text.
    pub(crate) fn encode(&mut self, batch: &RecordBatch, scratch: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<()> {
        match &mut self.codec {
            None => self.rows.encode(batch, output),
            Some(codec) => {
                scratch.clear();
                self.rows.encode(batch, scratch)?;
                codec.encode(scratch, output)
            }
        }
    }

    /// Bytes of memory for rows that are not given out yet.
    pub(crate) fn held(&self) -> usize {
        self.rows.held()
    }

    /// Charges the memory of the stream and of `output`. If the budget refuses, the stream gives out what it holds, to
    /// be written at once; then it returns true.
    pub(crate) fn charge(&mut self, charge: &mut Charge, scratch: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<bool> {
        if charge.set(self.rows.held() + output.len()) {
            return Ok(false);
        }
        match &mut self.codec {
            None => self.rows.relieve(output)?,
            Some(codec) => {
                scratch.clear();
                self.rows.relieve(scratch)?;
                codec.encode(scratch, output)?;
            }
        }
        Ok(true)
    }

    /// Appends the end to `output`.
    pub(crate) fn finish(&mut self, scratch: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<()> {
        match &mut self.codec {
            None => self.rows.finish(output),
            Some(codec) => {
                scratch.clear();
                self.rows.finish(scratch)?;
                codec.encode(scratch, output)?;
                codec.finish(output)
            }
        }
    }
}

//! A look at the first bytes of a source: its columns, where the job declares none, and its size.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use millstream_codec::{Unpack, Unpacked};
use millstream_core::format::{OnDrift, ReadAt, Reading, Sample};
use millstream_core::{ByteStream, Error, Result, Unit};

use super::Reader;
use super::queue::no_match;
use super::rows::{Collected, range_format, ranged_file, stream_format};
use super::table::Estimate;

/// Decoded bytes of one unit that are looked at.
pub const SAMPLE_BYTES: usize = 1 << 20;

/// Units that are looked at, unless all must be.
const SAMPLE_UNITS: usize = 8;

/// Units whose sizes are added up for an estimate.
const ESTIMATE_UNITS: usize = 10_000;

/// Compressed text grows by about this factor.
const UNPACKED_RATIO: u64 = 4;

/// The first decoded bytes of a unit.
#[derive(Debug, Clone)]
pub struct Head {
    /// The unit.
    pub unit: Unit,
    /// The member, if the unit is an archive: the first that the job reads.
    pub member: Option<String>,
    /// The codec found.
    pub codec: &'static str,
    /// Up to [`SAMPLE_BYTES`] of text.
    pub text: Bytes,
    /// Whether `text` is all there is.
    pub complete: bool,
}

/// The columns of the source: declared, or made out from its files.
pub async fn columns(reader: &Arc<Reader>) -> Result<SchemaRef> {
    if let Some(declared) = reader.format.declared() {
        return Ok(declared);
    }
    let limit = if reader.on_drift == OnDrift::Widen { usize::MAX } else { SAMPLE_UNITS };
    let units = units(reader, limit).await?;
    if units.is_empty() {
        return match reader.allow_empty {
            true => Ok(Arc::new(arrow::datatypes::Schema::empty())),
            false => Err(no_match(&reader.patterns)),
        };
    }
    match reader.format.reading() {
        Reading::Stream(_) => stream_columns(reader, units).await,
        Reading::Ranges(_) => range_columns(reader, units).await,
    }
}

async fn stream_columns(reader: &Arc<Reader>, units: Vec<Unit>) -> Result<SchemaRef> {
    let mut samples = Vec::new();
    for unit in units {
        let uri = unit.name();
        let head = head(reader, unit).await?;
        let uri = head.member.as_ref().map_or(uri.clone(), |member| format!("{uri}, member {member}"));
        samples.push(Sample { uri, text: head.text, complete: head.complete });
    }
    let format = stream_format(reader).ok_or_else(|| Error::internal("a stream format was expected"))?;
    format.infer(&samples, reader.on_drift)
}

async fn range_columns(reader: &Arc<Reader>, units: Vec<Unit>) -> Result<SchemaRef> {
    let format = range_format(reader).ok_or_else(|| Error::internal("a range format was expected"))?;
    let mut found = Vec::new();
    for unit in units {
        let file = match ranged_file(reader, &unit).await? {
            Some(file) => file,
            None => collect(reader, &unit).await?,
        };
        let columns = format.columns(file).await.map_err(|error| error.in_unit(&unit.uri, None))?;
        found.push((unit.name(), columns));
    }
    format.merge(&found, reader.on_drift)
}

/// The first member of a packed unit, whole. Small by the nature of a sample's budget: it is charged while it is held.
async fn collect(reader: &Arc<Reader>, unit: &Unit) -> Result<Arc<dyn ReadAt>> {
    let head = read_head(reader, unit.clone(), usize::MAX).await?;
    Ok(Arc::new(Collected(head.text)))
}

/// The first units of the source, at most `limit`.
pub async fn units(reader: &Arc<Reader>, limit: usize) -> Result<Vec<Unit>> {
    let mut found = Vec::new();
    let mut listed = reader.list();
    while found.len() < limit {
        match listed.next().await {
            Some(unit) => found.push(unit?),
            None => break,
        }
    }
    Ok(found)
}

/// What listing tells of the source's size; `None` if it tells nothing.
pub async fn estimate(reader: &Arc<Reader>) -> Result<Option<Estimate>> {
    let mut estimate = Estimate::default();
    for unit in units(reader, ESTIMATE_UNITS).await? {
        let Some(size) = unit.size else { return Ok(None) };
        let (codec, _) = reader.registry.by_name(&unit.uri);
        estimate.units += 1;
        estimate.stored_bytes += size;
        estimate.text_bytes += if codec.is_some() || unit.uri.ends_with(".zip") { size * UNPACKED_RATIO } else { size };
    }
    Ok(Some(estimate))
}

/// The first bytes of `unit`, decoded.
pub async fn head(reader: &Arc<Reader>, unit: Unit) -> Result<Head> {
    read_head(reader, unit, SAMPLE_BYTES).await
}

async fn read_head(reader: &Arc<Reader>, unit: Unit, limit: usize) -> Result<Head> {
    let uri = unit.uri.clone();
    let at_unit = |error: Error| error.in_unit(&uri, None);
    let mut bytes = reader.open(&unit).await.map_err(at_unit)?;
    let mut taken: Vec<Bytes> = Vec::new();
    let mut unpack = Unpack::new(reader.unpack_options(&unit));
    let mut head = Head { unit, member: None, codec: "", text: Bytes::new(), complete: false };
    let mut text = BytesMut::new();
    while text.len() < limit {
        match unpack.next().map_err(at_unit)? {
            Unpacked::Hungry => match bytes.next().await.transpose()? {
                Some(chunk) => {
                    taken.push(chunk.clone());
                    unpack.feed(chunk);
                }
                None => unpack.end(),
            },
            Unpacked::Begin { member } => head.member = member,
            Unpacked::Text(piece) => text.extend_from_slice(&piece),
            Unpacked::End | Unpacked::Done => {
                head.complete = true;
                break;
            }
        }
    }
    head.codec = unpack.codec();
    head.text = text.freeze();
    if !can_reopen(reader, &head.unit)? {
        let again: ByteStream = stream::iter(taken.into_iter().map(Ok)).chain(bytes).boxed();
        reader.opened.keep(&head.unit.uri, again);
    }
    Ok(head)
}

/// A pipe can be read only once: what a sample took from it must be given back.
fn can_reopen(reader: &Reader, unit: &Unit) -> Result<bool> {
    Ok(match reader.source_of(&unit.uri)?.name() {
        "stdin" => false,
        "file" => unit.size.is_some(),
        _ => true,
    })
}

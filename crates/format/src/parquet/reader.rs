//! Reads one file: selects row groups and columns, and returns batches as requested.
//!
//! ```text
//!  directory ─▶ columns matched by name ─▶ row groups that the bounds leave ─▶ one group after the other ─▶ batches
//! ```
//! At a time, one row group's chunks of the selected columns are in memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Int64Array, RecordBatch, RecordBatchOptions, new_null_array,
};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, filter, filter_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::format::{OnDrift, ParseRequest, Parsed, ReadAt, Reject, Rows, Validate};
use millstream_core::values::fault as value_fault;
use millstream_core::{Error, Result};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::metadata::ParquetMetaData;

use super::directory::Directory;
use super::fetch::{self, damaged, unreadable};
use super::group::{self, ColumnChunk, OpenGroup};
use super::guard::guarded_future;
use super::memory::Meter;
use super::{prune, types, values};
use crate::drift::match_columns;

/// The rows of one file.
pub fn read(file: Arc<dyn ReadAt>, request: ParseRequest) -> BoxStream<'static, Result<Parsed>> {
    let rows = async move {
        let plan = guarded_future(Plan::new(file, request)).await?;
        let reader = Reader { plan, group: 0, row: 0, open: None, decoded: VecDeque::new() };
        Ok(stream::try_unfold(reader, |mut reader| async move {
            let rows = guarded_future(reader.next()).await?;
            Ok(rows.map(|rows| (rows, reader)))
        }))
    };
    stream::once(rows).try_flatten().boxed()
}

/// The places at which the row groups of `file` begin, and the end of the last.
pub async fn cuts(file: &dyn ReadAt) -> Result<Vec<u64>> {
    let directory = guarded_future(fetch::directory(file)).await?;
    let groups = groups(&directory.metadata, &[])?;
    let begins = groups.iter().map(|group| group.byte);
    let end = groups.last().map(|group| group.byte.saturating_add(group.bytes).saturating_add(1));
    Ok(begins.chain(end).map(i64::unsigned_abs).collect())
}

/// How one file is read.
struct Plan {
    file: Arc<dyn ReadAt>,
    directory: Directory,
    meter: Arc<Meter>,
    levels: FieldLevels,
    /// The leaf columns that are decoded, with their types.
    leaves: Vec<(usize, DataType)>,
    /// Indices of the file's columns that are decoded, ascending, in the order of the reader.
    decoded: Vec<usize>,
    /// Their types as the source shows them.
    shown: Vec<DataType>,
    /// For each column of the output its index in `decoded`; `None` if the file lacks it.
    places: Vec<Option<usize>>,
    output: SchemaRef,
    batch_rows: usize,
    lines: bool,
    bytes: bool,
    /// The row groups to read.
    groups: Vec<Group>,
}

#[derive(Debug, Clone)]
struct Group {
    index: usize,
    /// The numbers of its rows, from 1.
    rows: Range<i64>,
    /// The numbers of those that are wanted.
    wanted: Range<i64>,
    /// Bytes of the groups before it, decoded.
    byte: i64,
    /// Its own bytes, decoded.
    bytes: i64,
}

impl Group {
    /// The byte where row `number` would begin if all rows were equally long. It only depends on the file, and gives
    /// even a large group many positions.
    fn place(&self, number: i64) -> i64 {
        let (before, rows) = (i128::from(number - self.rows.start), i128::from(self.rows.end - self.rows.start));
        let within = before * i128::from(self.bytes) / rows.max(1);
        self.byte.saturating_add(i64::try_from(within).unwrap_or(i64::MAX))
    }

    /// The same, with only the rows whose places are in `places`.
    fn within(mut self, places: &Range<u64>) -> Self {
        let first_at = |place: u64| {
            let (mut low, mut high) = (self.rows.start, self.rows.end);
            while low < high {
                let middle = low + (high - low) / 2;
                match self.place(middle).unsigned_abs() < place {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            low
        };
        self.wanted = first_at(places.start)..first_at(places.end);
        self
    }

    /// Those of `count` rows from number `first` on that are wanted, counted from 0.
    fn wanted_of(&self, first: i64, count: i64) -> Range<usize> {
        let at = |number: i64| usize::try_from((number - first).clamp(0, count)).unwrap_or(0);
        at(self.wanted.start)..at(self.wanted.end).max(at(self.wanted.start))
    }
}

/// Reads the groups of a plan, one after the other.
struct Reader {
    plan: Plan,
    /// The group that is being read.
    group: usize,
    /// Rows of it that were returned.
    row: i64,
    /// The open group; `None` between groups, and if nothing has to be decoded.
    open: Option<OpenGroup>,
    /// Rows that are decoded and not returned yet.
    decoded: VecDeque<RecordBatch>,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Parsed>> {
        while let Some(group) = self.plan.groups.get(self.group) {
            if group.rows.is_empty() {
                self.group += 1;
                continue;
            }
            let first_row = group.rows.start + self.row;
            let left = group.rows.end - first_row;
            if self.plan.decoded.is_empty() {
                if let Some(rows) = self.plan.count(group, first_row.max(group.wanted.start))? {
                    self.row = first_row.max(group.wanted.start) - group.rows.start + rows.batch.num_rows() as i64;
                    return Ok(Some(parsed(rows)));
                }
            } else if let Some(batch) = self.decoded.pop_front() {
                let rows = batch.num_rows() as i64;
                self.row += rows;
                let wanted = group.wanted_of(first_row, rows);
                if !wanted.is_empty() {
                    let first_row = first_row + wanted.start as i64;
                    let batch = batch.slice(wanted.start, wanted.len());
                    return self.plan.finish(group, &batch, first_row).map(Some);
                }
                continue;
            } else if first_row < group.wanted.end {
                let open = match &mut self.open {
                    Some(open) => open,
                    None => self.open.insert(self.plan.open(group).await?),
                };
                match open.next().await? {
                    Some(batch) if batch.num_rows() as i64 > left => {
                        return Err(damaged("a row group has more rows than its directory says"));
                    }
                    Some(batch) => {
                        let parts = values::parts(&batch).into_iter();
                        self.decoded.extend(parts.map(|part| batch.slice(part.start, part.len())));
                        continue;
                    }
                    None if left > 0 => return Err(damaged(&format!("a row group ends {left} rows too early"))),
                    None => {}
                }
            }
            self.open = None;
            self.decoded.clear();
            self.group += 1;
            self.row = 0;
        }
        Ok(None)
    }
}

impl Plan {
    async fn new(file: Arc<dyn ReadAt>, request: ParseRequest) -> Result<Self> {
        let directory = fetch::directory(file.as_ref()).await?;
        let metadata = types::reader_metadata(&directory.metadata)?;
        let file_columns = types::columns(&metadata);
        let names: Vec<&str> = file_columns.fields().iter().map(|field| field.name().as_str()).collect();
        let matched = match_columns(&names, &request.schema, request.on_drift)?;
        check_types(&file_columns, &matched, &request)?;
        if let Some(seen) = &request.seen {
            seen.note(matched.len(), |column| matched.get(column).is_some_and(Option::is_some));
        }

        let mut decoded: Vec<usize> = match request.validate {
            Validate::All => (0..names.len()).collect(),
            Validate::Used => request.projection.iter().filter_map(|&index| matched[index]).collect(),
        };
        decoded.sort_unstable();
        decoded.dedup();
        let place = |&index: &usize| matched[index].and_then(|column| decoded.binary_search(&column).ok());
        let places = request.projection.iter().map(place).collect();
        let kept = prune::groups(&metadata, &file_columns, &matched, &request);
        let mut groups = groups(metadata.metadata(), &kept)?;
        if let Some(places) = &request.places {
            groups = groups.into_iter().map(|group| group.within(places)).collect();
            groups.retain(|group| !group.wanted.is_empty());
        }
        let schema = metadata.parquet_schema();
        let mut leaves = Vec::new();
        for (leaf, data_type) in types::leaf_types(&metadata).into_iter().enumerate() {
            if leaf >= schema.num_columns() || decoded.binary_search(&schema.get_column_root_idx(leaf)).is_err() {
                continue;
            }
            if directory.is_encrypted(leaf) {
                return Err(Error::refused("the column is encrypted")
                    .column(schema.column(leaf).path().string())
                    .hint(
                        "Millstream does not read encrypted columns: leave it out of the job, or write the file again",
                    ));
            }
            leaves.push((leaf, data_type));
        }
        let mask = ProjectionMask::roots(schema, decoded.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(metadata.schema().fields()));
        Ok(Plan {
            meter: Meter::new(&request),
            levels: levels.map_err(unreadable)?,
            leaves,
            shown: decoded.iter().map(|&column| file_columns.field(column).data_type().clone()).collect(),
            file,
            directory,
            decoded,
            places,
            output: request.output_schema(),
            batch_rows: request.batch_rows.max(1),
            lines: request.lines,
            bytes: request.bytes,
            groups,
        })
    }

    /// Fetches the selected chunks of a row group.
    async fn open(&self, group: &Group) -> Result<OpenGroup> {
        let metadata = &self.directory.metadata;
        let schema = metadata.file_metadata().schema_descr();
        let chunk = |(leaf, data_type): &(usize, DataType)| {
            let about = group::about(&schema.column(*leaf), group.index, data_type);
            self.directory.chunk(group.index, *leaf).map(|metadata| ColumnChunk { leaf: *leaf, metadata, about })
        };
        let chunks = self.leaves.iter().map(chunk).collect::<Result<Vec<_>>>()?;
        let range = |chunk: &ColumnChunk| {
            let (begin, length) = chunk.metadata.byte_range();
            begin..begin.saturating_add(length)
        };
        let ranges: Vec<Range<u64>> = chunks.iter().map(range).collect();
        let stored = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.end - range.start));
        let room = self.meter.admit(usize::try_from(stored).unwrap_or(usize::MAX)).await;
        if !room && stored <= self.file.size() {
            let columns = if chunks.len() == 1 { "the column" } else { "the columns" };
            return Err(self.meter.too_large(stored, &format!("{columns} of row group {}, packed,", group.index)));
        }
        let bytes = fetch::ranges(self.file.as_ref(), &ranges).await?;
        // The source charges the fetched bytes.
        self.meter.opened(usize::try_from(stored).unwrap_or(usize::MAX));
        OpenGroup::new(metadata, group.index, &chunks, bytes, &self.levels, self.batch_rows, &self.meter)
    }

    /// The next rows if nothing has to be decoded: the file has none of the columns, or none are selected.
    fn count(&self, group: &Group, first_row: i64) -> Result<Option<Rows>> {
        let left = (group.wanted.end - first_row).max(0);
        let rows = usize::try_from(left).unwrap_or(usize::MAX).min(self.batch_rows);
        if rows == 0 { Ok(None) } else { self.rows(group, rows, &[], first_row).map(Some) }
    }

    /// Decoded rows as the source shows them, without rows that have a value out of its type's range.
    fn finish(&self, group: &Group, batch: &RecordBatch, first_row: i64) -> Result<Parsed> {
        let shown = batch.columns().iter().zip(&self.shown).map(|(column, shown)| values::present(column, shown));
        let columns: Vec<ArrayRef> = shown.collect::<Result<_, _>>().map_err(|cause| damaged(&cause.to_string()))?;
        let rows = batch.num_rows();
        let fault = |rows: Range<usize>| {
            columns.iter().enumerate().find_map(|(index, column)| Some((index, value_fault(column, rows.clone())?)))
        };
        if fault(0..rows).is_none() {
            let rows = self.rows(group, rows, &columns, first_row)?;
            return Ok(parsed(rows));
        }
        let mut parsed = Parsed::default();
        let mut sound = BooleanBufferBuilder::new(rows);
        for row in 0..rows {
            let found = fault(row..row + 1);
            sound.append(found.is_none());
            let Some((index, error)) = found else { continue };
            let number = first_row + row as i64;
            let (line, byte) = (number.unsigned_abs(), group.place(number).unsigned_abs());
            let raw = self.row_as_json(&columns, row, index, error.offending_text().unwrap_or_default());
            let name = self.name(self.decoded[index]);
            let reason = error.cause(format!("in row group {}", group.index)).line(line).byte(byte).column(name);
            parsed.refuse(Reject { raw, byte, line, reason });
        }
        let all = self.rows(group, rows, &columns, first_row)?;
        let sound = BooleanArray::new(sound.finish(), None);
        let kept = |values: &Option<ArrayRef>| values.as_ref().map(|values| filter(values, &sound)).transpose();
        let kept = filter_record_batch(&all.batch, &sound)
            .and_then(|batch| Ok(Rows { batch, lines: kept(&all.lines)?, bytes: kept(&all.bytes)? }));
        let kept = kept.map_err(|cause| damaged(&cause.to_string()))?;
        parsed.rows.extend(Some(kept).filter(|rows| rows.batch.num_rows() > 0));
        Ok(parsed)
    }

    /// The name of a column of the file.
    fn name(&self, column: usize) -> String {
        let schema = self.directory.metadata.file_metadata().schema_descr();
        schema.root_schema().get_fields().get(column).map_or_else(String::new, |field| field.name().to_owned())
    }

    /// A row with a value that cannot be shown, whose text is `text`.
    fn row_as_json(&self, columns: &[ArrayRef], row: usize, bad: usize, text: &str) -> Bytes {
        let mut object = serde_json::Map::new();
        for (index, (column, values)) in self.decoded.iter().zip(columns).enumerate() {
            let value = if index == bad { Some(text.into()) } else { json_of(values, row) };
            object.insert(self.name(*column), value.unwrap_or_default());
        }
        Bytes::from(serde_json::Value::Object(object).to_string())
    }

    /// The output's columns, made from the decoded ones.
    fn rows(&self, group: &Group, rows: usize, decoded: &[ArrayRef], first_row: i64) -> Result<Rows> {
        let column = |(place, field): (&Option<usize>, &arrow::datatypes::FieldRef)| match place {
            None => Ok(new_null_array(field.data_type(), rows)),
            Some(place) => convert(&decoded[*place], field.data_type()).map_err(|error| error.column(field.name())),
        };
        let columns: Result<Vec<ArrayRef>> = self.places.iter().zip(self.output.fields()).map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.output), columns?, &options)
            .map_err(|cause| damaged(&cause.to_string()))?;
        let lines = self.lines.then(|| {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first_row..first_row + rows as i64));
            numbers
        });
        let bytes = self.bytes.then(|| {
            let numbers = first_row..first_row + rows as i64;
            let places: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.map(|number| group.place(number))));
            places
        });
        Ok(Rows { batch, lines, bytes })
    }
}

fn parsed(rows: Rows) -> Parsed {
    let mut parsed = Parsed::default();
    parsed.rows.push(rows);
    parsed
}

/// One value; `None` if JSON cannot show it.
fn json_of(values: &ArrayRef, row: usize) -> Option<serde_json::Value> {
    // Other values of the row may have faults, too.
    if value_fault(values, row..row + 1).is_some() {
        return None;
    }
    let batch = RecordBatch::try_from_iter_with_nullable([("value", values.slice(row, 1), true)]).ok()?;
    let mut writer = arrow_json::LineDelimitedWriter::new(Vec::new());
    writer.write(&batch).ok()?;
    writer.finish().ok()?;
    let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&writer.into_inner()).ok()?;
    object.remove("value")
}

/// Fails if types differ, unless the source widens and they can be converted.
fn check_types(file: &SchemaRef, matched: &[Option<usize>], request: &ParseRequest) -> Result<()> {
    for (field, column) in request.schema.fields().iter().zip(matched) {
        let Some(column) = column else { continue };
        let (stored, wanted) = (file.field(*column).data_type(), field.data_type());
        let same = stored == wanted || stored.is_null();
        if !same && (request.on_drift != OnDrift::Widen || !can_cast_types(stored, wanted)) {
            return Err(types::other_type(field.name(), stored, wanted));
        }
    }
    Ok(())
}

/// The row groups of which `kept` is true, with the numbers of their rows.
fn groups(metadata: &ParquetMetaData, kept: &[bool]) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let (mut first, mut byte) = (1_i64, 0_i64);
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let end = Some(group.num_rows()).filter(|rows| *rows >= 0).and_then(|rows| first.checked_add(rows));
        let end = end.ok_or_else(|| damaged(&format!("row group {index} has {} rows", group.num_rows())))?;
        if kept.get(index).copied().unwrap_or(true) {
            let bytes = group.total_byte_size().max(0);
            groups.push(Group { index, rows: first..end, wanted: first..end, byte, bytes });
        }
        first = end;
        byte = byte.saturating_add(group.total_byte_size().max(0));
    }
    let rows = metadata.file_metadata().num_rows();
    if first - 1 != rows {
        return Err(damaged(&format!("its directory says {rows} rows, and its row groups have {}", first - 1)));
    }
    Ok(groups)
}

/// `values` as `wanted`. A value that does not fit is an error, never null.
fn convert(values: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    if values.data_type() == wanted {
        return Ok(Arc::clone(values));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(values, wanted, &options).map_err(|cause| {
        Error::data(format!("a value does not fit into {}", millstream_core::columns::type_name(wanted))).cause(cause)
    })
}

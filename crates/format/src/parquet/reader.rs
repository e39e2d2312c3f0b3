//! Reading one file: which row groups, which columns, and batches as the request wants them.
//!
//! ```text
//!  directory ─▶ columns matched by name ─▶ row groups that the bounds leave ─▶ one group after the other ─▶ batches
//! ```
//! One row group's chunks of the wanted columns are in memory at a time.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::format::{OnDrift, ParseRequest, ReadAt, Rows, Validate};
use millstream_core::{Error, Result};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::async_reader::ParquetRecordBatchStream;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};

use super::fetch::{self, Fetch, damaged, unreadable};
use super::guard::guarded_future;
use super::{prune, types};
use crate::drift::match_columns;

/// The rows of one file.
pub fn read(file: Arc<dyn ReadAt>, request: ParseRequest) -> BoxStream<'static, Result<Rows>> {
    let rows = async move {
        let reader = Reader { plan: guarded_future(Plan::new(file, request)).await?, group: 0, row: 0, batches: None };
        Ok(stream::try_unfold(reader, |mut reader| async move {
            let rows = guarded_future(reader.next()).await?;
            Ok(rows.map(|rows| (rows, reader)))
        }))
    };
    stream::once(rows).try_flatten().boxed()
}

/// How one file is read.
struct Plan {
    fetch: Fetch,
    metadata: ArrowReaderMetadata,
    /// Indices of the file's columns that are decoded, ascending, as they come out of the reader.
    decoded: Vec<usize>,
    /// For each column of the output its place among `decoded`; `None` if the file lacks it.
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
    /// Bytes of the groups before it, decoded.
    byte: i64,
    /// Its own.
    bytes: i64,
}

impl Group {
    /// Where row `number` would begin if all rows were equally long: nobody knows better, and it depends on nothing but the
    /// file. So a group, however large it is, is many places.
    fn place(&self, number: i64) -> i64 {
        let (before, rows) = (i128::from(number - self.rows.start), i128::from(self.rows.end - self.rows.start));
        let within = before * i128::from(self.bytes) / rows.max(1);
        self.byte.saturating_add(i64::try_from(within).unwrap_or(i64::MAX))
    }
}

/// Reads the groups of a plan, one after the other.
struct Reader {
    plan: Plan,
    /// The group that is being read.
    group: usize,
    /// Rows of it that came out.
    row: i64,
    /// The open group; `None` between groups, and where nothing has to be decoded.
    batches: Option<ParquetRecordBatchStream<Fetch>>,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Rows>> {
        while let Some(group) = self.plan.groups.get(self.group) {
            let first_row = group.rows.start + self.row;
            let left = group.rows.end - first_row;
            let rows = if self.plan.decoded.is_empty() {
                self.plan.count(group, first_row, left)?
            } else {
                let batches = match &mut self.batches {
                    Some(batches) => batches,
                    None => self.batches.insert(self.plan.open(group)?),
                };
                match batches.next().await.transpose().map_err(unreadable)? {
                    Some(batch) if batch.num_rows() as i64 > left => {
                        return Err(damaged("a row group has more rows than its directory says"));
                    }
                    Some(batch) => Some(self.plan.finish_rows(group, batch.num_rows(), batch.columns(), first_row)?),
                    None if left > 0 => return Err(damaged(&format!("a row group ends {left} rows too early"))),
                    None => None,
                }
            };
            match rows {
                Some(rows) => {
                    self.row += rows.batch.num_rows() as i64;
                    return Ok(Some(rows));
                }
                None => {
                    self.batches = None;
                    self.group += 1;
                    self.row = 0;
                }
            }
        }
        Ok(None)
    }
}

impl Plan {
    async fn new(file: Arc<dyn ReadAt>, request: ParseRequest) -> Result<Self> {
        let directory = fetch::directory(file.as_ref()).await?;
        let metadata = types::reader_metadata(&directory)?;
        let file_columns = types::columns(&metadata)?;
        let names: Vec<&str> = file_columns.fields().iter().map(|field| field.name().as_str()).collect();
        let matched = match_columns(&names, &request.schema, request.on_drift)?;
        check_types(&file_columns, &matched, &request)?;
        if let Some(seen) = &request.seen {
            seen.tell(matched.len(), |column| matched.get(column).is_some_and(Option::is_some));
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
        let groups = groups(&metadata, &kept)?;
        Ok(Plan {
            fetch: Fetch { file, metadata: directory },
            metadata,
            decoded,
            places,
            output: request.output_schema(),
            batch_rows: request.batch_rows.max(1),
            lines: request.lines,
            bytes: request.bytes,
            groups,
        })
    }

    /// The batches of one row group.
    fn open(&self, group: &Group) -> Result<ParquetRecordBatchStream<Fetch>> {
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), self.decoded.iter().copied());
        ParquetRecordBatchStreamBuilder::new_with_metadata(self.fetch.clone(), self.metadata.clone())
            .with_batch_size(self.batch_rows)
            .with_row_groups(vec![group.index])
            .with_projection(mask)
            .build()
            .map_err(unreadable)
    }

    /// The next rows where nothing needs to be decoded: the file has none of the columns, or none are wanted.
    fn count(&self, group: &Group, first_row: i64, left: i64) -> Result<Option<Rows>> {
        let rows = usize::try_from(left).unwrap_or(usize::MAX).min(self.batch_rows);
        if rows == 0 { Ok(None) } else { self.finish_rows(group, rows, &[], first_row).map(Some) }
    }

    /// The output's columns from those that were decoded.
    fn finish_rows(&self, group: &Group, rows: usize, decoded: &[ArrayRef], first_row: i64) -> Result<Rows> {
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

/// Types that differ are an error, unless the source widens; and then only if they can be converted.
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
fn groups(metadata: &ArrowReaderMetadata, kept: &[bool]) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let (mut first, mut byte) = (1_i64, 0_i64);
    for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
        let end = Some(group.num_rows()).filter(|rows| *rows >= 0).and_then(|rows| first.checked_add(rows));
        let end = end.ok_or_else(|| damaged(&format!("row group {index} has {} rows", group.num_rows())))?;
        if kept.get(index).copied().unwrap_or(true) {
            groups.push(Group { index, rows: first..end, byte, bytes: group.total_byte_size().max(0) });
        }
        first = end;
        byte = byte.saturating_add(group.total_byte_size().max(0));
    }
    let rows = metadata.metadata().file_metadata().num_rows();
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
        Error::data(format!("a value does not fit into {}", crate::columns::type_name(wanted))).cause(cause)
    })
}

//! Rows as records: bytes that are compared, moved and written unchanged, each with its real length.
//!
//! ```text
//!  record   [length of the key] [length of the rest]  key: a field a key   rest: a field a column that no key gives
//!           only where it is not the same for all      bytes in order        bytes as they come
//! ```
//! If only the first keys decide which rows are the same, the length of their fields follows the other two lengths,
//! unless it is the same for all.
//!
//! | field | bytes |
//! |---|---|
//! | any that may be null | one byte first, which puts nulls first or last; a null has zeros behind it, or nothing |
//! | of a fixed width | its ordered bytes ([`crate::values`]) |
//! | text and binary in a key | each 0 as 0 1, then 0 0: so a text comes before those that it is a prefix of |
//! | the same, as the last key of records that have no rest | as it is: its end is that of the record |
//! | text and binary in the rest | its length, then as it is |
//! | anything nested, as a key | as arrow-row writes it; such a column stands in the rest, too |
//!
//! In a key, descending fields have all bits flipped. A column whose values can be read from its key is not written
//! twice.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryBuilder, GenericBinaryArray, GenericBinaryBuilder,
    GenericByteViewArray, LargeStringArray, NullArray, OffsetSizeTrait, PrimitiveArray, RecordBatch,
    RecordBatchOptions, StringArray, UInt8Array, downcast_primitive, downcast_primitive_array, make_view,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, BinaryViewType, ByteViewType, DataType, SchemaRef, StringViewType};
use arrow_row::{RowConverter, SortField};
use bytes::Bytes;
use millstream_core::buffers::{self, Pool};
use millstream_core::direct::Aligned;
use millstream_core::spec::Size;
use millstream_core::views::INLINE;
use millstream_core::{Error, Result};

use crate::memory::{AHEAD, fetch, no_memory};
use crate::values::{self, Ordered};

/// The direction of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Largest first.
    pub descending: bool,
    /// Nulls before all values, whatever the direction.
    pub nulls_first: bool,
}

/// The values of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyValues {
    /// Those of a column of the rows, by its index.
    Column(usize),
    /// Computed values, which are passed along with the rows.
    Computed {
        /// Their type.
        data_type: DataType,
        /// Whether there may be nulls.
        nullable: bool,
    },
}

/// One key. Rows are compared by the first key, then by the second, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The values that are compared.
    pub values: KeyValues,
    /// Its direction.
    pub order: Order,
}

/// How records of one schema and order are laid out.
#[derive(Debug)]
pub struct Layout {
    schema: SchemaRef,
    keys: Vec<Field>,
    rest: Vec<Field>,
    /// The number of first keys that decide which rows are the same.
    same: usize,
    key_length: Length,
    rest_length: Length,
    /// The length of the fields of these keys, if they are not all keys.
    same_length: Length,
    /// The last key is plain text, descending: longer texts come first.
    longest_first: bool,
}

/// The length of a part of records: the same for all, or stored in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Same(usize),
    Each,
}

#[derive(Debug)]
struct Field {
    source: KeyValues,
    data_type: DataType,
    form: Form,
    nullable: bool,
    order: Order,
    /// The column whose values its bytes contain.
    gives: Option<usize>,
}

#[derive(Debug)]
enum Form {
    Fixed(usize),
    Escaped,
    Tail,
    Counted,
    Nested(RowConverter),
}

/// The first byte of a value in a field that may be null; that of a null is 0 if nulls come first, else 2.
const VALUE: u8 = 1;

/// The width of values of a type, if fixed.
fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        _ => data_type.primitive_width(),
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Utf8 | LargeUtf8 | Utf8View)
}

fn nested(data_type: &DataType, order: Order) -> Result<Form> {
    let options = arrow::compute::SortOptions { descending: order.descending, nulls_first: order.nulls_first };
    let converter = RowConverter::new(vec![SortField::new_with_options(data_type.clone(), options)]);
    let converter = converter
        .map_err(|cause| Error::job(format!("rows with a column of type {data_type} cannot be sorted")).cause(cause))?;
    Ok(Form::Nested(converter))
}

const ASCENDING: Order = Order { descending: false, nulls_first: true };

impl Layout {
    /// The layout of rows of `schema` in the order of `keys`. Rows with equal keys are the same.
    pub fn new(schema: &SchemaRef, keys: &[Key]) -> Result<Self> {
        Layout::with_same(schema, keys, keys.len())
    }

    /// The layout of rows of `schema` in the order of `keys`. Rows that are equal in the first `same` keys are the
    /// same, if one of them is to stay.
    pub fn with_same(schema: &SchemaRef, keys: &[Key], same: usize) -> Result<Self> {
        let mut fields = Vec::new();
        // The values after a nested key cannot be read back, since its end is unknown.
        let mut readable = true;
        for key in keys {
            let (data_type, nullable) = match &key.values {
                KeyValues::Column(index) => (schema.field(*index).data_type(), schema.field(*index).is_nullable()),
                KeyValues::Computed { data_type, nullable } => (data_type, *nullable),
            };
            let form = match width(data_type) {
                Some(width) => Form::Fixed(width),
                None if is_bytes(data_type) => Form::Escaped,
                None => nested(data_type, key.order)?,
            };
            let is_nested = matches!(form, Form::Nested(_));
            readable &= !is_nested;
            let gives = match key.values {
                KeyValues::Column(index) if readable => Some(index),
                _ => None,
            };
            fields.push(Field {
                source: key.values.clone(),
                data_type: data_type.clone(),
                form,
                nullable: (nullable || *data_type == DataType::Null) && !is_nested,
                order: key.order,
                gives,
            });
        }
        let given = |index: usize| fields.iter().any(|field: &Field| field.gives == Some(index));
        let mut rest = Vec::new();
        for (index, column) in schema.fields().iter().enumerate().filter(|(index, _)| !given(*index)) {
            let data_type = column.data_type();
            let form = match width(data_type) {
                Some(width) => Form::Fixed(width),
                None if is_bytes(data_type) => Form::Counted,
                None => nested(data_type, ASCENDING)?,
            };
            rest.push(Field {
                source: KeyValues::Column(index),
                data_type: data_type.clone(),
                nullable: (column.is_nullable() || *data_type == DataType::Null) && !matches!(form, Form::Nested(_)),
                form,
                order: ASCENDING,
                gives: Some(index),
            });
        }
        let (key_length, mut rest_length) = (length(&fields), length(&rest));
        if (key_length, rest_length) == (Length::Same(0), Length::Same(0)) {
            // A record must have at least one byte.
            rest_length = Length::Each;
        }
        let mut longest_first = false;
        if rest.is_empty()
            && let Some(last) = fields.last_mut()
            && matches!(last.form, Form::Escaped)
        {
            last.form = Form::Tail;
            longest_first = last.order.descending;
        }
        let same_length = if same < fields.len() { length(&fields[..same]) } else { Length::Same(0) };
        let schema = Arc::clone(schema);
        Ok(Layout { schema, same, key_length, rest_length, same_length, keys: fields, rest, longest_first })
    }

    /// The columns of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The most rows that can be read at once, by their types.
    pub(crate) fn most_rows(&self) -> usize {
        self.schema.fields().iter().map(|field| most_rows(field.data_type())).min().unwrap_or(usize::MAX)
    }

    /// Whether keys are equal if their first `bytes` bytes are equal.
    pub(crate) fn is_decided_by(&self, bytes: usize) -> bool {
        matches!(self.key_length, Length::Same(length) if length <= bytes)
    }

    /// The byte that pads short keys, so that the first bytes of two keys compare as the keys do, or are equal.
    pub(crate) fn filler(&self) -> u8 {
        if self.longest_first { 0xff } else { 0 }
    }

    /// The order of two keys.
    pub(crate) fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        match self.longest_first {
            false => one.cmp(other),
            true => {
                let common = one.len().min(other.len());
                one[..common].cmp(&other[..common]).then(other.len().cmp(&one.len()))
            }
        }
    }

    /// The record at the beginning of `bytes`: where its key begins and ends, and where it ends.
    #[inline]
    pub(crate) fn measure(&self, bytes: &[u8]) -> Measure {
        let mut at = 0;
        let mut length = |length: Length| match length {
            Length::Same(length) => length,
            Length::Each => read_number(bytes, &mut at),
        };
        let (key, rest, same) = (length(self.key_length), length(self.rest_length), length(self.same_length));
        let same = if self.all_keys_decide() { key } else { same };
        Measure { key: at, same: at + same, rest: at + key, end: at + key + rest }
    }

    /// Whether rows are the same only if all keys are equal.
    fn all_keys_decide(&self) -> bool {
        self.same >= self.keys.len()
    }

    /// The bytes that are equal in records of the same rows: the beginning of the key, or all of it.
    pub(crate) fn same<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let measure = self.measure(bytes);
        &bytes[measure.key..measure.same]
    }

    /// The order of the bytes of [`Layout::same`] of two records.
    pub(crate) fn compare_same(&self, one: &[u8], other: &[u8]) -> Ordering {
        if self.all_keys_decide() { self.compare(one, other) } else { one.cmp(other) }
    }

    /// How many first bytes of keys are certainly equal in the same rows.
    pub(crate) fn same_bytes(&self) -> usize {
        match (self.all_keys_decide(), self.key_length, self.same_length) {
            (true, Length::Same(length), _) | (false, _, Length::Same(length)) => length,
            (true, ..) => usize::MAX,
            (false, ..) => 0,
        }
    }

    /// Whether rows are the same if so many first bytes of their keys are equal.
    pub(crate) fn same_is_decided_by(&self, bytes: usize) -> bool {
        match self.all_keys_decide() {
            true => self.is_decided_by(bytes),
            false => matches!(self.same_length, Length::Same(length) if length <= bytes),
        }
    }

    /// The key of the record at the beginning of `bytes`.
    #[inline]
    pub(crate) fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let measure = self.measure(bytes);
        &bytes[measure.key..measure.rest]
    }

    /// Prepares the rows of `batch` for writing. `computed` has the values of the computed keys, in their order.
    pub fn prepare(&self, batch: &RecordBatch, computed: &[ArrayRef]) -> Result<Prepared> {
        let mut computed = computed.iter();
        let mut keys = Vec::with_capacity(self.keys.len());
        for field in &self.keys {
            let values = match &field.source {
                KeyValues::Column(index) => batch.column(*index),
                KeyValues::Computed { .. } => {
                    computed.next().ok_or_else(|| Error::internal("the values of a key are missing"))?
                }
            };
            keys.push(field.prepare(values)?);
        }
        let mut rest = Vec::with_capacity(self.rest.len());
        for field in &self.rest {
            let KeyValues::Column(index) = field.source else { continue };
            rest.push(field.prepare(batch.column(index))?);
        }
        let rows = batch.num_rows();
        let key_lengths = lengths(&self.keys, &keys, self.key_length, rows)?;
        let rest_lengths = lengths(&self.rest, &rest, self.rest_length, rows)?;
        let same_lengths = match self.same_length {
            Length::Same(_) => Lengths::None,
            Length::Each => lengths(&self.keys[..self.same], &keys, self.same_length, rows)?,
        };
        Ok(Prepared { rows, keys, rest, key_lengths, rest_lengths, same_lengths })
    }

    /// Writes the rows `from..to` of `prepared` one after the other to `place`, which has their length. `cursors` is a
    /// scratch buffer.
    pub(crate) fn write(
        &self,
        prepared: &Prepared,
        from: usize,
        to: usize,
        place: &mut [u8],
        cursors: &mut Vec<usize>,
    ) {
        cursors.clear();
        let mut at = 0;
        for row in from..to {
            let next = at + prepared.length(row);
            for lengths in [&prepared.key_lengths, &prepared.rest_lengths, &prepared.same_lengths] {
                if let Lengths::Each(lengths) = lengths {
                    at += write_number(&mut place[at..], lengths[row]);
                }
            }
            cursors.push(at);
            at = next;
        }
        let keys = self.keys.iter().zip(&prepared.keys);
        for (field, values) in keys.chain(self.rest.iter().zip(&prepared.rest)) {
            field.write(values, from, place, cursors);
        }
    }

    /// The rows of `records`, each of which begins with a record.
    pub(crate) fn read(&self, records: &[&[u8]]) -> Result<RecordBatch> {
        let mut cursors = POSITIONS.take(records.len());
        let mut rests = POSITIONS.take(records.len());
        let mut ends = POSITIONS.take(records.len());
        for (index, record) in records.iter().enumerate() {
            if let Some(coming) = records.get(index + AHEAD) {
                fetch(coming);
            }
            let measure = self.measure(record);
            cursors.push(measure.key);
            rests.push(measure.rest);
            ends.push(measure.end);
        }
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
        for field in &self.keys {
            // The fields after it are not needed either.
            if matches!(field.form, Form::Nested(_)) {
                break;
            }
            let values = field.read(records, &mut cursors, &ends)?;
            if let Some(index) = field.gives {
                columns[index] = Some(values);
            }
        }
        for field in &self.rest {
            let values = field.read(records, &mut rests, &ends)?;
            if let Some(index) = field.gives {
                columns[index] = Some(values);
            }
        }
        [cursors, rests, ends].into_iter().for_each(|places| POSITIONS.give_back(places));
        let columns: Option<Vec<ArrayRef>> = columns.into_iter().collect();
        let columns = columns.ok_or_else(|| Error::internal("a record lacks a column"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(records.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(damaged)
    }
}

/// Buffers for positions in records, reused.
static POSITIONS: Pool<usize> = Pool::new();

/// The most rows whose values the keys of a dictionary in `data_type` can number.
fn most_rows(data_type: &DataType) -> usize {
    match data_type {
        DataType::Dictionary(key, _) => match key.primitive_width() {
            Some(1) => 1 << 7,
            Some(2) => 1 << 15,
            _ => usize::MAX,
        },
        DataType::Struct(fields) => fields.iter().map(|field| most_rows(field.data_type())).min().unwrap_or(usize::MAX),
        // One row may have as many values as a batch.
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => match most_rows(field.data_type()) {
            usize::MAX => usize::MAX,
            _ => 1,
        },
        _ => usize::MAX,
    }
}

/// The length of records' parts made of `fields`.
fn length(fields: &[Field]) -> Length {
    fields.iter().fold(Length::Same(0), |sum, field| match (sum, &field.form) {
        (Length::Same(sum), Form::Fixed(width)) => Length::Same(sum + width + usize::from(field.nullable)),
        _ => Length::Each,
    })
}

fn damaged(cause: impl std::fmt::Display) -> Error {
    Error::internal("a sorted row cannot be read back").cause(cause)
}

/// Where the parts of a record are, from its first byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) key: usize,
    pub(crate) same: usize,
    pub(crate) rest: usize,
    pub(crate) end: usize,
}

/// Rows that are ready to be written as records.
#[derive(Debug)]
pub struct Prepared {
    rows: usize,
    keys: Vec<ArrayRef>,
    rest: Vec<ArrayRef>,
    key_lengths: Lengths,
    rest_lengths: Lengths,
    same_lengths: Lengths,
}

#[derive(Debug)]
enum Lengths {
    None,
    Same(usize),
    Each(Vec<u32>),
}

impl Lengths {
    /// Bytes of the part with this length, and of the length itself.
    fn of(&self, row: usize) -> usize {
        match self {
            Lengths::Same(length) => *length,
            _ => self.of_number(row) + self.raw(row),
        }
    }

    fn raw(&self, row: usize) -> usize {
        if let Lengths::Each(lengths) = self { lengths[row] as usize } else { 0 }
    }

    /// Bytes of the length itself.
    fn of_number(&self, row: usize) -> usize {
        if let Lengths::Each(lengths) = self { number_length(lengths[row]) } else { 0 }
    }
}

impl Prepared {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the record of `row`.
    pub(crate) fn length(&self, row: usize) -> usize {
        self.key_lengths.of(row) + self.rest_lengths.of(row) + self.same_lengths.of_number(row)
    }
}

/// The most bytes of the key of a row, and of its rest.
const LONGEST: u32 = 1 << 30;

/// A length as it is kept; one that is too long stays too long.
fn kept(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn lengths(fields: &[Field], values: &[ArrayRef], length: Length, rows: usize) -> Result<Lengths> {
    if let Length::Same(length) = length {
        return Ok(Lengths::Same(length));
    }
    let mut lengths = vec![0; rows];
    for (field, values) in fields.iter().zip(values) {
        field.measure(values, &mut lengths);
    }
    match lengths.iter().any(|length| *length > LONGEST) {
        true => Err(Error::refused(format!("a row of more than {} cannot be sorted", Size(u64::from(LONGEST))))),
        false => Ok(Lengths::Each(lengths)),
    }
}

/// Runs `$work` with `$bytes`, which gives the bytes of the value of a row, for the type of `$values`.
macro_rules! with_bytes {
    ($values:expr, $bytes:ident => $work:expr) => {{
        macro_rules! of {
            ($array:expr) => {{
                let array = $array;
                let $bytes = |row: usize| -> &[u8] { array.value(row).as_ref() };
                $work
            }};
        }
        match $values.data_type() {
            DataType::Utf8 => of!($values.as_string::<i32>()),
            DataType::LargeUtf8 => of!($values.as_string::<i64>()),
            DataType::Utf8View => of!($values.as_string_view()),
            DataType::Binary => of!($values.as_binary::<i32>()),
            DataType::LargeBinary => of!($values.as_binary::<i64>()),
            DataType::BinaryView => of!($values.as_binary_view()),
            _ => of!($values.as_fixed_size_binary()),
        }
    }};
}

impl Field {
    /// `values` in the form in which they are written.
    fn prepare(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if values.data_type() != &self.data_type {
            return Err(Error::internal(format!("a column to sort is {}, not {}", values.data_type(), self.data_type)));
        }
        match &self.form {
            Form::Nested(converter) => {
                let rows = converter.convert_columns(std::slice::from_ref(values)).map_err(damaged)?;
                rows.try_into_binary()
                    .map(|rows| Arc::new(rows) as ArrayRef)
                    .map_err(|cause| Error::refused("a batch of nested values is too large to be sorted").cause(cause))
            }
            _ if !self.nullable && values.null_count() > 0 => {
                Err(Error::internal("a column to sort has nulls that it should not have"))
            }
            _ => Ok(match values.as_boolean_opt() {
                Some(values) => Arc::new(numbers(values)),
                None => Arc::clone(values),
            }),
        }
    }

    /// Adds the lengths of `values` to `lengths`.
    fn measure(&self, values: &ArrayRef, lengths: &mut [u32]) {
        let marker = u32::from(self.nullable);
        let nulls = values.nulls().filter(|_| self.nullable);
        let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.is_null(row));
        match self.form {
            Form::Fixed(width) => {
                lengths.iter_mut().for_each(|length| *length = length.saturating_add(marker + width as u32));
            }
            Form::Tail => with_bytes!(values, bytes => {
                for (row, length) in lengths.iter_mut().enumerate() {
                    let text = if is_null(row) { 0 } else { kept(bytes(row).len()) };
                    *length = length.saturating_add(marker).saturating_add(text);
                }
            }),
            Form::Escaped => with_bytes!(values, bytes => {
                for (row, length) in lengths.iter_mut().enumerate() {
                    let text = if is_null(row) { &[] } else { bytes(row) };
                    let escaped = kept(text.len() + memchr::memchr_iter(0, text).count() + 2);
                    *length = length.saturating_add(marker).saturating_add(escaped);
                }
            }),
            Form::Counted => with_bytes!(values, bytes => {
                for (row, length) in lengths.iter_mut().enumerate() {
                    let text = if is_null(row) { 0 } else { kept(bytes(row).len()) };
                    *length = length.saturating_add(marker + number_length(text) as u32).saturating_add(text);
                }
            }),
            Form::Nested(_) => {
                let rows = values.as_binary::<i32>();
                let counted = self.gives.is_some();
                for (row, length) in lengths.iter_mut().enumerate() {
                    let text = rows.value_length(row) as u32;
                    let counter = if counted { number_length(text) as u32 } else { 0 };
                    *length = length.saturating_add(counter).saturating_add(text);
                }
            }
        }
    }

    /// Writes the values from row `from` on to `place`, each at its cursor, and moves the cursors after them.
    fn write(&self, values: &ArrayRef, from: usize, place: &mut [u8], cursors: &mut [usize]) {
        if self.nullable {
            let null = if self.order.nulls_first { 0 } else { 2 };
            let nulls = values.logical_nulls();
            for (row, cursor) in cursors.iter_mut().enumerate() {
                let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(from + row));
                place[*cursor] = if is_null { null } else { VALUE };
                *cursor += 1;
            }
        }
        let nulls = values.nulls().filter(|nulls| nulls.null_count() > 0);
        let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.is_null(row));
        let flip = if self.order.descending { 0xff } else { 0 };
        match self.form {
            Form::Fixed(0) => {}
            Form::Fixed(_) => {
                let values = values.as_ref();
                downcast_primitive_array! {
                    values => write_fixed(values, from, flip, place, cursors),
                    _ => {}
                }
            }
            Form::Tail => with_bytes!(values, bytes => {
                for (row, cursor) in cursors.iter_mut().enumerate().filter(|(row, _)| !is_null(from + row)) {
                    copy(bytes(from + row), flip, place, cursor);
                }
            }),
            Form::Escaped => with_bytes!(values, bytes => {
                for (row, cursor) in cursors.iter_mut().enumerate() {
                    let mut text = if is_null(from + row) { &[] } else { bytes(from + row) };
                    while let Some(zero) = memchr::memchr(0, text) {
                        copy(&text[..zero], flip, place, cursor);
                        copy(&[0, 1], flip, place, cursor);
                        text = &text[zero + 1..];
                    }
                    copy(text, flip, place, cursor);
                    copy(&[0, 0], flip, place, cursor);
                }
            }),
            Form::Counted => with_bytes!(values, bytes => {
                for (row, cursor) in cursors.iter_mut().enumerate() {
                    let text = if is_null(from + row) { &[] } else { bytes(from + row) };
                    *cursor += write_number(&mut place[*cursor..], text.len() as u32);
                    copy(text, 0, place, cursor);
                }
            }),
            Form::Nested(_) => {
                let rows = values.as_binary::<i32>();
                for (row, cursor) in cursors.iter_mut().enumerate() {
                    let text = rows.value(from + row);
                    if self.gives.is_some() {
                        *cursor += write_number(&mut place[*cursor..], text.len() as u32);
                    }
                    copy(text, 0, place, cursor);
                }
            }
        }
    }

    /// The values at `cursors` of `records`; moves the cursors after them.
    fn read(&self, records: &[&[u8]], cursors: &mut [usize], ends: &[usize]) -> Result<ArrayRef> {
        let nulls = self.nullable.then(|| {
            let valid = BooleanBuffer::collect_bool(records.len(), |row| records[row][cursors[row]] == VALUE);
            cursors.iter_mut().for_each(|cursor| *cursor += 1);
            NullBuffer::new(valid)
        });
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let flip = self.order.descending;
        match &self.form {
            Form::Fixed(_) => {
                let data_type = &self.data_type;
                macro_rules! numbers {
                    ($type:ty) => {{
                        let values = values::read::<<$type as ArrowPrimitiveType>::Native>(records, cursors, flip);
                        let values = PrimitiveArray::<$type>::try_new(values, nulls).map_err(damaged)?;
                        Ok(Arc::new(values.with_data_type(data_type.clone())))
                    }};
                }
                downcast_primitive! {
                    data_type => (numbers),
                    DataType::Null => Ok(Arc::new(NullArray::new(records.len()))),
                    _ => {
                        let values = values::read::<u8>(records, cursors, flip);
                        let values = BooleanBuffer::collect_bool(records.len(), |row| values[row] != 0);
                        Ok(Arc::new(BooleanArray::new(values, nulls)))
                    }
                }
            }
            Form::Tail => self.collect(records.len(), nulls.as_ref(), flip, |row, text| {
                text.extend_from_slice(&records[row][cursors[row]..ends[row]]);
            }),
            Form::Escaped => self.collect(records.len(), nulls.as_ref(), flip, |row, text| {
                let end = if flip { 0xff } else { 0 };
                let record = &records[row][..ends[row]];
                let cursor = &mut cursors[row];
                while let Some(at) = memchr::memchr(end, &record[*cursor..]) {
                    text.extend_from_slice(&record[*cursor..*cursor + at]);
                    let escaped = record.get(*cursor + at + 1).is_some_and(|next| *next != end);
                    *cursor += at + 2;
                    if !escaped {
                        break;
                    }
                    text.push(end);
                }
            }),
            Form::Counted => self.collect(records.len(), nulls.as_ref(), false, |row, text| {
                let length = read_number(records[row], &mut cursors[row]);
                text.extend_from_slice(&records[row][cursors[row]..cursors[row] + length]);
                cursors[row] += length;
            }),
            Form::Nested(converter) => {
                let mut rows: Vec<&[u8]> = Vec::with_capacity(records.len());
                for (record, cursor) in records.iter().zip(cursors) {
                    let length = read_number(record, cursor);
                    rows.push(&record[*cursor..*cursor + length]);
                    *cursor += length;
                }
                let parser = converter.parser();
                let columns = converter.convert_rows(rows.into_iter().map(|row| parser.parse(row))).map_err(damaged)?;
                let values = columns.into_iter().next().ok_or_else(|| damaged("it has no column"))?;
                match values.data_type() == &self.data_type {
                    true => Ok(values),
                    // A dictionary is read as its values.
                    false => arrow::compute::cast(&values, &self.data_type).map_err(damaged),
                }
            }
        }
    }

    /// An array of `rows` texts; `fill` appends the text of a row to a buffer; with `flip` all its bits are flipped.
    fn collect(
        &self,
        rows: usize,
        nulls: Option<&NullBuffer>,
        flip: bool,
        mut fill: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<ArrayRef> {
        let fill = |row: usize, text: &mut Vec<u8>| {
            let start = text.len();
            fill(row, text);
            if flip {
                text[start..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        };
        Ok(match self.data_type {
            DataType::Binary => Arc::new(collect_binary::<i32>(rows, nulls, fill)),
            DataType::LargeBinary => Arc::new(collect_binary::<i64>(rows, nulls, fill)),
            DataType::Utf8 => {
                Arc::new(StringArray::try_from_binary(collect_binary(rows, nulls, fill)).map_err(damaged)?)
            }
            DataType::LargeUtf8 => {
                Arc::new(LargeStringArray::try_from_binary(collect_binary(rows, nulls, fill)).map_err(damaged)?)
            }
            DataType::FixedSizeBinary(width) => {
                let mut builder = FixedSizeBinaryBuilder::with_capacity(rows, width);
                let mut wrong = None;
                each(rows, nulls, fill, |text| match text {
                    Some(text) => wrong = builder.append_value(text).err().or(wrong.take()),
                    None => builder.append_null(),
                });
                if let Some(cause) = wrong {
                    return Err(damaged(cause));
                }
                Arc::new(builder.finish())
            }
            DataType::Utf8View => Arc::new(collect_views::<StringViewType>(rows, nulls, fill)?),
            _ => Arc::new(collect_views::<BinaryViewType>(rows, nulls, fill)?),
        })
    }
}

/// Bytes of the blocks of views.
const VIEW_BLOCK: usize = 1 << 18;

/// Passes the text of each row, or a null, to `take`.
fn each(
    rows: usize,
    nulls: Option<&NullBuffer>,
    mut fill: impl FnMut(usize, &mut Vec<u8>),
    mut take: impl FnMut(Option<&[u8]>),
) {
    let mut text = Vec::new();
    for row in 0..rows {
        text.clear();
        fill(row, &mut text);
        let is_null = nulls.is_some_and(|nulls| nulls.is_null(row));
        take((!is_null).then_some(text.as_slice()));
    }
}

/// An array of texts, or of bytes. UTF-8 is validated block by block: if a block is valid, so is each part that begins
/// at the start of a character.
fn collect_views<T: ByteViewType>(
    rows: usize,
    nulls: Option<&NullBuffer>,
    mut fill: impl FnMut(usize, &mut Vec<u8>),
) -> Result<GenericByteViewArray<T>> {
    let is_text = T::DATA_TYPE == DataType::Utf8View;
    let is_sound = |text: &[u8]| !is_text || simdutf8::basic::from_utf8(text).is_ok();
    let mut sound = true;
    let mut views = Aligned::new(rows.max(1) * size_of::<u128>()).map_err(|cause| no_memory(&cause))?;
    let mut blocks = Vec::new();
    let mut block = Vec::new();
    for (row, view) in views.chunks_exact_mut(size_of::<u128>()).take(rows).enumerate() {
        if block.capacity() - block.len() < VIEW_BLOCK / 4 {
            let full = std::mem::replace(&mut block, buffers::take(VIEW_BLOCK));
            if !full.is_empty() {
                sound &= is_sound(&full);
                blocks.push(Buffer::from(buffers::share(full)));
            }
        }
        let start = block.len();
        fill(row, &mut block);
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            block.truncate(start);
        }
        let text = &block[start..];
        view.copy_from_slice(&make_view(text, blocks.len() as u32, start as u32).to_ne_bytes());
        if text.len() <= INLINE {
            sound &= is_sound(text);
            block.truncate(start);
        } else {
            sound &= !is_text || begins_character(text[0]);
        }
    }
    sound &= is_sound(&block);
    blocks.push(Buffer::from(buffers::share(block)));
    if !sound {
        return Err(damaged("a text is not UTF-8"));
    }
    let views = ScalarBuffer::new(Buffer::from(Bytes::from_owner(views)), 0, rows);
    // SAFETY: each view was made of bytes of the block that it names, or holds them itself; texts are UTF-8.
    Ok(unsafe { GenericByteViewArray::new_unchecked(views, blocks, nulls.cloned()) })
}

/// Whether a character of UTF-8 can begin with `byte`.
fn begins_character(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

fn collect_binary<O: OffsetSizeTrait>(
    rows: usize,
    nulls: Option<&NullBuffer>,
    fill: impl FnMut(usize, &mut Vec<u8>),
) -> GenericBinaryArray<O> {
    let mut builder = GenericBinaryBuilder::<O>::with_capacity(rows, 0);
    each(rows, nulls, fill, |text| builder.append_option(text));
    builder.finish()
}

/// Copies `text` to the cursor of `place`, with the bits of `flip` flipped.
fn copy(text: &[u8], flip: u8, place: &mut [u8], cursor: &mut usize) {
    let target = &mut place[*cursor..*cursor + text.len()];
    target.copy_from_slice(text);
    if flip != 0 {
        target.iter_mut().for_each(|byte| *byte ^= flip);
    }
    *cursor += text.len();
}

fn write_fixed<T>(values: &PrimitiveArray<T>, from: usize, flip: u8, place: &mut [u8], cursors: &mut [usize])
where
    T: ArrowPrimitiveType,
    T::Native: Ordered,
{
    let nulls = values.nulls().filter(|nulls| nulls.null_count() > 0);
    for (row, (cursor, value)) in cursors.iter_mut().zip(&values.values()[from..]).enumerate() {
        let mut bytes = value.to_ordered();
        let width = bytes.as_ref().len();
        match nulls.is_some_and(|nulls| nulls.is_null(from + row)) {
            true => bytes = Default::default(),
            false => bytes.as_mut().iter_mut().for_each(|byte| *byte ^= flip),
        }
        place[*cursor..*cursor + width].copy_from_slice(bytes.as_ref());
        *cursor += width;
    }
}

/// `false` and `true` as 0 and 1.
fn numbers(values: &BooleanArray) -> UInt8Array {
    UInt8Array::new(values.values().iter().map(u8::from).collect::<Vec<_>>().into(), values.nulls().cloned())
}

/// Bytes of `number` as [`write_number`] writes it.
fn number_length(number: u32) -> usize {
    match number {
        0..0x80 => 1,
        _ => (32 - number.leading_zeros() as usize).div_ceil(7),
    }
}

/// Writes `number`, seven bits a byte from the lowest, each but the last with its eighth bit set (LEB128).
fn write_number(place: &mut [u8], mut number: u32) -> usize {
    let mut at = 0;
    while number >= 0x80 {
        place[at] = number as u8 | 0x80;
        number >>= 7;
        at += 1;
    }
    place[at] = number as u8;
    at + 1
}

/// Reads what [`write_number`] wrote at `at`, and moves `at` after it.
#[inline]
fn read_number(bytes: &[u8], at: &mut usize) -> usize {
    let first = bytes[*at] as usize;
    *at += 1;
    if first < 0x80 {
        return first;
    }
    let mut number = first & 0x7f;
    let mut shift = 7;
    loop {
        let next = bytes[*at] as usize;
        *at += 1;
        number |= (next & 0x7f) << shift;
        shift += 7;
        if next < 0x80 || shift > 28 {
            return number;
        }
    }
}

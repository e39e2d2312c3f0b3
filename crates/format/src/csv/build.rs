//! The fields of one column as an array.
//!
//! A builder takes a chunk of records at a time, so that it dispatches on the type once a chunk, not once a value. Text
//! is not copied if its bytes can be shared: the array views the pushed text. Text with escapes, or of a record that
//! was cut, is copied to a block of the column.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, NullBufferBuilder, PrimitiveArray, StringViewArray, make_view,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use bytes::Bytes;
use millstream_core::format::TEXT;
use millstream_core::views::{INLINE, view};
use millstream_core::{Error, Result};

use super::scan::Index;
use super::values::{Reader, Syntax, ValueFault, trimmed};
use millstream_core::columns::type_name;

/// Records of one text.
pub(crate) struct Chunk<'a> {
    /// The text.
    pub text: &'a [u8],
    /// The same, if arrays may keep it alive; otherwise values are copied.
    pub shared: Option<&'a Bytes>,
    /// Its records. All of them are UTF-8.
    pub index: &'a Index,
    /// How to read a field.
    pub syntax: &'a Syntax,
}

impl<'a> Chunk<'a> {
    /// The raw bytes of a field.
    #[inline]
    pub fn raw(&self, row: usize, field: usize) -> &'a [u8] {
        let place = row * self.index.width + field;
        let end = self.index.ends[place] as usize;
        let start = if field == 0 {
            self.index.starts[row] as usize
        } else {
            self.index.ends[place - 1] as usize + self.syntax.delimiter_length()
        };
        &self.text[start..end]
    }
}

/// A value that its type cannot have: the row in the chunk, the reason, and the text.
pub(crate) struct BadValue {
    pub row: usize,
    pub field: usize,
    pub fault: ValueFault,
}

/// Makes the arrays of one column.
pub(crate) trait Builder: Send {
    /// Appends field `field` of every record of `chunk`. A bad value is appended as null and added to `bad`.
    fn append(&mut self, chunk: &Chunk<'_>, field: usize, bad: &mut Vec<BadValue>);

    /// Appends nulls: the file lacks the column.
    fn append_nulls(&mut self, count: usize);

    /// The array of the values since the last call.
    fn finish(&mut self) -> Result<ArrayRef>;
}

/// The builder of columns of `data_type`.
pub(crate) fn builder(data_type: &DataType, reader: Reader, capacity: usize) -> Result<Box<dyn Builder>> {
    macro_rules! numbers {
        ($kind:ty, $parse:expr) => {
            Box::new(Numbers::<$kind, _>::new(data_type, capacity, $parse))
        };
    }
    macro_rules! integers {
        ($kind:ty, $parse:ident) => {
            numbers!($kind, move |text| {
                let value = reader.$parse(text)?;
                <$kind as ArrowPrimitiveType>::Native::try_from(value).map_err(|_| ValueFault::OutOfRange)
            })
        };
    }
    Ok(match data_type {
        DataType::Boolean => Box::new(Booleans { reader, values: BooleanBuilder::with_capacity(capacity) }),
        DataType::Int8 => integers!(Int8Type, signed),
        DataType::Int16 => integers!(Int16Type, signed),
        DataType::Int32 => integers!(Int32Type, signed),
        DataType::Int64 => numbers!(Int64Type, move |text| reader.signed(text)),
        DataType::UInt8 => integers!(UInt8Type, unsigned),
        DataType::UInt16 => integers!(UInt16Type, unsigned),
        DataType::UInt32 => integers!(UInt32Type, unsigned),
        DataType::UInt64 => numbers!(UInt64Type, move |text| reader.unsigned(text)),
        DataType::Float32 => numbers!(Float32Type, move |text| reader.float32(text)),
        DataType::Float64 => numbers!(Float64Type, move |text| reader.float64(text)),
        DataType::Date32 => numbers!(Date32Type, move |text| reader.date(text)),
        DataType::Time64(TimeUnit::Microsecond) => numbers!(Time64MicrosecondType, move |text| reader.time(text)),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let zone = zone.is_some();
            numbers!(TimestampMicrosecondType, move |text| reader.timestamp(text, zone))
        }
        DataType::Decimal128(precision, scale) if *scale >= 0 => {
            let (precision, scale) = (*precision, *scale);
            numbers!(Decimal128Type, move |text| {
                reader.decimal(text, precision, scale)?.to_i128().ok_or(ValueFault::OutOfRange)
            })
        }
        DataType::Decimal256(precision, scale) if *scale >= 0 => {
            let (precision, scale) = (*precision, *scale);
            numbers!(Decimal256Type, move |text| reader.decimal(text, precision, scale))
        }
        DataType::Binary => Box::new(Binaries { values: BinaryBuilder::new(), bytes: Vec::new() }),
        data_type if *data_type == TEXT => Box::new(Texts::new(capacity)),
        other => {
            return Err(Error::job(format!("csv has no values of type {}", type_name(other)))
                .hint("declare the column as utf8, or write the data as json or parquet"));
        }
    })
}

/// Calls `with` for each record of the chunk with the text of its field, unescaped and trimmed; `None` for null.
#[inline]
fn each_value<'a>(chunk: &Chunk<'a>, field: usize, mut with: impl FnMut(usize, Option<&[u8]>)) {
    let mut scratch = Vec::new();
    for row in 0..chunk.index.rows() {
        let content = chunk.syntax.content(chunk.raw(row, field));
        let text = if content.escaped {
            scratch.clear();
            chunk.syntax.unescape(content.text, &mut scratch);
            &scratch[..]
        } else {
            content.text
        };
        let text = trimmed(text);
        with(row, if chunk.syntax.is_null(text) { None } else { Some(text) });
    }
}

struct Numbers<T: ArrowPrimitiveType, F> {
    data_type: DataType,
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    parse: F,
}

impl<T: ArrowPrimitiveType, F: FnMut(&[u8]) -> Result<T::Native, ValueFault>> Numbers<T, F> {
    fn new(data_type: &DataType, capacity: usize, parse: F) -> Self {
        Numbers {
            data_type: data_type.clone(),
            values: Vec::with_capacity(capacity),
            nulls: NullBufferBuilder::new(capacity),
            parse,
        }
    }
}

impl<T: ArrowPrimitiveType, F: FnMut(&[u8]) -> Result<T::Native, ValueFault> + Send> Builder for Numbers<T, F> {
    fn append(&mut self, chunk: &Chunk<'_>, field: usize, bad: &mut Vec<BadValue>) {
        each_value(chunk, field, |row, text| {
            let value =
                text.and_then(|text| (self.parse)(text).map_err(|fault| bad.push(BadValue { row, field, fault })).ok());
            self.nulls.append(value.is_some());
            self.values.push(value.unwrap_or_default());
        });
    }

    fn append_nulls(&mut self, count: usize) {
        self.nulls.append_n_nulls(count);
        self.values.resize(self.values.len() + count, T::Native::default());
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let capacity = self.values.len();
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(capacity));
        let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), self.nulls.finish())
            .map_err(|cause| Error::internal("an array of numbers does not fit together").cause(cause))?;
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }
}

struct Booleans {
    reader: Reader,
    values: BooleanBuilder,
}

impl Builder for Booleans {
    fn append(&mut self, chunk: &Chunk<'_>, field: usize, bad: &mut Vec<BadValue>) {
        each_value(chunk, field, |row, text| {
            let value = text.and_then(|text| {
                self.reader.boolean(text).map_err(|fault| bad.push(BadValue { row, field, fault })).ok()
            });
            self.values.append_option(value);
        });
    }

    fn append_nulls(&mut self, count: usize) {
        self.values.append_nulls(count);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.values.finish()))
    }
}

struct Binaries {
    values: BinaryBuilder,
    bytes: Vec<u8>,
}

impl Builder for Binaries {
    fn append(&mut self, chunk: &Chunk<'_>, field: usize, bad: &mut Vec<BadValue>) {
        for row in 0..chunk.index.rows() {
            let content = chunk.syntax.content(chunk.raw(row, field));
            if !content.quoted && chunk.syntax.is_null(content.text) {
                self.values.append_null();
                continue;
            }
            self.bytes.clear();
            match Reader::binary(content.text, &mut self.bytes) {
                Ok(()) => self.values.append_value(&self.bytes),
                Err(fault) => {
                    bad.push(BadValue { row, field, fault });
                    self.values.append_null();
                }
            }
        }
    }

    fn append_nulls(&mut self, count: usize) {
        (0..count).for_each(|_| self.values.append_null());
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.values.finish()))
    }
}

/// A block of copied texts is closed at this size: offsets in views have 32 bits.
const OWN_BLOCK: usize = 1 << 30;

/// Text as views.
pub(crate) struct Texts {
    views: Vec<u128>,
    nulls: NullBufferBuilder,
    buffers: Vec<Buffer>,
    own: Vec<u8>,
    /// The index of `own` among the buffers, once it has one.
    own_place: Option<u32>,
}

impl Texts {
    /// Empty, with room for `capacity` texts.
    pub fn new(capacity: usize) -> Self {
        Texts {
            views: Vec::with_capacity(capacity),
            nulls: NullBufferBuilder::new(capacity),
            buffers: Vec::new(),
            own: Vec::new(),
            own_place: None,
        }
    }

    /// Appends a text that is part of `shared`, without a copy; `place` is the buffer's index among this column's
    /// buffers once it has one. Pass the same variable for all texts of one buffer.
    #[inline]
    pub fn append_shared(&mut self, text: &[u8], offset: usize, shared: &Bytes, place: &mut Option<u32>) {
        self.nulls.append_non_null();
        if text.len() <= INLINE {
            self.views.push(view(shared, offset, text.len(), 0));
            return;
        }
        let place = *place.get_or_insert_with(|| {
            self.buffers.push(Buffer::from(shared.clone()));
            narrow(self.buffers.len() - 1)
        });
        self.views.push(view(shared, offset, text.len(), place));
    }

    /// Appends the text that `write` writes.
    pub fn append_own(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.nulls.append_non_null();
        if self.own.len() > OWN_BLOCK {
            self.close_own();
        }
        let start = self.own.len();
        write(&mut self.own);
        if self.own.len() - start <= INLINE {
            self.views.push(make_view(&self.own[start..], 0, 0));
            self.own.truncate(start);
            return;
        }
        let place = *self.own_place.get_or_insert_with(|| {
            self.buffers.push(Buffer::default());
            narrow(self.buffers.len() - 1)
        });
        self.views.push(make_view(&self.own[start..], place, narrow(start)));
    }

    fn close_own(&mut self) {
        let own = std::mem::take(&mut self.own);
        if let Some(place) = self.own_place.take() {
            self.buffers[place as usize] = Buffer::from_vec(own);
        }
    }

    /// The array of the texts since the last call.
    pub fn array(&mut self) -> ArrayRef {
        self.close_own();
        let capacity = self.views.len();
        let views = std::mem::replace(&mut self.views, Vec::with_capacity(capacity));
        let buffers = std::mem::take(&mut self.buffers);
        // SAFETY: each view was made by `make_view` from bytes that lie at its offset in the buffer at its place. All
        // of them are UTF-8: the chunk's records were checked, fields begin and end beside a character of the
        // delimiter, a quote or a line end, and undoing escapes only takes characters of ASCII out.
        Arc::new(unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views), buffers, self.nulls.finish()) })
    }
}

impl Builder for Texts {
    fn append(&mut self, chunk: &Chunk<'_>, field: usize, _: &mut Vec<BadValue>) {
        let mut place = None;
        let base = chunk.text.as_ptr().addr();
        for row in 0..chunk.index.rows() {
            let content = chunk.syntax.content(chunk.raw(row, field));
            if !content.quoted && chunk.syntax.is_null(content.text) {
                self.nulls.append_null();
                self.views.push(0);
            } else if content.escaped {
                self.append_own(|own| chunk.syntax.unescape(content.text, own));
            } else if let Some(shared) = chunk.shared {
                self.append_shared(content.text, content.text.as_ptr().addr().wrapping_sub(base), shared, &mut place);
            } else {
                self.append_own(|own| own.extend_from_slice(content.text));
            }
        }
    }

    fn append_nulls(&mut self, count: usize) {
        self.nulls.append_n_nulls(count);
        self.views.resize(self.views.len() + count, 0);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(self.array())
    }
}

/// Buffers are shorter than 4 GiB and fewer than 2³²: the parser cuts larger texts.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn narrow(position: usize) -> u32 {
    debug_assert!(u32::try_from(position).is_ok());
    position as u32
}

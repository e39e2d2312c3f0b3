//! Columns under construction: each reads its values directly from the text of a record.
//!
//! ```text
//!  Fields ─ key ─▶ slot ─▶ builder ─┬─ Primitives, Truths, Texts, Binaries
//!    ▲                              ├─ Lists ─▶ builder of the items
//!    └──────────────────────────────┴─ Structs
//! ```
//! When a record turns out to be bad, some columns already have values of it: `truncate` removes them. Texts are copied
//! into a buffer instead of being views into the pushed text, which would keep every key, bracket and unused value in
//! memory: most of a JSON file.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, BooleanBufferBuilder, ByteView, ListArray,
    NullBufferBuilder, PrimitiveArray, StringViewArray, StructArray, make_view,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Field, FieldRef, Fields as ArrowFields, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use millstream_core::columns::{TYPE_NAMES, type_name};
use millstream_core::format::SeenColumns;
use millstream_core::views::INLINE;
use millstream_core::{Error, RejectKind, Result};

use super::convert::{self, Float, Unfit};
use super::cursor::{Cursor, Fault, Kind};
use super::quick::{Lead, Margin, Short, Text, ValueEnd};

/// A column that is being filled.
pub trait Builder: Send {
    /// Reads the next value, which is not null, into a new row. After a fault the column is inconsistent until it is
    /// truncated.
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault>;

    /// Adds a row that is null.
    fn null(&mut self);

    /// Reads the value at byte `at` into a new row if the fast path can. Returns where it ends.
    fn quick(&mut self, margin: &Margin<'_>, at: usize) -> Option<ValueEnd> {
        let _ = (margin, at);
        None
    }

    /// Removes all rows but the first `rows`, and the remains of a fault.
    fn truncate(&mut self, rows: usize);

    /// Returns the rows, and starts a new array.
    fn finish(&mut self) -> Result<ArrayRef>;
}

/// Reads the next value, null or not.
#[inline]
fn append(builder: &mut dyn Builder, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
    if cursor.null()? {
        builder.null();
        return Ok(());
    }
    builder.value(cursor, scratch)
}

/// Reads the value at byte `at`, null or not, if the fast path can. Returns where it ends.
#[inline]
fn append_quick(builder: &mut dyn Builder, margin: &Margin<'_>, at: usize) -> Option<ValueEnd> {
    let place = builder.quick(margin, at);
    if place.is_some() {
        return place;
    }
    let place = margin.null(at)?;
    builder.null();
    Some(place)
}

/// How the values of a column are read, besides its type.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// How dates and times are written (strftime); `None` for ISO 8601.
    pub format: Option<&'a str>,
    /// The meaning of unknown keys in the objects of this column.
    pub extra: Extra,
}

/// A builder for the values of `field`.
pub fn builder(field: &Field, reading: Reading<'_>) -> Result<Box<dyn Builder>> {
    let data_type = field.data_type();
    if let Some(format) = reading.format {
        return formatted(field, format.to_owned());
    }
    Ok(match data_type {
        DataType::Boolean => Box::new(Truths::default()),
        DataType::Int8 => integers::<Int8Type>(),
        DataType::Int16 => integers::<Int16Type>(),
        DataType::Int32 => integers::<Int32Type>(),
        DataType::Int64 => integers::<Int64Type>(),
        DataType::UInt8 => integers::<UInt8Type>(),
        DataType::UInt16 => integers::<UInt16Type>(),
        DataType::UInt32 => integers::<UInt32Type>(),
        DataType::UInt64 => integers::<UInt64Type>(),
        DataType::Float32 => floats::<Float32Type>(),
        DataType::Float64 => floats::<Float64Type>(),
        DataType::Utf8View => Box::new(Texts::default()),
        DataType::Binary => Box::new(Binaries::default()),
        DataType::Date32 => converted::<Date32Type>(field, convert::date),
        DataType::Time64(TimeUnit::Microsecond) => converted::<Time64MicrosecondType>(field, convert::time),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            converted::<TimestampMicrosecondType>(field, convert::timestamp)
        }
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            let long = move |text: &str| convert::decimal(text, precision, scale, |digits| i128::from_str(digits).ok());
            decimals::<Decimal128Type>(field, long, move |short| short.decimal(precision, scale))
        }
        DataType::Decimal256(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            let long = move |text: &str| convert::decimal(text, precision, scale, i256::from_string);
            decimals::<Decimal256Type>(field, long, move |short| short.decimal(precision, scale).map(i256::from_i128))
        }
        DataType::List(item) => Box::new(Lists::new(item, reading)?),
        DataType::Struct(fields) => Box::new(Structs::new(fields, reading)?),
        _ => return Err(unreadable(field)),
    })
}

/// A builder for dates and times that are written in a `format` of strftime.
fn formatted(field: &Field, format: String) -> Result<Box<dyn Builder>> {
    Ok(match field.data_type() {
        DataType::Date32 => converted::<Date32Type>(field, move |text| convert::formatted_date(text, &format)),
        DataType::Time64(TimeUnit::Microsecond) => {
            converted::<Time64MicrosecondType>(field, move |text| convert::formatted_time(text, &format))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            converted::<TimestampMicrosecondType>(field, move |text| convert::formatted_timestamp(text, &format))
        }
        _ => return Err(unreadable(field)),
    })
}

fn unreadable(field: &Field) -> Error {
    Error::job(format!("json cannot read values of the type {}", type_name(field.data_type())))
        .column(field.name())
        .hint(format!("valid types: {}", TYPE_NAMES.join(", ")))
}

/// The meaning of a key that is no field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// It is skipped.
    Ignore,
    /// The record is refused, with this hint.
    Refuse(&'static str),
}

/// The most unknown keys that are kept, and the longest one.
const MOST_EXTRAS: usize = 64;
const LONGEST_EXTRA: usize = 100;

/// The fields of an object, by name.
pub struct Fields {
    /// The fields, followed by unknown keys.
    slots: Vec<Slot>,
    /// How many of the slots are fields.
    count: usize,
    index: HashMap<String, usize>,
    extra: Extra,
    /// The number of the object, to know which fields it has had.
    object: u64,
    /// The first slot of an object that is like the last one.
    first: usize,
    key: String,
    /// The first unknown key.
    other: Option<String>,
}

struct Slot {
    name: String,
    /// `None` if the values are not needed.
    builder: Option<Box<dyn Builder>>,
    /// It is an unknown key, which may occur twice.
    extra: bool,
    /// The object that had it last.
    last_seen: u64,
    /// The text before the last value.
    lead: Lead,
    /// The slot that comes next if this object is like the last one.
    next: usize,
}

/// The index of no slot.
const NO_SLOT: usize = usize::MAX;

impl Slot {
    fn new(name: &str, builder: Option<Box<dyn Builder>>, extra: bool, next: usize) -> Self {
        Slot { name: name.to_owned(), builder, extra, last_seen: 0, lead: Lead::default(), next }
    }

    /// Reads the value at byte `at`, and returns where it ends. Its key is at byte `key`, in the object of this number.
    #[inline(always)]
    fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        scratch: &mut String,
        object: u64,
        key: usize,
        at: usize,
    ) -> Result<usize, Fault> {
        if self.last_seen == object && !self.extra {
            return Err(self.twice(key));
        }
        self.last_seen = object;
        let quick = match &mut self.builder {
            Some(builder) => append_quick(builder.as_mut(), cursor.margin(), at),
            None => cursor.margin().skip(at),
        };
        if let Some(end) = quick {
            return Ok(end.get());
        }
        cursor.go_on(at);
        self.plain_value(cursor, scratch)?;
        Ok(cursor.at())
    }

    /// Reads the value that is next, token by token.
    #[inline(never)]
    fn plain_value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        match &mut self.builder {
            Some(builder) => append(builder.as_mut(), cursor, scratch),
            None => cursor.skip(scratch),
        }
        .map_err(|fault| fault.in_field(&self.name))
    }

    /// The fault of a key at byte `at` that occurs twice in its object.
    #[cold]
    fn twice(&self, at: usize) -> Fault {
        Fault::new(at, "a key occurs twice in one object")
            .kind(RejectKind::Fields)
            .text(&self.name)
            .in_field(&self.name)
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.name)).finish()
    }
}

impl Fields {
    /// Fields for which `reading` returns `Some` get a builder; the others are only known by name.
    pub fn new<'r>(
        fields: &ArrowFields,
        extra: Extra,
        reading: impl Fn(usize, &Field) -> Option<Reading<'r>>,
    ) -> Result<Self> {
        let slot = |(index, field): (usize, &FieldRef)| {
            let builder = reading(index, field).map(|reading| builder(field, reading)).transpose()?;
            Ok(Slot::new(field.name(), builder, false, index + 1))
        };
        let slots = fields.iter().enumerate().map(slot).collect::<Result<Vec<_>>>()?;
        let index = slots.iter().enumerate().map(|(index, slot)| (slot.name.clone(), index)).collect();
        Ok(Fields { count: slots.len(), slots, index, extra, object: 0, first: 0, key: String::new(), other: None })
    }

    /// Adds the fields that the objects so far have had to `seen`.
    pub fn note_seen(&self, seen: &SeenColumns) {
        if self.object == 0 {
            return;
        }
        seen.note(self.count, |field| self.slots.get(field).is_some_and(|slot| slot.last_seen > 0));
        self.other.iter().for_each(|other| seen.note_other(other));
    }

    /// Reads an object that is next into a new row of every field.
    pub fn object(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        cursor.open_object()?;
        self.object += 1;
        let margin = cursor.margin();
        let mut at = cursor.at();
        let mut seen = 0;
        let mut first = true;
        let mut last = NO_SLOT;
        let mut expected = self.first;
        loop {
            let lead = |slot: &Slot| margin.lead(&slot.lead, at, first);
            if let Some(slot) = self.slots.get_mut(expected)
                && let Some(end) = lead(slot)
            {
                seen += usize::from(expected < self.count);
                at = slot.read(cursor, scratch, self.object, at, end.get())?;
                (first, last, expected) = (false, expected, slot.next);
                continue;
            }
            if !first && margin.closes(at) {
                cursor.close_object(at);
                break;
            }
            cursor.go_on(at);
            let Some(index) = self.plain_field(cursor, scratch, first, last)? else { break };
            at = cursor.at();
            seen += usize::from(index < self.count);
            (first, last, expected) = (false, index, self.slots.get(index).map_or(NO_SLOT, |slot| slot.next));
        }
        if seen < self.count {
            self.fill_missing();
        }
        Ok(())
    }

    /// Reads a key that is not the expected one and its value. Returns its slot ([`NO_SLOT`] if it is not kept), or
    /// `None` at the end of the object. `last` is the slot of the previous key, unless it is the `first` one.
    #[inline(never)]
    fn plain_field(
        &mut self,
        cursor: &mut Cursor<'_>,
        scratch: &mut String,
        first: bool,
        last: usize,
    ) -> Result<Option<usize>, Fault> {
        let begin = cursor.at();
        let mut key = std::mem::take(&mut self.key);
        let index = self.find_slot(cursor, &mut key, first);
        self.key = key;
        let Some(index) = index? else { return Ok(None) };
        if first {
            self.first = index;
        } else if let Some(last) = self.slots.get_mut(last) {
            last.next = index;
        }
        match self.slots.get_mut(index) {
            Some(slot) => {
                let at = slot.read(cursor, scratch, self.object, begin, cursor.at())?;
                cursor.go_on(at);
            }
            None => cursor.skip(scratch).map_err(|fault| fault.in_field(&self.key))?,
        }
        Ok(Some(index))
    }

    /// Reads a key, and returns its slot.
    fn find_slot(&mut self, cursor: &mut Cursor<'_>, key: &mut String, first: bool) -> Result<Option<usize>, Fault> {
        let begin = cursor.at();
        let Some(name) = cursor.key(first, key)? else { return Ok(None) };
        let index = self.slot_of(name, begin)?;
        match self.slots.get_mut(index) {
            Some(slot) => slot.lead.learn(cursor.lead(begin), first),
            None => *key = name.to_owned(),
        }
        Ok(Some(index))
    }

    /// The slot of a key at byte `at`; [`NO_SLOT`] if it is skipped and not kept.
    fn slot_of(&mut self, name: &str, at: usize) -> Result<usize, Fault> {
        if let Some(index) = self.index.get(name) {
            return Ok(*index);
        }
        if let Extra::Refuse(hint) = self.extra {
            return Err(Fault::new(at, "a key that is not a column")
                .kind(RejectKind::Fields)
                .text(name)
                .hint(hint)
                .in_field(name));
        }
        self.other.get_or_insert_with(|| name.chars().take(LONGEST_EXTRA).collect());
        let index = self.slots.len();
        if index - self.count == MOST_EXTRAS || name.len() > LONGEST_EXTRA {
            return Ok(NO_SLOT);
        }
        self.slots.push(Slot::new(name, None, true, NO_SLOT));
        self.index.insert(name.to_owned(), index);
        Ok(index)
    }

    fn fill_missing(&mut self) {
        for slot in &mut self.slots {
            if slot.last_seen != self.object
                && let Some(builder) = &mut slot.builder
            {
                builder.null();
            }
        }
    }

    /// Adds a row that is null to every field.
    fn null(&mut self) {
        for builder in self.slots.iter_mut().filter_map(|slot| slot.builder.as_mut()) {
            builder.null();
        }
    }

    /// Removes all rows but the first `rows`.
    pub fn truncate(&mut self, rows: usize) {
        for builder in self.slots.iter_mut().filter_map(|slot| slot.builder.as_mut()) {
            builder.truncate(rows);
        }
    }

    /// Returns the columns; `None` for those without a builder.
    pub fn finish(&mut self) -> Result<Vec<Option<ArrayRef>>> {
        self.slots.iter_mut().map(|slot| slot.builder.as_mut().map(|builder| builder.finish()).transpose()).collect()
    }
}

/// A fault for a value that has another kind than its column.
fn wrong_kind(expected: &str, cursor: &mut Cursor<'_>, scratch: &mut String) -> Fault {
    let found = match cursor.kind() {
        Ok(kind) => kind.name(),
        Err(fault) => return fault,
    };
    let at = cursor.at();
    match cursor.raw(scratch) {
        Ok(text) => Fault::new(at, format!("expected {expected}, found {found}"))
            .kind(RejectKind::Value)
            .text(text)
            .hint(TEXT_TAKES_ALL),
        Err(fault) => fault,
    }
}

fn unfit(expected: &str, why: &Unfit, at: usize, text: &str) -> Fault {
    let fault = match why {
        Unfit::NotOne => Fault::new(at, format!("not {expected}")).kind(RejectKind::Value),
        Unfit::OutOfRange => Fault::new(at, format!("out of the range of {expected}")).kind(RejectKind::OutOfRange),
        Unfit::Fraction => {
            Fault::new(at, format!("{expected} cannot hold all its digits after the point")).kind(RejectKind::Value)
        }
    };
    fault.text(text).hint(TEXT_TAKES_ALL)
}

const TEXT_TAKES_ALL: &str = "a column declared as utf8 takes every value as its text";

/// A number that is next, or a number written as a text: its characters.
#[inline]
fn number_text<'s, 'a: 's>(expected: &str, cursor: &mut Cursor<'a>, scratch: &'s mut String) -> Result<&'s str, Fault> {
    match cursor.kind()? {
        Kind::Number => cursor.number(),
        Kind::Text => cursor.string(scratch),
        _ => Err(wrong_kind(expected, cursor, scratch)),
    }
}

/// Values of one fixed width, which `read` reads from the cursor, or `short` makes from a short number.
struct Primitives<T: ArrowPrimitiveType, R, S> {
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    data_type: DataType,
    /// The type's name, for messages of `read`.
    expected: String,
    read: R,
    short: S,
}

impl<T: ArrowPrimitiveType, R, S> Primitives<T, R, S>
where
    R: Fn(&str, &mut Cursor<'_>, &mut String) -> Result<T::Native, Fault> + Send + 'static,
    S: Fn(Short) -> Option<T::Native> + Send + 'static,
{
    fn boxed(data_type: &DataType, read: R, short: S) -> Box<dyn Builder> {
        Box::new(Primitives::<T, R, S> {
            values: Vec::new(),
            nulls: NullBufferBuilder::new(0),
            data_type: data_type.clone(),
            expected: type_name(data_type),
            read,
            short,
        })
    }
}

impl<T: ArrowPrimitiveType, R, S> Builder for Primitives<T, R, S>
where
    R: Fn(&str, &mut Cursor<'_>, &mut String) -> Result<T::Native, Fault> + Send,
    S: Fn(Short) -> Option<T::Native> + Send,
{
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        let value = (self.read)(&self.expected, cursor, scratch)?;
        self.values.push(value);
        self.nulls.append_non_null();
        Ok(())
    }

    fn quick(&mut self, margin: &Margin<'_>, at: usize) -> Option<ValueEnd> {
        let (short, end) = margin.number(at)?;
        self.values.push((self.short)(short)?);
        self.nulls.append_non_null();
        Some(end)
    }

    fn null(&mut self) {
        self.values.push(T::Native::default());
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let values = std::mem::take(&mut self.values);
        let array = PrimitiveArray::<T>::new(values.into(), self.nulls.finish());
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }
}

fn integers<T: ArrowPrimitiveType>() -> Box<dyn Builder>
where
    T::Native: TryFrom<i64> + TryFrom<i128>,
{
    let read = |expected: &str, cursor: &mut Cursor<'_>, scratch: &mut String| {
        cursor.kind()?;
        let at = cursor.at();
        match cursor.short_integer() {
            Some(value) => T::Native::try_from(value)
                .map_err(|_| unfit(expected, &Unfit::OutOfRange, at, cursor.between(at..cursor.at()))),
            None => {
                let text = number_text(expected, cursor, scratch)?;
                convert::integer(text)
                    .and_then(|value| T::Native::try_from(value).map_err(|_| Unfit::OutOfRange))
                    .map_err(|why| unfit(expected, &why, at, text))
            }
        }
    };
    let short = |short: Short| short.integer().and_then(|value| T::Native::try_from(value).ok());
    Primitives::<T, _, _>::boxed(&T::DATA_TYPE, read, short)
}

fn floats<T: ArrowPrimitiveType>() -> Box<dyn Builder>
where
    T::Native: convert::Float,
{
    let read = |expected: &str, cursor: &mut Cursor<'_>, scratch: &mut String| {
        let quoted = cursor.kind()? == Kind::Text;
        let at = cursor.at();
        let text = number_text(expected, cursor, scratch)?;
        convert::float(text, quoted).map_err(|why| unfit(expected, &why, at, text))
    };
    Primitives::<T, _, _>::boxed(&T::DATA_TYPE, read, T::Native::of_short)
}

/// Values that JSON writes as texts: dates and times.
fn converted<T: ArrowPrimitiveType>(
    field: &Field,
    convert: impl Fn(&str) -> Result<T::Native, Unfit> + Send + 'static,
) -> Box<dyn Builder> {
    let read = move |expected: &str, cursor: &mut Cursor<'_>, scratch: &mut String| {
        if cursor.kind()? != Kind::Text {
            return Err(wrong_kind(expected, cursor, scratch));
        }
        let at = cursor.at();
        let text = cursor.string(scratch)?;
        convert(text).map_err(|why| unfit(expected, &why, at, text))
    };
    Primitives::<T, _, _>::boxed(field.data_type(), read, |_| None)
}

/// Decimals, which JSON writes as numbers or as texts.
fn decimals<T: ArrowPrimitiveType>(
    field: &Field,
    convert: impl Fn(&str) -> Result<T::Native, Unfit> + Send + 'static,
    short: impl Fn(Short) -> Option<T::Native> + Send + 'static,
) -> Box<dyn Builder> {
    let read = move |expected: &str, cursor: &mut Cursor<'_>, scratch: &mut String| {
        cursor.kind()?;
        let at = cursor.at();
        let text = number_text(expected, cursor, scratch)?;
        convert(text).map_err(|why| unfit(expected, &why, at, text))
    };
    Primitives::<T, _, _>::boxed(field.data_type(), read, short)
}

struct Truths {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Default for Truths {
    fn default() -> Self {
        Truths { values: BooleanBufferBuilder::new(0), nulls: NullBufferBuilder::new(0) }
    }
}

impl Builder for Truths {
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        if cursor.kind()? != Kind::Bool {
            return Err(wrong_kind("bool", cursor, scratch));
        }
        self.values.append(cursor.truth()?);
        self.nulls.append_non_null();
        Ok(())
    }

    fn quick(&mut self, margin: &Margin<'_>, at: usize) -> Option<ValueEnd> {
        let (value, end) = margin.truth(at)?;
        self.values.append(value);
        self.nulls.append_non_null();
        Some(end)
    }

    fn null(&mut self) {
        self.values.append(false);
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        if rows < self.values.len() {
            self.values.truncate(rows);
        }
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(BooleanArray::new(self.values.finish(), self.nulls.finish())))
    }
}

/// Texts; another value is kept as it is written, so that a column of mixed values loses nothing.
struct Texts {
    views: Vec<u128>,
    blocks: Vec<Buffer>,
    block: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Default for Texts {
    fn default() -> Self {
        Texts { views: Vec::new(), blocks: Vec::new(), block: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }
}

/// A block of texts is closed when it would grow over this. (A view's offset has 32 bits.)
const BLOCK: usize = 1 << 30;

impl Texts {
    /// Adds a text that is too long for its view.
    fn append_long(&mut self, text: &[u8]) {
        if self.block.len() + text.len() > BLOCK {
            self.blocks.push(Buffer::from_vec(std::mem::take(&mut self.block)));
        }
        self.views.push(make_view(text, self.blocks.len() as u32, self.block.len() as u32));
        self.block.extend_from_slice(text);
    }

    /// Makes block `number` the current one, and drops those after it.
    fn reopen(&mut self, number: usize) {
        self.blocks.truncate(number + 1);
        if self.blocks.len() > number
            && let Some(closed) = self.blocks.pop()
        {
            // This is the only reference.
            self.block = closed.into_vec().unwrap_or_else(|shared| shared.to_vec());
        }
    }
}

impl Builder for Texts {
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        let text = match cursor.kind()? {
            Kind::Text => cursor.string(scratch)?,
            _ => cursor.raw(scratch)?,
        };
        if text.len() > INLINE {
            self.append_long(text.as_bytes());
        } else {
            self.views.push(make_view(text.as_bytes(), 0, 0));
        }
        self.nulls.append_non_null();
        Ok(())
    }

    fn quick(&mut self, margin: &Margin<'_>, at: usize) -> Option<ValueEnd> {
        let (text, end) = margin.text(at)?;
        match text {
            Text::Short(view) => self.views.push(view),
            Text::Long(bytes) => self.append_long(bytes),
        }
        self.nulls.append_non_null();
        Some(end)
    }

    fn null(&mut self) {
        self.views.push(0);
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        // Removes their bytes, too: in a file of only bad records, no batch would ever take them.
        let taken_back = self.views.get(rows..).unwrap_or_default();
        let first = taken_back.iter().map(|view| ByteView::from(*view)).find(|view| view.length as usize > INLINE);
        if let Some(first) = first {
            self.reopen(first.buffer_index as usize);
            self.block.truncate(first.offset as usize);
        }
        self.views.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        if !self.block.is_empty() {
            let next = Vec::with_capacity(self.block.len());
            self.blocks.push(Buffer::from_vec(std::mem::replace(&mut self.block, next)));
        }
        let views = ScalarBuffer::from(std::mem::take(&mut self.views));
        let blocks = std::mem::take(&mut self.blocks);
        // SAFETY: `value` made each view from a `&str`, and `quick` from a part of one that begins and ends next to a
        // quote; both put the same bytes at the block and offset that the view names (or the view holds them). Blocks
        // only grow, and are listed in the order of their numbers.
        let array = unsafe { StringViewArray::new_unchecked(views, blocks, self.nulls.finish()) };
        Ok(Arc::new(array))
    }
}

/// Bytes, written as hexadecimal digits.
struct Binaries {
    offsets: Vec<i32>,
    values: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Default for Binaries {
    fn default() -> Self {
        Binaries { offsets: vec![0], values: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }
}

impl Builder for Binaries {
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        if cursor.kind()? != Kind::Text {
            return Err(wrong_kind("binary", cursor, scratch));
        }
        let at = cursor.at();
        let text = cursor.string(scratch)?;
        convert::hexadecimal(text, &mut self.values).map_err(|_| {
            unfit("binary", &Unfit::NotOne, at, text).hint("bytes are written as pairs of hexadecimal digits")
        })?;
        self.offsets.push(offset_of(self.values.len(), at)?);
        self.nulls.append_non_null();
        Ok(())
    }

    fn null(&mut self) {
        self.offsets.push(self.offsets.last().copied().unwrap_or_default());
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.values.truncate(self.offsets.last().map_or(0, |end| *end as usize));
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        let values = Buffer::from_vec(std::mem::take(&mut self.values));
        let array = BinaryArray::try_new(OffsetBuffer::new(offsets.into()), values, self.nulls.finish());
        Ok(Arc::new(array.map_err(inconsistent)?))
    }
}

struct Lists {
    item: FieldRef,
    offsets: Vec<i32>,
    items: Box<dyn Builder>,
    count: usize,
    nulls: NullBufferBuilder,
}

impl Lists {
    fn new(item: &FieldRef, reading: Reading<'_>) -> Result<Self> {
        Ok(Lists {
            item: Arc::clone(item),
            offsets: vec![0],
            items: builder(item, reading)?,
            count: 0,
            nulls: NullBufferBuilder::new(0),
        })
    }
}

impl Builder for Lists {
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        if cursor.kind()? != Kind::List {
            return Err(wrong_kind("a list", cursor, scratch));
        }
        let at = cursor.at();
        cursor.open_list()?;
        let before = self.count;
        while cursor.item(self.count == before)? {
            let index = self.count - before + 1;
            match append_quick(self.items.as_mut(), cursor.margin(), cursor.at()) {
                Some(end) => cursor.go_on(end.get()),
                None => append(self.items.as_mut(), cursor, scratch).map_err(|fault| fault.in_item(index))?,
            }
            self.count += 1;
        }
        self.offsets.push(offset_of(self.count, at)?);
        self.nulls.append_non_null();
        Ok(())
    }

    fn null(&mut self) {
        self.offsets.push(self.offsets.last().copied().unwrap_or_default());
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.count = self.offsets.last().map_or(0, |end| *end as usize);
        self.items.truncate(self.count);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        self.count = 0;
        let items = self.items.finish()?;
        let offsets = OffsetBuffer::new(offsets.into());
        let array = ListArray::try_new(Arc::clone(&self.item), offsets, items, self.nulls.finish());
        Ok(Arc::new(array.map_err(inconsistent)?))
    }
}

struct Structs {
    names: ArrowFields,
    fields: Fields,
    rows: usize,
    nulls: NullBufferBuilder,
}

impl Structs {
    fn new(names: &ArrowFields, reading: Reading<'_>) -> Result<Self> {
        let fields = Fields::new(names, reading.extra, |_, _| Some(reading))?;
        Ok(Structs { names: names.clone(), fields, rows: 0, nulls: NullBufferBuilder::new(0) })
    }
}

impl Builder for Structs {
    fn value(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        if cursor.kind()? != Kind::Object {
            return Err(wrong_kind("an object", cursor, scratch));
        }
        self.fields.object(cursor, scratch)?;
        self.rows += 1;
        self.nulls.append_non_null();
        Ok(())
    }

    fn null(&mut self) {
        self.fields.null();
        self.rows += 1;
        self.nulls.append_null();
    }

    fn truncate(&mut self, rows: usize) {
        self.fields.truncate(rows);
        self.rows = self.rows.min(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let rows = std::mem::take(&mut self.rows);
        let columns = self.fields.finish()?.into_iter().flatten().collect();
        let nulls: Option<NullBuffer> = self.nulls.finish();
        let array = StructArray::try_new_with_length(self.names.clone(), columns, nulls, rows);
        Ok(Arc::new(array.map_err(inconsistent)?))
    }
}

/// The end of a list's items or a value's bytes within its batch.
fn offset_of(count: usize, at: usize) -> Result<i32, Fault> {
    i32::try_from(count).map_err(|_| Fault::new(at, "more than 2,147,483,647 list items or bytes in one batch"))
}

/// The error of columns that do not fit together: a bug in this module.
fn inconsistent(cause: arrow::error::ArrowError) -> Error {
    Error::internal("the columns of a json batch do not fit together").cause(cause)
}

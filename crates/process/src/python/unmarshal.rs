//! What a Python function answers, as columns.
//!
//! Each column comes in one of the forms of [`form`]. A value that is none of its column's type is a fault of its row,
//! not of the batch.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Float64Array, Float64Builder, Int64Array, Int64Builder,
    ListArray, StringArray, StringBuilder, StructArray, UInt64Builder,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{ArrowNativeType, DataType, Field, Float64Type, TimeUnit};
use millstream_core::types::type_name;
use millstream_core::{Error, Result};

/// A value that is none of its column's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueFault {
    /// The row of the batch, from 0.
    pub row: usize,
    /// The column.
    pub column: String,
    /// What is wrong.
    pub what: String,
    /// The value.
    pub text: String,
}

/// One object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Object<'a> {
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An int that fits.
    Int(i64),
    /// An int that is only in the range of uint64.
    Large(u64),
    /// Any other int.
    Huge,
    /// A float.
    Float(f64),
    /// A str.
    Text(&'a str),
    /// A str with half a surrogate pair, which is no Unicode text.
    NoText,
    /// Bytes.
    Bytes(&'a [u8]),
    /// A list or tuple of so many objects, which come next.
    List(usize),
    /// A dict: keys and values come next, then [`Object::End`].
    Dict,
    /// The end of a dict.
    End,
}

impl Object<'_> {
    /// How Python writes it, or what kind of object it is.
    fn shown(&self) -> String {
        match self {
            Object::None => "None".to_owned(),
            Object::Bool(true) => "True".to_owned(),
            Object::Bool(false) => "False".to_owned(),
            Object::Int(value) => value.to_string(),
            Object::Large(value) => value.to_string(),
            Object::Huge => "an int of more than 64 bits".to_owned(),
            Object::Float(value) => format!("{value:?}"),
            Object::Text(text) => format!("'{text}'"),
            Object::NoText => "a str with half a surrogate pair".to_owned(),
            Object::Bytes(_) => "bytes".to_owned(),
            Object::List(_) => "a list".to_owned(),
            Object::Dict | Object::End => "a dict".to_owned(),
        }
    }
}

/// Reads objects one after the other.
#[derive(Debug)]
pub struct Objects<'a> {
    rest: &'a [u8],
}

impl<'a> Objects<'a> {
    /// The objects of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Objects { rest: bytes }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(unreadable)?;
        self.rest = rest;
        Ok(taken)
    }

    fn length(&mut self) -> Result<i32> {
        let bytes = self.take(4)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn counted(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.length()?).map_err(|_| unreadable())?;
        self.take(length)
    }

    /// The next object.
    ///
    /// # Errors
    /// If there is none, or it is of a kind that the worker does not send.
    pub fn next(&mut self) -> Result<Object<'a>> {
        Ok(match self.take(1)?[0] {
            b'N' => Object::None,
            b'T' => Object::Bool(true),
            b'F' => Object::Bool(false),
            b'i' => Object::Int(i64::from(self.length()?)),
            b'l' => {
                let count = self.length()?;
                let digits = self.take(count.unsigned_abs() as usize * 2)?;
                large(count < 0, digits)
            }
            b'g' => {
                let bytes = self.take(8)?.try_into().map_err(|_| unreadable())?;
                Object::Float(f64::from_le_bytes(bytes))
            }
            b'u' | b'a' | b't' => str::from_utf8(self.counted()?).map_or(Object::NoText, Object::Text),
            b's' => Object::Bytes(self.counted()?),
            b'[' | b'(' => Object::List(usize::try_from(self.length()?).map_err(|_| unreadable())?),
            b')' => Object::List(usize::from(self.take(1)?[0])),
            b'{' => Object::Dict,
            b'0' => Object::End,
            _ => return Err(unreadable()),
        })
    }

    /// The next object, which must be a list.
    pub fn list(&mut self) -> Result<usize> {
        match self.next()? {
            Object::List(length) => Ok(length),
            _ => Err(unreadable()),
        }
    }

    /// The next object, which must be an int.
    pub fn int(&mut self) -> Result<i64> {
        match self.next()? {
            Object::Int(value) => Ok(value),
            _ => Err(unreadable()),
        }
    }

    /// The next object, which must be bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        match self.next()? {
            Object::Bytes(bytes) => Ok(bytes),
            _ => Err(unreadable()),
        }
    }

    /// The next object, which must be a str; what is no Unicode text is replaced.
    pub fn text(&mut self) -> Result<String> {
        match self.next()? {
            Object::Text(text) => Ok(text.to_owned()),
            Object::NoText => Ok("\u{fffd}".to_owned()),
            _ => Err(unreadable()),
        }
    }
}

/// The int of these digits of 15 bits, the least first.
fn large(is_negative: bool, digits: &[u8]) -> Object<'static> {
    let digits = digits.as_chunks::<2>().0;
    if digits.len() > 8 {
        return Object::Huge;
    }
    let place = |value: i128, digit: &[u8; 2]| value << 15 | i128::from(u16::from_le_bytes(*digit));
    let value = digits.iter().rev().fold(0, place);
    let value = if is_negative { -value } else { value };
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(value), _) => Object::Int(value),
        (_, Ok(value)) => Object::Large(value),
        _ => Object::Huge,
    }
}

/// The answer is not what the worker writes: it, or something that writes to the same pipe, is broken.
pub fn unreadable() -> Error {
    Error::data("the answer of the Python worker cannot be read")
        .hint("only the worker may write to file descriptors that it has inherited")
}

/// The forms of a column: their numbers are those of the worker.
mod form {
    /// A list of objects.
    pub const OBJECTS: i64 = 0;
    /// Bytes: int64 values.
    pub const INTS: i64 = 1;
    /// Bytes: float64 values.
    pub const FLOATS: i64 = 2;
    /// Bytes: all texts in UTF-8. Bytes: how many characters each of them has, as uint32.
    pub const TEXTS: i64 = 3;
}

/// Reads a column of `rows` values of the type of `field`. A value that is none of that type is null, and in `faults`.
///
/// # Errors
/// If `objects` does not hold such a column.
pub fn column(objects: &mut Objects<'_>, field: &Field, rows: usize, faults: &mut Faults) -> Result<ArrayRef> {
    let values: ArrayRef = match objects.int()? {
        form::OBJECTS => {
            if objects.list()? != rows {
                return Err(unreadable());
            }
            if matches!(field.data_type(), DataType::List(_) | DataType::Struct(_)) {
                let trees = (0..rows).map(|_| Tree::read(objects)).collect::<Result<Vec<_>>>()?;
                let (values, numbers) = (trees.iter().map(Some).collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
                return nested(field, field, &values, &numbers, faults);
            }
            scalars(field, rows, faults, || Ok(Tree::read(objects)?.object()))?
        }
        form::INTS => Arc::new(Int64Array::new(packed(objects.bytes()?, i64::from_le_bytes), None)),
        form::FLOATS => Arc::new(Float64Array::new(packed(objects.bytes()?, f64::from_le_bytes), None)),
        form::TEXTS => texts(objects)?,
        _ => return Err(unreadable()),
    };
    if values.len() != rows {
        return Err(unreadable());
    }
    in_type(values, field, faults)
}

fn packed<T: ArrowNativeType, const N: usize>(bytes: &[u8], value: fn([u8; N]) -> T) -> ScalarBuffer<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
}

fn texts(objects: &mut Objects<'_>) -> Result<ArrayRef> {
    let text = str::from_utf8(objects.bytes()?).map_err(|_| unreadable())?;
    let lengths: ScalarBuffer<u32> = packed(objects.bytes()?, u32::from_le_bytes);
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    offsets.push(0);
    let is_ascii = text.is_ascii();
    let (mut end, mut rest) = (0, text.chars());
    for length in lengths.iter().map(|length| *length as usize) {
        end = match (is_ascii, length) {
            (true, _) => end + length,
            (false, 0) => end,
            (false, _) => {
                rest.nth(length - 1);
                text.len() - rest.as_str().len()
            }
        };
        offsets.push(i32::try_from(end).map_err(|_| unreadable())?);
    }
    if end != text.len() {
        return Err(unreadable());
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    StringArray::try_new(offsets, text.as_bytes().into(), None)
        .map(|texts| Arc::new(texts) as _)
        .map_err(|_| unreadable())
}

/// The values of a column that are at fault.
pub type Faults = Vec<ValueFault>;

fn fault(field: &Field, row: usize, text: String) -> ValueFault {
    let what = format!("the function gave a value that is no {}", type_name(field.data_type()));
    ValueFault { row, column: field.name().clone(), what, text }
}

/// Reads `rows` objects that are no lists, as the nearest type that holds them.
fn scalars<'a>(
    field: &Field,
    rows: usize,
    faults: &mut Faults,
    mut next: impl FnMut() -> Result<Object<'a>>,
) -> Result<ArrayRef> {
    macro_rules! read {
        ($builder:expr, $($object:pat => $value:expr),+) => {{
            let mut builder = $builder;
            for row in 0..rows {
                match next()? {
                    Object::None => builder.append_null(),
                    $($object => builder.append_value($value),)+
                    other => {
                        faults.push(fault(field, row, other.shown()));
                        builder.append_null();
                    }
                }
            }
            Ok(Arc::new(builder.finish()) as ArrayRef)
        }};
    }
    match field.data_type() {
        DataType::Boolean => read!(BooleanBuilder::with_capacity(rows), Object::Bool(value) => value),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => read!(
            Float64Builder::with_capacity(rows),
            Object::Float(value) => value,
            Object::Int(value) => value as f64,
            Object::Large(value) => value as f64
        ),
        DataType::UInt64 => read!(
            UInt64Builder::with_capacity(rows),
            Object::Int(value @ 0..) => value.unsigned_abs(),
            Object::Large(value) => value
        ),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            read!(BinaryBuilder::new(), Object::Bytes(value) => value)
        }
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => read!(StringBuilder::new(), Object::Text(value) => value),
        _ => read!(Int64Builder::with_capacity(rows), Object::Int(value) => value),
    }
}

/// An object with all that belongs to it.
#[derive(Debug)]
enum Tree<'a> {
    One(Object<'a>),
    Many(Vec<Tree<'a>>),
}

impl<'a> Tree<'a> {
    fn read(objects: &mut Objects<'a>) -> Result<Self> {
        match objects.next()? {
            Object::List(length) => {
                (0..length).map(|_| Tree::read(objects)).collect::<Result<Vec<_>>>().map(Tree::Many)
            }
            // The worker sends the members of a struct as a list.
            Object::Dict | Object::End => Err(unreadable()),
            one => Ok(Tree::One(one)),
        }
    }

    /// The object, without what belongs to it.
    fn object(&self) -> Object<'a> {
        match self {
            Tree::One(object) => *object,
            Tree::Many(items) => Object::List(items.len()),
        }
    }
}

/// The values of the column `root` or of a part of it, `field`. The value `values[i]` is in row `rows[i]`; where there
/// is none, it is null.
fn nested<'a>(
    root: &Field,
    field: &Field,
    values: &[Option<&Tree<'a>>],
    rows: &[usize],
    faults: &mut Faults,
) -> Result<ArrayRef> {
    let object = |value: Option<&Tree<'a>>| value.map_or(Object::None, Tree::object);
    // The items of each value; what is neither a list nor null is at fault.
    let mut items = |fits: &dyn Fn(usize) -> bool| -> Vec<Option<&[Tree<'a>]>> {
        let mut all = Vec::with_capacity(values.len());
        for (value, row) in values.iter().zip(rows) {
            all.push(match value {
                Some(Tree::Many(items)) if fits(items.len()) => Some(items.as_slice()),
                None | Some(Tree::One(Object::None)) => None,
                Some(other) => {
                    faults.push(fault(root, *row, other.object().shown()));
                    None
                }
            });
        }
        all
    };
    match field.data_type() {
        DataType::List(item) => {
            let lists = items(&|_| true);
            let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
            let offsets = OffsetBuffer::from_lengths(lists.iter().map(|list| list.map_or(0, <[_]>::len)));
            let within =
                lists.iter().zip(rows).flat_map(|(list, row)| std::iter::repeat_n(*row, list.map_or(0, <[_]>::len)));
            let rows: Vec<usize> = within.collect();
            let values: Vec<Option<&Tree<'a>>> =
                lists.iter().flatten().flat_map(|list| list.iter()).map(Some).collect();
            let values = nested(root, item, &values, &rows, faults)?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, Some(nulls)).map_err(|_| unreadable())?))
        }
        DataType::Struct(members) => {
            let structs = items(&|length| length == members.len());
            let nulls = NullBuffer::from_iter(structs.iter().map(Option::is_some));
            let member = |(place, member): (usize, &Arc<Field>)| {
                let values: Vec<Option<&Tree<'a>>> = structs.iter().map(|one| one.map(|one| &one[place])).collect();
                nested(root, member, &values, rows, faults)
            };
            let columns = members.iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(StructArray::try_new(members.clone(), columns, Some(nulls)).map_err(|_| unreadable())?))
        }
        _ => {
            let (mut own, mut each) = (Faults::new(), values.iter());
            let next = || Ok(object(each.next().copied().flatten()));
            let read = scalars(field, values.len(), &mut own, next)?;
            let read = in_type(read, field, &mut own)?;
            faults.extend(own.into_iter().map(|one| ValueFault { row: rows[one.row], ..fault(root, 0, one.text) }));
            Ok(read)
        }
    }
}

/// `values` in the type of `field`.
fn in_type(values: ArrayRef, field: &Field, faults: &mut Faults) -> Result<ArrayRef> {
    let wanted = field.data_type();
    if values.data_type() == wanted {
        return Ok(values);
    }
    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
    // What the worker sends for them, in the type that Arrow converts from.
    let steps: Vec<DataType> = match wanted {
        DataType::Date32 => vec![DataType::Int32, DataType::Date32],
        DataType::Time32(_) | DataType::Time64(_) => vec![DataType::Time64(TimeUnit::Microsecond), wanted.clone()],
        DataType::Timestamp(unit, Some(_)) => {
            vec![micros, DataType::Timestamp(*unit, Some("UTC".into())), wanted.clone()]
        }
        DataType::Timestamp(..) => vec![micros, wanted.clone()],
        _ => vec![wanted.clone()],
    };
    if let DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) = wanted {
        let fraction = usize::try_from(*scale).unwrap_or(0);
        for (row, text) in values.as_string::<i32>().iter().enumerate() {
            let digits = text.and_then(|text| text.split_once('.')).map_or("", |(_, digits)| digits);
            if digits.trim_end_matches('0').len() > fraction {
                faults.push(fault(field, row, text.unwrap_or_default().to_owned()));
            }
        }
    }
    if let (DataType::Float32, Some(values)) = (wanted, values.as_primitive_opt::<Float64Type>()) {
        let is_lost = |value: f64| value.is_finite() && (value as f32).is_infinite();
        let lost =
            values.iter().enumerate().filter_map(|(row, value)| Some((row, value.filter(|value| is_lost(*value))?)));
        faults.extend(lost.map(|(row, value)| fault(field, row, format!("{value:?}"))));
    }
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let cast_all = steps.iter().try_fold(Arc::clone(&values), |values, to| cast_with_options(&values, to, &options));
    let converted =
        cast_all.map_err(|cause| Error::internal("the answer of a function is not converted").cause(cause))?;
    if converted.null_count() > values.null_count() {
        let texts = cast(&values, &DataType::Utf8).map_err(|_| unreadable())?;
        let texts = texts.as_string::<i32>();
        let lost = (0..values.len()).filter(|row| converted.is_null(*row) && values.is_valid(*row));
        faults.extend(lost.map(|row| fault(field, row, texts.value(row).to_owned())));
    }
    Ok(converted)
}

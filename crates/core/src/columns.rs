//! The columns that a job file declares: type names and Arrow types, both ways, and how two types widen to one.
//!
//! What has columns of its own (a format, a program) makes values of these types.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, Fields, Schema, SchemaRef, TimeUnit,
};
use schemars::{JsonSchema, Schema as JsonSchemaValue, SchemaGenerator};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::format::TEXT;
use crate::spec::Fault;
pub use crate::types::type_name;
use crate::{Error, Result, hint};

/// The type names of job files, as messages list them.
pub const TYPE_NAMES: &[&str] = &[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "utf8",
    "binary",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "decimal(precision, scale)",
    "list<type>",
    "struct<name: type, …>",
];

/// Names of types in other systems, for hints only: the job file has one name per type.
const FOREIGN_NAMES: &[(&str, &str)] = &[
    ("string", "utf8"),
    ("str", "utf8"),
    ("text", "utf8"),
    ("varchar", "utf8"),
    ("char", "utf8"),
    ("int", "int64"),
    ("integer", "int64"),
    ("bigint", "int64"),
    ("long", "int64"),
    ("i64", "int64"),
    ("i32", "int32"),
    ("smallint", "int16"),
    ("tinyint", "int8"),
    ("float", "float64"),
    ("double", "float64"),
    ("real", "float64"),
    ("f64", "float64"),
    ("number", "float64"),
    ("boolean", "bool"),
    ("datetime", "timestamp"),
    ("numeric", "decimal(18, 2)"),
    ("decimal", "decimal(18, 2)"),
    ("bytes", "binary"),
    ("blob", "binary"),
    ("array", "list<utf8>"),
    ("list", "list<utf8>"),
    ("object", "struct<name: utf8>"),
    ("struct", "struct<name: utf8>"),
];

/// How deep lists and structs may be nested in a declared type.
const MAX_DEPTH: usize = 32;

/// The time zone of `timestamptz`.
const UTC: &str = "UTC";

/// The Arrow type of a type name in a job file. The error is of kind `Job` and lists the valid names.
///
/// | name | Arrow type |
/// |---|---|
/// | `bool`, `int8` … `int64`, `uint8` … `uint64`, `float32`, `float64`, `binary` | the same |
/// | `utf8` | [`TEXT`] |
/// | `date` | `Date32`, days since 1970-01-01 |
/// | `time` | `Time64`, microseconds since midnight |
/// | `timestamp` | `Timestamp`, microseconds, no zone |
/// | `timestamptz`, `timestamp(UTC)` | `Timestamp`, microseconds, UTC |
/// | `decimal(p, s)` | `Decimal128`, `Decimal256` if p > 38 |
/// | `list<t>`, `struct<a: t, b: u>` | `List`, `Struct`, everything in them nullable |
pub fn parse_type(name: &str) -> Result<DataType> {
    let mut reader = TypeReader { text: name, rest: name, depth: 0 };
    let data_type = reader.data_type()?;
    if reader.rest.trim().is_empty() {
        return Ok(data_type);
    }
    Err(reader.fault("there is text after the type"))
}

/// Reads a type name from left to right.
struct TypeReader<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

impl TypeReader<'_> {
    fn data_type(&mut self) -> Result<DataType> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fault(&format!("the type is nested deeper than {MAX_DEPTH} levels")));
        }
        let word = self.word();
        let data_type = match word.to_ascii_lowercase().as_str() {
            "bool" => DataType::Boolean,
            "int8" => DataType::Int8,
            "int16" => DataType::Int16,
            "int32" => DataType::Int32,
            "int64" => DataType::Int64,
            "uint8" => DataType::UInt8,
            "uint16" => DataType::UInt16,
            "uint32" => DataType::UInt32,
            "uint64" => DataType::UInt64,
            "float32" => DataType::Float32,
            "float64" => DataType::Float64,
            "utf8" => TEXT,
            "binary" => DataType::Binary,
            "date" => DataType::Date32,
            "time" => DataType::Time64(TimeUnit::Microsecond),
            "timestamptz" => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
            "timestamp" => self.timestamp()?,
            "decimal" if self.next_is('(') => self.decimal()?,
            "list" if self.next_is('<') => self.list()?,
            "struct" if self.next_is('<') => self.structure()?,
            _ => return Err(self.unknown(&word)),
        };
        self.depth -= 1;
        Ok(data_type)
    }

    fn timestamp(&mut self) -> Result<DataType> {
        if !self.next_is('(') {
            return Ok(DataType::Timestamp(TimeUnit::Microsecond, None));
        }
        self.expect('(')?;
        let zone = self.word();
        self.expect(')')?;
        if zone.eq_ignore_ascii_case(UTC) {
            return Ok(DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())));
        }
        Err(self
            .fault("timestamps with a zone are kept in UTC")
            .hint("write `timestamptz`, and convert to another zone in SQL"))
    }

    fn decimal(&mut self) -> Result<DataType> {
        self.expect('(')?;
        let precision = self.number()?;
        self.expect(',')?;
        let scale = self.number()?;
        self.expect(')')?;
        if precision == 0 || precision > DECIMAL256_MAX_PRECISION || scale > precision {
            return Err(self
                .fault("the precision of a decimal is from 1 to 76 digits, its scale at most the precision")
                .hint("decimal(18, 2) has 16 digits before the point and 2 after it"));
        }
        let scale = i8::try_from(scale).map_err(|_| self.fault("the scale of a decimal is at most 76"))?;
        Ok(if precision <= DECIMAL128_MAX_PRECISION {
            DataType::Decimal128(precision, scale)
        } else {
            DataType::Decimal256(precision, scale)
        })
    }

    fn list(&mut self) -> Result<DataType> {
        self.expect('<')?;
        let item = self.data_type()?;
        self.expect('>')?;
        Ok(DataType::List(Arc::new(Field::new_list_field(item, true))))
    }

    fn structure(&mut self) -> Result<DataType> {
        self.expect('<')?;
        let mut fields: Vec<Field> = Vec::new();
        loop {
            let name = self.member_name()?;
            if fields.iter().any(|field| *field.name() == name) {
                return Err(self.fault(&format!("the struct has two members named {name}")));
            }
            self.expect(':')?;
            fields.push(Field::new(name, self.data_type()?, true));
            if !self.next_is(',') {
                break;
            }
            self.expect(',')?;
        }
        self.expect('>')?;
        Ok(DataType::Struct(fields.into()))
    }

    /// A plain word, or anything between double quotes (a quote inside is doubled).
    fn member_name(&mut self) -> Result<String> {
        if !self.next_is('"') {
            let word = self.word();
            return if word.is_empty() { Err(self.fault("a member of the struct has no name")) } else { Ok(word) };
        }
        self.expect('"')?;
        let mut name = String::new();
        loop {
            let Some((before, after)) = self.rest.split_once('"') else {
                return Err(self.fault("the quote of a member's name is not closed"));
            };
            name.push_str(before);
            self.rest = after;
            match after.strip_prefix('"') {
                Some(after) => {
                    name.push('"');
                    self.rest = after;
                }
                None => return Ok(name),
            }
        }
    }

    fn word(&mut self) -> String {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|character: char| !(character.is_alphanumeric() || character == '_'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn number(&mut self) -> Result<u8> {
        let word = self.word();
        word.parse().map_err(|_| self.fault("precision and scale of a decimal are whole numbers up to 76"))
    }

    fn next_is(&self, character: char) -> bool {
        self.rest.trim_start().starts_with(character)
    }

    fn expect(&mut self, character: char) -> Result<()> {
        match self.rest.trim_start().strip_prefix(character) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.fault(&format!("the type lacks a `{character}`"))),
        }
    }

    fn fault(&self, what: &str) -> Error {
        Error::job(what).text(self.text).hint(types_hint())
    }

    fn unknown(&self, word: &str) -> Error {
        let lower = word.to_lowercase();
        let foreign = FOREIGN_NAMES.iter().find(|(name, _)| *name == lower);
        let hint = match foreign {
            Some((_, ours)) => format!("did you mean `{ours}`? {}", types_hint()),
            None => hint::did_you_mean(word, "valid types", TYPE_NAMES),
        };
        let what =
            if word.is_empty() { "a type is missing".to_owned() } else { format!("there is no type named `{word}`") };
        Error::job(what).text(self.text).hint(hint)
    }
}

fn types_hint() -> String {
    format!("valid types: {}", TYPE_NAMES.join(", "))
}

/// The declared columns of an entry: names and types, in the order of the job file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns(pub Vec<(String, ColumnSpec)>);

/// What a job file says of one column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ColumnSpec {
    /// The type's name: `int64`.
    Type(String),
    /// The type with its details.
    Detailed(ColumnDetails),
}

/// A column's type with its details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ColumnDetails {
    /// The type's name: `date`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// How a date, time or timestamp is written, in the signs of strftime: `%d.%m.%Y`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// One declared column, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// How a date, time or timestamp is written (strftime); `None` for the default of the format.
    pub format: Option<String>,
}

impl Column {
    /// The column as a nullable field of a schema.
    pub fn field(&self) -> Field {
        Field::new(&self.name, self.data_type.clone(), true)
    }
}

impl ColumnSpec {
    /// The declaration of a column of `data_type` in a job file.
    pub fn of(data_type: &DataType, format: Option<&str>) -> Self {
        let type_name = type_name(data_type);
        match format {
            None => ColumnSpec::Type(type_name),
            Some(format) => ColumnSpec::Detailed(ColumnDetails { type_name, format: Some(format.to_owned()) }),
        }
    }

    fn resolve(&self, name: &str) -> Result<Column> {
        let (type_name, format) = match self {
            ColumnSpec::Type(type_name) => (type_name, None),
            ColumnSpec::Detailed(details) => (&details.type_name, details.format.as_deref()),
        };
        let data_type = parse_type(type_name)?;
        if let Some(format) = format {
            check_time_format(format)?;
            if !is_temporal(&data_type) {
                return Err(Error::job(format!("a format is for dates and times, and the column is {type_name}"))
                    .text(format)
                    .hint("leave `format` out, or declare the column as date, time, timestamp or timestamptz"));
            }
        }
        Ok(Column { name: name.to_owned(), data_type, format: format.map(str::to_owned) })
    }
}

impl Columns {
    /// Whether no column is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The resolved columns, or the first fault as an error. [`Columns::check`] finds them all.
    pub fn resolve(&self) -> Result<Vec<Column>> {
        self.0.iter().map(|(name, spec)| spec.resolve(name)).collect()
    }

    /// The columns as a schema, or the first fault as an error.
    pub fn schema(&self) -> Result<SchemaRef> {
        Ok(schema_of(&self.resolve()?))
    }

    /// A fault, below `key`, if a column's name is empty.
    pub fn nameless(&self, key: &str) -> Option<Fault> {
        let path = vec![key.to_owned(), String::new()];
        let nameless = self.0.iter().any(|(name, _)| name.is_empty());
        nameless.then(|| Fault { path, what: "a column has no name".to_owned(), hint: None })
    }

    /// All faults, below `key` (the key of the settings that holds the columns).
    pub fn check(&self, key: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut names = HashSet::new();
        for (name, spec) in &self.0 {
            let path = vec![key.to_owned(), name.clone()];
            if let Err(error) = spec.resolve(name) {
                let what = match error.offending_text() {
                    Some(text) => format!("{}: `{text}`", error.what()),
                    None => error.what().to_owned(),
                };
                let hint = error.hint_text().map(str::to_owned);
                faults.push(Fault { path: path.clone(), what, hint });
            }
            if !names.insert(name) {
                faults.push(Fault { path, what: format!("two columns are named {name}"), hint: None });
            }
        }
        faults
    }
}

/// A schema of `columns`.
pub fn schema_of(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()))
}

/// Whether values of the type can have a strftime format.
pub fn is_temporal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Time64(_) | DataType::Timestamp(..))
}

/// An error unless `format` is made of valid strftime signs.
pub fn check_time_format(format: &str) -> Result<()> {
    let valid = !format.is_empty()
        && chrono::format::StrftimeItems::new(format).all(|item| item != chrono::format::Item::Error);
    if valid {
        return Ok(());
    }
    Err(Error::job("this is not a format of dates and times")
        .text(format)
        .hint("it is written with the specifiers of strftime: %Y-%m-%d, %d.%m.%Y, %H:%M:%S%.f, %z"))
}

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, spec) in &self.0 {
            map.serialize_entry(name, spec)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("column names with their types")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
                let mut columns = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    columns.push(entry);
                }
                Ok(Columns(columns))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

impl JsonSchema for Columns {
    fn schema_name() -> Cow<'static, str> {
        "Columns".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> JsonSchemaValue {
        let column = generator.subschema_for::<ColumnSpec>();
        schemars::json_schema!({
            "description": "Column names with their types, in the order of the columns.",
            "type": "object",
            "additionalProperties": column,
        })
    }
}

/// The narrowest type that holds the values of both. Inference and `on_drift: widen` use it.
///
/// ```text
///  null < everything        int8 < int16 < int32 < int64 < float64      uint8 < int16, uint64 + int64 = decimal(20, 0)
///  date < timestamp         decimal + int = wider decimal               decimal + float = float64
///  list<a> + list<b> = list<a + b>                struct + struct = all members, each widened
///  everything else = utf8
/// ```
pub fn widen(a: &DataType, b: &DataType) -> DataType {
    use DataType::{Date32, Float32, Float64, List, Null, Struct, Time64, Timestamp};
    let (a, b) = (plain(a), plain(b));
    match (a.as_ref(), b.as_ref()) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Float32 | Float64, other) | (other, Float32 | Float64) if is_number(other) => Float64,
        (a, b) if a.is_integer() && b.is_integer() => widen_integers(a, b),
        (a, b) if is_number(a) && is_number(b) => widen_decimals(a, b),
        (Date32, other @ Timestamp(_, None)) | (other @ Timestamp(_, None), Date32) => other.clone(),
        (Timestamp(unit_a, a), Timestamp(unit_b, b)) if a.is_some() == b.is_some() => {
            Timestamp(finer(*unit_a, *unit_b), a.as_ref().map(|_| UTC.into()))
        }
        (Time64(unit_a), Time64(unit_b)) => Time64(finer(*unit_a, *unit_b)),
        (List(a), List(b)) => List(Arc::new(Field::new_list_field(widen(a.data_type(), b.data_type()), true))),
        (Struct(a), Struct(b)) => Struct(widen_members(a, b)),
        _ => TEXT,
    }
}

/// Microseconds, or nanoseconds if one side has them: the coarser unit would silently cut digits off, while a time out
/// of the range of the finer one is an error.
fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    if a == TimeUnit::Nanosecond || b == TimeUnit::Nanosecond { TimeUnit::Nanosecond } else { TimeUnit::Microsecond }
}

/// The type that a job file can declare for it: one text type, one binary, times of day in microseconds unless they are
/// finer.
fn plain(data_type: &DataType) -> Cow<'_, DataType> {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => Cow::Owned(TEXT),
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Cow::Owned(DataType::Binary),
        DataType::Float16 => Cow::Owned(DataType::Float32),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            Cow::Owned(DataType::Decimal128(*precision, *scale))
        }
        DataType::Date64 => Cow::Owned(DataType::Date32),
        DataType::Time32(_) => Cow::Owned(DataType::Time64(TimeUnit::Microsecond)),
        DataType::Dictionary(_, values) => plain(values),
        DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => Cow::Owned(DataType::List(Arc::clone(item))),
        other => Cow::Borrowed(other),
    }
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric()
}

fn widen_integers(a: &DataType, b: &DataType) -> DataType {
    let (signed_a, bits_a) = integer(a);
    let (signed_b, bits_b) = integer(b);
    let (signed, bits) = match (signed_a, signed_b) {
        (true, true) => (true, bits_a.max(bits_b)),
        (false, false) => (false, bits_a.max(bits_b)),
        // A signed type holds an unsigned one of half its bits.
        (true, false) => (true, bits_a.max(bits_b * 2)),
        (false, true) => (true, bits_b.max(bits_a * 2)),
    };
    match (signed, bits) {
        (true, 8) => DataType::Int8,
        (true, 16) => DataType::Int16,
        (true, 32) => DataType::Int32,
        (true, 64) => DataType::Int64,
        (true, _) => DataType::Decimal128(20, 0),
        (false, 8) => DataType::UInt8,
        (false, 16) => DataType::UInt16,
        (false, 32) => DataType::UInt32,
        (false, _) => DataType::UInt64,
    }
}

/// Whether the integer type is signed, and its bits.
fn integer(data_type: &DataType) -> (bool, u32) {
    match data_type {
        DataType::Int8 => (true, 8),
        DataType::Int16 => (true, 16),
        DataType::Int32 => (true, 32),
        DataType::UInt8 => (false, 8),
        DataType::UInt16 => (false, 16),
        DataType::UInt32 => (false, 32),
        DataType::UInt64 => (false, 64),
        _ => (true, 64),
    }
}

/// Two exact numbers, at least one of them a decimal.
fn widen_decimals(a: &DataType, b: &DataType) -> DataType {
    let ((precision_a, scale_a), (precision_b, scale_b)) = (digits(a), digits(b));
    let scale = scale_a.max(scale_b);
    let whole = (i16::from(precision_a) - i16::from(scale_a)).max(i16::from(precision_b) - i16::from(scale_b));
    match u8::try_from(whole + i16::from(scale)) {
        Ok(precision) if precision <= DECIMAL128_MAX_PRECISION => DataType::Decimal128(precision, scale),
        Ok(precision) if precision <= DECIMAL256_MAX_PRECISION => DataType::Decimal256(precision, scale),
        _ => DataType::Float64,
    }
}

/// Precision and scale that hold every value of an exact number type.
fn digits(data_type: &DataType) -> (u8, i8) {
    match data_type {
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => (*precision, *scale),
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        _ => (20, 0),
    }
}

fn widen_members(a: &Fields, b: &Fields) -> Fields {
    let mut members: Vec<Field> = a
        .iter()
        .map(|field| match b.find(field.name()) {
            Some((_, other)) => Field::new(field.name(), widen(field.data_type(), other.data_type()), true),
            None => field.as_ref().clone().with_nullable(true),
        })
        .collect();
    let added = b.iter().filter(|field| a.find(field.name()).is_none());
    members.extend(added.map(|field| field.as_ref().clone().with_nullable(true)));
    members.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        let plain = TYPE_NAMES.iter().copied().filter(|name| !name.contains(['(', '<']));
        let composed = [
            "decimal(18, 2)",
            "decimal(76, 76)",
            "list<list<int8>>",
            "struct<a: int64, \"b c\": struct<\"\"\"\": utf8>>",
        ];
        for name in plain.chain(composed) {
            let data_type = parse_type(name).expect(name);
            assert_eq!(type_name(&data_type), name);
            assert!(parse_type(&name.to_uppercase()).is_ok(), "{name} in capitals");
        }
        assert_eq!(parse_type("timestamp(utc)").unwrap(), parse_type("timestamptz").unwrap());
        assert!(matches!(parse_type("decimal(38,0)").unwrap(), DataType::Decimal128(38, 0)));
        assert!(matches!(parse_type("decimal(39,0)").unwrap(), DataType::Decimal256(39, 0)));
    }

    #[test]
    fn a_wrong_name_gets_a_hint() {
        for (name, hint) in [
            ("string", "did you mean `utf8`?"),
            ("int46", "did you mean `int64`?"),
            ("datetime", "did you mean `timestamp`?"),
            ("decimal", "did you mean `decimal(18, 2)`?"),
            ("decimal(77,1)", "decimal(18, 2) has"),
            ("decimal(5,6)", "decimal(18, 2) has"),
            ("decimal(400,1)", "valid types"),
            ("list<int64", "valid types"),
            ("struct<a int64>", "valid types"),
            ("struct<a: int64, a: utf8>", "valid types"),
            ("struct<\"a: int64>", "valid types"),
            ("int64 x", "valid types"),
            ("", "valid types"),
            ("timestamp(Europe/Berlin)", "valid types"),
            ("timestamp(CET)", "timestamptz"),
        ] {
            let error = parse_type(name).expect_err(name);
            assert!(error.hint_text().is_some_and(|text| text.contains(hint)), "{name}: {:?}", error.hint_text());
        }
        assert!(parse_type(&"list<".repeat(100_000)).is_err(), "no overflow of the stack");
    }

    #[test]
    fn columns_keep_their_order_and_tell_all_faults() {
        let settings = serde_json::json!({"b": "int64", "a": {"type": "date", "format": "%d.%m.%Y"}});
        let columns: Columns = serde_json::from_value(settings.clone()).unwrap();
        assert_eq!(serde_json::to_value(&columns).unwrap(), settings);
        let schema = columns.schema().unwrap();
        assert_eq!(schema.field(0).name(), "b");
        assert_eq!(schema.field(1).data_type(), &DataType::Date32);
        assert!(columns.check("columns").is_empty());

        let settings = serde_json::json!({
            "a": "int46", "b": {"type": "int64", "format": "%Y"}, "c": {"type": "date", "format": "%Q"}, "": "utf8",
        });
        let columns: Columns = serde_json::from_value(settings).unwrap();
        let faults = columns.check("columns");
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.join("/")).collect();
        assert_eq!(paths, ["columns/a", "columns/b", "columns/c"]);
        assert_eq!(columns.nameless("columns").map(|fault| fault.path.join("/")).as_deref(), Some("columns/"));
        assert!(serde_json::from_value::<Columns>(serde_json::json!({"a": {"type": "date", "fromat": "x"}})).is_err());
    }

    #[test]
    fn types_widen_the_same_both_ways() {
        for (a, b, both) in [
            ("int64", "int64", "int64"),
            ("int8", "int32", "int32"),
            ("uint8", "int8", "int16"),
            ("uint64", "int8", "decimal(20, 0)"),
            ("int64", "float64", "float64"),
            ("float32", "int8", "float64"),
            ("decimal(10, 2)", "int64", "decimal(21, 2)"),
            ("decimal(10, 2)", "decimal(5, 4)", "decimal(12, 4)"),
            ("decimal(38, 0)", "decimal(38, 38)", "decimal(76, 38)"),
            ("decimal(10, 2)", "float64", "float64"),
            ("date", "timestamp", "timestamp"),
            ("date", "timestamptz", "utf8"),
            ("timestamp", "timestamptz", "utf8"),
            ("bool", "int64", "utf8"),
            ("int64", "utf8", "utf8"),
            ("list<int8>", "list<float64>", "list<float64>"),
            ("struct<a: int8>", "struct<a: int64, b: utf8>", "struct<a: int64, b: utf8>"),
            ("struct<a: int8>", "int64", "utf8"),
        ] {
            let (a, b) = (parse_type(a).unwrap(), parse_type(b).unwrap());
            assert_eq!(type_name(&widen(&a, &b)), both);
            assert_eq!(type_name(&widen(&b, &a)), both);
            assert_eq!(widen(&a, &DataType::Null), a);
        }
    }

    #[test]
    fn widening_cuts_no_digits_off_times() {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        for (a, b, both) in [
            (Second, Millisecond, Microsecond),
            (Microsecond, Nanosecond, Nanosecond),
            (Second, Nanosecond, Nanosecond),
        ] {
            let timestamp = |unit| DataType::Timestamp(unit, None);
            assert_eq!(widen(&timestamp(a), &timestamp(b)), timestamp(both));
            assert_eq!(widen(&timestamp(b), &timestamp(a)), timestamp(both));
        }
        let (milliseconds, nanoseconds) = (DataType::Time32(Millisecond), DataType::Time64(Nanosecond));
        assert_eq!(widen(&milliseconds, &nanoseconds), nanoseconds);
        assert_eq!(widen(&milliseconds, &DataType::Time32(Second)), DataType::Time64(Microsecond));
    }
}

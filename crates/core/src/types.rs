//! Types: their names in a job file, where Arrow calls them otherwise (how a name is read is the formats'), and which
//! of them leave Millstream.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema};

/// The schema with the same types without views: what leaves Millstream has none, as hardly any other program computes
/// with them.
pub fn without_views(schema: &Schema) -> Schema {
    Schema::new_with_metadata(
        schema.fields().iter().map(field_without_views).collect::<Vec<_>>(),
        schema.metadata().clone(),
    )
}

fn field_without_views(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(type_without_views(field.data_type())))
}

fn type_without_views(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) | DataType::ListView(item) => DataType::List(field_without_views(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(field_without_views(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field_without_views(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field_without_views).collect()),
        DataType::Map(entries, sorted) => DataType::Map(field_without_views(entries), *sorted),
        DataType::Dictionary(keys, values) => DataType::Dictionary(keys.clone(), Box::new(type_without_views(values))),
        DataType::RunEndEncoded(ends, values) => DataType::RunEndEncoded(Arc::clone(ends), field_without_views(values)),
        other => other.clone(),
    }
}

/// The job file's name of an Arrow type. Types that a job file cannot declare (they come from parquet files) get the
/// name of the nearest type that it can, or Arrow's own name.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "utf8".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "binary".to_owned()
        }
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Time32(_) | DataType::Time64(_) => "time".to_owned(),
        DataType::Timestamp(_, None) => "timestamp".to_owned(),
        DataType::Timestamp(_, Some(_)) => "timestamptz".to_owned(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => format!("list<{}>", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let members: Vec<_> = fields
                .iter()
                .map(|field| format!("{}: {}", quoted_name(field.name()), type_name(field.data_type())))
                .collect();
            format!("struct<{}>", members.join(", "))
        }
        DataType::Dictionary(_, values) => type_name(values),
        other => other.to_string().to_lowercase(),
    }
}

/// The text of a decimal: all of the digits of `unscaled`, the last `scale` of them behind the point, however many
/// there are. Arrow's own writing cuts off those beyond the precision.
pub fn decimal_text(unscaled: &impl std::fmt::Display, scale: i8) -> String {
    let digits = unscaled.to_string();
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let Ok(scale) = usize::try_from(scale) else {
        return format!("{sign}{digits}{}", "0".repeat(usize::from(scale.unsigned_abs())));
    };
    let padded = format!("{digits:0>width$}", width = scale + 1);
    match padded.split_at(padded.len() - scale) {
        (whole, "") => format!("{sign}{whole}"),
        (whole, fraction) => format!("{sign}{whole}.{fraction}"),
    }
}

/// A member's name as it stands in `struct<…>`: in double quotes unless it is a plain word.
fn quoted_name(name: &str) -> Cow<'_, str> {
    let plain = !name.is_empty() && name.chars().all(|character| character.is_alphanumeric() || character == '_');
    if plain { Cow::Borrowed(name) } else { Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))) }
}

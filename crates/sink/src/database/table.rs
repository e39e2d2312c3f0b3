//! A table that exists, and how it compares with the rows. It owns the comparison; what a server says of its tables,
//! and which type a new column has, are the servers'.

use arrow::datatypes::{DataType, FieldRef, SchemaRef, TimeUnit};
use millstream_core::Error;
use millstream_core::hint::did_you_mean;
use millstream_core::types::type_name;

use super::spec::{DatabaseSpec, Mode, SchemaChange};

/// What there is to know of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableFacts {
    /// What it is if it is no table that rows can be loaded into: `a view`.
    pub(crate) other: Option<String>,
    /// Why a load cannot be rolled back: `its engine is Aria`.
    pub(crate) unsafe_engine: Option<String>,
    /// What keeps the table from being replaced by a new one: views on it, foreign keys to it.
    pub(crate) dependents: Vec<String>,
    /// Whether a table with the same definition would lack something: triggers, foreign keys.
    pub(crate) has_more: bool,
    pub(crate) columns: Vec<ColumnFacts>,
    /// The columns of each unique key.
    pub(crate) unique: Vec<Vec<String>>,
    /// What else the server checks in a row by itself: `CONSTRAINT few CHECK (n < 5)`.
    pub(crate) checks: Vec<String>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnFacts {
    pub(crate) name: String,
    /// The type as the server writes it.
    pub(crate) declared: String,
    pub(crate) family: Family,
    /// Whether its type is one of the user's own, which a wider one would not replace.
    pub(crate) is_domain: bool,
    /// Whether it may be null.
    pub(crate) nullable: bool,
    /// Whether it needs a value and has none by itself.
    pub(crate) required: bool,
    /// Whether the server computes it.
    pub(crate) generated: bool,
    /// Whether the server silently writes a value of its own where it is given a null.
    pub(crate) replaces_null: bool,
    /// What stands behind the type where the column is declared, if a change of the type has to repeat it.
    pub(crate) rest: String,
}

/// What a column can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Bool,
    /// Whole numbers of so many bytes.
    Integer {
        bytes: u8,
        signed: bool,
    },
    /// Floats of 4 or 8 bytes.
    Float {
        bytes: u8,
    },
    /// Digits in all, and behind the point; none if there is no limit.
    Decimal(Option<(u16, i16)>),
    Text,
    Bytes,
    Date,
    /// With digits behind the second.
    Time {
        digits: u8,
    },
    /// A date and a time; with digits behind the second.
    Timestamp {
        zoned: bool,
        digits: u8,
    },
    Json {
        binary: bool,
    },
    Uuid,
    /// One or some of a list of texts, of which a number would be the place.
    Choice,
    Bits,
    /// Anything else: the server reads it from text.
    Other,
}

impl TableFacts {
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnFacts> {
        self.columns
            .iter()
            .find(|column| column.name == name)
            .or_else(|| self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)))
    }

    /// Whether exactly the columns of the key are unique.
    fn has_unique_key(&self, key: &[String]) -> bool {
        self.unique.iter().any(|unique| same_columns(unique, key))
    }

    /// Whether there is a unique key of other columns than those of `key`.
    pub(crate) fn has_other_unique(&self, key: &[String]) -> bool {
        self.unique.iter().any(|unique| !same_columns(unique, key))
    }
}

fn same_columns(left: &[String], right: &[String]) -> bool {
    left.len() == right.len() && left.iter().all(|one| right.iter().any(|other| other.eq_ignore_ascii_case(one)))
}

/// What has to change in the table so that it takes the rows.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Fields without a column.
    pub(crate) added: Vec<FieldRef>,
    /// Fields whose column is too narrow, with the column.
    pub(crate) widened: Vec<(ColumnFacts, FieldRef)>,
}

/// The table is not there, and a load that is gone on with has rows in it.
pub(crate) fn is_gone(place: &str) -> Error {
    Error::refused(format!("{place} is not there, and parts of this load were in it"))
        .cause("the table was dropped or renamed, and the ledger still says that they are loaded")
        .hint("bring the table back; or load everything anew: `--restart`")
}

/// What is wrong with the rows' columns, whatever the table is like.
pub(crate) fn schema_faults(
    product: &str,
    most: usize,
    key: &[String],
    order_by: &[String],
    schema: &SchemaRef,
) -> Vec<Error> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let mut faults = Vec::new();
    if names.is_empty() || names.len() > most {
        let what = format!("a table of {} columns, and {product} allows 1 to {most}", names.len());
        faults.push(Error::refused(what).hint("select the columns that the table needs"));
    }
    for (index, name) in names.iter().enumerate() {
        if let Some(other) = names[..index].iter().find(|other| other.eq_ignore_ascii_case(name)) {
            let what = format!("{product} cannot tell the columns `{other}` and `{name}` apart");
            faults.push(Error::refused(what).column(*name).hint("give one of them another name: SELECT x AS y"));
        }
        if name.contains('\0') {
            faults.push(Error::refused("a column's name holds a NUL byte").column(*name));
        }
    }
    for (what, columns) in [("key", key), ("order", order_by)] {
        for column in columns {
            if !names.iter().any(|name| name.eq_ignore_ascii_case(column)) {
                let told = format!("the {what} column `{column}` is not among the columns that are loaded");
                let directed = column.rsplit_once(' ').filter(|(name, _)| names.contains(name));
                let hint = match directed {
                    Some((name, word)) => format!("`{word}` is no direction: `{name} desc` or `{name} asc`"),
                    None => did_you_mean(column, "columns", &names),
                };
                faults.push(Error::job(told).text(column).hint(hint));
            }
        }
    }
    faults
}

/// All that keeps rows of `schema` from being loaded into the table as it stands, and what would have to change.
pub(crate) fn compare(
    place: &str,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: &TableFacts,
    family: impl Fn(&FieldRef) -> Family,
    unique_index: impl Fn() -> String,
) -> Result<Changes, Vec<Error>> {
    if let Some(other) = &facts.other {
        let what = format!("{place} is {other}, not a table");
        return Err(vec![Error::refused(what).hint("load into a table of another name")]);
    }
    let mut faults = Vec::new();
    if spec.mode == Mode::Replace {
        faults.extend(facts.dependents.iter().map(|dependent| {
            Error::refused(format!("{place} cannot be replaced by a new table"))
                .cause(format!("{dependent} depends on it"))
                .hint("`mode: truncate` keeps the table and replaces its rows")
        }));
        return if faults.is_empty() { Ok(Changes::default()) } else { Err(faults) };
    }
    if let Some(cause) = &facts.unsafe_engine {
        let what = format!("a load into {place} could not be taken back");
        faults.push(Error::refused(what).cause(cause).hint("ALTER TABLE … ENGINE=InnoDB, or load into another table"));
    }
    let mut changes = Changes::default();
    for field in schema.fields() {
        column_fault(place, spec, facts, field, family(field), &mut changes, &mut faults);
    }
    for column in facts.columns.iter().filter(|column| column.required) {
        if !schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(&column.name)) {
            faults.push(
                Error::refused(format!("{place} needs a value in the column `{}`, and none is loaded", column.name))
                    .column(&column.name)
                    .hint("it is NOT NULL and has no default: select a value for it"),
            );
        }
    }
    let has_key = |key: &String| schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(key));
    if spec.mode.needs_key() && spec.key.iter().all(has_key) && !facts.has_unique_key(&spec.key) {
        faults.push(
            Error::refused(format!("{place} has no unique key of exactly the columns {}", spec.key.join(", ")))
                .cause("rows are told from each other by a primary key or a unique index")
                .hint(unique_index()),
        );
    }
    if faults.is_empty() { Ok(changes) } else { Err(faults) }
}

fn column_fault(
    place: &str,
    spec: &DatabaseSpec,
    facts: &TableFacts,
    field: &FieldRef,
    wider: Family,
    changes: &mut Changes,
    faults: &mut Vec<Error>,
) {
    let name = field.name();
    let evolves = spec.schema == SchemaChange::Evolve;
    let Some(column) = facts.column(name) else {
        if evolves {
            changes.added.push(FieldRef::clone(field));
            return;
        }
        let known: Vec<&str> = facts.columns.iter().map(|column| column.name.as_str()).collect();
        let hint = format!("{}; or let it be added: `schema: evolve`", did_you_mean(name, "its columns", &known));
        faults.push(Error::refused(format!("{place} has no column `{name}`")).column(name).hint(hint));
        return;
    };
    if column.generated {
        faults.push(
            Error::refused(format!("the column `{name}` of {place} is computed by the server"))
                .column(name)
                .hint("leave it out of the columns that are loaded"),
        );
        return;
    }
    let what = |why: &str| {
        format!(
            "the column `{name}` of {place} is {}, and the rows have {}: {why}",
            column.declared,
            type_name(field.data_type())
        )
    };
    match fit(field.data_type(), column.family) {
        Fit::Whole => {}
        Fit::Narrow if evolves && !column.is_domain && holds(wider, column.family) => {
            changes.widened.push((column.clone(), FieldRef::clone(field)));
        }
        Fit::Narrow if evolves => {
            faults.push(Error::refused(what("no type of both kinds of values holds all of them")).column(name).hint(
                "CAST it to the column's type, which tells the rows that do not fit; or change the column by hand",
            ))
        }
        Fit::Narrow => faults.push(Error::refused(what("some values would not fit")).column(name).hint(
            "CAST it to the column's type, which tells the rows that do not fit; or widen the column: `schema: evolve`",
        )),
        Fit::None => faults
            .push(Error::refused(what("another kind of value")).column(name).hint("CAST it to the type of the column")),
    }
}

/// Whether a column of one family holds all that one of another does.
fn holds(new: Family, old: Family) -> bool {
    match (new, old) {
        (Family::Integer { bytes, signed }, Family::Integer { bytes: before, signed: had_sign }) => {
            bytes >= before && (signed == had_sign || (signed && bytes > before))
        }
        (Family::Float { bytes }, Family::Float { bytes: before }) => bytes >= before,
        (Family::Decimal(None), Family::Integer { .. } | Family::Decimal(_)) => true,
        (Family::Decimal(Some((digits, scale))), Family::Decimal(Some((before, behind)))) => {
            scale >= behind && i32::from(digits) - i32::from(scale) >= i32::from(before) - i32::from(behind)
        }
        (Family::Timestamp { zoned, digits }, Family::Timestamp { zoned: was_zoned, digits: before }) => {
            zoned == was_zoned && digits >= before
        }
        _ => false,
    }
}

/// How values of a type go into a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// All of them, or each that does not is refused by the server.
    Whole,
    /// Not all of them.
    Narrow,
    /// They are of another kind.
    None,
}

fn integer(data_type: &DataType) -> Option<(u8, bool)> {
    Some(match data_type {
        DataType::Int8 => (1, true),
        DataType::Int16 => (2, true),
        DataType::Int32 => (4, true),
        DataType::Int64 => (8, true),
        DataType::UInt8 => (1, false),
        DataType::UInt16 => (2, false),
        DataType::UInt32 => (4, false),
        DataType::UInt64 => (8, false),
        _ => return None,
    })
}

fn decimal(data_type: &DataType) -> Option<(u16, i16)> {
    match data_type {
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => Some((u16::from(*digits), i16::from(*scale))),
        _ => None,
    }
}

/// The digits behind the second that a unit has.
pub(crate) fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        // What has more is refused value by value.
        TimeUnit::Microsecond | TimeUnit::Nanosecond => 6,
    }
}

fn narrow_unless(whole: bool) -> Fit {
    if whole { Fit::Whole } else { Fit::Narrow }
}

/// How values of a type go into a column of a family.
fn fit(data_type: &DataType, family: Family) -> Fit {
    let (bytes, signed) = match data_type {
        DataType::Dictionary(_, values) => return fit(values, family),
        DataType::RunEndEncoded(_, values) => return fit(values.data_type(), family),
        DataType::Null => return Fit::Whole,
        other => integer(other).unwrap_or((0, true)),
    };
    let is_integer = bytes > 0;
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_bytes = matches!(
        data_type,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    );
    let is_float = matches!(data_type, DataType::Float16 | DataType::Float32 | DataType::Float64);
    match family {
        Family::Bool if *data_type == DataType::Boolean => Fit::Whole,
        Family::Bits if *data_type == DataType::Boolean || is_integer => Fit::Whole,
        Family::Integer { .. } if *data_type == DataType::Boolean => Fit::Whole,
        Family::Integer { bytes: room, signed: has_sign } if is_integer => narrow_unless(match (signed, has_sign) {
            (true, true) | (false, false) => bytes <= room,
            (false, true) => bytes < room,
            (true, false) => false,
        }),
        Family::Integer { .. } if is_float || decimal(data_type).is_some() => Fit::Narrow,
        Family::Float { bytes: room } if is_float => narrow_unless(*data_type != DataType::Float64 || room == 8),
        Family::Float { bytes: room } if is_integer => narrow_unless(bytes < room || (bytes == 4 && room == 8)),
        Family::Float { .. } if decimal(data_type).is_some() => Fit::Narrow,
        Family::Decimal(None) if is_integer || is_float || decimal(data_type).is_some() => Fit::Whole,
        Family::Decimal(Some((precision, scale))) if is_integer => {
            let digits = [3, 5, 0, 10, 0, 0, 0, 20][usize::from(bytes) - 1];
            narrow_unless(i32::from(precision) - i32::from(scale) >= digits)
        }
        Family::Decimal(Some(_)) if is_float => Fit::Narrow,
        Family::Decimal(Some((precision, scale))) => match decimal(data_type) {
            Some((digits, behind)) => narrow_unless(
                behind <= scale && i32::from(digits) - i32::from(behind) <= i32::from(precision) - i32::from(scale),
            ),
            None => Fit::None,
        },
        // Numbers and times are written as text without a loss.
        Family::Text => {
            if is_bytes {
                Fit::None
            } else {
                Fit::Whole
            }
        }
        Family::Bytes => {
            if is_bytes || is_text {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Date => match data_type {
            DataType::Date32 | DataType::Date64 => Fit::Whole,
            DataType::Timestamp(..) => Fit::Narrow,
            _ if is_text => Fit::Whole,
            _ => Fit::None,
        },
        // What has more digits is refused value by value.
        Family::Time { .. } => {
            if is_text || matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Timestamp { digits: room, .. } => match data_type {
            DataType::Date32 | DataType::Date64 => Fit::Whole,
            DataType::Timestamp(unit, _) => narrow_unless(digits(*unit) <= room),
            _ if is_text => Fit::Whole,
            _ => Fit::None,
        },
        Family::Json { .. } => {
            if is_text || data_type.is_nested() {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Uuid | Family::Choice => {
            if is_text {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Other => Fit::Whole,
        Family::Bool | Family::Bits | Family::Integer { .. } | Family::Float { .. } | Family::Decimal(None) => {
            Fit::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_known_by_its_type() {
        let int = |bytes, signed| Family::Integer { bytes, signed };
        for (data_type, family, expected) in [
            (DataType::Int64, int(8, true), Fit::Whole),
            (DataType::Int64, int(4, true), Fit::Narrow),
            (DataType::Int64, int(8, false), Fit::Narrow),
            (DataType::UInt32, int(8, true), Fit::Whole),
            (DataType::UInt64, int(8, true), Fit::Narrow),
            (DataType::Utf8View, int(8, true), Fit::None),
            (DataType::Float64, Family::Float { bytes: 4 }, Fit::Narrow),
            (DataType::Int32, Family::Float { bytes: 8 }, Fit::Whole),
            (DataType::Int64, Family::Float { bytes: 8 }, Fit::Narrow),
            (DataType::Int64, Family::Decimal(Some((20, 0))), Fit::Whole),
            (DataType::Int32, Family::Decimal(Some((10, 2))), Fit::Narrow),
            (DataType::Decimal128(10, 2), Family::Decimal(Some((10, 2))), Fit::Whole),
            (DataType::Decimal128(10, 2), Family::Decimal(Some((12, 1))), Fit::Narrow),
            (DataType::Binary, Family::Text, Fit::None),
            (DataType::Int64, Family::Text, Fit::Whole),
            (
                DataType::Timestamp(TimeUnit::Microsecond, None),
                Family::Timestamp { zoned: false, digits: 0 },
                Fit::Narrow,
            ),
            (DataType::Null, int(1, true), Fit::Whole),
        ] {
            assert_eq!(fit(&data_type, family), expected, "{data_type} into {family:?}");
        }
    }
}

//! What is looked up, resolved against the columns of the rows and of the reference.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Scalar, StringArray, new_null_array};
use arrow::compute::{CastOptions, SortOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use millstream_core::transform::{ColumnName, ColumnsFault, Duplicate, Lookup, MatchWith, Miss, Taken};
use millstream_core::types::type_name;
use millstream_core::{Error, hint};
use serde_json::Value;

use super::super::exact::keeps_digits;
use super::compare::{Scale, common, scale};

/// What is looked up. Columns of the reference are numbered as in the [`Projection`].
#[derive(Debug, Clone)]
pub struct Shape {
    /// The entry.
    pub step: String,
    /// What the reference is called.
    pub reference: String,
    /// Columns that are equal.
    pub keys: Vec<Key>,
    /// The range that holds a value.
    pub range: Option<Range>,
    /// What the rows of the reference are sorted by, if the first of several counts.
    pub order: Vec<(usize, SortOptions)>,
    /// What is taken.
    pub taken: Vec<Take>,
    /// What becomes of a row that none matches.
    pub miss: OnMiss,
    /// What happens if several match.
    pub duplicate: Duplicate,
}

/// Columns that are equal.
#[derive(Debug, Clone)]
pub struct Key {
    /// The column of the rows.
    pub probe: String,
    /// That of the reference, and its number.
    pub within: (String, usize),
    /// The type in which they are compared.
    pub common: DataType,
}

/// A range that holds a value.
#[derive(Debug, Clone)]
pub struct Range {
    /// The column of the rows.
    pub probe: String,
    /// The columns of the reference, and their numbers.
    pub from: Option<(String, usize)>,
    /// The value is before what is in this one.
    pub before: Option<(String, usize)>,
    /// In which they are compared.
    pub scale: Scale,
}

/// A column that is taken.
#[derive(Debug, Clone)]
pub struct Take {
    /// The number of the column of the reference.
    pub column: usize,
    /// The column that rows get.
    pub field: FieldRef,
}

/// What becomes of a row that none matches.
#[derive(Debug, Clone)]
pub enum OnMiss {
    /// The run fails.
    Fail,
    /// It is rejected.
    Reject,
    /// It is left out.
    Drop,
    /// Its columns get these values, or null.
    Fill(Vec<Option<Scalar<ArrayRef>>>),
}

/// The columns of the reference that are needed.
#[derive(Debug, Default)]
pub struct Projection(pub Vec<usize>);

impl Projection {
    fn add(&mut self, column: usize) -> usize {
        self.0.iter().position(|known| *known == column).unwrap_or_else(|| {
            self.0.push(column);
            self.0.len() - 1
        })
    }
}

/// The columns of one side, and what it is called.
struct Side<'a> {
    name: &'a str,
    schema: &'a Schema,
}

impl Side<'_> {
    fn find(&self, name: &ColumnName) -> Result<(usize, &DataType), ColumnsFault> {
        let found = self.schema.fields().iter().position(|field| field.name() == name.as_str());
        found.map(|index| (index, self.schema.field(index).data_type())).ok_or_else(|| {
            let known: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
            let error = Error::job(format!("`{}` has no column `{}`", self.name, name.as_str()));
            ColumnsFault::of(name, error.hint(hint::did_you_mean(name.as_str(), "columns", &known)))
        })
    }
}

impl Shape {
    /// What the entry `step` looks up, for rows of `from` and the reference `within`, and which columns of the
    /// reference it needs. `order` is what these are sorted by, behind the others.
    ///
    /// # Errors
    /// All that is wrong with the columns.
    pub fn new(
        lookup: &Lookup,
        step: &str,
        (from, from_schema): (&str, &Schema),
        (within, within_schema): (&str, &Schema),
    ) -> Result<(Shape, Projection), Vec<ColumnsFault>> {
        let (from, within) = (Side { name: from, schema: from_schema }, Side { name: within, schema: within_schema });
        let (mut faults, mut projection) = (Vec::new(), Projection::default());
        let (mut keys, mut range, mut taken) = (Vec::new(), None, Vec::new());
        for one in &lookup.on {
            match &one.with {
                MatchWith::Equal(other) => match key(&one.column, other, &from, &within, &mut projection) {
                    Ok(key) => keys.push(key),
                    Err(more) => faults.extend(more),
                },
                MatchWith::Range { from: first, before } => {
                    match range_of(&one.column, [first.as_ref(), before.as_ref()], &from, &within, &mut projection) {
                        Ok(one) => range = Some(one),
                        Err(more) => faults.extend(more),
                    }
                }
            }
        }
        for one in &lookup.take {
            match take(one, &from, &within, &mut projection) {
                Ok(one) => taken.push(one),
                Err(fault) => faults.push(fault),
            }
        }
        let miss = on_miss(&lookup.miss, &lookup.take, &taken, within.name).map_err(|more| faults.extend(more));
        match (miss, faults.is_empty()) {
            (Ok(miss), true) => {
                let (step, reference) = (step.to_owned(), within.name.to_owned());
                let duplicate = lookup.duplicate;
                Ok((Shape { step, reference, keys, range, order: Vec::new(), taken, miss, duplicate }, projection))
            }
            _ => Err(faults),
        }
    }

    /// The columns of the rows that are compared: the keys, then the one of the range.
    pub fn probed(&self) -> impl Iterator<Item = &str> {
        let range = self.range.as_ref().map(|range| range.probe.as_str());
        self.keys.iter().map(|key| key.probe.as_str()).chain(range)
    }

    /// Whether a row may come several times.
    pub fn gives_several(&self) -> bool {
        self.duplicate == Duplicate::All
    }

    /// Whether the run fails for a row that none matches, or that several match.
    pub fn may_fail(&self) -> bool {
        matches!(self.miss, OnMiss::Fail) || self.duplicate == Duplicate::Fail
    }

    /// The conditions, in words: `customer = id, valid_from <= day < valid_to`.
    pub fn conditions(&self) -> String {
        let keys = self.keys.iter().map(|key| format!("{} = {}", key.probe, key.within.0));
        let range = self.range.iter().map(|range| {
            let from = range.from.as_ref().map(|(name, _)| format!("{name} <= ")).unwrap_or_default();
            let before = range.before.as_ref().map(|(name, _)| format!(" < {name}")).unwrap_or_default();
            format!("{from}{}{before}", range.probe)
        });
        keys.chain(range).collect::<Vec<_>>().join(", ")
    }
}

fn key(
    column: &ColumnName,
    other: &ColumnName,
    from: &Side<'_>,
    within: &Side<'_>,
    projection: &mut Projection,
) -> Result<Key, Vec<ColumnsFault>> {
    let (probe, found) = both(from.find(column), within.find(other))?;
    let Some(common) = common(probe.1, found.1) else {
        let sides = (described(from, column, probe.1), described(within, other, found.1));
        return Err(vec![incomparable(column, &sides.0, &sides.1)]);
    };
    let within = (other.as_str().to_owned(), projection.add(found.0));
    Ok(Key { probe: column.as_str().to_owned(), within, common })
}

fn range_of(
    column: &ColumnName,
    bounds: [Option<&ColumnName>; 2],
    from: &Side<'_>,
    within: &Side<'_>,
    projection: &mut Projection,
) -> Result<Range, Vec<ColumnsFault>> {
    let [first, before] = bounds.map(|bound| bound.map(|bound| within.find(bound)).transpose());
    let (probe, (first, before)) = match (from.find(column), both(first, before)) {
        (Ok(probe), Ok(bounds)) => (probe, bounds),
        (Ok(_), Err(faults)) => return Err(faults),
        (Err(fault), bounds) => return Err([fault].into_iter().chain(bounds.err().into_iter().flatten()).collect()),
    };
    let kinds: Vec<&DataType> = [Some(probe), first, before].into_iter().flatten().map(|(_, kind)| kind).collect();
    let Some(scale) = scale(&kinds) else {
        let found = [first, before].into_iter().zip(bounds);
        let found = found.filter_map(|(found, name)| Some(described(within, name?, found?.1)));
        let found: Vec<String> = found.collect();
        let mut fault = incomparable(column, &described(from, column, probe.1), &found.join(" and "));
        let is_text = kinds.iter().any(|kind| common(kind, &DataType::Utf8View).is_some() && !kind.is_null());
        if is_text {
            let hint = "ranges are of numbers, dates or times: convert the texts in a `select` before the lookup";
            fault.error = fault.error.hint(hint);
        }
        return Err(vec![fault]);
    };
    let mut bound = |found: Option<(usize, &DataType)>, name: Option<&ColumnName>| {
        Some((name?.as_str().to_owned(), projection.add(found?.0)))
    };
    let (from, before) = (bound(first, bounds[0]), bound(before, bounds[1]));
    Ok(Range { probe: column.as_str().to_owned(), from, before, scale })
}

/// Both, or the faults of both.
fn both<A, B>(one: Result<A, ColumnsFault>, other: Result<B, ColumnsFault>) -> Result<(A, B), Vec<ColumnsFault>> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (one, other) => Err(one.err().into_iter().chain(other.err()).collect()),
    }
}

fn described(side: &Side<'_>, column: &ColumnName, kind: &DataType) -> String {
    format!("`{}` of `{}` ({})", column.as_str(), side.name, type_name(kind))
}

fn incomparable(column: &ColumnName, one: &str, other: &str) -> ColumnsFault {
    let error = Error::job(format!("{one} cannot be compared with {other} without loss"));
    let hint = "convert one of them in a `select` before the lookup (`CAST(column AS bigint)`), or declare its type in \
                `columns` of its source";
    ColumnsFault::of(column, error.hint(hint))
}

fn take(one: &Taken, from: &Side<'_>, within: &Side<'_>, projection: &mut Projection) -> Result<Take, ColumnsFault> {
    let (index, kind) = within.find(&one.column)?;
    let name = one.name.as_str();
    if from.schema.fields().iter().any(|field| field.name() == name) {
        let error = Error::job(format!("`{}` has a column `{name}` already", from.name));
        let hint = format!("give it another name: take: {{other_name: {}}}", one.column.as_str());
        return Err(ColumnsFault::of(&one.name, error.hint(hint)));
    }
    Ok(Take { column: projection.add(index), field: Arc::new(Field::new(name, kind.clone(), true)) })
}

fn on_miss(miss: &Miss, names: &[Taken], taken: &[Take], within: &str) -> Result<OnMiss, Vec<ColumnsFault>> {
    Ok(match miss {
        Miss::Fail => OnMiss::Fail,
        Miss::Reject => OnMiss::Reject,
        Miss::Drop => OnMiss::Drop,
        Miss::Null => OnMiss::Fill(vec![None; taken.len()]),
        Miss::Value(values) => {
            let mut faults = Vec::new();
            let mut constant = |take: &Take| {
                let name = take.field.name();
                let (_, value) = values.iter().find(|(of, _)| of == name)?;
                let constant = constant(value, take.field.data_type());
                if constant.is_none() {
                    let kind = type_name(take.field.data_type());
                    let what = format!("`{}` is no {kind}, which the column `{name}` has", text_of(value));
                    let named = names.iter().find(|one| one.name.as_str() == name)?;
                    let hint = format!("write a value of the type that `{}` of `{within}` has", named.column.as_str());
                    faults.push(ColumnsFault::of(&named.column, Error::job(what).hint(hint)));
                }
                constant
            };
            let constants = taken.iter().map(&mut constant).collect();
            if !faults.is_empty() {
                return Err(faults);
            }
            OnMiss::Fill(constants)
        }
    })
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `value` as one of the type `kind`, if it is one.
fn constant(value: &Value, kind: &DataType) -> Option<Scalar<ArrayRef>> {
    if kind.is_null() {
        return Some(Scalar::new(new_null_array(kind, 1)));
    }
    let text = text_of(value);
    if !keeps_digits(&text, kind) {
        return None;
    }
    let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let cast = cast_with_options(&text, kind, &options).ok()?;
    cast.is_valid(0).then(|| Scalar::new(cast))
}

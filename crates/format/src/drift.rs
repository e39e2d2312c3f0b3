//! Combines the columns of several files into those of one source, by name, as `on_drift` says.
//!
//! [`merge`] finds the columns of a source before it is read, and [`match_columns`] finds them in one file when that is
//! read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use millstream_core::format::OnDrift;
use millstream_core::{Error, Result, hint};

use millstream_core::columns::{type_name, widen};

/// Where a format's types come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// From the values of a sample (csv, json): files of one source may show different ones, and they are always
    /// widened.
    Inferred,
    /// From the file itself (parquet): different types are a drift.
    Stored,
}

/// The columns of a source from those of its files (each with its name for messages).
///
/// The order is that of the first file, followed by columns that only later files have. `Fail` requires the same names
/// everywhere; `Null` uses the first file's; `Widen` uses all. Types that differ are widened, except that stored types
/// under `Fail` and `Null` are an error. A column that is null everywhere becomes text.
pub fn merge(files: &[(String, SchemaRef)], on_drift: OnDrift, types: Types) -> Result<SchemaRef> {
    let Some(((first_file, first), others)) = files.split_first() else {
        return Err(Error::internal("the columns of no file were asked for"));
    };
    if on_drift == OnDrift::Fail {
        all_same_names(first_file, first, others)?;
    }
    let mut fields: Vec<Field> = first.fields().iter().map(|field| nullable(field)).collect();
    let mut indices: HashMap<String, usize> =
        fields.iter().enumerate().map(|(index, field)| (field.name().clone(), index)).collect();
    for (file, schema) in others {
        for field in schema.fields() {
            match indices.get(field.name()) {
                Some(&index) => {
                    let merged = merge_types(&fields[index], field, on_drift, types)
                        .map_err(|error| error.in_unit(file, None))?;
                    fields[index].set_data_type(merged);
                }
                None if on_drift == OnDrift::Widen => {
                    indices.insert(field.name().clone(), fields.len());
                    fields.push(nullable(field));
                }
                None => {}
            }
        }
    }
    for field in &mut fields {
        if field.data_type().is_null() {
            field.set_data_type(millstream_core::format::TEXT);
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn nullable(field: &Field) -> Field {
    Field::new(field.name(), field.data_type().clone(), true)
}

fn merge_types(known: &Field, new: &Field, on_drift: OnDrift, types: Types) -> Result<DataType> {
    if known.data_type() == new.data_type() {
        return Ok(new.data_type().clone());
    }
    if types == Types::Stored && on_drift != OnDrift::Widen {
        return Err(Error::data(format!(
            "the column is {}, and {} in the files before it",
            type_name(new.data_type()),
            type_name(known.data_type())
        ))
        .column(new.name())
        .hint("set `on_drift: widen` to read both as the wider type"));
    }
    Ok(widen(known.data_type(), new.data_type()))
}

/// The fault of the first file whose names differ, with the names of the next ones that differ, too.
fn all_same_names(first_file: &str, first: &Schema, others: &[(String, SchemaRef)]) -> Result<()> {
    let differs =
        |(file, schema): &'_ (String, SchemaRef)| Some((file.clone(), same_names(first_file, first, schema).err()?));
    let mut faults = others.iter().filter_map(differs);
    let Some((file, error)) = faults.next() else { return Ok(()) };
    let more: Vec<String> =
        faults.by_ref().take(MOST_NAMED).map(|(file, _)| millstream_core::redact::url(&file)).collect();
    let unnamed = if faults.next().is_some() { ", …" } else { "" };
    let error = error.in_unit(&file, None);
    Err(match (more.is_empty(), error.cause_text().map(str::to_owned)) {
        (false, Some(cause)) => error.cause(format!("{cause}; others differ, too: {}{unnamed}", more.join(", "))),
        _ => error,
    })
}

fn same_names(first_file: &str, first: &Schema, schema: &Schema) -> Result<()> {
    let (ours, theirs) = (names(first), names(schema));
    let missing: Vec<_> =
        first.fields().iter().map(|field| field.name().as_str()).filter(|name| !theirs.contains(name)).collect();
    let added: Vec<_> =
        schema.fields().iter().map(|field| field.name().as_str()).filter(|name| !ours.contains(name)).collect();
    if missing.is_empty() && added.is_empty() {
        return Ok(());
    }
    let compared = format!("compared with {}", millstream_core::redact::url(first_file));
    Err(Error::data(difference(&missing, &added)).cause(compared).hint(DRIFT_HINT))
}

fn names(schema: &Schema) -> HashSet<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}

/// How many further files that differ are named.
const MOST_NAMED: usize = 3;

const DRIFT_HINT: &str = "set `on_drift: null` (a missing column is null, an additional one is ignored) or \
                          `on_drift: widen` (the columns of all files)";

/// "the file lacks column a and has an additional column b".
fn difference(missing: &[&str], added: &[&str]) -> String {
    let noun = |names: &[&str]| if names.len() == 1 { "column" } else { "columns" };
    match (missing.is_empty(), added.is_empty()) {
        (false, true) => format!("the file lacks the {} {}", noun(missing), missing.join(", ")),
        (true, false) => format!("the file has the additional {} {}", noun(added), added.join(", ")),
        _ => format!(
            "the file lacks the {} {} and has the additional {} {}",
            noun(missing),
            missing.join(", "),
            noun(added),
            added.join(", ")
        ),
    }
}

/// For each column of `schema` its index among the columns `file` of one file; `None` if the file lacks it and it is
/// null. Names are compared exactly.
///
/// `Fail`: both sets of names are the same. `Null`: what is missing is null, what is additional is ignored. `Widen`:
/// what is missing is null; an additional column is an error, since all files were read before.
pub fn match_columns(file: &[impl AsRef<str>], schema: &Schema, on_drift: OnDrift) -> Result<Vec<Option<usize>>> {
    let places: HashMap<&str, usize> = file.iter().enumerate().map(|(index, name)| (name.as_ref(), index)).collect();
    let matched: Vec<_> = schema.fields().iter().map(|field| places.get(field.name().as_str()).copied()).collect();
    if on_drift != OnDrift::Fail && !matched.is_empty() && matched.iter().all(Option::is_none) {
        return Err(nothing_in_common(file.iter().map(AsRef::as_ref), schema));
    }
    let missing: Vec<_> = if on_drift == OnDrift::Fail {
        schema
            .fields()
            .iter()
            .zip(&matched)
            .filter(|(_, place)| place.is_none())
            .map(|(field, _)| field.name().as_str())
            .collect()
    } else {
        Vec::new()
    };
    let added: Vec<_> = if on_drift == OnDrift::Null {
        Vec::new()
    } else {
        let known = names(schema);
        file.iter().map(AsRef::as_ref).filter(|name| !known.contains(name)).collect()
    };
    if missing.is_empty() && added.is_empty() {
        return Ok(matched);
    }
    let slip = missing.first().and_then(|name| Some((name, hint::nearest(name, added.iter().copied())?)));
    let hint = match (slip, on_drift) {
        (Some((name, nearest)), _) => format!("is `{nearest}` the column that the source calls `{name}`? {DRIFT_HINT}"),
        (None, OnDrift::Widen) => "`widen` adds nothing to columns that are declared: add it to `columns`, or set \
                                   `on_drift: null` to ignore it"
            .to_owned(),
        (None, _) => format!("correct `columns`, or {DRIFT_HINT}"),
    };
    Err(Error::data(difference(&missing, &added)).hint(hint))
}

/// The fault of a file with none of the columns of the source: under `on_drift: null` it would give rows of nulls.
pub fn nothing_in_common<'a>(file: impl Iterator<Item = &'a str>, schema: &Schema) -> Error {
    let file: Vec<&str> = file.collect();
    let slip = schema.fields().iter().find_map(|field| {
        let nearest = hint::nearest(field.name(), file.iter().copied())?;
        Some(format!("is `{nearest}` the column that the source calls `{}`? ", field.name()))
    });
    let hint = "correct `columns`, or leave the file out of `read`: all of its rows would be null";
    let theirs = match file.is_empty() {
        true => "the file has no columns".to_owned(),
        false => format!("the file has {}", listed(file.iter().copied())),
    };
    let ours = listed(schema.fields().iter().map(|field| field.name().as_str()));
    Error::data("the file has none of the columns of the source")
        .cause(format!("{theirs}; the source has {ours}"))
        .hint(format!("{}{hint}", slip.unwrap_or_default()))
}

/// The first names of columns, each between backticks: a name may hold commas.
fn listed<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let first: Vec<String> = names.by_ref().take(MOST).map(|name| format!("`{name}`")).collect();
    let more = if names.next().is_some() { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::columns::parse_type;

    fn schema(columns: &[(&str, &str)]) -> SchemaRef {
        let field = |(name, type_name): &(&str, &str)| {
            Field::new(*name, if *type_name == "null" { DataType::Null } else { parse_type(type_name).unwrap() }, true)
        };
        Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
    }

    fn shown(schema: &Schema) -> String {
        let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type())));
        fields.collect::<Vec<_>>().join(", ")
    }

    fn merged(on_drift: OnDrift, types: Types) -> Result<String> {
        let files = [
            ("one".to_owned(), schema(&[("a", "int64"), ("b", "null")])),
            ("two".to_owned(), schema(&[("c", "utf8"), ("a", "float64")])),
        ];
        merge(&files, on_drift, types).map(|schema| shown(&schema))
    }

    #[test]
    fn files_are_merged_as_on_drift_says() {
        assert_eq!(merged(OnDrift::Widen, Types::Stored).unwrap(), "a float64, b utf8, c utf8");
        assert_eq!(merged(OnDrift::Null, Types::Inferred).unwrap(), "a float64, b utf8");
        let error = merged(OnDrift::Null, Types::Stored).unwrap_err();
        assert_eq!(error.to_string(), "two, column a: the column is float64, and int64 in the files before it");
        let error = merged(OnDrift::Fail, Types::Inferred).unwrap_err();
        assert_eq!(
            error.to_string(),
            "two: the file lacks the column b and has the additional column c: compared with one"
        );
    }

    #[test]
    fn files_that_differ_are_named_together() {
        let file =
            |name: usize| (name.to_string(), schema(&[(if name.is_multiple_of(2) { "a" } else { "b" }, "int64")]));
        let told = |count: usize| {
            let files: Vec<_> = (0..count).map(file).collect();
            merge(&files, OnDrift::Fail, Types::Inferred)
                .expect_err("every other differs")
                .cause_text()
                .map(str::to_owned)
        };
        assert_eq!(told(3).as_deref(), Some("compared with 0"));
        assert_eq!(told(8).as_deref(), Some("compared with 0; others differ, too: 3, 5, 7"));
        assert_eq!(told(10).as_deref(), Some("compared with 0; others differ, too: 3, 5, 7, …"));
    }

    #[test]
    fn another_order_is_no_drift() {
        let files = [
            ("one".to_owned(), schema(&[("a", "int64"), ("b", "utf8")])),
            ("two".to_owned(), schema(&[("b", "utf8"), ("a", "int64")])),
        ];
        assert_eq!(shown(&merge(&files, OnDrift::Fail, Types::Stored).unwrap()), "a int64, b utf8");
        let places = match_columns(&["b", "a"], &files[0].1, OnDrift::Fail).unwrap();
        assert_eq!(places, [Some(1), Some(0)]);
    }

    #[test]
    fn one_file_is_matched_as_on_drift_says() {
        let source = schema(&[("name", "utf8"), ("size", "int64")]);
        let places = match_columns(&["size", "extra"], &source, OnDrift::Null).unwrap();
        assert_eq!(places, [None, Some(0)]);
        let error = match_columns(&["extra", "siez"], &source, OnDrift::Null).unwrap_err();
        assert_eq!(error.what(), "the file has none of the columns of the source");
        assert_eq!(error.cause_text(), Some("the file has `extra`, `siez`; the source has `name`, `size`"));
        assert!(error.hint_text().unwrap().starts_with("is `siez` the column that the source calls `size`?"));
        assert_eq!(match_columns(&["size"], &source, OnDrift::Widen).unwrap(), [None, Some(0)]);
        assert!(match_columns(&["size", "extra"], &source, OnDrift::Widen).is_err());
        let error = match_columns(&["nmae", "size"], &source, OnDrift::Fail).unwrap_err();
        assert_eq!(error.what(), "the file lacks the column name and has the additional column nmae");
        assert!(error.hint_text().unwrap().starts_with("is `nmae` the column that the source calls `name`?"));
    }
}

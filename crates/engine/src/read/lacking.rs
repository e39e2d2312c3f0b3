//! Columns that files lack, where that is no error (`on_drift: null`, `widen`): counted for the report. A file that has
//! none of the source's columns is an error all the same: all of its rows would be null.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::datatypes::Schema;
use millstream_core::Result;
use millstream_core::format::{OnDrift, ParseRequest, SeenColumns};

use crate::report::MissingColumn;

/// So many files are named for each column.
const NAMED: usize = 10;

/// Which columns of one source were missing in which files.
#[derive(Debug, Default)]
pub struct Lacking(Mutex<BTreeMap<usize, Files>>);

#[derive(Debug, Default, Clone)]
struct Files {
    count: u64,
    first: Vec<String>,
}

impl Lacking {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Files>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file `name` lacks the column with this index.
    fn add(&self, column: usize, name: &str) {
        let mut columns = self.lock();
        let files = columns.entry(column).or_default();
        files.count += 1;
        if files.first.len() < NAMED {
            files.first.push(name.to_owned());
        }
    }

    /// Adds what another process has counted, whose columns are `schema`.
    pub fn add_elsewhere(&self, missing: &MissingColumn, schema: &Schema) {
        let Ok(column) = schema.index_of(&missing.column) else { return };
        let mut columns = self.lock();
        let files = columns.entry(column).or_default();
        files.count += missing.files;
        files.first.extend(missing.first.iter().take(NAMED.saturating_sub(files.first.len())).cloned());
    }

    /// What is missing in `source`, whose columns are `schema`, in their order.
    pub fn report(&self, source: &str, schema: &Schema) -> Vec<MissingColumn> {
        let column = |(index, files): (&usize, &Files)| {
            let Files { count, mut first } = files.clone();
            // Files are read in no particular order.
            first.sort();
            let column = schema.fields().get(*index)?.name().clone();
            Some(MissingColumn { source: source.to_owned(), column, files: count, first })
        };
        self.lock().iter().filter_map(column).collect()
    }
}

/// `request` for one more file, with somebody to tell which columns it has where that matters. With `alone` it is a
/// record that is loaded again: what its file had is not known.
pub fn watched(request: &ParseRequest, alone: bool) -> Cow<'_, ParseRequest> {
    match request.on_drift == OnDrift::Fail || alone {
        true => Cow::Borrowed(request),
        false => Cow::Owned(ParseRequest { seen: Some(SeenColumns::default()), ..request.clone() }),
    }
}

/// The file, which was read by a [`watched`] request, is at its end.
pub fn ended(lacking: &Lacking, request: &ParseRequest, uri: &str, member: Option<&str>) -> Result<()> {
    let Some(seen) = &request.seen else { return Ok(()) };
    if let Some(other) = seen.only_other() {
        return Err(millstream_format::drift::nothing_in_common([other.as_str()].into_iter(), &request.schema));
    }
    let missing = seen.missing();
    if missing.is_empty() {
        return Ok(());
    }
    let uri = millstream_core::redact::url(uri);
    let name = member.map_or(uri.clone(), |member| format!("{uri}, member {member}"));
    missing.into_iter().for_each(|column| lacking.add(column, &name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn files_are_counted_by_column_and_the_first_named() {
        let lacking = Lacking::default();
        for file in 0..20 {
            lacking.add(1, &format!("{file:02}.csv"));
        }
        lacking.add(0, "b.csv");
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        let found = lacking.report("s", &Schema::new(vec![field("a"), field("b")]));
        let told: Vec<_> = found.iter().map(|one| (one.column.as_str(), one.files, one.first.len())).collect();
        assert_eq!(told, [("a", 1, 1), ("b", 20, NAMED)]);
    }
}

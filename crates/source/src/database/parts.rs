//! Divides a key into ranges of one width. The databases query the bounds and write the conditions.

use arrow::datatypes::Field;
use async_trait::async_trait;
use chrono::NaiveDateTime;
use millstream_core::hint::did_you_mean;
use millstream_core::{Error, Result};
use millstream_database::Dialect;

use super::query::Query;
use super::spec::ServerRead;

/// Parts per connection: several, since ranges of one width differ in their number of rows.
const PARTS_A_CONNECTION: usize = 8;

/// Fewer values than this are not worth a second part.
const LEAST_WIDTH: i128 = 2_000;

/// How the values of a key are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// Whole numbers, and those with a fraction.
    Number,
    /// `2005-01-31`, with or without a time.
    Time,
}

impl Key {
    /// A value as a number: itself, or the seconds since 1970.
    fn number(self, text: &str) -> Option<i128> {
        match self {
            Key::Number => text.split('.').next()?.parse().ok(),
            Key::Time => {
                let whole = if text.len() == 10 { format!("{text} 00:00:00") } else { text.to_owned() };
                let time = NaiveDateTime::parse_from_str(&whole, "%Y-%m-%d %H:%M:%S%.f").ok()?;
                Some(i128::from(time.and_utc().timestamp()))
            }
        }
    }

    /// The number as SQL text.
    fn text(self, number: i128) -> Option<String> {
        match self {
            Key::Number => Some(number.to_string()),
            Key::Time => {
                let time = chrono::DateTime::from_timestamp(i64::try_from(number).ok()?, 0)?;
                Some(format!("'{}'", time.format("%Y-%m-%d %H:%M:%S")))
            }
        }
    }
}

/// Queries about keys over a connection.
#[async_trait]
pub(super) trait Keys: Send {
    /// The one column of a table's primary key.
    async fn primary_key(&mut self, table: &str) -> Result<Option<String>>;

    /// How the values of a column can be divided into ranges, if at all.
    async fn key(&mut self, query: &Query, name: &str) -> Result<Option<Key>>;

    /// The least and the greatest value of a column, as text; `None` without rows.
    async fn ends(&mut self, query: &Query, name: &str, key: Key) -> Result<Option<(String, String)>>;

    /// How the database writes SQL.
    fn dialect(&self) -> &'static dyn Dialect;
}

/// Fails if `split_by` is not one of `columns`, or cannot be divided into ranges.
pub(super) async fn check(session: &mut impl Keys, spec: &ServerRead, query: &Query, columns: &[Field]) -> Result<()> {
    let Some(name) = &spec.split_by else { return Ok(()) };
    let names: Vec<&str> = columns.iter().map(|column| column.name().as_str()).collect();
    if !names.iter().any(|column| column.eq_ignore_ascii_case(name)) {
        return Err(Error::job("`split_by` is not among the columns that are read")
            .text(name)
            .hint(did_you_mean(name, "columns", &names)));
    }
    session.key(query, name).await?.map(drop).ok_or_else(|| cannot_be_cut(name))
}

fn cannot_be_cut(name: &str) -> Error {
    Error::job("rows cannot be split by this column")
        .column(name)
        .hint("`split_by` names a number, a date or a time; without it all rows come over one connection")
}

/// The conditions that divide the rows of `query` as `spec` says; `None` if there is no suitable key.
pub(super) async fn of_query(session: &mut impl Keys, spec: &ServerRead, query: &Query) -> Result<Option<Vec<String>>> {
    let name = match (&spec.split_by, query.table()) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(table)) => session.primary_key(table).await?,
        (None, None) => None,
    };
    let Some(name) = name else { return Ok(None) };
    let Some(key) = session.key(query, &name).await? else {
        return match spec.split_by {
            Some(_) => Err(cannot_be_cut(&name)),
            None => Ok(None),
        };
    };
    let Some((least, greatest)) = session.ends(query, &name, key).await? else { return Ok(None) };
    Ok(Some(conditions(&session.dialect().quoted(&name), key, &least, &greatest, spec.connections)))
}

/// The conditions that divide the rows into parts, from the key's least and greatest value. Each row meets exactly one
/// of them: the first and the last range are open, and rows without a key are in the first. None if the rows are one
/// part.
fn conditions(name: &str, key: Key, least: &str, greatest: &str, connections: usize) -> Vec<String> {
    let (Some(least), Some(greatest)) = (key.number(least), key.number(greatest)) else { return Vec::new() };
    let width = greatest.saturating_sub(least);
    let least_width = if key == Key::Number { LEAST_WIDTH } else { 1 };
    let parts = (width / least_width).min((connections * PARTS_A_CONNECTION) as i128);
    if connections < 2 || parts < 2 {
        return Vec::new();
    }
    let bounds: Option<Vec<String>> = (1..parts).map(|part| key.text(least + width * part / parts)).collect();
    let Some(bounds) = bounds else { return Vec::new() };
    let first = bounds.first().map(|bound| format!("({name} < {bound} OR {name} IS NULL)"));
    let middle = bounds.windows(2).map(|pair| format!("{name} >= {} AND {name} < {}", pair[0], pair[1]));
    let last = bounds.last().map(|bound| format!("{name} >= {bound}"));
    first.into_iter().chain(middle).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_meet_and_have_no_end() {
        let parts = conditions("k", Key::Number, "-10000", "10000", 2);
        assert_eq!(parts.len(), 10);
        assert_eq!(parts[0], "(k < -8000 OR k IS NULL)");
        assert_eq!(parts[1], "k >= -8000 AND k < -6000");
        assert_eq!(parts[9], "k >= 8000");
        assert_eq!(conditions("k", Key::Number, "0", "1e9", 2), Vec::<String>::new());
        assert_eq!(conditions("k", Key::Number, "0", "3999", 4), Vec::<String>::new());
        assert_eq!(conditions("k", Key::Number, "0", "400000", 1), Vec::<String>::new());
        let wide = conditions("k", Key::Number, "-9223372036854775808", "18446744073709551615", 4);
        assert_eq!((wide.len(), wide[31].as_str()), (32, "k >= 17582052945254416383"));
    }

    #[test]
    fn times_are_cut_as_well() {
        let parts = conditions("k", Key::Time, "2005-01-01", "2005-01-05", 2);
        assert_eq!(parts.len(), 16);
        assert_eq!(parts[1], "k >= '2005-01-01 06:00:00' AND k < '2005-01-01 12:00:00'");
        let parts = conditions("k", Key::Time, "2005-01-01 00:00:00.5", "2005-01-01 00:00:02", 2);
        assert_eq!(parts, ["(k < '2005-01-01 00:00:01' OR k IS NULL)", "k >= '2005-01-01 00:00:01'"]);
    }
}

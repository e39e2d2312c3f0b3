//! Rows by the time in one of their columns: which columns can be used, what the clock of the database shows, and the
//! conditions. What is read when, and what is noted of it, is the engine's.
//!
//! A column without a time zone has what a clock on the wall shows, in the time zone that the server has for sessions
//! that set none. Where clocks are put back, the same hour comes twice. So its clock is read as the earliest time that
//! it will still show: until the hour is over for the second time, it stands still. Clocks are moved at whole quarters
//! of an hour of UTC.

use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema};
use millstream_core::hint::did_you_mean;
use millstream_core::source::{PlaceClock, Window};
use millstream_core::{Error, Result};
use millstream_database::Dialect;

use super::kind::{Database, WallClock};
use super::query::Query;

/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// Clocks are moved at multiples of this.
const QUARTER: i64 = 900 * SECOND;

/// Clocks are put back, or put forward, by at most so many quarters of an hour.
const QUARTERS: i64 = 8;

/// Zones in which clocks are never moved.
const FIXED: [&str; 8] = ["UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Zulu", "+00:00", "Etc/Zulu"];

/// Checks that `name` is a column whose times rows can be read by. In SQLite times are text.
pub(super) fn check_column(columns: &Schema, name: &str, dialect: &dyn Dialect) -> Result<()> {
    let Ok(column) = columns.field_with_name(name) else {
        let names: Vec<&str> = columns.fields().iter().map(|column| column.name().as_str()).collect();
        return Err(Error::job("`by` of `incremental` is not among the columns that are read")
            .text(name)
            .hint(did_you_mean(name, "columns", &names)));
    };
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let (what, hint) = match column.data_type() {
        DataType::Timestamp(..) => return Ok(()),
        text if is_text(text) && dialect.name() == "sqlite" => return Ok(()),
        DataType::Date32 | DataType::Date64 => {
            ("is a date, which does not say when on that day a row was changed", "name a column with a date and a time")
        }
        number if number.is_numeric() => (
            "is a number, which says nothing of rows that are not committed yet",
            "name a column with the time at which a row was changed; in a `query`, numbers that are times can be \
             converted",
        ),
        _ => ("is not a time", "name a column with a date and a time"),
    };
    Err(Error::job(format!("rows cannot be read by this column: it {what}")).column(name).hint(hint))
}

/// What the clock of the database at `url` shows, as `column` has its times.
///
/// # Errors
/// If the column has no time in some rows of `query`.
pub(super) async fn clock(
    database: &dyn Database,
    url: &str,
    query: &Query,
    column: &Field,
    lag: Duration,
) -> Result<PlaceClock> {
    check_rows(database, url, query, column).await?;
    let lag = i64::try_from(lag.as_micros()).unwrap_or(i64::MAX);
    let (now, zone) = instant(database, url).await?;
    let before = now.saturating_sub(lag);
    if !matches!(column.data_type(), DataType::Timestamp(_, None)) {
        return Ok(PlaceClock { now: whole(now), before: whole(before), forward: 0 });
    }
    let clock = database.wall_clock();
    Ok(PlaceClock {
        now: whole(earliest(database, url, &clock, now).await?),
        before: whole(earliest(database, url, &clock, before).await?),
        forward: if FIXED.contains(&zone.as_str()) { 0 } else { QUARTERS * QUARTER },
    })
}

/// The last whole second.
fn whole(time: i64) -> i64 {
    time.div_euclid(SECOND) * SECOND
}

/// Refuses rows that no window would ever have.
async fn check_rows(database: &dyn Database, url: &str, query: &Query, column: &Field) -> Result<()> {
    let dialect = database.dialect();
    let name = dialect.quoted(column.name());
    let count = query.statement("count(*)", Some(&format!("{name} IS NULL")), dialect);
    let nulls = number(database.answer(url, &count).await?.first())?;
    if nulls > 0 {
        let rows = if nulls == 1 { "1 row has".to_owned() } else { format!("{nulls} rows have") };
        let what = format!("{rows} no time in the column by which rows are read: nothing is loaded");
        return Err(Error::data(what)
            .column(column.name())
            .hint("give these rows a time, or leave them out or fill the column in by a `query`"));
    }
    let Some(bad) = database.not_a_time(&name) else { return Ok(()) };
    let list = format!("count(*), min({name})");
    let answer = database.answer(url, &query.statement(&list, Some(&bad), dialect)).await?;
    let wrong = |what: String| {
        Error::data(what).column(column.name()).hint(
            "all times must be in UTC and of one form: `2026-01-31 12:00:00` or `2026-01-31T12:00:00Z`, with or \
             without a fraction",
        )
    };
    if number(answer.first())? > 0 {
        let example = answer.get(1).cloned().flatten().unwrap_or_default();
        let what = "the column by which rows are read has a value that is not a time: nothing is loaded";
        return Err(wrong(what.to_owned()).text(example));
    }
    match separators(database, url, query, &name).await?.len() {
        0 | 1 => Ok(()),
        _ => Err(wrong("the column by which rows are read has times of two forms: nothing is loaded".to_owned())),
    }
}

/// What is between the date and the time, of text.
async fn separators(database: &dyn Database, url: &str, query: &Query, name: &str) -> Result<Vec<String>> {
    let list = format!("min(substr({name}, 11, 1)), max(substr({name}, 11, 1))");
    let answer = database.answer(url, &query.statement(&list, None, database.dialect())).await?;
    let mut found: Vec<String> = answer.into_iter().flatten().collect();
    found.dedup();
    Ok(found)
}

/// The time now, in microseconds since 1970, and the time zone of columns without one.
async fn instant(database: &dyn Database, url: &str) -> Result<(i64, String)> {
    let answer = database.answer(url, database.wall_clock().now).await?;
    let zone = answer.get(1).cloned().flatten().unwrap_or_default();
    Ok((number(answer.first())?, zone))
}

/// The earliest time that a clock on the wall shows at `instant` or later.
async fn earliest(database: &dyn Database, url: &str, clock: &WallClock, instant: i64) -> Result<i64> {
    let readings: Vec<String> = instants(instant).into_iter().map(|one| (clock.reading)(&text(one, ' '))).collect();
    let answer = database.answer(url, &(clock.earliest)(&readings.join(", "))).await?;
    number(answer.first())
}

/// `instant`, and the moments behind it at which a clock may be put back.
fn instants(instant: i64) -> Vec<i64> {
    let next = (instant.div_euclid(QUARTER) + 1) * QUARTER;
    let moments = (0..=QUARTERS).map(|quarter| next + quarter * QUARTER);
    std::iter::once(whole(instant)).chain(moments).collect()
}

fn number(answer: Option<&Option<String>>) -> Result<i64> {
    let number = answer.and_then(Option::as_deref).and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        Error::refused("the database does not tell the time in its own time zone")
            .hint("check the time zone that the server is set to, and that it knows this zone")
    })
}

/// The condition of the rows in `window`.
pub(super) async fn condition(
    database: &dyn Database,
    url: &str,
    query: &Query,
    window: &Window,
) -> Result<Option<String>> {
    let name = database.dialect().quoted(&window.column);
    let between = match database.not_a_time(&name) {
        Some(_) => separators(database, url, query, &name).await?.first().and_then(|text| text.chars().next()),
        None => None,
    };
    let bound = |time: i64| format!("'{}'", text(time, between.unwrap_or(' ')));
    let from = window.from.map(|from| format!("{name} >= {}", bound(from)));
    let until = window.until.map(|until| format!("{name} < {}", bound(until)));
    Ok(from.into_iter().chain(until).reduce(|from, until| format!("{from} AND {until}")))
}

/// A time as SQL has it, in whole seconds.
fn text(time: i64, between: char) -> String {
    match chrono::DateTime::from_timestamp_micros(time) {
        Some(time) => time.format(&format!("%Y-%m-%d{between}%H:%M:%S")).to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND;

    /// A clock that is put back by an hour at `at`, as it shows `instant`.
    fn shown(instant: i64, at: i64) -> i64 {
        if instant < at { instant + 2 * HOUR } else { instant + HOUR }
    }

    #[test]
    fn no_time_comes_again_that_a_clock_has_been_read_beyond() {
        let at = 500 * HOUR + 15 * 60 * SECOND;
        let read = |instant| instants(instant).into_iter().map(|one| shown(one, at)).min().expect("there is one");
        let steps = || (0..2_000).map(|step| at - 4 * HOUR + step * 17 * SECOND * 7);
        for instant in steps() {
            let read = read(instant);
            assert!(read <= shown(instant, at));
            assert!(steps().filter(|later| *later >= instant).all(|later| shown(later, at) >= read - SECOND));
        }
        assert!(steps().zip(steps().skip(1)).all(|(one, next)| read(one) <= read(next)), "it never goes back");
        assert_eq!(read(at - HOUR - HOUR), at, "it is right outside of the hour that comes twice");
        assert_eq!(read(at + HOUR), at + 2 * HOUR);
    }

    #[test]
    fn times_are_in_whole_seconds() {
        assert_eq!(text(whole(1_500_000), 'T'), "1970-01-01T00:00:01");
        assert_eq!(text(whole(-1), ' '), "1969-12-31 23:59:59");
    }
}

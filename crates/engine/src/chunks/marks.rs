//! How far sinks have the rows of a source that is read by the time in a column: which rows a run reads, and what is
//! noted of them. The place has the clock and the rows ([`millstream_core::source::RowSource`]); `admission.rs` decides
//! which sinks take them.
//!
//! ```text
//!   sink a has   ═══════════════════════╡ its mark
//!   sink b has   ═══════════╡ its mark
//!   stretches               ├───────────┼────────────┤ the end: a lag before now
//!                 for b, to catch up ───┘     └─── for both
//! ```
//! A mark is where a run has stopped to read, whether there were rows or not. Sinks that add rows read whole stretches,
//! up to the lag before now: what a transaction writes late is not behind the mark. Sinks that merge rows begin a lag
//! before the mark, and read without an end.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use futures::TryStreamExt;
use millstream_core::sink::{Chunk, Noted, WrittenChunks};
use millstream_core::source::{PlaceClock, Window};
use millstream_core::stable_hash::hash;
use millstream_core::{Error, Result, Unit};
use millstream_job::Selected;
use millstream_job::entries::IncrementalBy;

use super::admission::NotingSink;
use crate::read::Reader;
use crate::report::WindowRead;
use crate::sql::normalised;

/// The key of a source that has SQL.
const QUERY: &str = "query";

/// Rows between two marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The mark before them; `None` if it is all rows up to the next one.
    after: Option<i64>,
    /// The mark behind them.
    mark: i64,
}

/// How the sinks of a source take rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A row that comes again is there twice.
    Add,
    /// A row that comes again changes nothing. Reading begins so long before a mark, in microseconds.
    Merge(i64),
}

/// What finds the new rows of a source by a time.
#[derive(Debug)]
pub struct TimedRows {
    /// The column with the time.
    pub column: Field,
    /// The table or query that gives the rows.
    pub selected: Selected,
}

/// A source that is read by the time in a column.
#[derive(Debug)]
pub struct TimedSource {
    reader: Arc<Reader>,
    by: IncrementalBy,
    selected: Selected,
    is_zoned: bool,
    way: Way,
    /// What the sinks that take its rows have, by their places among all.
    had: Vec<(usize, Had)>,
    /// What there is to read.
    pub stretches: Vec<Stretch>,
    /// What is read.
    admitted: Option<Stretch>,
}

/// What a sink has of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Had {
    mark: Option<i64>,
    /// Whether it notes the column and the table.
    notes_origin: bool,
    /// What it has noted of the query; nothing, if a run of an earlier version has written the mark.
    selected: Option<u64>,
}

impl TimedSource {
    /// Finds up to which time `sinks` have the rows of `reader`, of which `timed` finds the new ones.
    ///
    /// # Errors
    /// If rows have no time; if the clock is behind a mark; if the marks are those of another column, table or, unless
    /// `accept_changed`, query.
    pub async fn of(
        reader: &Arc<Reader>,
        timed: TimedRows,
        sinks: &[NotingSink],
        accept_changed: bool,
    ) -> Result<Self> {
        let TimedRows { column, selected } = timed;
        let by = reader.incremental_by.clone().ok_or_else(|| Error::internal("a source is not read by a time"))?;
        let pattern = pattern(reader)?;
        let source = Arc::clone(reader.source_of(pattern)?);
        let place = source.rows().ok_or_else(|| Error::internal("the place gives no rows"))?;
        let takes = |sink: &NotingSink| sink.sources.contains(&reader.name);
        let mut had = Vec::new();
        for (number, sink) in sinks.iter().enumerate().filter(|(_, sink)| takes(sink)) {
            let known = known(&reader.name, &sink.written, origin(reader, &by)).and_then(|had| {
                let is_same = accept_changed || had.is_of(&reader.name, &selected);
                if is_same { Ok(had) } else { Err(has_changed(&reader.name, &selected, &had)) }
            });
            had.push((number, known.map_err(|error| error.in_step(&sink.name))?));
        }
        let clock = place.clock(&reader.context, pattern, &column, by.lag.0).await;
        let clock = clock.map_err(|error| error.in_unit(pattern, None))?;
        let way = match sinks.iter().any(|sink| takes(sink) && sink.adds_rows) {
            true => Way::Add,
            false => Way::Merge(clock.map_or(0, |clock| clock.forward.saturating_add(micros(&by)))),
        };
        let marks: Vec<Option<i64>> = had.iter().map(|(_, had)| had.mark).collect();
        let stretches = match clock {
            Some(clock) => stretches(&marks, clock, way)?,
            None => Vec::new(),
        };
        let is_zoned = !matches!(column.data_type(), DataType::Timestamp(_, None));
        Ok(TimedSource { reader: Arc::clone(reader), by, selected, is_zoned, way, had, stretches, admitted: None })
    }

    /// The name of the source.
    pub fn name(&self) -> &str {
        &self.reader.name
    }

    /// Whether the sink at `number` lacks the rows of `stretch`; nothing, if the source's rows do not come to it.
    pub fn lacks(&self, number: usize, stretch: Stretch) -> Option<bool> {
        let (_, had) = self.had.iter().find(|(own, _)| *own == number)?;
        Some(had.mark <= stretch.after)
    }

    /// Lets these stretches be read, one behind the other, and no other rows.
    pub async fn admit(&mut self, stretches: &[Stretch]) -> Result<()> {
        let (first, last) = (stretches.first(), stretches.last());
        self.admitted = first.zip(last).map(|(first, last)| Stretch { after: first.after, mark: last.mark });
        let units = match self.window() {
            Some(window) => self.units(&window).await?,
            None => Vec::new(),
        };
        self.reader.restrict(units);
        Ok(())
    }

    async fn units(&self, window: &Window) -> Result<Vec<Unit>> {
        let (reader, pattern) = (&self.reader, pattern(&self.reader)?);
        let source = Arc::clone(reader.source_of(pattern)?);
        let place = source.rows().ok_or_else(|| Error::internal("the place gives no rows"))?;
        reader.steps.fetch.add_detail(source.name());
        let units = place.list_window(&reader.context, pattern, window).try_collect().await;
        units.map_err(|error: Error| error.in_unit(pattern, None))
    }

    /// The rows that are read.
    fn window(&self) -> Option<Window> {
        let Stretch { after, mark } = self.admitted?;
        let (from, until) = match self.way {
            Way::Add => (after, Some(mark)),
            Way::Merge(again) => (after.map(|after| after.saturating_sub(again)), None),
        };
        Some(Window { column: self.by.by.clone(), from, until })
    }

    /// What the sink at `number` notes once all of this is read.
    pub fn noted(&self, number: usize) -> Noted {
        let found = self.admitted.zip(self.had.iter().find(|(own, _)| *own == number));
        let Some((Stretch { mark, .. }, (_, had))) = found else { return Noted::default() };
        let note = |time: i64| Chunk { unit: unit(self.name()), number: time.unsigned_abs() };
        let origin = had.notes_origin.then(|| origin(&self.reader, &self.by));
        let selected = Some(selection(self.name(), &self.selected)).filter(|note| Some(note.number) != had.selected);
        let before = had.selected.filter(|_| selected.is_some()).map(|number| selection_before(self.name(), number));
        Noted {
            chunks: [note(mark)].into_iter().chain(origin).chain(selected).collect(),
            replaced: had.mark.map(note).into_iter().chain(before).collect(),
        }
    }

    /// What is read, for the report.
    pub fn report(&self) -> Option<WindowRead> {
        let (window, Stretch { mark, .. }) = (self.window()?, self.admitted?);
        let text = |time| text(time, self.is_zoned);
        Some(WindowRead {
            source: self.name().to_owned(),
            by: window.column,
            from: window.from.map(text),
            until: window.until.map(text),
            mark: text(mark),
        })
    }
}

/// The one place of a source that is read by a time.
fn pattern(reader: &Reader) -> Result<&str> {
    reader.patterns.first().map(String::as_str).ok_or_else(|| Error::internal("a source reads nothing"))
}

fn micros(by: &IncrementalBy) -> i64 {
    i64::try_from(by.lag.0.as_micros()).unwrap_or(i64::MAX)
}

/// What becomes of a mark that is set back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetBack {
    /// The load has none.
    Unknown,
    /// It is not behind the time, in microseconds.
    IsBefore(i64),
    /// It was at this time, in microseconds; with what is noted.
    From(i64, Noted),
}

/// Sets the mark of the source `name` back to the time `to`, in microseconds, in a load of which this is `written`.
pub fn set_back(name: &str, to: i64, written: &WrittenChunks) -> SetBack {
    let note = |time: i64| Chunk { unit: unit(name), number: time.unsigned_abs() };
    match written.of_unit(&unit(name)).last().map(|mark| mark.cast_signed()) {
        None => SetBack::Unknown,
        Some(mark) if mark <= to => SetBack::IsBefore(mark),
        Some(mark) => SetBack::From(mark, Noted { chunks: vec![note(to)], replaced: vec![note(mark)] }),
    }
}

/// The unit under which the mark of a source is noted. No file has such a name.
fn unit(source: &str) -> String {
    format!("\nmark {source}")
}

/// Notes what the marks of a source are of: the column, and the table if it is one.
fn origin(reader: &Reader, by: &IncrementalBy) -> Chunk {
    let table = reader.patterns.first().and_then(|pattern| reader.source_of(pattern).ok()?.table(pattern));
    let table = table.map_or(String::new(), |table| table.table);
    Chunk { unit: format!("{}\nof", unit(&reader.name)), number: hash(format!("{}\n{table}", by.by)) >> 2 }
}

/// Notes the query or table that has given the rows of the source `name`, whatever the layout of its SQL.
fn selection(name: &str, Selected { key, text }: &Selected) -> Chunk {
    let text = if *key == QUERY { normalised(text.trim().trim_end_matches(';')) } else { text.clone() };
    selection_before(name, hash(format!("{key}\n{text}")) >> 2)
}

fn selection_before(name: &str, number: u64) -> Chunk {
    Chunk { unit: format!("{}\nselected", unit(name)), number }
}

impl Had {
    /// Whether the rows up to the mark were given by `selected`, as far as that is known.
    fn is_of(&self, name: &str, selected: &Selected) -> bool {
        self.selected.is_none_or(|before| before == selection(name, selected).number)
    }
}

fn has_changed(name: &str, selected: &Selected, had: &Had) -> Error {
    let key = if selected.key == QUERY { QUERY } else { "table" };
    let mark = had.mark.map_or(String::new(), |mark| format!(" up to {}", text(mark, false)));
    Error::refused(format!("the `{key}` of `{name}` has changed since its rows were loaded"))
        .cause(format!("rows{mark} are loaded; of those that only the new {key} gives, no run would read these"))
        .hint(
            "if the earlier rows are the same, for example because it only has more columns, `--accept-changed` \
             continues from there (a new column is null in earlier rows); otherwise `--restart` reads all rows again: \
             empty the tables of sinks that append",
        )
}

/// What is noted of the source `name`.
fn known(name: &str, written: &WrittenChunks, origin: Chunk) -> Result<Had> {
    let mark = written.of_unit(&unit(name)).last().map(|mark| mark.cast_signed());
    let origins = written.of_unit(&origin.unit);
    if !origins.is_empty() && !origins.contains(&origin.number) {
        let what =
            format!("the loaded rows of `{name}` were found by the time in another column, or are of another table");
        return Err(Error::refused(what)
            .cause("which rows of this one are new is not known")
            .hint("change `by` and `table` back, or load into a new table, under another name of the source"));
    }
    let selected = written.of_unit(&selection_before(name, 0).unit).last().copied();
    Ok(Had { mark, notes_origin: origins.is_empty(), selected })
}

/// What there is to read for sinks with these marks.
fn stretches(marks: &[Option<i64>], clock: PlaceClock, way: Way) -> Result<Vec<Stretch>> {
    let mut marks = marks.to_vec();
    marks.sort();
    marks.dedup();
    let last = marks.last().copied().flatten();
    let begins = match way {
        Way::Add => last,
        Way::Merge(again) => last.map(|last| last.saturating_sub(again)),
    };
    if clock.now < 0 || begins.is_some_and(|begins| clock.now < begins) {
        return Err(clock_went_back(clock.now, last));
    }
    let end = match way {
        Way::Add => Some(clock.before).filter(|before| *before > 0 && Some(*before) > last),
        Way::Merge(_) => Some(clock.now),
    };
    let between = marks.windows(2).filter_map(|pair| Some(Stretch { after: pair[0], mark: pair[1]? }));
    Ok(between.chain(end.map(|mark| Stretch { after: last, mark })).collect())
}

fn clock_went_back(now: i64, mark: Option<i64>) -> Error {
    let mark = mark.map_or(String::new(), |mark| text(mark, false));
    Error::refused(format!(
        "the clock of the database went back: it shows {}, and rows up to {mark} are loaded",
        text(now, false)
    ))
    .cause("rows that are written now have times that a later run would not read")
    .hint(
        "set the clock right. If it is right now, and was ahead before, give rows that were written meanwhile a new \
         time once it shows a later one",
    )
}

/// A time in ISO form.
pub fn text(time: i64, is_zoned: bool) -> String {
    let zone = if is_zoned { "Z" } else { "" };
    let time = chrono::DateTime::from_timestamp_micros(time);
    time.map_or(String::new(), |time| time.format(&format!("%Y-%m-%dT%H:%M:%S{zone}")).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: PlaceClock = PlaceClock { now: 1_000, before: 900, forward: 0 };

    fn stretch(after: Option<i64>, mark: i64) -> Stretch {
        Stretch { after, mark }
    }

    #[test]
    fn what_there_is_to_read_begins_at_marks_and_ends_a_lag_before_now() {
        let add = |marks: &[Option<i64>]| stretches(marks, CLOCK, Way::Add).expect("the clock is right");
        assert_eq!(add(&[None]), [stretch(None, 900)]);
        assert_eq!(add(&[Some(500), Some(500)]), [stretch(Some(500), 900)]);
        assert_eq!(
            add(&[Some(700), None, Some(500)]),
            [stretch(None, 500), stretch(Some(500), 700), stretch(Some(700), 900)]
        );
        // The lag has been made longer: nothing is read until it is over.
        assert_eq!(add(&[Some(900)]), []);
        assert_eq!(add(&[Some(950)]), []);
        let merge = |mark| stretches(&[Some(mark)], CLOCK, Way::Merge(100)).expect("the clock is right");
        assert_eq!(merge(1_000), [stretch(Some(1_000), 1_000)]);
        assert_eq!(merge(1_100), [stretch(Some(1_100), 1_000)]);
    }

    #[test]
    fn a_clock_that_went_back_beyond_what_is_read_is_an_error() {
        for (mark, way, is_error) in [
            (1_000, Way::Add, false),
            (1_001, Way::Add, true),
            (1_100, Way::Merge(100), false),
            (1_101, Way::Merge(100), true),
        ] {
            let found = stretches(&[Some(mark), None], CLOCK, way);
            assert_eq!(found.is_err(), is_error, "{mark} {way:?}");
        }
    }

    #[test]
    fn a_mark_is_of_a_column() {
        let origin = |number| Chunk { unit: "\nmark s\nof".to_owned(), number };
        let written = WrittenChunks::new([("\nmark s".to_owned(), 7), ("\nmark s\nof".to_owned(), 1)], str::to_owned);
        assert_eq!(
            known("s", &written, origin(1)).expect("the same"),
            Had { mark: Some(7), notes_origin: false, selected: None }
        );
        assert!(known("s", &written, origin(2)).is_err());
        let nothing = WrittenChunks::new([], str::to_owned);
        assert_eq!(
            known("s", &nothing, origin(2)).expect("new"),
            Had { mark: None, notes_origin: true, selected: None }
        );
    }

    #[test]
    fn a_mark_is_of_a_query_whatever_its_layout() {
        let query = |text: &str| Selected { key: QUERY, text: text.to_owned() };
        let had = |selected| Had { mark: Some(7), notes_origin: false, selected };
        let before = had(Some(selection("s", &query("SELECT id, at FROM t")).number));
        assert!(before.is_of("s", &query("select id,  at -- both\nFROM t;")));
        for other in ["SELECT id, at, name FROM t", "SELECT id, at FROM t WHERE id > 5", "SELECT id, at FROM u"] {
            assert!(!before.is_of("s", &query(other)), "{other}");
        }
        assert!(!before.is_of("s", &Selected { key: "table", text: "SELECT id, at FROM t".to_owned() }));
        assert!(had(None).is_of("s", &query("SELECT 1")), "an earlier version has noted none");
    }
}

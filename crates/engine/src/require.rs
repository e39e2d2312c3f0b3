//! What a job requires before a logical run begins: looking whether it holds. What follows is the run's business.
//!
//! Each requirement is looked at with a context of its own, so that nothing of it counts in the run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use futures::{Stream, StreamExt};
use millstream_core::{Error, ErrorKind, Result, Unit, clock, redact};
use millstream_job::around::{AgeKeys, Otherwise, Required, Requirement, UnitsKeys};
use millstream_job::{Around, Job, JobText, Moment, SourceStep};

use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fault;
use crate::first_rows::first_rows;
use crate::prepare::{Reach, prepare};
use crate::read::{ReadSteps, Reader, SourcePlan};

/// A requirement that does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Unmet {
    /// What was found.
    fact: String,
    message: Option<String>,
    otherwise: Otherwise,
}

impl Unmet {
    /// Why the run is skipped, if the job wants that.
    pub(crate) fn skips(&self) -> Option<String> {
        let why = match &self.message {
            Some(message) => format!("{message}: {}", self.fact),
            None => self.fact.clone(),
        };
        (self.otherwise == Otherwise::Skip).then_some(why)
    }

    /// The error of the run.
    pub(crate) fn error(&self) -> Error {
        let error = match &self.message {
            Some(message) => Error::new(ErrorKind::Requirement, message).cause(&self.fact),
            None => Error::new(ErrorKind::Requirement, &self.fact),
        };
        error.hint("the job requires it before it runs (`require`); nothing was touched")
    }
}

impl Engine {
    /// The first requirement of `job` that does not hold.
    pub(crate) async fn unmet(&self, job: &Arc<Job>) -> Result<Option<Unmet>, Failure> {
        for index in 0..job.around.requirements.len() {
            let own = Arc::clone(job);
            let look = async move |context: &RunContext| look(context, &own, index).await;
            if let Some(fact) = self.with_looking_context(look).await? {
                let Requirement { message, otherwise, .. } = job.around.requirements[index].clone();
                return Ok(Some(Unmet { fact, message, otherwise }));
            }
        }
        Ok(None)
    }
}

/// What is wrong with the requirement number `index` of `job`; `None` if it holds.
async fn look(context: &RunContext, job: &Job, index: usize) -> Result<Option<String>, Failure> {
    let Some(requirement) = job.around.requirements.get(index) else { return Ok(None) };
    let source = |name: &str| job.sources.iter().find(|source| source.name.value == name);
    match &requirement.what {
        Required::Exists(step) => Ok(nothing_there(context, step).await?),
        Required::Query(step) => no_value(context, job, step).await,
        Required::Units(UnitsKeys { of, min }) => match source(of) {
            Some(step) => Ok(too_few(of, *min, count(files(context, step), *min).await?)),
            None => Ok(None),
        },
        Required::Age(age) => match source(&age.of) {
            Some(step) => Ok(wrong_age(age, ages(files(context, step)).await?)),
            None => Ok(None),
        },
    }
}

/// The files of `step`; an error that is absent says that one of them is not there.
fn files(context: &RunContext, step: &SourceStep) -> impl Stream<Item = Result<Unit>> + use<> {
    reader(context, step).list()
}

fn reader(context: &RunContext, step: &SourceStep) -> Arc<Reader> {
    let (plan, _) = SourcePlan::of_step(context.registry(), step);
    let steps = ReadSteps::new(&context.steps, &step.name.value);
    let plan = SourcePlan { allow_empty: true, ..plan };
    Arc::new(Reader::new(plan, context.source_context(Arc::default()), steps, Arc::clone(&context.rejects)))
}

/// What is there in place of a file of `step`.
async fn nothing_there(context: &RunContext, step: &SourceStep) -> Result<Option<String>> {
    if !files_there(context, step, 1).await?.is_empty() {
        return Ok(None);
    }
    let patterns: Vec<String> = step.read.iter().map(|pattern| redact::url(&pattern.value)).collect();
    Ok(Some(format!("there is no {}", patterns.join(", "))))
}

/// The first `most` files of `step` that are there.
pub(crate) async fn files_there(context: &RunContext, step: &SourceStep, most: usize) -> Result<Vec<Unit>> {
    let reader = reader(context, step);
    let mut units = reader.list();
    let mut there = Vec::new();
    while there.len() < most
        && let Some(unit) = units.next().await
    {
        // A URL of the web is listed without asking for it.
        let found = match unit {
            Ok(unit) => reader.source_of(&unit.uri)?.look(&reader.context, &unit).await.map(|_| unit),
            Err(error) => Err(error),
        };
        match found {
            Ok(unit) => there.push(unit),
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

/// What a query gave in place of a value that holds.
async fn no_value(context: &RunContext, job: &Job, step: &SourceStep) -> Result<Option<String>, Failure> {
    let batches = rows_of(context, &job.text, job.around.moment, step, 1).await?;
    let value = first_value(&batches)?;
    let of = step.read.first().map_or_else(String::new, |url| redact::url(&url.value));
    Ok(no_truth(value.as_ref()).map(|found| format!("the query on {of} gave {found}")))
}

/// The first `most` rows of `step`, which stands in `text`.
pub(crate) async fn rows_of(
    context: &RunContext,
    text: &JobText,
    moment: Moment,
    step: &SourceStep,
    most: usize,
) -> Result<Vec<RecordBatch>, Failure> {
    let asked = Job {
        text: text.clone(),
        sources: vec![step.clone()],
        functions: Vec::new(),
        transforms: Vec::new(),
        sinks: Vec::new(),
        variables: BTreeMap::new(),
        set: BTreeMap::new(),
        replaced: None,
        around: Around { moment, ..Around::default() },
        taken: Arc::default(),
    };
    let prepared = prepare(context, &asked, None, Reach::Online).await?;
    let (_, batches) = first_rows(context, &asked, &prepared, Some(step.name.value.clone()), most).await?;
    Ok(batches)
}

pub(crate) fn first_value(batches: &[RecordBatch]) -> Result<Option<ScalarValue>> {
    let first = batches.iter().find(|batch| batch.num_rows() > 0 && batch.num_columns() > 0);
    let value = first.map(|batch| ScalarValue::try_from_array(batch.column(0), 0)).transpose();
    value.map_err(fault::unwrap)
}

/// What `value` is, if it does not count as true.
pub(crate) fn no_truth(value: Option<&ScalarValue>) -> Option<String> {
    let Some(value) = value else { return Some("no row".to_owned()) };
    if value.is_null() {
        return Some("null".to_owned());
    }
    let is_zero = ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| zero == *value);
    let is_false = matches!(value, ScalarValue::Boolean(Some(false)));
    // Without a sign and trailing zeros, as decimals may be given.
    let is_text_of_zero = matches!(value.try_as_str(), Some(Some("" | "0" | "f" | "false")));
    (is_zero || is_false || is_text_of_zero).then(|| match value.try_as_str() {
        Some(Some("")) => "an empty text".to_owned(),
        _ => value.to_string(),
    })
}

/// The number of `files`; counting ends at `enough`.
async fn count(files: impl Stream<Item = Result<Unit>>, enough: u64) -> Result<u64> {
    let mut files = std::pin::pin!(files);
    let mut count = 0;
    while let Some(file) = files.next().await.filter(|_| count < enough) {
        count += u64::from(is_there(file)?.is_some());
    }
    Ok(count)
}

fn is_there(file: Result<Unit>) -> Result<Option<Unit>> {
    match file {
        Ok(unit) => Ok(Some(unit)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

fn too_few(source: &str, min: u64, count: u64) -> Option<String> {
    let found = match count {
        0 => "no files".to_owned(),
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    (count < min).then(|| format!("`{source}` has {found}, and at least {min} are required"))
}

/// The newest file, and its age.
async fn ages(files: impl Stream<Item = Result<Unit>>) -> Result<Option<(String, Duration)>> {
    let mut files = std::pin::pin!(files);
    let now = i64::try_from(clock::now()).unwrap_or(i64::MAX);
    let mut newest: Option<(String, i64)> = None;
    while let Some(file) = files.next().await {
        let Some(unit) = is_there(file)? else { continue };
        let modified = unit.modified.ok_or_else(|| {
            let error = Error::refused("the age of this file is not known").in_unit(&unit.name(), None);
            error.hint("its server does not list when files were changed; leave out `age` in `require`")
        })?;
        if newest.as_ref().is_none_or(|(_, before)| *before < modified) {
            newest = Some((unit.name(), modified));
        }
    }
    // What was changed in the future, by another clock or before this one was set back, is new.
    let age = |modified: i64| Duration::from_millis(u64::try_from(now.saturating_sub(modified)).unwrap_or(0));
    Ok(newest.map(|(name, modified)| (name, age(modified))))
}

fn wrong_age(AgeKeys { of, min, max }: &AgeKeys, newest: Option<(String, Duration)>) -> Option<String> {
    let (min, max) = (min.map(|min| min.0), max.map(|max| max.0));
    let Some((name, age)) = newest else {
        return max.map(|max| format!("`{of}` has no file, and one of the last {} is required", in_words(max)));
    };
    if let Some(min) = min.filter(|min| age < *min) {
        let (age, min) = (in_words(age), in_words(min));
        return Some(format!("`{of}` has a file that was changed {age} ago, {name}, and at least {min} are required"));
    }
    let max = max.filter(|max| age > *max)?;
    let (age, max) = (in_words(age), in_words(max));
    Some(format!("the newest file of `{of}`, {name}, was changed {age} ago, and at most {max} are allowed"))
}

/// A time with the two largest units that it has: `2 days 3 hours`.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [
        (seconds / 86_400, "day"),
        (seconds / 3_600 % 24, "hour"),
        (seconds / 60 % 60, "minute"),
        (seconds % 60, "second"),
    ];
    let mut text = String::new();
    for (count, unit) in parts.into_iter().skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0)
    {
        let (blank, end) = (if text.is_empty() { "" } else { " " }, if count == 1 { "" } else { "s" });
        let _ = write!(text, "{blank}{count} {unit}{end}");
    }
    if text.is_empty() { format!("{} milliseconds", time.as_millis()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn times_have_their_two_largest_units() {
        let shown = [0, 1, 59, 60, 3_661, 86_400, 180_000].map(|time| in_words(seconds(time)));
        let expected =
            ["0 milliseconds", "1 second", "59 seconds", "1 minute", "1 hour 1 minute", "1 day", "2 days 2 hours"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn ages_have_two_limits() {
        let limits = |min: Option<u64>, max: Option<u64>| {
            let of = |limit: Option<u64>| limit.map(millstream_core::spec::Duration::from_seconds);
            AgeKeys { of: "s".to_owned(), min: of(min), max: of(max) }
        };
        let newest = |age: u64| Some(("a.csv".to_owned(), seconds(age)));
        assert_eq!(wrong_age(&limits(Some(60), Some(600)), newest(60)), None);
        assert_eq!(wrong_age(&limits(Some(60), Some(600)), newest(600)), None);
        let young = wrong_age(&limits(Some(60), None), newest(59)).expect("too young");
        assert_eq!(young, "`s` has a file that was changed 59 seconds ago, a.csv, and at least 1 minute are required");
        assert!(wrong_age(&limits(None, Some(600)), newest(601)).expect("too old").contains("10 minutes 1 second ago"));
        assert_eq!(wrong_age(&limits(Some(60), None), None), None, "there is none that is too young");
        assert!(wrong_age(&limits(None, Some(60)), None).expect("none is new").contains("has no file"));
    }

    #[test]
    fn a_value_holds_unless_it_is_nothing_false_or_zero() {
        for value in [
            ScalarValue::Int64(Some(-1)),
            ScalarValue::Boolean(Some(true)),
            ScalarValue::Utf8(Some("no".to_owned())),
            ScalarValue::Float64(Some(0.1)),
            ScalarValue::Date32(Some(7)),
        ] {
            assert_eq!(no_truth(Some(&value)), None, "{value:?}");
        }
        for (value, found) in [
            (ScalarValue::Int32(Some(0)), "0"),
            (ScalarValue::Decimal128(Some(0), 10, 2), "0.00"),
            (ScalarValue::Boolean(Some(false)), "false"),
            (ScalarValue::Utf8View(Some(String::new())), "an empty text"),
            (ScalarValue::Int64(None), "null"),
        ] {
            assert_eq!(no_truth(Some(&value)).as_deref(), Some(found), "{value:?}");
        }
        assert_eq!(no_truth(None).as_deref(), Some("no row"));
    }
}

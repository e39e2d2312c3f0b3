//! Batches that are given to workers, and what becomes of those that fail.
//!
//! A worker that has ended or takes too long has failed at its batch, and another takes its place. If it has said at
//! which row or group it was, that one is tried once more, alone. Otherwise what fails again is cut in halves where
//! parts of it are computed apart, down to the row or group to blame.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{Field, Schema, SchemaRef};
use millstream_core::transform::{Answer, Per};
use millstream_core::{Error, Result};

use super::lost::Lost;
use super::pool::{Failed, Pool};
use crate::rejects::carried::Carried;
use crate::rejects::take::TakeRow;
use crate::rejects::{Entry, Rejects, allowing, json_of};

/// How batches become rows.
#[derive(Clone)]
pub struct Work {
    /// The workers.
    pub pool: Arc<Pool>,
    /// The columns of its rows, without the one that is carried.
    pub schema: SchemaRef,
    /// Which of the columns that the workers give are among them, in increasing order, if they are not all. Only
    /// streams leave some out.
    pub wanted: Option<Vec<usize>>,
    /// The columns of the input that its rows keep.
    pub keep: Vec<usize>,
    /// How many columns the workers take. One more tells where rows are from, and is carried behind the others.
    pub width: usize,
    /// Takes the rows that fail, and counts those that come; `None` if none may fail.
    pub taker: Option<(Arc<dyn TakeRow>, Arc<Rejects>)>,
    /// Whether it is an entry of the job, which may be allowed to leave rows out.
    pub is_entry: bool,
    /// What the column that is carried tells; `None` if each row of an answer is from one row.
    pub carried: Option<Arc<dyn Carried>>,
    /// What has become of rows.
    pub went: Arc<Went>,
    /// The rows at which workers have ended and that ended the call.
    pub lost: Arc<Lost>,
}

/// What has become of the rows that were given to workers.
#[derive(Debug, Default)]
pub struct Went {
    /// How many have failed.
    pub failed: AtomicU64,
    /// How many were answered.
    pub answered: AtomicU64,
    /// How many rows were given for these.
    pub given: AtomicU64,
}

/// Rows for one call of a worker.
#[derive(Debug)]
pub struct Part {
    /// The rows.
    pub rows: RecordBatch,
    /// Behind which row each group ends; nothing if there are no groups.
    pub ends: Vec<usize>,
}

/// What was tried with rows before.
#[derive(Debug, Clone, Copy, Default)]
struct Tried {
    /// A worker has failed at them.
    has_failed: bool,
    /// It has ended: others may have ended, too.
    has_ended: bool,
    /// A worker has failed at a call with them. The next one is to say at which row it is.
    is_watched: bool,
}

/// So few rows or groups are those of a slow function: that a worker says at which it is takes no time beside.
const ALWAYS_WATCHED: usize = 64;

impl Part {
    /// How many pieces can be computed apart.
    fn pieces(&self, work: &Work) -> usize {
        let rules = work.pool.rules();
        match rules.per {
            Per::Group => self.ends.len(),
            Per::Row => self.rows.num_rows(),
            _ if rules.deterministic => self.rows.num_rows(),
            _ => 1,
        }
    }

    /// The rows of some of its pieces.
    fn rows_of(&self, pieces: Range<usize>) -> Range<usize> {
        match self.ends.is_empty() {
            true => pieces,
            false => {
                let start = pieces.start.checked_sub(1).map_or(0, |before| self.ends[before]);
                start..pieces.end.checked_sub(1).map_or(0, |last| self.ends[last])
            }
        }
    }

    /// How many rows the piece `piece` has, of which a worker speaks.
    fn rows_at(&self, piece: Option<u32>) -> usize {
        piece.map_or(self.rows.num_rows(), |piece| self.rows_of(piece as usize..piece as usize + 1).len())
    }

    /// Some of its pieces, which follow each other.
    fn slice(&self, pieces: Range<usize>) -> Part {
        let rows = self.rows_of(pieces.clone());
        let ends = self.ends.get(pieces).unwrap_or_default().iter().map(|end| end - rows.start).collect();
        Part { rows: self.rows.slice(rows.start, rows.len()), ends }
    }

    /// Some of its pieces.
    fn some(&self, pieces: &[u32]) -> Result<Part> {
        let (mut rows, mut ends) = (Vec::new(), Vec::new());
        for piece in pieces {
            let part = self.slice(*piece as usize..*piece as usize + 1);
            let before = ends.last().copied().unwrap_or(0);
            ends.extend(part.ends.iter().map(|end| before + end));
            rows.push(part.rows);
        }
        let rows = concat_batches(&self.rows.schema(), &rows).map_err(unfit)?;
        Ok(Part { rows, ends })
    }
}

impl Work {
    /// The rows for those of `part`.
    ///
    /// # Errors
    /// If a worker fails at a row that may not be left out, or cannot be started.
    pub async fn rows(&self, part: Part) -> Result<Vec<RecordBatch>> {
        let (mut parts, mut done) = (vec![(part, Tried::default())], Vec::new());
        // The last part comes first.
        while let Some((part, tried)) = parts.pop() {
            let part = if tried.has_failed { part } else { self.cut(part, tried, &mut parts) };
            if tried.is_watched {
                self.pool.counters().add_retry();
            }
            let asked = self.asked(&part.rows)?;
            let is_watched = tried.is_watched || (2..=ALWAYS_WATCHED).contains(&part.pieces(self));
            let called = self.pool.call(&asked, &part.ends, tried.has_ended, is_watched).await;
            let answer = match called.map_err(|error| error.in_step(self.pool.step()))? {
                Ok(answer) => answer,
                Err(failed) => {
                    self.again(part, tried, true, failed, &mut parts)?;
                    continue;
                }
            };
            let mut failures = Vec::new();
            let mut whole = None;
            for failure in &answer.failures {
                match failure.part {
                    Some(piece) => failures.push((piece, failure.error.clone())),
                    None => whole = Some(failure.error.clone()),
                }
            }
            if let Some(error) = whole {
                self.again(part, tried, false, Failed { error, at: None }, &mut parts)?;
                continue;
            }
            failures.sort_by_key(|(piece, _)| *piece);
            if !tried.has_failed && !failures.is_empty() {
                let pieces: Vec<u32> = failures.iter().map(|(piece, _)| *piece).collect();
                parts.push((part.some(&pieces)?, Tried { has_failed: true, has_ended: false, is_watched: true }));
            } else {
                for (piece, error) in failures {
                    self.reject(&part.slice(piece as usize..piece as usize + 1), &error)?;
                }
            }
            let failed: usize = answer.failures.iter().map(|failure| part.rows_at(failure.part)).sum();
            let rows = self.beside(&part.rows, answer)?;
            let (answered, given) = ((part.rows.num_rows() - failed) as u64, rows.num_rows() as u64);
            self.pool.counters().add_answered(answered);
            self.pool.counters().add_given(given);
            self.went.answered.fetch_add(answered, Ordering::Relaxed);
            self.went.given.fetch_add(given, Ordering::Relaxed);
            if rows.num_rows() > 0 {
                done.push(rows);
            }
        }
        Ok(done)
    }

    /// `rows`, cut between those that no answer may be for together: it could not be told where its rows are from.
    pub fn apart(&self, rows: RecordBatch) -> Vec<RecordBatch> {
        let Some(carried) = self.carried.as_ref().filter(|_| self.pool.rules().per == Per::Batch) else {
            return vec![rows];
        };
        let ends = carried.ends(rows.column(self.width));
        let starts = [0].into_iter().chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, end)| rows.slice(start, end - start)).collect()
    }

    /// The columns of `rows` that the workers take.
    pub fn asked(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        rows.project(&(0..self.width).collect::<Vec<_>>()).map_err(unfit)
    }

    /// Cuts the rows of one call from the front of `part`, if there are more: calls may have become slow since.
    fn cut(&self, part: Part, tried: Tried, parts: &mut Vec<(Part, Tried)>) -> Part {
        let Part { rows, ends } = part;
        let mut rest = Some(rows.clone());
        let call = self.pool.call_rows().cut(&mut rest).unwrap_or(rows);
        parts.extend(rest.map(|rows| (Part { rows, ends: Vec::new() }, tried)));
        Part { rows: call, ends }
    }

    /// What is done about `part`, at which a worker has failed as a whole and, if `has_ended`, has ended.
    fn again(
        &self,
        part: Part,
        tried: Tried,
        has_ended: bool,
        failed: Failed,
        parts: &mut Vec<(Part, Tried)>,
    ) -> Result<()> {
        let pieces = part.pieces(self);
        let now = Tried { has_failed: true, has_ended, is_watched: true };
        let at = failed.at.map(|at| at as usize).filter(|at| pieces > 1 && *at < pieces);
        match at {
            Some(at) => {
                let beside = Tried { is_watched: true, ..Tried::default() };
                let of = [(at + 1..pieces, beside), (at..at + 1, now), (0..at, beside)];
                let some = of.into_iter().filter(|(pieces, _)| !pieces.is_empty());
                parts.extend(some.map(|(pieces, tried)| (part.slice(pieces), tried)));
            }
            None if !tried.has_failed => parts.push((part, now)),
            None if pieces > 1 => {
                parts.push((part.slice(pieces / 2..pieces), now));
                parts.push((part.slice(0..pieces / 2), now));
            }
            None => self.reject(&part, &failed.error).inspect_err(|error| {
                let row = self.asked(&part.rows).ok().filter(|row| has_ended && row.num_rows() == 1);
                row.iter().for_each(|row| self.lost.add(row, error));
            })?,
        }
        Ok(())
    }

    /// Leaves the rows of `part` out. Of several nobody knows which one is to blame.
    fn reject(&self, part: &Part, error: &Error) -> Result<()> {
        let step = self.pool.step();
        for row in 0..part.rows.num_rows() {
            let row = part.rows.slice(row, 1);
            let error = match part.rows.num_rows() {
                1 => self.with_text(&row, error.clone())?,
                _ => error.clone(),
            };
            let error = error.in_step(step);
            let Some((taker, _)) = &self.taker else {
                return Err(if self.is_entry { allowing(error, &Entry::Step(step.to_owned())) } else { error });
            };
            taker.take(step, &row, error)?;
            self.went.failed.fetch_add(1, Ordering::Relaxed);
            self.pool.counters().add_failed(1);
        }
        Ok(())
    }

    /// `error` with `row`, a batch of one, as its text. What was given for it, if that was the text, becomes a part of
    /// the cause.
    fn with_text(&self, row: &RecordBatch, error: Error) -> Result<Error> {
        let Some(text) = json_of(&self.asked(row)?) else { return Ok(error) };
        let given = error.offending_text().map(|given| format!("given for it: {given}"));
        let cause: Vec<String> = given.into_iter().chain(error.cause_text().map(str::to_owned)).collect();
        let error = error.text(text.to_string());
        Ok(if cause.is_empty() { error } else { error.cause(cause.join("\n")) })
    }

    /// The rows of `answer` with what they keep of `part`, and what is carried.
    fn beside(&self, part: &RecordBatch, answer: Answer) -> Result<RecordBatch> {
        let count = answer.rows.num_rows();
        let mut columns: Vec<ArrayRef> = answer.rows.columns().to_vec();
        let origins = answer.origins.unwrap_or_else(|| UInt32Array::from(vec![0; count]));
        for column in &self.keep {
            columns.push(take(part.column(*column), &origins, None).map_err(unfit)?);
        }
        for column in &part.columns()[self.width..] {
            let told = self.carried.as_ref().filter(|_| self.pool.rules().per != Per::Row && part.num_rows() > 0);
            let column = told.map_or_else(|| Ok(Arc::clone(column)), |carried| carried.together(column))?;
            columns.push(take(&column, &origins, None).map_err(unfit)?);
        }
        let carried = part.schema().fields().iter().skip(self.width).cloned().collect::<Vec<_>>();
        let fields: Vec<Arc<Field>> = self.schema.fields().iter().cloned().chain(carried).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).map_err(unfit)
    }
}

pub(super) fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("the columns of a worker's rows do not fit together").cause(cause)
}

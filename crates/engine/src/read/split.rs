//! Parses one long text on several cores.
//!
//! ```text
//!  text ─▶ splitter ─▶ pieces ─┬─▶ first parser ─ learns the header ─ fork ─┐
//!                              ├─▶ fork: by whoever reads the unit          ├─▶ rows and rejects, in order
//!                              └─▶ fork: by someone idle                    ┘
//! ```
//! Where a piece ends is the format's business; here is who parses it, and the order of what comes out.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::crew::{Crew, Shared};
use millstream_core::format::{Parsed, Parser, Splitter, TextPiece};
use millstream_core::{Error, Result, Step};

/// Pieces that are parsed or wait for it, for each idle task: one being parsed, one to go on with.
const AHEAD: usize = 2;

/// The least text of a piece, in what is pushed into a parser at once.
const PIECE: usize = 2;

/// The parsers of one text.
pub struct SplitParser {
    splitter: Box<dyn Splitter>,
    /// Parses until it can be forked; then a copy to fork from.
    parser: Box<dyn Parser>,
    forked: bool,
    /// The most that is pushed into a parser at once.
    push_bytes: usize,
    /// Results that are not handed on yet, in the order of the text.
    results: VecDeque<Outcome>,
    crew: Arc<dyn Crew>,
    step: Arc<Step>,
}

enum Outcome {
    Here(Result<Parsed>),
    Elsewhere(Shared<Result<Parsed>>),
}

impl SplitParser {
    /// Nothing has been pushed. At most `push_bytes` are handed to a parser at once; time is counted in `step`.
    pub fn new(
        splitter: Box<dyn Splitter>,
        parser: Box<dyn Parser>,
        push_bytes: usize,
        crew: Arc<dyn Crew>,
        step: Arc<Step>,
    ) -> Self {
        SplitParser { splitter, parser, forked: false, push_bytes, results: VecDeque::new(), crew, step }
    }

    /// Takes the next text and adds to `parsed` what is ready.
    pub fn push(&mut self, text: Bytes, parsed: &mut Parsed) -> Result<()> {
        let mut pieces = Vec::new();
        let (splitter, size) = (&mut self.splitter, PIECE * self.push_bytes);
        self.step.busy(|| splitter.push(text, size, &mut pieces));
        pieces.into_iter().try_for_each(|piece| self.piece(piece, parsed))
    }

    /// The text is complete.
    pub fn finish(&mut self, parsed: &mut Parsed) -> Result<()> {
        let mut pieces = Vec::new();
        self.splitter.finish(&mut pieces);
        pieces.into_iter().try_for_each(|piece| self.piece(piece, parsed))?;
        while let Some(outcome) = self.results.pop_front() {
            append(parsed, outcome.get()?);
        }
        match self.forked {
            true => Ok(()),
            false => self.parser.finish(parsed),
        }
    }

    fn piece(&mut self, piece: TextPiece, parsed: &mut Parsed) -> Result<()> {
        if !self.forked {
            match self.parser.fork(piece.place) {
                None => {
                    let (parser, size) = (&mut self.parser, self.push_bytes);
                    let push = || cut(piece.text, size).try_for_each(|text| parser.push(text, parsed));
                    return self.step.busy(push);
                }
                Some(fork) => {
                    let mut first = std::mem::replace(&mut self.parser, fork);
                    self.step.busy(|| first.finish(parsed))?;
                    self.forked = true;
                }
            }
        }
        let parser = self.parser.fork(piece.place).ok_or_else(|| Error::internal("a fork cannot be forked"))?;
        let (step, size) = (Arc::clone(&self.step), self.push_bytes);
        let work = move || step.busy(|| parse(parser, piece, size));
        let idle = self.crew.idle();
        self.results.push_back(match idle > 0 {
            true => Outcome::Elsewhere(Shared::offer(self.crew.as_ref(), work)),
            false => Outcome::Here(work()),
        });
        while let Some(first) = self.results.front() {
            // What nobody has begun when there is enough waiting is done here.
            if !first.is_ready() && self.results.len() <= AHEAD * idle.max(1) {
                break;
            }
            if let Some(first) = self.results.pop_front() {
                append(parsed, first.get()?);
            }
        }
        Ok(())
    }
}

impl Outcome {
    fn is_ready(&self) -> bool {
        match self {
            Outcome::Here(_) => true,
            Outcome::Elsewhere(shared) => shared.is_done(),
        }
    }

    fn get(self) -> Result<Parsed> {
        match self {
            Outcome::Here(result) => result,
            Outcome::Elsewhere(shared) => {
                shared.take().unwrap_or_else(|| Err(Error::internal("a task that helped to parse has failed")))
            }
        }
    }
}

fn parse(mut parser: Box<dyn Parser>, piece: TextPiece, size: usize) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    cut(piece.text, size).try_for_each(|text| parser.push(text, &mut parsed))?;
    parser.finish(&mut parsed)?;
    Ok(parsed)
}

fn append(parsed: &mut Parsed, more: Parsed) {
    parsed.rows.extend(more.rows);
    parsed.rejects.extend(more.rejects);
}

/// Texts in pieces about as large as a batch. The texts of a batch are views, and whoever holds it is charged for all
/// of the pieces they point into: with larger pieces several batches would each be charged for the same one.
pub fn cut(texts: Vec<Bytes>, size: usize) -> impl Iterator<Item = Bytes> {
    texts.into_iter().flat_map(move |text| {
        (0..text.len().div_ceil(size)).map(move |index| text.slice(index * size..((index + 1) * size).min(text.len())))
    })
}

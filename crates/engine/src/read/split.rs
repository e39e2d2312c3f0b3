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
use millstream_core::format::{Parsed, Parser, Splitter, TextPiece};
use millstream_core::helpers::{HelperPool, Shared};
use millstream_core::{Error, Result, Step};

/// Pieces that are parsed or wait for it, for each idle task: one being parsed, one to go on with.
const AHEAD: usize = 2;

/// The least text of a piece, in what is pushed into a parser at once.
const PIECE: usize = 2;

/// The parsers of one text.
pub struct SplitParser {
    splitter: Box<dyn Splitter>,
    /// The most that is pushed into a parser at once.
    push_bytes: usize,
    /// Whether the text is complete.
    complete: bool,
    /// Pieces that nobody has begun.
    pieces: VecDeque<TextPiece>,
    /// What is parsed here, before all that is in `results`: first the beginning, later what is left of a piece whose
    /// rejects were too many.
    current: Option<Part>,
    /// What has learned from the beginning.
    learned: Option<Box<dyn Parser>>,
    /// Results that are not handed on yet, in the order of the text.
    results: VecDeque<Outcome>,
    /// How many were idle when the last piece was begun.
    idle: usize,
    pool: Arc<dyn HelperPool>,
    step: Arc<Step>,
}

/// A part of the text with its parser.
struct Part {
    parser: Box<dyn Parser>,
    text: VecDeque<Bytes>,
    /// Whether `text` is the rest of it.
    complete: bool,
    /// Whether the parser has been told so.
    finished: bool,
}

/// What came out of a piece, and the piece itself if there is more to come.
type PartResult = Result<(Parsed, Option<Part>)>;

enum Outcome {
    Here(PartResult),
    Elsewhere(Shared<PartResult>),
}

impl SplitParser {
    /// Nothing has been pushed. At most `push_bytes` are handed to a parser at once; time is counted in `step`.
    pub fn new(
        splitter: Box<dyn Splitter>,
        parser: Box<dyn Parser>,
        push_bytes: usize,
        pool: Arc<dyn HelperPool>,
        step: Arc<Step>,
    ) -> Self {
        SplitParser {
            splitter,
            push_bytes,
            complete: false,
            pieces: VecDeque::new(),
            current: Some(Part { parser, text: VecDeque::new(), complete: false, finished: false }),
            learned: None,
            results: VecDeque::new(),
            idle: 0,
            pool,
            step,
        }
    }

    /// The same for a text whose beginning is not pushed: `learned` has learned from it.
    pub fn behind(
        splitter: Box<dyn Splitter>,
        learned: Box<dyn Parser>,
        push_bytes: usize,
        pool: Arc<dyn HelperPool>,
        step: Arc<Step>,
    ) -> Self {
        let (complete, idle) = (false, 0);
        let (pieces, results) = (VecDeque::new(), VecDeque::new());
        let (current, learned) = (None, Some(learned));
        SplitParser { splitter, push_bytes, complete, pieces, current, learned, results, idle, pool, step }
    }

    /// Takes the next text and adds to `parsed` what is ready. Where that becomes full, the rest waits for the next
    /// push, which may be one of no text.
    pub fn push(&mut self, text: Bytes, parsed: &mut Parsed) -> Result<()> {
        let mut pieces = Vec::new();
        let (splitter, size) = (&mut self.splitter, PIECE * self.push_bytes);
        self.step.busy(|| splitter.push(text, size, &mut pieces));
        self.pieces.extend(pieces);
        self.go_on(parsed)
    }

    /// The text is complete. What does not fit into `parsed` waits for a push of no text.
    pub fn finish(&mut self, parsed: &mut Parsed) -> Result<()> {
        let mut pieces = Vec::new();
        self.splitter.finish(&mut pieces);
        self.pieces.extend(pieces);
        self.complete = true;
        self.go_on(parsed)
    }

    /// Whether something waits for the next push.
    pub fn waits(&self) -> bool {
        let to_end = self.complete && (self.current.is_some() || !self.results.is_empty());
        to_end || !self.pieces.is_empty() || self.current.as_ref().is_some_and(|part| !part.is_idle())
    }

    fn go_on(&mut self, parsed: &mut Parsed) -> Result<()> {
        while !parsed.is_full() {
            if let Some(part) = self.current.as_mut().filter(|part| !part.is_idle()) {
                self.step.busy(|| part.go_on(parsed))?;
                self.current.take_if(|part| part.finished);
            } else if let Some(first) = self.next_result() {
                let (more, rest) = first.get()?;
                parsed.append(more);
                self.current = rest;
            } else if let Some(piece) = self.pieces.pop_front() {
                self.begin(piece)?;
            } else if let Some(beginning) = self.current.as_mut().filter(|_| self.complete) {
                beginning.complete = true;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// The first of the results that wait, if it is to be handed on now.
    fn next_result(&mut self) -> Option<Outcome> {
        // What nobody has begun when there is enough waiting is done here.
        let enough = self.results.len() > AHEAD * self.idle.max(1) || (self.complete && self.pieces.is_empty());
        self.results.pop_front_if(|first| enough || first.is_ready())
    }

    fn begin(&mut self, piece: TextPiece) -> Result<()> {
        let Some(learned) = &self.learned else { return self.learn(piece) };
        let parser = learned.fork(piece.place).ok_or_else(|| Error::internal("a fork cannot be forked"))?;
        let text = cut(piece.text, self.push_bytes).collect();
        let mut part = Part { parser, text, complete: true, finished: false };
        let step = Arc::clone(&self.step);
        let work = move || {
            let mut parsed = Parsed::default();
            step.busy(|| part.go_on(&mut parsed))?;
            Ok((parsed, Some(part).filter(|part| !part.finished)))
        };
        self.idle = self.pool.idle();
        self.results.push_back(match self.idle > 0 {
            true => Outcome::Elsewhere(Shared::offer(self.pool.as_ref(), work)),
            false => Outcome::Here(work()),
        });
        Ok(())
    }

    /// The beginning is complete if enough has been learned from it; otherwise `piece` belongs to it.
    fn learn(&mut self, piece: TextPiece) -> Result<()> {
        let beginning = self.current.as_mut().ok_or_else(|| Error::internal("a text has no beginning"))?;
        self.learned = beginning.parser.fork(piece.place);
        if self.learned.is_some() {
            beginning.complete = true;
            self.pieces.push_front(piece);
        } else {
            beginning.text.extend(cut(piece.text, self.push_bytes));
        }
        Ok(())
    }
}

impl Part {
    /// Parses until `parsed` is full, or there is no more.
    fn go_on(&mut self, parsed: &mut Parsed) -> Result<()> {
        while !parsed.is_full() && !self.is_idle() {
            if self.parser.waits() {
                self.parser.push(Bytes::new(), parsed)?;
            } else if let Some(text) = self.text.pop_front() {
                self.parser.push(text, parsed)?;
            } else {
                self.finished = true;
                self.parser.finish(parsed)?;
            }
        }
        Ok(())
    }

    /// Whether there is nothing to do without more text.
    fn is_idle(&self) -> bool {
        self.finished || (!self.complete && self.text.is_empty() && !self.parser.waits())
    }
}

impl Outcome {
    fn is_ready(&self) -> bool {
        match self {
            Outcome::Here(_) => true,
            Outcome::Elsewhere(shared) => shared.is_done(),
        }
    }

    fn get(self) -> PartResult {
        match self {
            Outcome::Here(result) => result,
            Outcome::Elsewhere(shared) => {
                shared.take().unwrap_or_else(|| Err(Error::internal("a task that helped to parse has failed")))
            }
        }
    }
}

/// Texts in pieces about as large as a batch. The texts of a batch are views, and whoever holds it is charged for all
/// of the pieces they point into: with larger pieces several batches would each be charged for the same one.
pub fn cut(texts: Vec<Bytes>, size: usize) -> impl Iterator<Item = Bytes> {
    texts.into_iter().flat_map(move |text| {
        (0..text.len().div_ceil(size)).map(move |index| text.slice(index * size..((index + 1) * size).min(text.len())))
    })
}

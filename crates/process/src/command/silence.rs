//! A program that gives nothing, and does nothing: it waits for rows while its answer is awaited, or reads none.

use std::time::Duration;

use millstream_core::processes::{TreeUse, use_of_tree};
use millstream_core::program::Lines;
use millstream_core::spec::Duration as Time;
use millstream_core::transform::Per;
use millstream_core::{Error, Result};

use super::exchange::{Exchange, Records};
use super::worker::Command;
use crate::Child;

/// How long a program says nothing before it is looked at, and again between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Behind how many looks in a row at a program that does nothing it is given up: what waits for another machine, or
/// hands its rows on to a container, has an answer by then. Looks are counted, not the time: a machine may have been
/// stopped as a whole.
const MOST_LOOKS: u32 = 60;

/// The same where it is called with many rows at once.
const MOST_LOOKS_OF_MANY: u32 = 360;

/// A program that has less than one part in so many of the processor does nothing: timers of a runtime take as much.
const LEAST_SHARE: u32 = 500;

/// How long a program says nothing before it is looked at; in tests less.
fn look_every() -> Duration {
    #[cfg(debug_assertions)]
    if let Some(millis) = std::env::var("MILLSTREAM_LOOK_MS").ok().and_then(|millis| millis.parse().ok()) {
        return Duration::from_millis(millis);
    }
    LOOK_EVERY
}

/// How long a program has said nothing to rows that it was sent.
pub(super) struct Silence {
    pause: Duration,
    /// Looks in a row at which it did nothing.
    idle: u32,
    seen: Option<(TreeUse, u64)>,
    is_told: bool,
}

impl Silence {
    /// Begins now.
    pub fn new() -> Self {
        Silence { pause: look_every(), idle: 0, seen: None, is_told: false }
    }

    /// How long to wait before the next look.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// It has said something.
    pub fn end(&mut self) {
        (self.idle, self.seen) = (0, None);
    }

    /// Looks at `child`, the program of `command`, which has said nothing since the last look. Of `asked` answers it
    /// has given `answered`. Tells the user once, by `lines`.
    ///
    /// # Errors
    /// If it has done nothing for so long that it never will, and the job does not say how long it may take.
    pub fn look(
        &mut self,
        child: &Child,
        command: &Command,
        lines: &Lines,
        answered: usize,
        asked: usize,
    ) -> Result<()> {
        let unread = child.unread();
        if !self.is_told {
            self.is_told = true;
            let question = match (unread, command.per) {
                (1.., _) => "it has not read all rows: what does it wait for?",
                (0, Per::Row) => "does it write a record for each row, and write out what it has (flush)?",
                (0, _) => "does it write out what it has (flush)?",
            };
            let done = if unread > 0 { "it has" } else { "it has read all rows and" };
            lines(&format!("{done} not answered for {}: {question}", Time(self.pause)));
        }
        if command.is_timed {
            return Ok(());
        }
        let now = use_of_tree(child.id());
        let is_idle = self
            .seen
            .as_ref()
            .is_some_and(|(before, unread_before)| unread == *unread_before && is_idle(before, &now, self.pause));
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.seen = Some((now, unread));
        let most = match (command.per, &command.exchange) {
            // One that has not read its rows may wait for anything.
            (Per::Row, Exchange::Text(..)) if unread == 0 => MOST_LOOKS,
            _ => MOST_LOOKS_OF_MANY,
        };
        match self.idle >= most {
            true if unread > 0 => Err(never_read(command, self.pause * most)),
            true => Err(given_up(command, answered, asked, self.pause * most)),
            false => Ok(()),
        }
    }
}

/// Whether a program did nothing within `pause`. Time in which it could not have the processor counts as work, and so
/// does the start or end of a process.
fn is_idle(before: &TreeUse, now: &TreeUse, pause: Duration) -> bool {
    let had = |of: &TreeUse| of.processor.busy + of.processor.delayed;
    before.processes == now.processes && had(now).abs_diff(had(before)) < pause / LEAST_SHARE
}

/// The same for one that does not read.
fn never_read(command: &Command, time: Duration) -> Error {
    let what = format!("the program `{}` does not read its rows, and does nothing any more", command.program.name());
    let cause = format!("for {} it has read and written nothing, and used no processor time", Time(time));
    Error::refused(what).cause(cause).hint("what does it wait for? Set `timeout` if it may do so for so long")
}

/// Why the run does not wait any longer. It is no fault of a row: with others it would take as long again.
fn given_up(command: &Command, answered: usize, asked: usize, time: Duration) -> Error {
    let name = command.program.name();
    let what = match (command.per, asked) {
        (Per::Row, 1) => format!("the program `{name}` has given no record for a row, and does nothing any more"),
        (Per::Row, _) if matches!(command.exchange, Exchange::Text(..)) => {
            format!("the program `{name}` has given {answered} records for {asked} rows, and does nothing any more")
        }
        _ => format!("the program `{name}` has not ended its answer, and does nothing any more"),
    };
    let ends = match (command.per, &command.exchange) {
        (Per::Row, Exchange::Text(Records::Json, _)) => "it writes a record for each row, `null` for one to leave out",
        (Per::Row, Exchange::Text(Records::Csv, _)) => {
            "it writes a record for each row, an empty line for one to leave out"
        }
        (Per::Row, Exchange::Text(Records::Lines, _)) => "it writes a line for each row",
        (_, Exchange::Text(..)) => "it writes an empty line behind each answer",
        (Per::Row | Per::Batch, Exchange::Arrow) => "it writes a batch for each batch",
        (_, Exchange::Arrow) => "it writes an empty batch behind each answer",
    };
    let cause = format!("for {} it has written nothing and used no processor time; it has read all rows", Time(time));
    let rest = "and writes out what it has (flush). Set `timeout` if it waits for something else for so long";
    Error::refused(what).cause(cause).hint(format!("{ends}, {rest}"))
}

#[cfg(test)]
mod tests {
    use millstream_core::threads::ProcessorUse;

    use super::*;

    #[test]
    fn a_program_that_works_or_waits_for_the_processor_is_not_idle() {
        let of = |processes: &[i32], busy: u64, delayed: u64| TreeUse {
            processes: processes.to_vec(),
            processor: ProcessorUse { busy: Duration::from_millis(busy), delayed: Duration::from_millis(delayed) },
        };
        let before = of(&[7, 8], 1000, 50);
        let is_idle = |now: &TreeUse| is_idle(&before, now, LOOK_EVERY);
        assert!(is_idle(&before));
        assert!(is_idle(&of(&[7, 8], 1010, 51)), "timers");
        assert!(!is_idle(&of(&[7, 8], 1020, 50)), "it computes");
        assert!(!is_idle(&of(&[7, 8], 1000, 90)), "others have the processor");
        assert!(!is_idle(&of(&[7, 9], 1000, 50)), "it starts programs");
        assert!(!is_idle(&of(&[7], 900, 50)), "one has ended");
    }
}

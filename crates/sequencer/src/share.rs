//! How much memory a job of a sequence gets: what it reserves, or a fair part of the rest.

use std::collections::BTreeMap;

use millstream_engine::memory::LEAST_MEMORY;
use millstream_job::sequence::model::Action;
use millstream_job::sequence::{Sequence, StepState};

use crate::progress::Progress;

/// The memory of the machine, and who has how much of it.
#[derive(Debug)]
pub(crate) struct Memory {
    all: u64,
    /// By step and part.
    given: BTreeMap<(usize, usize), u64>,
    /// The most processes with memory of their own that run together.
    most: usize,
}

impl Memory {
    /// That of a machine with `all` bytes and `cores`.
    pub(crate) fn new(all: u64, cores: usize) -> Self {
        let fitting = usize::try_from(all / LEAST_MEMORY).unwrap_or(usize::MAX);
        Memory { all, given: BTreeMap::new(), most: cores.max(2).min(fitting).max(1) }
    }

    /// What part `part` of step `step` gets, from now on until [`Memory::give_back`]; `None` if it has to wait. One
    /// that runs alone always gets something.
    pub(crate) fn take(
        &mut self,
        sequence: &Sequence,
        progress: &Progress,
        (step, part): (usize, usize),
    ) -> Option<u64> {
        let taken: u64 = self.given.values().sum();
        let free = self.all.saturating_sub(taken);
        let is_alone = self.given.is_empty();
        // What is kept running never gives its place back.
        let ends = |step: usize| !sequence.steps[step].keep_running;
        let running = self.given.keys().filter(|(step, _)| ends(*step)).count();
        if ends(step) && running >= self.most {
            return None;
        }
        let share = match sequence.steps[step].memory {
            Some(reserved) if reserved <= free || is_alone => reserved.min(self.all),
            Some(_) => return None,
            None => {
                let others = self.beside(sequence, progress, step).saturating_sub(1);
                let most = self.most.saturating_sub(running).max(1);
                let share = free / (others.min(most - 1) as u64 + 1);
                if share < LEAST_MEMORY && !is_alone {
                    return None;
                }
                share.max(LEAST_MEMORY)
            }
        };
        self.given.insert((step, part), share);
        Some(share)
    }

    /// What a part has; nothing, if it needs none.
    pub(crate) fn of(&self, part: (usize, usize)) -> u64 {
        self.given.get(&part).copied().unwrap_or_default()
    }

    /// Takes back what a part had.
    pub(crate) fn give_back(&mut self, part: (usize, usize)) {
        self.given.remove(&part);
    }

    /// How many processes that have not begun may run beside each other, one of `step` among them: those of steps that
    /// neither need it nor are needed by it, and the other items of its own loop.
    fn beside(&self, sequence: &Sequence, progress: &Progress, step: usize) -> usize {
        let (earlier, later) = (sequence.graph.earlier(step), sequence.graph.later(step));
        let waits = |other: usize| {
            let may_run = !progress.steps[other].state.is_over() && has_memory(sequence, other);
            if !may_run || earlier.contains(&other) || later.contains(&other) || sequence.steps[other].memory.is_some()
            {
                return 0;
            }
            let parallel = sequence.steps[other].for_each.as_ref().map_or(1, |for_each| for_each.parallel);
            let running = self.given.keys().filter(|(step, _)| *step == other).count();
            let is_over = |part: &crate::progress::Part| part.state != StepState::Waiting;
            let parts = &progress.steps[other].parts;
            let left = match parts.is_empty() {
                true => parallel,
                false => parts.iter().filter(|part| !is_over(part)).count(),
            };
            left.min(parallel.saturating_sub(running))
        };
        (0..sequence.steps.len()).map(waits).sum::<usize>().max(1)
    }
}

/// Whether a step has memory of its own: it starts a process of Millstream, or reserves some.
pub(crate) fn has_memory(sequence: &Sequence, step: usize) -> bool {
    let of = &sequence.steps[step];
    of.memory.is_some() || matches!(of.action, Action::Job(_) | Action::Sequence(_))
}

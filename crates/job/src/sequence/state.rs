//! What comes next in a sequence: pure decisions over what its steps have come to. Nothing is started here.
//!
//! - A step is over when it has succeeded, has failed, was skipped by its own condition, or is not run because of a
//!   failure. The first and the third count as success, the others as failure.
//! - A step is decided when all steps that it needs are over. Its earlier steps are those that it needs, directly or
//!   not:
//!   a step that succeeds after a failure, such as an alarm, does not hide that failure from the steps behind it.
//! - Steps that do not need a failed step go on. A sequence has failed if any of its steps has.
//! - The items of a loop are steps of their own: one that fails does not keep the others from running.

use std::collections::BTreeMap;

use super::graph::Graph;
use super::model::{Sequence, When};

/// What a step has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepState {
    /// It is not decided yet.
    Waiting,
    /// It runs.
    Running,
    /// It ran and succeeded.
    Succeeded,
    /// It ran, or could not be decided, and failed.
    Failed,
    /// Its own condition did not hold.
    Skipped,
    /// An earlier step has failed.
    NotRun,
}

impl StepState {
    /// Whether nothing more happens to it.
    pub fn is_over(self) -> bool {
        !matches!(self, StepState::Waiting | StepState::Running)
    }

    /// Whether it counts as a failure.
    pub fn is_failure(self) -> bool {
        matches!(self, StepState::Failed | StepState::NotRun)
    }
}

/// When a step runs, as far as decisions need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// If no earlier step has failed.
    OnSuccess,
    /// If any earlier step has failed.
    OnFailure,
    /// In any case.
    Always,
    /// If no earlier step has failed and its SQL condition is true.
    OnCondition,
}

impl From<&When> for Starts {
    fn from(when: &When) -> Self {
        match when {
            When::Success => Starts::OnSuccess,
            When::Failure => Starts::OnFailure,
            When::Always => Starts::Always,
            When::Condition(_) => Starts::OnCondition,
        }
    }
}

/// What comes next. The lists are in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Steps that may start now.
    pub start: Vec<usize>,
    /// Steps whose condition has to be evaluated now: one for which it is true may start, others are skipped. One whose
    /// condition cannot be evaluated has failed.
    pub ask: Vec<usize>,
    /// Steps that are skipped now: they are for failures, and there was none.
    pub skip: Vec<usize>,
    /// Steps that are not run because of a failure.
    pub not_run: Vec<usize>,
    /// What the sequence has come to, once all its steps are over.
    pub outcome: Option<Outcome>,
}

/// What a sequence has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No step has failed.
    Succeeded,
    /// A step has failed, or was not run because another one had.
    Failed,
}

/// What comes next after `states`, which has one state for each step of `graph`, as `starts` has.
pub fn decide(graph: &Graph, starts: &[Starts], states: &[StepState]) -> Decision {
    let mut decision = Decision::default();
    let mut states = states.to_vec();
    let mut failed_before = vec![false; graph.len()];
    for &step in graph.order() {
        let needs = graph.needs(step);
        failed_before[step] = needs.iter().any(|&need| states[need].is_failure() || failed_before[need]);
        if states[step] != StepState::Waiting || !needs.iter().all(|&need| states[need].is_over()) {
            continue;
        }
        // Steps behind it are decided in the same pass.
        match (starts[step], failed_before[step]) {
            (Starts::Always, _) | (Starts::OnSuccess, false) | (Starts::OnFailure, true) => decision.start.push(step),
            (Starts::OnCondition, false) => decision.ask.push(step),
            (Starts::OnFailure, false) => {
                states[step] = StepState::Skipped;
                decision.skip.push(step);
            }
            (Starts::OnSuccess | Starts::OnCondition, true) => {
                states[step] = StepState::NotRun;
                decision.not_run.push(step);
            }
        }
    }
    for list in [&mut decision.start, &mut decision.ask, &mut decision.skip, &mut decision.not_run] {
        list.sort_unstable();
    }
    if states.iter().all(|state| state.is_over()) {
        let has_failed = states.iter().any(|state| state.is_failure());
        decision.outcome = Some(if has_failed { Outcome::Failed } else { Outcome::Succeeded });
    }
    decision
}

/// The states with which a run goes on that ended with `states`: steps that have succeeded or were skipped stay so,
/// unless a step that they need, directly or not, runs again. What was done because of a failure is decided anew.
pub fn resumed(graph: &Graph, states: &[StepState]) -> Vec<StepState> {
    let is_open = |state: &StepState| state.is_failure() || !state.is_over();
    let open: Vec<usize> = (0..states.len()).filter(|&step| is_open(&states[step])).collect();
    restarted(graph, states, &open)
}

/// The same states, but that `steps` and all behind them run again.
pub fn restarted(graph: &Graph, states: &[StepState], steps: &[usize]) -> Vec<StepState> {
    let mut again = states.to_vec();
    let mut left = steps.to_vec();
    let mut seen = vec![false; states.len()];
    while let Some(step) = left.pop() {
        if !std::mem::replace(&mut seen[step], true) {
            again[step] = StepState::Waiting;
            left.extend(graph.followers(step));
        }
    }
    again
}

/// The states with which `steps` run alone, as if all others had nothing to do.
pub fn only(graph: &Graph, steps: &[usize]) -> Vec<StepState> {
    let state = |step| if steps.contains(&step) { StepState::Waiting } else { StepState::Skipped };
    (0..graph.len()).map(state).collect()
}

/// What comes next in a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemsDecision {
    /// Items that may start now, in their order.
    pub start: Vec<usize>,
    /// What the step has come to, once all its items are over.
    pub state: Option<StepState>,
}

/// What comes next in a loop whose items have these states, and of which `parallel` run together.
pub fn decide_items(states: &[StepState], parallel: usize) -> ItemsDecision {
    let running = states.iter().filter(|state| **state == StepState::Running).count();
    let waiting = (0..states.len()).filter(|&item| states[item] == StepState::Waiting);
    let start = waiting.take(parallel.max(1).saturating_sub(running)).collect();
    let has_failed = states.iter().any(|state| state.is_failure());
    let state = if has_failed { StepState::Failed } else { StepState::Succeeded };
    ItemsDecision { start, state: states.iter().all(|state| state.is_over()).then_some(state) }
}

/// Which of `candidates` may start, by their places in the list, if each is in the pool that it names. `running` counts
/// what runs in each pool, and `sizes` has the most that may. Candidates that come first go first; a full pool holds
/// back its own only.
pub fn admitted(
    candidates: &[Option<&str>],
    running: &BTreeMap<String, usize>,
    sizes: &BTreeMap<String, usize>,
) -> Vec<usize> {
    let mut taken: BTreeMap<&str, usize> = running.iter().map(|(pool, count)| (pool.as_str(), *count)).collect();
    let mut admitted = Vec::new();
    for (place, pool) in candidates.iter().enumerate() {
        let limit = pool.and_then(|pool| Some((pool, sizes.get(pool)?)));
        if let Some((pool, size)) = limit {
            let taken = taken.entry(pool).or_default();
            if *taken >= *size {
                continue;
            }
            *taken += 1;
        }
        admitted.push(place);
    }
    admitted
}

impl Sequence {
    /// What comes next after `states`, which has one state for each step.
    pub fn decide(&self, states: &[StepState]) -> Decision {
        let starts: Vec<Starts> = self.steps.iter().map(|step| Starts::from(&step.when)).collect();
        decide(&self.graph, &starts, states)
    }
}

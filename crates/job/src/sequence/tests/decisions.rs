//! What comes next, for every graph of three steps with every `when` and every result.

use std::collections::BTreeMap;

use super::numbers;
use crate::sequence::graph::Graph;
use crate::sequence::state::{
    Decision, Outcome, Starts, StepState, admitted, decide, decide_items, only, restarted, resumed,
};

use StepState::{Failed, NotRun, Running, Skipped, Succeeded, Waiting};

const STARTS: [Starts; 4] = [Starts::OnSuccess, Starts::OnFailure, Starts::Always, Starts::OnCondition];

/// What happens to a step once it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Result {
    Good,
    Bad,
    /// Its condition is false, if it has one; otherwise it succeeds.
    ConditionFalse,
    /// Its condition cannot be evaluated, if it has one; otherwise it fails.
    ConditionFails,
}

const RESULTS: [Result; 4] = [Result::Good, Result::Bad, Result::ConditionFalse, Result::ConditionFails];

/// The rules, as they are written down: what each step comes to, one after the other.
fn expected(needs: &[Vec<usize>], starts: &[Starts], results: &[Result]) -> Vec<StepState> {
    let mut states: Vec<StepState> = Vec::new();
    for step in 0..needs.len() {
        // In these graphs steps need only those with smaller numbers.
        let mut earlier = needs[step].clone();
        let mut next = 0;
        while next < earlier.len() {
            earlier.extend(needs[earlier[next]].clone());
            next += 1;
        }
        let has_failure = earlier.iter().any(|&one| matches!(states[one], Failed | NotRun));
        let run = match results[step] {
            Result::Good | Result::ConditionFalse => Succeeded,
            Result::Bad | Result::ConditionFails => Failed,
        };
        states.push(match (starts[step], has_failure) {
            (Starts::OnSuccess, true) | (Starts::OnCondition, true) => NotRun,
            (Starts::OnFailure, false) => Skipped,
            (Starts::OnCondition, false) if results[step] == Result::ConditionFalse => Skipped,
            _ => run,
        });
    }
    states
}

/// Runs steps by decisions. Of those that run, the one that `pick` chooses ends first.
fn run(
    graph: &Graph,
    starts: &[Starts],
    results: &[Result],
    mut states: Vec<StepState>,
    pick: fn(&[usize]) -> usize,
) -> (Vec<StepState>, Outcome) {
    for _ in 0..100 {
        let decision = decide(graph, starts, &states);
        let Decision { start, ask, skip, not_run, outcome } = &decision;
        for step in start.iter().chain(ask) {
            assert!(
                graph
                    .needs(*step)
                    .iter()
                    .all(|need| states[*need].is_over() || skip.contains(need) || not_run.contains(need))
            );
        }
        skip.iter().for_each(|step| states[*step] = Skipped);
        not_run.iter().for_each(|step| states[*step] = NotRun);
        start.iter().for_each(|step| states[*step] = Running);
        for &step in ask {
            states[step] = match results[step] {
                Result::ConditionFalse => Skipped,
                Result::ConditionFails => Failed,
                _ => Running,
            };
        }
        if let Some(outcome) = outcome {
            assert!(states.iter().all(|state| state.is_over()) && start.is_empty() && ask.is_empty());
            return (states, *outcome);
        }
        let running: Vec<usize> = (0..states.len()).filter(|step| states[*step] == Running).collect();
        if running.is_empty() {
            // Conditions were evaluated; decide again.
            assert!(!ask.is_empty(), "nothing runs, and it is not over: {states:?}");
            continue;
        }
        let ended = running[pick(&running)];
        let is_good = matches!(results[ended], Result::Good | Result::ConditionFalse);
        states[ended] = if is_good { Succeeded } else { Failed };
    }
    panic!("no end: {states:?}");
}

/// All lists of `length` items of `items`.
fn lists<T: Copy>(items: &[T], length: usize) -> Vec<Vec<T>> {
    (0..length).fold(vec![Vec::new()], |lists, _| {
        lists.iter().flat_map(|list| items.iter().map(|item| [&list[..], &[*item]].concat())).collect()
    })
}

fn check(needs: &[Vec<usize>], possible: &[Result]) -> usize {
    let graph = Graph::new(needs.to_vec()).expect("no cycle");
    let mut count = 0;
    for starts in lists(&STARTS, needs.len()) {
        for results in lists(possible, needs.len()) {
            let wanted = expected(needs, &starts, &results);
            let has_failed = wanted.iter().any(|state| matches!(state, Failed | NotRun));
            let outcome = if has_failed { Outcome::Failed } else { Outcome::Succeeded };
            let first = run(&graph, &starts, &results, vec![Waiting; needs.len()], |_| 0);
            let last = run(&graph, &starts, &results, vec![Waiting; needs.len()], |running| running.len() - 1);
            let place = format!("{needs:?} {starts:?} {results:?}");
            assert_eq!(first, (wanted.clone(), outcome), "{place}");
            assert_eq!(last, first, "{place}");
            check_resume(&graph, &starts, &results, &wanted, &place);
            count += 1;
        }
    }
    count
}

/// A run that goes on after a failure, and in which all steps are good then, ends as one in which they were good from
/// the beginning; and what has succeeded before a failure does not run again.
fn check_resume(graph: &Graph, starts: &[Starts], results: &[Result], ended: &[StepState], place: &str) {
    let again = resumed(graph, ended);
    let mended: Vec<Result> = results
        .iter()
        .map(|result| match result {
            Result::Bad | Result::ConditionFails => Result::Good,
            other => *other,
        })
        .collect();
    let whole = run(graph, starts, &mended, vec![Waiting; graph.len()], |_| 0);
    assert_eq!(run(graph, starts, &mended, again.clone(), |_| 0), whole, "{place}");
    for step in 0..graph.len() {
        let earlier = graph.earlier(step);
        let is_touched = earlier.iter().any(|&one| ended[one].is_failure()) || ended[step].is_failure();
        assert_eq!(again[step] == Waiting, is_touched, "{place}: step {step}");
    }
}

#[test]
fn every_graph_of_three_steps_with_every_when_and_every_result() {
    let mut count = 0;
    for edges in lists(&[false, true], 3) {
        let need = |edge: usize, step: usize| edges[edge].then_some(step);
        let needs = [vec![], need(0, 0).into_iter().collect(), need(1, 0).into_iter().chain(need(2, 1)).collect()];
        count += check(&needs, &RESULTS);
    }
    assert_eq!(count, 8 * 64 * 64);
}

#[test]
fn a_diamond_with_every_when() {
    assert_eq!(check(&[vec![], vec![0], vec![0], vec![1, 2]], &RESULTS[..3]), 256 * 81);
}

/// The example of the documentation: load, rows, each, done, alarm.
fn nightly(states: &[StepState]) -> Decision {
    let graph = Graph::new(vec![vec![], vec![0], vec![1], vec![2], vec![3]]).expect("no cycle");
    let starts = [Starts::OnSuccess, Starts::OnSuccess, Starts::OnCondition, Starts::OnSuccess, Starts::OnFailure];
    decide(&graph, &starts, states)
}

#[test]
fn an_alarm_follows_a_failure_and_is_skipped_without_one() {
    let at_first = nightly(&[Waiting; 5]);
    assert_eq!(at_first, Decision { start: vec![0], ..Decision::default() });
    let failed = nightly(&[Failed, Waiting, Waiting, Waiting, Waiting]);
    assert_eq!(failed, Decision { start: vec![4], not_run: vec![1, 2, 3], ..Decision::default() });
    let decided = nightly(&[Failed, NotRun, NotRun, NotRun, Succeeded]);
    assert_eq!(decided, Decision { outcome: Some(Outcome::Failed), ..Decision::default() });
    let asked = nightly(&[Succeeded, Succeeded, Waiting, Waiting, Waiting]);
    assert_eq!(asked, Decision { ask: vec![2], ..Decision::default() });
    let no_rows = nightly(&[Succeeded, Succeeded, Skipped, Waiting, Waiting]);
    assert_eq!(no_rows.start, [3]);
    let good = nightly(&[Succeeded, Succeeded, Skipped, Succeeded, Waiting]);
    assert_eq!(good, Decision { skip: vec![4], outcome: Some(Outcome::Succeeded), ..Decision::default() });
}

#[test]
fn a_step_behind_an_alarm_knows_of_the_failure() {
    let graph = Graph::new(vec![vec![], vec![0], vec![1]]).expect("no cycle");
    let starts = [Starts::OnSuccess, Starts::OnFailure, Starts::OnSuccess];
    let decision = decide(&graph, &starts, &[Failed, Succeeded, Waiting]);
    assert_eq!((decision.not_run, decision.outcome), (vec![2], Some(Outcome::Failed)));
}

#[test]
fn independent_steps_go_on_after_a_failure() {
    let graph = Graph::new(vec![vec![], vec![], vec![1], vec![0, 2]]).expect("no cycle");
    let decision = decide(&graph, &[Starts::OnSuccess; 4], &[Failed, Succeeded, Waiting, Waiting]);
    assert_eq!(decision, Decision { start: vec![2], ..Decision::default() });
}

#[test]
fn a_sequence_without_steps_has_succeeded() {
    assert_eq!(decide(&Graph::default(), &[], &[]).outcome, Some(Outcome::Succeeded));
}

#[test]
fn steps_can_be_run_again_or_alone() {
    // 0 → 1 → 3, 0 → 2.
    let graph = Graph::new(vec![vec![], vec![0], vec![0], vec![1]]).expect("no cycle");
    let done = [Succeeded, Succeeded, Failed, Succeeded];
    assert_eq!(restarted(&graph, &done, &[1]), [Succeeded, Waiting, Failed, Waiting]);
    assert_eq!(restarted(&graph, &done, &[]), done);
    assert_eq!(resumed(&graph, &done), [Succeeded, Succeeded, Waiting, Succeeded]);
    // What ran when the machine went down runs again, and so does what comes behind it.
    assert_eq!(resumed(&graph, &[Running, Waiting, Skipped, Waiting]), [Waiting; 4]);
    assert_eq!(only(&graph, &[1]), [Skipped, Waiting, Skipped, Skipped]);
    let alone = decide(&graph, &[Starts::OnSuccess; 4], &only(&graph, &[3]));
    assert_eq!(alone, Decision { start: vec![3], ..Decision::default() });
}

#[test]
fn items_run_together_up_to_a_limit_and_do_not_stop_each_other() {
    let start = |states: &[StepState], parallel| decide_items(states, parallel).start;
    assert_eq!(start(&[Waiting; 4], 1), [0]);
    assert_eq!(start(&[Waiting; 4], 3), [0, 1, 2]);
    assert_eq!(start(&[Waiting; 4], 9), [0, 1, 2, 3]);
    assert_eq!(start(&[Succeeded, Running, Waiting, Waiting], 2), [2]);
    assert_eq!(start(&[Failed, Running, Waiting, Waiting], 3), [2, 3]);
    assert_eq!(start(&[Running, Running, Waiting], 2), [0; 0]);
    // Less than before, after a restart with another limit.
    assert_eq!(start(&[Running, Running, Waiting], 1), [0; 0]);
    assert_eq!(start(&[Waiting, Waiting], 0), [0]);
    let state = |states: &[StepState]| decide_items(states, 2).state;
    assert_eq!(state(&[]), Some(Succeeded));
    assert_eq!(state(&[Succeeded, Skipped]), Some(Succeeded));
    assert_eq!(state(&[Succeeded, Failed]), Some(Failed));
    assert_eq!(state(&[Failed, Running]), None);
    assert_eq!(state(&[Failed, Waiting]), None);
}

#[test]
fn a_full_pool_holds_back_its_own_steps_only() {
    let sizes = BTreeMap::from([("db".to_owned(), 2), ("web".to_owned(), 1)]);
    let running = BTreeMap::from([("db".to_owned(), 1)]);
    let candidates = [Some("db"), Some("db"), None, Some("web"), Some("web"), Some("no_limit"), None];
    assert_eq!(numbers(&admitted(&candidates, &running, &sizes)), numbers(&[0, 2, 3, 5, 6]));
    let full = BTreeMap::from([("db".to_owned(), 3)]);
    assert_eq!(admitted(&[Some("db"), None], &full, &sizes), [1]);
}

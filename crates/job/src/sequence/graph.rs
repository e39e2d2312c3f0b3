//! The graph of a sequence: which step needs which, in what order they can run, and which way through it is longest.
//!
//! Steps are numbers here, by their order in the file. Nothing recurses: a chain of any length is fine.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Steps and what they need, without a cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    needs: Vec<Vec<usize>>,
    followers: Vec<Vec<usize>>,
    order: Vec<usize>,
    layers: Vec<Vec<usize>>,
}

/// The longest way through a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// Its steps, from the first to the last.
    pub steps: Vec<usize>,
    /// How long they take together, in the unit of the durations.
    pub duration: u64,
}

impl Graph {
    /// The graph in which each step needs the steps in its list. Numbers that are no step do not count.
    ///
    /// # Errors The cycles. Each is once there, and begins with its first step in the file; each of its steps needs the
    /// next, and the last needs the first.
    pub fn new(needs: Vec<Vec<usize>>) -> Result<Self, Vec<Vec<usize>>> {
        let count = needs.len();
        let once = |list: Vec<usize>| -> Vec<usize> {
            let mut seen = BTreeSet::new();
            list.into_iter().filter(|step| *step < count && seen.insert(*step)).collect()
        };
        let needs: Vec<Vec<usize>> = needs.into_iter().map(once).collect();
        let mut followers = vec![Vec::new(); count];
        for (step, list) in needs.iter().enumerate() {
            list.iter().for_each(|needed| followers[*needed].push(step));
        }
        let order = order(&needs, &followers);
        if order.len() < count {
            return Err(cycles(&needs));
        }
        let layers = layers(&needs, &order);
        Ok(Graph { needs, followers, order, layers })
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.needs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    /// The steps that `step` needs directly.
    pub fn needs(&self, step: usize) -> &[usize] {
        &self.needs[step]
    }

    /// The steps that need `step` directly.
    pub fn followers(&self, step: usize) -> &[usize] {
        &self.followers[step]
    }

    /// All steps, each behind those that it needs, otherwise as in the file.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The steps in rows, as they are drawn: each is in the row behind the last of those that it needs.
    pub fn layers(&self) -> &[Vec<usize>] {
        &self.layers
    }

    /// The steps that `step` needs directly or indirectly.
    pub fn earlier(&self, step: usize) -> BTreeSet<usize> {
        numbers(&reached(&self.needs, step))
    }

    /// The steps that need `step` directly or indirectly.
    pub fn later(&self, step: usize) -> BTreeSet<usize> {
        numbers(&reached(&self.followers, step))
    }

    /// The longest way, if each step takes as long as `durations` says; those that it lacks take no time. Of several
    /// the one whose steps come first in the file.
    pub fn critical_path(&self, durations: &[u64]) -> CriticalPath {
        let mut until = vec![0_u64; self.len()];
        let mut before: Vec<Option<usize>> = vec![None; self.len()];
        for &step in &self.order {
            let longest = self.needs[step].iter().copied().max_by_key(|&need| (until[need], Reverse(need)));
            let start = longest.map_or(0, |need| until[need]);
            before[step] = longest;
            until[step] = start.saturating_add(durations.get(step).copied().unwrap_or(0));
        }
        // A way ends at a step that nothing needs: one that takes no time belongs to it, too.
        let ends = (0..self.len()).filter(|&step| self.followers[step].is_empty());
        let Some(last) = ends.max_by_key(|&step| (until[step], Reverse(step))) else { return CriticalPath::default() };
        let mut steps: Vec<usize> = std::iter::successors(Some(last), |&step| before[step]).collect();
        steps.reverse();
        CriticalPath { steps, duration: until[last] }
    }
}

/// For each step whether it can be reached from `start` over `edges`.
pub(crate) fn reached(edges: &[Vec<usize>], start: usize) -> Vec<bool> {
    let mut all = vec![false; edges.len()];
    let mut left: Vec<usize> = edges.get(start).cloned().unwrap_or_default();
    while let Some(step) = left.pop() {
        if !std::mem::replace(&mut all[step], true) {
            left.extend(&edges[step]);
        }
    }
    all
}

fn numbers(steps: &[bool]) -> BTreeSet<usize> {
    (0..steps.len()).filter(|step| steps[*step]).collect()
}

/// As many steps as can be ordered: those on cycles, and behind them, are left out.
fn order(needs: &[Vec<usize>], followers: &[Vec<usize>]) -> Vec<usize> {
    let mut open: Vec<usize> = needs.iter().map(Vec::len).collect();
    let ready = (0..needs.len()).filter(|&step| open[step] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(Reverse(step)) = ready.pop() {
        order.push(step);
        for &follower in &followers[step] {
            open[follower] -= 1;
            if open[follower] == 0 {
                ready.push(Reverse(follower));
            }
        }
    }
    order
}

fn layers(needs: &[Vec<usize>], order: &[usize]) -> Vec<Vec<usize>> {
    let mut row = vec![0; needs.len()];
    for &step in order {
        row[step] = needs[step].iter().map(|&need| row[need] + 1).max().unwrap_or(0);
    }
    let mut layers = vec![Vec::new(); row.iter().max().map_or(0, |last| last + 1)];
    row.iter().enumerate().for_each(|(step, &row)| layers[row].push(step));
    layers
}

/// The cycles that a walk along all needs closes: at least one of each tangle.
fn cycles(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let (mut found, mut done) = (Vec::new(), vec![false; needs.len()]);
    // Where the steps of the way are in it; it is empty between two starts.
    let mut place: Vec<Option<usize>> = vec![None; needs.len()];
    for start in 0..needs.len() {
        if done[start] {
            continue;
        }
        // The steps of the way, and how many of their needs are followed.
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        place[start] = Some(0);
        while let Some((step, next)) = way.last_mut() {
            let (step, need) = (*step, needs[*step].get(*next).copied());
            *next += 1;
            let Some(need) = need else {
                way.pop();
                place[step] = None;
                done[step] = true;
                continue;
            };
            if let Some(first) = place[need] {
                let cycle: Vec<usize> = way[first..].iter().map(|(step, _)| *step).collect();
                found.push(from_its_first(cycle));
            } else if !done[need] {
                place[need] = Some(way.len());
                way.push((need, 0));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The same cycle, beginning with its smallest number.
fn from_its_first(mut cycle: Vec<usize>) -> Vec<usize> {
    let first = (0..cycle.len()).min_by_key(|&index| cycle[index]).unwrap_or(0);
    cycle.rotate_left(first);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_behind_what_they_need_and_otherwise_as_in_the_file() {
        // 4 needs 3 and 0, 1 needs 2, 3 needs 1.
        let graph = Graph::new(vec![vec![], vec![2], vec![], vec![1], vec![3, 0, 3]]).expect("no cycle");
        assert_eq!(graph.order(), [0, 2, 1, 3, 4]);
        assert_eq!(graph.layers(), [vec![0, 2], vec![1], vec![3], vec![4]]);
        assert_eq!((graph.needs(4), graph.followers(1)), (&[3, 0][..], &[3][..]));
        assert_eq!(graph.earlier(4), BTreeSet::from([0, 1, 2, 3]));
        assert_eq!(graph.later(2), BTreeSet::from([1, 3, 4]));
        assert_eq!((graph.len(), graph.is_empty(), Graph::default().is_empty()), (5, false, true));
    }

    #[test]
    fn each_cycle_is_told_once() {
        assert_eq!(Graph::new(vec![vec![0]]), Err(vec![vec![0]]));
        // 3 → 1 → 2 → 3, 4 behind it, 5 → 6 → 5, 0 by itself.
        let needs = vec![vec![], vec![2], vec![3], vec![1], vec![3], vec![6], vec![5]];
        assert_eq!(Graph::new(needs), Err(vec![vec![1, 2, 3], vec![5, 6]]));
        // Two cycles that share a step.
        let needs = vec![vec![1, 2], vec![0], vec![0]];
        assert_eq!(Graph::new(needs), Err(vec![vec![0, 1], vec![0, 2]]));
    }

    #[test]
    fn the_critical_path_is_the_longest() {
        let graph = Graph::new(vec![vec![], vec![0], vec![0], vec![1, 2], vec![]]).expect("no cycle");
        let path = |durations: &[u64]| {
            let path = graph.critical_path(durations);
            (path.steps, path.duration)
        };
        assert_eq!(path(&[1, 5, 6, 1, 2]), (vec![0, 2, 3], 8));
        assert_eq!(path(&[1, 6, 6, 1, 2]), (vec![0, 1, 3], 8));
        assert_eq!(path(&[1, 1, 1, 1, 9]), (vec![4], 9));
        assert_eq!(path(&[]), (vec![0, 1, 3], 0));
        assert_eq!(path(&[u64::MAX, 1, 1, 0, 0]), (vec![0, 1, 3], u64::MAX));
        assert_eq!(Graph::default().critical_path(&[]), CriticalPath::default());
    }

    #[test]
    fn a_long_chain_and_a_long_cycle_are_followed() {
        let chain = |count: usize| -> Vec<Vec<usize>> {
            (0..count).map(|step| step.checked_sub(1).into_iter().collect()).collect()
        };
        let graph = Graph::new(chain(100_000)).expect("no cycle");
        assert_eq!((graph.layers().len(), graph.earlier(99_999).len()), (100_000, 99_999));
        let mut ring = chain(100_000);
        ring[0] = vec![99_999];
        assert_eq!(Graph::new(ring).expect_err("a cycle").iter().map(Vec::len).collect::<Vec<_>>(), [100_000]);
    }
}

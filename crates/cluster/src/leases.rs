//! Who reads what: bundles of units, leased to workers. A function of what happens and of the time, without a clock, a
//! network, or a thread.
//!
//! ```text
//!  listed ─▶ pool ─bundle─▶ leased ─▶ done             each unit is in one place
//!              ▲              │
//!              └─ again ◀─────┘ its worker is lost
//! ```
//! A bundle is taken by one worker at a time. The last ones may be taken over: by a second worker, while the first is
//! still at it. The first of them that is done counts, and the other is refused.
//!
//! Of a worker whose process has ended, the units that it was reading are suspects. Each is read in a bundle of its
//! own, by a worker that reads nothing else, so that the next loss shows whether it was to blame: a unit over which two
//! workers were lost ends the run with its name. A worker that has only fallen silent was hardly taken down by a unit:
//! what it was reading is suspected if another one was lost over it before. A worker that comes back was not taken down
//! at all: so the unit is held back for a while before it is judged. But one over which many have fallen silent is to
//! blame, whether they come back or not.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;

use crate::pool::{ListedUnit, Pool};

/// A worker, by the number that it got when it joined.
pub type Worker = u64;

/// A bundle, by its number. A number is never used twice.
pub type Bundle = u64;

/// A bundle is so large a part of what each slot would get of the units that wait: the last bundles are small, so that
/// all slots end at about the same time.
const PARTS: u64 = 3;

/// So many bytes a bundle has at least, if there are enough units: a worker fetches many small ones at once, and would
/// wait for one after the other in smaller bundles.
const FETCHED_AT_ONCE: u64 = 8 << 20;

/// How long a bundle should take, in milliseconds: short enough that a loss costs little, long enough that asking for
/// it costs nothing.
const LONGEST: u64 = 120_000;
const SHORTEST: u64 = 1_000;

/// The bytes a second of a slot, as long as nobody has measured them.
const FIRST_RATE: u64 = 20_000_000;

/// The most units of a bundle as long as nobody has measured how long they take: the worker that joins first would get
/// too many, as it is alone then.
const FIRST_UNITS: u64 = 32;

/// The most units of a bundle.
const MOST_UNITS: u64 = 100_000;

/// How many workers may be lost over a unit.
const MOST_LOSSES: usize = 2;

/// How many workers may fall silent while they read a unit, also if they come back.
const MOST_SILENCES: u64 = 5;

/// A bundle that runs so many times as long as it should is taken over, once it has run for this long.
const TAKEN_OVER_AFTER: (f64, u64) = (1.5, 3_000);

/// What a worker gets that asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These units.
    Read {
        /// The bundle.
        bundle: Bundle,
        /// Its units.
        units: Vec<ListedUnit>,
        /// Whether the target may have some of them.
        is_again: bool,
    },
    /// Nothing now: ask again later.
    Wait,
    /// Nothing any more.
    Finished,
}

/// Whether what a worker has made of a bundle counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts {
    /// It does. These are still at it, and can stop.
    Yes {
        /// The others.
        stop: Vec<Worker>,
    },
    /// Another was first, or the worker was believed to be lost.
    No,
}

/// A unit over which so many workers were lost that no other is to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadly(pub ListedUnit);

/// All that is leased, and what is not yet.
#[derive(Debug, Default)]
pub struct Leases {
    pool: Pool,
    listed: Listed,
    workers: BTreeMap<Worker, Slots>,
    leased: BTreeMap<Bundle, Lease>,
    /// Bundles of lost workers.
    again: VecDeque<Vec<ListedUnit>>,
    /// Units over which a worker was lost.
    suspects: VecDeque<ListedUnit>,
    /// Which workers were lost while they read a unit.
    losses: HashMap<(u32, String), BTreeSet<Worker>>,
    /// How many workers have fallen silent while they read a unit.
    silences: HashMap<(u32, String), u64>,
    /// Units over which so many workers were lost that no other is to try, unless some of them come back; and since
    /// when.
    held: Vec<(ListedUnit, u64)>,
    next: Bundle,
    done: Done,
}

/// What was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Listed {
    /// How many units.
    pub units: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// Whether that is all.
    pub is_all: bool,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// How many units.
    pub units: u64,
    /// How many bytes they had.
    pub bytes: u64,
    /// How many bundles they were in.
    pub bundles: u64,
    /// How long all of these took together, in milliseconds.
    pub milliseconds: u64,
}

#[derive(Debug)]
struct Slots {
    count: u64,
    /// Whether it gets no more: it is about to leave.
    is_leaving: bool,
    /// Whether nothing is heard of it.
    is_silent: bool,
    holds: BTreeSet<Bundle>,
}

#[derive(Debug)]
struct Lease {
    units: Vec<ListedUnit>,
    bytes: u64,
    /// Whether it is a suspect: who reads it reads nothing else.
    is_suspect: bool,
    /// Who is at it, and since when.
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    worker: Worker,
    since: u64,
    /// The positions of the units that it is reading, as it has said last.
    reading: Vec<usize>,
}

impl Leases {
    /// A unit was listed.
    ///
    /// # Errors
    /// If memory is short.
    pub fn add(&mut self, unit: ListedUnit) -> io::Result<()> {
        self.listed.units += unit.extent.files();
        self.listed.bytes = self.listed.bytes.saturating_add(unit.bytes);
        self.pool.add(unit)
    }

    /// There are no more units.
    pub fn all_listed(&mut self) {
        self.listed.is_all = true;
    }

    /// What was listed so far.
    pub fn listed(&self) -> Listed {
        self.listed
    }

    /// What is done so far.
    pub fn done(&self) -> Done {
        self.done
    }

    /// How many bundles are being read.
    pub fn bundles(&self) -> usize {
        self.leased.len()
    }

    /// How many bundles a worker reads.
    pub fn held_by(&self, worker: Worker) -> usize {
        self.workers.get(&worker).map_or(0, |slots| slots.holds.len())
    }

    /// Whether all is done.
    pub fn is_finished(&self) -> bool {
        let waits =
            self.pool.units() > 0 || !self.again.is_empty() || !self.suspects.is_empty() || !self.held.is_empty();
        self.listed.is_all && self.leased.is_empty() && !waits
    }

    /// All units that are not done.
    ///
    /// # Errors
    /// If packed units cannot be unpacked.
    pub fn into_left(mut self) -> io::Result<Vec<ListedUnit>> {
        let mut left = Vec::new();
        while self.pool.units() > 0 {
            left.extend(self.pool.take(u64::MAX, usize::MAX)?);
        }
        left.extend(self.again.into_iter().flatten());
        left.extend(self.suspects);
        left.extend(self.held.into_iter().map(|(unit, _)| unit));
        left.extend(self.leased.into_values().flat_map(|lease| lease.units));
        Ok(left)
    }

    /// A worker has come that does so much at once.
    pub fn join(&mut self, worker: Worker, slots: u64) {
        let slots = Slots { count: slots.max(1), is_leaving: false, is_silent: false, holds: BTreeSet::new() };
        self.workers.insert(worker, slots);
    }

    /// A worker is about to leave: it ends what it has, and gets no more.
    pub fn leave(&mut self, worker: Worker) {
        if let Some(slots) = self.workers.get_mut(&worker) {
            slots.is_leaving = true;
        }
    }

    /// A slot of a worker is free, `now`, in milliseconds.
    ///
    /// # Errors
    /// If packed units cannot be unpacked.
    pub fn ask(&mut self, worker: Worker, now: u64) -> io::Result<Answer> {
        if self.is_finished() {
            return Ok(Answer::Finished);
        }
        match self.workers.get(&worker) {
            None => return Ok(Answer::Finished),
            Some(slots) if slots.is_leaving && slots.holds.is_empty() => return Ok(Answer::Finished),
            Some(slots) if slots.is_leaving => return Ok(Answer::Wait),
            Some(_) => {}
        }
        if self.reads_suspect(worker) {
            return Ok(Answer::Wait);
        }
        let (mut is_again, mut is_suspect) = (true, false);
        let mut units = self.again.pop_front().unwrap_or_default();
        if units.is_empty() {
            let (bytes, most) = self.size();
            units = self.pool.take(bytes, most)?;
            is_again = units.iter().any(|unit| unit.is_known);
        }
        if units.is_empty() && self.held_by(worker) == 0 {
            units = self.suspects.pop_front().into_iter().collect();
            (is_again, is_suspect) = (true, true);
        }
        if units.is_empty() {
            return Ok(self.take_over(worker, now));
        }
        let bundle = self.next;
        self.next += 1;
        let bytes = units.iter().map(|unit| unit.bytes).sum();
        let holders = vec![Holder { worker, since: now, reading: Vec::new() }];
        self.hold(worker, bundle);
        self.leased.insert(bundle, Lease { units: units.clone(), bytes, is_suspect, holders });
        Ok(Answer::Read { bundle, units, is_again })
    }

    /// Whether a worker reads a suspect.
    fn reads_suspect(&self, worker: Worker) -> bool {
        let holds = self.workers.get(&worker).into_iter().flat_map(|slots| &slots.holds);
        holds.filter_map(|bundle| self.leased.get(bundle)).any(|lease| lease.is_suspect)
    }

    fn hold(&mut self, worker: Worker, bundle: Bundle) {
        if let Some(slots) = self.workers.get_mut(&worker) {
            slots.holds.insert(bundle);
        }
    }

    /// How many bytes and units the next bundle has at most.
    fn size(&self) -> (u64, usize) {
        let slots = self.workers.values().filter(|slots| !slots.is_leaving).map(|slots| slots.count).sum::<u64>();
        let parts = slots.max(1) * PARTS;
        let least = self.bytes_within(SHORTEST).max(FETCHED_AT_ONCE);
        let (longest, most) = match self.done.milliseconds {
            0 => (least, FIRST_UNITS),
            _ => (self.bytes_within(LONGEST), MOST_UNITS),
        };
        let bytes = (self.pool.bytes() / parts).max(least).min(longest);
        let units = (self.pool.units() / parts).max(self.units_within(SHORTEST)).clamp(1, most);
        (bytes, usize::try_from(units).unwrap_or(usize::MAX))
    }

    /// How many units a slot reads in this time; none, if nobody has measured it.
    fn units_within(&self, milliseconds: u64) -> u64 {
        match self.done.milliseconds {
            0 => 0,
            measured => (self.done.units as f64 / measured as f64 * milliseconds as f64) as u64,
        }
    }

    /// How many bytes a slot reads in this time.
    fn bytes_within(&self, milliseconds: u64) -> u64 {
        let rate = match self.done.milliseconds {
            0 => FIRST_RATE as f64 / 1_000.0,
            measured => self.done.bytes as f64 / measured as f64,
        };
        ((rate * milliseconds as f64) as u64).max(1)
    }

    /// The bundle that takes longest of those that take much longer than they should.
    fn take_over(&mut self, worker: Worker, now: u64) -> Answer {
        if !self.listed.is_all || self.done.bundles == 0 {
            return Answer::Wait;
        }
        let usual = self.done.milliseconds as f64 / self.done.bundles as f64;
        let late = |lease: &Lease| {
            let [holder] = lease.holders.as_slice() else { return None };
            let age = now.saturating_sub(holder.since);
            let by_size = lease.bytes as f64 / self.bytes_within(1_000) as f64 * 1_000.0;
            let is_late = age as f64 > by_size.max(usual) * TAKEN_OVER_AFTER.0 && age >= TAKEN_OVER_AFTER.1;
            (holder.worker != worker && is_late).then_some(age)
        };
        let found = self.leased.iter().filter_map(|(bundle, lease)| Some((late(lease)?, *bundle))).max();
        let Some((_, bundle)) = found else { return Answer::Wait };
        let Some(lease) = self.leased.get_mut(&bundle) else { return Answer::Wait };
        lease.holders.push(Holder { worker, since: now, reading: Vec::new() });
        let units = lease.units.clone();
        self.hold(worker, bundle);
        Answer::Read { bundle, units, is_again: true }
    }

    /// A worker says which units of a bundle it is reading, by their positions.
    pub fn reading(&mut self, worker: Worker, bundle: Bundle, reading: Vec<usize>) {
        let lease = self.leased.get_mut(&bundle);
        let holder = lease.and_then(|lease| lease.holders.iter_mut().find(|holder| holder.worker == worker));
        if let Some(holder) = holder {
            holder.reading = reading;
        }
    }

    /// Whether a worker may commit what it has made of a bundle: it is still leased to it. Asked before the commit
    /// where the target does not know itself what it has.
    pub fn may_commit(&self, worker: Worker, bundle: Bundle) -> bool {
        self.leased.get(&bundle).is_some_and(|lease| lease.holders.iter().any(|holder| holder.worker == worker))
    }

    /// Whether a worker has a bundle, and no other has it.
    pub fn is_alone_at(&self, worker: Worker, bundle: Bundle) -> bool {
        self.may_commit(worker, bundle) && self.leased.get(&bundle).is_some_and(|lease| lease.holders.len() == 1)
    }

    /// Whether a worker was lost over a unit of this bundle.
    pub fn is_suspect(&self, bundle: Bundle) -> bool {
        let was_lost = |unit: &ListedUnit| is_lost_over(&self.losses, unit, 1);
        self.leased.get(&bundle).is_some_and(|lease| lease.units.iter().any(was_lost))
    }

    /// A worker cannot do a bundle that another one is at, too.
    pub fn give_up(&mut self, worker: Worker, bundle: Bundle) {
        if let Some(lease) = self.leased.get_mut(&bundle).filter(|lease| lease.holders.len() > 1) {
            lease.holders.retain(|holder| holder.worker != worker);
            if let Some(slots) = self.workers.get_mut(&worker) {
                slots.holds.remove(&bundle);
            }
        }
    }

    /// A worker is done with a bundle.
    pub fn end(&mut self, worker: Worker, bundle: Bundle, now: u64) -> Counts {
        if !self.may_commit(worker, bundle) {
            return Counts::No;
        }
        let Some(lease) = self.leased.remove(&bundle) else { return Counts::No };
        let mut stop = Vec::new();
        for holder in &lease.holders {
            if let Some(slots) = self.workers.get_mut(&holder.worker) {
                slots.holds.remove(&bundle);
            }
            match holder.worker == worker {
                true => self.done.milliseconds += now.saturating_sub(holder.since).max(1),
                false => stop.push(holder.worker),
            }
        }
        self.done.units += lease.units.iter().map(|unit| unit.extent.files()).sum::<u64>();
        self.done.bytes = self.done.bytes.saturating_add(lease.bytes);
        self.done.bundles += 1;
        Counts::Yes { stop }
    }

    /// Nothing is heard of a worker, which is about to be lost.
    pub fn fall_silent(&mut self, worker: Worker) {
        if let Some(slots) = self.workers.get_mut(&worker) {
            slots.is_silent = true;
        }
    }

    /// A worker is lost, `now`, in milliseconds. What it had is read again.
    pub fn lose(&mut self, worker: Worker, now: u64) {
        let Some(slots) = self.workers.remove(&worker) else { return };
        for bundle in slots.holds {
            let Some(lease) = self.leased.get_mut(&bundle) else { continue };
            let Some(position) = lease.holders.iter().position(|holder| holder.worker == worker) else { continue };
            let mut reading: BTreeSet<usize> = lease.holders.swap_remove(position).reading.into_iter().collect();
            if lease.units.len() == 1 {
                reading.insert(0);
            }
            let mut suspects = BTreeSet::new();
            for position in reading {
                let Some(unit) = lease.units.get(position) else { continue };
                let key = (unit.source, unit.text.clone());
                let silences = self.silences.entry(key.clone()).or_default();
                *silences += u64::from(slots.is_silent);
                let lost = self.losses.entry(key).or_default();
                lost.insert(worker);
                if !slots.is_silent || lost.len() >= MOST_LOSSES || *silences >= MOST_SILENCES {
                    suspects.insert(position);
                }
            }
            if lease.holders.is_empty()
                && let Some(lease) = self.leased.remove(&bundle)
            {
                self.read_again(lease.units, &suspects, now);
            }
        }
    }

    /// A worker that was lost has come back, as another: nothing has taken it down.
    pub fn comes_back(&mut self, worker: Worker) {
        for lost in self.losses.values_mut() {
            lost.remove(&worker);
        }
        let (deadly, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|(unit, _)| self.is_deadly(unit));
        self.held = deadly;
        self.suspects.extend(others.into_iter().map(|(unit, _)| unit));
    }

    fn is_deadly(&self, unit: &ListedUnit) -> bool {
        let silences = self.silences.get(&(unit.source, unit.text.clone()));
        is_lost_over(&self.losses, unit, MOST_LOSSES) || silences.is_some_and(|count| *count >= MOST_SILENCES)
    }

    /// Judges units that are held back.
    ///
    /// # Errors
    /// If one was held for longer than `patience` milliseconds: none of the workers that were lost over it comes back.
    pub fn judge(&self, now: u64, patience: u64) -> Result<(), Deadly> {
        let judged = self.held.iter().find(|(_, since)| now.saturating_sub(*since) > patience);
        judged.map_or(Ok(()), |(unit, _)| Err(Deadly(unit.clone())))
    }

    /// The suspects come last, each in a bundle of its own: most of the work does not wait for another loss. If a
    /// worker has gone before it said what it was reading, half of its units are read after the other half.
    fn read_again(&mut self, mut units: Vec<ListedUnit>, suspects: &BTreeSet<usize>, now: u64) {
        if suspects.is_empty() {
            let half = units.split_off(units.len().div_ceil(2));
            self.again.extend([units, half].into_iter().filter(|units| !units.is_empty()));
            return;
        }
        let is_alone = units.len() == 1;
        let numbered = units.into_iter().enumerate();
        let (suspected, others): (Vec<_>, Vec<_>) = numbered.partition(|(position, _)| suspects.contains(position));
        let others: Vec<ListedUnit> = others.into_iter().map(|(_, unit)| unit).collect();
        if !others.is_empty() {
            self.again.push_front(others);
        }
        for (_, unit) in suspected {
            match is_alone && self.is_deadly(&unit) {
                true => self.held.push((unit, now)),
                false => self.suspects.push_back(unit),
            }
        }
    }
}

/// Whether at least so many workers were lost over `unit`, and have not come back.
fn is_lost_over(losses: &HashMap<(u32, String), BTreeSet<Worker>>, unit: &ListedUnit, workers: usize) -> bool {
    losses.get(&(unit.source, unit.text.clone())).is_some_and(|lost| lost.len() >= workers)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    use std::time::Instant;

    use super::*;
    use crate::pool::Extent;

    fn unit(number: u64, bytes: u64) -> ListedUnit {
        ListedUnit { source: 0, bytes, extent: Extent::Whole, is_known: false, text: format!("unit {number}") }
    }

    fn leases(units: u64, workers: u64) -> Leases {
        let mut leases = Leases::default();
        for number in 0..units {
            leases.add(unit(number, 1_000_000)).expect("added");
        }
        leases.all_listed();
        (0..workers).for_each(|worker| leases.join(worker, 1));
        leases
    }

    fn read(leases: &mut Leases, worker: Worker, now: u64) -> (Bundle, Vec<ListedUnit>) {
        match leases.ask(worker, now).expect("an answer") {
            Answer::Read { bundle, units, .. } => (bundle, units),
            other => panic!("{worker} gets {other:?}"),
        }
    }

    #[test]
    fn a_lost_worker_gives_back_what_it_had_and_its_late_answer_is_refused() {
        let mut leases = leases(32, 2);
        let (bundle, units) = read(&mut leases, 0, 0);
        leases.reading(0, bundle, vec![1]);
        leases.lose(0, 1);
        assert_eq!(leases.end(0, bundle, 9), Counts::No);
        assert_eq!(leases.ask(0, 9).expect("an answer"), Answer::Finished, "it has to join again");
        let (bundle, others) = read(&mut leases, 1, 10);
        assert_eq!((others.len(), others.contains(&units[1])), (units.len() - 1, false));
        leases.end(1, bundle, 11);
        let mut last = Vec::new();
        while let Answer::Read { bundle, units, .. } = leases.ask(1, 10).expect("an answer") {
            leases.end(1, bundle, 11);
            last = units;
        }
        assert_eq!(last, [units[1].clone()], "the suspect comes last");
    }

    #[test]
    fn a_bundle_of_a_unit_that_is_known_asks_what_is_there() {
        let mut leases = Leases::default();
        leases.add(ListedUnit { is_known: true, ..unit(0, 1 << 40) }).expect("added");
        leases.add(unit(1, 1_000_000)).expect("added");
        leases.all_listed();
        leases.join(0, 2);
        for expected in [true, false] {
            let answer = leases.ask(0, 0).expect("an answer");
            assert!(matches!(answer, Answer::Read { is_again, .. } if is_again == expected), "{answer:?}");
        }
    }

    #[test]
    fn who_reads_a_suspect_reads_nothing_else() {
        let mut leases = leases(30, 3);
        let (bundle, _) = read(&mut leases, 0, 0);
        leases.reading(0, bundle, vec![0, 1]);
        leases.lose(0, 1);
        while leases.pool.units() > 0 || !leases.again.is_empty() {
            read(&mut leases, 1, 2);
        }
        assert_eq!(leases.ask(1, 4).expect("an answer"), Answer::Wait);
        assert_eq!(read(&mut leases, 2, 4).1.len(), 1);
        assert_eq!(leases.ask(2, 5).expect("an answer"), Answer::Wait);
    }

    #[test]
    fn two_workers_lost_over_one_unit_end_the_run_with_its_name() {
        let mut leases = leases(8, 3);
        let (bundle, units) = read(&mut leases, 0, 0);
        leases.reading(0, bundle, vec![0]);
        leases.lose(0, 1);
        loop {
            let (bundle, again) = read(&mut leases, 1, 1);
            leases.reading(1, bundle, vec![0]);
            if again == units {
                break;
            }
            leases.end(1, bundle, 2);
        }
        leases.lose(1, 10);
        assert_eq!(leases.judge(20, 30), Ok(()), "they may come back");
        assert_eq!(leases.judge(41, 30), Err(Deadly(units[0].clone())));
        assert!(!leases.is_finished());
        leases.comes_back(0);
        assert_eq!(leases.judge(41, 30), Ok(()));
        while let Answer::Read { bundle, .. } = leases.ask(2, 50).expect("an answer") {
            leases.end(2, bundle, 51);
        }
        assert!(leases.is_finished());
    }

    #[test]
    fn what_a_silent_worker_was_reading_is_suspected_if_another_one_is_lost_over_it() {
        let mut leases = leases(100, 4);
        let all = |units: &[ListedUnit]| (0..units.len()).collect::<Vec<_>>();
        let (bundle, units) = read(&mut leases, 0, 0);
        assert!(units.len() > 1);
        leases.reading(0, bundle, all(&units));
        leases.fall_silent(0);
        leases.lose(0, 1);
        let (bundle, half) = read(&mut leases, 1, 2);
        assert_eq!(half, units[..half.len()], "together, and before all others");
        leases.reading(1, bundle, all(&half));
        leases.lose(1, 3);
        let mut alone = Vec::new();
        while let Answer::Read { bundle, mut units, .. } = leases.ask(2, 4).expect("an answer") {
            if half.contains(&units[0]) {
                assert_eq!(units.len(), 1);
                alone.append(&mut units);
            }
            if alone.len() == half.len() {
                leases.lose(2, 5);
                break;
            }
            leases.end(2, bundle, 5);
        }
        assert_eq!(alone, half);
        assert_eq!(leases.judge(50, 30), Err(Deadly(half[half.len() - 1].clone())));
    }

    #[test]
    fn the_last_bundle_of_a_slow_worker_is_taken_over_and_counts_once() {
        let mut leases = leases(2, 2);
        let (slow, _) = read(&mut leases, 0, 0);
        assert_eq!(leases.ask(1, 1).map(|answer| matches!(answer, Answer::Read { .. })).ok(), Some(true));
        assert_eq!(leases.end(1, 1, 100), Counts::Yes { stop: Vec::new() });
        assert_eq!(leases.ask(1, 101).expect("an answer"), Answer::Wait, "it is not late yet");
        let (same, _) = read(&mut leases, 1, 10_000);
        assert_eq!(same, slow);
        assert_eq!(leases.ask(1, 10_001).expect("an answer"), Answer::Wait, "two are enough");
        assert_eq!(leases.end(1, slow, 10_100), Counts::Yes { stop: vec![0] });
        assert_eq!(leases.end(0, slow, 10_101), Counts::No);
        assert!(leases.is_finished());
    }

    #[test]
    fn who_leaves_ends_what_it_has() {
        let mut leases = leases(100, 2);
        let (bundle, _) = read(&mut leases, 0, 0);
        leases.leave(0);
        assert_eq!(leases.ask(0, 1).expect("an answer"), Answer::Wait);
        assert_eq!(leases.end(0, bundle, 1), Counts::Yes { stop: Vec::new() });
        assert_eq!(leases.ask(0, 2).expect("an answer"), Answer::Finished);
        assert!(!leases.is_finished());
    }

    #[test]
    fn bundles_become_smaller_and_none_takes_minutes() {
        let mut leases = leases(6_400, 4);
        assert_eq!(read(&mut leases, 0, 0).1.len(), 20, "of 20 MB, as long as nobody has measured them");
        leases.done = Done { units: 1, bytes: 20_000_000, milliseconds: 1_000, ..Done::default() };
        let sizes: Vec<usize> = (0..40).map(|_| read(&mut leases, 0, 0).1.len()).collect();
        assert_eq!((sizes[0], sizes[1]), (531, 487), "a twelfth of what waits");
        assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
        let done = |units, bytes| Done { units, bytes, milliseconds: 1_000, ..Done::default() };
        // Quick units are read for a second, slow ones alone.
        for (count, done, each) in [(600, done(200, 200_000_000), 200), (40, done(1, 100_000), 3), (8, done(1, 1), 1)] {
            let mut small = self::leases(count, 4);
            small.done = done;
            assert_eq!(read(&mut small, 0, 0).1.len(), each);
        }
        let mut large = Leases::default();
        (0..100_000).for_each(|number| large.add(unit(number, 1_000_000_000)).expect("added"));
        large.all_listed();
        large.join(0, 1);
        assert_eq!(read(&mut large, 0, 0).1.len(), 1);
        large.done = Done { bytes: FIRST_RATE, milliseconds: 1_000, ..Done::default() };
        let (_, units) = read(&mut large, 0, 0);
        assert_eq!(units.len() as u64, FIRST_RATE * LONGEST / 1_000 / 1_000_000_000 + 1);
    }

    /// Workers come, go, are lost, are slow and believed to be lost, in any order: each unit counts once.
    #[test]
    fn whatever_happens_each_unit_counts_once() {
        let mut finished = 0;
        'seeds: for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let count = random.u64(0..2_000);
            let mut leases = Leases::default();
            let (mut listed, mut now, mut next) = (0, 0, 0);
            let mut living: Vec<Worker> = Vec::new();
            let mut held: Vec<(Worker, Bundle, Vec<ListedUnit>)> = Vec::new();
            let mut counted: Vec<ListedUnit> = Vec::new();
            let mut suspects = BTreeSet::new();
            let mut steps = 0;
            while !leases.is_finished() {
                steps += 1;
                assert!(steps < 1_000_000, "seed {seed} does not end");
                now += random.u64(0..500);
                match random.u32(0..100) {
                    0..=19 if listed < count => {
                        for _ in 0..random.u64(1..200).min(count - listed) {
                            leases.add(unit(listed, random.u64(0..3_000_000))).expect("added");
                            listed += 1;
                        }
                    }
                    20..=24 if listed == count => leases.all_listed(),
                    25..=29 if living.len() < 6 => {
                        leases.join(next, random.u64(1..4));
                        living.push(next);
                        next += 1;
                    }
                    30..=31 if living.len() > 1 => {
                        let worker = living.swap_remove(random.usize(0..living.len()));
                        match random.bool() {
                            // The last ones have bundles of their own, and may be lost twice by chance.
                            true => {
                                leases.lose(worker, now);
                                if random.bool() {
                                    leases.comes_back(worker);
                                } else if leases.judge(u64::MAX, 0).is_err() {
                                    continue 'seeds;
                                }
                            }
                            false => leases.leave(worker),
                        }
                    }
                    32..=65 if !living.is_empty() => {
                        let worker = living[random.usize(0..living.len())];
                        if let Answer::Read { bundle, units, .. } = leases.ask(worker, now).expect("an answer") {
                            assert!(!units.is_empty());
                            let position = random.usize(0..units.len());
                            let is_new = units.len() > 1 && suspects.insert(units[position].text.clone());
                            if is_new {
                                leases.reading(worker, bundle, vec![position]);
                            }
                            held.push((worker, bundle, units));
                        }
                    }
                    66.. if !held.is_empty() => {
                        let (worker, bundle, units) = held.swap_remove(random.usize(0..held.len()));
                        if let Counts::Yes { .. } = leases.end(worker, bundle, now) {
                            counted.extend(units);
                        }
                    }
                    _ => {}
                }
            }
            assert_eq!((counted.len() as u64, leases.done().units), (count, count), "seed {seed}");
            counted.sort_by(|a, b| a.text.cmp(&b.text));
            counted.dedup_by(|a, b| a.text == b.text);
            assert_eq!(counted.len() as u64, count, "seed {seed}");
            finished += 1;
        }
        assert!(finished > 150, "only {finished} of 300 ended");
    }

    /// Very many objects for a thousand workers. Prints what it takes, of ten million with
    /// `MILLSTREAM_UNITS=10000000 cargo test -p millstream-cluster -- --nocapture`.
    #[test]
    fn very_many_units_for_a_thousand_workers() {
        let units: u64 = std::env::var("MILLSTREAM_UNITS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
        let mut random = fastrand::Rng::with_seed(1);
        let (begun, mut leases) = (Instant::now(), Leases::default());
        for number in 0..units {
            let (day, etag, modified) = (number / 30_000, random.u128(..), 1_795_000_000_000 + number);
            let uri = format!("s3://bucket/raw/day={day:03}/part-{number:08}-{:016x}.json.gz", random.u64(..));
            let text = format!("{{\"uri\":\"{uri}\",\"etag\":\"{etag:032x}\",\"modified\":{modified}}}");
            let bytes = random.u64(50_000..1_000_000);
            let unit = ListedUnit { source: 0, bytes, extent: Extent::Whole, is_known: false, text };
            leases.add(unit).expect("added");
        }
        leases.all_listed();
        println!("listed in {:?}, {}", begun.elapsed(), peak());
        (0..1_000).for_each(|worker| leases.join(worker, 8));
        // What ends when, and where; a slot begins without a bundle.
        let mut slots: BinaryHeap<(Reverse<u64>, Worker, Option<Bundle>)> =
            (0..8_000).map(|slot| (Reverse(0), slot % 1_000, None)).collect();
        let (begun, mut now) = (Instant::now(), 0);
        while let Some((Reverse(at), worker, bundle)) = slots.pop() {
            now = at;
            bundle.into_iter().for_each(|bundle| drop(leases.end(worker, bundle, now)));
            match leases.ask(worker, now).expect("an answer") {
                Answer::Read { bundle, units, .. } => {
                    let bytes: u64 = units.iter().map(|unit| unit.bytes).sum();
                    slots.push((Reverse(now + 1 + bytes / 20_000), worker, Some(bundle)));
                }
                Answer::Wait => slots.push((Reverse(now + 1_000), worker, None)),
                Answer::Finished => {}
            }
        }
        let rate = units as f64 / begun.elapsed().as_secs_f64();
        println!("{rate:.0} units a second, {} s of a cluster, {:?}, {}", now / 1_000, leases.done(), peak());
        assert_eq!(leases.done().units, units);
    }

    /// The most memory that this process has had.
    fn peak() -> String {
        let status = fs_err::read_to_string("/proc/self/status").expect("it is there");
        status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default().to_owned()
    }
}

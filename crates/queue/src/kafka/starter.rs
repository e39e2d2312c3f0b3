//! Finds where partitions begin: reads the positions of all sinks, asks the brokers, registers what is new, and says
//! what was lost. It runs beside the fetching of other partitions, and waits as long as targets and brokers need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::positions::{Move, Moved, Position, Positions};
use millstream_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc::UnboundedSender;

use super::desk::{Begun, Start as StartOf};
use super::fault;
use super::native::{Client, Failure};
use super::place::Place;
use super::reader::Report;
use super::spec::{OnGap, Start};
use super::state::{self, Begin, Facts, Loss, Stands, State};

/// How long a question to the brokers may take.
const ANSWER: Duration = Duration::from_secs(10);

/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a partition is looked at again that seems to end before the position: a broker that restarts may say for a
/// moment that it has less than it has.
const LOOKS: usize = 6;

/// How long transactions of others may hold positions before they are fenced, and how long a fence waits.
const HELD: Duration = Duration::from_secs(10);
const FENCE: Duration = Duration::from_secs(1);

/// What starts need.
pub(super) struct Starter {
    pub(super) client: Arc<Client>,
    pub(super) place: Place,
    pub(super) start: Start,
    pub(super) on_gap: OnGap,
    /// For each sink, where its positions are kept.
    pub(super) positions: Vec<Option<Arc<dyn Positions>>>,
    pub(super) reports: UnboundedSender<Report>,
}

/// What the brokers say of all partitions.
type AllFacts = BTreeMap<i32, Facts>;

/// The positions of each sink, by their places; `None` if it keeps none.
type AllPositions = Vec<Option<BTreeMap<String, Position>>>;

impl Starter {
    /// Finds the starts of partitions, and reports them.
    pub(super) async fn run(self: Arc<Self>, starts: Vec<StartOf>) {
        let mut waits = None;
        let mut looks = 0;
        loop {
            match self.attempt(&starts, &mut looks).await {
                Ok(true) => break,
                Ok(false) => tokio::time::sleep(PAUSE).await,
                Err(error) if error.kind() == ErrorKind::Transient && !self.reports.is_closed() => {
                    if waits.is_none() {
                        waits = Some(Instant::now());
                        self.report(Report::Waiting(error));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return self.report(Report::Error(error)),
            }
        }
        waits.into_iter().for_each(|since| self.report(Report::Back(since.elapsed())));
    }

    fn report(&self, report: Report) {
        // Without a receiver the consumer was dropped.
        let _ = self.reports.send(report);
    }

    /// Whether the starts were found; otherwise they have to be looked for again.
    async fn attempt(self: &Arc<Self>, starts: &[StartOf], looks: &mut usize) -> Result<bool> {
        let positions = self.settled(starts).await?;
        let partitions: Vec<i32> = starts.iter().map(|(partition, _)| *partition).collect();
        let shared = Arc::clone(self);
        let asked = tokio::task::spawn_blocking(move || shared.ask(&partitions)).await;
        let facts = asked.map_err(|cause| Error::internal("the brokers were not asked").cause(cause))?;
        let Ok(facts) = facts.map_err(|failure| self.told(failure)) else { return Ok(false) };
        let mut begins = BTreeMap::new();
        for (partition, facts) in &facts {
            begins.insert(*partition, state::begin(&self.stands(&positions, *partition)?, facts, self.start));
        }
        let is_cut = begins.values().any(|begin| matches!(begin.loss, Some(Loss::Cut { .. })));
        *looks += 1;
        if is_cut && *looks < LOOKS {
            return Ok(false);
        }
        let mut losses = begins.iter().filter_map(|(partition, begin)| self.loss(*partition, begin));
        if self.on_gap == OnGap::Fail
            && let Some(error) = losses.next()
        {
            return Err(error);
        }
        drop(losses);
        if !self.register(&positions, &facts, &begins).await? {
            return Ok(false);
        }
        self.found(starts, &positions, &facts, begins);
        Ok(true)
    }

    /// That brokers cannot be reached, or have no topic, is found and said by the watch.
    fn told(&self, failure: Failure) -> Failure {
        match fault::reaction(&failure) {
            fault::Reaction::End => self.report(Report::Failed(failure.clone())),
            _ => self.report(Report::Trouble),
        }
        failure
    }

    /// The positions as the transactions that were moving them have left them. One of a member that the group has
    /// dropped, since it was stopped or cut off, may stay open for long: its connections are ended after a while.
    async fn settled(&self, starts: &[StartOf]) -> Result<AllPositions> {
        if let Ok(positions) = tokio::time::timeout(HELD, self.positions()).await {
            return positions;
        }
        for (partition, _) in starts {
            for positions in self.positions.iter().flatten() {
                positions.fence(&self.place_of(*partition), FENCE, Box::new(|_| Ok(Vec::new()))).await?;
            }
        }
        self.positions().await
    }

    async fn positions(&self) -> Result<AllPositions> {
        let mut all = Vec::new();
        for positions in &self.positions {
            all.push(match positions {
                None => None,
                Some(positions) => {
                    let each = positions.read().await?.into_iter();
                    Some(each.map(|position| (position.place.clone(), position)).collect())
                }
            });
        }
        Ok(all)
    }

    /// Asks the brokers. Blocks.
    fn ask(&self, partitions: &[i32]) -> Result<AllFacts, Failure> {
        let topic = self.client.describe(ANSWER, || Ok::<(), Failure>(()))?.id;
        let by_group = self.positions.iter().any(Option::is_none);
        let group = if by_group { self.client.committed(partitions, ANSWER)? } else { Vec::new() };
        let group: BTreeMap<i32, i64> = group.into_iter().collect();
        let facts = |partition: &i32| {
            let (low, high) = self.client.range(*partition, ANSWER)?;
            Ok((*partition, Facts { topic: topic.clone(), low, high, group: group.get(partition).copied() }))
        };
        partitions.iter().map(facts).collect()
    }

    fn place_of(&self, partition: i32) -> String {
        state::place(&self.place.topic, partition)
    }

    /// Where each sink stands in a partition.
    fn stands(&self, positions: &AllPositions, partition: i32) -> Result<Vec<Stands>> {
        let place = self.place_of(partition);
        let stands = |kept: &Option<BTreeMap<String, Position>>| {
            Ok(match kept.as_ref().map(|kept| kept.get(&place)) {
                None => Stands::AsGroup,
                Some(None) => Stands::Unknown,
                Some(Some(position)) => Stands::Kept(State::of_text(&position.state, &place)?),
            })
        };
        positions.iter().map(stands).collect()
    }

    /// What was lost, if anything was.
    fn loss(&self, partition: i32, begin: &Begin) -> Option<Error> {
        begin.loss.as_ref().map(|loss| loss.error(&self.place.server.shown, &self.place.topic, partition))
    }

    /// Moves positions that are new, or behind what was lost. Whether that was possible.
    async fn register(
        &self,
        positions: &AllPositions,
        facts: &AllFacts,
        begins: &BTreeMap<i32, Begin>,
    ) -> Result<bool> {
        for (sink, kept) in positions.iter().enumerate() {
            let (Some(kept), Some(target)) = (kept, &self.positions[sink]) else { continue };
            let to = |(partition, begin): (&i32, &Begin)| {
                let place = self.place_of(*partition);
                let known = kept.get(&place);
                let state = State::new(begin.next[sink], &facts.get(partition)?.topic, -1);
                (known.is_none() || begin.loss.is_some()).then(|| Move {
                    place,
                    from: known.map(|position| position.version),
                    to: Some(state.to_text()),
                })
            };
            let moves: Vec<Move> = begins.iter().filter_map(to).collect();
            if !moves.is_empty() && target.set(moves).await? != Moved::All {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reports the starts.
    fn found(&self, starts: &[StartOf], positions: &AllPositions, facts: &AllFacts, mut begins: BTreeMap<i32, Begin>) {
        for &(partition, generation) in starts {
            let (Some(begin), Some(facts)) = (begins.remove(&partition), facts.get(&partition)) else { continue };
            self.loss(partition, &begin).into_iter().for_each(|error| self.report(Report::Gap(error)));
            let place = self.place_of(partition);
            let version = |kept: &Option<BTreeMap<String, Position>>| {
                let version = kept.as_ref()?.get(&place).map(|position| position.version);
                // What was registered is there once more.
                Some(version.map_or(1, |version| version + u64::from(begin.loss.is_some())))
            };
            let sinks: Vec<_> = positions.iter().map(version).zip(begin.next.iter().copied()).collect();
            for (target, (version, _)) in self.positions.iter().zip(&sinks) {
                target.iter().zip(*version).for_each(|(target, version)| target.begun(&[(place.clone(), version)]));
            }
            let begun = Begun { partition, generation, topic: facts.topic.clone(), sinks };
            self.report(Report::Begun(begun, begin.offset(), begin.epoch));
        }
    }
}

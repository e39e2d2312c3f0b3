//! Watches the other consumers of the group, and takes over what dead ones have.
//!
//! ```text
//!  fence in all targets ─▶ claim what it has (a script) ─▶ read all rows ─▶ hand over what some sink lacks
//! ```
//!
//! The rows are read after the claim: whoever had an entry before is fenced by then, so no more of it is committed than
//! the rows say.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_core::queue::MessageId;
use millstream_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc::UnboundedSender;

use super::fault::{Fault, Reaction};
use super::keeper::Acknowledged;
use super::link::Link;
use super::ranges::{Range, Ranges};
use super::reader::hand_over;
use super::reply::EntryId;
use super::rows::{Rows, lacking};
use super::shared::{Life, Shared, What};
use super::stream::COUNTED;
use super::watch::{Listed, Verdict, Watch};

/// The longest pause between two looks at the other consumers.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Every so many looks, what is acknowledged leaves the group's row.
const CLEAN_EVERY: u32 = 5;

/// The most ranges that are asked for at once.
const RANGES_AT_ONCE: usize = 200;

/// How long a fence waits for the transaction of a consumer that is taken for dead before its connections are ended.
const FENCE_WAIT: Duration = Duration::from_secs(5);

/// Watches until the life of the consumer is over. Of those that are `left` it is known that they are dead, though no
/// target says so.
pub(super) async fn watch(
    shared: Arc<Shared>,
    life: Arc<Life>,
    left: Vec<String>,
    acknowledged: UnboundedSender<Acknowledged>,
) {
    let link = shared.link(&life.name);
    let watch = Watch::new(shared.settings.claim_after.0);
    let (number, told) = (life.number, Arc::clone(&shared));
    let mut claimer = Claimer { shared, life, link, watch, left, acknowledged, foreign: Vec::new() };
    match claimer.run().await {
        Ok(()) => told.tell(number, What::Over),
        Err(error) => told.tell(number, What::Failed(error)),
    }
}

struct Claimer {
    shared: Arc<Shared>,
    life: Arc<Life>,
    link: Link,
    watch: Watch,
    left: Vec<String>,
    acknowledged: UnboundedSender<Acknowledged>,
    /// Consumers that are none of ours, and that were reported.
    foreign: Vec<String>,
}

/// Whether the name may still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    On,
    /// The answer to a claim was lost, and entries with it.
    Over,
}

impl Claimer {
    async fn run(&mut self) -> Result<()> {
        let tick = (self.shared.settings.claim_after.0 / 8).min(LONGEST_TICK);
        for number in 0_u32.. {
            match self.look(number.is_multiple_of(CLEAN_EVERY)).await {
                Ok(Goes::On) => {}
                Ok(Goes::Over) => return Ok(()),
                // A target does not answer: nobody is known to be alive or dead.
                Err(error) if error.kind() == ErrorKind::Transient => self.shared.is_open.store(true, Ordering::SeqCst),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(tick).await;
        }
        Ok(())
    }

    /// Looks at the other consumers once.
    async fn look(&mut self, cleans: bool) -> Result<Goes> {
        let Some(listed) = self.consumers().await? else { return Ok(Goes::On) };
        let targets = self.shared.glance().await?;
        self.watch.observe(Instant::now(), &targets);
        self.ask_for_connections(&targets).await?;
        if self.shared.targets().next().is_none() {
            self.show_life(&listed).await?;
        }
        let judged = self.judge(&listed, &targets);
        let mut is_open = judged.iter().any(|(_, verdict)| *verdict == Verdict::Open);
        let dead = judged.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Dead | Verdict::Foreign));
        for (name, verdict) in dead {
            let has_rows = targets.iter().flatten().any(|rows| rows.knows(name));
            self.shared.is_open.store(true, Ordering::SeqCst);
            match self.take_over(name, *verdict == Verdict::Foreign, has_rows).await? {
                None => return Ok(Goes::Over),
                Some(is_done) => is_open |= !is_done,
            }
        }
        self.shared.is_open.store(is_open, Ordering::SeqCst);
        if cleans {
            self.clean(&listed).await?;
        }
        Ok(Goes::On)
    }

    /// The other consumers that Redis shows; `None` if there is no group now.
    async fn consumers(&mut self) -> Result<Option<Vec<Listed>>> {
        loop {
            let connection = self.link.ready().await?;
            match self.shared.stream.consumers(connection).await {
                Ok(listed) => {
                    self.link.works();
                    return Ok(Some(listed));
                }
                Err(fault) if fault.reaction() == Reaction::NoGroup || is_no_key(&fault) => return Ok(None),
                Err(fault) => self.link.failed(fault, &format!("watching {}", self.shared.shown)).await?,
            }
        }
    }

    /// Asks targets whether the processes of silent consumers are connected.
    async fn ask_for_connections(&mut self, targets: &[Option<Rows>]) -> Result<()> {
        for name in self.watch.silent() {
            let mut is_connected = Some(false);
            for (positions, rows) in self.shared.joining.positions.iter().zip(targets) {
                let (Some(positions), Some(rows)) = (positions, rows) else { continue };
                let Some(beat) = rows.beats.get(&name) else { continue };
                match positions.connections_of(&beat.owner).await? {
                    Some(0) => {}
                    Some(_) => is_connected = Some(true),
                    None => is_connected = is_connected.filter(|is_connected| *is_connected),
                }
            }
            self.watch.connected(&name, is_connected);
        }
        Ok(())
    }

    /// Where no target shows who lives, Redis does: a consumer that claims has done something. So ours claims the first
    /// of its own entries.
    async fn show_life(&mut self, listed: &[Listed]) -> Result<()> {
        let quarter = self.shared.settings.claim_after.0 / 4;
        if !listed.iter().any(|one| one.name == self.life.name && one.pending > 0 && one.idle >= quarter) {
            return Ok(());
        }
        let (stream, name) = (&self.shared.stream, &self.life.name);
        let connection = self.link.ready().await?;
        match stream.claim(connection, name, name, None, 1).await {
            Ok(_) => Ok(()),
            Err(fault) => self.link.failed(fault, "showing a sign of life").await,
        }
    }

    fn judge(&self, listed: &[Listed], targets: &[Option<Rows>]) -> Vec<(String, Verdict)> {
        let others = listed.iter().filter(|one| one.name != self.life.name && one.name != COUNTED);
        let mut judged: Vec<(String, Verdict)> = others
            .map(|one| {
                let verdict = self.watch.judge(one, targets);
                let is_left = self.left.contains(&one.name);
                let is_idle = verdict == Verdict::Open && one.pending == 0;
                let verdict = if is_left {
                    Verdict::Dead
                } else if is_idle {
                    Verdict::Alive
                } else {
                    verdict
                };
                (one.name.clone(), verdict)
            })
            .collect();
        // Some have rows, and nothing in Redis.
        for name in targets.iter().flatten().flat_map(|rows| rows.beats.keys()) {
            let is_other = *name != self.life.name && !judged.iter().any(|(other, _)| other == name);
            if is_other && self.watch.judge_known(name) == Verdict::Dead {
                judged.push((name.clone(), Verdict::Dead));
            }
        }
        judged
    }

    /// Takes over what a consumer has; whether that is all. `None` if the name of this one must not be used any more.
    async fn take_over(&mut self, name: &str, is_foreign: bool, has_rows: bool) -> Result<Option<bool>> {
        if has_rows {
            self.shared.fence(name, FENCE_WAIT.min(self.shared.settings.claim_after.0)).await?;
        }
        if is_foreign && !self.foreign.iter().any(|known| known == name) {
            self.foreign.push(name.to_owned());
            self.shared.tell(self.life.number, What::Gap(foreign(name, &self.shared.shown)));
        }
        let mut after = None;
        loop {
            let count = self.shared.allowed().await;
            let room = self.shared.room(count).await;
            let connection = self.link.ready().await?;
            let claimed = self.shared.stream.claim(connection, name, &self.life.name, after, count).await;
            let read = claimed.as_ref().map_or(0, |claimed| claimed.messages.len());
            self.shared.not_read(count.saturating_sub(read));
            let claimed = match claimed {
                Ok(claimed) => claimed,
                Err(Fault::Lost(_)) => return Ok(None),
                Err(fault) if fault.reaction() == Reaction::NoGroup => return Ok(Some(true)),
                Err(fault) => {
                    self.link.failed(fault, &format!("claiming entries of {}", self.shared.shown)).await?;
                    continue;
                }
            };
            self.link.works();
            after = claimed.last;
            if claimed.last.is_none() {
                break;
            }
            let committed = self.shared.committed().await?;
            self.note_gone(name, &claimed.gone, &committed)?;
            if !claimed.messages.is_empty() {
                self.shared.note_mean(&claimed.messages);
            }
            let done = hand_over(&self.shared, self.life.number, claimed.messages, &committed, room);
            self.acknowledge(done);
        }
        self.remove(name).await.map(Some)
    }

    /// Reports ids that have no entry any more and that some sink lacks, and acknowledges them all.
    fn note_gone(&self, name: &str, gone: &[EntryId], committed: &[Option<Ranges>]) -> Result<()> {
        let ids: Vec<MessageId> = gone.iter().map(|id| (*id).into()).collect();
        let lost: usize =
            lacking(&ids, committed).iter().filter(|(sinks, _)| **sinks != 0).map(|(_, ids)| ids.len()).sum();
        if lost > 0 {
            self.shared.lost(self.life.number, lost_pending(lost, name, &self.shared.shown))?;
        }
        self.acknowledge(gone.to_vec());
        Ok(())
    }

    fn acknowledge(&self, ids: Vec<EntryId>) {
        if !ids.is_empty() {
            let _ = self.acknowledged.send(Acknowledged { batch: None, ids });
        }
    }

    /// Removes a consumer that has no entries any more; whether it is removed.
    async fn remove(&mut self, name: &str) -> Result<bool> {
        loop {
            let connection = self.link.ready().await?;
            match self.shared.stream.remove(connection, name).await {
                Ok(is_removed) => {
                    if is_removed {
                        self.left.retain(|left| left != name);
                    }
                    return Ok(is_removed);
                }
                Err(fault) => self.link.failed(fault, &format!("removing a consumer of {}", self.shared.shown)).await?,
            }
        }
    }

    /// Removes from the group's rows what was acknowledged, and consumers that Redis does not know any more.
    async fn clean(&mut self, listed: &[Listed]) -> Result<()> {
        for at in 0..self.shared.joining.positions.len() {
            let Some(positions) = self.shared.joining.positions[at].clone() else { continue };
            let rows = self.shared.rows(&positions.glance().await?)?;
            let Some(group) = &rows.group else { continue };
            let ranges: Vec<Range> = group.state.committed.iter().take(RANGES_AT_ONCE).collect();
            let connection = self.link.ready().await?;
            let pending = match self.shared.stream.pending(connection, &ranges).await {
                Ok(pending) => pending,
                Err(fault) if fault.reaction() == Reaction::NoGroup => return Ok(()),
                Err(fault) => return self.link.failed(fault, &format!("watching {}", self.shared.shown)).await,
            };
            let mut state = group.state.clone();
            for (range, _) in ranges.iter().zip(pending).filter(|(_, is_pending)| !is_pending) {
                state.committed.remove(&Ranges::of(range.first, range.last));
            }
            state.gone.retain(|name| listed.iter().any(|one| one.name == *name));
            state.added = state.added.max(self.shared.seen().added);
            let is_worth_it = state.committed != group.state.committed || state.gone != group.state.gone;
            if is_worth_it {
                // If another has changed it, that one has cleaned, or the next time will do.
                positions.set(vec![rows.group_to(&self.shared.stream.key, &state)]).await?;
            }
        }
        Ok(())
    }
}

/// That there is no stream has no code of its own.
fn is_no_key(fault: &Fault) -> bool {
    matches!(fault, Fault::Answer(answer) if answer == "ERR no such key")
}

fn lost_pending(lost: usize, name: &str, shown: &str) -> Error {
    let (messages, them) = if lost == 1 { ("message", "it") } else { ("messages", "them") };
    Error::data(format!("{shown} has lost {lost} {messages} that consumer {name} had not processed"))
        .cause(format!("somebody has trimmed or deleted {them}"))
        .hint("to continue all the same, run once with `on_gap: warn`")
}

fn foreign(name: &str, shown: &str) -> Error {
    let name = millstream_core::error::one_line(name);
    Error::data(format!("messages of {shown} are loaded that consumer {name} may have processed"))
        .cause("this consumer is not one of Millstream's, and it is not known what it has processed")
        .hint("let no other program read in the same group")
}

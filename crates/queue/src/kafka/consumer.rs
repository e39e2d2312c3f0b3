//! A member of a consumer group, as runs use it: passes what the thread and the starts report to the desk, and what the
//! desk decides back to them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use millstream_core::positions::{Move, Position};
use millstream_core::queue::{Consumer, Event, Lag};
use millstream_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::desk::{Desk, Start};
use super::fault;
use super::native::Client;
use super::reader::{Command, Report};
use super::starter::Starter;

/// How long leaving the group may take: the brokers may be out of reach.
const LEAVING: Duration = Duration::from_secs(15);

/// See the head of the file.
pub(super) struct KafkaConsumer {
    pub(super) desk: Desk,
    pub(super) client: Arc<Client>,
    pub(super) starter: Arc<Starter>,
    pub(super) commands: Sender<Command>,
    pub(super) reports: UnboundedReceiver<Report>,
    pub(super) trouble: Arc<Notify>,
    pub(super) _watch: Task,
    pub(super) io: Handle,
    pub(super) events: VecDeque<Event>,
    /// How many things are waited for.
    pub(super) waits: usize,
}

/// A task that ends with its owner.
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KafkaConsumer {
    fn command(&self, command: Command) {
        // Without the thread the consumer has failed, and said so.
        let _ = self.commands.send(command);
    }

    fn start(&self, starts: Vec<Start>) {
        if !starts.is_empty() {
            self.io.spawn(Arc::clone(&self.starter).run(starts));
        }
    }

    /// Partitions start again: what was handed out of them, without `known`, is dropped.
    fn restart(&mut self, partitions: &[i32], known: &[u64]) {
        let (starts, mut dropped) = self.desk.restart(partitions);
        dropped.retain(|number| !known.contains(number));
        self.revoke(dropped);
        self.start(starts);
    }

    fn revoke(&mut self, dropped: Vec<u64>) {
        if !dropped.is_empty() {
            self.events.push_back(Event::Revoked(dropped));
        }
    }

    fn hear(&mut self, report: Report) -> Result<()> {
        match report {
            Report::Assigned(partitions) => {
                let starts = self.desk.assigned(&partitions);
                self.start(starts);
            }
            Report::Revoked(partitions) => {
                let dropped = self.desk.revoked(&partitions);
                self.revoke(dropped);
            }
            Report::Begun(begun, offset, epoch) => {
                let (partition, generation) = (begun.partition, begun.generation);
                if self.desk.begin(begun) {
                    self.command(Command::Begin { partition, generation, offset, epoch });
                }
            }
            Report::Gap(error) => self.events.push_back(Event::Gap(error)),
            Report::Fetched(chunk) => self.desk.fetched(chunk),
            Report::Ended { partition, generation, offset } => self.desk.ended(partition, generation, offset),
            Report::OutOfRange { partition, generation } => {
                if self.desk.wants(partition, generation) {
                    self.restart(&[partition], &[]);
                }
            }
            Report::Trouble => self.trouble.notify_one(),
            Report::Topic(id) => {
                let others = self.desk.of_other_topic(&id);
                self.restart(&others, &[]);
            }
            Report::Waiting(error) => {
                self.waits += 1;
                if self.waits == 1 {
                    self.events.push_back(Event::Waiting(error));
                }
            }
            Report::Back(after) => {
                self.waits = self.waits.saturating_sub(1);
                if self.waits == 0 {
                    self.events.push_back(Event::Back(after));
                }
            }
            Report::Failed(failure) => {
                let place = &self.starter.place;
                return Err(fault::error(&failure, place, &format!("reading topic {}", place.topic)));
            }
            Report::Error(error) => return Err(error),
        }
        Ok(())
    }

    /// What can be said now.
    fn event(&mut self, most: usize) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some(batch) = self.desk.hand_out(most) {
            return Some(Event::Messages(batch));
        }
        if self.desk.reaches_start() {
            return Some(Event::ReachedStart);
        }
        self.desk.becomes_empty().then_some(Event::Empty)
    }

    /// Ends as if the process had been killed: the group hears nothing.
    #[cfg(test)]
    pub(super) fn kill(self) {
        self.command(Command::Kill);
    }
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn next(&mut self, most: usize) -> Result<Event> {
        loop {
            // What is reported already comes first: it may take back what waits here.
            while let Ok(report) = self.reports.try_recv() {
                self.hear(report)?;
            }
            if let Some(event) = self.event(most) {
                return Ok(event);
            }
            let patience = if self.desk.has_none() { Duration::from_secs(1) } else { Duration::from_secs(3600) };
            match tokio::time::timeout(patience, self.reports.recv()).await {
                Err(_) => {}
                Ok(Some(report)) => self.hear(report)?,
                Ok(None) => return Err(Error::internal("the thread that reads from Kafka has ended")),
            }
        }
    }

    fn has(&self, batch: u64) -> bool {
        self.desk.has(batch)
    }

    fn place(&self, batch: u64) -> u64 {
        self.desk.partitions_of(&[batch]).pop().and_then(|partition| u64::try_from(partition).ok()).unwrap_or(0)
    }

    fn moves(&mut self, sink: usize, batches: &[u64]) -> Vec<Move> {
        self.desk.moves(sink, batches)
    }

    async fn committed(&mut self, sink: usize, batches: &[u64]) -> Result<()> {
        self.desk.committed(sink, batches);
        Ok(())
    }

    async fn moved(&mut self, _sink: usize, batches: &[u64], positions: Vec<Position>) -> Result<()> {
        let mut partitions = self.desk.partitions_of(batches);
        partitions.extend(self.desk.partitions_at(&positions));
        partitions.sort_unstable();
        partitions.dedup();
        self.restart(&partitions, &[]);
        Ok(())
    }

    async fn give_back(&mut self, batches: &[u64]) -> Result<()> {
        let partitions = self.desk.partitions_of(batches);
        self.restart(&partitions, batches);
        Ok(())
    }

    async fn acknowledge(&mut self, batches: &[u64]) -> Result<()> {
        let offsets = self.desk.acknowledge(batches);
        if !offsets.is_empty() {
            self.command(Command::Note(offsets));
        }
        Ok(())
    }

    fn lag(&self) -> Lag {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let oldest = self.desk.oldest().and_then(|time| u64::try_from(time).ok()).map(Duration::from_millis);
        Lag {
            messages: self.desk.behind(|partition| self.client.known_end(partition)),
            oldest: oldest.map(|time| now.saturating_sub(time)),
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        let (done, left) = oneshot::channel();
        self.command(Command::Leave(done));
        // If the brokers cannot be reached, the group notices by itself; messages that were not acknowledged are read
        // again, and passed over where positions say so.
        let _ = tokio::time::timeout(LEAVING, left).await;
        Ok(())
    }
}

//! What a process has of a partition in an epoch, on its way into a topic: all of it in one transaction, which moves
//! the position.
//!
//! A transaction is open only while its messages are sent: rows are gathered before. If a broker refuses a message, the
//! transaction cannot be committed: all others are sent again without it, in another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::positions::Move;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused, RefusedRow};
use millstream_core::{Error, Result, fail_point};
use millstream_queue::kafka::{Ended, PlaceProducer};

use super::kafka::KafkaOutlet;
use super::sender::Sender;
use super::taking::Taking;
use super::transactions::{Found, Shared, version};
use crate::shared::Charge;

/// What a process has of a partition in an epoch.
pub(super) struct TopicDelivery {
    shared: Arc<Shared>,
    only: Move,
    batches: Vec<RecordBatch>,
    bytes: usize,
    charge: Charge,
    bad_rows: usize,
}

impl TopicDelivery {
    pub(super) fn new(shared: Arc<Shared>, only: Move, bad_rows: usize) -> Self {
        let charge = Charge::new(&shared.taking.context.budget, 0);
        TopicDelivery { shared, only, batches: Vec::new(), bytes: 0, charge, bad_rows }
    }
}

/// Rows that are refused, by their numbers.
type Refusals = BTreeMap<u64, RefusedRow>;

/// What has become of an attempt to send rows in a transaction.
enum Sent {
    /// All of them are there, and the transaction is open: how many came, and those of them of which no message can be
    /// made.
    All(Box<PlaceProducer>, u64, Refusals),
    /// Brokers have refused some, and so the transaction: these, or a part of them. The producer cannot be used any
    /// more, since the numbers of its messages have a gap.
    Refused(Refusals),
    /// Another process has the place.
    Fenced,
}

#[async_trait]
impl Delivery for TopicDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.bytes += batch.get_array_memory_size();
        self.charge.force(self.bytes);
        self.batches.push(batch);
        Ok(())
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        fail_point::pass("commit.before");
        let (shared, place) = (Arc::clone(&self.shared), self.only.place.clone());
        let delivered = self.deliver(accept).await;
        if matches!(delivered, Ok(Delivered::Moved(_) | Delivered::Unknown(_))) {
            shared.is_lost(&place);
        }
        delivered
    }
}

impl TopicDelivery {
    async fn deliver(self, accept: Accept) -> Result<Delivered> {
        let (mut producer, _lease) = match self.shared.producer(&self.only.place, self.only.from).await? {
            Ok(found) => found,
            Err(elsewhere) => return Ok(Delivered::Moved(elsewhere.into_iter().collect())),
        };
        let mut refused = Refusals::new();
        let (mut producer, rows) = loop {
            match self.send(producer, &|row| !refused.contains_key(&row)).await? {
                Sent::All(producer, rows, more) => {
                    refused.extend(more);
                    break (*producer, rows);
                }
                Sent::Refused(suspects) => match self.single_out(suspects).await? {
                    Ok(bad) => refused.extend(bad),
                    Err(elsewhere) => return Ok(Delivered::Moved(elsewhere.into_iter().collect())),
                },
                Sent::Fenced => return Ok(Delivered::Moved(Vec::new())),
            }
            if refused.len() > self.bad_rows {
                return Err(self.refuse(accept, refused));
            }
            producer = match self.another(false).await? {
                Ok(another) => another,
                Err(elsewhere) => return Ok(Delivered::Moved(elsewhere.into_iter().collect())),
            };
        };
        fail_point::pass("transaction.confirmed");
        let is_accepted = match refused.len() > self.bad_rows {
            true => Err(self.refuse(accept, std::mem::take(&mut refused))),
            false => accept(&Refused { rows: refused.values().cloned().collect(), more: false }),
        };
        if let Err(error) = is_accepted {
            if producer.abort().await.is_ok() {
                self.shared.keep(producer);
            }
            return Err(error);
        }
        let only = self.only.clone();
        let (ended, producer) = self.shared.taking.waiting(async move { producer.commit(&only).await }).await?;
        producer.into_iter().for_each(|producer| self.shared.keep(producer));
        match ended {
            Ended::Committed => {
                fail_point::pass("commit.after");
                let rows = rows - refused.len() as u64;
                Ok(Delivered::Written { rows, refused: refused.into_values().collect() })
            }
            Ended::Aborted(error) => Err(error),
            Ended::Fenced => Ok(Delivered::Moved(Vec::new())),
            Ended::Unknown(now) => Ok(Delivered::Unknown(now.into_iter().collect())),
        }
    }

    /// The error if too many rows are refused.
    fn refuse(&self, accept: Accept, refused: Refusals) -> Error {
        let refused = Refused { rows: refused.into_values().collect(), more: true };
        accept(&refused).err().unwrap_or_else(|| refused.into_error(&self.shared.shown))
    }

    /// Another producer for the place, after one that cannot be used any more; `singly` sends each message by itself.
    async fn another(&self, singly: bool) -> Result<Found<PlaceProducer>> {
        let (transactions, place) = (&self.shared.transactions, &self.only.place);
        let another = match singly {
            true => transactions.single_producer(place).await?,
            false => transactions.producer(place).await?,
        };
        // Another process may have had the place between the two producers.
        Ok(match version(another.position()) == self.only.from {
            true => Ok(another),
            false => Err(another.position().cloned()),
        })
    }

    /// Those of some rows that brokers refuse. They refuse all messages that have come together with a bad one, and
    /// need not say which one that is. So the suspects are sent once more, each by itself, in transactions that are
    /// aborted; each of these ends at the first one that is refused.
    async fn single_out(&self, mut suspects: Refusals) -> Result<Found<Refusals>> {
        let mut bad = Refusals::new();
        while suspects.len() > 1 && bad.len() <= self.bad_rows {
            let single = match self.another(true).await? {
                Ok(single) => single,
                Err(elsewhere) => return Ok(Err(elsewhere)),
            };
            match self.send(single, &|row| suspects.contains_key(&row)).await? {
                Sent::All(mut single, _, more) => {
                    // If it is not aborted now, the next producer does it.
                    let _ = single.abort().await;
                    bad.extend(more);
                    suspects.retain(|row, _| bad.contains_key(row));
                    break;
                }
                Sent::Refused(more) => {
                    suspects.retain(|row, _| !more.contains_key(row));
                    bad.extend(more);
                }
                Sent::Fenced => return Ok(Err(None)),
            }
        }
        // One that is left has come alone. If none is bad by itself, they are together, as the brokers have said.
        Ok(Ok(if bad.is_empty() { suspects } else { bad }))
    }

    /// Sends those rows in a transaction of their own that are `wanted`, by their numbers.
    async fn send(&self, producer: PlaceProducer, wanted: &(dyn Fn(u64) -> bool + Send + Sync)) -> Result<Sent> {
        let Taking { context, terms, .. } = &self.shared.taking;
        let outlet = KafkaOutlet { producer, patience: terms.patience };
        let mut sender = Sender::new(outlet, terms, &context.budget);
        let sent = self.send_all(&mut sender, wanted).await;
        let (rows, refused) = sender.take();
        let refused: Refusals = refused.into_iter().map(|row| (row.row, row)).collect();
        let mut producer = sender.into_outlet().producer;
        let broken = producer.broken_by();
        if sent.is_ok() && broken.is_none() {
            return Ok(Sent::All(Box::new(producer), rows, refused));
        }
        // Whether it is fenced may show when it aborts.
        let _ = producer.abort().await;
        if producer.is_fenced() {
            return Ok(Sent::Fenced);
        }
        if broken.is_some() && !refused.is_empty() {
            return Ok(Sent::Refused(refused));
        }
        Err(broken.or(sent.err()).unwrap_or_else(|| Error::internal("a transaction is broken")))
    }

    async fn send_all(
        &self,
        sender: &mut Sender<KafkaOutlet<PlaceProducer>>,
        wanted: &(dyn Fn(u64) -> bool + Send + Sync),
    ) -> Result<()> {
        let (taking, mut rows, mut first) = (&self.shared.taking, self.shared.taking.rows(), 0);
        sender.outlet().producer.begin().await?;
        for batch in &self.batches {
            let mut encoded = taking.context.step.busy(|| rows.encode(batch))?;
            encoded.leave_out(|row| !wanted(first + row as u64));
            first += batch.num_rows() as u64;
            let start = Instant::now();
            let sent = sender.send(encoded).await;
            taking.context.step.add_waiting_output(start.elapsed());
            match sent {
                Ok(bytes) => taking.context.step.add_bytes(bytes),
                Err(error) => {
                    // It may be that a message before was refused.
                    sender.confirm().await?;
                    return Err(error);
                }
            }
        }
        sender.confirm().await
    }
}

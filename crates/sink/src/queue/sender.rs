//! Sends messages, many at once, and keeps the rows of those that are not confirmed: a queue says by its number which
//! message it does not take.

use std::sync::Arc;

use millstream_core::sink::RefusedRow;
use millstream_core::{Budget, Result};

use super::message::Encoded;
use super::outlet::{Outlet, Terms};
use crate::shared::Charge;

/// The most messages that are not confirmed: as many as a producer takes without waiting for its server.
const MOST_MESSAGES: usize = 500_000;

/// Sends messages.
pub(super) struct Sender<O = Box<dyn Outlet>> {
    outlet: O,
    /// What is not confirmed.
    held: Vec<Held>,
    /// Messages that are not confirmed, and their bytes.
    sent: usize,
    bytes: usize,
    window: usize,
    charge: Charge,
    /// Rows so far.
    rows: u64,
    refused: Vec<RefusedRow>,
    /// Messages that were left out, as was last asked.
    known: u64,
}

/// Rows that were sent.
struct Held {
    encoded: Encoded,
    /// The numbers of the rows in the batch, in the order in which they were sent.
    sent: Vec<usize>,
    /// The number of the first row among all.
    first_row: u64,
    /// The number of the first message since the last confirmation.
    first_message: usize,
}

impl<O: Outlet> Sender<O> {
    pub(super) fn new(outlet: O, terms: &Terms, budget: &Arc<Budget>) -> Self {
        let charge = Charge::new(budget, 0);
        let window = terms.window / 2;
        Sender { outlet, held: Vec::new(), sent: 0, bytes: 0, window, charge, rows: 0, refused: Vec::new(), known: 0 }
    }

    /// What the messages go out through.
    pub(super) fn outlet(&mut self) -> &mut O {
        &mut self.outlet
    }

    /// How many messages were left out since that was last asked, because the queue knew their ids.
    pub(super) fn take_known(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.known, self.outlet.known());
        self.known - before
    }

    /// What they go out through, when nothing is sent any more.
    pub(super) fn into_outlet(self) -> O {
        self.outlet
    }

    /// Sends rows; returns the bytes of their messages. Waits only when too much is on its way.
    ///
    /// # Errors
    /// If it is not known whether they are there, or the queue takes none.
    pub(super) async fn send(&mut self, mut encoded: Encoded) -> Result<u64> {
        let first_row = self.rows;
        self.rows += encoded.batch.num_rows() as u64;
        let own = std::mem::take(&mut encoded.refused);
        self.refused.extend(own.into_iter().map(|refused| RefusedRow { row: first_row + refused.row, ..refused }));
        let messages = std::mem::take(&mut encoded.messages);
        let mut all_bytes = 0;
        let sent = Vec::with_capacity(messages.len());
        self.held.push(Held { encoded, sent, first_row, first_message: self.sent });
        for (row, message) in messages {
            self.outlet.send(&message).await?;
            self.sent += 1;
            let bytes = message.bytes();
            all_bytes += bytes as u64;
            self.bytes += bytes;
            self.held.last_mut().into_iter().for_each(|held| held.sent.push(row));
            if self.bytes >= self.window || self.sent >= MOST_MESSAGES {
                self.confirm_but_keep_last().await?;
            }
        }
        // The rows, and the copies that are on their way.
        self.charge.force(2 * self.bytes);
        Ok(all_bytes)
    }

    /// Waits until all messages are confirmed.
    ///
    /// # Errors
    /// If it is not known whether they are there, or the queue takes none.
    pub(super) async fn confirm(&mut self) -> Result<()> {
        self.confirm_but_keep_last().await?;
        self.held.clear();
        Ok(())
    }

    /// The same between the messages of a batch, whose next ones follow.
    async fn confirm_but_keep_last(&mut self) -> Result<()> {
        for (number, error) in self.outlet.confirm().await? {
            let Some(held) = self.held.iter().rev().find(|held| held.first_message <= number) else { continue };
            let Some(&row) = held.sent.get(number - held.first_message) else { continue };
            let reason = error.cause_text().unwrap_or(error.what()).to_owned();
            let refused = held.encoded.refusal(row, error.reject_kind(), None, reason);
            let hint = error.hint_text().map(str::to_owned);
            self.refused.push(RefusedRow { row: held.first_row + refused.row, hint, ..refused });
        }
        (self.sent, self.bytes) = (0, 0);
        self.charge.force(0);
        self.held.drain(..self.held.len().saturating_sub(1));
        for last in &mut self.held {
            (last.first_message, last.sent) = (0, Vec::new());
        }
        Ok(())
    }

    /// How many rows have come since that was last asked, and those of them that are refused, in their order.
    pub(super) fn take(&mut self) -> (u64, Vec<RefusedRow>) {
        let mut refused = std::mem::take(&mut self.refused);
        refused.sort_by_key(|row| row.row);
        (std::mem::take(&mut self.rows), refused)
    }
}

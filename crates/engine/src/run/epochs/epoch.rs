//! An epoch while it is gathered: messages that are committed together, and their rows.

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::queue::SinkSet;
use millstream_job::SinkStep;
use millstream_job::around::CommitKeys;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::known::KnownLoad;
use crate::chunks::epochs::EpochLoad;
use crate::chunks::group::{ChunkRows, counts};
use crate::chunks::messages::MessageReader;
use crate::report::SinkResult;

/// A batch of messages; their text lives only until it is parsed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) messages: u64,
    /// Bytes of text.
    pub(super) bytes: u64,
    /// Which sinks lack it.
    pub(super) sinks: SinkSet,
}

/// Messages that are committed together.
#[derive(Default)]
pub(super) struct Epoch {
    pub(super) batches: Vec<Batch>,
    /// The rows of each batch, as they are parsed.
    pub(super) rows: Vec<JoinHandle<Result<Vec<ChunkRows>>>>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// When its first batch came.
    pub(super) begun: Option<Instant>,
}

impl Epoch {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn sinks(&self) -> Option<SinkSet> {
        self.batches.first().map(|batch| batch.sinks)
    }

    pub(super) fn is_full(&self, commit: &CommitKeys) -> bool {
        self.messages >= commit.rows || self.bytes >= commit.bytes.0
    }

    /// When it is committed, whatever is in it.
    pub(super) fn deadline(&self, commit: &CommitKeys) -> Option<Instant> {
        self.begun.map(|begun| begun + commit.every.0)
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.batches.iter().map(|batch| batch.number).collect()
    }

    /// Its batches, and how many messages each has.
    pub(super) fn sizes(&self) -> Vec<(u64, u64)> {
        self.batches.iter().map(|batch| (batch.number, batch.messages)).collect()
    }

    /// Drops those of its batches that have these numbers: how many messages they had.
    pub(super) async fn drop_batches(
        &mut self,
        numbers: &[u64],
        reader: &MessageReader,
        sinks: &[EpochSink<'_>],
    ) -> u64 {
        let had = self.messages;
        for index in (0..self.batches.len()).rev().filter(|_| !numbers.is_empty()) {
            if !numbers.contains(&self.batches[index].number) {
                continue;
            }
            let batch = self.batches.remove(index);
            self.messages -= batch.messages;
            self.bytes -= batch.bytes;
            let rows = self.rows.remove(index).await;
            reader.is_done_with([batch.number]);
            let Ok(Ok(rows)) = rows else { continue };
            sinks.iter().for_each(|sink| sink.load.pass(&rows));
            if has_sink(batch.sinks, 0) {
                let (rows, rejected) = counts(&rows);
                reader.come_again(rows, rejected);
            }
        }
        if self.is_empty() {
            self.begun = None;
        }
        had - self.messages
    }
}

/// Whether the sink with this number is among `sinks`.
pub(super) fn has_sink(sinks: SinkSet, number: usize) -> bool {
    sinks >> number & 1 == 1
}

/// A sink of a run that reads a queue.
pub(super) struct EpochSink<'j> {
    pub(super) sink: &'j SinkStep,
    pub(super) load: Arc<EpochLoad>,
    pub(super) known: KnownLoad,
}

impl EpochSink<'_> {
    /// What it has come to.
    pub(super) fn result(&self) -> Result<SinkResult> {
        Ok(SinkResult {
            sink: self.sink.name.value.clone(),
            target: self.sink.sink.target(),
            summary: self.load.summary(),
            removed: None,
            reloaded: None,
            changes: None,
            tally: Some(self.load.tally()?),
        })
    }
}

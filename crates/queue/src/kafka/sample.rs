//! A look at the messages of some partitions, without a group.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use millstream_core::queue::Messages;

use super::fault::{Reaction, reaction};
use super::native::{Failure, Fetcher, Taken};
use super::reader::add_message;

/// How long messages are waited for. What a compacted topic has lost at the end of a span is not known otherwise.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many messages are taken at once.
const AT_ONCE: usize = 100;

/// Adds the messages of these offsets, by partition, until there are `most` bytes of them. Blocks.
///
/// # Errors
/// If a partition cannot be read.
pub(super) fn fetch(
    fetcher: &mut Fetcher,
    mut spans: BTreeMap<i32, Range<i64>>,
    most: usize,
    messages: &mut Messages,
) -> Result<(), Failure> {
    spans.retain(|_, span| !span.is_empty());
    let partitions: Vec<i32> = spans.keys().copied().collect();
    for (partition, span) in &spans {
        fetcher.begin(*partition, span.start, -1)?;
    }
    let (begun, mut failed) = (Instant::now(), None);
    while !spans.is_empty() && failed.is_none() && begun.elapsed() < PATIENCE && messages.text().len() < most {
        fetcher.take(AT_ONCE, Duration::from_millis(100), |taken, _| {
            let (partition, next) = match taken {
                Taken::Message(message) => {
                    let (partition, offset) = (message.partition(), message.offset());
                    if spans.get(&partition).is_some_and(|span| span.contains(&offset)) {
                        add_message(messages, message);
                    }
                    (partition, offset + 1)
                }
                Taken::End(partition, offset) => (partition, offset),
                Taken::Failed(_, failure) => {
                    if reaction(&failure) == Reaction::End {
                        failed = Some(failure);
                    }
                    return;
                }
            };
            if spans.get(&partition).is_some_and(|span| next >= span.end) {
                spans.remove(&partition);
            }
        });
    }
    for partition in partitions {
        fetcher.end(partition)?;
    }
    failed.map_or(Ok(()), Err)
}

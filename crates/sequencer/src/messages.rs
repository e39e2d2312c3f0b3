//! Waits for one message of a queue: joins its group, hands the message over, acknowledges it, and leaves.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use millstream_core::queue::{Event, Joining};
use millstream_core::{Budget, Error, Result};
use millstream_engine::Engine;
use serde_json::Value;

/// The memory for messages that are fetched ahead.
const AHEAD: usize = 16 << 20;

/// How often it looks whether somebody still wants a message.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until the queue at `url` with these `settings`, those of a source, has a message. `came` gets its id, and says
/// whether it is to be acknowledged. Returns earlier if `is_over`.
///
/// # Errors
/// If the settings are wrong, or the servers refuse. A server that is away is waited for.
pub fn next_message(
    engine: &Engine,
    url: &str,
    settings: &Value,
    is_over: &dyn Fn() -> bool,
    came: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let faulty =
        |what: String| Error::job(format!("messages of {} cannot be read: {what}", millstream_core::redact::url(url)));
    let kind = engine.registry().source_for(url).ok_or_else(|| faulty("no source reads it".to_owned()))?;
    let source = (kind.build)(settings);
    let source =
        source.map_err(|faults| faulty(faults.into_iter().map(|fault| fault.what).collect::<Vec<_>>().join("; ")))?;
    let queue = source.queue(url).ok_or_else(|| faulty("it is no queue".to_owned()))?;
    let queue = queue.map_err(|fault| faulty(fault.what))?;
    let failed = |cause: std::io::Error| Error::io("the queue cannot be read", &cause);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    let io = runtime.handle().clone();
    let done = runtime.block_on(async {
        let (process, budget) = (process_name(), Budget::new(AHEAD));
        let joining = Joining { process, positions: vec![None], budget, most: Some(1), io };
        let over = async {
            while !is_over() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::pin!(over);
        let mut consumer = tokio::select! {
            consumer = queue.join(joining) => consumer?,
            () = &mut over => return Ok(()),
        };
        loop {
            let event = tokio::select! {
                event = consumer.next(1) => event?,
                () = &mut over => break,
            };
            let Event::Messages(batch) = event else { continue };
            let id = batch.messages.ids().first().map(|id| queue.shown_id(*id));
            let is_decided =
                id.as_ref().is_none_or(|id| came(&format!("{id} of {} for {}", queue.name(), queue.group())));
            if is_decided {
                consumer.committed(0, &[batch.number]).await?;
                consumer.acknowledge(&[batch.number]).await?;
            }
            if id.is_some() {
                break;
            }
        }
        consumer.leave().await
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

/// A name that is used once.
fn process_name() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

//! What goes on beside the reading: entries are acknowledged, and the consumer shows that it lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::positions::{Move, Moved, Positions};
use millstream_core::{ErrorKind, Result};
use tokio::sync::mpsc::UnboundedReceiver;

use super::reply::EntryId;
use super::rows::beat_place;
use super::shared::{Life, Shared, What};
use super::spec::Acked;
use super::stream::ACKNOWLEDGED_AT_ONCE;

/// The longest pause between two signs of life.
const LONGEST_BEAT: Duration = Duration::from_secs(3);

/// Entries that all sinks have committed.
#[derive(Debug)]
pub(super) struct Acknowledged {
    /// The number of the batch; `None` if it is not waited for.
    pub(super) batch: Option<u64>,
    pub(super) ids: Vec<EntryId>,
}

/// The numbers of batches whose acknowledgement the server has confirmed.
pub(super) type Confirmed = Arc<Mutex<Vec<u64>>>;

/// Acknowledges until nobody has anything to acknowledge any more. A connection that is lost is made again, and what
/// was not confirmed is sent again: that does no harm, whoever has the entries now, as all sinks have them.
pub(super) async fn acknowledge(
    shared: Arc<Shared>,
    mut entries: UnboundedReceiver<Acknowledged>,
    confirmed: Confirmed,
) {
    let mut link = shared.link("millstream-acknowledges");
    let doing = format!("acknowledging entries of {}", shared.shown);
    let deletes = shared.settings.acked == Acked::Delete;
    while let Some(first) = entries.recv().await {
        let (mut ids, mut batches) = (first.ids, Vec::from_iter(first.batch));
        while ids.len() < ACKNOWLEDGED_AT_ONCE
            && let Ok(more) = entries.try_recv()
        {
            ids.extend(more.ids);
            batches.extend(more.batch);
        }
        loop {
            let done = match link.ready().await {
                Ok(connection) => shared.stream.acknowledge(connection, &ids, deletes).await,
                Err(error) => return shared.tell(0, What::Failed(error)),
            };
            match done {
                Ok(()) => break link.works(),
                Err(fault) => {
                    if let Err(error) = link.failed(fault, &doing).await {
                        return shared.tell(0, What::Failed(error));
                    }
                }
            }
        }
        confirmed.lock().unwrap_or_else(PoisonError::into_inner).extend(batches);
    }
}

/// Moves the consumer's sign of life in a target, until its life is over. It is a row of its own, since the other one
/// is locked as long as a delivery is open.
pub(super) async fn beat(shared: Arc<Shared>, life: Arc<Life>, positions: Arc<dyn Positions>) {
    let pause = (shared.settings.claim_after.0 / 4).min(LONGEST_BEAT);
    let place = beat_place(&life.name, &shared.stream.key);
    let mut version = 1;
    loop {
        tokio::time::sleep(pause).await;
        let to = Some("1".to_owned());
        match move_once(&shared, positions.as_ref(), Move { place: place.clone(), from: Some(version), to }).await {
            Ok(Some(now)) => version = now,
            Ok(None) => return shared.tell(life.number, What::Over),
            Err(error) if error.kind() == ErrorKind::Transient => {}
            Err(error) => return shared.tell(life.number, What::Failed(error)),
        }
    }
}

/// Makes a move; the version that the place has then. `None` if there is no such place any more.
async fn move_once(shared: &Shared, positions: &dyn Positions, beat: Move) -> Result<Option<u64>> {
    let next = beat.from.map(|from| from + 1);
    match positions.set(vec![beat]).await? {
        Moved::All => Ok(next),
        // One of our own moves was made, and its answer was lost.
        Moved::None(now) => Ok(now.first().filter(|now| now.owner == shared.joining.process).map(|now| now.version)),
    }
}

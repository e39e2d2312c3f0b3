//! What all coordinators do: listen for workers, list units, and hear how both end.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_cluster::{Extent, Identity, ListedUnit, Listening, Load, Outcome, Settings, coordinate};
use millstream_core::{Error, Records, Result, Unit};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::machine::host_name;
use crate::options::ClusterOptions;
use crate::run::events::Event;

/// How many units wait for the coordinator.
const LISTED: usize = 1024;

/// Takes what happens.
pub(super) type Tell = Arc<dyn Fn(Event) + Send + Sync>;

/// Lets workers do `task` with the units that `list` sends, with the network of `io`. `None` if it cannot listen, which
/// is said: nothing is listed then.
///
/// # Errors
/// If listing fails; if it cannot listen, and the run is to be distributed in any case. Inside, those of workers and of
/// `load`.
pub(super) async fn coordinated<F>(
    options: &ClusterOptions,
    io: &Handle,
    task: Value,
    load: Arc<dyn Load>,
    tell: &Tell,
    list: impl FnOnce(mpsc::Sender<ListedUnit>) -> F,
) -> Result<Result<Option<Outcome>, Vec<Error>>>
where
    F: Future<Output = Result<()>>,
{
    let identity = Identity::read(&options.secret)?;
    let settings = Settings {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        beat: options.beat,
        patience: options.patience,
        wait: (!options.always).then_some(options.wait),
    };
    let address = options.listen.clone();
    let opened = io.spawn(async move { Listening::at(&address, &identity).await }).await;
    let opened = opened.map_err(|join| Error::internal("a task failed").cause(join))?;
    let listening = match opened {
        Ok(listening) => listening,
        // Another run has the workers.
        Err(error) if !options.always => {
            let cause = error.cause_text().map_or(String::new(), |cause| format!(": {cause}"));
            tell(Event::NotDistributed { why: format!("{}{cause}", error.what()) });
            return Ok(Ok(None));
        }
        Err(error) => return Err(error),
    };
    let wait = (!options.always).then_some(options.wait);
    tell(Event::Listening { address: joined_at(listening.address()), wait });
    let (sender, units) = mpsc::channel(LISTED);
    let mut coordinating = JoinSet::new();
    coordinating.spawn_on(async move { coordinate(listening, task, settings, units, load).await }, io);
    let listing = list(sender);
    let ending = async {
        let joined = coordinating.join_next().await;
        let joined = joined.ok_or_else(|| Error::internal("nothing was coordinated"))?;
        joined.map_err(|join| Error::internal("the coordinator has failed").cause(join))
    };
    tokio::pin!(listing, ending);
    let ended = tokio::select! {
        biased;
        ended = &mut ending => {
            let ended = ended?;
            // What is left is read here, of what was listed once.
            if ended.is_ok() {
                listing.await?;
            }
            ended
        }
        listed = &mut listing => {
            listed?;
            ending.await?
        }
    };
    if matches!(ended, Ok(Outcome::Alone(_))) {
        tell(Event::Alone);
    }
    Ok(ended.map(Some))
}

/// `unit` of the source number `source`, as it is handed out.
pub(super) fn listed(source: u32, unit: &Unit) -> Result<ListedUnit> {
    let text = serde_json::to_string(unit);
    let text = text.map_err(|cause| Error::internal("a unit cannot be written").cause(cause))?;
    let extent = match (&unit.records, unit.is_beginning()) {
        (None, _) => Extent::Whole,
        (Some(_), true) => Extent::Beginning,
        (Some(_), false) => Extent::Further,
    };
    Ok(ListedUnit { source, bytes: unit.bytes().unwrap_or(0), extent, is_known: false, text })
}

/// The unit that `listed` holds.
pub(super) fn unit_of(listed: &ListedUnit) -> Result<Unit> {
    serde_json::from_str(&listed.text).map_err(|cause| Error::internal("a unit cannot be read").cause(cause))
}

/// The error of units that cannot be packed or unpacked.
pub(super) fn unpacked(cause: std::io::Error) -> Error {
    Error::internal("files that were listed cannot be packed").cause(cause)
}

/// The error of a unit over which two workers were lost.
pub(super) fn deadly(unit: &ListedUnit, source: Option<&str>) -> Error {
    let error = match unit_of(unit) {
        Err(_) => deadly_file(&unit.text),
        Ok(unit) => match unit.records.as_deref() {
            None => deadly_file(&unit.name()),
            Some(Records { places, .. }) => {
                deadly_file(&unit.name()).cause(format!("they read its bytes {} to {}", places.start, places.end))
            }
        },
    };
    let error = source.into_iter().fold(error, Error::in_step);
    error.hint("look into it: does it need more memory than a worker has? Then give them more, or leave it out")
}

fn deadly_file(name: &str) -> Error {
    Error::refused("two workers were lost while they read this file").in_unit(name, None)
}

/// Where workers on other machines join if this one listens at `address`.
fn joined_at(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", host_name(), address.port()),
        false => address.to_string(),
    }
}

//! What all parts of a run share, and what each comes to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Error;
use millstream_core::redact::{Secrets, is_secret};
use millstream_core::spec::Secret;
use millstream_engine::Engine;
use millstream_engine::sequences::Row;
use millstream_job::sequence::Sequence;
use tokio::sync::watch;

/// How long a process has after it was asked to end.
pub(crate) const GRACE: Duration = Duration::from_secs(20);

/// What all parts of a run share.
pub(crate) struct Surroundings {
    pub(crate) engine: Engine,
    pub(crate) sequence: Arc<Sequence>,
    /// The folder of the sequence's file, from the root.
    pub(crate) folder: PathBuf,
    /// Variables of the environment that hold secrets: programs do not inherit them.
    pub(crate) withheld: Vec<String>,
    pub(crate) secrets: Secrets,
    /// Whether the run is to stop.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Surroundings {
    pub(crate) fn new(engine: Engine, sequence: Arc<Sequence>, stop: watch::Receiver<bool>) -> Self {
        let path = crate::read::from_root(sequence.path());
        let folder = path.parent().map(ToOwned::to_owned).unwrap_or_default();
        let secrets: Vec<Secret> = sequence.secrets.iter().map(|secret| Secret { secret: secret.clone() }).collect();
        let withheld = secrets.iter().filter_map(Secret::variable).map(str::to_owned).collect();
        // One that cannot be read is an error when a step needs it; nothing can repeat it.
        let resolved = secrets.iter().filter_map(|secret| secret.resolve().ok());
        let parameters = sequence.parameters.iter().filter(|(name, _)| is_secret(name));
        let secrets = Secrets::new(resolved.chain(parameters.map(|(_, value)| value.clone())));
        Surroundings { engine, sequence, folder, withheld, secrets, stop }
    }
}

/// What a part has come to.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Why it has failed.
    pub(crate) failed: Option<String>,
    /// Whether it was stopped, since the run was.
    pub(crate) stopped: bool,
    pub(crate) results: Row,
}

impl Done {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Done { failed: Some(why.into()), ..Done::default() }
    }

    pub(crate) fn with(results: Row) -> Self {
        Done { results, ..Done::default() }
    }

    pub(crate) fn stopped() -> Self {
        Done { stopped: true, ..Done::default() }
    }
}

impl From<Error> for Done {
    fn from(error: Error) -> Self {
        Done::failed(in_words(&error))
    }
}

/// An error in one line.
pub(crate) fn in_words(error: &Error) -> String {
    match error.cause_text() {
        Some(cause) => format!("{}: {cause}", error.what()),
        None => error.what().to_owned(),
    }
}

/// `work`, unless it takes longer than `limit` or the run is stopped.
pub(crate) async fn within(
    surroundings: &Surroundings,
    limit: Option<Duration>,
    work: impl Future<Output = Done>,
) -> Done {
    let mut stop = surroundings.stop.clone();
    tokio::select! {
        done = work => done,
        () = millstream_process::after(limit) => Done::failed(too_long(limit)),
        _ = stop.wait_for(|stop| *stop) => Done::stopped(),
    }
}

pub(crate) fn too_long(limit: Option<Duration>) -> String {
    format!("it took longer than {}", millstream_core::spec::Duration(limit.unwrap_or_default()))
}

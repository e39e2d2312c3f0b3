//! `millstream worker` and `millstream cluster`: machines that read for the runs of others.

use std::path::PathBuf;
use std::time::Duration;

use millstream::cluster::{ClusterOptions, EngineWork, Identity, Parted};
use millstream::{Engine, Error, Failure, Result};
use serde_json::json;
use tokio::sync::watch;

use crate::arguments::{self, ClusterCommand, Global, WhenDistributed};
use crate::output::Output;
use crate::schedule::state_folder;
use crate::shared::{engine, machine};
use crate::{interrupt, message};

/// The name of the file with the secret, in the state folder.
const SECRET: &str = "cluster.pem";

/// Where workers join if nothing else is said.
const LISTEN: &str = "0.0.0.0:7447";

/// The port of that.
const PORT: u16 = 7447;

/// How long a worker waits before it looks for a coordinator again.
const PAUSE: Duration = Duration::from_millis(500);

/// The same if that did not let it join.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// What is done for a cluster as a whole.
///
/// # Errors
/// If its secret is there already, or cannot be written.
pub fn change(global: &Global, output: Output, command: &ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Init { file } => {
            let path = secret(global, file.as_ref())?;
            Identity::create(&path)?;
            match output.json {
                true => output.json(&json!({"secret": path}))?,
                false => output.chat(&format!(
                    "the secret of the cluster is in {path}: copy it to the same path on all of its machines, or name \
                     it there with `--secret`\n",
                    path = path.display()
                )),
            }
            Ok(())
        }
    }
}

/// Where the secret is.
fn secret(global: &Global, named: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    match named {
        Some(path) => Ok(path.clone()),
        None => Ok(state_folder(machine(global)?.state.as_deref())?.join(SECRET)),
    }
}

/// How a run uses a cluster, if it does.
///
/// # Errors
/// If no folder is known in which the secret could be.
pub fn options(global: &Global, run: &arguments::InCluster) -> Result<Option<ClusterOptions>, Failure> {
    let always = match run.cluster {
        None | Some(WhenDistributed::Never) => return Ok(None),
        Some(when) => when == WhenDistributed::Always,
    };
    let listen = run.listen.clone().unwrap_or_else(|| LISTEN.to_owned());
    let options = ClusterOptions::new(listen, secret(global, run.secret.as_ref())?);
    let wait = run.wait.map_or(options.wait, |wait| wait.0);
    let (beat, patience) = beats().unwrap_or((options.beat, options.patience));
    Ok(Some(ClusterOptions { always, shared: run.shared.clone(), wait, beat, patience, ..options }))
}

/// How often both sides say that they are there, and how long they wait for that: in tests less than usual.
fn beats() -> Option<(Duration, Duration)> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let beat: u64 = std::env::var("MILLSTREAM_BEAT_MS").ok()?.parse().ok()?;
    Some((Duration::from_millis(beat), Duration::from_millis(beat * 4)))
}

/// Reads for the runs of a coordinator, until it is to end.
///
/// # Errors
/// If the secret cannot be read, or the machine not be used.
pub fn work(global: &Global, output: Output, worker: &arguments::Worker) -> Result<(), Failure> {
    let identity = Identity::read(&secret(global, worker.secret.as_ref())?)?;
    let engine = engine(global)?;
    let address = match worker.join.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => worker.join.clone(),
        _ => format!("{}:{PORT}", worker.join),
    };
    let (leave, leaving) = watch::channel(false);
    interrupt::on_first(move || {
        eprint_leaving(output);
        leave.send_replace(true);
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|cause| Error::io("threads cannot be started", &cause))?;
    runtime.block_on(serve(&engine, output, &address, &identity, leaving, worker.once));
    Ok(())
}

fn eprint_leaving(output: Output) {
    output.chat("leaving; what was begun is ended first, a second Ctrl-C ends at once\n");
}

async fn serve(
    engine: &Engine,
    output: Output,
    address: &str,
    identity: &Identity,
    mut leaving: watch::Receiver<bool>,
    once: bool,
) {
    let mut said = String::new();
    while !*leaving.borrow() {
        let work = EngineWork::new(engine.clone());
        let parted = work.join(address, identity, leaving.clone()).await;
        let mut pause = PAUSE;
        let (text, is_end) = match parted {
            Ok(Parted::Well) => ("nothing is left to do in this run\n".to_owned(), true),
            Ok(Parted::Lost(why)) => (format!("lost the coordinator at {address}: {why}\n"), true),
            Ok(Parted::Refused(error)) => {
                pause = PAUSE_AFTER_REFUSAL;
                (message::error(output, &error), false)
            }
            Err(error) => {
                let why = error.cause_text().unwrap_or(error.what());
                (format!("waits for a coordinator at {address} ({why})\n"), false)
            }
        };
        if is_end || text != said {
            output.chat(&text);
        }
        said = text;
        if is_end && once {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = leaving.changed() => {}
        }
    }
}

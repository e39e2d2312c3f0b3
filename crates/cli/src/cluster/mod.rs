//! `millstream worker` and `millstream cluster`: machines that read for the runs of others.

mod idle;
mod ssh;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use millstream::cluster::{ClusterKeys, ClusterOptions, Distribute, EngineWork, Identity, Parted};
use millstream::machine::Machine;
use millstream::{Engine, Error, Failure, Result};
use serde_json::json;
use tokio::sync::watch;

use self::idle::Idle;
use self::ssh::Remote;
use crate::arguments::{self, ClusterCommand, Global, WhenDistributed};
use crate::output::Output;
use crate::schedule::state_folder;
use crate::shared::{engine_of, machine};
use crate::{allocator, interrupt, message};

/// The name of the file with the secret, in the state folder.
const SECRET: &str = "cluster.pem";

/// Where workers join if nothing else is said.
const LISTEN: &str = "0.0.0.0:7447";

/// The port of that.
const PORT: u16 = 7447;

/// How long a worker waits before it looks for a coordinator again.
const PAUSE: Duration = Duration::from_millis(250);

/// The same if that did not let it join.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// What is done for a cluster as a whole.
///
/// # Errors
/// If its secret is there already, or cannot be written.
pub fn change(global: &Global, output: Output, command: &ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Init { file } => {
            let path = secret(&machine(global)?, file.as_ref())?;
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

/// Where the secret is: as an option says, or the machine file, or in the state folder.
fn secret(machine: &Machine, named: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    let of_file = machine.cluster.as_ref().and_then(|cluster| cluster.secret.as_ref()).map(PathBuf::from);
    match named.cloned().or(of_file) {
        Some(path) => Ok(path),
        None => Ok(state_folder(machine.state.as_deref())?.join(SECRET)),
    }
}

/// How a run on `machine` uses a cluster, if it does.
///
/// # Errors
/// If no folder is known in which the secret could be.
pub fn options(machine: &Machine, run: &arguments::InCluster) -> Result<Option<ClusterOptions>, Failure> {
    let of_file = machine.cluster.as_ref().map(ClusterKeys::distributes);
    let when = run.cluster.map(Distribute::from).or(of_file).unwrap_or(Distribute::Never);
    if when == Distribute::Never {
        let given = [("--listen", run.listen.is_some()), ("--shared", !run.shared.is_empty())];
        let given = [&given[..], &[("--wait-for-workers", run.wait.is_some())]].concat();
        return match given.into_iter().find(|(_, is_given)| *is_given && run.cluster.is_none()) {
            None => Ok(None),
            Some((option, _)) => {
                let error = Error::refused(format!("`{option}` is for runs with workers, and this one has none"));
                Err(error.hint("add `--cluster`").into())
            }
        };
    }
    let file = machine.cluster.clone().unwrap_or_default();
    let listen = run.listen.clone().or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let listen = match listen.parse::<u16>() {
        Ok(port) => format!("0.0.0.0:{port}"),
        Err(_) => with_port(listen)?,
    };
    let options = ClusterOptions::new(listen, secret(machine, run.secret.as_ref())?);
    let wait = run.wait.or(file.wait).map_or(options.wait, |wait| wait.0);
    let (beat, patience) = beats().unwrap_or((options.beat, options.patience));
    let always = when == Distribute::Always;
    Ok(Some(ClusterOptions { always, shared: shared(machine, run), wait, beat, patience, ..options }))
}

/// The folders that all machines see.
pub fn shared(machine: &Machine, run: &arguments::InCluster) -> Vec<PathBuf> {
    let of_file = machine.cluster.iter().flat_map(|cluster| cluster.shared.iter().map(PathBuf::from));
    run.shared.iter().cloned().chain(of_file).collect()
}

impl From<WhenDistributed> for Distribute {
    fn from(when: WhenDistributed) -> Self {
        match when {
            WhenDistributed::Auto => Distribute::Auto,
            WhenDistributed::Always => Distribute::Always,
            WhenDistributed::Never => Distribute::Never,
        }
    }
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
    let mut machine = machine(global)?;
    for disk in &mut machine.scratch.disks {
        // A run has another folder at which paths begin.
        disk.folder = std::path::absolute(&disk.folder).unwrap_or_else(|_| disk.folder.clone());
    }
    let file = machine.cluster.clone().unwrap_or_default();
    let secret = secret(&machine, worker.secret.as_ref())?;
    let identity = Identity::read(&secret).map_err(|error| {
        let hint = "copy it from the machine for whose runs this one shall work, or name it with `--secret`";
        if secret.exists() { error } else { error.hint(hint) }
    })?;
    let Some(join) = worker.join.clone().or(file.join) else {
        let error = Error::job("it is not known for whose runs to work");
        return Err(error
            .hint("name the machine with `--join HOST`, or under `cluster: join:` in a machine file")
            .into());
    };
    let address = with_port(join)?;
    if !worker.ssh.is_empty() {
        let arguments = remote_arguments(global, worker, &address);
        return Remote { hosts: &worker.ssh, secret, arguments }.work(output);
    }
    let (end, ending) = watch::channel(false);
    if worker.until_input_ends {
        let end = end.clone();
        let wait = move || {
            // However it ends, nobody is there any more who has started this.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            end.send_replace(true);
        };
        let waiting = std::thread::Builder::new().name("input".to_owned()).spawn(wait);
        waiting.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
    }
    interrupt::on_first(move || {
        output.chat("leaving; what was begun is ended first, a second Ctrl-C ends at once\n");
        end.send_replace(true);
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|cause| Error::io("threads cannot be started", &cause))?;
    let idle = Idle::new(worker.hours.or(file.hours), worker.max_load.or(file.max_load));
    let mut working =
        Working { engine: engine_of(machine)?, output, address, identity, ending, idle, said: String::new() };
    Ok(runtime.block_on(working.until_it_ends(worker.once))?)
}

/// The address of a coordinator, with the usual port if it names none.
///
/// # Errors
/// If it is no address.
fn with_port(address: String) -> Result<String> {
    if let Ok(host) = address.parse::<IpAddr>() {
        return Ok(SocketAddr::new(host, PORT).to_string());
    }
    match address.rsplit_once(':') {
        // An IPv6 address alone.
        Some(_) if address.starts_with('[') && address.ends_with(']') => Ok(format!("{address}:{PORT}")),
        None if !address.is_empty() && !address.contains('/') => Ok(format!("{address}:{PORT}")),
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.is_empty() && !host.contains('/') => Ok(address),
        _ => Err(Error::job(format!("{address} is no address of a machine"))
            .hint("write a host name or IP address, and a port behind it if that is not 7447: `etl1:7448`")),
    }
}

/// What a worker on another machine is started with.
fn remote_arguments(global: &Global, worker: &arguments::Worker, address: &str) -> Vec<String> {
    let mut all = vec!["--join".to_owned(), address.to_owned()];
    let mut add = |name: &str, value: Option<String>| {
        all.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    add("--memory", global.memory.map(|memory| memory.0.to_string()));
    add("--cores", global.cores.map(|cores| cores.to_string()));
    add("--hours", worker.hours.map(|hours| hours.to_string()));
    add("--max-load", worker.max_load.map(|load| load.to_string()));
    global.scratch.iter().for_each(|folder| add("--scratch", Some(folder.display().to_string())));
    all.extend(worker.once.then(|| "--once".to_owned()));
    all
}

/// A worker and what it goes by.
struct Working {
    engine: Engine,
    output: Output,
    address: String,
    identity: Identity,
    ending: watch::Receiver<bool>,
    idle: Idle,
    /// What was said last: the same is not said again.
    said: String,
}

impl Working {
    fn say(&mut self, text: String) {
        if self.said != text {
            self.output.chat(&text);
            self.said = text;
        }
    }

    /// Works for one run after another; for one alone with `once`.
    ///
    /// # Errors
    /// With `once`, if that run does not let it join, or it has lost it.
    async fn until_it_ends(&mut self, once: bool) -> Result<()> {
        while !*self.ending.borrow() {
            if let Some(why) = self.idle.why_not() {
                self.say(format!("rests: {why}\n"));
                self.pause(idle::LOOK).await;
                continue;
            }
            let joined = self.join().await;
            if joined.is_ok() {
                allocator::return_now();
            }
            let pause = match joined {
                Ok(Parted::Refused(error)) if once => return Err(error),
                Ok(Parted::Lost(why)) if once => {
                    return Err(Error::transient(format!("lost the coordinator at {}", self.address)).cause(why));
                }
                Ok(Parted::Failed(why)) if once => return Err(Error::refused("the run has failed").cause(why)),
                Ok(parted) => {
                    let (text, pause) = match parted {
                        Parted::Well => ("has left the run\n".to_owned(), PAUSE),
                        Parted::Lost(why) => (format!("lost the coordinator at {}: {why}\n", self.address), PAUSE),
                        Parted::Failed(why) => (format!("the run has failed: {why}\n"), PAUSE),
                        Parted::Refused(error) => (message::error(self.output, &error), PAUSE_AFTER_REFUSAL),
                    };
                    self.say(text);
                    if once {
                        return Ok(());
                    }
                    pause
                }
                Err(error) => {
                    let why = error.cause_text().unwrap_or(error.what()).to_owned();
                    let hint = error.hint_text().map_or(String::new(), |hint| format!("; {hint}"));
                    self.say(format!("waits for a coordinator at {} ({why}{hint})\n", self.address));
                    PAUSE
                }
            };
            self.pause(pause).await;
        }
        Ok(())
    }

    /// Works for one run, until that ends, or this machine has something else to do.
    async fn join(&mut self) -> Result<Parted> {
        let (leave, leaving) = watch::channel(false);
        let (output, address) = (self.output, self.address.clone());
        let begun = move |what: &str| output.chat(&format!("works for {what} at {address}\n"));
        let work = EngineWork::new(self.engine.clone()).on_begin(begun);
        let joining = work.join(&self.address, &self.identity, leaving);
        tokio::pin!(joining);
        let mut looks = tokio::time::interval(idle::LOOK);
        loop {
            let leaves = tokio::select! {
                parted = &mut joining => return parted,
                _ = self.ending.wait_for(|ending| *ending), if !*leave.borrow() => Some("it is to end".to_owned()),
                _ = looks.tick(), if !*leave.borrow() => self.idle.why_not(),
            };
            if let Some(why) = leaves {
                self.output.chat(&format!("ends what it has begun, and leaves: {why}\n"));
                leave.send_replace(true);
            }
        }
    }

    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = self.ending.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_get_the_usual_one() {
        for (text, address) in [
            ("etl1", "etl1:7447"),
            ("10.0.0.5", "10.0.0.5:7447"),
            ("10.0.0.5:1", "10.0.0.5:1"),
            ("::1", "[::1]:7447"),
            ("[::1]", "[::1]:7447"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(with_port(text.to_owned()).expect(text), address);
        }
        for text in ["", "etl1:port", "http://etl1", "http://etl1:7447", ":7447"] {
            assert!(with_port(text.to_owned()).is_err(), "{text}");
        }
    }
}

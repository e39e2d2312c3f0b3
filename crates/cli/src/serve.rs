//! `millstream serve`: the server in the foreground.

use std::path::PathBuf;

use millstream::machine::host_name;
use millstream::{Engine, Error, Failure, Result};
use millstream_server::{MachineFacts, Options, Server, TlsFiles};
use serde_json::json;

use crate::arguments::{Global, Serve};
use crate::output::Output;
use crate::schedule::{self, Shown};
use crate::shared::machine;
use crate::{human, interrupt};

/// Serves until a signal comes.
///
/// # Errors
/// If a folder or the address cannot be used.
pub fn serve(global: &Global, output: Output, serve: &Serve) -> Result<(), Failure> {
    let machine = machine(global)?;
    let state = schedule::state_folder(machine.state.as_deref())?;
    let parallel = serve.parallel.map_or(machine.cores, usize::from);
    let facts = MachineFacts {
        host: host_name(),
        cores: machine.cores,
        memory: machine.memory,
        scratch: machine.scratch.disks.iter().map(|disk| disk.folder.clone()).collect(),
        pools: machine.pools.clone().unwrap_or_default(),
    };
    let scheduler = match serve.no_scheduler {
        true => None,
        // What checks files and waits for messages has an engine of its own, which runs nothing.
        false => {
            let engine = Engine::builder().machine(machine).build()?;
            Some(schedule::options(global, &engine, &serve.folder, state.clone(), parallel)?)
        }
    };
    let working_folder = std::env::current_dir();
    let working_folder = working_folder.map_err(|cause| Error::io("the working folder cannot be found", &cause))?;
    let tls = serve.tls_cert.clone().zip(serve.tls_key.clone());
    let options = Options {
        folder: serve.folder.clone(),
        arguments: schedule::arguments(global, &state),
        state,
        listen: serve.listen.clone(),
        hosts: serve.hosts.clone(),
        tls: tls.map(|(certificates, key)| TlsFiles { certificates, key }),
        program: schedule::program()?,
        working_folder,
        facts,
        scheduler,
    };
    let server = Server::start(options)?;
    if is_in_journal() {
        // Others read it, too, and the link would sign them in.
        match output.json {
            true => output.json(&json!({"url": server.url()}))?,
            false => output.result(&format!("{}\n", server.url()))?,
        }
        output.chat("no link is printed into a journal: `millstream access link` prints one\n");
    } else {
        let (link, lasts) = server.link()?;
        match output.json {
            true => output.json(&json!({"url": server.url(), "link": link}))?,
            false => output.result(&format!("{link}\n"))?,
        }
        output.chat(&format!(
            "the link works once, within {}; `millstream access link` prints another; Ctrl-C ends the server, and no \
             run\n",
            human::time(lasts)
        ));
    }
    let stop = server.stopper();
    interrupt::on_first(move || stop.stop())?;
    let folder: PathBuf = fs_err::canonicalize(&serve.folder).unwrap_or_else(|_| serve.folder.clone());
    let shown = Shown { output, folder };
    Ok(server.run(move |notice| shown.notice(notice))?)
}

/// Whether standard output goes to the journal of systemd, which says so by the device and inode of its stream. Of two
/// streams it names that of standard error.
fn is_in_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let is_it = |stat: &rustix::fs::Stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino);
    let is_socket = |stat: &rustix::fs::Stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket();
    let Ok(out) = rustix::fs::fstat(std::io::stdout()) else { return false };
    is_it(&out) || (is_socket(&out) && rustix::fs::fstat(std::io::stderr()).is_ok_and(|err| is_it(&err)))
}

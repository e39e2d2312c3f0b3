//! Workers on machines that are reached by `ssh`: the program and the secret are copied there, and a worker is started.
//!
//! The remote worker ends what it has begun and leaves when its standard input ends: when this process is asked to end,
//! and when the connection is lost.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream::{Error, Failure, Result};

use crate::interrupt;
use crate::output::Output;

/// Where a machine keeps what is copied to it, below the home of the user.
const FOLDER: &str = ".cache/millstream/worker";

/// What is started, and where.
pub struct Remote<'a> {
    /// The machines, as `ssh` calls them.
    pub hosts: &'a [String],
    /// The file with the secret.
    pub secret: PathBuf,
    /// What the workers are started with beside it.
    pub arguments: Vec<String>,
}

impl Remote<'_> {
    /// Starts a worker on each machine, and shows what they say until they end.
    ///
    /// # Errors
    /// If the program or the secret cannot be read; if a machine cannot be reached, or its worker fails.
    pub fn work(self, output: Output) -> Result<(), Failure> {
        let program = std::env::current_exe().map_err(|cause| Error::io("the program is not known", &cause))?;
        let files = [read(&program)?, read(&self.secret)?];
        // `None` once they are to end.
        let inputs: Arc<Mutex<Option<Vec<ChildStdin>>>> = Arc::new(Mutex::new(Some(Vec::new())));
        let closing = Arc::clone(&inputs);
        interrupt::on_first(move || {
            output.chat("leaving; what was begun is ended first, a second Ctrl-C ends at once\n");
            *locked(&closing) = None;
        })?;
        let (arguments, files) = (&self.arguments, &files);
        let failed: Vec<Error> = std::thread::scope(|scope| {
            let mut started = Vec::new();
            for host in self.hosts {
                let inputs = Arc::clone(&inputs);
                started.push(scope.spawn(move || on(host, files, arguments, output, &inputs).err()));
            }
            started.into_iter().filter_map(|worker| worker.join().unwrap_or(None)).collect()
        });
        Failure { lints: Vec::new(), errors: failed }.none()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs_err::read(path).map_err(|cause| Error::io(format!("{} cannot be read", path.display()), &cause))
}

/// Copies what is missing to `host`, and works there until the worker ends.
fn on(
    host: &str,
    [program, secret]: &[Vec<u8>; 2],
    arguments: &[String],
    output: Output,
    inputs: &Mutex<Option<Vec<ChildStdin>>>,
) -> Result<()> {
    let kind = run(host, "uname -sm", &[])?;
    let own = rustix::system::uname();
    let own = format!("{} {}", own.sysname().to_string_lossy(), own.machine().to_string_lossy());
    if kind.trim() != own {
        let what = format!("{host} is a machine of another kind: {}", kind.trim());
        return Err(Error::refused(what).cause(format!("this one is {own}, and its program would not run there")));
    }
    let named = |what: &str, content: &[u8]| format!("{FOLDER}/{what}-{:016x}", hash(content));
    let (program_file, secret_file) = (named("millstream", program), named("secret", secret));
    for (file, content, mode) in [(&program_file, program, "700"), (&secret_file, secret, "600")] {
        let there = format!("test \"$(wc -c < {file} 2>/dev/null)\" = {} && echo there || true", content.len());
        if run(host, &there, &[])?.trim() == "there" {
            continue;
        }
        // Two that copy at once do not meet, and a copy that breaks off is not taken for one.
        let copy = format!(
            "umask 077 && mkdir -p {FOLDER} && cat > {file}.$$ && test \"$(wc -c < {file}.$$)\" = {} && chmod {mode} \
             {file}.$$ && mv {file}.$$ {file}",
            content.len()
        );
        run(host, &copy, content)?;
    }
    let words = ["worker", "--until-input-ends", "--secret", &secret_file].map(str::to_owned);
    let words: Vec<String> = words.iter().chain(arguments).map(|word| quoted(word)).collect();
    let mut worker = ssh(host, &format!("exec {program_file} {}", words.join(" ")), Stdio::null())?;
    let input = worker.stdin.take();
    if let Some(inputs) = locked(inputs).as_mut() {
        inputs.extend(input);
    }
    for line in worker.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines()) {
        let Ok(line) = line else { break };
        output.chat(&format!("{host}: {line}\n"));
    }
    ended(host, &mut worker, "")
}

/// A word of a command of the shell there.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// `ssh` to `host`, which runs `command` there.
fn ssh(host: &str, command: &str, stdout: Stdio) -> Result<Child> {
    let mut ssh = Command::new("ssh");
    // Nobody is there to give a password.
    ssh.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "--", host, command]);
    // Ctrl-C is for this process: what it has started ends when its input does.
    std::os::unix::process::CommandExt::process_group(&mut ssh, 0);
    let spawned = ssh.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped()).spawn();
    spawned.map_err(|cause| Error::io("`ssh` cannot be started", &cause).hint("install an OpenSSH client"))
}

/// Runs `command` on `host` with this input, and returns what it prints.
fn run(host: &str, command: &str, input: &[u8]) -> Result<String> {
    let mut child = ssh(host, command, Stdio::piped())?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut printed, mut said) = (String::new(), String::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A command that fails reads no further, and says why.
            stdin.into_iter().for_each(|mut stdin| drop(stdin.write_all(input)));
        });
        scope.spawn(|| stderr.into_iter().for_each(|mut stderr| drop(stderr.read_to_string(&mut said))));
        stdout.into_iter().for_each(|mut stdout| drop(stdout.read_to_string(&mut printed)));
    });
    ended(host, &mut child, said.trim())?;
    Ok(printed)
}

/// Whether a command on `host` has succeeded, which `said` something.
fn ended(host: &str, child: &mut Child, said: &str) -> Result<()> {
    let status = child.wait().map_err(|cause| Error::io("`ssh` cannot be waited for", &cause))?;
    if status.success() {
        return Ok(());
    }
    let error = match status.code() {
        Some(255) => Error::refused(format!("{host} cannot be reached by `ssh`"))
            .hint(format!("`ssh -o BatchMode=yes {host} true` has to work without a password")),
        _ => Error::refused(format!("the worker on {host} has failed")),
    };
    Err(if said.is_empty() { error } else { error.cause(said) })
}

/// A number by which copies of another content have another name.
fn hash(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

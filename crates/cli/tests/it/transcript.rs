//! Runs the real binary in a temporary folder, and records a transcript: each command with its exit code, standard
//! output and standard error in full.
//!
//! Placeholders replace what differs from run to run (the folder, ports, times), and lines of progress are left out. It
//! asserts for each failure that the binary does not panic, does not succeed, and leaves no target behind.

use std::path::PathBuf;
use std::process::{Command, Output};

use millstream_testkit::TempTree;

use crate::harness::{self, millstream};

/// A source of two columns, which most jobs here read. `read` and further keys of the entry follow.
pub const COLUMNS: &str = "csv: {columns: {id: int64, name: utf8}}";

/// What a command without a job adds to a hint that names a setting.
const OF_A_JOB: &str = "; that is a setting of a job file, and `millstream guess URL > job.yaml` writes one";

/// The part of a hint that only applies to jobs.
const FOR_A_JOB: &str = "; `allow_empty: true` in the source lets a job run without files";

/// Asserts that a transcript is the one stored beside this test.
macro_rules! assert_transcript {
    ($name:literal, $session:expr) => {
        // Names of runs consist of their start time and process id.
        let filters = vec![(r"\b\d{13}-\d+\b", "RUN")];
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false, filters => filters }, {
            insta::assert_snapshot!($name, $session.transcript());
        });
    };
}
pub(crate) use assert_transcript;

/// The result of a process.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let ended = Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: harness::without_progress(&String::from_utf8_lossy(&output.stderr)),
        };
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }
}

/// A folder in which the binary runs, and the transcript so far.
#[derive(Debug)]
pub struct Session {
    pub tree: TempTree,
    said: String,
}

impl Session {
    /// An empty folder.
    pub fn new() -> Self {
        Session { tree: TempTree::new(), said: String::new() }
    }

    /// A folder with `content` in the file `name`, and a job that reads it as a table of two columns into `out/x.csv`.
    pub fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let session = Session::new();
        session.tree.file(name, content);
        session.job(&format!("rows: {{read: '{name}', {COLUMNS}}}"), "write: out/x.csv");
        session
    }

    /// Writes `job.yaml`: one source, and one sink `out` that reads `rows`.
    pub fn job(&self, source: &str, sink: &str) {
        self.tree.file("job.yaml", format!("sources:\n  {source}\nsinks:\n  out: {{from: rows, {sink}}}\n"));
    }

    /// Writes `job.yaml`: the file `good.csv` with ten rows, one transform `t`, and a sink of it.
    pub fn transform(&self, transform: &str) {
        let rows = (0..10).fold("id,name\n".to_owned(), |text, number| text + &format!("{number},name {number}\n"));
        self.tree.file("good.csv", rows);
        self.tree.file(
            "job.yaml",
            format!(
                "sources:\n  rows: {{read: good.csv, {COLUMNS}}}\ntransforms:\n  t:\n    {transform}\nsinks:\n  \
                 out: {{from: t, write: out/x.csv}}\n"
            ),
        );
    }

    /// The binary with `arguments`, in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        millstream(self.tree.root(), arguments)
    }

    /// The same, inside of another program.
    pub fn within(&self, program: &[&str], arguments: &[&str]) -> Command {
        let mut command = harness::program(self.tree.root(), program[0]);
        command.args(&program[1..]).args(arguments);
        command
    }

    /// Runs the binary and adds its output to the transcript.
    pub fn run(&mut self, arguments: &[&str]) -> Ended {
        let output = self.command(arguments).output().expect("the binary starts");
        self.record(&format!("millstream {}", arguments.join(" ")), output)
    }

    /// Adds the result of a process to the transcript, with `line` as its command.
    pub fn record(&mut self, line: &str, output: impl Into<Ended>) -> Ended {
        let ended = output.into();
        self.said.push_str(&format!("$ {line}\n"));
        for (stream, text) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
            if !text.is_empty() {
                let end = if text.ends_with('\n') { "" } else { "\n" };
                self.said.push_str(&format!("[{stream}]\n{}{end}", text.trim_end_matches(' ')));
            }
        }
        let code = ended.code.map_or_else(|| "none: a signal".to_owned(), |code| code.to_string());
        self.said.push_str(&format!("[exit code {code}]\n\n"));
        ended
    }

    /// Runs the binary, which must fail with `code` and leave nothing in the folder `out`.
    pub fn fails(&mut self, code: i32, arguments: &[&str]) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert_eq!(self.left(), Vec::<PathBuf>::new(), "nothing may be left");
        ended
    }

    /// Runs the job and previews it: both must fail with `code` and the same message.
    pub fn fails_everywhere(&mut self, code: i32) {
        let ran = self.fails(code, &["run", "job.yaml"]);
        let previewed = self.command(&["preview", "job.yaml"]).output().expect("the binary starts");
        let previewed = Ended::from(previewed);
        assert_eq!(previewed.code, Some(code));
        assert_eq!(self.filtered(&previewed.stderr), self.filtered(&ran.stderr), "the same fault, the same message");
    }

    /// `count` and `cat` of `url` must fail with the message of `run`, without its step, and with other hints about
    /// settings.
    pub fn fails_without_job(&mut self, url: &str) {
        let ran = Ended::from(self.command(&["run", "job.yaml"]).output().expect("the binary starts"));
        let expected: String =
            ran.stderr.lines().filter(|line| !line.starts_with("  step ")).map(|line| format!("{line}\n")).collect();
        let expected = expected.replace(FOR_A_JOB, "");
        for command in ["count", "cat"] {
            let ended = Ended::from(self.command(&[command, url]).output().expect("the binary starts"));
            assert_eq!(ended.code, Some(1), "{command}: {}", ended.stderr);
            let said = ended.stderr.replace(OF_A_JOB, "");
            assert_eq!(self.filtered(&said), self.filtered(&expected), "{command}");
            assert_eq!(said != ended.stderr, said.contains("of the source"), "a setting is said to be a job's");
            assert!(command == "cat" || ended.stdout.is_empty(), "a count that failed is no count: {}", ended.stdout);
        }
    }

    /// Everything in the folder `out`.
    pub fn left(&self) -> Vec<PathBuf> {
        let out = self.tree.path("out");
        if !out.exists() {
            return Vec::new();
        }
        fs_err::read_dir(out).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    }

    /// The transcript of all commands.
    pub fn transcript(&self) -> String {
        self.filtered(&self.said)
    }

    /// `text` with placeholders for what differs from run to run.
    fn filtered(&self, text: &str) -> String {
        let root = self.tree.root().display().to_string();
        let text = text.replace(&root, "[folder]");
        let mut shown = String::new();
        for line in text.split_inclusive('\n') {
            shown.push_str(&without_times(&without_port(line)));
        }
        shown
    }
}

/// `127.0.0.1:40123` becomes `127.0.0.1:[port]`.
fn without_port(line: &str) -> String {
    let Some((before, after)) = line.split_once("127.0.0.1:") else { return line.to_owned() };
    let after = after.trim_start_matches(|character: char| character.is_ascii_digit());
    format!("{before}127.0.0.1:[port]{}", without_port(after))
}

/// `(3 tries, 0.4 s)` becomes `(3 tries, [time])`.
fn without_times(line: &str) -> String {
    let Some((before, after)) = line.split_once("tries, ").or_else(|| line.split_once("try, ")) else {
        return line.to_owned();
    };
    let unit = &line[before.len()..line.len() - after.len()];
    match after.split_once(" s)") {
        Some((_, rest)) => format!("{before}{unit}[time]){rest}"),
        None => line.to_owned(),
    }
}

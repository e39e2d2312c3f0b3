//! Shared by the `use_` tests: a folder with a job, and runs of the binary in it with a time limit.

mod file_target;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::TempTree;
use serde_json::Value;

pub use self::file_target::FileTarget;
use crate::harness::{millstream, without_progress};

/// No command of these tests may take longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// A folder in which millstream is run.
pub struct Lab(pub TempTree);

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Lab {
    pub fn new() -> Self {
        Lab(TempTree::new())
    }

    /// A folder with `job.yaml`.
    pub fn with_job(job: &str) -> Self {
        let lab = Lab::new();
        lab.file("job.yaml", job);
        lab
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.0.file(name, content)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs_err::read_to_string(self.path(name)).expect("a text file")
    }

    /// The command `millstream`, not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        millstream(self.0.root(), arguments)
    }

    /// Runs millstream without input.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments), None)
    }

    /// Runs millstream with `input` on standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        finish(self.command(arguments), Some(input.to_vec()))
    }

    /// Runs `job.yaml`, which dies at `fail_point` if it comes there.
    pub fn run_to(&self, fail_point: &str) -> ExitStatus {
        let mut command = self.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("it starts")
    }

    /// Runs `job.yaml` until it dies at `fail_point`.
    #[track_caller]
    pub fn killed(&self, fail_point: &str) {
        assert_eq!(self.run_to(fail_point).signal(), Some(9), "{fail_point}");
    }

    /// The report of `run job.yaml --json`, which must succeed.
    pub fn report(&self, arguments: &[&str]) -> Value {
        let all: Vec<&str> = ["run", "job.yaml", "--json"].into_iter().chain(arguments.iter().copied()).collect();
        let ran = self.run(&all);
        ran.ok();
        ran.json()
    }
}

impl Ran {
    /// The command must have succeeded.
    #[track_caller]
    pub fn ok(&self) -> &Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// The command must have ended with `code`.
    #[track_caller]
    pub fn ended(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Standard error must hold each of `parts`.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in: {}", self.stderr);
        }
        self
    }

    /// Standard output must hold each of `parts`.
    #[track_caller]
    pub fn prints(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stdout.contains(part), "`{part}` is not in: {}", self.stdout);
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// Runs `command` to its end, with `input` on standard input; one that hangs is killed and fails the test.
pub fn finish(mut command: Command, input: Option<Vec<u8>>) -> Ran {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let shown = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (mut stdin, mut stdout, mut stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let writer = std::thread::spawn(move || {
        if let (Some(stdin), Some(input)) = (&mut stdin, input) {
            // A command that needs only the beginning closes the pipe.
            let _ = stdin.write_all(&input);
        }
    });
    let text = |pipe: &mut dyn Read| {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let out = std::thread::spawn(move || stdout.as_mut().map(|pipe| text(pipe)).unwrap_or_default());
    let err = std::thread::spawn(move || stderr.as_mut().map(|pipe| text(pipe)).unwrap_or_default());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it hangs: {shown}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    writer.join().expect("a thread");
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: out.join().expect("a thread"),
        stderr: without_progress(&err.join().expect("a thread")),
    }
}

/// A gzip file of one member.
pub fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

/// The text of a gzip file, all members.
pub fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_string(&mut text).expect("gzip");
    text
}

/// A zip archive of these members.
pub fn zip_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in members {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).expect("memory");
        writer.write_all(content).expect("memory");
    }
    writer.finish().expect("memory").into_inner()
}

/// A tar of these members; a content of `-> path` makes a symbolic link.
pub fn tar_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = tar::Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        let mut content = *content;
        if let Some(target) = content.strip_prefix(b"-> ") {
            header.set_entry_type(tar::EntryType::Symlink);
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
            content = b"";
        }
        header.set_size(content.len() as u64);
        header.set_cksum();
        writer.append(&header, content).expect("memory");
    }
    writer.into_inner().expect("memory")
}

/// The records of a csv text below its header, each with its fields.
pub fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
    reader.records().map(|record| record.expect("csv").iter().map(str::to_owned).collect()).collect()
}

pub fn sorted<T: Ord>(mut rows: Vec<T>) -> Vec<T> {
    rows.sort();
    rows
}

/// The names of the files in `folder`, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(folder).expect("a folder");
    sorted(entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect())
}

/// All rows of a query on a SQLite file, each value as text.
pub fn sqlite(path: &Path, query: &str) -> Vec<Vec<String>> {
    let connection = rusqlite::Connection::open(path).expect("a database");
    rows_of(&connection, query)
}

pub fn rows_of(connection: &rusqlite::Connection, query: &str) -> Vec<Vec<String>> {
    use rusqlite::types::ValueRef;
    let mut statement = connection.prepare(query).expect("a query");
    let columns = statement.column_count();
    let mut rows = statement.query([]).expect("a query");
    let mut found = Vec::new();
    while let Some(row) = rows.next().expect("a row") {
        let value = |index| match row.get_ref(index).expect("a column") {
            ValueRef::Null => String::new(),
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Real(number) => number.to_string(),
            ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into_owned(),
        };
        found.push((0..columns).map(value).collect());
    }
    found
}

/// The step of that name and kind in a report.
#[track_caller]
pub fn step<'a>(report: &'a Value, name: &str, kind: &str) -> &'a Value {
    let steps = report["steps"].as_array().expect("steps");
    steps.iter().find(|step| step["name"] == name && step["kind"] == kind).unwrap_or_else(|| panic!("{report:#}"))
}

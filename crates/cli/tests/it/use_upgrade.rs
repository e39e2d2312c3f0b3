//! Upgrades through the real binary: this version resumes what earlier versions have begun, and refuses what newer ones
//! have written.
//!
//! `tests/fixtures/upgrade/VERSION/CASE.tar.zst` is a folder in which a run of VERSION was killed: the job, its files,
//! the state, the target; `dump.sql` holds the tables of a database server. The folders of all versions stay, and the
//! tests iterate over them. With each release, and with each change of a stored format, write fixtures and commit them:
//!
//! ```text
//! MILLSTREAM_FIXTURES=0.2.0 cargo test -p millstream --test it use_upgrade::write -- --ignored
//! ```
//! `MILLSTREAM_FIXTURES_BINARY` names another binary; it needs fail points, which only debug builds have.
//!
//! Runs and loads are named after the job's path. So packing renames them to `/lab`, and unpacking to the folder at
//! hand. Targets are named by their URLs: a relative path, or for servers a fixed address of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use millstream_testkit::{MariaDb, PASSWORD, Postgres, USER};
use serde_json::Value;

use crate::harness::{self, MILLSTREAM};
use crate::use_resume::expected;
use crate::use_support::{Lab, Ran, csv_rows, finish, gzip, names, sorted, sqlite, zip_of};

/// Where the jobs of the fixtures are.
const ROOT: &str = "/lab";

/// The database of the fixtures at a server.
const DATABASE: &str = "upgrade";

/// The addresses of MariaDB and PostgreSQL in the jobs.
const MARIADB: (&str, u16) = ("127.71.83.1", 33_306);
const POSTGRES: (&str, u16) = ("127.71.83.1", 35_432);

/// Notes from here on are versions of files.
const VERSIONS: u64 = 1 << 62;

/// The note that says that a file is complete.
const COMPLETE: u64 = (1 << 63) - 1;

/// Records of each file.
const RECORDS: usize = 200;

/// A case: how to make it, and how to resume it.
struct Case {
    name: &'static str,
    make: fn(&Scene),
    resume: fn(&Scene),
}

/// Those in files and SQLite.
const CASES: &[Case] = &[
    Case { name: "chunks", make: make_chunks, resume: resume_chunks },
    Case { name: "at-once-there", make: |scene| make_at_once(scene, "publish.after"), resume: resume_at_once },
    Case { name: "at-once-missing", make: |scene| make_at_once(scene, "publish.before"), resume: resume_at_once },
    Case { name: "incremental", make: make_incremental, resume: resume_incremental },
    Case { name: "files", make: make_files, resume: resume_files },
    Case { name: "rejects", make: make_rejects, resume: resume_rejects },
    Case { name: "marks", make: make_marks, resume: resume_marks },
    Case { name: "lists", make: make_lists, resume: resume_lists },
];

/// Those in a server.
const SERVER_CASES: &[Case] = &[
    Case { name: "chunks", make: make_chunks, resume: resume_chunks },
    Case { name: "at-once", make: |scene| make_at_once(scene, "publish.after"), resume: resume_at_once },
    Case { name: "incremental", make: make_incremental, resume: resume_incremental },
    Case { name: "marks", make: make_marks, resume: resume_marks },
    Case { name: "staged", make: make_staged, resume: resume_staged },
];

/// The target of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Sqlite,
    MariaDb,
    Postgres,
}

impl Target {
    fn name(self, case: &str) -> String {
        match self {
            Target::Sqlite => case.to_owned(),
            Target::MariaDb => format!("mariadb-{case}"),
            Target::Postgres => format!("postgres-{case}"),
        }
    }
}

/// A folder in which a case is made or resumed.
struct Scene {
    lab: Lab,
    target: Target,
    binary: PathBuf,
}

impl Scene {
    fn new(target: Target, binary: PathBuf) -> Self {
        let scene = Scene { lab: Lab::new(), target, binary };
        match target {
            Target::Sqlite => {}
            Target::MariaDb => {
                forward(MARIADB, MariaDb::shared().port());
                let make =
                    format!("DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4");
                MariaDb::shared().query("", &make);
            }
            Target::Postgres => {
                forward(POSTGRES, Postgres::shared().port());
                Postgres::shared().query("postgres", &format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"));
                Postgres::shared().query("postgres", &format!("CREATE DATABASE {DATABASE}"));
            }
        }
        scene
    }

    fn url(&self) -> String {
        let server = |scheme, (host, port)| format!("{scheme}://{USER}:{PASSWORD}@{host}:{port}/{DATABASE}");
        match self.target {
            Target::Sqlite => "sqlite:out.db".to_owned(),
            Target::MariaDb => server("mysql", MARIADB),
            Target::Postgres => server("postgres", POSTGRES),
        }
    }

    fn query(&self, sql: &str) -> Vec<String> {
        match self.target {
            Target::Sqlite => sqlite(&self.lab.path("out.db"), sql).into_iter().map(|row| row.join("\t")).collect(),
            Target::MariaDb => MariaDb::shared().query(DATABASE, sql),
            Target::Postgres => Postgres::shared().query(DATABASE, sql),
        }
    }

    fn tables(&self) -> Vec<String> {
        let of_server =
            "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', 'upgrade') ORDER BY 1";
        match self.target {
            Target::Sqlite if !self.lab.path("out.db").exists() => Vec::new(),
            Target::Sqlite => self.query("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"),
            _ => sorted(self.query(of_server)),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = harness::program(&self.lab.path(""), &self.binary);
        command.args(arguments).env("MILLSTREAM_CHUNK_BYTES", "2000");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(&[&["run", "job.yaml"], arguments].concat()), None)
    }

    /// A run that is killed at `at`.
    #[track_caller]
    fn killed(&self, at: &str) {
        let mut command = self.command(&["run", "job.yaml", "--quiet"]);
        command.env("MILLSTREAM_FAIL_AT", at).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = command.output().expect("it runs");
        assert_eq!(ended.status.signal(), Some(9), "{at}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// A file whose time is the same wherever it is unpacked.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.lab.file(name, content);
        let file = fs_err::File::options().write(true).open(path).expect("a file");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        file.file().set_modified(time).expect("it takes the time");
    }

    /// Names runs and loads after a job in another folder.
    fn move_names(&self, from: &str, to: &str) {
        let state = rusqlite::Connection::open(self.lab.path(".state/runs.db")).expect("a book");
        for column in ["job", "message", "report"] {
            let update = format!("UPDATE runs SET {column} = replace({column}, ?1, ?2)");
            state.execute(&update, [from, to]).expect("a book");
        }
        for folder in ["files", "rows"] {
            self.move_lists(folder, from, to);
        }
        let has_notes = |table: &&String| *table == "_millstream_ledger" || table.ends_with("_notes");
        self.tables().iter().filter(has_notes).for_each(|table| self.move_ledger(table, from, to));
    }

    /// Names the loads of a ledger, or of the notes of a staged load, after a job in another folder.
    fn move_ledger(&self, table: &str, from: &str, to: &str) {
        // The client of MariaDB shows a line's end as two characters.
        let loads = self.query(
            &format!("SELECT replace(note, CHR(10), '|') FROM {table} WHERE chunk = -1")
                .replace("CHR", if self.target == Target::Postgres { "chr" } else { "char" }),
        );
        let has_files = self.lab.path("in").exists();
        for file in has_files.then(|| names(&self.lab.path("in"))).into_iter().flatten() {
            let version = file_version(&self.lab.path(&format!("in/{file}")));
            for source in ["s", "s2"] {
                // Numbers from here on are versions; the last one says that the file is complete.
                let unit = digest(&format!("{source}\nin/{file}"));
                self.change(&format!(
                    "UPDATE {table} SET chunk = {version} WHERE unit_key = '{unit}' AND chunk >= {VERSIONS} AND chunk \
                     < {COMPLETE}"
                ));
            }
        }
        for load in loads {
            let load = load.replace('|', "\n");
            let moved = load.replace(from, to);
            let text = |text: &str| match self.target {
                Target::MariaDb => format!("'{}'", text.replace('\n', "\\n")),
                _ => format!("'{text}'"),
            };
            let (before, after) = (digest(&load), digest(&moved));
            self.change(&format!(
                "UPDATE {table} SET note = {} WHERE load_key = '{before}' AND chunk = -1",
                text(&moved)
            ));
            self.change(&format!("UPDATE {table} SET load_key = '{after}' WHERE load_key = '{before}'"));
            if table.ends_with("_notes") && before != after {
                // What is staged is named after the load.
                for end in ["rows", "notes"] {
                    let name = |key: &str| format!("_millstream_{}_{end}", &key[..16]);
                    self.change(&format!("ALTER TABLE {} RENAME TO {}", name(&before), name(&after)));
                }
            }
        }
    }

    /// Names what lists of files note after a job in another folder.
    fn move_lists(&self, folder: &str, from: &str, to: &str) {
        if !self.lab.path(folder).exists() {
            return;
        }
        for list in names(&self.lab.path(folder)).iter().filter(|name| name.ends_with(".millstream.json")) {
            let path = self.lab.path(&format!("{folder}/{list}"));
            let text = fs_err::read_to_string(&path).expect("a list").replace(from, to);
            let mut list: Value = serde_json::from_str(&text).expect("JSON");
            for (unit, numbers) in list["notes"]
                .as_array_mut()
                .into_iter()
                .flatten()
                .flat_map(|notes| notes["units"].as_object_mut().expect("units").iter_mut())
            {
                let Some((_, file)) = unit.split_once('\n').filter(|(source, _)| !source.is_empty()) else { continue };
                let version = file_version(&self.lab.path(file));
                let is_version =
                    |number: &&mut Value| number.as_u64().is_some_and(|one| (VERSIONS..COMPLETE).contains(&one));
                numbers
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                    .filter(is_version)
                    .for_each(|number| *number = version.into());
            }
            fs_err::write(path, serde_json::to_vec_pretty(&list).expect("JSON")).expect("it is written");
        }
    }

    fn change(&self, sql: &str) {
        match self.target {
            Target::Sqlite => {
                let connection = rusqlite::Connection::open(self.lab.path("out.db")).expect("a database");
                connection.execute_batch(sql).expect("statements");
            }
            _ => drop(self.query(sql)),
        }
    }

    /// Packs the folder, and what is in the server.
    fn pack(&self, path: &Path) {
        self.move_names(&self.root(), ROOT);
        let output = |command: &mut Command| {
            let output = command.output().expect("it is installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text")
        };
        let dump = match self.target {
            Target::Sqlite => None,
            Target::MariaDb => Some(output(
                Command::new("mariadb-dump")
                    .args([
                        "--no-defaults",
                        "--user=root",
                        "--host=127.0.0.1",
                        "--skip-ssl",
                        "--compact",
                        "--skip-tz-utc",
                    ])
                    .args([&format!("--port={}", MariaDb::shared().port()), DATABASE]),
            )),
            Target::Postgres => Some(output(
                Command::new("pg_dump")
                    .args(["--no-owner", "--no-privileges", "--rows-per-insert=1000", "--host=127.0.0.1"])
                    .args([&format!("--username={USER}"), &format!("--port={}", Postgres::shared().port()), DATABASE])
                    .env("PGPASSWORD", PASSWORD),
            )),
        };
        if let Some(dump) = dump {
            let statement =
                |line: &&str| !line.is_empty() && !["\\", "--", "/*M!"].iter().any(|no| line.starts_with(no));
            self.lab.file("dump.sql", dump.lines().filter(statement).collect::<Vec<_>>().join("\n"));
        }
        let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 19).expect("memory"));
        tar.append_dir_all(".", self.lab.path("")).expect("a folder");
        let packed = tar.into_inner().and_then(zstd::Encoder::finish).expect("memory");
        fs_err::write(path, packed).expect("it is written");
    }

    /// The folder that was packed.
    fn unpack(&self, path: &Path) {
        let packed = fs_err::read(path).expect("a fixture");
        let mut tar = tar::Archive::new(zstd::Decoder::new(&*packed).expect("zstd"));
        tar.unpack(self.lab.path("")).expect("a folder");
        if self.target != Target::Sqlite {
            self.query(&self.lab.read("dump.sql"));
        }
        self.move_names(ROOT, &self.root());
    }

    /// The folder as jobs are named after it.
    fn root(&self) -> String {
        fs_err::canonicalize(self.lab.path("")).expect("a folder").display().to_string()
    }
}

/// The version of a file as ledgers note it: an unpacked file has another inode.
fn file_version(path: &Path) -> u64 {
    let file = fs_err::metadata(path).expect("a file");
    let (inode, size, seconds) = (file.ino(), file.size(), file.mtime());
    let version = format!("Some({size}) Some(\"{inode:x}-{seconds:x}.0-{size:x}\")");
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = version.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    (1 << 62) + (hash & ((1 << 62) - 1)).min((1 << 62) - 2)
}

pub fn digest(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Forwards a fixed address to the server at `port`. Waits while another process of tests uses the address.
fn forward((host, at): (&'static str, u16), port: u16) {
    static OPEN: std::sync::Mutex<BTreeSet<u16>> = std::sync::Mutex::new(BTreeSet::new());
    let mut open = OPEN.lock().expect("nobody has failed with it");
    if !open.insert(at) {
        return;
    }
    let begun = Instant::now();
    let listener = loop {
        match TcpListener::bind((host, at)) {
            Ok(listener) => break listener,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(300), "{host}:{at}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upgrade")
}

/// Unpacks each case of each version that has it; the last one has all.
fn each(target: Target, cases: &[Case], look: impl Fn(&Scene, &Case, &str)) {
    let versions = names(&fixtures());
    assert!(versions.len() > 1, "{versions:?}");
    for version in &versions {
        for case in cases {
            let path = fixtures().join(version).join(format!("{}.tar.zst", target.name(case.name)));
            if !path.exists() && Some(version) != versions.last() {
                continue;
            }
            let scene = Scene::new(target, MILLSTREAM.into());
            scene.unpack(&path);
            println!("{}", path.display());
            look(&scene, case, version);
        }
    }
}

#[test]
#[ignore = "writes the fixtures of a version, once"]
fn write_the_fixtures() {
    let version = std::env::var("MILLSTREAM_FIXTURES").expect("the name of the version");
    let binary = std::env::var_os("MILLSTREAM_FIXTURES_BINARY").map(PathBuf::from);
    let binary = binary.unwrap_or_else(|| MILLSTREAM.into());
    let folder = fixtures().join(version);
    fs_err::create_dir_all(&folder).expect("a folder");
    let targets = [(Target::Sqlite, CASES), (Target::MariaDb, SERVER_CASES), (Target::Postgres, SERVER_CASES)];
    for (target, cases) in targets {
        for case in cases {
            let scene = Scene::new(target, binary.clone());
            (case.make)(&scene);
            scene.pack(&folder.join(format!("{}.tar.zst", target.name(case.name))));
        }
    }
}

#[test]
fn runs_of_earlier_versions_are_resumed() {
    each(Target::Sqlite, CASES, |scene, case, _| (case.resume)(scene));
}

#[test]
fn runs_of_earlier_versions_into_mariadb_are_resumed() {
    each(Target::MariaDb, SERVER_CASES, |scene, case, _| (case.resume)(scene));
}

#[test]
fn runs_of_earlier_versions_into_postgres_are_resumed() {
    each(Target::Postgres, SERVER_CASES, |scene, case, _| (case.resume)(scene));
}

/// Fingerprints of earlier versions are compared, both those in the history and those in the ledger.
#[test]
fn a_job_that_has_changed_since_an_earlier_version_is_refused() {
    each(Target::Sqlite, &CASES[..1], |scene, _, _| {
        let job = scene.lab.read("job.yaml");
        scene.lab.file("job.yaml", job.replace("id > 5", "id > 6"));
        for arguments in [&["--resume"][..], &["--resume", "--state", "elsewhere"]] {
            scene.run(arguments).ended(1).says(&["the job has changed since the run to be resumed"]);
        }
        // A change that does not matter.
        scene.lab.file("job.yaml", job.replace("half = 0 OR id > 5", "half=0  or ID>5 /* all but some */"));
        scene.run(&["--resume", "--state", "elsewhere"]).ok();
        assert_rows(scene, &expected(0..FILES * RECORDS));
    });
}

/// A process that is killed while it migrates the state folder does no harm.
#[test]
fn a_migration_that_was_killed_is_repeated() {
    each(Target::Sqlite, &CASES[..1], |scene, _, version| {
        if version != "0.1.0-a" {
            // It has the same version.
            return;
        }
        for fail_point in ["migrate.before", "migrate.after"] {
            let mut command = scene.command(&["runs"]);
            command.env("MILLSTREAM_FAIL_AT", fail_point);
            let ended = command.output().expect("it runs");
            assert_eq!(ended.status.signal(), Some(9), "{fail_point}");
        }
        resume_chunks(scene);
    });
}

/// Data of newer versions is neither read nor changed.
#[test]
fn what_a_newer_version_has_written_is_refused() {
    let newer = "was written by a newer version of Millstream";
    each(Target::Sqlite, &CASES[..1], |scene, _, _| {
        let book = |sql: &str| {
            let state = rusqlite::Connection::open(scene.lab.path(".state/runs.db")).expect("a book");
            state.execute_batch(sql).expect("statements");
        };
        let rows = scene.query("SELECT count(*) FROM t");
        // The state folder.
        finish(scene.command(&["runs"]), None).ok();
        let version = sqlite(&scene.lab.path(".state/runs.db"), "PRAGMA user_version")[0][0].clone();
        book("PRAGMA user_version = 99");
        for arguments in [&["run", "job.yaml"][..], &["run", "job.yaml", "--resume"], &["runs"], &["rejects", "last"]] {
            let ran = finish(scene.command(arguments), None);
            ran.ended(1).says(&["the state folder", newer, "it has version 99", "upgrade", "`--state`"]);
        }
        // It is also refused where it is the default, and a run would do without one that cannot be used.
        let default = scene.lab.path("home/millstream");
        fs_err::create_dir_all(&default).expect("a folder");
        fs_err::copy(scene.lab.path(".state/runs.db"), default.join("runs.db")).expect("a copy");
        let mut command = scene.command(&["run", "job.yaml"]);
        command.env_remove("MILLSTREAM_STATE").env("XDG_STATE_HOME", scene.lab.path("home"));
        finish(command, None).ended(1).says(&["the state folder", newer]);
        book(&format!("PRAGMA user_version = {version}"));
        // The fingerprint of the run.
        book(
            "ALTER TABLE runs RENAME COLUMN fingerprint TO old; ALTER TABLE runs ADD COLUMN fingerprint TEXT; \
              UPDATE runs SET fingerprint = 'v9:00' WHERE old IS NOT NULL",
        );
        scene.run(&["--resume"]).ended(1).says(&["the last run of this job was made by a newer version", "upgrade"]);
        book("UPDATE runs SET fingerprint = old WHERE old IS NOT NULL");
        // The rules of a load in the ledger.
        let load = scene.query("SELECT load_key FROM _millstream_ledger WHERE chunk = -1").remove(0);
        let note = |number| format!("('{load}', '{}', {number})", digest("\nrules"));
        scene.change(&format!("INSERT INTO _millstream_ledger (load_key, unit_key, chunk) VALUES {}", note(9)));
        for arguments in [&["--resume"][..], &["--resume", "--state", "elsewhere"]] {
            scene.run(arguments).ended(1).says(&["a load into table t of out.db", newer, "it has version 9"]);
        }
        scene.change("DELETE FROM _millstream_ledger WHERE chunk = 9");
        // The ledger.
        let ledger = |comment: &str| {
            scene.change(&format!(
                "ALTER TABLE _millstream_ledger RENAME TO old; CREATE TABLE _millstream_ledger (load_key TEXT, \
                 unit_key TEXT, chunk INTEGER, note TEXT, written_at TEXT DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY \
                 (load_key, \
                 unit_key, chunk) {comment}); INSERT INTO _millstream_ledger SELECT * FROM old; DROP TABLE old"
            ));
        };
        ledger("/* Millstream ledger, version 2 */");
        let told = ["the table `_millstream_ledger` beside table t of out.db", newer, "it has version 2", "upgrade"];
        scene.run(&[]).ended(1).says(&told);
        scene.run(&["--resume"]).ended(1).says(&told);
        assert_eq!(scene.query("SELECT count(*) FROM t"), rows);
        // A ledger without a version is read.
        ledger("");
        resume_chunks(scene);
    });
}

/// The same in a server, where the version is a comment on the table.
#[test]
fn a_newer_ledger_in_a_server_is_refused() {
    let newer = "was written by a newer version of Millstream";
    for [database, table] in crate::use_databases::Database::both().map(|one| [one.clone(), one]) {
        let is_mariadb = database.url.starts_with("mysql");
        let comment = |text: &str| match is_mariadb {
            true => table.query(&format!("ALTER TABLE _millstream_ledger COMMENT = '{text}'")),
            false => table.query(&format!("COMMENT ON TABLE _millstream_ledger IS '{text}'")),
        };
        let lab = Lab::new();
        lab.file("in/0.jsonl", records(0..10));
        let job = |more: &str| {
            format!(
                "sources:\n  s: {{read: 'in/*', json: {{}}, incremental: true}}\n\
                 sinks:\n  o: {{from: s, write: '{}', table: t{more}}}\n",
                database.url
            )
        };
        lab.file("job.yaml", job(""));
        lab.run(&["run", "job.yaml"]).ok();
        let says = match is_mariadb {
            true => {
                "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = \
                     '_millstream_ledger'"
            }
            false => "SELECT obj_description('_millstream_ledger'::regclass)",
        };
        assert_eq!(database.query(says), ["Millstream ledger, version 1"]);
        comment("Millstream ledger, version 2");
        lab.file("in/1.jsonl", records(10..20));
        let told = ["`_millstream_ledger` beside table t of", newer, "it has version 2", "upgrade Millstream"];
        lab.run(&["run", "job.yaml"]).ended(1).says(&told);
        lab.file("other.yaml", job(", atomic: true").replace(", incremental: true", ""));
        lab.run(&["run", "other.yaml"]).ended(1).says(&told);
        assert_eq!(database.query("SELECT count(*) FROM t"), ["10"]);
        // The first version wrote no comment.
        comment("");
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(database.query("SELECT count(*), count(DISTINCT id) FROM t"), ["20\t20"]);
        assert_eq!(database.query(says).concat().replace("NULL", ""), "", "a table that is there stays as it is");
    }
}

fn record(id: usize) -> String {
    format!(r#"{{"id": {id}, "name": "row {id} é", "half": {}}}"#, id % 2)
}

fn records(ids: std::ops::Range<usize>) -> String {
    ids.fold(String::new(), |mut text, id| {
        let _ = writeln!(text, "{}", record(id));
        text
    })
}

const FILES: usize = 5;

/// Files of several kinds: plain, packed, and an archive.
fn inputs(scene: &Scene) {
    let of = |file: usize| records(file * RECORDS..(file + 1) * RECORDS);
    scene.file("in/0.jsonl", of(0));
    scene.file("in/1.jsonl.gz", gzip(of(1).as_bytes()));
    scene.file("in/2.zip", zip_of(&[("a.jsonl", of(2).as_bytes()), ("b.jsonl", of(3).as_bytes())]));
    scene.file("in/4.jsonl", of(4));
}

/// Every kind of transform that goes row by row, so that the fingerprints of all of them are compared.
fn job(scene: &Scene, source: &str, sink: &str) -> String {
    format!(
        "# Rows of three files and of others.\n\
         sources:\n  \
         s: {{read: ['in/0.jsonl', 'in/1*', 'in/2.zip'], json: {{columns: {COLUMNS}}}{source}}}\n  \
         s2: {{read: 'in/[4-9].jsonl', json: {{}}{source}}}\n\
         transforms:\n  \
         t: {{filter: {{from: s, where: 'half = 0 OR id > 5'}}}}\n  \
         q: {{sql: 'SELECT id, upper(name) AS name FROM t'}}\n  \
         q2: {{select: {{from: s2, columns: [id, 'upper(name) AS name']}}}}\n  \
         u: {{union: [q, q2]}}\n\
         sinks:\n  \
         o: {{from: u, write: '{}', table: t{sink}}}\n",
        scene.url()
    )
}

const COLUMNS: &str = "{id: int64, name: utf8, half: int64}";

#[track_caller]
fn assert_rows(scene: &Scene, expected: &BTreeMap<String, usize>) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for row in scene.query("SELECT id, name FROM t") {
        *found.entry(row).or_default() += 1;
    }
    assert_eq!(&found, expected);
}

fn make_chunks(scene: &Scene) {
    inputs(scene);
    scene.lab.file("job.yaml", job(scene, "", ""));
    scene.killed("commit.after:2");
    let loaded: usize = scene.query("SELECT count(*) FROM t")[0].parse().expect("a number");
    assert!((1..FILES * RECORDS - 100).contains(&loaded), "{loaded}");
}

fn resume_chunks(scene: &Scene) {
    scene.run(&[]).ended(1).says(&["an earlier run of this job is unfinished"]);
    scene.run(&["--resume"]).ok().says(&["resumed run"]);
    assert_rows(scene, &expected(0..FILES * RECORDS));
    assert_eq!(scene.tables(), ["t"]);
    scene.run(&["--resume"]).ok().says(&["nothing new"]);
}

fn make_at_once(scene: &Scene, fail_point: &str) {
    inputs(scene);
    let job = job(scene, "", ", atomic: true")
        .replace("  u: {union: [q, q2]}", "  v: {union: [q, q2]}\n  u: {sort: {from: v, by: [id, name]}}");
    let job = match scene.target {
        Target::Sqlite => job.replace(", atomic: true", ""),
        _ => job,
    };
    scene.lab.file("job.yaml", job);
    scene.change("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
    scene.killed(fail_point);
    let loaded = if fail_point == "publish.after" { expected(0..FILES * RECORDS).len() } else { 0 };
    assert_eq!(scene.query("SELECT count(*) FROM t"), [loaded.to_string()]);
}

fn resume_at_once(scene: &Scene) {
    scene.run(&["--resume"]).ok();
    assert_rows(scene, &expected(0..FILES * RECORDS));
    assert_eq!(scene.tables(), ["t"]);
    scene.run(&["--resume"]).ok().says(&["nothing new"]);
}

fn make_incremental(scene: &Scene) {
    inputs(scene);
    scene.lab.file("job.yaml", job(scene, ", incremental: true", ""));
    scene.run(&[]).ok();
    scene.file("in/5.jsonl", records(FILES * RECORDS..(FILES + 3) * RECORDS));
    scene.killed("commit.after:1");
}

fn resume_incremental(scene: &Scene) {
    scene.run(&[]).ok();
    assert_rows(scene, &expected(0..(FILES + 3) * RECORDS));
    scene.run(&[]).ok().says(&["nothing new", "5 files were loaded before"]);
    scene.lab.file("in/6.jsonl", records((FILES + 3) * RECORDS..(FILES + 4) * RECORDS));
    scene.run(&[]).ok();
    assert_rows(scene, &expected(0..(FILES + 4) * RECORDS));
    assert_eq!(scene.tables(), ["_millstream_ledger", "t"]);
}

/// Adds rows to a database of SQLite, which the next run reads.
fn timed(scene: &Scene, ids: std::ops::Range<usize>) {
    let path = scene.lab.path("src.db");
    let connection = rusqlite::Connection::open(path).expect("a database");
    connection.execute_batch("CREATE TABLE IF NOT EXISTS rows (id INTEGER, at TEXT)").expect("a table");
    for id in ids {
        let insert = "INSERT INTO rows VALUES (?1, strftime('%Y-%m-%d %H:%M:%f', 'now'))";
        connection.execute(insert, [i64::try_from(id).expect("a small number")]).expect("a row");
    }
    std::thread::sleep(Duration::from_millis(1_100));
}

const TIMED: &str = "{read: 'sqlite:src.db', sqlite: {query: 'SELECT * FROM rows'}, incremental: {by: at, lag: 0s}}";

/// The second run has published its rows and its mark, and is not recorded.
fn make_marks(scene: &Scene) {
    let sink = format!("o: {{from: s, write: '{}', table: t}}", scene.url());
    scene.lab.file("job.yaml", format!("sources:\n  s: {TIMED}\nsinks:\n  {sink}\n"));
    timed(scene, 0..100);
    scene.run(&[]).ok();
    timed(scene, 100..200);
    scene.killed("publish.after");
}

fn resume_marks(scene: &Scene) {
    let count = || scene.query("SELECT count(*), count(DISTINCT id) FROM t");
    scene.run(&[]).ok();
    assert_eq!(count(), ["200\t200"]);
    timed(scene, 200..300);
    scene.run(&[]).ok();
    assert_eq!(count(), ["300\t300"]);
    assert_eq!(scene.tables(), ["_millstream_ledger", "t"]);
    let job = scene.lab.read("job.yaml");
    scene.lab.file("job.yaml", job.replace("FROM rows", "FROM rows WHERE id > 5"));
    scene.run(&[]).ended(1).says(&["the `query` of `s` has changed"]);
}

/// Lists of files: one notes files, the other a mark that has replaced another one.
fn make_lists(scene: &Scene) {
    scene.lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: 'in/*.csv', csv: {{columns: {{id: int64}}}}, incremental: true}}\n  r: \
             {TIMED}\nsinks:\n  o: {{from: s, write: 'files/{{run}}.csv', mode: append}}\n  p: {{from: r, write: \
             'rows/{{run}}.csv', mode: append}}\n"
        ),
    );
    for (file, kill) in [(0, None), (1, Some("publish.after"))] {
        scene.file(&format!("in/{file}.csv"), format!("id\n{file}\n"));
        timed(scene, file..file + 1);
        match kill {
            None => drop(scene.run(&[]).ok()),
            Some(kill) => scene.killed(kill),
        }
    }
    let version = |folder: &str| {
        let list =
            fs_err::read_to_string(scene.lab.path(&format!("{folder}/.{{run}}.csv.millstream.json"))).expect("a list");
        serde_json::from_str::<Value>(&list).expect("JSON")["version"].clone()
    };
    assert_eq!((version("files"), version("rows")), (3.into(), 4.into()));
}

fn resume_lists(scene: &Scene) {
    let ids = |folder: &str| {
        let files = names(&scene.lab.path(folder)).into_iter().filter(|name| !name.starts_with('.'));
        let rows = files.flat_map(|name| csv_rows(&scene.lab.read(&format!("{folder}/{name}"))));
        sorted(rows.map(|row| row[0].clone()).collect())
    };
    scene.run(&[]).ok();
    assert_eq!(
        (ids("files"), ids("rows")),
        (vec!["0".to_owned(), "1".to_owned()], vec!["0".to_owned(), "1".to_owned()])
    );
    scene.file("in/2.csv", "id\n2\n");
    timed(scene, 2..3);
    scene.run(&[]).ok();
    assert_eq!((ids("files").len(), ids("rows").len()), (3, 3));
}

/// Rows that are merged into a table, some of which are staged.
fn make_staged(scene: &Scene) {
    inputs(scene);
    scene.change("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(40))");
    scene.lab.file("job.yaml", job(scene, "", ", mode: merge, key: [id]"));
    scene.killed("commit.after:2");
    assert_eq!(scene.query("SELECT count(*) FROM t"), ["0"]);
}

/// Unpacked files count as others, so their rows are staged again: once, whatever was staged before.
fn resume_staged(scene: &Scene) {
    scene.run(&["--resume"]).ok();
    assert_rows(scene, &expected(0..FILES * RECORDS));
    assert_eq!(scene.tables(), ["t"]);
}

/// A set of files, and one that replaces it, whose run was killed when it had begun to give the files their names: that
/// is what the renamed plan says.
fn make_files(scene: &Scene) {
    for (name, values) in [("a", 0..3), ("b", 3..6), ("c", 6..9)] {
        let rows = values.fold("kind,n\n".to_owned(), |text, n| text + &format!("{name},{n}\n"));
        scene.file(&format!("in/{name}.csv"), rows);
    }
    scene.lab.file(
        "job.yaml",
        "sources: {s: {read: 'in/*.csv'}}\n\
         sinks:\n  o: {from: s, write: out/rows.csv, split: kind, overwrite: true}\n  \
         p: {from: s, write: out/all.csv}\n",
    );
    scene.run(&[]).ok();
    fs_err::remove_file(scene.lab.path("in/c.csv")).expect("it is there");
    scene.file("in/a.csv", "kind,n\na,100\n");
    scene.killed("publish.before");
    let temporary = scene.lab.path("out/.rows.csv.tmp");
    fs_err::rename(temporary.join("plan.new"), temporary.join("plan.json")).expect("it is there");
}

fn resume_files(scene: &Scene) {
    assert!(scene.lab.path("out/rows-c.csv").exists());
    scene.run(&["--resume"]).ok();
    let rows = |name: &str| csv_rows(&scene.lab.read(name)).concat().join(" ");
    assert_eq!(names(&scene.lab.path("out")), [".rows.csv.millstream.json", "all.csv", "rows-a.csv", "rows-b.csv"]);
    assert_eq!(sorted(vec![rows("out/rows-a.csv"), rows("out/rows-b.csv")]), ["a 100", "b 3 b 4 b 5"]);
    assert_eq!(csv_rows(&scene.lab.read("out/all.csv")).len(), 4);
    // The list of either version says which files belong to the set.
    fs_err::remove_file(scene.lab.path("in/b.csv")).expect("it is there");
    scene.run(&[]).ok();
    assert_eq!(names(&scene.lab.path("out")), [".rows.csv.millstream.json", "all.csv", "rows-a.csv"]);
}

/// Rejects of a parser, of an expression, and of the table, of a run that was killed.
fn make_rejects(scene: &Scene) {
    let rows = (0..600).fold(String::new(), |mut text, id| {
        let _ = match id % 100 {
            7 => writeln!(text, r#"{{"id": {id}, "amount":"#),
            8 => writeln!(text, r#"{{"id": {id}, "amount": 0}}"#),
            9 => writeln!(text, r#"{{"id": {id}, "amount": 40000}}"#),
            _ => writeln!(text, r#"{{"id": {id}, "amount": 10}}"#),
        };
        text
    });
    scene.file("in/0.jsonl", rows);
    scene.lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: 'in/*', max_rejects: 10%, json: {{columns: {{id: int64, amount: int64}}}}}}\n\
             transforms:\n  \
             t: {{select: {{from: s, columns: [id, amount, '100 / amount AS part']}}, max_rejects: 10%}}\n\
             sinks:\n  o: {{from: t, write: '{}', table: t, max_rejects: 10%}}\n",
            scene.url()
        ),
    );
    scene.change("CREATE TABLE t (id BIGINT PRIMARY KEY, amount BIGINT CHECK (amount < 32768), part BIGINT)");
    scene.killed("commit.after:1");
    assert_ne!(scene.query("SELECT count(*) FROM t"), ["0"]);
    assert!(scene.lab.path(".state/rejects").is_dir());
}

fn resume_rejects(scene: &Scene) {
    scene.run(&["--resume"]).ok();
    let rejects = || {
        let ran = finish(scene.command(&["rejects", "last", "--json"]), None).ok().json();
        let waiting = ran["rejects"].as_array().expect("a list").iter().filter(|one| one["replayed"] == false);
        let kinds = waiting.map(|one| one["kind"].as_str().unwrap_or_default().to_owned());
        kinds.fold(BTreeMap::<String, usize>::new(), |mut counts, kind| {
            *counts.entry(kind).or_default() += 1;
            counts
        })
    };
    let of = |counts: &[(&str, usize)]| {
        counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(rejects(), of(&[("constraint", 6), ("expression", 6), ("syntax", 6)]));
    assert_eq!(scene.query("SELECT count(*), count(DISTINCT id) FROM t"), ["582\t582"]);
    scene.change(
        "CREATE TABLE wide (id BIGINT PRIMARY KEY, amount BIGINT, part BIGINT); INSERT INTO wide SELECT * FROM t; \
         DROP TABLE t; ALTER TABLE wide RENAME TO t",
    );
    finish(scene.command(&["rejects", "last", "--replay"]), None).ok();
    assert_eq!(rejects(), of(&[("expression", 6), ("syntax", 6)]));
    assert_eq!(scene.query("SELECT count(*), count(DISTINCT id) FROM t"), ["588\t588"]);
}

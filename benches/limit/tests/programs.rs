//! The programs do what the harness relies on.

#![allow(clippy::unwrap_used, reason = "a test may end where it cannot go on")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const SLOW: &str = env!("CARGO_BIN_EXE_slow-server");
const TEXT: &str = "one\ntwo\nthree\n";

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn limit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_limit")).args(arguments).output().unwrap()
}

/// Writes files and a list of them, and counts their lines with two threads.
fn whole(files: &[Vec<u8>]) -> Output {
    let folder = TempDir::new().unwrap();
    let mut list = String::new();
    for (number, file) in files.iter().enumerate() {
        let path = folder.path().join(number.to_string());
        fs_err::write(&path, file).unwrap();
        list.push_str(&format!("{}\n", path.display()));
    }
    let path = folder.path().join("list");
    fs_err::write(&path, list).unwrap();
    limit(&["whole", "2", &path.to_string_lossy()])
}

#[test]
fn lines_of_whole_files() {
    let large = TEXT.repeat(200_000);
    let small = zstd::encode_all(TEXT.as_bytes(), 3).unwrap();
    let frames = [zstd::encode_all(large.as_bytes(), 3).unwrap(), small.clone()].concat();
    let counted = whole(&[gzip(TEXT.as_bytes()), gzip(large.as_bytes()), gzip(b""), small, frames]);
    assert_eq!(String::from_utf8_lossy(&counted.stdout), "1200009\n");
}

#[test]
fn a_file_that_is_cut_is_no_short_file() {
    let text = TEXT.repeat(1000);
    let (gzip, zstd) = (gzip(text.as_bytes()), zstd::encode_all(text.as_bytes(), 3).unwrap());
    for cut in [&gzip[..gzip.len() - 9], &zstd[..zstd.len() - 1]] {
        let counted = whole(&[cut.to_vec()]);
        assert!(!counted.status.success() && counted.stdout.is_empty(), "{counted:?}");
    }
}

#[test]
fn lines_of_a_stream() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("members.gz");
    fs_err::write(&path, [gzip(TEXT.as_bytes()), gzip(TEXT.as_bytes())].concat()).unwrap();
    assert_eq!(limit(&["stream", &path.to_string_lossy()]).stdout, b"6\n");
}

#[test]
fn the_stop_watch_counts_all_processes_of_a_pipeline() {
    let folder = TempDir::new().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(env!("CARGO_BIN_EXE_measure"))
        .arg(&report)
        .args(["sh", "-c", "sleep 0.2; head -c 30000000 /dev/zero | tail -c 20000000 > /dev/null; exit 3"])
        .status()
        .unwrap();
    assert!(status.success());
    let report = fs_err::read_to_string(&report).unwrap();
    let number = |name: &str| -> f64 {
        let rest = report.split_once(&format!("\"{name}\": ")).unwrap().1;
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    };
    assert!(number("wall") >= 0.2, "{report}");
    assert_eq!(number("status"), 3.0);
    // `tail` holds what it has to print; the shell itself is far smaller.
    assert!(number("peak_rss") >= 20e6, "{report}");
    assert!(number("user") + number("system") > 0.0, "{report}");
}

/// A server for a folder with one file, ended with the value.
struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    fn new(program: &str, arguments: &[&str]) -> Server {
        let folder = TempDir::new().unwrap();
        fs_err::create_dir(folder.path().join("sub")).unwrap();
        fs_err::write(folder.path().join("sub/file"), TEXT).unwrap();
        let mut child = Command::new(program)
            .arg(folder.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut byte = [0];
        let printed = child.stdout.as_mut().unwrap();
        while printed.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            port.push(char::from(byte[0]));
        }
        Server { child, port: port.parse().unwrap(), _folder: folder }
    }

    /// Sends requests over one connection, and reads until the server ends it.
    fn ask(&self, requests: &str) -> (String, Duration) {
        let start = Instant::now();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        (answers, start.elapsed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn the_slow_server_takes_its_time_for_each_answer() {
    let server = Server::new(SLOW, &["50", "100"]);
    let (answers, took) =
        server.ask("GET /sub/file HTTP/1.1\r\n\r\nHEAD /sub/file HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert_eq!(answers.matches("Content-Length: 14\r\n").count(), 2, "{answers}");
    assert_eq!(answers.matches(TEXT).count(), 1, "{answers}");
    assert!(took >= Duration::from_millis(200), "{took:?}");
    let (answers, _) = server.ask("GET /.connections HTTP/1.0\r\n\r\n");
    assert!(answers.ends_with("\r\n\r\n1") || answers.ends_with("\r\n\r\n2"), "{answers}");
}

#[test]
fn the_slow_server_stays_in_its_folder() {
    let server = Server::new(SLOW, &["0", "0"]);
    for path in ["/absent", "/sub", "/../Cargo.toml", "//etc/passwd", "/sub/../../etc/passwd"] {
        let (answers, _) = server.ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert!(answers.starts_with("HTTP/1.1 404 "), "{path}: {answers}");
    }
    let (answers, _) = server.ask("PUT /sub/file HTTP/1.0\r\n\r\n");
    assert!(answers.starts_with("HTTP/1.1 405 "), "{answers}");
}

#[test]
fn the_s3_server_lists_and_gives_objects_to_everybody() {
    let server = Server::new(env!("CARGO_BIN_EXE_s3-server"), &[]);
    let ask = |path: &str| server.ask(&format!("GET {path} HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n")).0;
    let (listed, given) = (ask("/sub?list-type=2"), ask("/sub/file"));
    assert!(listed.contains("<Key>file</Key>"), "{listed}");
    assert!(given.starts_with("HTTP/1.1 200 ") && given.ends_with(TEXT), "{given}");
    assert!(ask("/sub/absent").starts_with("HTTP/1.1 404 "));
}

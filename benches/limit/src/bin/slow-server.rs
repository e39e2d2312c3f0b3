//! A web server that is far away: it serves the files of a folder, each answer a fixed time after its request.
//!
//! ```text
//! slow-server FOLDER ANSWER_MILLISECONDS CONNECT_MILLISECONDS
//! ```
//!
//! A new connection costs CONNECT_MILLISECONDS once, as handshakes over a long distance do. It prints its port, serves
//! on loopback, and ends when its standard input does. `GET /.connections` answers with the most connections that were
//! open since the last such request.
//!
//! A thread for each connection, and `sleep`: the timers of asynchronous runtimes count whole milliseconds, which would
//! be a part of what is measured here.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest request that it accepts.
const LONGEST_REQUEST: usize = 64 << 10;
/// There are many threads, which need little stack.
const STACK: usize = 128 << 10;

static OPEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Place {
    folder: PathBuf,
    answer: Duration,
    connect: Duration,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, answer, connect] = &arguments[..] else {
        eprintln!("usage: slow-server FOLDER ANSWER_MILLISECONDS CONNECT_MILLISECONDS");
        return ExitCode::FAILURE;
    };
    match serve(folder, answer, connect) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slow-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &str, answer: &str, connect: &str) -> io::Result<()> {
    let milliseconds = |text: &str| text.parse().map(Duration::from_millis).map_err(io::Error::other);
    let place = Place { folder: folder.into(), answer: milliseconds(answer)?, connect: milliseconds(connect)? };
    // Lives as long as the process, so that threads may borrow it.
    let place: &'static Place = Box::leak(Box::new(place));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    thread::Builder::new().stack_size(STACK).spawn(move || accept(&listener, place))?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

fn accept(listener: &TcpListener, place: &'static Place) {
    for stream in listener.incoming().flatten() {
        let started = thread::Builder::new().stack_size(STACK).spawn(move || {
            MOST.fetch_max(OPEN.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            // A client that disconnects is no error.
            let _ = converse(stream, place);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = started {
            eprintln!("slow-server: {error}");
        }
    }
}

/// Answers the requests of one connection, in order, until either side ends it.
fn converse(mut stream: TcpStream, place: &Place) -> io::Result<()> {
    stream.set_nodelay(true)?;
    thread::sleep(place.connect);
    let mut received = Vec::new();
    while let Some(length) = request(&mut stream, &mut received)? {
        let arrived = Instant::now();
        let head = String::from_utf8_lossy(&received[..length]).into_owned();
        received.drain(..length);
        let (answer, delayed) = answer(&head, place);
        if delayed {
            thread::sleep(place.answer.saturating_sub(arrived.elapsed()));
        }
        stream.write_all(&answer)?;
        if closes(&head) {
            break;
        }
    }
    Ok(())
}

/// Reads on to the end of a request, and gives its length; none when the client has ended the connection.
fn request(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(end + 4));
        }
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            _ if received.len() > LONGEST_REQUEST => return Err(io::ErrorKind::InvalidData.into()),
            length => received.extend_from_slice(&piece[..length]),
        }
    }
}

fn closes(head: &str) -> bool {
    let head = head.to_ascii_lowercase();
    let old = head.lines().next().is_some_and(|line| line.ends_with("http/1.0"));
    head.contains("\r\nconnection: close") || (old && !head.contains("\r\nconnection: keep-alive"))
}

/// The answer to a request, and whether it comes late.
fn answer(head: &str, place: &Place) -> (Vec<u8>, bool) {
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if path == "/.connections" {
        let most = MOST.swap(OPEN.load(Ordering::Relaxed), Ordering::Relaxed);
        return (message("200 OK", method, most.to_string().as_bytes()), false);
    }
    let body = inside(&place.folder, path).and_then(|path| fs_err::read(path).ok());
    let message = match (method, body) {
        ("GET" | "HEAD", Some(body)) => message("200 OK", method, &body),
        ("GET" | "HEAD", None) => message("404 Not Found", method, b"not found\n"),
        _ => message("405 Method Not Allowed", method, b"GET and HEAD only\n"),
    };
    (message, true)
}

/// The file that a request names, if it is one below the folder. Names are plain here: nothing is escaped.
fn inside(folder: &Path, path: &str) -> Option<PathBuf> {
    let below = Path::new(path.trim_start_matches('/'));
    below.components().all(|part| matches!(part, Component::Normal(_))).then(|| folder.join(below))
}

fn message(status: &str, method: &str, body: &[u8]) -> Vec<u8> {
    let kind = "application/octet-stream";
    let message = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut message = message.into_bytes();
    if method != "HEAD" {
        message.extend_from_slice(body);
    }
    message
}

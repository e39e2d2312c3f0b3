//! A web server with planned faults. It speaks just enough HTTP/1.1, and records its requests.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The fault of one answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Closes the connection without an answer.
    Close,
    /// Closes the connection after some bytes of the body.
    Cut {
        /// Bytes of the body.
        after: usize,
    },
    /// Sends some bytes of the body, nothing for a time, and closes the connection.
    Stall {
        /// Bytes of the body.
        after: usize,
        /// The time of silence.
        time: Duration,
    },
    /// Sends the right body with this wrong length in the header, and closes the connection.
    Length(usize),
    /// Sends another answer.
    Answer(Answer),
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    /// An answer with an empty body.
    pub fn status(status: u16) -> Self {
        Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

/// The content of one path.
#[derive(Debug, Clone)]
pub struct Object {
    body: Vec<u8>,
    headers: Vec<(String, String)>,
    ranges: bool,
    heads: bool,
    chunked: bool,
    delay: Duration,
    faults: VecDeque<Fault>,
    always: Option<Fault>,
    next: Option<(usize, Box<Object>)>,
}

impl Object {
    /// An object that is served without faults, with ranges, and without an etag.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Object {
            body: body.into(),
            headers: Vec::new(),
            ranges: true,
            heads: true,
            chunked: false,
            delay: Duration::ZERO,
            faults: VecDeque::new(),
            always: None,
            next: None,
        }
    }

    /// Adds a header to every answer with the body.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// Sets the etag (with its quotes).
    pub fn etag(self, etag: &str) -> Self {
        self.header("etag", etag)
    }

    /// Ignores ranges: the answer is the whole body.
    pub fn without_ranges(mut self) -> Self {
        self.ranges = false;
        self
    }

    /// Answers HEAD with 405.
    pub fn without_heads(mut self) -> Self {
        self.heads = false;
        self
    }

    /// Sends the body in chunks, without its length.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// Delays every answer.
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The next `times` answers have this fault; further calls add to them.
    pub fn fault(mut self, times: usize, fault: Fault) -> Self {
        self.faults.extend(std::iter::repeat_n(fault, times));
        self
    }

    /// After the planned faults, every answer has this fault.
    pub fn always(mut self, fault: Fault) -> Self {
        self.always = Some(fault);
        self
    }

    /// After so many requests, another object replaces it.
    pub fn replaced_after(mut self, requests: usize, object: Object) -> Self {
        self.next = Some((requests, Box::new(object)));
        self
    }
}

/// The objects by their paths.
#[derive(Debug, Clone, Default)]
pub struct Plan(HashMap<String, Object>);

impl Plan {
    /// No objects: every path is answered with 404.
    pub fn new() -> Self {
        Plan::default()
    }

    /// Puts an object at `path`, which begins with a slash.
    pub fn object(mut self, path: &str, object: Object) -> Self {
        self.0.insert(path.to_owned(), object);
        self
    }
}

/// A recorded request.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `HEAD` or another one, which is answered like `GET`.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The number of the connection, from 1.
    pub connection: usize,
    /// When it came.
    pub at: Instant,
    /// Its body.
    pub body: String,
}

impl Request {
    /// The value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug, Default)]
struct Shared {
    plan: Mutex<HashMap<String, Object>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    stopped: AtomicBool,
}

/// The server; it stops listening when dropped.
#[derive(Debug)]
pub struct FaultServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[expect(clippy::expect_used, reason = "tests stop here")]
impl FaultServer {
    /// Listens on a free port of loopback.
    pub fn start(plan: Plan) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { plan: Mutex::new(plan.0), ..Shared::default() });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        FaultServer { address, shared, thread: Some(thread) }
    }

    /// The URL of `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Puts an object at `path` while the server runs: one that redirects to the server itself, for example.
    pub fn put(&self, path: &str, object: Object) {
        lock(&self.shared.plan).insert(path.to_owned(), object);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(stream) = stream {
            let shared = Arc::clone(shared);
            let connection = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
            // A client that disconnects causes an error, which does not matter.
            std::thread::spawn(move || serve(stream, connection, &shared));
        }
    }
}

/// Answers the requests of one connection until either side closes it.
fn serve(stream: TcpStream, connection: usize, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader, connection)? {
        lock(&shared.requests).push(request.clone());
        let planned = plan(shared, &request.path);
        let kept = match planned {
            Some((object, fault)) => {
                std::thread::sleep(object.delay);
                answer(&mut writer, &request, &object, fault)?
            }
            None => send(&mut writer, &request, &Answer::status(404).body("there is nothing here"))?,
        };
        if !kept {
            return Ok(());
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead, connection: usize) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => {
                let (at, body) = (Instant::now(), String::new());
                let mut request = Request { method, path, headers, connection, at, body };
                let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
                let mut body = Vec::new();
                std::io::copy(&mut reader.take(length), &mut body)?;
                request.body = String::from_utf8_lossy(&body).into_owned();
                return Ok(Some(request));
            }
        }
    }
}

/// The current object at `path`, and the fault of this answer.
fn plan(shared: &Shared, path: &str) -> Option<(Object, Option<Fault>)> {
    let mut plan = lock(&shared.plan);
    let object = plan.get_mut(path)?;
    match object.next.take() {
        Some((0, next)) => *object = *next,
        Some((requests, next)) => object.next = Some((requests - 1, next)),
        None => {}
    }
    let fault = object.faults.pop_front().or_else(|| object.always.clone());
    Some((object.clone(), fault))
}

/// Answers with the object or the fault. Returns whether the connection can be reused.
fn answer(writer: &mut TcpStream, request: &Request, object: &Object, fault: Option<Fault>) -> std::io::Result<bool> {
    match &fault {
        Some(Fault::Close) => return Ok(false),
        Some(Fault::Answer(answer)) => return send(writer, request, answer),
        _ => {}
    }
    if request.method == "HEAD" && !object.heads {
        return send(writer, request, &Answer::status(405));
    }
    let total = object.body.len();
    let mut reply = Answer { status: 200, headers: object.headers.clone(), body: object.body.clone() };
    if let Some(range) = wanted_range(request, object) {
        if range.start >= total {
            return send(writer, request, &Answer::status(416).header("content-range", format!("bytes */{total}")));
        }
        reply.status = 206;
        reply.headers.push(("content-range".into(), format!("bytes {}-{}/{total}", range.start, range.end - 1)));
        reply.body = object.body[range].to_vec();
    }
    if object.chunked {
        reply.headers.push(("transfer-encoding".into(), "chunked".into()));
    }
    let (sent, silence) = match fault {
        Some(Fault::Cut { after }) => (after, Duration::ZERO),
        Some(Fault::Stall { after, time }) => (after, time),
        Some(Fault::Length(length)) => {
            reply.headers.push(("content-length".into(), length.to_string()));
            (reply.body.len(), Duration::ZERO)
        }
        _ => return send(writer, request, &reply),
    };
    writer.write_all(head(&reply).as_bytes())?;
    let body = &reply.body[..sent.min(reply.body.len())];
    if object.chunked {
        writer.write_all(format!("{:x}\r\n", body.len()).as_bytes())?;
    }
    writer.write_all(body)?;
    writer.flush()?;
    std::thread::sleep(silence);
    Ok(false)
}

/// The requested range, if ranges are served and the version matches.
fn wanted_range(request: &Request, object: &Object) -> Option<Range<usize>> {
    if !object.ranges {
        return None;
    }
    let (first, last) = request.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
    if let Some(version) = request.header("if-range") {
        let same = |(name, value): &(String, String)| {
            (name == "etag" && !value.starts_with("W/") || name == "last-modified") && value == version
        };
        if !object.headers.iter().any(same) {
            return None;
        }
    }
    let end = last.parse().map_or(object.body.len(), |last: usize| (last + 1).min(object.body.len()));
    Some(first.parse().ok()?..end)
}

fn head(answer: &Answer) -> String {
    let mut head = format!("HTTP/1.1 {} Test\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !answer.headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding") {
        head.push_str(&format!("content-length: {}\r\n", answer.body.len()));
    }
    head + "\r\n"
}

/// Sends a whole answer.
fn send(writer: &mut TcpStream, request: &Request, answer: &Answer) -> std::io::Result<bool> {
    writer.write_all(head(answer).as_bytes())?;
    if request.method == "HEAD" {
        return Ok(true);
    }
    if answer.headers.iter().any(|(name, _)| name == "transfer-encoding") {
        for chunk in answer.body.chunks(10_000) {
            writer.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
            writer.write_all(chunk)?;
            writer.write_all(b"\r\n")?;
        }
        writer.write_all(b"0\r\n\r\n")?;
    } else {
        writer.write_all(&answer.body)?;
    }
    writer.flush()?;
    Ok(true)
}

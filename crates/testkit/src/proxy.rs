//! A proxy between a client and a real server, which breaks connections on purpose.
//!
//! ```text
//!  client ◀── cut, stalled, slow ── proxy ◀── all ── server
//! ```
//!
//! For FTP it also proxies the data connections: it replaces ports in the server's replies by its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What happens to the bytes of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    Nothing,
    /// The connection is closed after so many bytes from the server.
    Cut(u64),
    /// After so many bytes from the server nothing more comes; the connection stays open.
    Stall(u64),
    /// The server's bytes come in pieces of this size, with a pause before each.
    Slow(usize, Duration),
    /// The client's bytes are passed on until this text is among them. The server's answer to that is dropped, and both
    /// sides are closed.
    SwallowAnswer(&'static str),
    /// The same, but the connection stays open.
    SwallowSilently(&'static str),
    /// Both sides are closed when the client has sent so many bytes.
    CutSending(u64),
}

/// A proxy on a free port of loopback; it ends, with its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    /// Whether the server speaks FTP: then its data connections break.
    ftp: bool,
    /// For one connection after the other; the last one holds for all that follow.
    breaks: Vec<Break>,
    connections: AtomicUsize,
    broken: AtomicUsize,
    open: AtomicUsize,
    ended: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy for the server at `target`. The connections break as `breaks` say, one after the other; the last
    /// one holds for all that follow.
    pub fn start(target: u16, breaks: &[Break]) -> Self {
        Proxy::begin(target, breaks, false)
    }

    /// Starts a proxy for the FTP server at `target`: its data connections break.
    pub fn start_ftp(target: u16, breaks: &[Break]) -> Self {
        Proxy::begin(target, breaks, true)
    }

    #[expect(clippy::expect_used, reason = "tests stop here")]
    fn begin(target: u16, breaks: &[Break], ftp: bool) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Arc::new(Shared {
            target,
            ftp,
            breaks: breaks.to_vec(),
            connections: AtomicUsize::new(0),
            broken: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    serving.connections.fetch_add(1, Ordering::SeqCst);
                    serving.serve(client);
                }
            }
        });
        Proxy { port, shared }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there were so far; for FTP, control connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many clients have not hung up yet.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Closes all open connections.
    pub fn close_all(&self) {
        for stream in self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.close_all();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    /// What happens to the next connection.
    fn next_break(&self) -> Break {
        let at = self.broken.fetch_add(1, Ordering::SeqCst);
        self.breaks.get(at).or(self.breaks.last()).copied().unwrap_or(Break::Nothing)
    }

    fn serve(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.target)) else { return };
        let Some((upward, downward)) = self.connect(client, server) else { return };
        let (shared, counting) = (Arc::clone(self), Arc::clone(self));
        self.open.fetch_add(1, Ordering::SeqCst);
        let kind = if self.ftp { Break::Nothing } else { self.next_break() };
        let swallowing = Arc::new(AtomicBool::new(false));
        let swallowed = Arc::clone(&swallowing);
        std::thread::spawn(move || {
            match kind {
                Break::SwallowAnswer(text) | Break::SwallowSilently(text) => {
                    hand_up(upward.0, upward.1, u64::MAX, Some((text, &swallowing)));
                }
                Break::CutSending(bytes) => hand_up(upward.0, upward.1, bytes, None),
                _ => copy(upward.0, upward.1),
            }
            counting.open.fetch_sub(1, Ordering::SeqCst);
        });
        std::thread::spawn(move || match kind {
            _ if shared.ftp => shared.control(downward.0, downward.1),
            Break::SwallowAnswer(_) => swallow(downward.0, downward.1, &swallowed, false),
            Break::SwallowSilently(_) => swallow(downward.0, downward.1, &swallowed, true),
            kind => send(downward.0, downward.1, kind, &shared.ended),
        });
    }

    /// Starts both directions of a connection.
    fn connect(
        &self,
        client: TcpStream,
        server: TcpStream,
    ) -> Option<((TcpStream, TcpStream), (TcpStream, TcpStream))> {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = (client.try_clone().ok()?, client.try_clone().ok()?);
        let (from_server, to_server) = (server.try_clone().ok()?, server.try_clone().ok()?);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).extend([client, server]);
        Some(((from_client, to_server), (from_server, to_client)))
    }

    /// Passes on an FTP server's replies, and replaces the ports in them.
    fn control(self: &Arc<Self>, server: TcpStream, mut client: TcpStream) {
        let mut lines = BufReader::new(server);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            let named = text.strip_prefix("229 ").and_then(|text| text.split("|||").nth(1)?.split('|').next());
            let sent = match named.and_then(|port| port.parse().ok()) {
                Some(port) => match self.data(port) {
                    Some(own) => client.write_all(text.replace(&port.to_string(), &own.to_string()).as_bytes()),
                    None => return,
                },
                None => client.write_all(&line),
            };
            if sent.is_err() {
                return;
            }
            line.clear();
        }
        let _ = client.shutdown(Shutdown::Both);
    }

    /// A port for one data connection to `target`.
    fn data(self: &Arc<Self>, target: u16) -> Option<u16> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
        let port = listener.local_addr().ok()?.port();
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let Ok((client, _)) = listener.accept() else { return };
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
            let Some((upward, downward)) = shared.connect(client, server) else { return };
            let kind = shared.next_break();
            std::thread::spawn(move || copy(upward.0, upward.1));
            send(downward.0, downward.1, kind, &shared.ended);
        });
        Some(port)
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// Passes on what the client sends, up to so many bytes, and sets the flag when the text is among it.
fn hand_up(mut client: TcpStream, mut server: TcpStream, most: u64, noted: Option<(&str, &AtomicBool)>) {
    let mut buffer = vec![0; 64 << 10];
    let mut left = most;
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let bytes = &buffer[..count];
        if let Some((text, noted)) = noted
            && bytes.windows(text.len()).any(|window| window == text.as_bytes())
        {
            noted.store(true, Ordering::SeqCst);
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(count);
        left -= count as u64;
        if server.write_all(&bytes[..count]).is_err() || left == 0 {
            break;
        }
    }
    let _ = server.shutdown(if left == 0 { Shutdown::Both } else { Shutdown::Write });
    if left == 0 {
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Passes on what the server sends until it is to be dropped: then everything is closed, unless it `stays`.
fn swallow(mut server: TcpStream, mut client: TcpStream, swallowing: &AtomicBool, stays: bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        match swallowing.load(Ordering::SeqCst) {
            true if stays => {}
            true => break,
            false if client.write_all(&buffer[..count]).is_err() => break,
            false => {}
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Passes on what the server sends, and breaks as `kind` says.
fn send(mut server: TcpStream, mut client: TcpStream, kind: Break, ended: &AtomicBool) {
    let mut left = match kind {
        Break::Cut(bytes) | Break::Stall(bytes) => bytes,
        _ => u64::MAX,
    };
    let mut buffer = vec![0; if let Break::Slow(bytes, _) = kind { bytes } else { 64 << 10 }];
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Ok(count @ 1..) = server.read(&mut buffer[..most]) else { break };
        if let Break::Slow(_, pause) = kind {
            std::thread::sleep(pause);
        }
        if client.write_all(&buffer[..count]).is_err() {
            break;
        }
        left -= count as u64;
    }
    while matches!(kind, Break::Stall(_)) && left == 0 && !ended.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

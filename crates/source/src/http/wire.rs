//! HTTP/1.1 without encryption, over kept connections: the fast path for many small objects.
//!
//! The cost of small objects is the overhead of requests. The library's client has a task for each connection, and
//! passes every request, answer and piece of a body between tasks. Here the task that waits for an answer drives the
//! connection itself. hyper implements the protocol. The library's client does everything else (encryption, HTTP/2,
//! proxies, bodies of requests).

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::{Position, Url};

use crate::io::within;

/// How long to wait before trying the next address of a host (RFC 8305, section 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// How long an idle connection is kept: servers close idle ones, and some middleboxes drop them silently.
const IDLE: Duration = Duration::from_secs(60);

/// The connections of one client.
#[derive(Debug)]
pub(super) struct Wire {
    /// Idle connections to all servers, the most recently used one last.
    idle: Mutex<VecDeque<Idle>>,
    /// The most idle connections: a list may name any number of servers.
    most_idle: usize,
    connect_timeout: Duration,
    user_agent: HeaderValue,
}

/// Why there is no answer, or an incomplete one.
#[derive(Debug)]
pub(super) enum Failure {
    /// The host's address cannot be found.
    Unresolved(io::Error),
    /// The server did not begin to answer in time.
    Silent,
    /// No connection was made in time.
    Late,
    /// No connection can be made.
    Unreachable(io::Error),
    /// The connection broke, or the bytes are no HTTP.
    Broken(hyper::Error),
}

#[derive(Debug)]
struct Idle {
    server: String,
    connection: Connection,
    since: tokio::time::Instant,
}

struct Connection {
    requests: http1::SendRequest<Empty<Bytes>>,
    driver: Pin<Box<http1::Connection<TokioIo<TcpStream>, Empty<Bytes>>>>,
    /// The driver has ended.
    over: bool,
}

/// The body of an answer. Its connection is reused after its end was read, and closed if it is dropped before.
#[derive(Debug)]
pub(super) struct WireBody {
    body: Incoming,
    connection: Option<Connection>,
    wire: Arc<Wire>,
    server: String,
}

impl Wire {
    pub(super) fn new(most_idle: usize, connect_timeout: Duration, user_agent: HeaderValue) -> Arc<Self> {
        Arc::new(Wire { idle: Mutex::default(), most_idle, connect_timeout, user_agent })
    }

    /// The address of `url`, if it can be requested here.
    pub(super) fn address(url: &Url) -> Option<Address> {
        if url.scheme() != "http" {
            return None;
        }
        Some(Address {
            host: url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_or_known_default()?,
            server: url[Position::BeforeHost..Position::AfterPort].to_owned(),
            target: url[Position::BeforePath..Position::AfterQuery].parse().ok()?,
        })
    }

    /// The answer to a request without a body, which begins within `patience` after it was sent.
    pub(super) async fn ask(
        self: &Arc<Self>,
        method: &Method,
        address: Address,
        headers: &HeaderMap,
        patience: Duration,
    ) -> Result<Response<WireBody>, Failure> {
        let Address { host, port, server, target } = address;
        let request = || {
            let mut request = Request::new(Empty::new());
            *request.method_mut() = method.clone();
            *request.uri_mut() = target.clone();
            *request.headers_mut() = self.completed(headers, &server);
            request
        };
        while let Some(mut connection) = self.take(&server) {
            match within(patience, connection.ask(request())).await {
                Some(Ok(answer)) => return Ok(self.answer(answer, connection, server)),
                // The server has closed it meanwhile, which is no fault of the request.
                Some(Err(error)) if !error.is_parse() => {}
                Some(Err(error)) => return Err(Failure::Broken(error)),
                // A middlebox has dropped it, and probably the others, too.
                None => self.forget(&server),
            }
        }
        let mut connection = self.connect(&host, port).await?;
        match within(patience, connection.ask(request())).await {
            Some(answer) => Ok(self.answer(answer.map_err(Failure::Broken)?, connection, server)),
            None => Err(Failure::Silent),
        }
    }

    /// Drops all idle connections to `server`.
    fn forget(&self, server: &str) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).retain(|idle| idle.server != server);
    }

    /// `headers`, with those of every request.
    fn completed(&self, headers: &HeaderMap, server: &str) -> HeaderMap {
        let mut headers = headers.clone();
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        headers.entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        // A host that the URL parser accepts is valid in a header.
        if let Ok(server) = HeaderValue::from_str(server) {
            headers.entry(HOST).or_insert(server);
        }
        headers
    }

    fn answer(
        self: &Arc<Self>,
        answer: Response<Incoming>,
        connection: Connection,
        server: String,
    ) -> Response<WireBody> {
        let (connection, wire) = (Some(connection), Arc::clone(self));
        answer.map(|body| WireBody { body, connection, wire, server })
    }

    async fn connect(&self, host: &str, port: u16) -> Result<Connection, Failure> {
        let connecting = async {
            let addresses = tokio::net::lookup_host((host, port)).await.map_err(Failure::Unresolved)?;
            let stream = first_of(addresses).await.map_err(Failure::Unreachable)?;
            // Requests are small, and must be sent at once.
            stream.set_nodelay(true).map_err(Failure::Unreachable)?;
            let (requests, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
            Ok(Connection { requests, driver: Box::pin(driver), over: false })
        };
        within(self.connect_timeout, connecting).await.unwrap_or(Err(Failure::Late))
    }

    /// The most recently used idle connection to `server`.
    fn take(&self, server: &str) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let last = idle.iter().rposition(|idle| idle.server == server)?;
        let last = idle.remove(last)?;
        (last.since.elapsed() < IDLE).then_some(last.connection)
    }

    fn keep(&self, server: String, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while idle.front().is_some_and(|first| idle.len() >= self.most_idle || first.since.elapsed() >= IDLE) {
            idle.pop_front();
        }
        idle.push_back(Idle { server, connection, since: tokio::time::Instant::now() });
    }
}

/// The destination of a request, from a URL.
#[derive(Debug)]
pub(super) struct Address {
    host: String,
    port: u16,
    /// Host and port as the header `Host` has them.
    server: String,
    target: Uri,
}

impl Connection {
    async fn ask(&mut self, request: Request<Empty<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.ready().await?;
        let answer = self.requests.send_request(request);
        self.drive(answer).await
    }

    async fn ready(&mut self) -> hyper::Result<()> {
        if self.requests.is_ready() {
            return Ok(());
        }
        std::future::poll_fn(|context| {
            self.turn(context);
            self.requests.poll_ready(context)
        })
        .await
    }

    /// Runs `work` while driving the connection.
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            self.turn(context);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Drives the connection without waiting. Errors reach those who wait for an answer or its body.
    fn turn(&mut self, context: &mut std::task::Context<'_>) {
        self.over = self.over || self.driver.as_mut().poll(context).is_ready();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("over", &self.over).finish_non_exhaustive()
    }
}

impl WireBody {
    /// The next piece; nothing at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            match connection.drive(self.body.frame()).await.transpose().map_err(Failure::Broken)? {
                Some(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                None => self.end().await,
            }
        }
    }

    /// Returns the connection after the end of the body.
    async fn end(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        std::future::poll_fn(|context| {
            connection.turn(context);
            Poll::Ready(())
        })
        .await;
        if !connection.over && connection.requests.is_ready() {
            self.wire.keep(std::mem::take(&mut self.server), connection);
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unresolved(error) | Failure::Unreachable(error) => error.fmt(f),
            Failure::Late | Failure::Silent => f.write_str("too late"),
            Failure::Broken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Failure::Unresolved(error) | Failure::Unreachable(error) => Some(error),
            Failure::Late | Failure::Silent => None,
            Failure::Broken(error) => Some(error),
        }
    }
}

/// A connection to the first of `addresses` that accepts it.
async fn first_of(mut addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let mut attempts = FuturesUnordered::new();
    loop {
        let next = addresses.next();
        let more = next.is_some();
        attempts.extend(next.map(TcpStream::connect));
        tokio::select! {
            attempt = attempts.next() => match attempt {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => last = error,
                None => return Err(last),
            },
            () = tokio::time::sleep(NEXT_ADDRESS), if more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Answers a request on each of so many connections, and closes them silently.
    fn forgetful(connections: usize) -> (Url, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let url = format!("http://{}/a", listener.local_addr().expect("bound"));
        let serving = std::thread::spawn(move || {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("a request");
                    request.push(byte[0]);
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").expect("an answer");
            }
        });
        (Url::parse(&url).expect("a URL"), serving)
    }

    /// Answers one request, and keeps the connection until the other side ends it.
    fn lasting() -> (Url, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let url = format!("http://{}/a", listener.local_addr().expect("bound"));
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.read_exact(&mut [0; 16]).expect("a request");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").expect("an answer");
            let _ = stream.read_to_end(&mut Vec::new());
        });
        (Url::parse(&url).expect("a URL"), serving)
    }

    async fn get(wire: &Arc<Wire>, url: &Url) -> Result<Vec<u8>, Failure> {
        let address = Wire::address(url).expect("plain HTTP");
        let patience = Duration::from_secs(2);
        let mut body = wire.ask(&Method::GET, address, &HeaderMap::new(), patience).await?.into_body();
        let mut all = Vec::new();
        while let Some(chunk) = body.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn a_kept_connection_that_the_server_has_closed_costs_nothing() {
        let (url, serving) = forgetful(3);
        let wire = Wire::new(4, Duration::from_secs(5), HeaderValue::from_static("test"));
        for _ in 0..3 {
            assert_eq!(get(&wire, &url).await.expect("an answer"), b"hi");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        serving.join().expect("all were asked for");
        assert!(matches!(get(&wire, &url).await, Err(Failure::Unreachable(_))), "and nobody listens any more");
    }

    #[tokio::test]
    async fn kept_connections_that_someone_has_forgotten_are_left() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let url = Url::parse(&format!("http://{}/a", listener.local_addr().expect("bound"))).expect("a URL");
        // Each connection is answered once, and then kept silently.
        let serving = std::thread::spawn(move || {
            (0..2)
                .map(|_| {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    stream.read_exact(&mut [0; 16]).expect("a request");
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").expect("an answer");
                    stream
                })
                .collect::<Vec<_>>()
        });
        let wire = Wire::new(4, Duration::from_secs(5), HeaderValue::from_static("test"));
        for _ in 0..2 {
            assert_eq!(get(&wire, &url).await.expect("an answer"), b"hi");
        }
        let streams = serving.join().expect("both were asked for");
        assert_eq!(wire.idle.lock().expect("no panic").len(), 1, "the second");
        drop(streams);
    }

    #[tokio::test]
    async fn many_servers_do_not_leave_many_connections() {
        let wire = Wire::new(2, Duration::from_secs(5), HeaderValue::from_static("test"));
        for _ in 0..5 {
            let (url, _serving) = lasting();
            get(&wire, &url).await.expect("an answer");
        }
        assert_eq!(wire.idle.lock().expect("no panic").len(), 2);
    }

    #[tokio::test]
    async fn the_next_address_is_tried_where_one_does_not_listen() {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a free port").local_addr().expect("bound");
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let open = listener.local_addr().expect("bound");
        let stream = first_of([free, open].into_iter()).await.expect("the second listens");
        assert_eq!(stream.peer_addr().expect("connected"), open);
        assert!(first_of([free].into_iter()).await.is_err());
        assert!(first_of(std::iter::empty()).await.is_err());
    }

    #[test]
    fn what_is_not_plain_is_left_to_others() {
        let address = |url: &str| Wire::address(&Url::parse(url).expect("a URL"));
        assert!(address("https://host/a").is_none());
        let plain = address("http://[::1]:81/a%20b?c").expect("plain");
        assert_eq!((plain.host.as_str(), plain.port, plain.server.as_str()), ("::1", 81, "[::1]:81"));
        assert_eq!(plain.target, "/a%20b?c");
        assert_eq!(address("http://host:80/").expect("plain").server, "host");
    }
}

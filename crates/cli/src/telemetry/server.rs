//! The web server for metrics: one page. It gives each client little memory and little time, and never waits for one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::metrics::{Format, Metrics};

/// The most connections at once. The oldest gives way to a new one, so that slow clients keep no others out.
const MOST_CONNECTIONS: usize = 32;

/// How long a client may take for the head of its request.
const LONGEST_HEAD: Duration = Duration::from_secs(5);

/// How long it may take for all.
const LONGEST: Duration = Duration::from_secs(15);

/// The most bytes of a request's head, and the most headers.
const LARGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// How long it waits if no connection can be had, such as while the process has too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves `metrics` on the runtime `io`, as long as that lasts.
pub fn serve(io: &Handle, listener: TcpListener, metrics: Arc<Metrics>) {
    io.spawn(async move {
        // It does not block, which is all that this asks for.
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            open.retain(|connection| !connection.is_finished());
            if open.len() >= MOST_CONNECTIONS {
                open.pop_front().into_iter().for_each(|oldest| oldest.abort());
            }
            let answering = tokio::time::timeout(LONGEST, answer(stream, Arc::clone(&metrics)));
            open.push_back(tokio::spawn(answering).abort_handle());
        }
    });
}

/// Answers one request. What is wrong with the client is its own affair.
async fn answer(stream: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(page(&request, &metrics))));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD).keep_alive(false);
    server.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

fn page(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        refused.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let format = wanted(request.headers());
    match metrics.encode(format) {
        Ok(body) => with_type(StatusCode::OK, format.media_type(), body),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n"),
    }
}

/// OpenMetrics, if the client names it.
fn wanted(headers: &HeaderMap) -> Format {
    let names_it = |accept: &str| accept.split(',').any(|one| one.trim().starts_with("application/openmetrics-text"));
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    if accepts.into_iter().any(names_it) { Format::OpenMetrics } else { Format::Prometheus }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", body.to_owned())
}

fn with_type(status: StatusCode, media_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(media_type));
    response
}

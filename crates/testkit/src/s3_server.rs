//! A real S3 server in this process, whose buckets are the folders of one folder, with faults by rules.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpResponse};
use s3s_fs::FileSystem;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// The access key id.
pub const KEY: &str = "AKIATEST";

/// The secret access key.
pub const SECRET: &str = "open/sesame";

/// The fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Answers with this status, and does nothing.
    Status(u16),
    /// Closes the connection without an answer, and does nothing.
    Close,
    /// Executes the request, and closes the connection without an answer.
    Unanswered,
    /// Executes and answers the request after this time.
    Late(Duration),
}

/// The fault of a request, by its method and its path with the query.
type Rule = Box<dyn Fn(&str, &str) -> Option<Trouble> + Send + Sync>;

/// An S3 server on loopback. It stops when dropped.
pub struct S3Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    service: S3Service,
    signed: bool,
    connections: AtomicUsize,
    rule: Mutex<Option<Rule>>,
    requests: Mutex<Vec<String>>,
    /// Held while an object is written under a condition: the server looks first, and writes then.
    conditions: tokio::sync::Mutex<()>,
    ignores_conditions: AtomicBool,
}

impl fmt::Debug for S3Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Server").field("address", &self.address).finish_non_exhaustive()
    }
}

#[expect(clippy::expect_used, reason = "tests stop here")]
impl S3Server {
    /// Serves the folders in `root`. If `signed`, requests must be signed with [`KEY`] and [`SECRET`]; otherwise
    /// signatures are ignored.
    pub fn start(root: &Path, signed: bool) -> Self {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("the folder is there"));
        if signed {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let shared = Arc::new(Shared {
            service: builder.build(),
            signed,
            connections: AtomicUsize::new(0),
            rule: Mutex::default(),
            requests: Mutex::default(),
            conditions: tokio::sync::Mutex::default(),
            ignores_conditions: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let (ready, started) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback has a free port");
                ready.send(listener.local_addr().expect("a bound socket has an address")).expect("someone waits");
                let serve = async {
                    loop {
                        let (stream, _) = listener.accept().await.expect("a connection");
                        serving.connections.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.set_nodelay(true);
                        tokio::spawn(Arc::clone(&serving).serve(stream));
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        let address = started.recv().expect("the server starts");
        S3Server { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The requests so far: each its method, its path and its query.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on conditions of requests are ignored, as by stores that do not know them. Not for signed requests.
    pub fn ignore_conditions(&self) {
        self.shared.ignores_conditions.store(true, Ordering::SeqCst);
    }

    /// Sets the rule for the faults of all further requests, by their method and their path with the query.
    pub fn trouble(&self, rule: impl Fn(&str, &str) -> Option<Trouble> + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(rule));
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let shared = Arc::clone(&self);
            if !shared.signed {
                request.headers_mut().remove(hyper::header::AUTHORIZATION);
            }
            let conditions = [hyper::header::IF_MATCH, hyper::header::IF_NONE_MATCH];
            if shared.ignores_conditions.load(Ordering::SeqCst) {
                conditions.iter().for_each(|name| drop(request.headers_mut().remove(name)));
            }
            let is_conditional = conditions.iter().any(|name| request.headers().contains_key(name));
            async move {
                let trouble = shared.ask(request.method().as_str(), &request.uri().to_string());
                if let Some(Trouble::Late(wait)) = trouble {
                    tokio::time::sleep(wait).await;
                }
                match trouble {
                    None | Some(Trouble::Late(_) | Trouble::Unanswered) => {
                        let _turn = if is_conditional { Some(shared.conditions.lock().await) } else { None };
                        let of_upload = request.uri().query().is_some_and(|query| query.contains("uploadId="));
                        let answer = shared.service.call(request.map(Body::from)).await;
                        let mut answer = answer.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
                        // As Amazon answers for an upload that does not exist.
                        if of_upload && answer.status() == hyper::StatusCode::FORBIDDEN {
                            answer =
                                HttpResponse::new(Body::from("<Error><Code>NoSuchUpload</Code></Error>".to_owned()));
                            *answer.status_mut() = hyper::StatusCode::NOT_FOUND;
                        }
                        match trouble {
                            Some(Trouble::Unanswered) => Err(std::io::Error::other("closed on purpose")),
                            _ => Ok(answer),
                        }
                    }
                    Some(Trouble::Close) => Err(std::io::Error::other("closed on purpose")),
                    Some(Trouble::Status(status)) => {
                        let mut answer = HttpResponse::new(Body::empty());
                        *answer.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
                        Ok(answer)
                    }
                }
            }
        });
        let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        // A client may disconnect.
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    fn ask(&self, method: &str, path: &str) -> Option<Trouble> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {path}"));
        self.rule.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?(method, path)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

//! A real S3 server in this process, whose buckets are the folders of one folder, and which can be told to go wrong.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// The name of the key that signs.
pub const KEY: &str = "AKIATEST";

/// The key that signs.
pub const SECRET: &str = "open/sesame";

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is answered with this status, and nothing is done.
    Status(u16),
    /// The connection is closed without an answer, and nothing is done.
    Close,
    /// It is done and answered, but only after so long.
    Late(Duration),
}

/// Says what goes wrong with a request: its method, and its path with the query.
type Rule = Box<dyn Fn(&str, &str) -> Option<Trouble> + Send + Sync>;

/// An S3 server on loopback. Who asks must sign, unless it is for everybody. It stops when dropped.
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
}

impl fmt::Debug for S3Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Server").field("address", &self.address).finish_non_exhaustive()
    }
}

#[expect(clippy::expect_used, reason = "tests stop here")]
impl S3Server {
    /// Serves the folders in `root`, to whoever signs with [`KEY`] and [`SECRET`] or, if not `signed`, to everybody:
    /// then it does not look at who asks.
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

    /// From here on `rule` says of each request, by its method and by its path with the query, what goes wrong with it.
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
            async move {
                let trouble = shared.ask(request.method().as_str(), &request.uri().to_string());
                if let Some(Trouble::Late(wait)) = trouble {
                    tokio::time::sleep(wait).await;
                }
                match trouble {
                    None | Some(Trouble::Late(_)) => {
                        let of_upload = request.uri().query().is_some_and(|query| query.contains("uploadId="));
                        let answer = shared.service.call(request.map(Body::from)).await;
                        let mut answer = answer.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
                        // As Amazon says it of an upload that there is not, or is not any more.
                        if of_upload && answer.status() == hyper::StatusCode::FORBIDDEN {
                            answer =
                                HttpResponse::new(Body::from("<Error><Code>NoSuchUpload</Code></Error>".to_owned()));
                            *answer.status_mut() = hyper::StatusCode::NOT_FOUND;
                        }
                        Ok(answer)
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
        // A client that leaves is no matter.
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    fn ask(&self, method: &str, path: &str) -> Option<Trouble> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {path}"));
        self.rule.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?(method, path)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

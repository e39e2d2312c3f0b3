//! The servers of the tests: real ones, on loopback, stopped when dropped.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) const KEY: &str = "AKIATEST";
pub(crate) const SECRET: &str = "open/sesame";

/// An S3 server, whose buckets are the folders of one folder. Who asks must sign, unless it is for everybody.
pub(crate) struct S3Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl S3Server {
    pub(crate) fn start(root: &Path, signed: bool) -> Self {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("the folder is there"));
        if signed {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let service = builder.build();
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
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
                        accepted.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.set_nodelay(true);
                        let service = service.clone();
                        tokio::spawn(async move {
                            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                            // A client that leaves is no matter.
                            let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        let address = started.recv().expect("the server starts");
        S3Server { address, connections, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

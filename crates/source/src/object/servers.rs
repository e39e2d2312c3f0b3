//! Servers for the tests in processes of their own, on loopback, stopped when dropped.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{TempTree, free_port};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::Method;

/// Servers that no Debian package has; `scripts/install-test-servers.sh` puts them there.
fn installed(program: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let path = cache.expect("the environment names a home").join("millstream/test-servers").join(program);
    assert!(path.exists(), "{} is needed by the tests: run scripts/install-test-servers.sh", path.display());
    path
}

/// A server in a process of its own.
#[derive(Debug)]
struct Process {
    child: Child,
    port: u16,
    folder: TempTree,
}

impl Process {
    /// Runs what `command` makes for a port and a folder, until it listens. If another process has taken the port,
    /// another one is tried.
    fn start(command: impl Fn(u16, &Path) -> Command) -> Self {
        let mut said = String::new();
        for _ in 0..3 {
            let (port, folder) = (free_port(), TempTree::new());
            let log = folder.file("output", "");
            let output =
                || Stdio::from(fs_err::OpenOptions::new().append(true).open(&log).expect("a log").into_parts().0);
            let mut command = command(port, folder.root());
            let child = command.stdin(Stdio::null()).stdout(output()).stderr(output()).spawn().expect("it can be run");
            let mut process = Process { child, port, folder };
            if process.listens() {
                return process;
            }
            said = fs_err::read_to_string(&log).unwrap_or_default();
        }
        panic!("the server does not start: {said}");
    }

    fn listens(&mut self) -> bool {
        let start = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        while start.elapsed() < Duration::from_secs(40) && matches!(self.child.try_wait(), Ok(None)) {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates buckets and objects on the servers.
struct Setup {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl Setup {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Setup { runtime, client: crate::http::client::library(&Default::default()).expect("a client") }
    }

    fn send(&self, request: reqwest::RequestBuilder) {
        self.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            let status = answer.status();
            assert!(status.is_success(), "{status}: {}", answer.text().await.unwrap_or_default());
        });
    }
}

/// An emulator of Google Cloud Storage, without signatures.
pub(crate) struct GcsServer {
    process: Process,
    setup: Setup,
}

impl GcsServer {
    pub(crate) fn start() -> Self {
        let program = installed("fake-gcs-server-1.47.7/fake-gcs-server");
        let process = Process::start(|port, folder| {
            let mut command = Command::new(&program);
            command.args(["-scheme", "http", "-host", "127.0.0.1", "-backend", "memory"]);
            command.args(["-public-host", &format!("127.0.0.1:{port}"), "-port", &port.to_string()]);
            command.arg("-data").arg(folder.join("none"));
            command
        });
        GcsServer { process, setup: Setup::new() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.process.port)
    }

    pub(crate) fn make_bucket(&self, name: &str) {
        let url = format!("{}/storage/v1/b", self.url());
        self.setup.send(self.setup.client.post(url).body(format!("{{\"name\": \"{name}\"}}")));
    }

    pub(crate) fn put(&self, bucket: &str, name: &str, content: &[u8]) {
        let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let url = format!("{}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", self.url());
        self.setup.send(self.setup.client.post(url).body(content.to_vec()));
    }
}

pub(crate) const ACCOUNT: &str = "teststore";
/// Any bytes in base64 make a key.
pub(crate) const ACCOUNT_KEY: &str = "b3BlbiBzZXNhbWU=";

/// An emulator of Azure Blob Storage, whose requests are signed.
pub(crate) struct AzureServer {
    process: Process,
    setup: Setup,
}

impl AzureServer {
    pub(crate) fn start() -> Self {
        let program = installed("azurite-3.35.0/node_modules/azurite/dist/src/blob/main.js");
        let process = Process::start(|port, folder| {
            let mut command = Command::new("node");
            command.arg(&program).args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
            command.arg("--location").arg(folder);
            command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{ACCOUNT_KEY}"));
            command
        });
        AzureServer { process, setup: Setup::new() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{ACCOUNT}", self.process.port)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.process.folder.root()
    }

    pub(crate) fn make_container(&self, name: &str) {
        self.signed(&format!("{name}?restype=container"), &[]);
    }

    pub(crate) fn put(&self, container: &str, name: &str, content: &[u8]) {
        let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
        self.signed(&format!("{container}/{}", name.replace("%2F", "/")), content);
    }

    fn signed(&self, path: &str, content: &[u8]) {
        let url = format!("{}/{path}", self.url());
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = url.parse().expect("a URL");
        let headers = request.headers_mut();
        headers.insert("content-length", content.len().into());
        headers.insert("x-ms-blob-type", "BlockBlob".parse().expect("a header"));
        let key = AzureCredential::AccessKey(AzureAccessKey::try_new(ACCOUNT_KEY).expect("a key"));
        AzureAuthorizer::new(&key, ACCOUNT).authorize(&mut request);
        let send = self.setup.client.put(url).headers(request.headers().clone()).body(content.to_vec());
        self.setup.send(send);
    }
}

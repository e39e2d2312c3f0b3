//! A real web server: nginx with a configuration of its own, in a temporary folder, on a free port of loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Certificate, TempTree};

/// How many ports are tried: another process may take a free one first.
const ATTEMPTS: usize = 5;

/// How long nginx may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running nginx that serves a folder; it ends when dropped.
#[derive(Debug)]
pub struct Nginx {
    process: Child,
    port: u16,
    secure: bool,
    _folder: TempTree,
}

/// A port of loopback that is free at the moment.
#[expect(clippy::expect_used, reason = "tests stop here")]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

impl Nginx {
    /// Serves `root` over HTTP.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    pub fn start(root: &Path) -> Self {
        Nginx::attempt(root, None, "")
    }

    /// Serves `root` over HTTPS (and HTTP/2), as `certificate`.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    pub fn start_secure(root: &Path, certificate: &Certificate) -> Self {
        Nginx::attempt(root, Some(certificate), "")
    }

    /// Passes all requests on to the web server at `port` of loopback, over HTTPS (and HTTP/2), as `certificate`.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    pub fn start_secure_before(port: u16, certificate: &Certificate) -> Self {
        let pass = format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}");
        Nginx::attempt(Path::new("/nonexistent"), Some(certificate), &pass)
    }

    /// Serves `root` over HTTP, with more `directives` inside of the `server` block.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    pub fn start_with(root: &Path, directives: &str) -> Self {
        Nginx::attempt(root, None, directives)
    }

    fn attempt(root: &Path, certificate: Option<&Certificate>, directives: &str) -> Self {
        let mut problem = String::new();
        for _ in 0..ATTEMPTS {
            match Nginx::try_start(root, certificate, directives) {
                Ok(nginx) => return nginx,
                Err(message) => problem = message,
            }
        }
        panic!("nginx does not start: {problem}");
    }

    #[expect(clippy::expect_used, reason = "tests stop here")]
    fn try_start(root: &Path, certificate: Option<&Certificate>, directives: &str) -> Result<Self, String> {
        let folder = TempTree::new();
        let port = free_port();
        if let Some(certificate) = certificate {
            folder.file("certificate.pem", &certificate.certificate);
            folder.file("key.pem", &certificate.key);
        }
        let configuration = configuration(&folder, root, port, certificate.is_some(), directives);
        let configuration = folder.file("nginx.conf", configuration);
        let log = fs_err::File::create(folder.path("output")).expect("a log can be made");
        let process = Command::new(program())
            .arg("-p")
            .arg(folder.root())
            .arg("-c")
            .arg(configuration)
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.into_parts().0)
            .spawn()
            .expect("nginx is needed by the tests: install the Debian package nginx-light");
        let mut nginx = Nginx { process, port, secure: certificate.is_some(), _folder: folder };
        nginx.wait_until_ready().map(|()| nginx)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                let output = fs_err::read_to_string(self._folder.path("output")).unwrap_or_default();
                return Err(format!("{status}: {output}"));
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err("it does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of `path` (without a slash at its beginning). The host is `localhost` for HTTPS, as in certificates, and
    /// `127.0.0.1` otherwise.
    pub fn url(&self, path: &str) -> String {
        if self.secure {
            format!("https://localhost:{}/{path}", self.port)
        } else {
            format!("http://127.0.0.1:{}/{path}", self.port)
        }
    }

    /// How many connections nginx has accepted, without that of this request and that of the start. HTTP only; call it
    /// once.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn accepted(&self) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("nginx is running");
        stream.write_all(b"GET /nginx-status HTTP/1.0\r\n\r\n").expect("a request can be sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("nginx answers");
        let numbers = answer.split("requests").nth(1).and_then(|rest| rest.split_whitespace().next());
        let accepted: u64 = numbers.and_then(|number| number.parse().ok()).expect("nginx counts its connections");
        accepted - 2
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Debian installs it in a folder that is not in the search path of plain users.
fn program() -> PathBuf {
    let usual = Path::new("/usr/sbin/nginx");
    if usual.exists() { usual.to_owned() } else { PathBuf::from("nginx") }
}

fn configuration(folder: &TempTree, root: &Path, port: u16, secure: bool, directives: &str) -> String {
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let folder = folder.root().display();
    let root = root.display();
    let listen = if secure {
        format!(
            "listen 127.0.0.1:{port} ssl http2;\n    ssl_certificate {folder}/certificate.pem;\n    \
             ssl_certificate_key {folder}/key.pem;"
        )
    } else {
        format!("listen 127.0.0.1:{port};")
    };
    format!(
        "{user}
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  default_type application/octet-stream;
  keepalive_requests 100000;
  server {{
    {listen}
    root \"{root}\";
    location = /nginx-status {{ stub_status; }}
    {directives}
  }}
}}
"
    )
}

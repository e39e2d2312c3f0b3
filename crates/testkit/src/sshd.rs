//! A real SSH server: OpenSSH's sshd with a configuration of its own, in a temporary folder, on a free port of
//! loopback; keys, and an agent that holds one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TempTree;
use crate::nginx::free_port;
use crate::process::{Running, attempt, id, program};
use crate::proftpd::secret_file;

/// The SFTP server of Debian's package.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// A pair of keys, in OpenSSH's form.
#[derive(Debug, Clone)]
pub struct KeyPair {
    /// The private key.
    pub private: String,
    /// The public key, one line without a comment.
    pub public: String,
    /// `SHA256:…` of the public key.
    pub fingerprint: String,
}

impl KeyPair {
    /// A new pair of a kind that `ssh-keygen` knows: `ed25519`, `rsa`, `ecdsa`. The passphrase may be empty.
    ///
    /// # Panics
    /// If ssh-keygen is not installed.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn new(kind: &str, passphrase: &str) -> Self {
        let folder = TempTree::new();
        let path = folder.path("key");
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", kind, "-N", passphrase, "-C", "", "-f"])
            .arg(&path)
            .output()
            .expect("ssh-keygen is needed by the tests: install the Debian package openssh-client");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let told = Command::new("ssh-keygen").arg("-lf").arg(&path).output().expect("ssh-keygen is there");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        KeyPair {
            private: fs_err::read_to_string(&path).expect("the key was written"),
            public: fs_err::read_to_string(folder.path("key.pub")).expect("the key was written").trim().to_owned(),
            fingerprint: told.split_whitespace().nth(1).expect("a fingerprint").to_owned(),
        }
    }
}

/// A running sshd that accepts one key; it ends, with its connections, when dropped. Paths are those of this machine.
/// If the tests run as root, files are served with the rights of `nobody`.
#[derive(Debug)]
pub struct Sshd {
    process: Running,
    port: u16,
    /// The server's key.
    pub host_key: KeyPair,
    /// The key that it accepts.
    pub user_key: KeyPair,
    folder: TempTree,
}

impl Sshd {
    /// Starts a server with new keys.
    ///
    /// # Panics
    /// If OpenSSH's server is not installed or does not start.
    pub fn start() -> Self {
        Sshd::start_with(KeyPair::new("ed25519", ""), KeyPair::new("ed25519", ""), "")
    }

    /// Starts a server with these keys and more lines of the configuration.
    ///
    /// # Panics
    /// If OpenSSH's server is not installed or does not start.
    pub fn start_with(host_key: KeyPair, user_key: KeyPair, directives: &str) -> Self {
        attempt("sshd", || Sshd::try_start(&host_key, &user_key, directives))
    }

    fn try_start(host_key: &KeyPair, user_key: &KeyPair, directives: &str) -> Result<Self, String> {
        let folder = TempTree::new();
        let port = free_port();
        secret_file(&folder, "host_key", &host_key.private);
        secret_file(&folder, "authorized_keys", &format!("{}\n", user_key.public));
        if rustix::process::geteuid().is_root() {
            // The chroot of root's sshd, which the package only creates at the start of the system.
            let _ = fs_err::create_dir_all("/run/sshd");
        }
        let configuration = folder.file("sshd_config", configuration(&folder, port, directives));
        let mut command = Command::new(absolute("sshd"));
        command.args(["-D", "-e", "-f"]).arg(configuration);
        let process = Running::start(&mut command, "openssh-server", port, &folder.path("log"))?;
        Ok(Sshd { process, port, host_key: host_key.clone(), user_key: user_key.clone(), folder })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name of the user who can log in: the one who runs the tests.
    pub fn user(&self) -> String {
        id(&["-un"])
    }

    /// The URL of an absolute path (with a slash at its beginning).
    pub fn url(&self, path: &str) -> String {
        format!("sftp://{}@127.0.0.1:{}{path}", self.user(), self.port)
    }

    /// The server's line for a file of known hosts.
    pub fn known_host(&self) -> String {
        format!("[127.0.0.1]:{} {}\n", self.port, self.host_key.public)
    }

    /// How many logins there were so far.
    pub fn logins(&self) -> usize {
        self.log().lines().filter(|line| line.contains("Accepted ") && line.contains(" from ")).count()
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        fs_err::read_to_string(self.folder.path("log")).unwrap_or_default()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// sshd executes itself again, so it needs its absolute path.
fn absolute(name: &str) -> PathBuf {
    let found = program(name);
    if found.is_absolute() { found } else { Path::new("/usr/bin").join(name) }
}

fn configuration(folder: &TempTree, port: u16, directives: &str) -> String {
    let server = if rustix::process::geteuid().is_root() {
        format!("/usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups {SFTP_SERVER}")
    } else {
        SFTP_SERVER.to_owned()
    };
    let folder = folder.root().display();
    format!(
        "ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin yes
PasswordAuthentication yes
KbdInteractiveAuthentication no
MaxStartups 200
MaxSessions 100
LogLevel VERBOSE
Subsystem sftp {server}
{directives}
"
    )
}

/// A running ssh-agent that holds one key; it ends when dropped.
#[derive(Debug)]
pub struct Agent {
    process: std::process::Child,
    folder: TempTree,
}

impl Agent {
    /// Starts an agent with the private key of a pair without a passphrase.
    ///
    /// # Panics
    /// If OpenSSH's client is not installed.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn start(key: &KeyPair) -> Self {
        let folder = TempTree::new();
        let process = Command::new("ssh-agent")
            .args(["-D", "-a"])
            .arg(folder.path("socket"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("ssh-agent is needed by the tests: install the Debian package openssh-client");
        let agent = Agent { process, folder };
        secret_file(&agent.folder, "key", &key.private);
        let mut told = String::new();
        for _ in 0..500 {
            // The agent creates its socket before it listens.
            let added = Command::new("ssh-add")
                .arg(agent.folder.path("key"))
                .env("SSH_AUTH_SOCK", agent.socket())
                .output()
                .expect("ssh-add is there");
            if added.status.success() {
                return agent;
            }
            told = String::from_utf8_lossy(&added.stderr).into_owned();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the agent takes no key: {told}");
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path("socket")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! A real FTP server: ProFTPD with a configuration of its own, in a temporary folder, on a free port of loopback. It
//! also speaks SFTP with passwords of its own, while OpenSSH uses those of the system.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::nginx::free_port;
use crate::process::{Running, attempt, id, program};
use crate::{Certificate, TempTree};

/// The user that may log in.
pub const USER: &str = "etl";

/// The user's password.
pub const PASSWORD: &str = "sesame";

/// The password as the server keeps it (crypt's MD5).
const PASSWORD_HASH: &str = "$1$millstre$ESlYHVX0MnLZ9ZlhHokJd/";

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct ProftpdOptions {
    /// Speak TLS as this server.
    pub certificate: Option<Certificate>,
    /// Encrypt from the first byte.
    pub implicit: bool,
    /// Do not announce MLST.
    pub without_facts: bool,
    /// Speak SFTP, with this host key (in OpenSSH's form).
    pub host_key: Option<String>,
    /// More lines of the configuration.
    pub directives: String,
}

/// A running ProFTPD, in whose folder the user begins; it ends when dropped. If the tests run as root, the user is
/// `nobody`, so that the rights of files apply.
#[derive(Debug)]
pub struct Proftpd {
    _process: Running,
    port: u16,
    options: ProftpdOptions,
    folder: TempTree,
}

impl Proftpd {
    /// Serves `root` over plain FTP.
    ///
    /// # Panics
    /// If ProFTPD is not installed or does not start.
    pub fn start(root: &Path) -> Self {
        Proftpd::start_with(root, ProftpdOptions::default())
    }

    /// Serves `root` as `options` say.
    ///
    /// # Panics
    /// If ProFTPD is not installed or does not start.
    pub fn start_with(root: &Path, options: ProftpdOptions) -> Self {
        attempt("proftpd", || Proftpd::try_start(root, &options))
    }

    fn try_start(root: &Path, options: &ProftpdOptions) -> Result<Self, String> {
        let folder = TempTree::new();
        let port = free_port();
        secret_file(&folder, "users", &users(root));
        secret_file(&folder, "groups", "");
        if let Some(certificate) = &options.certificate {
            secret_file(&folder, "certificate.pem", &certificate.certificate);
            secret_file(&folder, "key.pem", &certificate.key);
        }
        if let Some(key) = &options.host_key {
            secret_file(&folder, "host_key", key);
        }
        let configuration = folder.file("proftpd.conf", configuration(&folder, port, options));
        let mut command = Command::new(program("proftpd"));
        command.args(["-n", "-q", "-c"]).arg(configuration);
        let process = Running::start(&mut command, "proftpd-core", port, &folder.path("output"))?;
        Ok(Proftpd { _process: process, port, options: options.clone(), folder })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of `path` (without a slash at its beginning), without user and password. The host is `localhost` for
    /// FTPS, as in certificates, and `127.0.0.1` otherwise.
    pub fn url(&self, path: &str) -> String {
        match (&self.options.certificate, &self.options.host_key) {
            (Some(_), _) => format!("ftps://localhost:{}/{path}", self.port),
            (_, Some(_)) => format!("sftp://127.0.0.1:{}/{path}", self.port),
            _ => format!("ftp://127.0.0.1:{}/{path}", self.port),
        }
    }

    /// How many logins there were so far.
    pub fn logins(&self) -> usize {
        let log = fs_err::read_to_string(self.folder.path("log")).unwrap_or_default();
        log.lines().filter(|line| line.to_ascii_lowercase().contains("login successful")).count()
    }

    /// The server's log, for messages of tests.
    pub fn log(&self) -> String {
        fs_err::read_to_string(self.folder.path("log")).unwrap_or_default()
    }
}

/// Writes a file that only its owner may read, as servers require.
#[expect(clippy::expect_used, reason = "tests stop here")]
pub(crate) fn secret_file(folder: &TempTree, name: &str, content: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.file(name, content);
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("rights can be set");
}

/// The one user, in the form of a passwd file.
fn users(root: &Path) -> String {
    let (user, group) = if rustix::process::geteuid().is_root() {
        ("65534".to_owned(), "65534".to_owned())
    } else {
        (id(&["-u"]), id(&["-g"]))
    };
    format!("{USER}:{PASSWORD_HASH}:{user}:{group}::{}:/bin/sh\n", root.display())
}

#[expect(clippy::expect_used, reason = "text can be written to")]
fn configuration(folder: &TempTree, port: u16, options: &ProftpdOptions) -> String {
    let (user, group) = (id(&["-un"]), id(&["-gn"]));
    let folder = folder.root().display();
    let mut text = format!(
        "ServerType standalone
ServerName millstream
DefaultAddress 127.0.0.1
Port {port}
UseIPv6 off
UseReverseDNS off
User {user}
Group {group}
PidFile {folder}/pid
ScoreboardFile none
WtmpLog off
TransferLog none
SystemLog {folder}/log
DelayEngine off
RequireValidShell off
AuthOrder mod_auth_file.c
AuthUserFile {folder}/users
AuthGroupFile {folder}/groups
AllowRetrieveRestart on
MaxInstances 100
"
    );
    if options.without_facts {
        text.push_str("FactsAdvertise off\n");
    }
    if options.certificate.is_some() {
        let implicit = if options.implicit { "TLSOptions UseImplicitSSL\n" } else { "" };
        write!(
            text,
            "LoadModule mod_tls.c
TLSEngine on
TLSRequired on
TLSLog {folder}/tls
TLSECCertificateFile {folder}/certificate.pem
TLSECCertificateKeyFile {folder}/key.pem
{implicit}"
        )
        .expect("text can be written to");
    }
    if options.host_key.is_some() {
        write!(
            text,
            "LoadModule mod_sftp.c
SFTPEngine on
SFTPHostKey {folder}/host_key
SFTPAuthMethods password
SFTPLog {folder}/sftp
"
        )
        .expect("text can be written to");
    }
    text.push_str(&options.directives);
    text
}

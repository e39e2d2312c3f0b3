//! A small mail server, which keeps what it takes.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::authority::Certificate;

/// A mail that was taken.
#[derive(Debug, Clone)]
pub struct Mail {
    /// Its sender.
    pub from: String,
    /// Its recipients.
    pub to: Vec<String>,
    /// Headers and body.
    pub text: String,
    /// What the client logged in with, as `AUTH PLAIN` sends it.
    pub login: Option<String>,
}

/// When a connection becomes encrypted.
#[derive(Debug, Clone)]
enum Encryption {
    Never,
    FromTheStart(Arc<ServerConfig>),
    WhenAsked(Arc<ServerConfig>),
}

/// A mail server on a port of this machine. It takes every mail but those to `refused@…`.
#[derive(Debug)]
pub struct SmtpServer {
    port: u16,
    mails: Arc<Mutex<Vec<Mail>>>,
}

impl SmtpServer {
    /// A server that listens, without encryption.
    pub fn start() -> Self {
        SmtpServer::with(Encryption::Never)
    }

    /// A server whose connections are encrypted from the start.
    pub fn encrypted(certificate: &Certificate) -> Self {
        SmtpServer::with(Encryption::FromTheStart(config(certificate)))
    }

    /// A server whose connections become encrypted by `STARTTLS`. It takes no mail before that.
    pub fn with_starttls(certificate: &Certificate) -> Self {
        SmtpServer::with(Encryption::WhenAsked(config(certificate)))
    }

    fn with(encryption: Encryption) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mails = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&mails);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (taken, encryption) = (Arc::clone(&taken), encryption.clone());
                // A client that leaves early is no fault of the test.
                std::thread::spawn(move || drop(serve(client, &encryption, &taken)));
            }
        });
        SmtpServer { port, mails }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The mails so far.
    pub fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn config(certificate: &Certificate) -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_slice(certificate.certificate.as_bytes()).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.expect("versions that the provider has").with_no_client_auth();
    Arc::new(builder.with_single_cert(chain, key).expect("they belong together"))
}

fn encrypted(config: &Arc<ServerConfig>, client: TcpStream) -> StreamOwned<ServerConnection, TcpStream> {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).expect("a configuration that fits"), client)
}

fn serve(mut client: TcpStream, encryption: &Encryption, taken: &Mutex<Vec<Mail>>) -> Result<()> {
    match encryption {
        Encryption::Never => talk(client, taken, true),
        Encryption::FromTheStart(config) => talk(encrypted(config, client), taken, true),
        Encryption::WhenAsked(config) => {
            client.write_all(b"220 test\r\n")?;
            while let Some(line) = line(&mut client)? {
                match line.to_uppercase().as_str() {
                    "STARTTLS" => {
                        client.write_all(b"220 go on\r\n")?;
                        return talk(encrypted(config, client), taken, false);
                    }
                    hello if hello.starts_with("EHLO") => {
                        client.write_all(b"250-test\r\n250 STARTTLS\r\n")?;
                    }
                    _ => client.write_all(b"530 STARTTLS first\r\n")?,
                }
            }
            Ok(())
        }
    }
}

/// The next line without its end; `None` behind the last one.
fn line(from: &mut impl Read) -> Result<Option<String>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte)? == 1 {
        match byte[0] {
            b'\n' => return Ok(Some(String::from_utf8_lossy(&line).into_owned())),
            b'\r' => {}
            other => line.push(other),
        }
    }
    Ok(None)
}

fn talk<S: Read + Write>(mut client: S, taken: &Mutex<Vec<Mail>>, greets: bool) -> Result<()> {
    let mut mail = Mail { from: String::new(), to: Vec::new(), text: String::new(), login: None };
    if greets {
        client.write_all(b"220 test\r\n")?;
    }
    while let Some(asked) = line(&mut client)? {
        let upper = asked.to_uppercase();
        let answer = if upper.starts_with("EHLO") {
            "250-test\r\n250 AUTH PLAIN\r\n"
        } else if upper.starts_with("AUTH PLAIN") {
            mail.login = asked.split(' ').nth(2).map(str::to_owned);
            "235 welcome\r\n"
        } else if upper.starts_with("MAIL FROM") {
            mail.from = address(&asked);
            "250 ok\r\n"
        } else if upper.starts_with("RCPT TO") && upper.contains("REFUSED@") {
            "550 no such mailbox\r\n"
        } else if upper.starts_with("RCPT TO") {
            mail.to.push(address(&asked));
            "250 ok\r\n"
        } else if upper == "DATA" {
            client.write_all(b"354 go on\r\n")?;
            while let Some(text) = line(&mut client)?.filter(|text| text != ".") {
                mail.text.push_str(&text);
                mail.text.push('\n');
            }
            taken.lock().unwrap_or_else(PoisonError::into_inner).push(mail.clone());
            "250 taken\r\n"
        } else if upper == "QUIT" {
            client.write_all(b"221 bye\r\n")?;
            return Ok(());
        } else {
            "250 ok\r\n"
        };
        client.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// What stands between `<` and `>`.
fn address(line: &str) -> String {
    line.split(['<', '>']).nth(1).unwrap_or_default().to_owned()
}

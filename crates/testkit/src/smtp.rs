//! A small mail server, which keeps what it takes.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

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

/// A mail server on a port of this machine, without encryption. It takes every mail but those to `refused@…`.
#[derive(Debug)]
pub struct SmtpServer {
    port: u16,
    mails: Arc<Mutex<Vec<Mail>>>,
}

impl SmtpServer {
    /// A server that listens.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mails = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&mails);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let taken = Arc::clone(&taken);
                // A client that leaves early is no fault of the test.
                std::thread::spawn(move || drop(talk(client, &taken)));
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

fn talk(client: TcpStream, taken: &Mutex<Vec<Mail>>) -> std::io::Result<()> {
    let mut write = client.try_clone()?;
    let mut lines = BufReader::new(client).lines();
    let mut mail = Mail { from: String::new(), to: Vec::new(), text: String::new(), login: None };
    write.write_all(b"220 test\r\n")?;
    while let Some(line) = lines.next() {
        let line = line?;
        let upper = line.to_uppercase();
        let answer = if upper.starts_with("EHLO") {
            "250-test\r\n250 AUTH PLAIN\r\n"
        } else if upper.starts_with("AUTH PLAIN") {
            mail.login = line.split(' ').nth(2).map(str::to_owned);
            "235 welcome\r\n"
        } else if upper.starts_with("MAIL FROM") {
            mail.from = address(&line);
            "250 ok\r\n"
        } else if upper.starts_with("RCPT TO") && upper.contains("REFUSED@") {
            "550 no such mailbox\r\n"
        } else if upper.starts_with("RCPT TO") {
            mail.to.push(address(&line));
            "250 ok\r\n"
        } else if upper == "DATA" {
            write.write_all(b"354 go on\r\n")?;
            for line in lines.by_ref().map_while(Result::ok).take_while(|line| line != ".") {
                mail.text.push_str(&line);
                mail.text.push('\n');
            }
            taken.lock().unwrap_or_else(PoisonError::into_inner).push(mail.clone());
            "250 taken\r\n"
        } else if upper == "QUIT" {
            write.write_all(b"221 bye\r\n")?;
            return Ok(());
        } else {
            "250 ok\r\n"
        };
        write.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// What stands between `<` and `>`.
fn address(line: &str) -> String {
    line.split(['<', '>']).nth(1).unwrap_or_default().to_owned()
}

//! Interprets the replies of a server, and broken connections.

use std::io;

use suppaftp::types::Response;
use suppaftp::{FtpError, ReplyTooLarge};

use crate::remote::{Absence, Failure, system_text};
use crate::retry::Fault;

/// The three digits that a reply begins with.
pub(super) fn code(reply: &Response) -> Option<u16> {
    let last = lines(&reply.body).last()?;
    std::str::from_utf8(last.get(..3)?).ok()?.parse().ok()
}

/// The text of a reply's last line.
pub(super) fn text(reply: &Response) -> String {
    let last = lines(&reply.body).last().unwrap_or_default();
    let text = last.get(4..).unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

fn lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty())
}

/// The failure of a command; `secrets` are not shown.
pub(super) fn failure(error: FtpError, secrets: &[String]) -> Failure {
    match error {
        FtpError::UnexpectedResponse(reply) => refusal(&reply, secrets),
        FtpError::ConnectionError(cause) => broken(&cause).into(),
        FtpError::SecureError(cause) => {
            Fault::permanent("the encrypted connection cannot be established").cause(cause).into()
        }
        FtpError::BadResponse | FtpError::InvalidAddress(_) => {
            Fault::transient("the server's answer cannot be understood").into()
        }
        FtpError::DataConnectionAlreadyOpen => Fault::transient("two files were requested over one connection").into(),
    }
}

/// The failure of an unexpected reply.
pub(super) fn refusal(reply: &Response, secrets: &[String]) -> Failure {
    let Some(code) = code(reply) else {
        return Fault::transient("the server's answer cannot be understood").into();
    };
    let said = secrets
        .iter()
        .filter(|secret| !secret.is_empty())
        .fold(text(reply), |text, secret| text.replace(secret.as_str(), "***"));
    let mut fault = Fault { transient: is_transient(code), ..Fault::transient(format!("the server answers {code}")) };
    fault.status = Some(code);
    // Servers use several codes for it, including that of a missing file.
    let wants_tls = code >= 500 && ["tls", "ssl"].iter().any(|word| said.to_ascii_lowercase().contains(word));
    fault.hint = if wants_tls { Some(WANTS_TLS) } else { hint(code) }.map(str::to_owned);
    let denied = ["permission", "denied", "not allowed"].iter().any(|word| said.to_ascii_lowercase().contains(word));
    fault.text = Some(said).filter(|said| !said.is_empty());
    let absent = if code == 550 && !denied && !wants_tls { Absence::Perhaps } else { Absence::No };
    Failure { fault, absent, intact: code != 421 }
}

/// Whether a retry may succeed (RFC 959, 4.2.1). The code of a wrong password is among the transient ones, but is
/// permanent.
fn is_transient(code: u16) -> bool {
    (400..500).contains(&code) && code != 430
}

const WANTS_TLS: &str = "this is about encryption: the scheme is ftps:// with it and ftp:// without";

fn hint(code: u16) -> Option<&'static str> {
    Some(match code {
        421 | 425 => "lower `connections`, or try again later",
        430 | 530 | 532 => "set `user` and `password` in the source's `ftp` block, or check the secret that it names",
        431 | 500 | 502 | 504 | 534 => "the server may not speak TLS at this port: check the URL's scheme",
        550 => {
            "check the path, and the permissions of the file; a path begins in the folder of the login, or with two \
             slashes at the server's root"
        }
        _ => return None,
    })
}

/// The fault of a broken connection.
pub(super) fn broken(cause: &io::Error) -> Fault {
    let inside = cause.get_ref();
    if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
        return crate::tls::fault(tls, "ftp", "ftp");
    }
    if inside.is_some_and(|inside| inside.is::<ReplyTooLarge>()) {
        return Fault::permanent("the server's answer does not end");
    }
    Fault::transient("the connection broke before the answer").cause(system_text(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use suppaftp::Status;

    fn reply(body: &str) -> Failure {
        failure(
            FtpError::UnexpectedResponse(Response { status: Status::Unknown, body: body.into() }),
            &["sesame".to_owned()],
        )
    }

    #[test]
    fn replies_are_distinguished() {
        let gone = reply("550 No such file.\r\n");
        assert_eq!((gone.absent, gone.intact, gone.fault.transient), (Absence::Perhaps, true, false));
        assert_eq!(gone.fault.what, "the server answers 550");
        assert_eq!(gone.fault.text.as_deref(), Some("No such file."));
        assert_eq!(reply("550 Permission denied.\r\n").absent, Absence::No);
        let full = reply("421-There are\r\n421 too many of you (sesame).\r\n");
        assert_eq!((full.intact, full.fault.transient), (false, true));
        assert_eq!(full.fault.text.as_deref(), Some("too many of you (***)."));
        assert!(!reply("430 Wrong password\r\n").fault.transient);
        for bad in ["", "\r\n", "x", "5", "abc def\r\n"] {
            assert_eq!(reply(bad).fault.what, "the server's answer cannot be understood");
        }
    }
}

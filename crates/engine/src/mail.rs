//! Mails, by the server of the machine file.

use millstream_core::{Error, Result};
use millstream_job::machine::Smtp;

/// A mail.
#[derive(Debug, Clone, Default)]
pub struct Letter {
    /// Its recipients.
    pub to: Vec<String>,
    /// Its subject.
    pub subject: String,
    /// What it says.
    pub text: String,
    /// What is attached.
    pub attached: Vec<Attached>,
}

/// A file that is attached to a mail.
#[derive(Debug, Clone)]
pub struct Attached {
    /// Its name.
    pub name: String,
    /// What it is, such as `application/json`.
    pub media_type: &'static str,
    /// What it holds.
    pub text: String,
}

/// Sends `letter` by the server `smtp`.
///
/// # Errors
/// If there is no server, an address is none, or the server refuses the mail.
#[cfg(feature = "mail")]
pub async fn send(letter: Letter, smtp: Option<&Smtp>) -> Result<()> {
    use lettre::AsyncTransport;

    let smtp = smtp.ok_or_else(no_server)?;
    let message = message(letter, smtp)?;
    let sent = transport(smtp)?.send(message).await;
    sent.map(drop).map_err(|cause| {
        let error = Error::refused(format!("the mail server {} does not take the mail", smtp.host));
        error.cause(cause).hint("`smtp` in the machine file says how to reach it")
    })
}

/// Sends nothing.
///
/// # Errors
/// Always.
#[cfg(not(feature = "mail"))]
pub async fn send(_: Letter, _: Option<&Smtp>) -> Result<()> {
    Err(Error::job("this build sends no mail").hint("use one with the feature `mail`"))
}

#[cfg(feature = "mail")]
fn no_server() -> Error {
    Error::job("this machine has no mail server").hint("name one in the machine file: `smtp: {host: …, from: …}`")
}

#[cfg(feature = "mail")]
fn message(letter: Letter, smtp: &Smtp) -> Result<lettre::Message> {
    use lettre::message::header::ContentType;
    use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};

    let address = |text: &str| {
        let parsed = text.parse::<Mailbox>();
        parsed.map_err(|cause| Error::job("this is no address of mail").text(text).cause(cause))
    };
    let mut builder = lettre::Message::builder().from(address(&smtp.from)?);
    for to in &letter.to {
        builder = builder.to(address(to)?);
    }
    let mut parts = MultiPart::mixed().singlepart(SinglePart::plain(letter.text));
    for Attached { name, media_type, text } in letter.attached {
        let kind = ContentType::parse(media_type).unwrap_or(ContentType::TEXT_PLAIN);
        parts = parts.singlepart(Attachment::new(name).body(text, kind));
    }
    let unwritten = |cause| Error::internal("the mail cannot be written").cause(cause);
    builder.subject(letter.subject).multipart(parts).map_err(unwritten)
}

#[cfg(feature = "mail")]
fn transport(smtp: &Smtp) -> Result<lettre::AsyncSmtpTransport<lettre::Tokio1Executor>> {
    use lettre::AsyncSmtpTransport as Transport;
    use lettre::transport::smtp::authentication::Credentials;
    use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
    use millstream_job::machine::SmtpTls;

    let parameters = || -> Result<TlsParameters> {
        let failed = |cause| Error::refused("the encryption of mail cannot be set up").cause(cause);
        let mut builder = TlsParameters::builder(smtp.host.clone());
        if let Some(ca) = &smtp.ca {
            let pem = fs_err::read(ca).map_err(|cause| Error::io("the CA file of `smtp` cannot be read", &cause))?;
            builder = builder.add_root_certificate(Certificate::from_pem(&pem).map_err(failed)?);
        }
        builder.build_rustls().map_err(failed)
    };
    let (tls, usual_port) = match smtp.tls {
        SmtpTls::Starttls => (Tls::Required(parameters()?), 587),
        SmtpTls::Tls => (Tls::Wrapper(parameters()?), 465),
        SmtpTls::None => (Tls::None, 25),
    };
    let mut builder = Transport::<lettre::Tokio1Executor>::builder_dangerous(&smtp.host);
    builder = builder.port(smtp.port.unwrap_or(usual_port)).tls(tls);
    if let Some(user) = &smtp.user {
        let password = smtp.password.as_ref().map(|password| password.resolve()).transpose()?.unwrap_or_default();
        builder = builder.credentials(Credentials::new(user.resolve()?, password));
    }
    Ok(builder.build())
}

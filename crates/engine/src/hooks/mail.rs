//! A mail about a run.

use millstream_core::{Error, Result};
use millstream_job::around::MailKeys;
use millstream_job::machine::Smtp;

use super::given::Given;

/// Sends `mail` by the server of this machine.
#[cfg(feature = "mail")]
pub(super) async fn send(mail: &MailKeys, smtp: Option<&Smtp>, given: &Given<'_>) -> Result<()> {
    use lettre::AsyncTransport;

    let smtp = smtp.ok_or_else(no_server)?;
    let message = message(mail, smtp, given)?;
    let sent = transport(smtp)?.send(message).await;
    sent.map(drop).map_err(|cause| {
        let error = Error::refused(format!("the mail server {} does not take the mail", smtp.host));
        error.cause(cause).hint("`smtp` in the machine file says how to reach it")
    })
}

#[cfg(not(feature = "mail"))]
pub(super) async fn send(_: &MailKeys, _: Option<&Smtp>, _: &Given<'_>) -> Result<()> {
    Err(Error::job("this build sends no mail").hint("use one with the feature `mail`"))
}

#[cfg(feature = "mail")]
fn no_server() -> Error {
    Error::job("this machine has no mail server").hint("name one in the machine file: `smtp: {host: …, from: …}`")
}

#[cfg(feature = "mail")]
fn message(mail: &MailKeys, smtp: &Smtp, given: &Given<'_>) -> Result<lettre::Message> {
    use lettre::message::header::ContentType;
    use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};

    let address = |text: &str| {
        let parsed = text.parse::<Mailbox>();
        parsed.map_err(|cause| Error::job("this is no address of mail").text(text).cause(cause))
    };
    let file = std::path::Path::new(given.job).file_name().map_or(given.job.into(), |name| name.to_string_lossy());
    let usual = || format!("millstream: {} of {file}", in_words(given));
    let mut builder = lettre::Message::builder().from(address(&smtp.from)?);
    for to in mail.to.clone().into_vec() {
        builder = builder.to(address(&to)?);
    }
    let text = format!("{}\n\njob: {}\nrun: {}\n", given.sentence, given.job, given.run);
    let body = SinglePart::plain(text);
    let report = Attachment::new("report.json".to_owned());
    let report =
        report.body(given.report.clone(), ContentType::parse("application/json").unwrap_or(ContentType::TEXT_PLAIN));
    let parts = MultiPart::mixed().singlepart(body).singlepart(report);
    let subject = mail.subject.clone().unwrap_or_else(usual);
    let unwritten = |cause| Error::internal("the mail cannot be written").cause(cause);
    builder.subject(subject).multipart(parts).map_err(unwritten)
}

#[cfg(feature = "mail")]
fn in_words(given: &Given<'_>) -> &'static str {
    match given.outcome {
        super::given::Outcome::Done => "success",
        super::given::Outcome::Failed => "failure",
        super::given::Outcome::Interrupted => "interruption",
    }
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

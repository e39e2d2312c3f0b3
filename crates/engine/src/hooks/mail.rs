//! A mail about a run.

use millstream_core::Result;
use millstream_job::around::MailKeys;
use millstream_job::machine::Smtp;

use super::given::{Given, Outcome};
use crate::mail::{self, Attached, Letter};

/// Sends `mail` by the server of this machine.
pub(super) async fn send(mail: &MailKeys, smtp: Option<&Smtp>, given: &Given<'_>) -> Result<()> {
    let file = std::path::Path::new(given.job).file_name().map_or(given.job.into(), |name| name.to_string_lossy());
    let usual = || format!("millstream: {} of {file}", in_words(given));
    let report = given.report.clone();
    let letter = Letter {
        to: mail.to.clone().into_vec(),
        subject: mail.subject.clone().unwrap_or_else(usual),
        text: format!("{}\n\njob: {}\nrun: {}\n", given.sentence, given.job, given.run),
        attached: vec![Attached { name: "report.json".to_owned(), media_type: "application/json", text: report }],
    };
    mail::send(letter, smtp).await
}

fn in_words(given: &Given<'_>) -> &'static str {
    match given.outcome {
        Outcome::Done => "success",
        Outcome::Failed => "failure",
        Outcome::Interrupted => "interruption",
    }
}

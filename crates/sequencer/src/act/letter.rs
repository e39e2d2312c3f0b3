//! Mails of steps.

use millstream_core::Result;
use millstream_engine::mail::{Attached, Letter};
use millstream_job::sequence::model::LetterAction;
use millstream_job::sequence::spec::Attachment;
use serde_json::Value;

use crate::surroundings::{Done, Surroundings};
use crate::values::Values;

/// What a run has come to so far.
pub(crate) struct Report {
    /// As data.
    pub(crate) json: Value,
    /// In a few lines.
    pub(crate) text: String,
    /// What the subject of a mail says.
    pub(crate) subject: String,
    /// As a page, or why there is none.
    pub(crate) page: Result<String>,
}

/// A mail whose texts are filled in.
pub(crate) struct Filled {
    letter: Letter,
}

impl Filled {
    pub(super) fn new(values: &Values<'_>, action: &LetterAction, report: impl FnOnce() -> Report) -> Result<Self> {
        let report = report();
        let subject = action.subject.as_ref().map(|subject| values.fill(subject)).transpose()?;
        let attached = match action.attach {
            Attachment::Report => {
                vec![Attached { name: "report.html".to_owned(), media_type: "text/html", text: report.page? }]
            }
            Attachment::Nothing => Vec::new(),
        };
        let to = action.to.iter().map(|to| values.fill(to)).collect::<Result<_>>()?;
        let subject = subject.unwrap_or(report.subject);
        Ok(Filled { letter: Letter { to, subject, text: report.text, attached } })
    }

    pub(super) async fn send(self, surroundings: &Surroundings) -> Done {
        match surroundings.engine.send_mail(self.letter).await {
            Ok(()) => Done::default(),
            Err(error) => surroundings.secrets.hidden_in(error).into(),
        }
    }
}

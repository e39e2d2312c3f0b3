//! Writes results to standard output, and everything else to standard error. Decides about colours.

use std::io::{IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use millstream::{Error, Result};

use crate::arguments::{Color, Global};

/// The two streams and how they are written.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Whether standard error has colours.
    pub colors: bool,
    /// Whether results are JSON.
    pub json: bool,
    /// Whether only errors are shown.
    pub quiet: bool,
}

/// The role of a text, which decides its colour.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// The word `error`.
    Error,
    /// The word `hint`.
    Hint,
    /// The most important part of a line.
    Strong,
    /// A less important part.
    Faint,
}

impl Output {
    /// Text without colours.
    pub const PLAIN: Output = Output { colors: false, json: false, quiet: false };

    /// The output by the options.
    pub(crate) fn new(global: &Global) -> Self {
        let colors = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_colorful(),
        };
        Output { colors, json: global.json, quiet: global.quiet }
    }

    /// Messages for people, with colours on a terminal.
    pub fn for_people() -> Self {
        Output { colors: is_colorful(), ..Output::PLAIN }
    }

    /// `text` in the colour of `role`.
    pub fn paint(&self, role: Role, text: &str) -> String {
        if !self.colors {
            return text.to_owned();
        }
        let style = match role {
            Role::Error => AnsiColor::BrightRed.on_default().bold(),
            Role::Hint => AnsiColor::BrightCyan.on_default().bold(),
            Role::Strong => Style::new().bold(),
            Role::Faint => Style::new().dimmed(),
        };
        format!("{style}{text}{style:#}")
    }

    /// Writes a result. If the reader has closed the pipe, the error is [`millstream::ErrorKind::OutputClosed`].
    pub fn result(&self, text: &str) -> Result<()> {
        self.bytes(text.as_bytes())
    }

    /// The same for a result that may be no text.
    pub fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|cause| Error::io("standard output cannot be written", &cause))
    }

    /// Writes a result as JSON, in one line.
    pub fn json(&self, value: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_string(value)
            .map_err(|cause| Error::internal("the result cannot be written as JSON").cause(cause))?;
        self.result(&format!("{text}\n"))
    }

    /// Writes a message to standard error. Errors of writing are ignored.
    pub fn message(&self, text: &str) {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    /// Writes a message that `--quiet` suppresses.
    pub fn chat(&self, text: &str) {
        if !self.quiet {
            self.message(text);
        }
    }
}

/// Whether standard error is a terminal that has colours.
fn is_colorful() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

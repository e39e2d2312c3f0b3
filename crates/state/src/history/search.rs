//! The search for a text in runs, as a function of SQL.

use millstream_core::redact;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::record::shown_text;

/// Adds `shown_text_has(job, run, variables, message, text)` to `connection`, with the text in lower case. It looks at
/// what is shown, so that nobody can find out a secret letter by letter.
pub(super) fn add_functions(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("shown_text_has", 5, flags, |values| {
        let text = |index| Ok::<_, rusqlite::Error>(values.get::<Option<String>>(index)?.unwrap_or_default());
        let variables = text(2)?;
        let message = shown_text(&variables, &text(3)?);
        let shown = [text(0)?, text(1)?, redact::variables(&variables), message];
        let wanted = text(4)?;
        Ok(shown.iter().any(|text| text.to_lowercase().contains(&wanted)))
    })
}

//! The user's own statements and commands before a load and behind it. It owns when they run, and what is said if one
//! fails.

use millstream_core::{Error, Result, fail_point};

use crate::database::action::Action;
use crate::database::note::Note;
use crate::database::server::Connection;
use crate::database::spec::DatabaseSpec;

/// Runs `actions`; `when` is the setting that they stand in.
pub(super) async fn run(connection: &mut dyn Connection, actions: &[Action], when: &str) -> Result<()> {
    for action in actions {
        let statement = match action {
            Action::Statement(statement) => statement,
            Action::Command(line) => {
                line.run(when).await?;
                continue;
            }
        };
        connection.execute(statement).await.map_err(|failure| {
            let error = failure.into_error();
            let cause = error.cause_text().unwrap_or(error.what()).to_owned();
            Error::refused(format!("a statement of `{when}` failed")).text(statement).cause(cause)
        })?;
    }
    Ok(())
}

/// Runs those behind the commit. With a note, a run that resumes a load which died before their end runs them again.
pub(super) async fn run_after(connection: &mut dyn Connection, spec: &DatabaseSpec, note: Option<&Note>) -> Result<()> {
    if spec.after.is_empty() {
        return Ok(());
    }
    fail_point::pass("after.before");
    let hint = match note {
        Some(_) => "the rows are already committed; fix the cause, and `--resume` runs all of `after` again",
        None => "the rows are already committed; fix the cause and run it by hand",
    };
    run(connection, &spec.after, "after").await.map_err(|error| error.hint(hint))?;
    fail_point::pass("after.after");
    if let Some(note) = note {
        // Otherwise they would only be run once more.
        let _ = note.end(connection).await;
    }
    Ok(())
}

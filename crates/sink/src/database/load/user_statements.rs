//! Runs the user's statements and commands before and after a load.

use millstream_core::{Error, Result, fail_point};

use crate::database::action::Action;
use crate::database::commit_marker::CommitMarker;
use crate::database::server::Connection;
use crate::database::spec::DatabaseSpec;

/// Runs `actions`; `when` is the name of the setting.
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

/// Runs the actions after the commit. With a commit marker, a run that resumes a load which died before their end runs
/// them again.
pub(super) async fn run_after(
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    marker: Option<&CommitMarker>,
) -> Result<()> {
    if spec.after.is_empty() {
        return Ok(());
    }
    fail_point::pass("after.before");
    let hint = match marker {
        Some(_) => "the rows are already committed; fix the cause, and `--resume` runs all of `after` again",
        None => "the rows are already committed; fix the cause and run it by hand",
    };
    run(connection, &spec.after, "after").await.map_err(|error| error.hint(hint))?;
    fail_point::pass("after.after");
    if let Some(marker) = marker {
        // If this fails, they are only run once more.
        let _ = marker.end(connection).await;
    }
    Ok(())
}

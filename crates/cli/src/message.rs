//! Renders errors and lints: for people on standard error, and as JSON.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use millstream::{Error, Failure, Lint, Severity};

use crate::output::{Output, Role};

/// Why a job does not run: lints, errors, and how many there are, if more than one.
pub fn failure(output: Output, failure: &Failure) -> String {
    let mut text = shown_lints(output, &failure.lints) + &shown_errors(output, &failure.errors);
    text.push_str(&counted(output, &failure.lints, failure.errors.len()));
    text
}

/// The lints, and how many there are, if more than one.
pub fn lints(output: Output, lints: &[Lint]) -> String {
    shown_lints(output, lints) + &counted(output, lints, 0)
}

fn shown_lints(output: Output, lints: &[Lint]) -> String {
    lints.iter().filter(|one| one.is_error() || !output.quiet).map(|one| lint(output, one)).collect()
}

/// The errors. Of those in a row that have the same hint, only the last one shows it.
fn shown_errors(output: Output, errors: &[Error]) -> String {
    let hint_of_next = |index: usize| errors.get(index + 1).and_then(Error::hint_text);
    let shown =
        |(index, one): (usize, &Error)| match one.hint_text().is_some() && one.hint_text() == hint_of_next(index) {
            true => facts(output, one),
            false => error(output, one),
        };
    errors.iter().enumerate().map(shown).collect()
}

/// How many `lints` and other errors there were, if more than one.
fn counted(output: Output, lints: &[Lint], errors: usize) -> String {
    match lints.len() + errors > 1 && !output.quiet {
        true => format!("{}\n", summary(lints, errors)),
        false => String::new(),
    }
}

/// A warning about what is done after a run.
pub fn hook(output: Output, hook: &str, failed: &Error) -> String {
    let text = error(output, failed);
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    as_warning(output, &format!("{hook}: {}", failed.what()), rest)
}

/// An error that ends nothing: without what to do.
pub fn warning(output: Output, error: &Error) -> String {
    let text = facts(output, error);
    as_warning(output, error.what(), text.split_once('\n').map_or("", |(_, rest)| rest))
}

fn as_warning(output: Output, what: &str, rest: &str) -> String {
    format!("{} {}\n{rest}", output.paint(Role::Hint, "warning:"), output.paint(Role::Strong, what))
}

/// An error: what, where, the offending text, the cause, then what to do.
pub fn error(output: Output, error: &Error) -> String {
    facts(output, error) + &hint(output, error)
}

/// An error that ends nothing, and what to do.
pub fn warning_with_hint(output: Output, error: &Error) -> String {
    warning(output, error) + &hint(output, error)
}

fn hint(output: Output, error: &Error) -> String {
    let line = |hint| format!("{} {}\n", output.paint(Role::Hint, "hint:"), indented(hint));
    error.hint_text().map(line).unwrap_or_default()
}

/// An error without what to do.
fn facts(output: Output, error: &Error) -> String {
    let mut text = format!("{} {}\n", output.paint(Role::Error, "error:"), output.paint(Role::Strong, error.what()));
    let place = error.location().to_string();
    let facts = [
        ("at", Some(place).filter(|place| !place.is_empty())),
        ("step", error.step_name().map(str::to_owned)),
        ("text", error.offending_text().map(|text| format!("`{text}`"))),
        ("cause", error.cause_text().map(str::to_owned)),
    ];
    for (label, fact) in facts {
        if let Some(fact) = fact {
            text.push_str(&format!("  {} {}\n", output.paint(Role::Faint, label), indented(&fact)));
        }
    }
    text
}

/// Indents further lines below the first one.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

/// A lint with its line of the job file.
pub fn lint(output: Output, lint: &Lint) -> String {
    let level = match lint.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(lint.what.as_str());
    let mut group = match lint.line {
        0 => annotate_snippets::Group::with_title(title).element(annotate_snippets::Origin::path(lint.path.as_str())),
        line => title.element(
            Snippet::source(lint.source_line.as_str())
                .path(lint.path.as_str())
                .line_start(line)
                .annotation(AnnotationKind::Primary.span(bytes_of(lint))),
        ),
    };
    if let Some(hint) = &lint.hint {
        group = group.element(Level::HELP.with_name("hint").message(hint.as_str()));
    }
    let renderer = if output.colors { Renderer::styled() } else { Renderer::plain() };
    format!("{}\n\n", renderer.decor_style(DecorStyle::Ascii).render(&[group]).trim_end())
}

/// The bytes of the source line that a lint is about.
fn bytes_of(lint: &Lint) -> std::ops::Range<usize> {
    let byte = |characters: usize| {
        lint.source_line.char_indices().nth(characters).map_or(lint.source_line.len(), |(byte, _)| byte)
    };
    let start = lint.column.saturating_sub(1);
    byte(start)..byte(start + lint.length.max(1))
}

/// The number of errors and warnings as text: those of `lints`, and `more` errors.
fn summary(lints: &[Lint], more: usize) -> String {
    let warnings = lints.iter().filter(|lint| !lint.is_error()).count();
    let errors = lints.len() - warnings + more;
    let count = |number: usize, word: &str| match number {
        1 => format!("1 {word}"),
        number => format!("{number} {word}s"),
    };
    match (errors, warnings) {
        (errors, 0) => count(errors, "error"),
        (0, warnings) => count(warnings, "warning"),
        (errors, warnings) => format!("{} and {}", count(errors, "error"), count(warnings, "warning")),
    }
}

#[cfg(test)]
mod tests {
    use millstream::LintCode;

    use super::*;

    #[test]
    fn an_error_tells_all_its_facts() {
        let shown = error(
            Output::PLAIN,
            &Error::data("a record has 3 fields, and the header has 2")
                .line(7)
                .text("a,b,c")
                .in_unit("data/a.csv", None)
                .in_step("places")
                .cause("first line\nsecond line")
                .hint("fix the file"),
        );
        assert_eq!(
            shown,
            "error: a record has 3 fields, and the header has 2\n  at data/a.csv, line 7\n  step places\n  text \
             `a,b,c`\n  \
             cause first line\n    second line\nhint: fix the file\n"
        );
    }

    #[test]
    fn a_lint_shows_its_line_with_characters_counted_as_characters() {
        let shown = lint(
            Output::PLAIN,
            &Lint {
                severity: Severity::Error,
                code: LintCode::Other,
                path: "job.yaml".to_owned(),
                line: 12,
                column: 9,
                length: 3,
                what: "unknown key".to_owned(),
                text: "bad".to_owned(),
                source_line: "  ä: ö, bad: 1".to_owned(),
                hint: Some("remove it".to_owned()),
            },
        );
        assert_eq!(
            shown,
            "error: unknown key\n  --> job.yaml:12:9\n   |\n12 |   ä: ö, bad: 1\n   |         ^^^\n   |\n   = hint: \
             remove it\n\n"
        );
    }

    #[test]
    fn a_lint_about_the_whole_file_has_no_line() {
        let lint_of_file = Lint {
            severity: Severity::Warning,
            code: LintCode::Other,
            path: "job.yaml".to_owned(),
            line: 0,
            column: 0,
            length: 0,
            what: "the job has no sinks".to_owned(),
            text: String::new(),
            source_line: String::new(),
            hint: None,
        };
        assert_eq!(lint(Output::PLAIN, &lint_of_file), "warning: the job has no sinks\n--> job.yaml\n\n");
    }
}

//! `guess`: a URL to a job file that runs, with format, columns and types written down so that they are frozen.

use std::fmt::Write;
use std::sync::Arc;

use millstream_core::error::printable;
use millstream_core::format::Reading;
use millstream_core::{Result, Unit};
use serde_json::{Value, json};

use crate::context::RunContext;
use crate::job_text::{block_of, in_comment, scalar};
use crate::read::Reader;
use crate::read::no_match;
use crate::read::ranges::ranged_file;
use crate::read::sample::{self, Head};
use crate::urls::Urls;

/// Bytes of a file that is read by ranges that tell whether it is one of a format that needs them.
const RANGED_HEAD: u64 = 4096;

/// A job file that reads `url` (a path, glob, URL or list) and prints its rows.
pub async fn guess(context: &RunContext, url: &str) -> Result<String> {
    let guessed = Guessed::of(context, url).await?;
    let Guessed { reader, first, head, guess, .. } = &guessed;
    let sink = if is_nested(reader, first, guess).await { "json" } else { "csv" };
    Ok(job_text(url, first, head, guess, sink))
}

/// What the first file of a URL says of all of them.
pub struct Guessed {
    url: String,
    reader: Arc<Reader>,
    first: Unit,
    head: Head,
    guess: millstream_format::Guess,
}

impl Guessed {
    /// Looks at the first file of `url` (a path, glob, URL or list).
    pub async fn of(context: &RunContext, url: &str) -> Result<Self> {
        let urls = Urls { patterns: vec![url.to_owned()], members: Vec::new() };
        let reader = urls.reader(context, "guess")?;
        let _governor = context.govern()?;
        let first = sample::units(&reader, 1).await?.into_iter().next().ok_or_else(|| no_match(&reader.patterns))?;
        let head = head_of(&reader, &first).await?;
        let guess = sample::guess_of(&head).map_err(|error| error.in_unit(&first.uri, head.member.as_deref()))?;
        Ok(Guessed { url: url.to_owned(), reader, first, head, guess })
    }

    /// A name for the source, by the URL alone.
    pub fn name(&self) -> String {
        entry_name(&self.url, &self.first, None)
    }

    /// The settings of the source, with its format and columns.
    pub fn source(&self) -> Value {
        json!({"read": self.url, self.guess.format: self.guess.settings})
    }

    /// What was found beyond what the name of the file says: its format, or settings beside the columns.
    pub fn beyond_name(&self) -> Option<String> {
        let named = self.reader.registry.by_name(&self.first.uri).1;
        let named = named.filter(|(format, _)| format.spec.name == self.guess.format);
        let suggested = named.map(|(format, ending)| (format.suggested)(ending)).unwrap_or_default();
        let is_new = |(key, value): (&String, &Value)| key != "columns" && suggested.get(key) != Some(value);
        let has_new = self.guess.settings.as_object().is_some_and(|settings| settings.iter().any(is_new));
        let evidence: Vec<String> = self.guess.evidence.iter().map(|line| printable(line.as_bytes())).collect();
        (named.is_none() || has_new).then(|| format!("read as {}: {}", self.guess.format, evidence.join("; ")))
    }

    /// What was read of something that cannot be read again, such as standard input.
    pub fn consumed(&self) -> Vec<String> {
        self.reader.opened.consumed()
    }
}

/// The first bytes of `unit`: as they are for a file that is read by ranges, else decoded.
async fn head_of(reader: &Arc<Reader>, unit: &Unit) -> Result<Head> {
    if let Some(file) = ranged_file(reader, unit, None).await? {
        let text =
            file.read_at(0..file.size().min(RANGED_HEAD)).await.map_err(|error| error.in_unit(&unit.uri, None))?;
        if text.starts_with(b"PAR1") {
            return Ok(Head {
                unit: unit.clone(),
                member: None,
                codec: "plain",
                stored: text.len() as u64,
                text,
                complete: false,
            });
        }
    }
    sample::head(reader, unit.clone()).await
}

/// Whether a column holds lists or structures, which csv cannot write.
async fn is_nested(reader: &Arc<Reader>, unit: &Unit, guess: &millstream_format::Guess) -> bool {
    let declared = guess.settings.get("columns").and_then(Value::as_object);
    let is_nested =
        |column: &Value| column.get("type").unwrap_or(column).as_str().is_some_and(|kind| kind.contains('<'));
    if declared.is_some_and(|columns| columns.values().any(is_nested)) {
        return true;
    }
    // What such a file cannot tell now, the run will.
    let Some(entry) = reader.registry.formats.iter().find(|entry| entry.spec.name == guess.format) else {
        return false;
    };
    let Ok(format) = (entry.build)(&guess.settings) else { return false };
    let Reading::Ranges(format) = format.reading() else { return false };
    let Ok(Some(file)) = ranged_file(reader, unit, None).await else { return false };
    let columns = format.columns(file).await;
    columns.is_ok_and(|columns| columns.fields().iter().any(|field| field.data_type().is_nested()))
}

/// The job file as text. Everything that a user may want to change is written out.
fn job_text(url: &str, unit: &Unit, head: &Head, guess: &millstream_format::Guess, sink: &str) -> String {
    let name = entry_name(url, unit, head.member.as_deref());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# Guessed from {}{}.",
        in_comment(&unit.name()),
        if head.codec == "plain" { String::new() } else { format!(" ({})", head.codec) }
    );
    for line in &guess.evidence {
        let _ = writeln!(text, "# {}", in_comment(line));
    }
    let _ = writeln!(text, "sources:\n  {name}:\n    read: {}", scalar(&Value::String(url.to_owned())));
    text.push_str(&block_of(guess));
    let _ = writeln!(text, "\nsinks:\n  result:\n    from: {name}\n    write: \"-\"\n    {sink}: {{}}");
    text
}

/// A name for the source: the file's, without its endings; the folder's, if `url` means several files of one.
fn entry_name(url: &str, unit: &Unit, member: Option<&str>) -> String {
    let several = |part: &&str| part.contains(['*', '?', '[', '{', '@']);
    let folder = url.rsplit('/').skip_while(several).find(|part| !part.is_empty());
    let path = match member {
        None if url != unit.uri && url.rsplit('/').next().is_some_and(|file| several(&file)) => folder,
        member => Some(member.unwrap_or(&unit.uri)),
    };
    let path = path.unwrap_or(&unit.uri).split(['?', '#']).next().unwrap_or_default();
    let file = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = file.split('.').next().unwrap_or_default();
    let mut name: String =
        stem.chars().map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_lowercase() } else { '_' }).collect();
    if !name.chars().next().is_some_and(|first| first.is_ascii_alphabetic()) {
        name = format!("rows_{name}");
    }
    name.trim_end_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for (uri, name) in [
            ("data/part-000.tsv.gz", "part_000"),
            ("https://host/2024 sales.csv?x=1", "rows_2024_sales"),
            ("-", "rows"),
        ] {
            assert_eq!(entry_name(uri, &Unit::new(uri), None), name);
        }
        assert_eq!(entry_name("a.zip", &Unit::new("a.zip"), Some("in/side.csv")), "side");
        let first = Unit::new("data/sales/2024.csv");
        for (url, name) in [("data/sales/*.csv", "sales"), ("data/*/{2024,2025}.csv", "data"), ("*.csv", "rows_2024")] {
            assert_eq!(entry_name(url, &first, None), name);
        }
        assert_eq!(entry_name("data/*/2024.csv", &first, None), "rows_2024");
    }
}

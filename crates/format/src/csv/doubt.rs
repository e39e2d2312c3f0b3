//! What a sample says against the defaults: that a file is split by commas, and that its first record is a header.

use arrow::datatypes::Schema;
use millstream_core::error::printable;
use millstream_core::format::{Defaults, Doubt, Sample};
use serde_json::Value;

use crate::{Guess, guess};

/// So many names of columns are shown.
const NAMES_SHOWN: usize = 6;

/// A file of one column is so rare that another delimiter is worth looking for.
pub(super) fn defaults(settings: &Value, columns: &Schema) -> Defaults {
    let says = |key: &str| settings.get(key).is_some();
    match columns.fields().len() {
        _ if says("columns") => Defaults::None,
        1 if !says("delimiter") => Defaults::Doubtful,
        _ if !says("header") => Defaults::Plausible,
        _ => Defaults::None,
    }
}

/// The doubt about the delimiter; otherwise, with `plausible`, that about the header.
pub(super) fn doubt(name: &str, settings: &Value, columns: &Schema, sample: &Sample, plausible: bool) -> Option<Doubt> {
    let guess = guess(sample, &sample.text).ok().filter(|guess| guess.format == "csv")?;
    let doubtful = defaults(settings, columns) == Defaults::Doubtful;
    let of_delimiter = if doubtful { delimiter(name, &guess) } else { None };
    let looks_at_header = plausible && settings.get("header").is_none();
    of_delimiter.or_else(|| if looks_at_header { header(name, settings, columns, &guess) } else { None })
}

/// Split by commas there is one column, and split by something else there are several.
fn delimiter(name: &str, guess: &Guess) -> Option<Doubt> {
    let delimiter = guess.settings.get("delimiter").filter(|sign| *sign != ",")?;
    let fields = guess.settings.get("columns")?.as_object()?.len();
    (fields > 1).then(|| Doubt {
        what: format!("split by commas, `{name}` has one column; split by {delimiter}, {fields}"),
        hint: format!("say so below `read`: csv: {{delimiter: {delimiter}}}"),
    })
}

/// The first record looks like the others, and would be lost as a header.
fn header(name: &str, settings: &Value, columns: &Schema, guess: &Guess) -> Option<Doubt> {
    let skipped = |block: &Value| block.get("skip_lines").and_then(Value::as_u64).unwrap_or(0);
    let is_same_table = guess.settings.get("columns")?.as_object()?.len() == columns.fields().len()
        && skipped(&guess.settings) == skipped(settings);
    if !is_same_table || guess.settings.get("header") != Some(&Value::Bool(false)) {
        return None;
    }
    let names = columns.fields().iter().map(|field| format!("`{}`", printable(field.name().as_bytes())));
    let mut shown: Vec<String> = names.take(NAMES_SHOWN).collect();
    if columns.fields().len() > NAMES_SHOWN {
        shown.push("…".to_owned());
    }
    let why = guess.evidence.iter().find_map(|line| line.strip_prefix("the first record is not a header: "));
    let why = why.map(|why| format!("it looks like data: {}; ", printable(why.as_bytes()))).unwrap_or_default();
    Some(Doubt {
        what: format!("the first record of `{name}` is taken for its header: {}", shown.join(", ")),
        hint: format!(
            "{why}if it is data, say so below `read`, csv: {{header: false}}, and declare `columns`; if it is the \
             header, say csv: {{header: true}}"
        ),
    })
}

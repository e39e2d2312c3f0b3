//! Which file a row goes to: from the target of the job file to the paths of its files, with placeholders and names of
//! values. It touches no disk.
//!
//! ```text
//!  out/{value}/a.csv.gz     split by country, rolled
//!  └┬┘ └──────┬───────┘
//!  folder  pattern ─▶ {value}/a-{part}.csv.gz ─▶ DE/a-00000.csv.gz
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millstream_core::hint::did_you_mean;
use millstream_core::spec::Fault;
use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::spec::{FileMode, FileSpec};

/// The longest name of a file or folder on the usual file systems, in bytes.
const NAME_LIMIT: usize = 255;
/// The longest name of an object, in bytes: that of S3 and Azure; Google's is the same.
const KEY_LIMIT: usize = 1024;
/// A value longer than this becomes its beginning and its hash.
const VALUE_LIMIT: usize = 120;
/// Digits of a part's number.
const PART_DIGITS: usize = 5;

/// The most parts of one route that a worker of a cluster makes of one bundle: the numbers of parts begin anew with the
/// next one.
pub(crate) const PARTS: usize = 10_000;

/// The digits of the parts of workers, whose numbers are large, and of those beside them.
const PART_DIGITS_OF_WORKERS: usize = 9;
/// The least digits of a shard's number.
const SHARD_DIGITS: usize = 3;
/// Endings of compressed files.
const COMPRESSED: &[&str] = &["gz", "gzip", "zst", "zstd", "bz2", "bzip2", "xz"];
/// The name of a null. No value has this name: if a value begins with two `_`, the first one is escaped.
const NULL_NAME: &str = "__null__";
/// The name of an empty text.
const EMPTY_NAME: &str = "__empty__";

/// Which of the sink's files a row goes to, parts aside.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Route {
    /// The only file.
    Only,
    /// The shard of that number.
    Shard(u32),
    /// The file of that value.
    Value(Option<String>),
}

/// A piece of the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(String),
    Shard,
    Value,
    Run,
    Part,
}

/// The placeholders of a path.
const PLACEHOLDERS: &[&str] = &["shard", "value", "run", "part"];

/// A placeholder of the same length for a run's name, until there is a run.
const SOME_RUN: &str = "0000000000000-0000000";

/// The paths of a sink's files.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// As in the job file.
    text: String,
    /// The common folder of all paths, without placeholders.
    folder: PathBuf,
    /// The same for a store: a URL that ends with a slash.
    base: Option<String>,
    /// The pattern after the folder, including placeholders and slashes.
    pattern: Vec<Segment>,
    /// The pattern with only the placeholders in the job file.
    written: Vec<Segment>,
    /// The value of `{run}`.
    run: String,
    /// Names the set of files in the folder.
    key: String,
    shard_digits: usize,
}

impl Target {
    /// Parses `text` under the settings, or returns its faults. It is a URL for files in a store.
    pub(crate) fn new(text: &str, spec: &FileSpec, in_store: bool) -> Result<Self, Vec<Fault>> {
        let mut faults = path_faults(text);
        let cut = text.find('{').unwrap_or(text.len());
        let cut = text[..cut].rfind('/').map_or(0, |slash| slash + 1);
        let (folder, rest) = text.split_at(cut);
        if in_store && folder.ends_with("://") && text.contains('{') {
            let fault = Fault::new("write", "a placeholder in the name of the bucket");
            faults.push(fault.hint("write the bucket's name, and the placeholder after a slash"));
        }
        let written = match segments(rest) {
            Ok(pattern) => pattern,
            Err(fault) => {
                faults.push(fault);
                return Err(faults);
            }
        };
        let mut pattern = written.clone();
        if rest.contains('{') && rest.split('/').any(|name| matches!(name, "." | "..")) {
            faults.push(Fault::new("write", "`.` or `..` after a placeholder").hint("write the folder without them"));
        }
        let uses = [
            (Segment::Shard, spec.shards.is_some(), "{shard}", "shards"),
            (Segment::Value, spec.split.is_some(), "{value}", "split"),
            (Segment::Run, spec.mode() == FileMode::Append, "{run}", "mode: append"),
            (Segment::Part, spec.roll.is_some(), "{part}", "roll"),
        ];
        for (segment, used, placeholder, setting) in uses {
            let present = pattern.contains(&segment);
            if present && !used {
                let fault = Fault::new("write", format!("`{placeholder}` in the path, but no `{setting}`"));
                faults.push(fault.hint(format!("add `{setting}`, or leave the placeholder out")));
            }
            if used && !present {
                insert(&mut pattern, segment);
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let count = spec.shards.as_ref().map_or(1, |shards| shards.count);
        Ok(Target {
            text: text.to_owned(),
            // Without its last slash, as messages show it.
            folder: Path::new(folder).components().collect(),
            base: in_store.then(|| folder.to_owned()),
            pattern,
            written,
            run: SOME_RUN.to_owned(),
            key: key(rest),
            shard_digits: count.saturating_sub(1).to_string().len().max(SHARD_DIGITS),
        })
    }

    /// The same for files with `run` in their names.
    pub(crate) fn of_run(&self, run: &str) -> Self {
        Target { run: value_name(Some(run)), ..self.clone() }
    }

    /// As in the job file.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The folder that all files are in or below; empty for the working folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URL of the file at `path` in a store.
    pub(crate) fn uri(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_deref().unwrap_or_default())
    }

    /// The path of the list of the set.
    pub(crate) fn list(&self) -> String {
        format!(".{}.millstream.json", self.key)
    }

    /// Names the set of files in its folder: a text that can be a part of a file's name.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Whether there can be more than one file.
    pub(crate) fn is_set(&self) -> bool {
        self.pattern.iter().any(|segment| !matches!(segment, Segment::Text(_)))
    }

    /// The path of one file below the folder. An error if a name in it is too long.
    pub(crate) fn path(&self, route: &Route, part: usize) -> Result<String> {
        let mut path = String::new();
        for segment in &self.pattern {
            match (segment, route) {
                (Segment::Text(text), _) => path.push_str(text),
                (Segment::Part, _) => {
                    let width = if part < PARTS { PART_DIGITS } else { PART_DIGITS_OF_WORKERS };
                    path.push_str(&format!("{part:0width$}"));
                }
                (Segment::Run, _) => path.push_str(&self.run),
                (Segment::Shard, Route::Shard(shard)) => {
                    path.push_str(&format!("{shard:0width$}", width = self.shard_digits));
                }
                (Segment::Value, Route::Value(value)) => path.push_str(&value_name(value.as_deref())),
                (Segment::Shard | Segment::Value, _) => {
                    return Err(Error::internal("a row came without the number or value of its file"));
                }
            }
        }
        if let Some(base) = &self.base {
            // After the scheme and the bucket.
            let key = base.splitn(4, '/').nth(3).map_or(0, str::len) + path.len();
            return match key > KEY_LIMIT {
                true => Err(Error::refused(format!(
                    "the name of an object is too long: {key} bytes, and at most {KEY_LIMIT} are allowed"
                ))
                .text(path)
                .hint("write to a shorter path")),
                false => Ok(path),
            };
        }
        match path.split('/').find(|name| name.len() > NAME_LIMIT) {
            Some(name) => Err(Error::refused(format!(
                "the name of a file is too long: {} bytes, and at most {NAME_LIMIT} are allowed",
                name.len()
            ))
            .text(name)
            .hint("write to a shorter path")),
            None => Ok(path),
        }
    }

    /// Whether the path of the job file has placeholders.
    pub(crate) fn has_placeholders(&self) -> bool {
        self.written.iter().any(|segment| !matches!(segment, Segment::Text(_)))
    }

    /// The same path with `-MARK` before the endings of its name, and without placeholders that settings have added.
    fn with_mark(&self, mark: &str) -> Self {
        let mut pattern = self.written.clone();
        insert(&mut pattern, Segment::Text(mark.to_owned()));
        Target { pattern, ..self.clone() }
    }

    /// The path of the file below the folder that has `mark` in its name: `a-MARK.csv`.
    pub(crate) fn marked(&self, mark: &str) -> Result<String> {
        self.with_mark(mark).path(&Route::Only, 0)
    }

    /// Such a path with its folder, as messages show it.
    pub(crate) fn shown_marked(&self, mark: &str) -> String {
        self.with_mark(mark).shown()
    }

    /// The path of a file below the folder, as messages show it.
    pub(crate) fn shown_path(&self, path: &str) -> String {
        match &self.base {
            Some(base) => format!("{base}{path}"),
            None => self.folder.join(path).display().to_string(),
        }
    }

    /// `out/a-{shard}.csv`, as reports show it.
    pub(crate) fn shown(&self) -> String {
        let folder = || self.folder.to_string_lossy().into_owned();
        let mut shown = self.base.clone().unwrap_or_else(folder);
        if !shown.is_empty() && !shown.ends_with('/') {
            shown.push('/');
        }
        for segment in &self.pattern {
            shown.push_str(match segment {
                Segment::Text(text) => text,
                Segment::Shard => "{shard}",
                Segment::Value => "{value}",
                Segment::Run => "{run}",
                Segment::Part => "{part}",
            });
        }
        shown
    }

    /// The value of `split` in the path of a file, if it is unambiguous.
    pub(crate) fn value_of(&self, path: &str) -> Option<Option<String>> {
        if !self.written.contains(&Segment::Value) {
            return None;
        }
        // The files may have been rolled or not, regardless of the current settings.
        let mut rolled = self.written.clone();
        if !rolled.contains(&Segment::Part) {
            insert(&mut rolled, Segment::Part);
        }
        let mut names = BTreeSet::new();
        [&self.written, &rolled].into_iter().for_each(|pattern| fitting_values(pattern, path, None, &mut names));
        let mut names = names.into_iter();
        match (names.next(), names.next()) {
            (Some(name), None) => named_value(name),
            _ => None,
        }
    }
}

/// Faults of `text` as a path, regardless of its placeholders.
fn path_faults(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if text.is_empty() {
        faults.push(Fault::new("write", "the path is empty").hint("write a path, such as `out/result.csv`"));
    } else if text.ends_with('/') {
        faults.push(
            Fault::new("write", format!("`{text}` is a folder")).hint(format!("name a file in it: `{text}result.csv`")),
        );
    } else if matches!(text.rsplit('/').next(), Some("." | "..")) {
        faults.push(Fault::new("write", format!("`{text}` is a folder")).hint("name a file in it"));
    }
    if text.contains('\0') {
        faults.push(Fault::new("write", "the path holds a NUL byte"));
    }
    faults
}

/// Adds all possible names of `{value}` to `names` with which `pattern` gives `path`; `value` is set once it is known.
fn fitting_values<'a>(pattern: &[Segment], path: &'a str, value: Option<&'a str>, names: &mut BTreeSet<&'a str>) {
    let Some((first, rest)) = pattern.split_first() else {
        if path.is_empty() {
            names.extend(value);
        }
        return;
    };
    match (first, value) {
        (Segment::Text(text), _) => {
            if let Some(path) = path.strip_prefix(text.as_str()) {
                fitting_values(rest, path, value, names);
            }
        }
        (Segment::Value, Some(known)) => {
            if let Some(path) = path.strip_prefix(known) {
                fitting_values(rest, path, value, names);
            }
        }
        (Segment::Value, None) => {
            let end = path.find('/').unwrap_or(path.len());
            for at in (1..=end.min(VALUE_LIMIT)).filter(|at| path.is_char_boundary(*at)) {
                fitting_values(rest, &path[at..], Some(&path[..at]), names);
            }
        }
        (Segment::Part, _) => {
            let digits = path.bytes().take_while(u8::is_ascii_digit).count();
            for at in PART_DIGITS..=digits {
                if [PART_DIGITS, PART_DIGITS_OF_WORKERS].contains(&at) || !path.starts_with('0') {
                    fitting_values(rest, &path[at..], value, names);
                }
            }
        }
        (Segment::Shard | Segment::Run, _) => {}
    }
}

/// The value of `name`, if the name is not shortened.
fn named_value(name: &str) -> Option<Option<String>> {
    if name == NULL_NAME {
        return Some(None);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        match first {
            b'%' => {
                let digits = std::str::from_utf8(more.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &more[2..];
            }
            other => {
                bytes.push(*other);
                rest = more;
            }
        }
    }
    let value = if name == EMPTY_NAME { String::new() } else { String::from_utf8(bytes).ok()? };
    (value_name(Some(&value)) == name).then_some(Some(value))
}

/// Cuts a pattern at its placeholders.
fn segments(pattern: &str) -> Result<Vec<Segment>, Fault> {
    let mut found = Vec::new();
    let mut rest = pattern;
    while let Some(start) = rest.find('{') {
        let Some(length) = rest[start..].find('}') else {
            return Err(Fault::new("write", "a `{` without its `}` in the path")
                .hint("placeholders: {shard}, {value}, {run}, {part}"));
        };
        if start > 0 {
            found.push(Segment::Text(rest[..start].to_owned()));
        }
        let name = &rest[start + 1..start + length];
        found.push(match name {
            "shard" => Segment::Shard,
            "value" => Segment::Value,
            "run" => Segment::Run,
            "part" => Segment::Part,
            _ => {
                return Err(Fault::new("write", format!("unknown placeholder `{{{name}}}` in the path"))
                    .hint(did_you_mean(name, "placeholders", PLACEHOLDERS)));
            }
        });
        rest = &rest[start + length + 1..];
    }
    if !rest.is_empty() {
        found.push(Segment::Text(rest.to_owned()));
    }
    Ok(found)
}

/// Inserts `-PLACEHOLDER` before the endings of the file's name.
fn insert(pattern: &mut Vec<Segment>, placeholder: Segment) {
    // The name begins after the last slash; endings are only searched in the last text, since the text of a placeholder
    // is no ending.
    let alone = pattern.len() == 1;
    let Some(Segment::Text(last)) = pattern.last_mut() else {
        pattern.extend([Segment::Text("-".into()), placeholder]);
        return;
    };
    let at = endings(last, alone || last.contains('/'));
    let tail = last.split_off(at);
    last.push('-');
    pattern.push(placeholder);
    if !tail.is_empty() {
        pattern.push(Segment::Text(tail));
    }
}

/// Where the endings of the name in `text` begin: one, or two if the last is a compression's. A text that holds the
/// whole name may begin with a dot that hides the file.
fn endings(text: &str, whole_name: bool) -> usize {
    let name_start = text.rfind('/').map_or(0, |slash| slash + 1);
    let first = if whole_name { name_start + 1 } else { name_start };
    let dot_before = |end: usize| text[..end].rfind('.').filter(|dot| *dot >= first.min(text.len()));
    let Some(last) = dot_before(text.len()) else { return text.len() };
    let compressed = COMPRESSED.iter().any(|ending| text[last + 1..].eq_ignore_ascii_case(ending));
    match (compressed, dot_before(last)) {
        (true, Some(before)) => before,
        _ => last,
    }
}

/// A value as a name: letters, digits, `-`, `_` and `.` of ASCII stay, every other byte becomes `%XX`. The result is
/// never `.`, `..` or hidden, and has no slash, so a value can never leave its folder.
pub(crate) fn value_name(value: Option<&str>) -> String {
    let Some(value) = value else { return NULL_NAME.to_owned() };
    if value.is_empty() {
        return EMPTY_NAME.to_owned();
    }
    let reserved = value.starts_with("__");
    let mut name = String::with_capacity(value.len());
    for (index, byte) in value.bytes().enumerate() {
        let escaped = match byte {
            b'.' => index == 0,
            b'_' => index == 0 && reserved,
            b'-' => false,
            other => !other.is_ascii_alphanumeric(),
        };
        if escaped { name.push_str(&format!("%{byte:02X}")) } else { name.push(char::from(byte)) }
    }
    shortened(name, VALUE_LIMIT)
}

/// `name`, or its beginning, `~` (which no name has) and its hash if it is longer than `limit`.
fn shortened(mut name: String, limit: usize) -> String {
    if name.len() <= limit {
        return name;
    }
    let hash = fnv1a(name.as_bytes());
    name.truncate(limit - 33);
    // An escape that was cut in two would be read as another text.
    if let Some(cut) = name.rfind('%').filter(|at| name.len() - at < 3) {
        name.truncate(cut);
    }
    name.push_str(&format!("~{hash:032x}"));
    name
}

/// The name of a set of files in its folder.
fn key(rest: &str) -> String {
    let mut key = String::with_capacity(rest.len());
    for character in rest.chars() {
        match character {
            '/' => key.push_str("%2F"),
            '%' => key.push_str("%25"),
            other => key.push(other),
        }
    }
    if key.len() <= 200 {
        return key;
    }
    let mut cut = 160;
    while !key.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}~{:032x}", &key[..cut], fnv1a(key.as_bytes()))
}

/// The 128-bit hash FNV-1a (Fowler, Noll, Vo): short, and the same on every machine and in every version, so that a
/// value keeps its name.
fn fnv1a(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::file::spec::{Roll, Shards};

    fn sharded() -> FileSpec {
        let shards = Shards { count: 12, hash: Some("a".into()), modulo: None };
        FileSpec { shards: Some(shards), ..FileSpec::default() }
    }

    fn split() -> FileSpec {
        FileSpec { split: Some("a".into()), ..FileSpec::default() }
    }

    fn rolled() -> FileSpec {
        FileSpec { roll: Some(Roll { rows: Some(10), bytes: None }), ..FileSpec::default() }
    }

    fn path(text: &str, spec: &FileSpec, route: Route) -> String {
        let target = Target::new(text, spec, false).expect("valid");
        target.folder().join(target.path(&route, 7).expect("short")).display().to_string()
    }

    #[test]
    fn placeholders_are_filled_or_inserted_before_the_endings() {
        let value = || Route::Value(Some("DE".into()));
        assert_eq!(path("out/a.csv", &FileSpec::default(), Route::Only), "out/a.csv");
        assert_eq!(path("out/a.csv.gz", &sharded(), Route::Shard(3)), "out/a-003.csv.gz");
        assert_eq!(path("out/{shard}.csv", &sharded(), Route::Shard(3)), "out/003.csv");
        assert_eq!(path("a.csv", &split(), value()), "a-DE.csv");
        assert_eq!(path("out/c={value}/a.csv", &split(), value()), "out/c=DE/a.csv");
        assert_eq!(path("o.d/a", &rolled(), Route::Only), "o.d/a-00007");
        assert_eq!(path("a.2024.csv", &rolled(), Route::Only), "a.2024-00007.csv");
        assert_eq!(path("out/.a", &rolled(), Route::Only), "out/.a-00007");
        let both = FileSpec { roll: rolled().roll, ..split() };
        assert_eq!(path("a.csv.zst", &both, value()), "a-DE-00007.csv.zst");
        assert_eq!(path("out/{value}.csv", &both, value()), "out/DE-00007.csv");
        assert_eq!(path("out/{value}", &both, value()), "out/DE-00007");
        assert_eq!(path("out/{part}-{value}.csv", &both, value()), "out/00007-DE.csv");
    }

    #[test]
    fn names_of_runs_stand_before_the_part() {
        let of = |text: &str, spec: &FileSpec, route: Route| {
            let target = Target::new(text, &FileSpec { mode: Some(FileMode::Append), ..spec.clone() }, false);
            target.expect("valid").of_run("17-4").path(&route, 7).expect("short")
        };
        assert_eq!(of("a.csv.gz", &FileSpec::default(), Route::Only), "a-17-4.csv.gz");
        assert_eq!(of("{run}/a.csv", &FileSpec::default(), Route::Only), "17-4/a.csv");
        let both = FileSpec { roll: rolled().roll, ..split() };
        assert_eq!(of("a.csv", &both, Route::Value(Some("DE".into()))), "a-DE-17-4-00007.csv");
    }

    #[test]
    fn values_are_found_in_paths_where_they_can_be_no_others() {
        let value = |text: &str, path: &str| Target::new(text, &split(), false).expect("valid").value_of(path);
        let some = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(value("{value}.csv", "DE.csv"), some("DE"));
        assert_eq!(value("{value}.csv", "Z%C3%BCrich%2F.csv"), some("Zürich/"));
        assert_eq!(value("{value}.csv", "__null__.csv"), Some(None));
        assert_eq!(value("{value}.csv", "__empty__.csv"), some(""));
        assert_eq!(value("day={value}/a.csv", "day=2026-01-01/a.csv"), some("2026-01-01"));
        assert_eq!(value("day={value}/a.csv", "day=2026-01-01/a-00012.csv"), some("2026-01-01"));
        assert_eq!(value("{value}/x-{value}.csv", "DE/x-DE.csv"), some("DE"));
        assert_eq!(value("{value}.csv", "DE-00001.csv"), None, "a part, or the value DE-00001");
        assert_eq!(value("a.csv", "a-DE.csv"), None, "it may be the name of a shard");
        assert_eq!(value("{value}.csv", "DE.tsv"), None);
        let long = value_name(Some(&"x".repeat(500)));
        assert_eq!(value("{value}.csv", &format!("{long}.csv")), None, "its end is cut off");
    }

    proptest! {
        #[test]
        fn every_value_whose_name_is_whole_is_found(text in ".{0,40}") {
            let name = value_name(Some(&text));
            prop_assert_eq!(named_value(&name), (!name.contains('~')).then_some(Some(text)));
        }
    }

    #[test]
    fn objects_have_urls() {
        let uri = |text: &str, spec: &FileSpec, route: Route| {
            let target = Target::new(text, spec, true).expect("valid");
            target.uri(&target.path(&route, 7).expect("short"))
        };
        let value = Route::Value(Some("a/b".into()));
        assert_eq!(uri("s3://b/a.csv", &FileSpec::default(), Route::Only), "s3://b/a.csv");
        assert_eq!(uri("s3://b/x//a.csv.gz", &sharded(), Route::Shard(3)), "s3://b/x//a-003.csv.gz");
        assert_eq!(uri("gs://b/{value}/a.csv", &split(), value), "gs://b/a%2Fb/a.csv");
        let target = Target::new("s3://b/x/a.csv.gz", &sharded(), true).expect("valid");
        assert_eq!((target.shown().as_str(), target.is_set()), ("s3://b/x/a-{shard}.csv.gz", true));
        assert_eq!(target.uri(&target.list()), "s3://b/x/.a.csv.gz.millstream.json");
        let faults = Target::new("s3://{value}/a.csv", &split(), true).expect_err("a bucket for each value");
        assert_eq!(faults[0].what, "a placeholder in the name of the bucket");
        let long = Target::new(&format!("s3://b/{}", "n/".repeat(512)), &FileSpec::default(), true);
        assert!(long.is_err(), "a folder");
        let long = Target::new(&format!("s3://b/{}n", "n/".repeat(512)), &FileSpec::default(), true).expect("a name");
        let error = long.path(&Route::Only, 0).expect_err("1025 bytes");
        assert_eq!(error.what(), "the name of an object is too long: 1025 bytes, and at most 1024 are allowed");
    }

    #[test]
    fn what_cannot_be_a_target_is_reported() {
        let faults = |text: &str, spec: &FileSpec| -> Vec<String> {
            Target::new(text, spec, false).expect_err(text).into_iter().map(|fault| fault.what).collect()
        };
        assert_eq!(faults("a-{shard}.csv", &split()), ["`{shard}` in the path, but no `shards`"]);
        assert_eq!(faults("a-{shrad}.csv", &sharded()), ["unknown placeholder `{shrad}` in the path"]);
        assert_eq!(faults("a-{shard.csv", &sharded()), ["a `{` without its `}` in the path"]);
        assert_eq!(faults("", &sharded()), ["the path is empty"]);
        assert_eq!(faults("out/", &sharded()), ["`out/` is a folder"]);
        assert_eq!(faults("out/..", &sharded()), ["`out/..` is a folder"]);
    }

    #[test]
    fn names_that_are_too_long_are_reported_before_they_are_used() {
        let text = format!("out/{}.csv", "n".repeat(252));
        let target = Target::new(&text, &FileSpec::default(), false).expect("a path");
        let error = target.path(&Route::Only, 0).expect_err("256 bytes");
        assert!(error.what().contains("too long"), "{error}");
        assert!(target.key().len() < 240);
    }

    #[test]
    fn no_value_leaves_its_folder_or_looks_like_another() {
        assert_eq!(value_name(Some("../../etc/passwd")), "%2E.%2F..%2Fetc%2Fpasswd");
        assert_eq!(value_name(Some("Zürich 1")), "Z%C3%BCrich%201");
        assert_eq!(value_name(None), "__null__");
        assert_eq!(value_name(Some("__null__")), "%5F_null__");
        assert_eq!(value_name(Some("")), "__empty__");
        assert_eq!(value_name(Some("_a")), "_a");
        let (a, b) = (format!("{}a", "x".repeat(500)), format!("{}b", "x".repeat(500)));
        assert_ne!(value_name(Some(&a)), value_name(Some(&b)));
        assert!(value_name(Some(&a)).len() <= VALUE_LIMIT);
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // From the FNV test vectors of its authors.
        assert_eq!(fnv1a(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv1a(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    proptest! {
        #[test]
        fn names_are_safe_and_distinct(values in prop::collection::hash_set(".{0,200}", 2)) {
            let names: Vec<String> = values.iter().map(|value| value_name(Some(value))).collect();
            prop_assert_ne!(&names[0], &names[1]);
            for name in names {
                prop_assert!(!name.is_empty() && name.len() <= VALUE_LIMIT && !name.starts_with('.'));
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"%-_.~".contains(&b)), "{}", name);
            }
        }

        #[test]
        fn no_target_panics(text in "[a{}./\\-shardvlueptäX]{0,40}") {
            for spec in [FileSpec::default(), sharded(), split(), rolled()] {
                let targets = [false, true].map(|in_store| Target::new(&text, &spec, in_store).ok());
                for target in targets.into_iter().flatten() {
                    let _ = target.shown();
                    for route in [Route::Only, Route::Shard(1), Route::Value(None)] {
                        let _ = target.path(&route, 1);
                    }
                }
            }
        }
    }
}

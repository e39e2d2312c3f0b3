//! Files that start a sequence when they arrive.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use millstream_core::stable_hash::hash;
use millstream_schedule::FilesSpec;
use millstream_state::occurrences::Arrival;

use crate::entry::beside;

/// So often it looks, unless that takes long.
const EVERY: Duration = Duration::from_secs(2);

/// It looks at least so often.
const SELDOM: Duration = Duration::from_secs(60);

/// So many times as long as a look takes it does not look.
const PAUSE: u32 = 20;

/// What is looked for, and what was seen.
#[derive(Debug)]
pub(crate) struct Arrivals {
    spec: FilesSpec,
    /// Where to look: the folders of the pattern before its first wildcard.
    root: PathBuf,
    /// The rest of the pattern; `None` if it is no pattern.
    rest: Option<GlobMatcher>,
    /// How many folders deep files may lie below `root`.
    depth: usize,
    /// The files that have started the sequence, as hashes, and their versions.
    seen: HashMap<u64, u64>,
    next: Option<Instant>,
}

/// What one look has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Files that are ready and were not seen, in order of their names.
    pub new: Vec<Arrival>,
    /// Whether a folder could not be read, so that files may be there that were not found.
    pub is_partial: bool,
    /// All files that are there, as hashes of their paths.
    there: Vec<u64>,
}

impl Arrivals {
    /// Of the sequence at `sequence`, which has `seen` these.
    pub fn new(sequence: &str, spec: &FilesSpec, seen: &[Arrival]) -> Self {
        let (folder, pattern) = split(&spec.pattern);
        let root = plain(&beside(sequence, &folder));
        let glob = GlobBuilder::new(&pattern).literal_separator(true).build().ok();
        let depth = if pattern.contains("**") { usize::MAX } else { pattern.matches('/').count() };
        let seen = seen.iter().map(|one| (hash(&one.file), version(one))).collect();
        Arrivals { spec: spec.clone(), root, rest: glob.map(|glob| glob.compile_matcher()), depth, seen, next: None }
    }

    /// When it looks again.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Looks for files that are ready at `now` and were not seen, if it is time for that.
    pub fn look(&mut self, now: i64) -> Option<Arrived> {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return None;
        }
        let mut arrived = Arrived::default();
        self.walk(&self.root, 0, now, &mut arrived);
        arrived.new.sort_unstable_by(|a, b| a.file.cmp(&b.file));
        self.next = Some(Instant::now() + (begin.elapsed() * PAUSE).clamp(EVERY, SELDOM));
        Some(arrived)
    }

    /// These have started the sequence.
    pub fn see(&mut self, arrivals: &[Arrival]) {
        self.seen.extend(arrivals.iter().map(|one| (hash(&one.file), version(one))));
    }

    /// Only these have started it, as far as anybody knows.
    pub fn forget_all_but(&mut self, left: &[Arrival]) {
        self.seen.clear();
        self.see(left);
    }

    /// Those of `stored` that are not among what was found.
    pub fn gone(&self, arrived: &Arrived, stored: &[Arrival]) -> Vec<String> {
        if arrived.is_partial || arrived.there.len() >= self.seen.len() {
            return Vec::new();
        }
        let there: std::collections::HashSet<u64> = arrived.there.iter().copied().collect();
        stored.iter().filter(|one| !there.contains(&hash(&one.file))).map(|one| one.file.clone()).collect()
    }

    /// Whether there may be more in `seen` than is there.
    pub fn may_forget(&self, arrived: &Arrived) -> bool {
        !arrived.is_partial && arrived.there.len() < self.seen.len()
    }

    fn walk(&self, folder: &Path, deep: usize, now: i64, arrived: &mut Arrived) {
        let entries = match fs_err::read_dir(folder) {
            Ok(entries) => entries,
            // A folder that is not there yet has no files.
            Err(cause) => {
                arrived.is_partial |= cause.kind() != std::io::ErrorKind::NotFound || deep == 0;
                return;
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if deep < self.depth {
                    self.walk(&path, deep + 1, now, arrived);
                }
            } else if self.matches(&path) {
                self.file(&path, now, arrived);
            }
        }
    }

    fn matches(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        self.rest.as_ref().is_some_and(|rest| rest.is_match(below))
    }

    fn file(&self, path: &Path, now: i64, arrived: &mut Arrived) {
        let (Ok(metadata), Some(file)) = (fs_err::metadata(path), path.to_str()) else { return };
        if !metadata.is_file() {
            return;
        }
        let modified = metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000);
        let size = i64::try_from(metadata.len()).unwrap_or(i64::MAX);
        let arrival = Arrival { file: file.to_owned(), modified, size };
        let name = hash(file);
        arrived.there.push(name);
        if self.seen.get(&name) == Some(&version(&arrival)) || !self.is_ready(path, modified, now) {
            return;
        }
        arrived.new.push(arrival);
    }

    fn is_ready(&self, path: &Path, modified: i64, now: i64) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let age = i128::from(now) - i128::from(modified);
        let min_age = i128::try_from(self.spec.min_age().as_millis()).unwrap_or(i128::MAX);
        let has_marker = match self.spec.marker_of(&name) {
            None => true,
            Some(marker) => !self.is_marker(path, &name) && path.with_file_name(marker).exists(),
        };
        // With a marker, the clock of another machine does not matter.
        has_marker && (age >= min_age || min_age == 0)
    }

    /// Whether the file is the marker of another one.
    fn is_marker(&self, path: &Path, name: &str) -> bool {
        let Some(marker) = &self.spec.marker else { return false };
        let of_another = |ending: &str| {
            let other = name.strip_suffix(ending).filter(|other| !other.is_empty() && !ending.is_empty());
            other.is_some_and(|other| path.with_file_name(other).exists())
        };
        match (marker.strip_prefix("{name}"), marker.strip_prefix("{stem}")) {
            (Some(ending), _) => of_another(ending),
            (_, Some(ending)) => name.ends_with(ending),
            _ => name == marker,
        }
    }
}

/// What distinguishes a version of a file from others.
fn version(arrival: &Arrival) -> u64 {
    hash(format!("{} {}", arrival.modified, arrival.size))
}

/// The folders of a pattern before its first wildcard, and the rest.
fn split(pattern: &str) -> (String, String) {
    let wild = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    match pattern[..wild].rfind('/') {
        Some(slash) => (pattern[..=slash].to_owned(), pattern[slash + 1..].to_owned()),
        None => (String::new(), pattern.to_owned()),
    }
}

/// `a/./b/../c` is `a/c`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 4_000_000_000_000;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Place { folder: tempfile::TempDir::new().expect("a folder") }
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            fs_err::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs_err::write(path, text).expect("written");
        }

        fn arrivals(&self, spec: Value, seen: &[Arrival]) -> Arrivals {
            let sequence = self.folder.path().join("jobs/a.yaml");
            Arrivals::new(&sequence.to_string_lossy(), &serde_json::from_value(spec).expect("a trigger"), seen)
        }

        fn names(&self, found: &Arrived) -> Vec<String> {
            let name = |one: &Arrival| {
                let path = Path::new(&one.file).strip_prefix(self.folder.path()).expect("below");
                path.to_string_lossy().into_owned()
            };
            found.new.iter().map(name).collect()
        }
    }

    fn look(arrivals: &mut Arrivals, now: i64) -> Arrived {
        arrivals.next = None;
        arrivals.look(now).expect("a look")
    }

    #[test]
    fn patterns_are_relative_to_the_sequence() {
        let place = Place::new();
        for name in ["in/a.csv", "in/b.txt", "in/deep/c.csv", "in/deep/er/d.csv", "jobs/e.csv", "in/[x].csv"] {
            place.write(name, "1");
        }
        for (pattern, expected) in [
            ("../in/*.csv", vec!["in/[x].csv", "in/a.csv"]),
            ("../in/*.{csv,txt}", vec!["in/[x].csv", "in/a.csv", "in/b.txt"]),
            ("../in/**/*.csv", vec!["in/[x].csv", "in/a.csv", "in/deep/c.csv", "in/deep/er/d.csv"]),
            ("../in/*/*.csv", vec!["in/deep/c.csv"]),
            ("*.csv", vec!["jobs/e.csv"]),
            ("./e.csv", vec!["jobs/e.csv"]),
            (r"../in/\[x\].csv", vec!["in/[x].csv"]),
            ("../nowhere/*", vec![]),
        ] {
            let mut arrivals = place.arrivals(json!({"pattern": pattern}), &[]);
            assert_eq!(place.names(&look(&mut arrivals, NOW)), expected, "{pattern}");
        }
    }

    #[test]
    fn each_version_of_a_file_arrives_once() {
        let place = Place::new();
        place.write("in/a.csv", "1");
        let spec = json!({"pattern": "../in/*.csv"});
        let mut arrivals = place.arrivals(spec.clone(), &[]);
        let first = look(&mut arrivals, NOW);
        assert_eq!(place.names(&first), ["in/a.csv"]);
        assert_eq!(place.names(&look(&mut arrivals, NOW)), ["in/a.csv"], "nothing was started");
        arrivals.see(&first.new);
        assert!(look(&mut arrivals, NOW).new.is_empty());
        let mut again = place.arrivals(spec, &first.new);
        assert!(look(&mut again, NOW).new.is_empty(), "it was stored");
        place.write("in/a.csv", "22");
        assert_eq!(place.names(&look(&mut again, NOW)), ["in/a.csv"], "it has changed");
        fs_err::remove_file(place.folder.path().join("in/a.csv")).expect("removed");
        let found = look(&mut again, NOW);
        assert!(again.may_forget(&found));
        assert_eq!(again.gone(&found, &first.new), [first.new[0].file.clone()]);
        fs_err::remove_dir_all(place.folder.path().join("in")).expect("removed");
        let found = look(&mut again, NOW);
        assert!(!again.may_forget(&found), "the folder may come back");
    }

    #[test]
    fn files_are_ready_by_age_or_marker() {
        let place = Place::new();
        for name in ["in/a.csv", "in/b.csv", "in/a.csv.ok", "in/b.ok"] {
            place.write(name, "1");
        }
        let modified = look(&mut place.arrivals(json!({"pattern": "../in/a.csv"}), &[]), NOW).new[0].modified;
        let ready = |spec: Value, now: i64| place.names(&look(&mut place.arrivals(spec, &[]), now));
        let aged = json!({"pattern": "../in/a.csv", "min_age": "1m"});
        assert!(ready(aged.clone(), modified + 59_999).is_empty());
        assert_eq!(ready(aged, modified + 60_000), ["in/a.csv"]);
        assert!(
            ready(json!({"pattern": "../in/a.csv"}), modified + 5_000).is_empty(),
            "ten seconds if nothing is said"
        );
        let long_ago = modified - 1_000_000;
        let marked = |marker: &str| ready(json!({"pattern": "../in/*", "marker": marker}), long_ago);
        assert_eq!(marked("{name}.ok"), ["in/a.csv"], "whatever the clock shows");
        assert_eq!(marked("{stem}.ok"), ["in/b.csv"]);
        assert!(marked("_SUCCESS").is_empty());
        place.write("in/_SUCCESS", "");
        assert_eq!(marked("_SUCCESS"), ["in/a.csv", "in/a.csv.ok", "in/b.csv", "in/b.ok"]);
    }
}

//! Matches paths with patterns of local paths by their text, without reading the disk.

use std::ffi::OsStr;
use std::path::Path;

use super::glob::{Segment, States, closure, has_wildcards, segments, step};
use super::pattern_path;

/// A pattern of local paths (braces already expanded), relative to a folder.
#[derive(Debug)]
pub struct PathPattern {
    segments: Vec<Segment>,
    wildcards: bool,
}

impl PathPattern {
    /// The pattern, if it is one of local paths. `folder` is the absolute base of relative patterns.
    pub fn new(pattern: &str, folder: &Path) -> Option<Self> {
        let path = pattern_path(pattern).ok()?;
        let path = match path.starts_with('/') {
            true => path,
            false => format!("{}/{path}", crate::pattern::escape(folder.to_str()?)),
        };
        let wildcards = has_wildcards(&path);
        Some(PathPattern { segments: segments(&plain_parts(&path).join("/")).ok()?, wildcards })
    }

    /// Whether it can match several paths.
    pub fn has_wildcards(&self) -> bool {
        self.wildcards
    }

    /// Whether it matches the absolute `path`.
    pub fn matches(&self, path: &str) -> bool {
        let parts = plain_parts(path);
        let mut states = States::from([0]);
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            let step = step(&self.segments, &closure(&self.segments, &states), OsStr::new(part), !is_last);
            if is_last {
                return step.ends;
            }
            states = step.next;
        }
        false
    }
}

/// The parts of an absolute path, normalised: `a/./b//c/../d` is `a/b/d`.
fn plain_parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_what_it_would_find() {
        for (pattern, path, stands) in [
            ("csv/*.csv.gz", "/jobs/csv/all.csv.gz", true),
            ("csv/*.csv.gz", "/jobs/csv/all.csv", false),
            ("csv/*.csv.gz", "/jobs/csv/deeper/all.csv.gz", false),
            ("**/*.csv", "/jobs/a/b/c.csv", true),
            ("**/*.csv", "/jobs/c.csv", true),
            ("/elsewhere/../jobs/./c.csv", "/jobs/c.csv", true),
            ("../jobs//c.csv", "/jobs/d/../c.csv", true),
            ("file:///jobs/c%2A.csv", "/jobs/c*.csv", true),
            ("file:///jobs/c%2A.csv", "/jobs/cc.csv", false),
            ("c[0-9].csv", "/jobs/c7.csv", true),
            (r"c\[7\].csv", "/jobs/c[7].csv", true),
            ("*.csv", "/jobs/.hidden.csv", false),
            ("c.csv", "/other/c.csv", false),
            ("jobs", "/jobs", false),
        ] {
            let named = PathPattern::new(pattern, Path::new("/jobs")).expect("a good pattern");
            assert_eq!(named.matches(path), stands, "{pattern} and {path}");
        }
        assert!(PathPattern::new("a[", Path::new("/jobs")).is_none());
    }
}

//! The unit: the smallest thing that is fetched, retried and committed.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// An object, or a range of a large one. Members of an archive appear only while it is decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// Path or URL, as it is opened. May hold a password: show [`Unit::name`] instead.
    pub uri: String,
    /// The bytes to read; all of them if `None`. Of what is parsed these are the records that begin there, of a format
    /// that is read by ranges the rows whose places are in here.
    pub range: Option<Range<u64>>,
    /// Size of the whole object in bytes, as stored (compressed), where it is known.
    pub size: Option<u64>,
    /// The version of the object: an etag in the form the server gave it.
    pub etag: Option<String>,
    /// Time of the last change, in milliseconds since 1970-01-01 UTC.
    pub modified: Option<i64>,
}

impl Unit {
    /// A unit of which only the URI is known.
    pub fn new(uri: impl Into<String>) -> Self {
        Unit { uri: uri.into(), range: None, size: None, etag: None, modified: None }
    }

    /// About how many bytes are to be read, where that is known.
    pub fn bytes(&self) -> Option<u64> {
        let of_range = self.range.as_ref().map(|range| range.end.saturating_sub(range.start));
        self.size.map(|size| of_range.map_or(size, |range| range.min(size)))
    }

    /// Whether it has the beginning of its object: of the ranges of one, the first has it.
    pub fn is_beginning(&self) -> bool {
        self.range.as_ref().is_none_or(|range| range.start == 0)
    }

    /// The URI with passwords left out, for messages.
    pub fn name(&self) -> String {
        crate::redact::url(&self.uri)
    }
}

/// The part of a path or URL that ends with the file's name: a URL of the web without its query and fragment. In a
/// path, and in the name of an object in a bucket, `?` is a wildcard or, like `#`, an ordinary character.
pub fn path_of(name: &str) -> &str {
    match name.split_once("://") {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            name.split(['?', '#']).next().unwrap_or(name)
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::path_of;

    #[test]
    fn only_the_web_has_queries() {
        for (name, path) in [
            ("https://host/a.csv?b=/c.gz#d", "https://host/a.csv"),
            ("data/a?.csv", "data/a?.csv"),
            ("s3://bucket/a?#.csv", "s3://bucket/a?#.csv"),
        ] {
            assert_eq!(path_of(name), path);
        }
    }
}

//! The unit: the smallest thing that is fetched, retried and committed.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// An object, or a range of a large one. Members of an archive appear only while it is decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// Path or URL, as it is opened. May hold a password: show [`Unit::name`] instead.
    pub uri: String,
    /// The bytes to read; all of them if `None`.
    pub range: Option<Range<u64>>,
    /// The records that are meant; all of them if `None`.
    pub records: Option<Box<Records>>,
    /// Size of the whole object in bytes, as stored (compressed), where it is known.
    pub size: Option<u64>,
    /// The version of the object: an etag in the form the server gave it.
    pub etag: Option<String>,
    /// Time of the last change, in milliseconds since 1970-01-01 UTC.
    pub modified: Option<i64>,
}

/// Some records of a large object, which is read by several processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// Where they begin: of a text its bytes, of a zip the bytes of its members, of a format that is read by ranges the
    /// places of its rows.
    pub places: Range<u64>,
    /// Size of the object in bytes, by which it was cut.
    pub size: u64,
    /// The version by which it was cut.
    pub etag: String,
}

impl Unit {
    /// A unit of which only the URI is known.
    pub fn new(uri: impl Into<String>) -> Self {
        Unit { uri: uri.into(), range: None, records: None, size: None, etag: None, modified: None }
    }

    /// About how many bytes are to be read, where that is known.
    pub fn bytes(&self) -> Option<u64> {
        match self.records.as_deref() {
            Some(Records { places, size, .. }) => Some(places.end.saturating_sub(places.start).min(*size)),
            None => self.size,
        }
    }

    /// Whether it has the first records of its object.
    pub fn is_beginning(&self) -> bool {
        self.records.as_ref().is_none_or(|records| records.places.start == 0)
    }

    /// The object of the version by which it was cut, if it was.
    pub fn as_cut(&self) -> Option<Unit> {
        let Records { size, etag, .. } = *self.records.clone()?;
        Some(Unit { size: Some(size), etag: Some(etag), ..self.clone() })
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

//! The codec or archive that a unit's name suggests.

use millstream_core::unit::path_of;

use crate::CODECS;

/// A tar that is compressed as a whole.
struct Packed {
    /// Its name.
    name: &'static str,
    codec: &'static str,
    /// Endings of file names, besides `.tar` with an ending of the codec.
    endings: &'static [&'static str],
}

const PACKED: &[Packed] = &[
    Packed { name: "tar.gz", codec: "gzip", endings: &[".tgz"] },
    Packed { name: "tar.zst", codec: "zstd", endings: &[".tzst"] },
    Packed { name: "tar.bz2", codec: "bzip2", endings: &[".tbz2", ".tbz"] },
    Packed { name: "tar.xz", codec: "xz", endings: &[".txz"] },
];

/// The codec, `zip`, `tar` or a compressed tar (`tar.gz` and its like) that the ending of `path` (a path or URL)
/// suggests.
pub fn codec_by_name(path: &str) -> Option<&'static str> {
    let path = path_of(path).to_ascii_lowercase();
    let ends = |endings: &[&'static str]| endings.iter().copied().find(|ending| path.ends_with(ending));
    for archive in ["zip", "tar"] {
        if path.strip_suffix(archive).is_some_and(|stem| stem.ends_with('.')) {
            return Some(archive);
        }
    }
    if let Some(packed) = PACKED.iter().find(|packed| ends(packed.endings).is_some()) {
        return Some(packed.name);
    }
    let (codec, ending) = CODECS.iter().find_map(|entry| Some((entry.name, ends(entry.extensions)?)))?;
    let is_tar = path.strip_suffix(ending).is_some_and(|stem| stem.ends_with(".tar"));
    Some(if is_tar { tar_in(codec) } else { codec })
}

/// How a unit is compressed, as far as its name tells. Archives come first: they say least of the text inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Packing {
    /// It has members, compressed, of which not all may be wanted.
    Archive,
    /// Not at all; a tar only as a whole.
    Plain,
    /// As one stream.
    Stream,
}

/// How the unit at `path` (a path or URL) is compressed, by its ending.
pub fn packing_by_name(path: &str) -> Packing {
    match codec_by_name(path) {
        None | Some("tar") => Packing::Plain,
        Some("zip") => Packing::Archive,
        Some(name) if PACKED.iter().any(|packed| packed.name == name) => Packing::Archive,
        Some(_) => Packing::Stream,
    }
}

/// Whether the ending of `path` (a path or URL) promises an archive with a directory of its members: a zip.
pub fn has_directory_by_name(path: &str) -> bool {
    codec_by_name(path) == Some("zip")
}

/// The name of a tar inside of `codec`.
pub(super) fn tar_in(codec: &str) -> &'static str {
    PACKED.iter().find(|packed| packed.codec == codec).map_or("tar", |packed| packed.name)
}

/// The codec that `expected` promises; for a compressed tar, the codec around it.
pub(super) fn codec_of(expected: Option<&'static str>) -> Option<&'static str> {
    let packed = PACKED.iter().find(|packed| Some(packed.name) == expected);
    packed.map_or(expected, |packed| Some(packed.codec))
}

/// Whether `expected` promises a tar.
pub(super) fn is_tar(expected: Option<&str>) -> bool {
    expected.is_some_and(|name| name == "tar" || PACKED.iter().any(|packed| packed.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suggest_codecs() {
        for (name, expected) in [
            ("a.gz", Some("gzip")),
            ("http://x/a.csv.GZ?v=1#top", Some("gzip")),
            ("http://x/a.csv?v=1.gz", None),
            ("data/what?.gz", Some("gzip")),
            ("data/a#1.csv.gz", Some("gzip")),
            ("s3://bucket/a?b.zip", Some("zip")),
            ("a.zst", Some("zstd")),
            ("a.bz2", Some("bzip2")),
            ("a.xz", Some("xz")),
            ("b.zip", Some("zip")),
            ("b.tar", Some("tar")),
            ("b.TAR.gz", Some("tar.gz")),
            ("https://host/b.tgz?download=1", Some("tar.gz")),
            ("b.tar.zst", Some("tar.zst")),
            ("b.tzst", Some("tar.zst")),
            ("b.tar.bz2", Some("tar.bz2")),
            ("b.tbz", Some("tar.bz2")),
            ("b.tar.xz", Some("tar.xz")),
            ("b.txz", Some("tar.xz")),
            ("a.csv", None),
            ("gz", None),
            ("tar", None),
            ("guitar", None),
            ("guitar.gz", Some("gzip")),
        ] {
            assert_eq!(codec_by_name(name), expected, "{name}");
        }
    }

    #[test]
    fn every_codec_may_hold_a_tar() {
        for entry in CODECS {
            let name = tar_in(entry.name);
            assert!(is_tar(Some(name)) && codec_of(Some(name)) == Some(entry.name), "{}", entry.name);
            assert_eq!(codec_of(Some(entry.name)), Some(entry.name));
        }
        assert_eq!((tar_in("plain"), codec_of(Some("tar")), is_tar(Some("zip"))), ("tar", Some("tar"), false));
    }
}

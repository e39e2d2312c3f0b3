//! Which listed files are ready to be read: old enough, and with their marker beside them (`ready` of a source). What
//! is not ready is left out of the listing, so that nothing is noted of it and a later run reads it.
//!
//! Markers are listed before the files of the same pattern: a file whose marker was there is listed as it was when it
//! was complete, or later. The age follows from the time of change that the place gives, and the clock of this machine
//! when the first file is listed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millstream_core::source::Source;
use millstream_core::stable_hash::hash;
use millstream_core::{Error, Result, Unit};
use millstream_job::ReadyKeys;

use super::Reader;

/// The most files that are named.
const MOST_NAMED: usize = 10;

/// What was found out about files that are not ready.
#[derive(Debug, Default)]
pub struct Ready {
    /// When the first file was listed, in milliseconds since 1970-01-01 UTC.
    listed_at: OnceLock<i64>,
    /// The markers that each of their patterns matches, as hashes of their URIs.
    markers: tokio::sync::Mutex<HashMap<String, Arc<HashSet<u64>>>>,
    waiting: Mutex<Waiting>,
}

/// Files that are not ready.
#[derive(Debug, Default)]
struct Waiting {
    /// All of them, as hashes: a source may be listed several times.
    all: HashSet<u64>,
    first: Vec<String>,
}

impl Ready {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, unit: &Unit) {
        let mut waiting = self.waiting();
        if waiting.all.insert(hash(&unit.uri)) && waiting.first.len() < MOST_NAMED {
            waiting.first.push(unit.name());
        }
    }

    /// How many files are not ready, and the first of them.
    pub fn not_ready(&self) -> (u64, Vec<String>) {
        let waiting = self.waiting();
        (waiting.all.len() as u64, waiting.first.clone())
    }

    fn now(&self) -> i64 {
        *self.listed_at.get_or_init(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
    }

    /// The markers that `pattern` matches.
    async fn markers(&self, reader: &Reader, source: &Arc<dyn Source>, pattern: &str) -> Result<Arc<HashSet<u64>>> {
        let mut known = self.markers.lock().await;
        if let Some(markers) = known.get(pattern) {
            return Ok(Arc::clone(markers));
        }
        let listed = source.list(&reader.context, pattern);
        let markers: HashSet<u64> = listed.map_ok(|unit| hash(&unit.uri)).try_collect().await?;
        let markers = Arc::new(markers);
        known.insert(pattern.to_owned(), Arc::clone(&markers));
        Ok(markers)
    }
}

/// Those of the units at `location`, a pattern without braces, that are ready.
pub fn ready_units(
    reader: &Arc<Reader>,
    source: &Arc<dyn Source>,
    location: String,
) -> BoxStream<'static, Result<Unit>> {
    let (reader, source) = (Arc::clone(reader), Arc::clone(source));
    async_stream::try_stream! {
        let keys = reader.ready_keys.clone();
        let markers = match &keys.marker {
            Some(marker) => {
                let pattern = marker_pattern(&location, marker);
                Some((marker.clone(), reader.ready.markers(&reader, &source, &pattern).await?))
            }
            None => None,
        };
        let now = reader.ready.now();
        let mut units = source.list(&reader.context, &location);
        while let Some(unit) = units.next().await {
            let unit = unit?;
            if let Some((marker, there)) = &markers {
                if is_marker(marker, &unit.uri, there) {
                    continue;
                }
                if !there.contains(&hash(marker_of(marker, &unit.uri))) {
                    reader.ready.add(&unit);
                    continue;
                }
            }
            if is_too_young(&keys, &reader, &source, &unit, now).await? {
                reader.ready.add(&unit);
                continue;
            }
            yield unit;
        }
    }
    .boxed()
}

async fn is_too_young(
    keys: &ReadyKeys,
    reader: &Reader,
    source: &Arc<dyn Source>,
    unit: &Unit,
    now: i64,
) -> Result<bool> {
    let Some(min_age) = keys.min_age else { return Ok(false) };
    let modified = match unit.modified {
        Some(modified) => Some(modified),
        None => source.look(&reader.context, unit).await?.modified,
    };
    let modified = modified.ok_or_else(|| {
        Error::refused("it is not known when this was last changed")
            .in_unit(&unit.uri, None)
            .hint("`ready: {min_age}` needs a place that tells the time of change; a `marker` does not")
    })?;
    Ok(is_younger(modified, now, min_age.0.as_millis()))
}

/// Whether less than `age` milliseconds lie between `modified` and `now`. A time in the future is too young.
fn is_younger(modified: i64, now: i64, age: u128) -> bool {
    let passed = i128::from(now) - i128::from(modified);
    passed < i128::try_from(age).unwrap_or(i128::MAX)
}

/// The folder of a path or URL, with its slash, and the name behind it.
fn split(uri: &str) -> (&str, &str) {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let name = uri[start..].rfind('/').map_or(start, |slash| start + slash + 1);
    uri.split_at(name)
}

/// The name of `name`'s marker.
fn rendered(marker: &str, name: &str) -> String {
    let stem = name.rfind('.').filter(|at| *at > 0).map_or(name, |at| &name[..at]);
    marker.replace("{name}", name).replace("{stem}", stem)
}

/// The marker of the file `uri`.
fn marker_of(marker: &str, uri: &str) -> String {
    let (folder, name) = split(uri);
    format!("{folder}{}", rendered(marker, name))
}

/// The marker that the file `uri` has for itself, if it has one.
pub fn marker_unit(marker: &str, uri: &str) -> Option<Unit> {
    (rendered(marker, "") != marker).then(|| Unit::new(marker_of(marker, uri)))
}

/// Whether `uri`, one of the units, is a marker itself. Where one marker stands for a folder, its pattern may match
/// more.
fn is_marker(marker: &str, uri: &str, there: &HashSet<u64>) -> bool {
    let is_of_each = rendered(marker, "") != marker;
    there.contains(&hash(uri)) && (is_of_each || uri.ends_with(&format!("/{marker}")) || uri == marker)
}

/// The pattern of the markers of the files that `location` matches.
fn marker_pattern(location: &str, marker: &str) -> String {
    let (folder, last) = split(location);
    let below = if last == "**" { "**/" } else { "" };
    // What has no wildcard and does not exist would be an error.
    let names = match marker.replace("{name}", "*").replace("{stem}", "*") {
        names if names == marker => {
            let mut characters = marker.chars();
            characters.next_back();
            format!("{}?", characters.as_str())
        }
        names => names,
    };
    format!("{folder}{below}{names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_beside_its_file() {
        for (marker, uri, expected) in [
            ("{name}.ok", "in/a.csv.gz", "in/a.csv.gz.ok"),
            ("{stem}.ok", "in/a.csv.gz", "in/a.csv.ok"),
            ("{stem}.ok", "in/.hidden", "in/.hidden.ok"),
            ("_SUCCESS", "s3://b/day=1/a.csv", "s3://b/day=1/_SUCCESS"),
            ("ok/{name}", "a.csv", "ok/a.csv"),
        ] {
            assert_eq!(marker_of(marker, uri), expected);
        }
    }

    #[test]
    fn markers_are_listed_where_the_files_are() {
        for (location, marker, expected) in [
            ("in/*.csv", "{name}.ok", "in/*.ok"),
            ("a.csv", "{stem}.done", "*.done"),
            ("s3://b/*/x-[0-9].csv", "{name}.ok", "s3://b/*/*.ok"),
            ("in/**", "{name}.ok", "in/**/*.ok"),
            ("in/**/*.csv", "_SUCCESS", "in/**/_SUCCES?"),
        ] {
            assert_eq!(marker_pattern(location, marker), expected);
        }
    }

    #[test]
    fn what_is_from_the_future_is_too_young() {
        let minute = 60_000;
        assert!(is_younger(1_000_000, 1_000_000, minute) && is_younger(1_000_000, 1_059_999, minute));
        assert!(!is_younger(1_000_000, 1_060_000, minute));
        assert!(is_younger(2_000_000, 1_000_000, minute) && is_younger(i64::MAX, i64::MIN, minute));
        assert!(is_younger(2_000_000, 1_000_000, 0), "even without a least age");
    }
}

//! A run beside the one before it, number by number: for the page and for `millstream runs RUN`.

use std::time::Duration;

use millstream_core::counts::{duration, grouped};
use millstream_core::spec::Size;
use millstream_state::{RunKind, RunRecord};
use serde_json::Value;

/// A number of a run beside that of the run before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// What it counts.
    pub what: &'static str,
    /// The number of the run.
    pub now: String,
    /// That of the run before; empty if there is none.
    pub before: String,
    /// By how much it has changed.
    pub change: String,
    /// What was expected when the run began; empty if nothing was.
    pub expected: String,
}

/// The numbers of `run`, those of `before`, and what was expected. A sequence has its time only: the rest is that of
/// its steps.
pub fn compared(run: &RunRecord, before: Option<&RunRecord>) -> Vec<Compared> {
    let expected = |key: &str| run.predicted.get(key).and_then(Value::as_u64).filter(|expected| *expected > 0);
    let number = |what, of: fn(&RunRecord) -> Option<u64>, shown: fn(u64) -> String, expected: Option<u64>| {
        let cell = |value: Option<u64>| value.map(shown).unwrap_or_default();
        let (now, earlier) = (of(run), before.and_then(of));
        let (before, change) = (cell(earlier), change(now, earlier));
        Compared { what, now: cell(now), before, change, expected: cell(expected) }
    };
    let time = number("time", |run| Some(milliseconds(run.took()?)), |ms| duration(Duration::from_millis(ms)), None);
    if run.kind == RunKind::Sequence {
        return vec![time];
    }
    vec![
        time,
        number("files", |run| Some(run.units), grouped, expected("units")),
        number("bytes read", |run| in_report(run, "bytes_read"), size, expected("stored_bytes")),
        number("rows read", |run| Some(run.rows_read), grouped, None),
        number("rows written", |run| Some(run.rows_written), grouped, None),
        number("rows rejected", |run| Some(run.rows_rejected), grouped, None),
        number("peak memory", |run| in_report(run, "peak_rss_bytes"), size, None),
    ]
}

fn in_report(run: &RunRecord, key: &str) -> Option<u64> {
    run.report.as_ref()?.get(key)?.as_u64()
}

fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// By how much something has changed, in percent.
pub fn change(now: Option<u64>, before: Option<u64>) -> String {
    match (now, before) {
        (Some(now), Some(before)) if before > 0 => {
            let percent = (now as f64 / before as f64 - 1.0) * 100.0;
            if percent.abs() < 0.5 { "same".to_owned() } else { format!("{percent:+.0} %") }
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_share_of_what_was_before() {
        assert_eq!(change(Some(150), Some(100)), "+50 %");
        assert_eq!(change(Some(1_002), Some(1_000)), "same");
        assert_eq!(change(Some(0), Some(10)), "-100 %");
        assert_eq!((change(Some(5), Some(0)), change(None, Some(5))), (String::new(), String::new()));
    }
}

//! Times, numbers and outcomes as the page shows them.

use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Local};
use maud::{Markup, html};
use millstream_core::counts::duration;

/// A moment, in milliseconds since 1970, in the local time zone, and which that is: a page is read elsewhere, too.
pub fn moment(milliseconds: u64) -> String {
    let time: DateTime<Local> = (UNIX_EPOCH + Duration::from_millis(milliseconds)).into();
    time.format("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// The day of a moment.
pub fn day(milliseconds: u64) -> String {
    moment(milliseconds).chars().take(10).collect()
}

/// A moment beside `other`: without the day, if it is the same one, and without the time zone.
pub fn time_beside(milliseconds: u64, other: u64) -> String {
    let written = moment(milliseconds);
    match day(milliseconds) == day(other) {
        true => written.chars().skip(11).take(8).collect(),
        false => written.chars().take(19).collect(),
    }
}

/// A length of time in milliseconds.
pub fn took(milliseconds: u64) -> String {
    duration(Duration::from_millis(milliseconds))
}

/// A length of time in seconds, where it is worth showing.
pub fn seconds(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds >= 0.005 => duration(time),
        _ => String::new(),
    }
}

/// `12`, `1.5 k`, `2 M`: a number on an axis.
pub fn short(number: f64) -> String {
    let (value, unit) = match number {
        n if n >= 1e9 => (n / 1e9, " G"),
        n if n >= 1e6 => (n / 1e6, " M"),
        n if n >= 1e3 => (n / 1e3, " k"),
        n => (n, ""),
    };
    let text = match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}."),
    };
    let digits = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{digits}{unit}")
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// A sign for an outcome beside its word, and the class of its colour. Neither sign nor colour says more than the word.
fn look(outcome: &str) -> (&'static str, &'static str) {
    match outcome {
        "done" | "success" => ("✓", "good"),
        "failed" | "killed" => ("✕", "bad"),
        "interrupted" => ("■", "warn"),
        "running" => ("▶", "live"),
        "waiting" => ("…", "live"),
        _ => ("–", "idle"),
    }
}

/// The class of an outcome's colour.
pub fn class(outcome: &str) -> &'static str {
    look(outcome).1
}

/// The word for an outcome.
pub fn word(outcome: &str) -> String {
    outcome.replace('_', " ")
}

/// The word for an outcome, with its sign.
pub fn signed(outcome: &str) -> String {
    format!("{} {}", look(outcome).0, word(outcome))
}

/// The outcome in its colour.
pub fn outcome(outcome: &str) -> Markup {
    let (sign, class) = look(outcome);
    html! { b class=(class) { span aria-hidden="true" { (sign) " " } (word(outcome)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_an_axis_are_short() {
        let shown = [0.0, 0.5, 12.0, 136.21, 1_500.0, 20_000.0, 600_000.0, 2_500_000.0, 3e9].map(short);
        assert_eq!(shown, ["0", "0.5", "12", "136", "1.5 k", "20 k", "600 k", "2.5 M", "3 G"]);
    }

    #[test]
    fn times_of_one_day_do_not_repeat_it() {
        let noon = 1_767_268_800_000;
        assert_eq!(time_beside(noon + 1_000, noon), moment(noon + 1_000)[11..19]);
        assert_eq!(time_beside(noon + 172_800_000, noon), moment(noon + 172_800_000)[..19]);
    }

    #[test]
    fn a_path_ends_with_the_name_of_its_file() {
        assert_eq!(["/a/b.yaml", "b.yaml", "/", ""].map(file_name), ["b.yaml", "b.yaml", "/", ""]);
    }
}

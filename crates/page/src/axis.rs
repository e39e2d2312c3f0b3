//! Where the lines of a scale stand.

/// The distances of times on an axis that people read easily, in seconds.
const TIMES: &[f64] = &[
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0, 7_200.0,
    10_800.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 604_800.0,
];

/// The most distances between the lines of an axis of time.
const PARTS: f64 = 8.0;

/// Numbers from 0 up to `most` or the next one above it, at most six: 1, 2 or 5 with zeros apart.
pub fn numbers(most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let count = (most / step - 1e-9).ceil().max(1.0) as u64;
    (0..=count).map(|number| number as f64 * step).collect()
}

/// Times in seconds from 0 to at most `end`, and how each is written.
pub fn times(end: f64) -> Vec<(f64, String)> {
    if !end.is_finite() || end <= 0.0 {
        return vec![(0.0, written(0.0))];
    }
    let weeks = TIMES[TIMES.len() - 1];
    let longest = || (end / PARTS / weeks).ceil() * weeks;
    let step = TIMES.iter().copied().find(|step| end / step <= PARTS).unwrap_or_else(longest);
    let count = (end / step + 1e-9).floor() as u64;
    (0..=count).map(|number| number as f64 * step).map(|time| (time, written(time))).collect()
}

/// A time on an axis: `0.5 s`, `90 s`, `5 min`, `1 h 30`, `2 d`.
fn written(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let rest = |rest: u64| if rest > 0 { format!(" {rest:02}") } else { String::new() };
    match whole {
        _ if seconds < 10.0 => format!("{} s", (seconds * 10.0).round() / 10.0),
        0..=119 => format!("{whole} s"),
        120..=3_599 => format!("{} min{}", whole / 60, rest(whole % 60)),
        3_600..=172_799 => format!("{} h{}", whole / 3_600, rest(whole % 3_600 / 60)),
        _ => format!("{} d{}", whole / 86_400, rest(whole % 86_400 / 3_600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_few_lines_and_reaches_the_largest_number() {
        for most in [0.003, 1.0, 7.0, 10.0, 99.0, 1_234_567.0, 5e12] {
            let lines = numbers(most);
            assert!((2..=6).contains(&lines.len()) && lines[lines.len() - 1] >= most * 0.999_999, "{most}: {lines:?}");
        }
        assert_eq!(numbers(7.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(numbers(f64::NAN), [0.0, 1.0]);
    }

    #[test]
    fn times_are_round() {
        let shown = |end: f64| times(end).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ");
        assert_eq!(shown(1.2), "0 s, 0.2 s, 0.4 s, 0.6 s, 0.8 s, 1 s, 1.2 s");
        assert_eq!(shown(100.0), "0 s, 15 s, 30 s, 45 s, 60 s, 75 s, 90 s");
        assert_eq!(shown(5_400.0), "0 s, 15 min, 30 min, 45 min, 1 h, 1 h 15, 1 h 30");
        for end in [0.0, -1.0, f64::INFINITY, 0.01, 86_400.0 * 365.0] {
            assert!((1..=9).contains(&times(end).len()), "{end}: {:?}", times(end));
        }
    }
}

//! Numbers for people.

use std::time::Duration;

pub use millstream::text::grouped as count;

/// A size: `12.3 MB`.
pub fn size(bytes: u64) -> String {
    millstream::text::Size(bytes).to_string()
}

/// A length of time: `0.42 s`, `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        _ if seconds < 9.995 => format!("{seconds:.2} s"),
        _ if seconds < 99.95 => format!("{seconds:.1} s"),
        whole if whole < 120 => format!("{whole} s"),
        whole if whole < 3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        whole => format!("{} h {:02} min", whole / 3_600, whole % 3_600 / 60),
    }
}

/// An age, which is not known to the hundredth: `0.8 s`, `12 s`, `4 min 05 s`.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs_f64();
    match seconds < 9.95 {
        true => format!("{seconds:.1} s"),
        false if seconds < 119.5 => format!("{seconds:.0} s"),
        false => time(age),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_easy_to_read() {
        let shown =
            [0.004, 9.99, 12.34, 99.9, 100.0, 119.0, 125.0, 7_385.0].map(|one| time(Duration::from_secs_f64(one)));
        let ages = [0.81, 9.9, 12.34, 245.0].map(|one| age(Duration::from_secs_f64(one)));
        assert_eq!(ages, ["0.8 s", "9.9 s", "12 s", "4 min 05 s"]);
        assert_eq!(shown, ["0.00 s", "9.99 s", "12.3 s", "99.9 s", "100 s", "119 s", "2 min 05 s", "2 h 03 min"]);
    }
}

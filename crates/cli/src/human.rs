//! Numbers for people.

use std::time::Duration;

pub use millstream::text::{duration as time, grouped as count};

/// A size: `12.3 MB`.
pub fn size(bytes: u64) -> String {
    millstream::text::Size(bytes).to_string()
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
    fn ages_are_easy_to_read() {
        let ages = [0.81, 9.9, 12.34, 245.0].map(|one| age(Duration::from_secs_f64(one)));
        assert_eq!(ages, ["0.8 s", "9.9 s", "12 s", "4 min 05 s"]);
    }
}

//! Numbers in messages.

use std::time::Duration;

/// A whole number with commas between thousands: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `text` with commas in the whole numbers at its beginning and behind a comma or a colon: `6000000 rows in t` is
/// `6,000,000 rows in t`. Elsewhere a number may be a name.
pub fn grouped_in(text: &str) -> String {
    let mut begins = true;
    let words = text.split(' ').map(|word| {
        let number = word.parse::<u64>().ok().filter(|_| begins);
        begins = word.ends_with([',', ':']);
        number.map_or(word.to_owned(), grouped)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// `1 row`, `12,345 rows`.
pub fn counted(number: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A length of time: `0.42 s`, `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        _ if seconds < 9.995 => format!("{seconds:.2} s"),
        _ if seconds < 99.95 => format!("{seconds:.1} s"),
        whole if whole < 120 => format!("{whole} s"),
        whole if whole < 3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        whole => format!("{} h {:02} min", whole / 3_600, whole % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_text_are_grouped() {
        assert_eq!(grouped_in("6000000 rows in table t1000"), "6,000,000 rows in table t1000");
        assert_eq!(grouped_in("nothing in 1000 files"), "nothing in 1000 files");
        assert_eq!(
            grouped_in("4000 rows merged into table t 2000 of x://h:5432/d: 1000 inserted, 3 updated, 2997 unchanged"),
            "4,000 rows merged into table t 2000 of x://h:5432/d: 1,000 inserted, 3 updated, 2,997 unchanged"
        );
    }

    #[test]
    fn times_are_easy_to_read() {
        let shown =
            [0.004, 9.99, 12.34, 99.9, 100.0, 119.0, 125.0, 7_385.0].map(|one| duration(Duration::from_secs_f64(one)));
        assert_eq!(shown, ["0.00 s", "9.99 s", "12.3 s", "99.9 s", "100 s", "119 s", "2 min 05 s", "2 h 03 min"]);
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2_000].map(|number| counted(number, "row")), ["0 rows", "1 row", "2,000 rows"]);
    }
}

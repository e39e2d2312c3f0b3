//! Parses what servers report of their files: facts (RFC 3659, 7), and the human-readable listings of older servers.
//!
//! ```text
//!  type=file;size=5;modify=20261121120000; a.txt              MLSD, MLST
//!  -rw-r--r--   1 ftp ftp   5 Nov 21 12:00 a.txt              LIST, as on Unix
//!  11-21-26  12:00PM            5 a.txt                       LIST, as on Windows
//! ```
//!
//! The times of LIST are not used: they are cut to minutes or days, in an unknown zone, and change their form as a file
//! ages. A line that cannot be parsed is a fault, since skipping it could skip a file.

use crate::remote::{Entry, Facts, Kind};

/// A line of MLSD. `None` for the folder itself and the one above.
pub(super) fn facts_line(line: &[u8]) -> Result<Option<Entry>, ()> {
    if line.is_empty() {
        return Ok(None);
    }
    let at = line.iter().position(|byte| *byte == b' ').ok_or(())?;
    let (facts, name) = (&line[..at], &line[at + 1..]);
    if name.is_empty() {
        return Err(());
    }
    Ok(read_facts(facts).map(|facts| Entry { name: name.to_vec(), facts }))
}

/// The facts in the reply to MLST: those of its second line.
pub(super) fn fact_reply(body: &[u8]) -> Option<Facts> {
    let line = body.split(|byte| *byte == b'\n').nth(1)?.trim_ascii();
    if line.is_empty() {
        return None;
    }
    let at = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    // The requested folder may be listed as the current one.
    read_facts(&line[..at]).or(Some(Facts { kind: Kind::Folder, size: None, modified: None }))
}

/// Whether the facts in the reply to MLST may be those of a link: ProFTPD gives the kind of the link's target, but the
/// size of the link. Links have all rights, which few files have.
pub(super) fn may_be_link(body: &[u8]) -> bool {
    body.to_ascii_lowercase().windows(15).any(|fact| fact == b"unix.mode=0777;")
}

/// `name=value;…`. `None` for the folder itself and the one above.
fn read_facts(facts: &[u8]) -> Option<Facts> {
    let mut read = Facts { kind: Kind::File, size: None, modified: None };
    for fact in facts.split(|byte| *byte == b';') {
        let Some(at) = fact.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (fact[..at].to_ascii_lowercase(), &fact[at + 1..]);
        match name.as_slice() {
            b"type" => read.kind = kind(&value.to_ascii_lowercase())?,
            b"size" => read.size = number(value),
            b"modify" => read.modified = time(value),
            _ => {}
        }
    }
    if read.kind != Kind::File {
        read.size = None;
    }
    Some(read)
}

fn kind(value: &[u8]) -> Option<Kind> {
    Some(match value {
        b"file" => Kind::File,
        b"dir" => Kind::Folder,
        b"cdir" | b"pdir" => return None,
        link if link.starts_with(b"os.unix=slink") || link.starts_with(b"os.unix=symlink") => Kind::Link,
        _ => Kind::Other,
    })
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `YYYYMMDDHHMMSS`, perhaps with a fraction of the second, in UTC: milliseconds since 1970-01-01.
pub(super) fn time(text: &[u8]) -> Option<i64> {
    let (whole, fraction) = text.split_at_checked(14)?;
    if !whole.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let part = |range: std::ops::Range<usize>| number::<i64>(whole.get(range)?);
    let (year, month, day) = (part(0..4)?, part(4..6)?, part(6..8)?);
    let (hour, minute, second) = (part(8..10)?, part(10..12)?, part(12..14)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let digits = fraction.strip_prefix(b".").unwrap_or_default();
    let milliseconds: i64 = if digits.iter().all(u8::is_ascii_digit) {
        digits.iter().zip([100, 10, 1]).map(|(digit, worth)| i64::from(digit - b'0') * worth).sum()
    } else {
        return None;
    };
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1000 + milliseconds)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; years are counted from March, so that the leap day is the
/// last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    before + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A line of LIST.
pub(super) fn list_line(line: &[u8]) -> Result<Option<Entry>, ()> {
    if line.is_empty() || line.starts_with(b"total ") {
        return Ok(None);
    }
    if line[0].is_ascii_digit() { windows_line(line) } else { unix_line(line) }.map(Some).ok_or(())
}

/// `05-23-26  10:41AM  <DIR>  name`, or a size in its place.
fn windows_line(line: &[u8]) -> Option<Entry> {
    let mut system_text = Words(line);
    let (date, clock, size) = (system_text.next()?, system_text.next()?, system_text.next()?);
    if !date.contains(&b'-') || !clock.contains(&b':') {
        return None;
    }
    let name = system_text.rest()?;
    let facts = match size {
        b"<DIR>" => Facts { kind: Kind::Folder, size: None, modified: None },
        b"<JUNCTION>" | b"<SYMLINK>" | b"<SYMLINKD>" => Facts { kind: Kind::Link, size: None, modified: None },
        size => Facts { kind: Kind::File, size: Some(number(size)?), modified: None },
    };
    Some(Entry { name: name.to_vec(), facts })
}

/// `-rw-r--r-- 1 owner group 5 Nov 21 12:00 name`. Some servers leave out the owner, the group or the number of links,
/// so the size is the word before the date.
fn unix_line(line: &[u8]) -> Option<Entry> {
    let kind = match line.first()? {
        b'-' => Kind::File,
        b'd' => Kind::Folder,
        b'l' => Kind::Link,
        b'b' | b'c' | b'p' | b's' => Kind::Other,
        _ => return None,
    };
    let mut system_text = Words(line);
    system_text.next()?;
    let mut before: &[u8] = b"";
    let size = loop {
        let word = system_text.next()?;
        let mut ahead = Words(system_text.0);
        if is_month(word) && ahead.next().is_some_and(is_day) && ahead.next().is_some_and(is_clock_or_year) {
            system_text = ahead;
            break number(before);
        }
        // The day may stand before the month.
        let mut ahead = Words(system_text.0);
        if is_day(word)
            && ahead.next().is_some_and(is_month)
            && ahead.next().is_some_and(is_clock_or_year)
            && number::<u64>(before).is_some()
        {
            system_text = ahead;
            break number(before);
        }
        before = word;
    };
    let mut name = system_text.name()?;
    if kind == Kind::Link
        && let Some(at) = name.windows(4).position(|four| four == b" -> ")
    {
        name = &name[..at];
    }
    if name.is_empty() || (kind == Kind::File && size.is_none()) {
        return None;
    }
    Some(Entry {
        name: name.to_vec(),
        facts: Facts { kind, size: size.filter(|_| kind == Kind::File), modified: None },
    })
}

fn is_month(word: &[u8]) -> bool {
    const MONTHS: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    MONTHS.contains(&word.to_ascii_lowercase().as_slice())
}

fn is_day(word: &[u8]) -> bool {
    number::<u32>(word).is_some_and(|day| (1..=31).contains(&day))
}

fn is_clock_or_year(word: &[u8]) -> bool {
    match word.iter().position(|byte| *byte == b':') {
        Some(at) => number::<u32>(&word[..at]).is_some() && number::<u32>(&word[at + 1..]).is_some(),
        None => word.len() == 4 && number::<u32>(word).is_some(),
    }
}

/// The unread rest of a line, by words.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.0.trim_ascii_start();
        let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
        self.0 = &text[end..];
        Some(&text[..end]).filter(|word| !word.is_empty())
    }

    /// All the rest, without blanks before it.
    fn rest(&self) -> Option<&'a [u8]> {
        Some(self.0.trim_ascii_start()).filter(|rest| !rest.is_empty())
    }

    /// The rest after exactly one blank: a name may begin with another one.
    fn name(&self) -> Option<&'a [u8]> {
        self.0.strip_prefix(b" ").filter(|name| !name.is_empty())
    }
}

/// Whether a server's final reply to a listing reports a failure, despite a code of success.
pub(super) fn says_failed(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("failed to open directory") || text.contains("permission denied")
}

/// The port in `Entering Extended Passive Mode (|||6446|)`.
pub(super) fn extended_port(text: &str) -> Option<u16> {
    let inside = text.rsplit_once('(')?.1.split_once(')')?.0;
    let mark = inside.chars().next()?;
    let port = inside.strip_prefix(&[mark, mark, mark].iter().collect::<String>())?.strip_suffix(mark)?;
    port.parse().ok().filter(|port| *port > 0)
}

/// The port in `Entering Passive Mode (127,0,0,1,25,46)`.
pub(super) fn passive_port(text: &str) -> Option<u16> {
    let start = text.find(|character: char| character.is_ascii_digit())?;
    let numbers = text[start..].split(|character: char| !character.is_ascii_digit() && character != ',').next()?;
    let numbers: Vec<u8> = numbers.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [.., high, low] = numbers.as_slice() else { return None };
    Some(u16::from_be_bytes([*high, *low])).filter(|port| *port > 0 && numbers.len() == 6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(name: &str, kind: Kind, size: Option<u64>, modified: Option<i64>) -> Entry {
        Entry { name: name.into(), facts: Facts { kind, size, modified } }
    }

    #[test]
    fn facts_are_read() {
        for (line, expected) in [
            (
                "modify=20261121120000;perm=adfr;size=5;type=file;unique=1U2; a b.txt",
                Some(entry("a b.txt", Kind::File, Some(5), Some(1_795_262_400_000))),
            ),
            ("Type=dir;Modify=19700101000000.5; sub", Some(entry("sub", Kind::Folder, None, Some(500)))),
            ("type=OS.unix=slink:/x;size=3; link", Some(entry("link", Kind::Link, None, None))),
            ("type=cdir; /home", None),
            ("type=pdir; ..", None),
            ("type=OS.unix=chr-1/3;  spaces ", Some(entry(" spaces ", Kind::Other, None, None))),
            (" only-a-name", Some(entry("only-a-name", Kind::File, None, None))),
        ] {
            assert_eq!(facts_line(line.as_bytes()), Ok(expected), "{line}");
        }
        assert_eq!(facts_line(b"type=file;"), Err(()));
        assert_eq!(facts_line(b"type=file; "), Err(()));
        let reply = b"250-Start\r\n modify=19700101000001;size=7;type=file; /a\r\n250 End\r\n";
        assert_eq!(fact_reply(reply), Some(Facts { kind: Kind::File, size: Some(7), modified: Some(1000) }));
        assert_eq!(fact_reply(b"250 End\r\n"), None);
    }

    #[test]
    fn times_are_read() {
        for (text, expected) in [
            ("19700101000000", Some(0)),
            ("20000229235959", Some(951_868_799_000)),
            ("20261121121000.123", Some(1_795_263_000_123)),
            ("19691231235959", Some(-1000)),
            ("20261321121000", None),
            ("2026112112100", None),
            ("2026112112100x", None),
        ] {
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn listings_for_people_are_read() {
        for (line, expected) in [
            (
                "-rw-r--r--    1 0        0               5 Nov 21 12:00 a.txt",
                entry("a.txt", Kind::File, Some(5), None),
            ),
            (
                "-rw-r--r-- 1 ftp 12345678901 Feb  3  2019  two  blanks ",
                entry(" two  blanks ", Kind::File, Some(12_345_678_901), None),
            ),
            ("drwxr-xr-x+ 2 me dec 4096 Dec 31 23:59 dec 31 10:00", entry("dec 31 10:00", Kind::Folder, None, None)),
            ("lrwxrwxrwx 1 a b 7 Nov 21 12:00 link -> ../a.txt", entry("link", Kind::Link, None, None)),
            ("crw-rw-rw- 1 root root 1, 3 Nov 21 12:00 null", entry("null", Kind::Other, None, None)),
            ("-rw-r--r-- 1 me us 9 21 Nov 12:00 day first", entry("day first", Kind::File, Some(9), None)),
            ("11-21-26  12:00PM       <DIR>          sub dir", entry("sub dir", Kind::Folder, None, None)),
            ("11-21-2026  12:00PM             1234 a.txt", entry("a.txt", Kind::File, Some(1234), None)),
        ] {
            assert_eq!(list_line(line.as_bytes()), Ok(Some(expected)), "{line}");
        }
        assert_eq!(list_line(b"total 12"), Ok(None));
        for bad in
            ["garbage", "-rw-r--r--", "-rw-r--r-- 1 a b x Nov 21 12:00 a", "11-21-26 12:00PM x a", "- Nov 1 2020 "]
        {
            assert_eq!(list_line(bad.as_bytes()), Err(()), "{bad}");
        }
    }

    #[test]
    fn ports_are_read() {
        assert_eq!(extended_port("Entering Extended Passive Mode (|||6446|)"), Some(6446));
        assert_eq!(extended_port("(!!!1!)"), Some(1));
        for bad in ["", "(|||0|)", "(|||70000|)", "(||6446|)", "(|||6446)", "()"] {
            assert_eq!(extended_port(bad), None, "{bad}");
        }
        assert_eq!(passive_port("Entering Passive Mode (127,0,0,1,25,46)."), Some(6446));
        assert_eq!(passive_port("=10,0,0,1,0,21"), Some(21));
        for bad in ["", "(1,2,3)", "(127,0,0,1,256,1)", "(127,0,0,1,0,0)", "(1,2,3,4,5,6,7)"] {
            assert_eq!(passive_port(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (facts_line(&line), list_line(&line), fact_reply(&line), time(&line));
            let text = String::from_utf8_lossy(&line);
            let _ = (extended_port(&text), passive_port(&text), says_failed(&text));
        }

        #[test]
        fn what_is_written_as_unix_writes_it_is_read(size in any::<u64>(), name in "[^ \r\n/][^\r\n/]{0,20}") {
            let line = format!("-rw-r--r-- 1 owner group {size} Nov 21 12:00 {name}");
            prop_assert_eq!(list_line(line.as_bytes()), Ok(Some(entry(&name, Kind::File, Some(size), None))));
        }
    }
}

//! Finds the records that contain what a job asks for, before they are parsed.
//!
//! ```text
//!   text      ├──┼─────┼───┼────────┼──┼─────┼────┼───┤     records
//!   search    ─────────────────▶ hit                        one pass over the bytes, at the speed of memory
//!   dropped   ├──────────────┤                              only counted
//!   looked at                ├────────┤                     for the other texts
//! ```
//! One text (or a set of which one is enough) is searched in the whole buffer. Only around a hit a record is looked
//! for. Where records end is the format's to say; this file knows the ends of lines.

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;
use memchr::{memchr_iter, memrchr};
use millstream_core::contains::Contains;
use millstream_core::{Error, Result};

/// The texts of a [`Contains`], ready to be searched.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    /// Every record that passes has a hit of it.
    first: Needle,
    /// What else a record must have.
    others: Vec<Needle>,
}

/// A text, or several of which one is enough.
#[derive(Debug, Clone)]
enum Needle {
    One(Box<Finder<'static>>),
    OneOf(AhoCorasick),
}

impl Needle {
    fn one(text: &str) -> Self {
        Needle::One(Box::new(Finder::new(text).into_owned()))
    }

    /// `None` if `texts` is empty.
    fn one_of(texts: &[String]) -> Result<Option<Self>> {
        Ok(match texts {
            [] => None,
            [text] => Some(Needle::one(text)),
            texts => {
                let automaton = AhoCorasick::new(texts);
                let automaton = automaton
                    .map_err(|cause| Error::job("the texts of `contains` are too many to be searched").cause(cause))?;
                Some(Needle::OneOf(automaton))
            }
        })
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<usize> {
        match self {
            Needle::One(finder) => finder.find(text),
            Needle::OneOf(texts) => texts.find(text).map(|hit| hit.start()),
        }
    }
}

impl Search {
    /// `None` if every record passes.
    pub fn new(contains: &Contains) -> Result<Option<Self>> {
        let mut all: Vec<&String> = contains.all.iter().collect();
        // The longest text is probably the rarest, and is found fastest.
        all.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let mut needles: Vec<Needle> = all.into_iter().map(|text| Needle::one(text)).collect();
        needles.extend(Needle::one_of(&contains.any)?);
        let mut needles = needles.into_iter();
        let Some(first) = needles.next() else { return Ok(None) };
        Ok(Some(Search { first, others: needles.collect() }))
    }

    /// Whether `record` has all that is asked for.
    pub fn matches(&self, record: &[u8]) -> bool {
        self.first.find(record).is_some() && self.others.iter().all(|needle| needle.find(record).is_some())
    }
}

/// A search that moves through one text.
pub(crate) struct Hits<'t> {
    search: &'t Search,
    text: &'t [u8],
    /// The next hit of the first needle; the end of the text if there is none.
    next: Option<usize>,
}

impl<'t> Hits<'t> {
    /// Of `search` in `text`.
    pub fn new(search: &'t Search, text: &'t [u8]) -> Self {
        Hits { search, text, next: None }
    }

    /// Where the first hit at or after `from` begins; the length of the text if there is none. `from` never falls.
    pub fn at_or_after(&mut self, from: usize) -> usize {
        match self.next {
            Some(next) if next >= from => next,
            _ => {
                let found = self.search.first.find(&self.text[from..]);
                *self.next.insert(found.map_or(self.text.len(), |hit| from + hit))
            }
        }
    }

    /// Whether the record in this range of the text has all that is asked for.
    pub fn has(&mut self, start: usize, end: usize) -> bool {
        self.at_or_after(start) < end && self.search.matches(&self.text[start..end])
    }

    /// The same, for a range in any order with others.
    pub fn matches(&self, start: usize, end: usize) -> bool {
        self.search.matches(&self.text[start..end])
    }

    /// Where the whole lines end that begin at `from` and have no hit, nor more than `longest` bytes each.
    pub fn lines_without(&mut self, from: usize, longest: usize) -> usize {
        let until = self.at_or_after(from);
        self.lines_until(from, until, longest)
    }

    /// Where the whole lines end that begin at `from`, lie before `until`, and have at most `longest` bytes each.
    pub fn lines_until(&self, from: usize, until: usize, longest: usize) -> usize {
        let area = &self.text[from..until];
        let end = memrchr(b'\n', area).map_or(0, |last| last + 1);
        from + if end > longest { before_long_line(&area[..end], longest) } else { end }
    }
}

/// The bytes of the lines of `area` before the first that is longer than `longest`.
fn before_long_line(area: &[u8], longest: usize) -> usize {
    let mut start = 0;
    for end in memchr_iter(b'\n', area) {
        if end - start > longest {
            break;
        }
        start = end + 1;
    }
    start
}

/// Whether `literal` has a `quote` that is neither at its ends nor beside a border of values (white space is looked
/// past): such a quote is probably part of a value.
pub(crate) fn has_inner_quote(literal: &str, quote: char, is_border: impl Fn(char) -> bool) -> bool {
    let is_outside = |beside: &str, last: bool| {
        let beside = beside.trim();
        let neighbour = if last { beside.chars().next_back() } else { beside.chars().next() };
        neighbour.is_none_or(|one| is_border(one) || one == quote)
    };
    literal
        .match_indices(quote)
        .any(|(at, text)| !is_outside(&literal[..at], true) && !is_outside(&literal[at + text.len()..], false))
}

/// How many whole lines are in a text, and how many of them are blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    pub all: u64,
    pub blank: u64,
}

impl Lines {
    /// Those of `text`, which begins with a line and ends with a line end. `is_blank` gets each line without its
    /// line end.
    pub fn count(text: &[u8], is_blank: impl Fn(&[u8]) -> bool) -> Self {
        let (all, has_short_beginning) = line_feeds(text);
        // A blank line begins with white space or its line end. That hardly ever happens, and is seen in one pass.
        let suspicious = text.first().is_some_and(|first| *first <= b' ') || has_short_beginning;
        let blank = if suspicious { blank_lines(text, is_blank) } else { 0 };
        Lines { all, blank }
    }
}

/// How many line feeds there are, and whether a byte up to that of a blank follows one.
fn line_feeds(text: &[u8]) -> (u64, bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide(text: &[u8]) -> (u64, bool) {
            line_feeds_in(text)
        }
        // SAFETY: this processor has the instructions.
        return unsafe { wide(text) };
    }
    line_feeds_in(text)
}

/// [`line_feeds`], compiled for the instructions of the caller.
#[inline(always)]
fn line_feeds_in(text: &[u8]) -> (u64, bool) {
    /// A number that fits into a byte, and of which each is a whole number of vectors.
    const BLOCK: usize = 224;
    let Some(behind) = text.get(1..) else { return (0, false) };
    let pairs = &text[..behind.len()];
    let (blocks, rest) = pairs.as_chunks::<BLOCK>();
    let (blocks_behind, rest_behind) = behind.as_chunks::<BLOCK>();
    let (mut count, mut found) = (0, false);
    for (block, behind) in blocks.iter().zip(blocks_behind) {
        // Without an exit inside of a block, the compiler compares many bytes at once.
        let (mut feeds, mut short) = (0u8, 0u8);
        for index in 0..BLOCK {
            let is_feed = u8::from(block[index] == b'\n');
            feeds += is_feed;
            short |= is_feed & u8::from(behind[index] <= b' ');
        }
        count += u64::from(feeds);
        found |= short != 0;
    }
    for (byte, next) in rest.iter().zip(rest_behind) {
        count += u64::from(*byte == b'\n');
        found |= *byte == b'\n' && *next <= b' ';
    }
    // Nothing is behind the last byte.
    (count + u64::from(text.last() == Some(&b'\n')), found)
}

fn blank_lines(text: &[u8], is_blank: impl Fn(&[u8]) -> bool) -> u64 {
    let mut start = 0;
    let mut count = 0;
    for end in memchr_iter(b'\n', text) {
        count += u64::from(is_blank(&text[start..end]));
        start = end + 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(any: &[&str], all: &[&str]) -> Search {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Search::new(&Contains { any: texts(any), all: texts(all) }).expect("few texts").expect("some text")
    }

    #[test]
    fn all_of_all_and_one_of_any_are_asked_for() {
        assert!(Search::new(&Contains::default()).expect("no text").is_none());
        let both = search(&["x", "yy"], &["ab", "c"]);
        for (record, passes) in [("abcx", true), ("cabyy", true), ("abc", false), ("abx", false), ("cxyy", false)] {
            assert_eq!(both.matches(record.as_bytes()), passes, "{record}");
        }
    }

    #[test]
    fn a_hit_over_two_records_is_none() {
        let search = search(&[], &["b\nc"]);
        let mut hits = Hits::new(&search, b"ab\ncd\nb");
        assert_eq!(hits.at_or_after(0), 1);
        assert!(!hits.has(0, 2));
        assert!(!hits.has(3, 5));
        assert!(hits.has(6, 7) == search.matches(b"b"));
    }

    #[test]
    fn lines_without_a_hit_are_found_together() {
        let search = search(&["zz", "yy"], &[]);
        let mut hits = Hits::new(&search, b"a\nbb\nxyyz\nc\nlonger\nd");
        assert_eq!(hits.lines_without(0, 100), 5);
        assert_eq!(hits.lines_without(5, 100), 5);
        assert_eq!(hits.lines_without(10, 100), 19);
        assert_eq!(hits.lines_without(10, 4), 12);
        assert_eq!(hits.lines_without(12, 4), 12);
    }

    #[test]
    fn a_quote_inside_of_a_value_is_told_from_those_around_it() {
        let inner = |literal| has_inner_quote(literal, '"', |one| ":,{}".contains(one));
        for plain in ["abc", "\"abc\"", "\"type\":\"order\"", "\"type\": \"order\", \"n\": 1", "{\"a\"", "x\"", "\"\""]
        {
            assert!(!inner(plain), "{plain}");
        }
        for doubtful in ["say \"hi\" to", "a\"b", "5\" of rain"] {
            assert!(inner(doubtful), "{doubtful}");
        }
    }

    #[test]
    fn a_short_line_is_seen_wherever_it_is() {
        for at in 0..500 {
            let mut text = b"x".repeat(500);
            text[at] = b'\n';
            assert_eq!(line_feeds(&text), (1, false), "{at}");
            if let Some(next) = text.get_mut(at + 1) {
                *next = b' ';
                assert_eq!(line_feeds(&text), (1, true), "{at}");
                text[at + 1] = b'\n';
                assert_eq!(line_feeds(&text), (2, true), "{at}");
            }
        }
    }

    #[test]
    fn blank_lines_are_counted_apart() {
        let json = |line: &[u8]| line.iter().all(|byte| b" \t\r".contains(byte));
        let long = [b"x".repeat(300).as_slice(), b"\n \n", &b"y\n".repeat(200), b"\n"].concat();
        for (text, all, blank) in
            [(&b""[..], 0, 0), (b"\n", 1, 1), (b"a\nb\n", 2, 0), (b" \na\n\r\n b\n\n", 5, 3), (&long, 203, 2)]
        {
            assert_eq!(Lines::count(text, json), Lines { all, blank }, "{}", String::from_utf8_lossy(text));
        }
    }
}

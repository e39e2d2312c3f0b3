//! A strict reader of the two text formats of metrics. It fails on all that their documents do not allow.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// What a page says.
#[derive(Debug, Default)]
pub struct Page {
    samples: BTreeMap<(String, Labels), f64>,
    /// The types of the families.
    types: BTreeMap<String, String>,
}

impl Page {
    /// Reads Prometheus' text format 0.0.4, in which families have the names of their samples.
    #[track_caller]
    pub fn prometheus(text: &str) -> Self {
        let mut page = Page::default();
        page.read(text, |family, _| family.to_owned());
        for (family, kind) in &page.types {
            assert!(matches!(kind.as_str(), "counter" | "gauge"), "{family} is a {kind}");
            assert_eq!(family.ends_with("_total"), kind == "counter", "{family}");
        }
        page
    }

    /// Reads OpenMetrics 1.0, in which samples of counters and infos have endings, and units are named.
    #[track_caller]
    pub fn open_metrics(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("an end");
        let mut page = Page::default();
        page.read(text, |family, kind| match kind {
            "counter" => format!("{family}_total"),
            "info" => format!("{family}_info"),
            "gauge" => family.to_owned(),
            other => panic!("{family} is a {other}"),
        });
        page
    }

    fn read(&mut self, text: &str, name_of: impl Fn(&str, &str) -> String) {
        assert!(text.ends_with('\n') && !text.contains('\r'), "lines end with a line feed");
        let (mut family, mut help): (String, BTreeSet<String>) = Default::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, words) = rest.split_once(' ').expect("a help");
                assert!(!words.trim().is_empty() && help.insert(name.to_owned()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(is_name(name) && help.contains(name), "{line}");
                family = name.to_owned();
                assert!(self.types.insert(family.clone(), kind.to_owned()).is_none(), "{name} comes twice");
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').expect("a unit");
                assert!(name == family && name.ends_with(unit), "{line}");
            } else {
                let (name, labels, value) = sample(line);
                assert_eq!(name, name_of(&family, &self.types[&family]), "{line}");
                assert!(name.starts_with("millstream_"), "{line}");
                assert!(self.samples.insert((name, labels), value).is_none(), "{line} comes twice");
            }
        }
    }

    /// The value of a sample.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }

    /// The labels of the only sample of `name`.
    #[track_caller]
    pub fn labels(&self, name: &str) -> Labels {
        let mut named = self.samples.keys().filter(|(known, _)| known == name);
        let labels = named.next().map(|(_, labels)| labels.clone()).expect("a sample");
        assert!(named.next().is_none(), "{name} has several samples");
        labels
    }

    /// No counter may be less in `later`.
    #[track_caller]
    pub fn grows_into(&self, later: &Page) {
        for (key, value) in self.samples.iter().filter(|((name, _), _)| name.ends_with("_total")) {
            assert!(later.samples.get(key).is_some_and(|later| later >= value), "{key:?}");
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_part) && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The name, the labels and the value of a sample.
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inner.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            let (value, behind) = quoted(behind).unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label) && labels.insert(label.to_owned(), value).is_none(), "{line}");
            match behind.strip_prefix(',') {
                Some(next) => inner = next,
                None => {
                    rest = behind.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(!value.contains(' '), "{line}");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// A value up to its quote, and what is behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut rest) = (String::new(), text.chars());
    loop {
        value.push(match rest.next()? {
            '"' => return Some((value, rest.as_str())),
            '\\' => match rest.next()? {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            },
            other => other,
        });
    }
}

//! Rejects: records and rows that were left out, whoever refused them (a parser, an expression, a target), and how many
//! an entry of the job allows.
//!
//! This owns the words: what is told of a reject ([`Rejected`]), why in one word ([`RejectKind`]), and the counting
//! ([`RejectLimit`]). Where rejects are kept and who asks for them again is the engine's.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a record was refused, in one word that stays the same whatever the message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectKind {
    /// It has more or fewer fields than expected.
    Fields,
    /// Its quotes do not fit together.
    Quotes,
    /// It is not written in the format.
    Syntax,
    /// Its bytes are not what the encoding allows.
    Encoding,
    /// The record, or a value, is too long.
    TooLong,
    /// A value is none of its column's type.
    Value,
    /// A value is too large or too small for its column.
    OutOfRange,
    /// There is no value where there must be one.
    Null,
    /// The key is there already.
    Duplicate,
    /// A rule of the target is broken.
    Constraint,
    /// An expression cannot be computed.
    Expression,
    /// Anything else.
    Other,
}

impl RejectKind {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            RejectKind::Fields => "fields",
            RejectKind::Quotes => "quotes",
            RejectKind::Syntax => "syntax",
            RejectKind::Encoding => "encoding",
            RejectKind::TooLong => "too_long",
            RejectKind::Value => "value",
            RejectKind::OutOfRange => "out_of_range",
            RejectKind::Null => "null",
            RejectKind::Duplicate => "duplicate",
            RejectKind::Constraint => "constraint",
            RejectKind::Expression => "expression",
            RejectKind::Other => "other",
        }
    }
}

/// Bytes as JSON keeps them: as text if they are UTF-8, otherwise in base64.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RawText {
    /// The bytes, if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes in base64, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// How many bytes it had, if these are only the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<u64>,
}

/// The most bytes of a raw record that are kept: 64 KiB.
pub const RAW_LIMIT: usize = 64 << 10;

impl RawText {
    /// Keeps `bytes`, at most [`RAW_LIMIT`] of them.
    pub fn new(bytes: &[u8]) -> Self {
        let kept = &bytes[..bytes.len().min(RAW_LIMIT)];
        let cut_from = (kept.len() < bytes.len()).then_some(bytes.len() as u64);
        match std::str::from_utf8(kept) {
            Ok(text) => RawText { text: Some(text.to_owned()), base64: None, cut_from },
            Err(_) => RawText { text: None, base64: Some(base64_of(kept)), cut_from },
        }
    }

    /// The bytes. `None` if they are not base64 as they should be.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.text, &self.base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(base64)) => bytes_of(base64),
            (None, None) => Some(Vec::new()),
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding: RFC 4648, section 4.
pub fn base64_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place > three.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

fn bytes_of(base64: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = base64.trim_end_matches('=').bytes().collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let mut bits = 0;
        for digit in four {
            bits = bits << 6 | ALPHABET.iter().position(|known| known == digit)? as u32;
        }
        bits <<= 6 * (4 - four.len());
        let three = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        bytes.extend_from_slice(&three[..four.len().checked_sub(1).filter(|count| *count > 0)?]);
    }
    Some(bytes)
}

/// A record or row that was left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rejected {
    /// The entry of the job that refused it; several, joined by `or`, where expressions of several run as one.
    pub step: String,
    /// Why, in one word.
    pub kind: RejectKind,
    /// Why, in full.
    pub message: String,
    /// The column at fault, if it is known.
    pub column: Option<String>,
    /// The source it is from. This and the place are unknown behind a step that puts rows together.
    pub source: Option<String>,
    /// The sink it was on its way to, if that is one.
    pub sink: Option<String>,
    /// The path or URL of its file, passwords left out.
    pub uri: Option<String>,
    /// The member, if the file is an archive.
    pub member: Option<String>,
    /// The id of the message, if it is one of a queue.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "message_id", alias = "id")]
    pub id: Option<String>,
    /// The line on which the record begins, from 1.
    pub line: Option<u64>,
    /// The line on which the last record begins, if the row is one of those that a step gave for a batch of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<u64>,
    /// The byte of the decoded text at which the record begins.
    pub byte: Option<u64>,
    /// The record as it stands in the file, without its line end.
    pub raw: Option<RawText>,
    /// The row as its columns, where there is no raw record.
    pub row: Option<Value>,
}

/// Where a reject is, in words; nothing if that is not known.
pub fn place_of(rejected: &Rejected) -> String {
    let Rejected { uri, member, id, line, last_line, column, .. } = rejected;
    let place = crate::Location {
        uri: uri.clone(),
        member: member.clone(),
        message: id.clone(),
        line: *line,
        last_line: *last_line,
        byte: None,
        column: column.clone(),
    };
    place.to_string()
}

/// How many records may be rejected: a number, or a share of those that came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MaxRejects {
    /// So many.
    Count(u64),
    /// This part of all, from 0 to 1.
    Share(f64),
}

impl Default for MaxRejects {
    fn default() -> Self {
        MaxRejects::Count(0)
    }
}

impl MaxRejects {
    /// Whether `rejected` of `came` records are too many.
    pub fn is_exceeded(self, rejected: u64, came: u64) -> bool {
        match self {
            MaxRejects::Count(count) => rejected > count,
            MaxRejects::Share(share) => rejected > share_of(share, came),
        }
    }

    /// Whether any may be rejected.
    pub fn allows_some(self) -> bool {
        self != MaxRejects::Count(0) && self != MaxRejects::Share(0.0)
    }
}

impl FromStr for MaxRejects {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("`{text}` is not a number of records: write a whole number, or a share such as `1%`");
        match text.strip_suffix('%') {
            None => text.parse().map(MaxRejects::Count).map_err(|_| fault()),
            Some(percent) => match percent.trim_end().parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(MaxRejects::Share(percent / 100.0)),
                _ => Err(fault()),
            },
        }
    }
}

impl fmt::Display for MaxRejects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaxRejects::Count(count) => write!(f, "{count}"),
            MaxRejects::Share(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
        }
    }
}

impl Serialize for MaxRejects {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            MaxRejects::Count(count) => count.serialize(serializer),
            share => share.to_string().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MaxRejects {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse(),
            other => other.to_string().parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for MaxRejects {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MaxRejects".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {
                    "type": "string",
                    "pattern": r"^([0-9]+|(100|[0-9]{1,2})(\.[0-9]+)? ?%)$",
                    "description": "A whole number of records, or a share of them such as `1%`.",
                },
            ]
        })
    }
}

/// A share is not judged before so many records have come, except at the end.
pub const SHARE_FROM: u64 = 10_000;

/// Counts what an entry of the job has rejected against what it allows. A number is judged at once. A share is judged
/// at the end, and early where it is hopeless: once [`SHARE_FROM`] records have come and ten times the share of them
/// are rejected (or, where that is less, so many that of as many again all but none could be bad: half-way from the
/// share to all). A run that reads a queue has no end: there the last [`HOURS`] hours are judged, a share every hour.
#[derive(Debug, Default)]
pub struct RejectLimit {
    most: MaxRejects,
    came: AtomicU64,
    rejected: AtomicU64,
    past: Past,
}

/// For so many hours a record of a run that reads a queue counts.
pub const HOURS: usize = 24;

/// What a run that reads a queue has counted at the last full hours, the oldest of which does not count any more.
#[derive(Debug, Default)]
struct Past {
    hours: Mutex<VecDeque<Counts>>,
    came: AtomicU64,
    rejected: AtomicU64,
}

/// How many records have come, and how many of them were rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Rejected ones among them.
    pub came: u64,
    /// The rejected ones.
    pub rejected: u64,
}

impl RejectLimit {
    /// A limit of `most`, with nothing counted.
    pub fn new(most: MaxRejects) -> Self {
        RejectLimit { most, ..RejectLimit::default() }
    }

    /// What is allowed.
    pub fn most(&self) -> MaxRejects {
        self.most
    }

    /// Counts records that have come, rejected ones among them.
    pub fn add_came(&self, records: u64) {
        self.came.fetch_add(records, Ordering::Relaxed);
    }

    /// Takes back records that had come before.
    pub fn roll_back_came(&self, records: u64) {
        let less = |came: u64| Some(came.saturating_sub(records));
        // It always gives a new value.
        let _ = self.came.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts rejects. They stay counted, whether or not they are too many.
    pub fn add(&self, rejects: u64) {
        self.rejected.fetch_add(rejects, Ordering::Relaxed);
    }

    /// Takes back what was counted for work that is done again.
    pub fn roll_back(&self, rejects: u64) {
        self.rejected.fetch_sub(rejects, Ordering::Relaxed);
    }

    /// How many records have come.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// How many were rejected.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// What is judged: everything, or what came in the last [`HOURS`] hours if [`RejectLimit::hour_passed`] says when
    /// one has passed.
    pub fn judged(&self) -> Counts {
        Counts {
            came: self.came().saturating_sub(self.past.came.load(Ordering::Relaxed)),
            rejected: self.rejected().saturating_sub(self.past.rejected.load(Ordering::Relaxed)),
        }
    }

    /// Whether something is not judged any more.
    pub fn has_past(&self) -> bool {
        self.past.came.load(Ordering::Relaxed) > 0
    }

    /// Another hour of a run that reads a queue has passed: whether there are too many rejects among what is judged
    /// now, if enough has come to say so.
    pub fn hour_passed(&self) -> bool {
        let mut hours = self.past.hours.lock().unwrap_or_else(PoisonError::into_inner);
        hours.push_back(Counts { came: self.came(), rejected: self.rejected() });
        if hours.len() > HOURS - 1
            && let Some(oldest) = hours.pop_front()
        {
            self.past.came.store(oldest.came, Ordering::Relaxed);
            self.past.rejected.store(oldest.rejected, Ordering::Relaxed);
        }
        drop(hours);
        self.judged().came >= SHARE_FROM && self.is_passed_at_end()
    }

    /// Whether there are too many for the run to go on.
    pub fn is_passed(&self) -> bool {
        let Counts { came, rejected } = self.judged();
        rejected > self.most_now(came)
    }

    /// How many more may be rejected before [`RejectLimit::is_passed`], when `coming` more records have come.
    pub fn room(&self, coming: u64) -> u64 {
        let Counts { came, rejected } = self.judged();
        self.most_now(came + coming).saturating_sub(rejected)
    }

    /// Whether there are too many, now that everything has come.
    pub fn is_passed_at_end(&self) -> bool {
        let Counts { came, rejected } = self.judged();
        self.most.is_exceeded(rejected, came)
    }

    /// With more rejects than these the run ends when `came` records have come.
    fn most_now(&self, came: u64) -> u64 {
        match self.most {
            MaxRejects::Count(count) => count,
            MaxRejects::Share(share) if share <= 0.0 => 0,
            MaxRejects::Share(share) => {
                let hopeless = (10.0 * share).min((1.0 + share) / 2.0);
                share_of(hopeless, came.max(SHARE_FROM))
            }
        }
    }
}

/// So many of `records`, rounded down; what is a rounding error away from a whole number is that number.
fn share_of(share: f64, records: u64) -> u64 {
    (share * records as f64 + 1e-6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_a_share() {
        for (text, limit, shown) in [
            ("100", MaxRejects::Count(100), "100"),
            ("1%", MaxRejects::Share(0.01), "1%"),
            ("0.05 %", MaxRejects::Share(0.0005), "0.05%"),
            ("100%", MaxRejects::Share(1.0), "100%"),
        ] {
            let parsed: MaxRejects = text.parse().expect("a limit");
            assert_eq!((parsed, parsed.to_string().as_str()), (limit, shown));
        }
        for bad in ["", "%", "-1", "101%", "1.5", "1 percent", "-1%", "nan%"] {
            assert!(bad.parse::<MaxRejects>().is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_str::<MaxRejects>("7").expect("a number"), MaxRejects::Count(7));
        assert!(!MaxRejects::Share(0.0).allows_some() && MaxRejects::Count(1).allows_some());
    }

    #[test]
    fn a_number_is_passed_by_one_more() {
        let limit = RejectLimit::new(MaxRejects::Count(2));
        assert_eq!(limit.room(5), 2);
        limit.add(2);
        assert!(!limit.is_passed() && !limit.is_passed_at_end() && limit.room(5) == 0);
        limit.add(1);
        assert!(limit.is_passed() && limit.is_passed_at_end());
        limit.roll_back(1);
        assert!(!limit.is_passed());
    }

    #[test]
    fn a_share_is_judged_at_the_end_and_early_where_it_is_hopeless() {
        let limit = RejectLimit::new(MaxRejects::Share(0.01));
        limit.add_came(100);
        limit.add(1);
        assert!(!limit.is_passed_at_end(), "one of a hundred is 1 %");
        limit.add(1);
        assert!(limit.is_passed_at_end() && !limit.is_passed(), "others may come that are good");
        limit.add(998);
        assert!(!limit.is_passed(), "1,000 of the first 10,000");
        limit.add(1);
        assert!(limit.is_passed());
        limit.add_came(20_000);
        assert!(!limit.is_passed() && limit.is_passed_at_end());
        let all = RejectLimit::new(MaxRejects::Share(1.0));
        all.add_came(20_000);
        all.add(20_000);
        assert!(!all.is_passed() && !all.is_passed_at_end());
        let three = RejectLimit::new(MaxRejects::Share(0.03));
        three.add_came(100);
        three.add(3);
        assert!(!three.is_passed_at_end(), "rounding takes nothing away");
    }

    #[test]
    fn of_a_queue_the_last_hours_are_judged() {
        let limit = RejectLimit::new(MaxRejects::Count(10));
        for _ in 0..100 {
            assert!(!limit.hour_passed());
            limit.add_came(1);
            limit.add(u64::from(limit.came().is_multiple_of(3)));
            assert!(!limit.is_passed() && limit.room(0) >= 2, "8 in 24 hours");
        }
        assert!(limit.has_past() && limit.rejected() == 33);
        limit.add(3);
        assert!(limit.is_passed());
        (0..HOURS).for_each(|_| assert!(!limit.hour_passed()));
        assert_eq!((limit.judged(), limit.is_passed()), (Counts::default(), false));
    }

    #[test]
    fn of_a_queue_a_share_is_judged_every_hour() {
        let limit = RejectLimit::new(MaxRejects::Share(0.01));
        limit.add_came(SHARE_FROM - 1);
        limit.add(200);
        assert!(!limit.hour_passed(), "little has come");
        limit.add_came(1);
        assert!(!limit.is_passed() && limit.hour_passed(), "2 % of 10,000");
        for _ in 0..HOURS {
            let _ = limit.hour_passed();
        }
        limit.add_came(SHARE_FROM);
        limit.add(100);
        assert!(!limit.hour_passed(), "what is older than a day does not count");
    }

    #[test]
    fn any_bytes_come_back() {
        for bytes in [b"".as_slice(), b"a\xc3\xa4", b"\xff", b"\xff\xfe", b"\xff\xfe\xfd", b"caf\xe9\0", &[0xfb; 100]] {
            let raw = RawText::new(bytes);
            assert_eq!(raw.bytes().as_deref(), Some(bytes), "{raw:?}");
            assert_eq!(raw.text.is_none(), std::str::from_utf8(bytes).is_err());
            let json = serde_json::to_string(&raw).expect("JSON");
            assert_eq!(serde_json::from_str::<RawText>(&json).expect("JSON"), raw);
        }
        assert_eq!(RawText::new(b"caf\xe9").base64.as_deref(), Some("Y2Fm6Q=="));
        let long = RawText::new(&vec![b'x'; RAW_LIMIT + 5]);
        assert_eq!(
            (long.bytes().map(|bytes| bytes.len()), long.cut_from),
            (Some(RAW_LIMIT), Some(RAW_LIMIT as u64 + 5))
        );
    }
}

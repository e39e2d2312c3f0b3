//! Answers of a Redis server in its protocol, version 2 (redis.io, "Redis serialization protocol specification"):
//! values of any kind, and the entries of streams, which are copied straight from the connection into one text.
//!
//! Reading a stream is on the path of every message, so its answer gets a reader of its own: no value is allocated for
//! an entry. Everything else is a [`Value`].

use std::fmt;
use std::str::FromStr;

use millstream_core::queue::{Lack, Message, MessageId, Messages};

use super::spec::KEY_FIELD;

/// The most values inside of each other.
const MOST_NESTED: usize = 16;

/// The most bytes of a line that says what follows, or of a simple string.
const LONGEST_LINE: usize = 64 << 10;

/// The most bytes of a value: what Redis itself allows by default.
const LONGEST_BULK: usize = 512 << 20;

/// What is wrong with an answer, in words that end a sentence. The connection cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl Malformed {
    fn new(what: impl Into<String>) -> Self {
        Malformed(what.into())
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// None.
    Nil,
    /// A number.
    Integer(i64),
    /// Bytes; also those of a simple string.
    Bytes(Vec<u8>),
    /// Several.
    Array(Vec<Value>),
    /// The error that the server answers with: its first word is a code.
    Error(String),
}

impl Value {
    /// Its text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The number that it is, or that its text is.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => self.text()?.parse().ok(),
        }
    }

    /// Its values, if it is several.
    pub fn array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The value behind `key`, of an array of keys and values by turns.
    pub fn field(&self, key: &str) -> Option<&Value> {
        let pairs = self.array()?.chunks_exact(2);
        pairs.filter(|pair| pair[0].text() == Some(key)).map(|pair| &pair[1]).next()
    }
}

/// The number of an entry of a stream: when it came, in milliseconds since 1970, and which of these it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// Milliseconds since 1970, by the server's clock.
    pub milliseconds: u64,
    /// Which entry of this millisecond.
    pub sequence: u64,
}

impl From<EntryId> for MessageId {
    fn from(id: EntryId) -> Self {
        MessageId { major: id.milliseconds, minor: id.sequence }
    }
}

impl From<MessageId> for EntryId {
    fn from(id: MessageId) -> Self {
        EntryId { milliseconds: id.major, sequence: id.minor }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.milliseconds, self.sequence)
    }
}

impl FromStr for EntryId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (milliseconds, sequence) = text.split_once('-').ok_or(())?;
        let number = |digits: &str| match digits.bytes().all(|digit| digit.is_ascii_digit()) {
            true => digits.parse().map_err(|_| ()),
            false => Err(()),
        };
        Ok(EntryId { milliseconds: number(milliseconds)?, sequence: number(sequence)? })
    }
}

/// The first value in `bytes` and its length; `None` if it is not complete.
///
/// # Errors
/// If these are no values.
pub fn value(bytes: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let mut scan = Scan { bytes, at: 0 };
    Ok(scan.value(0)?.map(|value| (value, scan.at)))
}

/// How many values follow, or the error that the server answers with instead.
pub type ArrayHead = Result<usize, String>;

/// The head of an array at the beginning of `bytes`, and its length in bytes; `None` if it is not complete.
///
/// # Errors
/// If it is another value.
pub fn array_head(bytes: &[u8]) -> Result<Option<(ArrayHead, usize)>, Malformed> {
    let mut scan = Scan { bytes, at: 0 };
    let head = match scan.head()? {
        None => return Ok(None),
        Some(Head::Array(count)) => Ok(count),
        Some(Head::Error(text)) => Err(String::from_utf8_lossy(text).into_owned()),
        Some(other) => return Err(Malformed::new(format!("several values were expected, and came as {other:?}"))),
    };
    Ok(Some((head, scan.at)))
}

/// Reads values from the beginning of some bytes. What gives `None` has met their end.
struct Scan<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// How a value begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head<'b> {
    Simple(&'b [u8]),
    Error(&'b [u8]),
    Integer(i64),
    /// Bytes of this length follow.
    Bulk(usize),
    /// So many values follow.
    Array(usize),
    Nil,
}

impl<'b> Scan<'b> {
    fn value(&mut self, depth: usize) -> Result<Option<Value>, Malformed> {
        if depth > MOST_NESTED {
            return Err(Malformed::new(format!("values are nested more than {MOST_NESTED} deep")));
        }
        let Some(head) = self.head()? else { return Ok(None) };
        Ok(Some(match head {
            Head::Nil => Value::Nil,
            Head::Integer(number) => Value::Integer(number),
            Head::Simple(text) => Value::Bytes(text.to_vec()),
            Head::Error(text) => Value::Error(String::from_utf8_lossy(text).into_owned()),
            Head::Bulk(length) => match self.bulk(length)? {
                Some(bytes) => Value::Bytes(bytes.to_vec()),
                None => return Ok(None),
            },
            Head::Array(count) => {
                // A length is no promise: what is not there takes no memory.
                let mut values = Vec::new();
                for _ in 0..count {
                    match self.value(depth + 1)? {
                        Some(value) => values.push(value),
                        None => return Ok(None),
                    }
                }
                Value::Array(values)
            }
        }))
    }

    /// The line that says what follows.
    fn head(&mut self) -> Result<Option<Head<'b>>, Malformed> {
        let rest = &self.bytes[self.at..];
        let Some(end) = memchr::memchr(b'\n', &rest[..rest.len().min(LONGEST_LINE)]) else {
            return match rest.len() >= LONGEST_LINE {
                true => Err(Malformed::new("a line does not end")),
                false => Ok(None),
            };
        };
        let Some((&kind, line)) = rest[..end].strip_suffix(b"\r").and_then(<[u8]>::split_first) else {
            return Err(Malformed::new("a line is empty, or ends without a carriage return"));
        };
        self.at += end + 1;
        Ok(Some(match kind {
            b'+' => Head::Simple(line),
            b'-' => Head::Error(line),
            b':' => Head::Integer(integer(line)?),
            b'$' => length(line)?.map_or(Head::Nil, Head::Bulk),
            b'*' => length(line)?.map_or(Head::Nil, Head::Array),
            other => return Err(Malformed::new(format!("a value begins with {:?}", char::from(other)))),
        }))
    }

    /// The bytes of a value.
    fn bulk(&mut self, length: usize) -> Result<Option<&'b [u8]>, Malformed> {
        if length > LONGEST_BULK {
            return Err(Malformed::new(format!("a value of {length} bytes is longer than Redis allows")));
        }
        let rest = &self.bytes[self.at..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(Malformed::new("a value is longer than it says"));
        }
        self.at += length + 2;
        Ok(Some(&rest[..length]))
    }

    /// A head that has to be an array; `None` inside if it is nil.
    fn array(&mut self, of: &str) -> Result<Option<Option<usize>>, Malformed> {
        match self.head()? {
            None => Ok(None),
            Some(Head::Array(count)) => Ok(Some(Some(count))),
            Some(Head::Nil) => Ok(Some(None)),
            Some(other) => Err(Malformed::new(format!("{of} are {other:?}"))),
        }
    }

    /// A value that has to be bytes.
    fn bytes(&mut self, what: &str) -> Result<Option<&'b [u8]>, Malformed> {
        match self.head()? {
            None => Ok(None),
            Some(Head::Bulk(length)) => self.bulk(length),
            Some(other) => Err(Malformed::new(format!("{what} is {other:?}"))),
        }
    }
}

fn integer(line: &[u8]) -> Result<i64, Malformed> {
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Malformed::new(format!("`{}` is not a number", String::from_utf8_lossy(line))))
}

/// The length that a line says; `None` for the nil of old.
fn length(line: &[u8]) -> Result<Option<usize>, Malformed> {
    match integer(line)? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| Malformed::new(format!("a length is {length}"))),
    }
}

/// Which fields of entries are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// The field whose value is the body of the message; without it an entry has to have a single field.
    pub body: Option<String>,
    /// Whether the other fields are wanted.
    pub others: bool,
}

impl Fields {
    /// Adds one of the `count` fields of an entry to its message, if it is wanted.
    pub(super) fn add(&self, message: &mut Message<'_>, count: usize, name: &[u8], value: &[u8]) {
        let is_body = match &self.body {
            Some(body) => name == body.as_bytes(),
            None => count == 1,
        };
        if is_body {
            message.body(value);
        } else if name == KEY_FIELD.as_bytes() {
            message.key(value);
        } else if self.others || self.body.is_none() {
            message.header(name, value);
        }
    }
}

/// The answer to `XREADGROUP` for one stream, read as it comes.
#[derive(Debug)]
pub struct EntriesReply<'f> {
    fields: &'f Fields,
    /// What is expected next.
    next: Next,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The streams of which there are entries.
    Streams,
    /// So many entries.
    Entries(usize),
    Done,
}

/// What has come of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// Not all of it: so many bytes of what there was are read, and the others are to be given again, with more.
    Part(usize),
    /// All of it, in so many bytes.
    All(usize),
    /// The server answers with this error, in so many bytes.
    Error(String, usize),
}

impl<'f> EntriesReply<'f> {
    /// Of which nothing has come.
    pub fn new(fields: &'f Fields) -> Self {
        EntriesReply { fields, next: Next::Streams }
    }

    /// Reads what there is of the answer, and adds its entries to `messages`.
    ///
    /// # Errors
    /// If it is another answer.
    pub fn read(&mut self, bytes: &[u8], messages: &mut Messages) -> Result<Came, Malformed> {
        let mut scan = Scan { bytes, at: 0 };
        if self.next == Next::Streams {
            match self.begin(&mut scan)? {
                Some(Began::Entries(count)) => self.next = Next::Entries(count),
                Some(Began::Nothing) => self.next = Next::Done,
                Some(Began::Error(error)) => {
                    self.next = Next::Done;
                    return Ok(Came::Error(error, scan.at));
                }
                None => return Ok(Came::Part(0)),
            }
        }
        while let Next::Entries(left) = self.next {
            if left == 0 {
                self.next = Next::Done;
                break;
            }
            let before = scan.at;
            if !self.entry(&mut scan, messages)? {
                return Ok(Came::Part(before));
            }
            self.next = Next::Entries(left - 1);
        }
        Ok(Came::All(scan.at))
    }

    /// What stands before the entries.
    fn begin(&self, scan: &mut Scan<'_>) -> Result<Option<Began>, Malformed> {
        let Some(head) = scan.head()? else { return Ok(None) };
        match head {
            Head::Nil => return Ok(Some(Began::Nothing)),
            Head::Error(text) => return Ok(Some(Began::Error(String::from_utf8_lossy(text).into_owned()))),
            Head::Array(1) => {}
            other => return Err(Malformed::new(format!("entries of one stream were expected, and came as {other:?}"))),
        }
        match scan.array("a stream and its entries")? {
            None => return Ok(None),
            Some(Some(2)) => {}
            Some(other) => return Err(Malformed::new(format!("a stream and its entries are {other:?} values"))),
        }
        if scan.bytes("the name of a stream")?.is_none() {
            return Ok(None);
        }
        Ok(scan.array("the entries of a stream")?.map(|count| Began::Entries(count.unwrap_or(0))))
    }

    /// Reads an entry; whether it was complete. Of one that is not, nothing is added.
    fn entry(&self, scan: &mut Scan<'_>, messages: &mut Messages) -> Result<bool, Malformed> {
        match scan.array("an entry")? {
            None => return Ok(false),
            Some(Some(2)) => {}
            Some(other) => return Err(Malformed::new(format!("an entry is {other:?} values"))),
        }
        let Some(id) = scan.bytes("the id of an entry")? else { return Ok(false) };
        let parsed = std::str::from_utf8(id).ok().and_then(|id| id.parse::<EntryId>().ok());
        let id = parsed
            .ok_or_else(|| Malformed::new(format!("`{}` is not the id of an entry", String::from_utf8_lossy(id))))?;
        let Some(count) = scan.array("the fields of an entry")? else { return Ok(false) };
        let mut message = messages.begin(id.into());
        message.time(i64::try_from(id.milliseconds).unwrap_or(-1));
        // An entry that was deleted after it was handed out.
        let Some(count) = count else {
            message.lacks(Lack::Gone);
            message.end();
            return Ok(true);
        };
        if count % 2 != 0 {
            return Err(Malformed::new("a field of an entry has no value"));
        }
        let fields = count / 2;
        for _ in 0..fields {
            let Some(name) = scan.bytes("the name of a field")? else { return Ok(false) };
            let Some(value) = scan.bytes("the value of a field")? else { return Ok(false) };
            self.fields.add(&mut message, fields, name, value);
        }
        message.end();
        Ok(true)
    }
}

enum Began {
    Entries(usize),
    Nothing,
    Error(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names and values of an entry; `None` if it was deleted.
    type EntryFields = Option<Vec<(Vec<u8>, Vec<u8>)>>;

    /// An answer with entries.
    fn answer(entries: &[(EntryId, EntryFields)]) -> Vec<u8> {
        let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let mut answer =
            [b"*1\r\n*2\r\n".as_slice(), &bulk(b"s"), format!("*{}\r\n", entries.len()).as_bytes()].concat();
        for (id, fields) in entries {
            answer.extend([b"*2\r\n".as_slice(), &bulk(id.to_string().as_bytes())].concat());
            match fields {
                None => answer.extend_from_slice(b"*-1\r\n"),
                Some(fields) => {
                    answer.extend_from_slice(format!("*{}\r\n", fields.len() * 2).as_bytes());
                    fields.iter().for_each(|(name, value)| answer.extend([bulk(name), bulk(value)].concat()));
                }
            }
        }
        answer
    }

    fn id(milliseconds: u64) -> EntryId {
        EntryId { milliseconds, sequence: 1 }
    }

    /// Reads an answer whose bytes come in these pieces.
    fn read(pieces: &[&[u8]], fields: &Fields) -> Result<(Messages, Came), Malformed> {
        let (mut messages, mut reply) = (Messages::default(), EntriesReply::new(fields));
        let mut waiting: Vec<u8> = Vec::new();
        let mut came = Came::Part(0);
        for piece in pieces {
            waiting.extend_from_slice(piece);
            came = reply.read(&waiting, &mut messages)?;
            match &came {
                Came::Part(length) => drop(waiting.drain(..*length)),
                Came::All(_) | Came::Error(..) => break,
            }
        }
        Ok((messages, came))
    }

    proptest! {
        #[test]
        fn entries_are_the_same_however_their_bytes_come(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let entries: Vec<_> = (1..).zip(&bodies).map(|(number, body)| {
                let kind = (b"kind".to_vec(), b"a".to_vec());
                (id(number), Some(vec![kind, (b"body".to_vec(), body.clone())]))
            }).collect();
            let bytes = answer(&entries);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let fields = Fields { body: Some("body".to_owned()), others: true };
            let (messages, came) = read(&pieces, &fields).expect("an answer");
            prop_assert!(matches!(came, Came::All(_)));
            prop_assert_eq!(messages.ids(), entries.iter().map(|(id, _)| MessageId::from(*id)).collect::<Vec<_>>());
            for (number, body) in bodies.iter().enumerate() {
                prop_assert_eq!(messages.body(number), body.as_slice());
                prop_assert_eq!(messages.headers(number).collect::<Vec<_>>(), [(b"kind".as_slice(), b"a".as_slice())]);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = value(&bytes);
            let _ = read(&[&bytes], &Fields::default());
        }
    }

    #[test]
    fn an_entry_without_its_body_says_why() {
        let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let entries =
            [(id(1), Some(vec![pair("any", "x")])), (id(2), None), (id(3), Some(vec![pair("a", "x"), pair("b", "y")]))];
        let bytes = answer(&entries);
        let (messages, _) = read(&[&bytes], &Fields::default()).expect("an answer");
        assert_eq!(messages.text(), b"x\n\n\n");
        assert_eq!(messages.lacking(), [(1, Lack::Gone), (2, Lack::NoField)]);
        assert_eq!(messages.headers(2).count(), 2, "they are shown with the reject");
    }

    #[test]
    fn nothing_and_errors_are_answers_too() {
        let fields = Fields::default();
        assert_eq!(read(&[b"*-1\r\n+OK"], &fields).expect("an answer").1, Came::All(5));
        let error = Came::Error("NOGROUP No such key".to_owned(), 22);
        assert_eq!(read(&[b"-NOGROUP No such key\r\n"], &fields).expect("an answer").1, error);
        for bad in ["*2\r\n", "+OK\r\n", "*1\r\n*3\r\n", "*1\r\n*2\r\n$1\r\nsx\r\n", "?\r\n", "*1\n", "$-5\r\n"] {
            assert!(read(&[bad.as_bytes()], &fields).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_of_all_kinds() {
        let bytes = b"*5\r\n:-7\r\n+OK\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no\r\n";
        let values = vec![
            Value::Integer(-7),
            Value::Bytes(b"OK".to_vec()),
            Value::Bytes(b"a\r\n".to_vec()),
            Value::Nil,
            Value::Error("ERR no".to_owned()),
        ];
        assert_eq!(value(bytes), Ok(Some((Value::Array(values), bytes.len()))));
        assert!((0..bytes.len()).all(|length| value(&bytes[..length]) == Ok(None)), "it is not complete");
        let deep = "*1\r\n".repeat(MOST_NESTED + 2);
        assert!(value(deep.as_bytes()).is_err());
        let endless = vec![b'+'; LONGEST_LINE];
        assert!(value(&endless).is_err());
        assert!(value(b"$9999999999\r\n").is_err());
        let pairs = value(b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$2\r\n22\r\n").expect("values").expect("complete").0;
        assert_eq!((pairs.field("b").and_then(Value::integer), pairs.field("c")), (Some(22), None));
    }

    #[test]
    fn ids_have_two_numbers() {
        let id: EntryId = "1526919030474-55".parse().expect("an id");
        assert_eq!(
            (id.milliseconds, id.sequence, id.to_string().as_str()),
            (1_526_919_030_474, 55, "1526919030474-55")
        );
        for bad in ["", "-", "1", "1-", "+1-1", "1-1-1", "99999999999999999999-0"] {
            assert!(bad.parse::<EntryId>().is_err(), "{bad:?}");
        }
    }
}

//! Messages as they came from a queue: their bodies one behind the other in one text, so that a parser takes many at
//! once, and what else there is of each beside it.

use std::ops::Range;

use crate::buffers;

/// The number of a message in its queue: of Redis the milliseconds and the sequence, of Kafka the partition and the
/// offset. [`super::Queue::shown_id`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageId {
    /// The first number.
    pub major: u64,
    /// The second number.
    pub minor: u64,
}

/// Why a message has no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// It was deleted after it had been handed out.
    Gone,
    /// It has several fields, and none of them is the one with the body.
    NoField,
    /// Its body is null.
    Null,
}

/// Messages of a queue in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// The bodies in order, a line feed behind each.
    text: Vec<u8>,
    /// Where each body ends in `text`, before its line feed.
    ends: Vec<usize>,
    ids: Vec<MessageId>,
    lacking: Vec<(usize, Lack)>,
    /// When each came, in milliseconds since 1970; -1 where the queue does not say.
    times: Vec<i64>,
    /// The keys of messages that have one.
    keys: Vec<(usize, Range<usize>)>,
    /// Keys, names and values, one behind the other.
    header_text: Vec<u8>,
    headers: Vec<Header>,
}

/// A name and a value of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    message: usize,
    name: Range<usize>,
    value: Range<usize>,
}

impl Messages {
    /// None, with room for `count` messages whose bodies have `bytes` bytes: more of either need new memory.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut messages = Messages::default();
        messages.ends.reserve(count);
        messages.ids.reserve(count);
        messages.times.reserve(count);
        messages.text = buffers::take(bytes + count);
        messages
    }

    /// The same without bodies, keys and headers: what tells which message a byte of the text was of.
    pub fn without_text(&self) -> Self {
        let mut found = Messages::default();
        found.ends.clone_from(&self.ends);
        found.ids.clone_from(&self.ids);
        found.times.clone_from(&self.times);
        found
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The bodies in order, a line feed behind each.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The ids in order.
    pub fn ids(&self) -> &[MessageId] {
        &self.ids
    }

    /// The body of a message by its number; empty if it has none, or bodies were left out.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn body(&self, number: usize) -> &[u8] {
        self.text.get(self.start(number)..self.ends[number]).unwrap_or_default()
    }

    /// The number of the message whose body has the byte `byte` of [`Messages::text`], or the line feed there.
    pub fn at(&self, byte: usize) -> usize {
        self.ends.partition_point(|end| *end < byte)
    }

    /// Those without a body, in order.
    pub fn lacking(&self) -> &[(usize, Lack)] {
        &self.lacking
    }

    /// When a message came, in milliseconds since 1970, if the queue says so.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn time(&self, number: usize) -> Option<i64> {
        Some(self.times[number]).filter(|time| *time >= 0)
    }

    /// The key of a message, if it has one.
    pub fn key(&self, number: usize) -> Option<&[u8]> {
        let at = self.keys.binary_search_by_key(&number, |(message, _)| *message).ok()?;
        Some(&self.header_text[self.keys[at].1.clone()])
    }

    /// Names and values that a message has beside its body.
    pub fn headers(&self, number: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = self.headers.partition_point(|header| header.message < number);
        let own = self.headers[first..].iter().take_while(move |header| header.message == number);
        own.map(|header| (&self.header_text[header.name.clone()], &self.header_text[header.value.clone()]))
    }

    /// Bytes of memory that they take.
    pub fn held(&self) -> usize {
        self.text.capacity()
            + self.ends.capacity() * size_of::<usize>()
            + self.ids.capacity() * size_of::<MessageId>()
            + self.times.capacity() * size_of::<i64>()
            + self.keys.capacity() * size_of::<(usize, Range<usize>)>()
            + self.header_text.capacity()
            + self.headers.capacity() * size_of::<Header>()
    }

    /// Leaves none, and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.ids.clear();
        self.lacking.clear();
        self.times.clear();
        self.keys.clear();
        self.header_text.clear();
        self.headers.clear();
    }

    /// Adds a copy of a message of others.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn append(&mut self, others: &Messages, number: usize) {
        let mut message = self.begin(others.ids[number]);
        message.time(others.times[number]);
        match others.lacking.binary_search_by_key(&number, |(message, _)| *message) {
            Ok(at) => message.lacks(others.lacking[at].1),
            Err(_) => message.body(others.body(number)),
        }
        others.key(number).into_iter().for_each(|key| message.key(key));
        others.headers(number).for_each(|(name, value)| message.header(name, value));
        message.end();
    }

    /// A message that follows. It is there once it is ended.
    pub fn begin(&mut self, id: MessageId) -> Message<'_> {
        let before = (self.text.len(), self.header_text.len(), self.headers.len());
        Message { messages: self, id: Some(id), before, key: None, time: -1, lack: Some(Lack::NoField) }
    }

    fn start(&self, number: usize) -> usize {
        number.checked_sub(1).map_or(0, |before| self.ends[before] + 1)
    }
}

/// What parsers have read is the room for what comes next.
impl Drop for Messages {
    fn drop(&mut self) {
        buffers::give_back(std::mem::take(&mut self.text));
    }
}

/// A message on its way: if it is dropped before its end, nothing of it stays.
pub struct Message<'m> {
    messages: &'m mut Messages,
    id: Option<MessageId>,
    /// The lengths of the text, the headers' text and the headers before it.
    before: (usize, usize, usize),
    key: Option<Range<usize>>,
    time: i64,
    lack: Option<Lack>,
}

impl Message<'_> {
    /// Its body. If there are several, the last counts.
    pub fn body(&mut self, body: &[u8]) {
        self.messages.text.truncate(self.before.0);
        self.messages.text.extend_from_slice(body);
        self.lack = None;
    }

    /// Something that it has beside its body.
    pub fn header(&mut self, name: &[u8], value: &[u8]) {
        let messages = &mut *self.messages;
        let start = messages.header_text.len();
        messages.header_text.extend_from_slice(name);
        let middle = messages.header_text.len();
        messages.header_text.extend_from_slice(value);
        let (name, value) = (start..middle, middle..messages.header_text.len());
        messages.headers.push(Header { message: messages.ids.len(), name, value });
    }

    /// Why it has no body.
    pub fn lacks(&mut self, lack: Lack) {
        self.messages.text.truncate(self.before.0);
        self.lack = Some(lack);
    }

    /// Its key. If there are several, the last counts.
    pub fn key(&mut self, key: &[u8]) {
        let start = self.messages.header_text.len();
        self.messages.header_text.extend_from_slice(key);
        self.key = Some(start..self.messages.header_text.len());
    }

    /// When it came, in milliseconds since 1970.
    pub fn time(&mut self, milliseconds: i64) {
        self.time = milliseconds;
    }

    /// It is complete.
    pub fn end(mut self) {
        let Some(id) = self.id.take() else { return };
        let (key, lack) = (self.key.take(), self.lack);
        let messages = &mut *self.messages;
        messages.keys.extend(key.map(|key| (messages.ids.len(), key)));
        messages.times.push(self.time);
        messages.lacking.extend(lack.map(|lack| (messages.ids.len(), lack)));
        messages.ids.push(id);
        messages.ends.push(messages.text.len());
        messages.text.push(b'\n');
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if self.id.is_some() {
            let (text, header_text, headers) = self.before;
            self.messages.text.truncate(text);
            self.messages.header_text.truncate(header_text);
            self.messages.headers.truncate(headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(minor: u64) -> MessageId {
        MessageId { major: 0, minor }
    }

    #[test]
    fn bodies_follow_each_other_and_are_found_by_their_bytes() {
        let mut messages = Messages::default();
        for (number, body) in [(1, "ab"), (2, ""), (3, "c\nd")] {
            let mut message = messages.begin(id(number));
            message.time(i64::try_from(number).expect("small"));
            if number == 2 {
                message.key(b"k");
            }
            message.header(b"kind", body.as_bytes());
            message.body(body.as_bytes());
            message.end();
        }
        assert_eq!((messages.text(), messages.ids()), (b"ab\n\nc\nd\n".as_slice(), [id(1), id(2), id(3)].as_slice()));
        let details = [0, 1, 2].map(|number| (messages.time(number), messages.key(number)));
        assert_eq!(details, [(Some(1), None), (Some(2), Some(b"k".as_slice())), (Some(3), None)]);
        assert_eq!([0, 1, 2].map(|number| messages.body(number)), [b"ab".as_slice(), b"", b"c\nd"]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| messages.at(byte)), [0, 0, 0, 1, 2, 2, 2, 2]);
        let headers: Vec<_> = messages.headers(2).collect();
        assert_eq!(headers, [(b"kind".as_slice(), b"c\nd".as_slice())]);
    }

    #[test]
    fn of_a_message_that_is_not_ended_nothing_stays() {
        let mut messages = Messages::default();
        let mut gone = messages.begin(id(1));
        gone.lacks(Lack::Gone);
        gone.end();
        let before = messages.clone();
        let mut cut = messages.begin(id(2));
        cut.body(b"text");
        cut.header(b"name", b"value");
        drop(cut);
        assert_eq!(messages, before);
        messages.begin(id(3)).end();
        assert_eq!(messages.lacking(), [(0, Lack::Gone), (1, Lack::NoField)]);
        assert_eq!((messages.body(1), messages.headers(0).count()), (b"".as_slice(), 0));
    }

    #[test]
    fn without_their_text_messages_are_still_found() {
        let mut messages = Messages::with_capacity(2, 4);
        for body in ["ab", "c"] {
            let mut message = messages.begin(id(body.len() as u64));
            message.body(body.as_bytes());
            message.key(b"k");
            message.end();
        }
        let found = messages.without_text();
        assert_eq!((found.ids(), found.text(), found.key(0)), (messages.ids(), b"".as_slice(), None));
        assert_eq!([0, 2, 3, 4].map(|byte| found.at(byte)), [0, 0, 1, 1]);
        assert_eq!((found.body(0), found.body(1)), (b"".as_slice(), b"".as_slice()));
    }

    #[test]
    fn copies_are_the_same() {
        let mut messages = Messages::default();
        messages.begin(id(1)).end();
        let mut message = messages.begin(id(2));
        message.header(b"kind", b"a");
        message.key(b"k");
        message.time(7);
        message.body(b"text");
        message.end();
        let mut gone = messages.begin(id(3));
        gone.lacks(Lack::Gone);
        gone.end();
        let mut copies = Messages::default();
        (0..3).for_each(|number| copies.append(&messages, number));
        assert_eq!(
            (copies.ids(), copies.text(), copies.lacking()),
            (messages.ids(), messages.text(), messages.lacking())
        );
        for number in 0..3 {
            assert_eq!((copies.time(number), copies.key(number)), (messages.time(number), messages.key(number)));
            assert!(copies.headers(number).eq(messages.headers(number)));
        }
    }
}

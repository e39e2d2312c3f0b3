//! Messages as they came from a queue: their bodies one behind the other in one text, so that a parser takes many at
//! once, and what else there is of each beside it.

use std::ops::Range;

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

/// Messages, each with an id of type `I`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Messages<I> {
    /// The bodies in order, a line feed behind each.
    text: Vec<u8>,
    /// Where each body ends in `text`, before its line feed.
    ends: Vec<usize>,
    ids: Vec<I>,
    lacking: Vec<(usize, Lack)>,
    /// Names and values, one behind the other.
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

impl<I> Default for Messages<I> {
    fn default() -> Self {
        Messages {
            text: Vec::new(),
            ends: Vec::new(),
            ids: Vec::new(),
            lacking: Vec::new(),
            header_text: Vec::new(),
            headers: Vec::new(),
        }
    }
}

impl<I> Messages<I> {
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
    pub fn ids(&self) -> &[I] {
        &self.ids
    }

    /// The body of a message by its number; empty if it has none.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn body(&self, number: usize) -> &[u8] {
        &self.text[self.start(number)..self.ends[number]]
    }

    /// The number of the message whose body has the byte `byte` of [`Messages::text`], or the line feed there.
    pub fn at(&self, byte: usize) -> usize {
        self.ends.partition_point(|end| *end < byte)
    }

    /// Those without a body, in order.
    pub fn lacking(&self) -> &[(usize, Lack)] {
        &self.lacking
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
            + self.ids.capacity() * size_of::<I>()
            + self.header_text.capacity()
            + self.headers.capacity() * size_of::<Header>()
    }

    /// Leaves none, and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.ids.clear();
        self.lacking.clear();
        self.header_text.clear();
        self.headers.clear();
    }

    /// A message that follows. It is there once it is ended.
    pub(crate) fn begin(&mut self, id: I) -> Message<'_, I> {
        let before = (self.text.len(), self.header_text.len(), self.headers.len());
        Message { messages: self, id: Some(id), before, has_body: false }
    }

    fn start(&self, number: usize) -> usize {
        number.checked_sub(1).map_or(0, |before| self.ends[before] + 1)
    }
}

/// A message on its way: if it is dropped before its end, nothing of it stays.
pub(crate) struct Message<'m, I> {
    messages: &'m mut Messages<I>,
    id: Option<I>,
    /// The lengths of the text, the headers' text and the headers before it.
    before: (usize, usize, usize),
    has_body: bool,
}

impl<I> Message<'_, I> {
    /// Its body. If there are several, the last counts.
    pub(crate) fn body(&mut self, body: &[u8]) {
        self.messages.text.truncate(self.before.0);
        self.messages.text.extend_from_slice(body);
        self.has_body = true;
    }

    /// Something that it has beside its body.
    pub(crate) fn header(&mut self, name: &[u8], value: &[u8]) {
        let messages = &mut *self.messages;
        let start = messages.header_text.len();
        messages.header_text.extend_from_slice(name);
        let middle = messages.header_text.len();
        messages.header_text.extend_from_slice(value);
        let (name, value) = (start..middle, middle..messages.header_text.len());
        messages.headers.push(Header { message: messages.ids.len(), name, value });
    }

    /// It is complete.
    pub(crate) fn end(self) {
        let lack = (!self.has_body).then_some(Lack::NoField);
        self.close(lack);
    }

    /// It was deleted.
    pub(crate) fn gone(self) {
        self.close(Some(Lack::Gone));
    }

    fn close(mut self, lack: Option<Lack>) {
        let Some(id) = self.id.take() else { return };
        let messages = &mut *self.messages;
        messages.lacking.extend(lack.map(|lack| (messages.ids.len(), lack)));
        messages.ids.push(id);
        messages.ends.push(messages.text.len());
        messages.text.push(b'\n');
    }
}

impl<I> Drop for Message<'_, I> {
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

    #[test]
    fn bodies_follow_each_other_and_are_found_by_their_bytes() {
        let mut messages = Messages::default();
        for (id, body) in [(1, "ab"), (2, ""), (3, "c\nd")] {
            let mut message = messages.begin(id);
            message.header(b"kind", body.as_bytes());
            message.body(body.as_bytes());
            message.end();
        }
        assert_eq!((messages.text(), messages.ids()), (b"ab\n\nc\nd\n".as_slice(), [1, 2, 3].as_slice()));
        assert_eq!([0, 1, 2].map(|number| messages.body(number)), [b"ab".as_slice(), b"", b"c\nd"]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| messages.at(byte)), [0, 0, 0, 1, 2, 2, 2, 2]);
        let headers: Vec<_> = messages.headers(2).collect();
        assert_eq!(headers, [(b"kind".as_slice(), b"c\nd".as_slice())]);
    }

    #[test]
    fn of_a_message_that_is_not_ended_nothing_stays() {
        let mut messages = Messages::default();
        messages.begin(1).gone();
        let before = messages.clone();
        let mut cut = messages.begin(2);
        cut.body(b"text");
        cut.header(b"name", b"value");
        drop(cut);
        assert_eq!(messages, before);
        messages.begin(3).end();
        assert_eq!(messages.lacking(), [(0, Lack::Gone), (1, Lack::NoField)]);
        assert_eq!((messages.body(1), messages.headers(0).count()), (b"".as_slice(), 0));
    }
}

//! What was read of a pipe and is not used yet.

use std::ops::{Deref, Range};

use bytes::Bytes;
use millstream_core::buffers;

/// How much is read at once if there is as much, in bytes.
const AT_ONCE: usize = 1 << 20;

/// The least room for what is read, in bytes.
const LEAST: usize = 64 << 10;

/// Bytes that are taken from the front without a copy. Their memory is used again when all that was taken is dropped: a
/// fresh megabyte costs 256 page faults, which take longer than reading it.
#[derive(Debug, Default)]
pub struct Unread {
    /// What is left of bytes that were taken in part. It is used up before more is read.
    shared: Bytes,
    own: Vec<u8>,
}

impl Deref for Unread {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.shared.is_empty() { &self.own } else { &self.shared }
    }
}

impl From<Bytes> for Unread {
    fn from(shared: Bytes) -> Self {
        Unread { shared, own: Vec::new() }
    }
}

impl Unread {
    /// Where bytes that are read go: behind the others, with room for some.
    pub fn space(&mut self) -> &mut Vec<u8> {
        if !self.shared.is_empty() || self.own.capacity() - self.own.len() < LEAST {
            let mut larger = buffers::take((2 * self.len()).max(AT_ONCE));
            larger.extend_from_slice(self);
            self.shared = Bytes::new();
            buffers::give_back(std::mem::replace(&mut self.own, larger));
        }
        &mut self.own
    }

    /// Takes the first `length` bytes.
    pub fn split_to(&mut self, length: usize) -> Bytes {
        if !self.own.is_empty() {
            // A few bytes must not hold a large buffer.
            if length == self.own.len() && length < self.own.capacity() / 4 {
                let mut few = buffers::take(length);
                few.append(&mut self.own);
                return buffers::share(few);
            }
            self.shared = buffers::share(std::mem::take(&mut self.own));
        }
        self.shared.split_to(length)
    }

    /// Takes some bytes that others precede.
    pub fn remove(&mut self, range: Range<usize>) -> Bytes {
        self.space().drain(range).collect::<Vec<u8>>().into()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        buffers::give_back(std::mem::take(&mut self.own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_what_was_read() {
        let mut unread = Unread::default();
        unread.space().extend_from_slice(b"head,a,b");
        assert_eq!(unread.remove(4..6), ",".to_owned() + "a");
        assert_eq!(unread.split_to(4), "head");
        unread.space().extend_from_slice(b"c");
        assert_eq!(&*unread, b",bc");
        assert_eq!(unread.split_to(3), ",bc");
        assert!(unread.is_empty());
    }

    #[test]
    fn few_bytes_hold_little_and_many_are_not_copied() {
        let mut unread = Unread::default();
        unread.space().extend_from_slice(b"few");
        let place = unread.as_ptr();
        assert_ne!(unread.split_to(3).as_ptr(), place);
        let many = vec![7; AT_ONCE / 2];
        unread.space().extend_from_slice(&many);
        assert_eq!(unread.as_ptr(), place, "it is used again");
        let taken = unread.split_to(many.len());
        assert_eq!((taken.as_ptr(), taken.as_ref()), (place, many.as_slice()));
        unread.space().resize(AT_ONCE, 1);
        unread.space().push(2);
        assert_eq!(unread.len(), AT_ONCE + 1);
    }
}

//! The form of packets: version 3 of SFTP (draft-ietf-secsh-filexfer-02), which all servers know.
//!
//! ```text
//!  length  kind  id  fields…        of the length, kind, id and fields are counted
//!    u32    u8   u32                a text is its length (u32) and its bytes
//! ```
//!
//! Names are bytes. Nothing here does I/O.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The version of the protocol.
pub(super) const VERSION: u32 = 3;

/// The longest packet of a server: we choose the size of reads, and names come by the hundred.
const LIMIT: usize = 1 << 20;

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Question<'a> {
    Open {
        path: &'a [u8],
    },
    Close {
        handle: &'a [u8],
    },
    Read {
        handle: &'a [u8],
        at: u64,
        length: u32,
    },
    /// The facts of a handle.
    Described {
        handle: &'a [u8],
    },
    /// The facts of a path; links are followed.
    Stat {
        path: &'a [u8],
    },
    OpenFolder {
        path: &'a [u8],
    },
    ReadFolder {
        handle: &'a [u8],
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Status { code: u32, text: String },
    Handle(Bytes),
    Data(Bytes),
    Names(Vec<Named>),
    Attributes(Attributes),
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Vec<u8>,
    /// The first letter of its line in `ls -l`: the kind of file.
    pub(super) letter: Option<u8>,
    pub(super) attributes: Attributes,
}

/// The attributes of a file; each one is optional.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    /// The kind of file and its rights, as stat(2) has them.
    pub(super) mode: Option<u32>,
    /// Time of the last change, in seconds since 1970.
    pub(super) modified: Option<u32>,
}

/// A malformed packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// The first packet of a client.
pub(super) fn hello() -> Bytes {
    let mut packet = BytesMut::new();
    packet.put_u32(5);
    packet.put_u8(1);
    packet.put_u32(VERSION);
    packet.freeze()
}

/// The version that a server speaks, from its first packet.
pub(super) fn version(mut packet: Bytes) -> Result<u32, Malformed> {
    if byte(&mut packet)? != 2 {
        return Err(Malformed);
    }
    number(&mut packet)
}

/// Appends a request.
pub(super) fn ask(packets: &mut BytesMut, id: u32, question: Question<'_>) {
    let begin = packets.len();
    packets.put_u32(0);
    let put = |kind: u8, text: &[u8], packets: &mut BytesMut| {
        packets.put_u8(kind);
        packets.put_u32(id);
        packets.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        packets.put_slice(text);
    };
    match question {
        Question::Open { path } => {
            put(3, path, packets);
            // For reading; without attributes.
            packets.put_u32(1);
            packets.put_u32(0);
        }
        Question::Close { handle } => put(4, handle, packets),
        Question::Read { handle, at, length } => {
            put(5, handle, packets);
            packets.put_u64(at);
            packets.put_u32(length);
        }
        Question::Described { handle } => put(8, handle, packets),
        Question::Stat { path } => put(17, path, packets),
        Question::OpenFolder { path } => put(11, path, packets),
        Question::ReadFolder { handle } => put(12, handle, packets),
    }
    let length = u32::try_from(packets.len() - begin - 4).unwrap_or(u32::MAX);
    packets[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
}

/// Parses a packet. Returns the id of the request, and the answer.
pub(super) fn answer(mut packet: Bytes) -> Result<(u32, Answer), Malformed> {
    let kind = byte(&mut packet)?;
    let id = number(&mut packet)?;
    let answer = match kind {
        101 => {
            let code = number(&mut packet)?;
            // Old servers omit the text.
            let system_text = text(&mut packet).unwrap_or_default();
            Answer::Status { code, text: String::from_utf8_lossy(&system_text).trim().to_owned() }
        }
        102 => Answer::Handle(text(&mut packet)?),
        103 => Answer::Data(text(&mut packet)?),
        104 => {
            let count = number(&mut packet)?;
            let mut names = Vec::new();
            for _ in 0..count {
                let name = text(&mut packet)?.to_vec();
                let letter = text(&mut packet)?.first().copied();
                names.push(Named { name, letter, attributes: attributes(&mut packet)? });
            }
            Answer::Names(names)
        }
        105 => Answer::Attributes(attributes(&mut packet)?),
        _ => return Err(Malformed),
    };
    Ok((id, answer))
}

fn attributes(packet: &mut Bytes) -> Result<Attributes, Malformed> {
    let flags = number(packet)?;
    let mut attributes = Attributes::default();
    if flags & 1 != 0 {
        attributes.size = Some(packet.try_get_u64().map_err(|_| Malformed)?);
    }
    if flags & 2 != 0 {
        // The user and the group.
        packet.try_get_u64().map_err(|_| Malformed)?;
    }
    if flags & 4 != 0 {
        attributes.mode = Some(number(packet)?);
    }
    if flags & 8 != 0 {
        number(packet)?;
        attributes.modified = Some(number(packet)?);
    }
    if flags & 0x8000_0000 != 0 {
        for _ in 0..number(packet)? {
            text(packet)?;
            text(packet)?;
        }
    }
    Ok(attributes)
}

fn byte(packet: &mut Bytes) -> Result<u8, Malformed> {
    packet.try_get_u8().map_err(|_| Malformed)
}

fn number(packet: &mut Bytes) -> Result<u32, Malformed> {
    packet.try_get_u32().map_err(|_| Malformed)
}

fn text(packet: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = number(packet)? as usize;
    if length > packet.len() {
        return Err(Malformed);
    }
    Ok(packet.split_to(length))
}

/// Cuts received bytes into packets, without copies if a packet is in one piece.
#[derive(Debug, Default)]
pub(super) struct Packets {
    pieces: VecDeque<Bytes>,
    length: usize,
}

impl Packets {
    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.length += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    /// The next packet without its length, if it has arrived whole.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        if self.length < 4 {
            return Ok(None);
        }
        let mut header = self.pieces.iter().flat_map(|piece| piece.iter().copied());
        let length = (0..4).fold(0, |length, _| length << 8 | usize::from(header.next().unwrap_or(0)));
        if !(1..=LIMIT).contains(&length) {
            return Err(Malformed);
        }
        if self.length < 4 + length {
            return Ok(None);
        }
        self.take(4);
        Ok(Some(self.take(length)))
    }

    /// The first received bytes, for a message.
    pub(super) fn beginning(&self) -> Option<&Bytes> {
        self.pieces.front()
    }

    /// Takes the next `count` bytes, which have arrived.
    fn take(&mut self, count: usize) -> Bytes {
        self.length -= count;
        if let Some(first) = self.pieces.front_mut()
            && first.len() > count
        {
            return first.split_to(count);
        }
        let mut whole = BytesMut::new();
        let mut left = count;
        while let Some(mut piece) = self.pieces.pop_front() {
            if left == count && piece.len() == count {
                return piece;
            }
            if whole.capacity() == 0 {
                whole.reserve(count);
            }
            if piece.len() > left {
                whole.extend_from_slice(&piece.split_to(left));
                self.pieces.push_front(piece);
                break;
            }
            left -= piece.len();
            whole.extend_from_slice(&piece);
            if left == 0 {
                break;
            }
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).expect("short").to_be_bytes(), body].concat()
    }

    #[test]
    fn questions_have_their_form() {
        let mut packets = BytesMut::new();
        ask(&mut packets, 7, Question::Read { handle: b"h", at: 1 << 32, length: 9 });
        ask(&mut packets, 8, Question::Open { path: b"/a" });
        let read = [5, 0, 0, 0, 7, 0, 0, 0, 1, b'h', 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
        let open = [3, 0, 0, 0, 8, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(packets, [packet(&read), packet(&open)].concat());
        assert_eq!(version(Bytes::from_static(&[2, 0, 0, 0, 3, 9, 9])), Ok(3));
        assert_eq!(version(Bytes::from_static(&[101, 0, 0, 0, 3])), Err(Malformed));
    }

    #[test]
    fn answers_are_read() {
        let names = [
            &[104, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, b'x', 0, 0, 0, 1, b'-'][..],
            // Everything: size, owner, mode, times, one extension.
            &[0x80, 0, 0, 0x0f, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0x81, 0xa4],
            &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, b'k', 0, 0, 0, 1, b'v'],
        ]
        .concat();
        let attributes = Attributes { size: Some(256), mode: Some(0o100_644), modified: Some(2) };
        let expected = Named { name: vec![0xff, b'x'], letter: Some(b'-'), attributes };
        assert_eq!(answer(names.clone().into()), Ok((5, Answer::Names(vec![expected]))));
        for length in 0..names.len() {
            assert_eq!(answer(names[..length].to_vec().into()), Err(Malformed), "{length}");
        }
        let status = |text: &str| Ok((1, Answer::Status { code: 2, text: text.into() }));
        assert_eq!(answer(vec![101, 0, 0, 0, 1, 0, 0, 0, 2].into()), status(""));
        assert_eq!(answer(vec![101, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, b'n', b'o', 0, 0, 0, 0].into()), status("no"));
        assert_eq!(
            answer(vec![105, 0, 0, 0, 1, 0, 0, 0, 0].into()),
            Ok((1, Answer::Attributes(Attributes::default())))
        );
        assert_eq!(answer(vec![200, 0, 0, 0, 1].into()), Err(Malformed));
    }

    #[test]
    fn lengths_have_a_limit() {
        for bad in [[0, 0, 0, 0], [0, 0x10, 0, 1], *b"Welc"] {
            let mut packets = Packets::default();
            packets.push(Bytes::copy_from_slice(&bad));
            assert_eq!(packets.next(), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn packets_come_out_however_they_arrive(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..10),
            cuts in prop::collection::vec(1_usize..300, 0..40),
        ) {
            let mut bytes: Bytes = bodies.iter().flat_map(|body| packet(body)).collect::<Vec<_>>().into();
            let mut packets = Packets::default();
            let mut found = Vec::new();
            for cut in cuts.into_iter().chain([usize::MAX]) {
                packets.push(bytes.split_to(cut.min(bytes.len())));
                while let Some(packet) = packets.next().expect("well formed") {
                    found.push(packet.to_vec());
                }
            }
            prop_assert_eq!(found, bodies);
            prop_assert_eq!(packets.length, 0);
        }

        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 100_u8..107) {
            let _ = answer(bytes.clone().into());
            let _ = version(bytes.clone().into());
            let _ = answer([&[kind], &bytes[..]].concat().into());
            let mut packets = Packets::default();
            packets.push(bytes.into());
            while let Ok(Some(_)) = packets.next() {}
        }
    }
}

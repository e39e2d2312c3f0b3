//! The 512 bytes before each member, in every form that is in use: old (v7), ustar, GNU and star.

use std::ops::Range;

use millstream_core::Result;

use crate::frame::corrupt;

/// Everything in a tar begins at a multiple of this.
pub(crate) const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..262;
/// The byte after the magic: a NUL in headers of POSIX, a space in GNU's own.
const FLAVOUR: usize = 262;
const PREFIX: Range<usize> = 345..500;
/// In star's headers, times follow a shorter prefix, and a magic is at the end.
const STAR_PREFIX: Range<usize> = 345..476;
const STAR_MARK: Range<usize> = 508..512;
/// The flag that blocks with more of the map follow: in GNU's header of a sparse file, and in such a block.
const MAP_CONTINUES: usize = 482;
pub(super) const MAP_CONTINUES_AGAIN: usize = 504;

/// A size beyond what any file can have is damage.
const LARGEST: u64 = i64::MAX as u64;

/// Whether a text is a tar, by its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It is no tar, whatever follows.
    No,
    /// It may be a tar; more bytes are needed.
    Maybe,
    /// It is a tar.
    Yes,
}

/// Whether a text that begins with `head` is a tar: its first block is a header with the right checksum and with the
/// magic of ustar. If the unit's name promises a tar, the magic is not required (v7 had none), and an archive without
/// members, which is nothing but zeros, counts.
///
/// It is judged byte by byte, so that other texts are recognised as early as possible.
pub(crate) fn judge(head: &[u8], promised: bool) -> Judged {
    let head = &head[..head.len().min(BLOCK)];
    let here = |field: Range<usize>| head.get(field.start..field.end.min(head.len())).unwrap_or_default();
    let marked = promised || b"ustar".starts_with(here(MAGIC));
    if !marked || !may_be_number(here(SIZE)) || !may_be_number(here(CHECKSUM)) {
        return Judged::No;
    }
    if head.len() < BLOCK {
        return Judged::Maybe;
    }
    if checksum_is_right(head) || (promised && is_zero(head)) { Judged::Yes } else { Judged::No }
}

/// Whether `head`, all there is of a text that [`judge`] is not sure of, has the magic of a tar.
pub(crate) fn has_magic(head: &[u8]) -> bool {
    head.get(MAGIC) == Some(b"ustar".as_slice())
}

fn may_be_number(field: &[u8]) -> bool {
    field.first().is_some_and(|first| first & 0x80 != 0)
        || field.iter().all(|byte| matches!(byte, b'0'..=b'7' | b' ' | 0))
}

/// Whether a block is one of those at the end.
pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

/// Whether `block` is a header: the sum of its bytes is right, counting the bytes of the sum itself as spaces. Some old
/// tars sum signed bytes.
pub(super) fn checksum_is_right(block: &[u8]) -> bool {
    let Some(said) = block.get(CHECKSUM).and_then(number) else {
        return false;
    };
    let (unsigned, signed) = checksums(block);
    said == unsigned || i64::try_from(said) == Ok(signed)
}

/// The sum of the bytes, and as signed ones.
fn checksums(block: &[u8]) -> (u64, i64) {
    let byte = |(at, &byte): (usize, &u8)| if CHECKSUM.contains(&at) { b' ' } else { byte };
    let bytes = || block.iter().enumerate().map(byte);
    (bytes().map(u64::from).sum(), bytes().map(|byte| i64::from(byte.cast_signed())).sum())
}

/// A number: octal digits, or (GNU, for large numbers) a binary number after a byte of 128.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // 255 begins a negative number.
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |value, &byte| value.checked_mul(256)?.checked_add(byte.into()));
    }
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| matches!(byte, b' ' | 0)).unwrap_or(digits.len());
    let digit = |value: u64, &byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 8)?;
        value.checked_mul(8)?.checked_add(digit.into())
    };
    digits[..end].iter().try_fold(0, digit)
}

/// The text of a field, up to its first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// The fields of a header that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The kind of the member, as the header's byte.
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    /// The target of a link.
    pub(super) link: Vec<u8>,
    pub(super) size: u64,
    /// Whether blocks with the map of a sparse file follow.
    pub(super) map_continues: bool,
}

impl Header {
    /// The header in `block`, at byte `at`.
    pub(super) fn parse(block: &[u8; BLOCK], at: u64) -> Result<Self> {
        if !checksum_is_right(block) {
            return Err(no_header(block, at));
        }
        let size = number(&block[SIZE]).filter(|&size| size <= LARGEST).ok_or_else(|| {
            corrupt("the size in the header of a tar member is not possible", at).text(text(&block[SIZE]))
        })?;
        let kind = block[KIND];
        let map_continues = kind == b'S' && block[MAP_CONTINUES] != 0;
        Ok(Header { kind, name: full_name(block), link: text(&block[LINK]).to_vec(), size, map_continues })
    }
}

fn full_name(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = text(&block[NAME]);
    let is_posix = has_magic(block) && block[FLAVOUR] == 0;
    let prefix = match (is_posix, &block[STAR_MARK] == b"tar\0") {
        (false, _) => &[],
        (true, true) => text(&block[STAR_PREFIX]),
        (true, false) => text(&block[PREFIX]),
    };
    if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
}

fn no_header(block: &[u8; BLOCK], at: u64) -> millstream_core::Error {
    match number(&block[CHECKSUM]) {
        Some(said) if has_magic(block) => {
            let is = checksums(block).0;
            corrupt(format!("wrong checksum of a tar header: its bytes give {is:o}, the header says {said:o}"), at)
        }
        _ => corrupt("neither a member nor the end of the tar begins here", at).text(&block[..16]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, value) in [
            (b"0000644\0".as_slice(), Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777", Some(0o7777_7777)),
            (b"\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"12 garbage", Some(0o12)),
            (b"8", None),
            (b"-1", None),
            (b"1x", None),
            (b"", None),
            (b"\x80\0\0\x01\0", Some(256)),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }

    #[test]
    fn more_bytes_never_overturn_a_no() {
        use proptest::prelude::*;
        let byte = prop_oneof![4 => Just(0u8), 3 => b'0'..=b'8', 1 => any::<u8>()];
        proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() },
            |(head in prop::collection::vec(byte, 512), promised in any::<bool>(), short in 0..512usize)| {
            if judge(&head[..short], promised) == Judged::No {
                prop_assert_eq!(judge(&head, promised), Judged::No);
            }
        });
    }
}

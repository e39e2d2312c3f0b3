//! The records of a zip archive (APPNOTE.TXT 6.3), read from their bytes. The walk checks them against each other.

/// Signatures, as they stand in the archive.
pub(super) const LOCAL: [u8; 4] = *b"PK\x03\x04";
pub(super) const DESCRIPTOR: [u8; 4] = *b"PK\x07\x08";
pub(super) const ENTRY: [u8; 4] = *b"PK\x01\x02";
pub(super) const SIGNATURE: [u8; 4] = *b"PK\x05\x05";
pub(super) const WIDE_END: [u8; 4] = *b"PK\x06\x06";
pub(super) const WIDE_LOCATOR: [u8; 4] = *b"PK\x06\x07";
pub(super) const ENCRYPTION: [u8; 4] = *b"PK\x06\x08";
pub(super) const END: [u8; 4] = *b"PK\x05\x06";

/// Sizes of the fixed parts, signature included.
pub(super) const LOCAL_SIZE: usize = 30;
pub(super) const ENTRY_SIZE: usize = 46;
pub(super) const END_SIZE: usize = 22;
pub(super) const WIDE_END_SIZE: usize = 56;
pub(super) const WIDE_LOCATOR_SIZE: usize = 20;

/// A size or offset that is in the zip64 field instead.
const WIDE: u64 = 0xffff_ffff;

/// Flags of a member.
pub(super) const FLAG_ENCRYPTED: u16 = 1;
pub(super) const FLAG_DESCRIPTOR: u16 = 1 << 3;
pub(super) const FLAG_PATCH: u16 = 1 << 5;
pub(super) const FLAG_STRONG: u16 = 1 << 6;
pub(super) const FLAG_UTF8: u16 = 1 << 11;
pub(super) const FLAG_MASKED: u16 = 1 << 13;

/// Extra fields.
const EXTRA_WIDE: u16 = 0x0001;
pub(super) const EXTRA_UNICODE_NAME: u16 = 0x7075;

/// The number of two bytes at `at`; bytes that are not there count as zero.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number(bytes, at, 2) as u16
}

/// The number of four bytes at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number(bytes, at, 4) as u32
}

/// The number of eight bytes at `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at, 8)
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let field = bytes.iter().skip(at).take(size);
    field.enumerate().fold(0, |value, (index, byte)| value | u64::from(*byte) << (8 * index))
}

/// The extra field of kind `kind`. Fields that do not fit end the search: many writers pad carelessly.
pub(super) fn extra_field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    while extra.len() >= 4 {
        let size = usize::from(u16_at(extra, 2));
        let field = extra.get(4..4 + size)?;
        if u16_at(extra, 0) == kind {
            return Some(field);
        }
        extra = &extra[4 + size..];
    }
    None
}

/// A local header or a directory entry of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) method: u16,
    pub(super) crc: u32,
    /// Bytes of the member as stored.
    pub(super) compressed: u64,
    /// Bytes of its text.
    pub(super) size: u64,
    /// The offset of its local header; only a directory entry has it.
    pub(super) offset: u64,
    /// As stored.
    pub(super) name: Vec<u8>,
    pub(super) extra: Vec<u8>,
}

impl Header {
    /// Bytes of the local header at the beginning of `fixed` ([`LOCAL_SIZE`] bytes), with name and extra fields.
    pub(super) fn local_size(fixed: &[u8]) -> usize {
        LOCAL_SIZE + usize::from(u16_at(fixed, 26)) + usize::from(u16_at(fixed, 28))
    }

    /// Bytes of the directory entry at the beginning of `fixed` ([`ENTRY_SIZE`] bytes), with all its parts.
    pub(super) fn entry_size(fixed: &[u8]) -> usize {
        let lengths = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
        ENTRY_SIZE + lengths.iter().sum::<usize>()
    }

    /// Reads a whole local header.
    pub(super) fn local(bytes: &[u8]) -> Self {
        let name_end = LOCAL_SIZE + usize::from(u16_at(bytes, 26));
        let mut header = Header {
            flags: u16_at(bytes, 6),
            method: u16_at(bytes, 8),
            crc: u32_at(bytes, 14),
            compressed: u32_at(bytes, 18).into(),
            size: u32_at(bytes, 22).into(),
            offset: 0,
            name: bytes.get(LOCAL_SIZE..name_end).unwrap_or_default().to_vec(),
            extra: bytes.get(name_end..).unwrap_or_default().to_vec(),
        };
        header.widen();
        header
    }

    /// Reads a whole directory entry.
    pub(super) fn entry(bytes: &[u8]) -> Self {
        let name_end = ENTRY_SIZE + usize::from(u16_at(bytes, 28));
        let extra_end = name_end + usize::from(u16_at(bytes, 30));
        let mut header = Header {
            flags: u16_at(bytes, 8),
            method: u16_at(bytes, 10),
            crc: u32_at(bytes, 16),
            compressed: u32_at(bytes, 20).into(),
            size: u32_at(bytes, 24).into(),
            offset: u32_at(bytes, 42).into(),
            name: bytes.get(ENTRY_SIZE..name_end).unwrap_or_default().to_vec(),
            extra: bytes.get(name_end..extra_end).unwrap_or_default().to_vec(),
        };
        header.widen();
        header
    }

    /// Reads values that do not fit into 32 bits from the zip64 field: it contains only those, in this order.
    fn widen(&mut self) {
        let Some(mut field) = extra_field(&self.extra, EXTRA_WIDE) else {
            return;
        };
        for value in [&mut self.size, &mut self.compressed, &mut self.offset] {
            if *value == WIDE && field.len() >= 8 {
                *value = u64_at(field, 0);
                field = &field[8..];
            }
        }
    }

    /// Whether a descriptor with checksum and sizes follows the data.
    pub(super) fn has_descriptor(&self) -> bool {
        self.flags & FLAG_DESCRIPTOR != 0
    }

    /// The size of the data in bytes, if the header gives it.
    pub(super) fn known_size(&self) -> Option<u64> {
        let unknown = self.has_descriptor() && (self.compressed == 0 || self.compressed == WIDE);
        (!unknown).then_some(self.compressed)
    }

    /// Whether the member is a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.name.ends_with(b"/") || (self.name.ends_with(b"\\") && self.compressed == 0)
    }
}

/// Facts about a member's data, to find its descriptor. Skipped data has no checksum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) crc: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) compressed: u64,
}

/// A descriptor that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Its length in bytes.
    pub(super) length: usize,
    pub(super) crc: u32,
    pub(super) size: u64,
}

/// The four forms: with or without a signature, sizes of four or eight bytes. Only the values distinguish them.
const FORMS: [(bool, usize); 4] = [(true, 4), (true, 8), (false, 4), (false, 8)];

/// The longest descriptor.
pub(super) const DESCRIPTOR_LIMIT: usize = 24;

impl Descriptor {
    fn length_of(signed: bool, width: usize) -> usize {
        usize::from(signed) * 4 + 4 + 2 * width
    }

    /// Reads `bytes` as a descriptor of the given form, if it agrees with the facts.
    fn read(bytes: &[u8], signed: bool, width: usize, facts: Facts) -> Option<Self> {
        let length = Self::length_of(signed, width);
        let bytes = bytes.get(..length)?;
        let fields = if signed { bytes.strip_prefix(&DESCRIPTOR)? } else { bytes };
        let crc = u32_at(fields, 0);
        let (compressed, size) = (number(fields, 4, width), number(fields, 4 + width, width));
        let agrees = compressed == facts.compressed
            && facts.size.is_none_or(|known| known == size)
            && facts.crc.is_none_or(|known| known == crc);
        agrees.then_some(Descriptor { length, crc, size })
    }

    /// The descriptor at the beginning of `bytes` that agrees with the facts and is followed by a record.
    pub(super) fn at_beginning(bytes: &[u8], facts: Facts) -> Option<Self> {
        FORMS.iter().find_map(|&(signed, width)| {
            Self::read(bytes, signed, width, facts).filter(|found| {
                let following = &bytes[found.length..];
                let common = following.len().min(2);
                following[..common] == b"PK"[..common]
            })
        })
    }

    /// The descriptor that ends where `bytes` do and describes the data before it, which begins with the unit's byte
    /// `before` bytes ahead of `bytes`. `crc` gives the checksum of the data up to an index into `bytes`.
    pub(super) fn at_end(bytes: &[u8], before: u64, mut crc: impl FnMut(usize) -> u32) -> Option<Self> {
        FORMS.iter().find_map(|&(signed, width)| {
            let begin = bytes.len().checked_sub(Self::length_of(signed, width))?;
            let size = before + begin as u64;
            let facts = Facts { crc: None, size: Some(size), compressed: size };
            let found = Self::read(&bytes[begin..], signed, width, facts)?;
            (found.crc == crc(begin)).then_some(found)
        })
    }
}

//! Thrift's compact protocol, as far as parquet's structs need it: walking through them, and removing fields.
//!
//! The protocol is described in thrift-compact-protocol.md of Thrift's specification. The callers interpret the fields:
//! `pages.rs` (page headers) and `directory.rs` (the directory).

/// The deepest nesting of structs; Parquet has less.
const DEEPEST: usize = 16;

/// The types of fields that are distinguished.
pub const INT32: u8 = 5;
/// Lists.
pub const LIST: u8 = 9;
/// Text and bytes.
pub const BINARY: u8 = 8;
/// Structs and unions.
pub const STRUCT: u8 = 12;

/// The bytes that are left to read.
#[derive(Debug, Clone, Copy)]
pub struct Thrift<'a>(pub &'a [u8]);

impl<'a> Thrift<'a> {
    /// Calls `each` with the number and the type of every field of a struct; it reads the field. `None` if the bytes
    /// are no struct.
    pub fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut field = 0;
        while let Some(kind) = self.field(&mut field)? {
            each(self, field, kind)?;
        }
        Some(())
    }

    /// The type of the next field of a struct, whose number `field` becomes; `Some(None)` at its end.
    pub fn field(&mut self, field: &mut i64) -> Option<Option<u8>> {
        let head = self.byte()?;
        if head & 0x0f == 0 {
            return Some(None);
        }
        *field = match head >> 4 {
            0 => self.integer()?,
            more => field.checked_add(i64::from(more))?,
        };
        Some(Some(head & 0x0f))
    }

    /// The number and the type of a list's items.
    pub fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        Some((count, head & 0x0f))
    }

    /// Skips a field of type `kind`.
    pub fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_at(kind, 0)
    }

    fn skip_at(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth == DEEPEST {
            return None;
        }
        match kind {
            1 | 2 => Some(()),
            3 => self.take(1).map(drop),
            4..=6 => self.integer().map(drop),
            7 => self.take(8).map(drop),
            BINARY => self.binary().map(drop),
            LIST | 10 => {
                let (count, kind) = self.list()?;
                // In lists, a boolean takes a byte.
                let kind = if matches!(kind, 1 | 2) { 3 } else { kind };
                (0..count).try_for_each(|_| self.skip_at(kind, depth + 1))
            }
            STRUCT => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip_at(kind, depth + 1)?;
                }
                Some(())
            }
            // Parquet has no maps.
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Text or bytes.
    pub fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    /// A number, seven bits a byte from the lowest.
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A number whose lowest bit is the sign.
    pub fn integer(&mut self) -> Option<i64> {
        self.number().map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

//! The headers of a column chunk's pages, looked at before memory is taken for what they claim: the parquet crate believes
//! how many values a dictionary has and how long a page becomes. What is wrong in any other way is left to it to tell.
//!
//! A header is a struct of Thrift's compact protocol (thrift-compact-protocol.md in Thrift's specification; its fields
//! are those of `PageHeader` in parquet.thrift).

/// No codec makes more of a byte: of zstd and brotli, which have no bound, more than this is no data that anyone has.
const RATIO: i64 = 1 << 16;

/// Structs in structs; more is no header.
const DEEPEST: usize = 16;

/// What is wrong with the pages in `chunk`, if they claim what cannot be.
pub fn check(mut chunk: &[u8]) -> Result<(), String> {
    while !chunk.is_empty() {
        let mut thrift = Thrift(chunk);
        let Some(header) = thrift.page_header() else { return Ok(()) };
        let PageHeader { stored, text, dictionary } = header;
        if text > stored.saturating_add(1).saturating_mul(RATIO) {
            return Err(format!("a page of {stored} bytes would be {text} bytes long"));
        }
        if dictionary > text.max(1) {
            return Err(format!("a dictionary of {text} bytes would have {dictionary} values"));
        }
        let rest = usize::try_from(stored).ok().and_then(|stored| thrift.0.get(stored..));
        let Some(rest) = rest else { return Ok(()) };
        chunk = rest;
    }
    Ok(())
}

/// What a page says of itself.
struct PageHeader {
    /// Bytes behind the header.
    stored: i64,
    /// Bytes of what was compressed.
    text: i64,
    /// Values, if it is a dictionary.
    dictionary: i64,
}

/// What is still to be read.
struct Thrift<'a>(&'a [u8]);

/// The types of fields that have to be told apart.
const INT32: u8 = 5;
const STRUCT: u8 = 12;

impl Thrift<'_> {
    fn page_header(&mut self) -> Option<PageHeader> {
        let mut header = PageHeader { stored: 0, text: 0, dictionary: 0 };
        let mut field = 0;
        while let Some(kind) = self.field(&mut field)? {
            match (field, kind) {
                (2, INT32) => header.text = self.integer()?,
                (3, INT32) => header.stored = self.integer()?,
                (7, STRUCT) => {
                    let mut field = 0;
                    while let Some(kind) = self.field(&mut field)? {
                        match (field, kind) {
                            (1, INT32) => header.dictionary = self.integer()?,
                            _ => self.skip(kind, 1)?,
                        }
                    }
                }
                _ => self.skip(kind, 0)?,
            }
        }
        Some(header)
    }

    /// The type of the next field of a struct, whose number `field` becomes; `Some(None)` at its end.
    fn field(&mut self, field: &mut i64) -> Option<Option<u8>> {
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

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth == DEEPEST {
            return None;
        }
        match kind {
            1 | 2 => Some(()),
            3 => self.bytes(1),
            4..=6 => self.integer().map(drop),
            7 => self.bytes(8),
            8 => {
                let length = usize::try_from(self.number()?).ok()?;
                self.bytes(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                // In lists a truth value has a byte.
                let kind = if matches!(head & 0x0f, 1 | 2) { 3 } else { head & 0x0f };
                (0..count).try_for_each(|_| self.skip(kind, depth + 1))
            }
            STRUCT => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            // A page header has no maps.
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    /// A number, seven bits a byte from the lowest.
    fn number(&mut self) -> Option<u64> {
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
    fn integer(&mut self) -> Option<i64> {
        self.number().map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    /// The header of a dictionary: its type, its text's bytes, its own, its number of values (each below 64, or as given).
    fn dictionary(text: &[u8], stored: u8, values: &[u8]) -> Vec<u8> {
        [&[0x15, 4, 0x15], text, &[0x15, 2 * stored, 0x4c, 0x15], values, &[0x15, 0, 0, 0]].concat()
    }

    #[test]
    fn what_cannot_be_is_told_and_anything_else_is_not() {
        let page = [dictionary(&[16], 8, &[4]), vec![7; 8]].concat();
        assert_eq!(check(&page), Ok(()));
        assert_eq!(check(&[page.clone(), page.clone()].concat()), Ok(()));
        let huge = [0xfe, 0xff, 0xff, 0xff, 2];
        let values = [dictionary(&[16], 8, &huge), vec![7; 8]].concat();
        let told = Err("a dictionary of 8 bytes would have 402653183 values".to_owned());
        assert_eq!((check(&values), check(&[page.clone(), values].concat())), (told.clone(), told));
        let long = [dictionary(&huge, 8, &[4]), vec![7; 8]].concat();
        assert_eq!(check(&long), Err("a page of 8 bytes would be 402653183 bytes long".into()));
        // Cut anywhere, or no header at all: that is for others to tell.
        for end in 0..page.len() {
            assert_eq!(check(&page[..end]), Ok(()));
        }
        for text in [&[0xff; 100][..], &[0x1c; 100], &[0x19; 100], &[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(check(text), Ok(()));
        }
    }
}

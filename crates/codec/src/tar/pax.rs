//! The records of pax (POSIX.1-2001): `27 path=a name of any sort\n`, before a member or for all that follow.

/// The value of a record: absent (`None`), reset (`Some(None)`), or given.
type Setting<T> = Option<Option<T>>;

/// The records that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    path: Setting<Vec<u8>>,
    link: Setting<Vec<u8>>,
    size: Setting<u64>,
    /// GNU's: the data lacks the holes of the file.
    sparse: Setting<()>,
    sparse_name: Setting<Vec<u8>>,
}

impl Records {
    /// Adds the records in `data`; later ones win.
    pub(super) fn add(&mut self, mut data: &[u8]) -> Result<(), &'static str> {
        while !data.is_empty() {
            let (key, value, rest) = record(data).ok_or("a record of a pax header is malformed")?;
            let text = || Some((!value.is_empty()).then(|| value.to_vec()));
            match key {
                b"path" => self.path = text(),
                b"linkpath" => self.link = text(),
                b"size" if value.is_empty() => self.size = Some(None),
                b"size" => self.size = Some(Some(decimal(value).ok_or("the size in a pax header is not possible")?)),
                b"GNU.sparse.name" => self.sparse_name = text(),
                b"GNU.sparse.major" | b"GNU.sparse.map" | b"GNU.sparse.numblocks" | b"GNU.sparse.size" => {
                    self.sparse = Some((!value.is_empty()).then_some(()));
                }
                _ => {}
            }
            data = rest;
        }
        Ok(())
    }

    /// These records, with those of `globals` where they say nothing.
    pub(super) fn over(self, globals: &Records) -> Records {
        Records {
            path: self.path.or_else(|| globals.path.clone()),
            link: self.link.or_else(|| globals.link.clone()),
            size: self.size.or(globals.size),
            sparse: self.sparse.or(globals.sparse),
            sparse_name: self.sparse_name.or_else(|| globals.sparse_name.clone()),
        }
    }

    /// The member's name. A sparse file has its name in a record of its own: its path is a placeholder.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.sparse_name.as_ref().or(self.path.as_ref())?.as_deref()
    }

    /// What the member links to.
    pub(super) fn link(&self) -> Option<&[u8]> {
        self.link.as_ref()?.as_deref()
    }

    /// Bytes of the member's data in the archive.
    pub(super) fn size(&self) -> Option<u64> {
        self.size.flatten()
    }

    /// Whether the member's data lacks its holes.
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse.flatten().is_some()
    }
}

/// The first record: key, value, and what follows it.
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(20).position(|&byte| byte == b' ')?;
    // The length counts its own digits and the end of the line too.
    let length = usize::try_from(decimal(&data[..space])?).ok()?;
    let (record, rest) = data.split_at_checked(length)?;
    let line = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = line.iter().position(|&byte| byte == b'=')?;
    Some((&line[..equals], &line[equals + 1..], rest))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let value: u64 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    (value <= i64::MAX as u64).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(data: &[u8]) -> Result<Records, &'static str> {
        let mut records = Records::default();
        records.add(data).map(|()| records)
    }

    /// Records of these keys and values, with their lengths.
    fn written(records: &[&str]) -> Vec<u8> {
        let written = |record: &&str| {
            let length = (record.len() + 3..).find(|length| length.to_string().len() + record.len() + 2 == *length);
            format!("{} {record}\n", length.expect("there is one")).into_bytes()
        };
        records.iter().flat_map(written).collect()
    }

    #[test]
    fn records_are_read() {
        assert_eq!(written(&["path=a", "size=7890"]), b"9 path=a\n13 size=7890\n");
        let read = |lines: &[&str]| records(&written(lines)).expect("good records");
        let both = read(&["path=a b", "path=a\nb", "mtime=1.0000000", "size=7", "linkpath=c"]);
        assert_eq!((both.name(), both.size(), both.is_sparse()), (Some(b"a\nb".as_slice()), Some(7), false));
        assert_eq!(both.link(), Some(b"c".as_slice()));
        let globals = read(&["path=g", "size=9"]);
        let over = read(&["size="]).over(&globals);
        assert_eq!((over.name(), over.size()), (Some(b"g".as_slice()), None), "an empty value takes the global away");
        let sparse = read(&["GNU.sparse.major=1", "GNU.sparse.name=x/y", "path=zz"]);
        assert_eq!((sparse.name(), sparse.is_sparse()), (Some(b"x/y".as_slice()), true));
    }

    #[test]
    fn malformed_records_are_found() {
        for data in [
            "x",
            "path=a\n",
            " 9 path=a\n",
            "8 path=a\n",
            "99999999999999999999 path=a\n",
            "999 path=a\n",
            "0 path=a\n",
            "1 path=a\n",
            "2 path=a\n",
            "-1 path=a\n",
            "+10 path=a\n",
            "10 pathxa\n",
            "10 path=ab",
            "9 path=a\n\0",
        ] {
            assert_eq!(records(data.as_bytes()), Err("a record of a pax header is malformed"), "{data}");
        }
        for size in ["size=-1", "size=9223372036854775808", "size=1x"] {
            let read = records(&written(&[size]));
            assert_eq!(read, Err("the size in a pax header is not possible"), "{size}");
        }
    }
}

//! Compresses and decompresses blocks of records.

/// The compression of runs in scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// LZ4 for each run whose first block shrinks enough.
    #[default]
    Auto,
    /// No compression.
    None,
    /// LZ4, in blocks of its own.
    Lz4,
    /// Zstandard at its fastest, in frames of its own.
    Zstd,
}

/// From 1 to 22; less is faster.
const ZSTD_LEVEL: i32 = 1;

/// With [`Compression::Auto`] a run is compressed if its first block shrinks to this share: less is not worth the
/// processor's time.
const WORTH_IT: f64 = 0.75;

impl Compression {
    /// The compression of a run whose first block is `records`.
    pub(crate) fn for_run(self, records: &[u8], room: &mut Vec<u8>) -> Self {
        if self != Compression::Auto {
            return self;
        }
        let packed = Compression::Lz4.pack(records, room).len();
        if packed as f64 <= WORTH_IT * records.len() as f64 { Compression::Lz4 } else { Compression::None }
    }

    /// `records` compressed into `room`, or `records` if that is not smaller.
    pub(crate) fn pack<'a>(self, records: &'a [u8], room: &'a mut Vec<u8>) -> &'a [u8] {
        // Each fails only if the room is too small.
        let length = match self {
            Compression::Auto | Compression::None => None,
            Compression::Lz4 => {
                room.resize(lz4_flex::block::get_maximum_output_size(records.len()), 0);
                lz4_flex::block::compress_into(records, room).ok()
            }
            Compression::Zstd => {
                room.resize(zstd::zstd_safe::compress_bound(records.len()), 0);
                zstd::bulk::compress_to_buffer(records, room, ZSTD_LEVEL).ok()
            }
        };
        length.filter(|length| *length < records.len()).map_or(records, |length| &room[..length])
    }

    /// Decompresses what [`Compression::pack`] has compressed; `None` if it is damaged, or does not fill `room`
    /// exactly.
    pub(crate) fn unpack(self, packed: &[u8], room: &mut [u8]) -> Option<()> {
        let length = match self {
            Compression::Auto | Compression::None => None,
            Compression::Lz4 => lz4_flex::block::decompress_into(packed, room).ok(),
            Compression::Zstd => zstd::bulk::decompress_to_buffer(packed, room).ok(),
        };
        (length == Some(room.len())).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(5000).collect();
        let plain: Vec<u8> = b"a line like any other\n".repeat(500);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            for records in [&random, &plain] {
                let mut room = Vec::new();
                let packed = compression.pack(records, &mut room).to_vec();
                let is_smaller = packed.len() < records.len();
                assert_eq!(is_smaller, compression != Compression::None && records == &plain, "{compression:?}");
                if is_smaller {
                    let mut back = vec![0; records.len()];
                    compression.unpack(&packed, &mut back).expect("it is sound");
                    assert!(&back == records);
                    assert!(compression.unpack(&packed, &mut vec![0; records.len() + 1]).is_none());
                    assert!(compression.unpack(&packed[..packed.len() / 2], &mut back).is_none());
                }
            }
        }
    }

    #[test]
    fn a_run_is_packed_by_itself_where_that_is_worth_it() {
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(5000).collect();
        let half: Vec<u8> = [&random[..], &[0; 5000]].concat();
        let hardly: Vec<u8> = [&random[..], &[0; 500]].concat();
        let chosen = |compression: Compression, records: &[u8]| compression.for_run(records, &mut Vec::new());
        for (records, expected) in
            [(&random, Compression::None), (&half, Compression::Lz4), (&hardly, Compression::None)]
        {
            assert_eq!(chosen(Compression::Auto, records), expected);
        }
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            assert_eq!(chosen(compression, &half), compression);
        }
    }
}

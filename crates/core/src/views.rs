//! Views of texts, of which Arrow's `Utf8View` columns consist: a text of at most [`INLINE`] bytes itself, or where a
//! longer one lies.

use arrow::array::{MAX_INLINE_VIEW_LEN, make_view};

/// Texts of at most so many bytes are in their view, without a place in a buffer.
pub const INLINE: usize = MAX_INLINE_VIEW_LEN as usize;

/// The view of the `length` bytes at `offset` of `buffer`, which has the number `place` among the buffers of the column
/// if they are more than [`INLINE`]. [`make_view`] does the same, but is never inlined, and copies a number of bytes
/// that the processor does not foresee.
///
/// A buffer has less than 4 GiB.
///
/// # Panics
/// If they are not within `buffer`.
#[inline]
pub fn view(buffer: &[u8], offset: usize, length: usize, place: u32) -> u128 {
    let text = &buffer[offset..offset + length];
    if length > INLINE {
        let prefix = u32::from_le_bytes([text[0], text[1], text[2], text[3]]);
        let first = u128::from(narrow(length)) | u128::from(prefix) << 32;
        return first | u128::from(place) << 64 | u128::from(narrow(offset)) << 96;
    }
    // If enough bytes follow, they are read together and masked out.
    match buffer[offset..].first_chunk::<16>() {
        Some(bytes) => {
            let mask = !(u128::MAX << (8 * length));
            length as u128 | (u128::from_le_bytes(*bytes) & mask) << 32
        }
        None => make_view(text, 0, 0),
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation)]
fn narrow(position: usize) -> u32 {
    debug_assert!(u32::try_from(position).is_ok());
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_those_of_arrow() {
        let buffer: Vec<u8> = (0..60).collect();
        for offset in 0..buffer.len() {
            for length in 0..=buffer.len() - offset {
                let text = &buffer[offset..offset + length];
                assert_eq!(view(&buffer, offset, length, 3), make_view(text, 3, offset as u32), "{offset} {length}");
            }
        }
    }
}

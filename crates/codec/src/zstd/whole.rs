//! A whole zstd unit decoded in one call, straight into its text: no window is kept beside it. It returns nothing for
//! faulty data; the decoder then finds the fault.

use std::cell::RefCell;

use bytes::Bytes;
use millstream_core::buffers;
use zstd::zstd_safe::{DCtx, find_frame_compressed_size};

use super::decode::{Header, read_header};
use crate::room;

thread_local! {
    /// Reused, since making one takes longer than decoding a small unit.
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The text of all frames of `data`, if they are right, have their sizes in their headers, and at most `most` bytes.
pub(super) fn text(data: &[u8], most: usize) -> Option<Bytes> {
    let size = text_size(data).filter(|size| *size <= most)?;
    decode(data, size).filter(|text| text.len() == size)
}

/// The text of all frames of `data`, if they are right and have at most `most` bytes.
pub(super) fn decode(data: &[u8], most: usize) -> Option<Bytes> {
    CONTEXT.with_borrow_mut(|context| {
        if context.is_none() {
            *context = DCtx::try_create();
        }
        let context = context.as_mut()?;
        let mut text = buffers::take(most);
        // SAFETY: what is returned is what libzstd has written, from the beginning of the slice.
        let written = unsafe {
            room::append(&mut text, most, |spare| {
                let written = context.decompress(&mut room::Spare::new(spare), data);
                (written.unwrap_or(0), written)
            })
        };
        match written {
            Ok(_) => Some(buffers::share(text)),
            Err(_) => {
                buffers::give_back(text);
                None
            }
        }
    })
}

/// The size of the text of all frames, if all headers have it and no frame must be refused.
fn text_size(mut data: &[u8]) -> Option<usize> {
    let mut size = 0usize;
    while !data.is_empty() {
        let frame = find_frame_compressed_size(data).ok()?;
        match read_header(data, 0).ok()? {
            Header::Short => return None,
            Header::Skippable { .. } => {}
            Header::Data { text, .. } => size = size.checked_add(usize::try_from(text?).ok()?)?,
        }
        data = data.get(frame..).filter(|_| frame > 0)?;
    }
    Some(size)
}

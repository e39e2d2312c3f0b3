//! Symbols of two bytes, whose memory can be taken again when they are dropped.

use std::ops::{Deref, DerefMut};

use millstream_core::buffers::Pool;

static SYMBOLS: Pool<u16> = Pool::new();

/// Symbols.
pub(crate) struct KeptSymbols(Vec<u16>);

impl KeptSymbols {
    /// None yet, with room for `length`.
    pub(crate) fn with_capacity(length: usize) -> Self {
        KeptSymbols(SYMBOLS.take(length))
    }
}

impl Deref for KeptSymbols {
    type Target = Vec<u16>;

    fn deref(&self) -> &Vec<u16> {
        &self.0
    }
}

impl DerefMut for KeptSymbols {
    fn deref_mut(&mut self) -> &mut Vec<u16> {
        &mut self.0
    }
}

impl Drop for KeptSymbols {
    fn drop(&mut self) {
        SYMBOLS.give_back(std::mem::take(&mut self.0));
    }
}

//! Symbols of two bytes, whose memory is reused after they are dropped.

use std::ops::{Deref, DerefMut};

use millstream_core::buffers::Pool;

static SYMBOLS: Pool<u16> = Pool::new();

/// The symbols. Dropping them keeps their memory for the next ones.
pub(crate) struct KeptSymbols(Vec<u16>);

impl KeptSymbols {
    /// No symbols, with room for `length`.
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

//! Markers for bytes of a window that is not known yet, and their replacement.

use super::WINDOW;

/// The window of a decoder that begins in the middle: every byte of it is a marker.
pub(super) fn markers() -> Vec<u16> {
    (0..WINDOW).map(|index| 256 + index as u16).collect()
}

/// The smallest marker; smaller symbols are bytes.
const MARKERS: u16 = 256;

/// Replaces markers by the bytes of a window.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// The byte of every symbol: itself, or one of the window.
    bytes: Vec<u8>,
}

/// Symbols that are looked at together.
const GROUP: usize = 32;

impl Resolver {
    /// A resolver for what was decoded after `window`.
    pub(crate) fn new(window: &[u8]) -> Self {
        let known = &window[window.len().saturating_sub(WINDOW)..];
        let mut bytes: Vec<u8> = (0..=255).collect();
        bytes.resize(256 + WINDOW - known.len(), 0);
        bytes.extend_from_slice(known);
        // Any 16-bit symbol has an entry: looking it up needs no check.
        bytes.resize(1 << 16, 0);
        Resolver { bytes }
    }

    /// Appends the bytes of `symbols` to `output`.
    pub(crate) fn resolve(&self, symbols: &[u16], output: &mut Vec<u8>) {
        let Ok(bytes) = <&[u8; 1 << 16]>::try_from(self.bytes.as_slice()) else {
            return;
        };
        output.reserve(symbols.len());
        let (groups, rest) = symbols.as_chunks::<GROUP>();
        for group in groups {
            let mut out = [0u8; GROUP];
            let any = group.iter().fold(0, |any, &symbol| any | symbol);
            if any < MARKERS {
                for (out, &symbol) in out.iter_mut().zip(group) {
                    *out = symbol as u8;
                }
            } else {
                for (out, &symbol) in out.iter_mut().zip(group) {
                    *out = bytes[usize::from(symbol)];
                }
            }
            output.extend_from_slice(&out);
        }
        output.extend(rest.iter().map(|&symbol| bytes[usize::from(symbol)]));
    }
}

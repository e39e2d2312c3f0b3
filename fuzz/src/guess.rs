//! Any bytes as a sample to guess from: no panic, and settings that the format accepts.

use bytes::Bytes;
use millstream_core::format::Sample;
use millstream_format::{FORMATS, guess};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let [choice, text @ ..] = data else { return };
    let uri = if choice & 1 == 0 { "fuzz.csv" } else { "fuzz" };
    let sample = Sample { uri: uri.to_owned(), text: Bytes::copy_from_slice(text), complete: choice & 2 == 0 };
    let Ok(guess) = guess(&sample, &text[..text.len().min(16)]) else { return };
    let entry = FORMATS.iter().find(|entry| entry.spec.name == guess.format).expect("a format that is known");
    if let Err(faults) = (entry.build)(&guess.settings) {
        panic!("{} is guessed, and {faults:?}", guess.settings);
    }
}

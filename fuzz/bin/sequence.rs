//! The fuzzer of [`millstream_fuzz::sequence`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::sequence::run(data));

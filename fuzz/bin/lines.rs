//! The fuzzer of [`millstream_fuzz::lines`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::lines::run(data));

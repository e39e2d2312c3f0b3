//! The fuzzer of [`millstream_fuzz::csv`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::csv::run(data));

//! The fuzzer of [`millstream_fuzz::json`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::json::run(data));

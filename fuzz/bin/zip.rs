//! The fuzzer of [`millstream_fuzz::zip`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::zip::run(data));

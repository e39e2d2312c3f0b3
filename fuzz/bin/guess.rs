//! The fuzzer of [`millstream_fuzz::guess`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::guess::run(data));

//! The fuzzer of [`millstream_fuzz::unpack`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::unpack::run(data));

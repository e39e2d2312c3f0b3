//! The fuzzer of [`millstream_fuzz::job`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::job::run(data));

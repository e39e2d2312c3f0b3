//! The fuzzer of [`millstream_fuzz::parquet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_fuzz::parquet::run(data));

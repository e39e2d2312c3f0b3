//! xz: the conformance suite, padding, the limit of memory, and what the usual tools write.

use std::io::Write;

use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
use millstream_core::ErrorKind;

use super::ENTRY;
use crate::conformance::{TEXT, decode, suite, unpack_one};

fn compress(text: &[u8]) -> Vec<u8> {
    let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

suite!(ENTRY, compress);

#[test]
fn padding_comes_in_fours() {
    let good = compress(TEXT);
    for zeros in [4, 8, 400] {
        let data = [good.as_slice(), &vec![0; zeros], &good, &vec![0; zeros]].concat();
        for chunk in [1, 3, usize::MAX] {
            assert_eq!(decode(&ENTRY, &data, chunk, 100).expect("padding"), [TEXT, TEXT].concat());
        }
    }
    for zeros in [1, 2, 3, 5, 7] {
        let at_end = [good.as_slice(), &vec![0; zeros]].concat();
        let between = [at_end.as_slice(), &good].concat();
        for data in [at_end.as_slice(), &between] {
            let error = decode(&ENTRY, data, 3, 100).expect_err("no multiple of four");
            assert_eq!(error.what(), format!("xz padding of {zeros} bytes, which is not a multiple of four"));
            assert_eq!(error.location().byte, Some((good.len() + zeros) as u64));
        }
    }
}

#[test]
fn the_memory_has_a_limit() {
    let mut options = LzmaOptions::new_preset(0).expect("a preset");
    options.dict_size(256 << 20);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let good = compress(TEXT);
    // Only what the header says of the dictionary matters, so that no encoder with 256 MiB is needed.
    let mut data = good.clone();
    let header_size = (usize::from(data[12]) + 1) * 4;
    assert_eq!(data[14..16], [0x21, 1], "the filter is LZMA2, with one byte of properties");
    data[16] = 32;
    let check = crc32fast::hash(&data[12..12 + header_size - 4]).to_le_bytes();
    data[12 + header_size - 4..12 + header_size].copy_from_slice(&check);
    let error = decode(&ENTRY, &data, usize::MAX, 4096).expect_err("256 MiB");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.what().starts_with("an xz stream needs more than 142606336 bytes of memory"), "{error}");
    // `xz -9` has a dictionary of 64 MiB.
    data[16] = 28;
    let check = crc32fast::hash(&data[12..12 + header_size - 4]).to_le_bytes();
    data[12 + header_size - 4..12 + header_size].copy_from_slice(&check);
    assert_eq!(decode(&ENTRY, &data, usize::MAX, 4096).expect("64 MiB"), TEXT);
}

#[test]
fn streams_without_a_check_are_read() {
    for check in [Check::None, Check::Crc32, Check::Sha256] {
        let stream = Stream::new_easy_encoder(0, check).expect("an encoder");
        let mut writer = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        writer.write_all(TEXT).expect("memory");
        let data = writer.finish().expect("memory");
        assert_eq!(unpack_one(&data).expect("good data"), TEXT);
    }
}

#[test]
fn what_the_tools_write_is_read() {
    let tools: [&[u8]; 2] = [include_bytes!("../../fixtures/xz.xz"), include_bytes!("../../fixtures/xz-blocks.xz")];
    for data in tools {
        assert_eq!(unpack_one(data).expect("a tool's file"), TEXT);
    }
}

//! bzip2: the conformance suite, and what the usual tools write.

use std::io::Write;

use super::ENTRY;
use crate::conformance::{TEXT, decode, suite, unpack_one};

fn compress(text: &[u8]) -> Vec<u8> {
    let mut writer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

suite!(ENTRY, compress);

#[test]
fn what_the_tools_write_is_read() {
    let tools: [&[u8]; 2] = [include_bytes!("../../fixtures/bzip2.bz2"), include_bytes!("../../fixtures/pbzip2.bz2")];
    for data in tools {
        assert_eq!(unpack_one(data).expect("a tool's file"), TEXT);
    }
}

#[test]
fn faults_name_their_byte() {
    let good = compress(TEXT);
    let mut bad = [good.as_slice(), &good].concat();
    bad[good.len() + 60] ^= 1;
    let error = decode(&ENTRY, &bad, usize::MAX, 4096).expect_err("it is damaged");
    assert_eq!(error.what(), "the bzip2 data is corrupt");
    assert!(error.location().byte > Some(good.len() as u64), "{error}");
    let error = decode(&ENTRY, b"not bzip2 at all", 1, 4096).expect_err("it is none");
    assert_eq!((error.what(), error.location().byte), ("not bzip2: the first bytes are wrong", Some(0)));
}

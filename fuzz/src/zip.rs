//! Zip archives. The bytes as an archive are compared with a reference reader. The bytes as the recipe of an archive
//! must give the members that were put in. An archive read part by part, by its directory, must give the same as one
//! read as a stream.

use std::io::{Cursor, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use millstream_codec::{Limits, Unpack, UnpackOptions, Unpacked, ZipCuts, ZipEnding, ZipPlan, ZipPlanner};
use millstream_core::Result;
use millstream_core::registry::CodecEntry;

use crate::unpack::unpack;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    against_reference(data);
    as_in_passing(data);
    from_recipe(data);
}

type Contents = Vec<(Option<String>, Vec<u8>)>;

/// Reading by the directory and as a stream gives the same, for any bytes.
fn as_in_passing(data: &[u8]) {
    let options = UnpackOptions { limits: Limits { members: 100, ..Limits::default() }, ..UnpackOptions::default() };
    let Some(plan) = plan(data, &options) else { return };
    let parts = (0..plan.parts()).map(|number| part(data, &options, &plan, number));
    let by_directory: Result<Vec<Contents>> = parts.collect();
    let (contents, Ok(())) = unpack(data, Some("zip"), || usize::MAX) else { return };
    // A Unicode name in only one of a member's two records decides whether the member is read.
    if !data.starts_with(b"PK\x03\x04") || data.windows(2).any(|pair| pair == b"up") {
        return;
    }
    match by_directory {
        Ok(parts) => assert_eq!(parts.concat(), contents, "another text by the directory"),
        Err(error) => panic!("by its directory it is refused: {error:?}"),
    }
}

/// The plan of the archive, with parts of a few members.
fn plan(data: &[u8], options: &UnpackOptions) -> Option<Arc<ZipPlan>> {
    let tail = &data[data.len().saturating_sub(ZipEnding::TAIL as usize)..];
    let ending = ZipEnding::find(tail, data.len() as u64)?;
    let directory = ending.directory();
    let directory = &data[directory.start as usize..directory.end as usize];
    let size = 1 + u64::from(crc32fast::hash(data) % 300);
    let cuts = ZipCuts { smallest: size, largest: size, passed_over: size / 2 };
    let mut planner = ZipPlanner::new(ending, options).expect("no globs")?.with_cuts(cuts);
    for chunk in directory.chunks(1 + directory.len() / 3) {
        planner.feed(chunk)?;
    }
    planner.finish().expect("nothing is asked for by name").map(Arc::new)
}

/// The contents of a part of the archive, at most the first megabytes.
fn part(data: &[u8], options: &UnpackOptions, plan: &Arc<ZipPlan>, number: usize) -> Result<Contents> {
    let range = plan.range(number);
    let bytes = &data[range.start as usize..range.end as usize];
    let mut unpack = Unpack::of_part(options.clone(), Arc::clone(plan), number)?;
    let mut chunks = bytes.chunks(1 + bytes.len() / 5);
    let (mut contents, mut text) = (Contents::new(), 0);
    while text < 4 << 20 {
        match unpack.next()? {
            Unpacked::Hungry => match chunks.next() {
                Some(chunk) => unpack.feed(Bytes::copy_from_slice(chunk)),
                None => unpack.end(),
            },
            Unpacked::Begin { member } => contents.push((member, Vec::new())),
            Unpacked::Text(piece) => {
                text += piece.len();
                contents.last_mut().expect("a content has begun").1.extend_from_slice(&piece);
            }
            Unpacked::End => {}
            Unpacked::Done => break,
        }
        assert!(range.contains(&unpack.compressed_position()) || range.end == unpack.compressed_position());
    }
    Ok(contents)
}

/// Checks that a reference reader reads no accepted archive differently: every member that it reads is among ours.
fn against_reference(data: &[u8]) {
    let (contents, Ok(())) = unpack(data, Some("zip"), || usize::MAX) else {
        return;
    };
    // The reference looks for the end, so it finds an archive after any other bytes. We treat such a file as text.
    if !data.starts_with(b"PK\x03\x04") && !data.starts_with(b"PK\x05\x06") {
        return;
    }
    let Ok(mut reference) = zip::ZipArchive::new(Cursor::new(data)) else {
        return;
    };
    for index in 0..reference.len() {
        let Ok(member) = reference.by_index(index) else {
            continue;
        };
        let known = matches!(member.compression(), zip::CompressionMethod::Stored | zip::CompressionMethod::Deflated);
        let name = member.name_raw().to_vec();
        if !known || name.ends_with(b"/") || name.ends_with(b"\\") || is_of_macos(&name) {
            continue;
        }
        let mut text = Vec::new();
        if member.take(2 << 20).read_to_end(&mut text).is_err() || is_compressed(&text) {
            continue;
        }
        assert!(contents.iter().any(|(_, ours)| *ours == text), "the reference reads another text from member {index}");
    }
}

fn is_of_macos(name: &[u8]) -> bool {
    name.starts_with(b"__MACOSX/") || name.ends_with(b".DS_Store")
}

/// Whether a member's text would be decoded once more.
fn is_compressed(text: &[u8]) -> bool {
    let codec = |entry: &CodecEntry| (entry.build)().recognises(&text[..text.len().min(16)]);
    millstream_codec::CODECS.iter().any(codec)
}

/// Reads bytes from the input, and zeros after its end.
struct Recipe<'a>(&'a [u8]);

impl<'a> Recipe<'a> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now
    }
}

/// One member of the recipe.
struct Member {
    name: Vec<u8>,
    method: u16,
    flags: u16,
    text: Vec<u8>,
    data: Vec<u8>,
    signed: bool,
    wide: bool,
    offset: u32,
}

impl Member {
    fn new(recipe: &mut Recipe<'_>, index: usize, offset: usize) -> Self {
        let shape = recipe.byte();
        let size = usize::from(recipe.byte()) << (shape >> 6);
        // No other codec begins with a letter and a line end.
        let mut text = [b"t\n", recipe.bytes(size)].concat();
        // Nor is it a tar, which would have its checksum here.
        if let Some(byte) = text.get_mut(148) {
            *byte = b'x';
        }
        let method = if shape & 1 == 0 { 0 } else { 8 };
        let data = if method == 0 { text.clone() } else { deflate(&text) };
        let flags = if shape & 2 == 0 { 0 } else { 1 << 3 };
        let name = format!("{index}").into_bytes();
        let (signed, wide) = (shape & 4 == 0, shape & 8 != 0);
        Member { name, method, flags, text, data, signed, wide, offset: offset as u32 }
    }

    fn has_descriptor(&self) -> bool {
        self.flags != 0
    }

    /// Version, flags, method and time; checksum and sizes; the length of the name.
    fn fields(&self, known: bool) -> Vec<u8> {
        let sizes = [crc32fast::hash(&self.text), self.data.len() as u32, self.text.len() as u32];
        let mut bytes = Vec::new();
        for value in [20, self.flags, self.method, 0, 0] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        for value in sizes {
            bytes.extend_from_slice(&if known { value } else { 0 }.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes
    }

    fn local(&self, archive: &mut Vec<u8>) {
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&self.fields(!self.has_descriptor()));
        archive.extend_from_slice(&[0; 2]);
        archive.extend_from_slice(&self.name);
        archive.extend_from_slice(&self.data);
        if !self.has_descriptor() {
            return;
        }
        if self.signed {
            archive.extend_from_slice(b"PK\x07\x08");
        }
        archive.extend_from_slice(&crc32fast::hash(&self.text).to_le_bytes());
        for size in [self.data.len() as u64, self.text.len() as u64] {
            archive.extend_from_slice(&size.to_le_bytes()[..if self.wide { 8 } else { 4 }]);
        }
    }

    fn entry(&self, archive: &mut Vec<u8>) {
        archive.extend_from_slice(b"PK\x01\x02\x14\0");
        archive.extend_from_slice(&self.fields(true));
        archive.extend_from_slice(&[0; 12]);
        archive.extend_from_slice(&self.offset.to_le_bytes());
        archive.extend_from_slice(&self.name);
    }
}

fn deflate(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(text).expect("memory");
    writer.finish().expect("memory")
}

/// Makes an archive and reads it, whole and in small parts.
fn from_recipe(data: &[u8]) {
    let mut recipe = Recipe(data);
    let mut archive = Vec::new();
    let mut members = Vec::new();
    for index in 0..usize::from(recipe.byte() % 6) {
        let member = Member::new(&mut recipe, index, archive.len());
        member.local(&mut archive);
        members.push(member);
    }
    let begin = archive.len();
    members.iter().for_each(|member| member.entry(&mut archive));
    let size = archive.len() - begin;
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&(members.len() as u16).to_le_bytes());
    archive.extend_from_slice(&(members.len() as u16).to_le_bytes());
    archive.extend_from_slice(&(size as u32).to_le_bytes());
    archive.extend_from_slice(&(begin as u32).to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    let ends = archive.windows(4).filter(|bytes| bytes == b"PK\x05\x06").count();
    if !members.is_empty() && ends == 1 {
        assert!(plan(&archive, &UnpackOptions::default()).is_some(), "an archive by the book has no plan");
    }
    as_in_passing(&archive);
    for chunk in [usize::MAX, 1 + data.len() % 50] {
        let (contents, end) = unpack(&archive, None, || chunk);
        if let Err(error) = end {
            panic!("an archive by the book is refused: {error:?}");
        }
        let expected = members.iter().map(|member| member.text.as_slice());
        assert!(contents.iter().map(|(_, text)| text.as_slice()).eq(expected), "another text");
    }
}

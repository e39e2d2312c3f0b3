//! The limit that Millstream is compared with: the least program that counts lines. It has no wildcards, no errors with
//! locations and no memory budget: it only decodes and looks for newlines.
//!
//! ```text
//! limit whole N LIST     the files named in LIST, each inflated in one call (libdeflate; zstd in pieces), N threads
//! limit stream FILE      one gzip file, streamed through zlib-rs on one thread
//! ```
//!
//! It trusts its input: each file is one gzip member, since libdeflate does not report where a member ends.

use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use libdeflater::{DecompressionError, Decompressor};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// How many bytes are decoded at once when streaming: they stay in the cache of a core.
const PIECE: usize = 256 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let lines = match words[..] {
        ["whole", threads, list] => whole(threads, list),
        ["stream", path] => stream(path),
        _ => Err(io::Error::other("usage: limit whole THREADS LIST | limit stream FILE")),
    };
    match lines {
        Ok(lines) => {
            println!("{lines}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("limit: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts the lines of all files in a list; each thread takes the next file.
fn whole(threads: &str, list: &str) -> io::Result<usize> {
    let threads = threads.parse::<usize>().map_err(io::Error::other)?;
    let list = fs_err::read_to_string(list)?;
    let paths: Vec<&str> = list.lines().collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| share(&paths, &next))).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|lines| lines.unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))).sum()
    })
}

/// Counts the lines of the files that one thread takes.
fn share(paths: &[&str], next: &AtomicUsize) -> io::Result<usize> {
    let mut worker = Worker::new()?;
    let mut lines = 0;
    while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
        worker.stored.clear();
        fs_err::File::open(path)?.read_to_end(&mut worker.stored)?;
        lines += if worker.stored.starts_with(&[0x1f, 0x8b]) { worker.gzip()? } else { worker.zstd()? };
    }
    Ok(lines)
}

/// The buffers and decoders of a thread, reused for every file.
struct Worker {
    stored: Vec<u8>,
    text: Vec<u8>,
    inflate: Decompressor,
    zstd: Decoder<'static>,
}

impl Worker {
    fn new() -> io::Result<Worker> {
        Ok(Worker { stored: Vec::new(), text: vec![0; PIECE], inflate: Decompressor::new(), zstd: Decoder::new()? })
    }

    /// The last four bytes of a gzip member are the length of its text, which is at most 1032 times its own.
    fn gzip(&mut self) -> io::Result<usize> {
        if let Some(length) = self.stored.last_chunk::<4>() {
            let length = (u32::from_le_bytes(*length) as usize).min(self.stored.len() * 1032);
            self.text.resize(length.max(self.text.len()), 0);
        }
        loop {
            match self.inflate.gzip_decompress(&self.stored, &mut self.text) {
                Ok(length) => return Ok(newlines(&self.text[..length])),
                Err(DecompressionError::InsufficientSpace) => self.text.resize(self.text.len() * 2, 0),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    fn zstd(&mut self) -> io::Result<usize> {
        self.zstd.reinit()?;
        let mut input = InBuffer::around(&self.stored);
        let mut lines = 0;
        loop {
            let mut output = OutBuffer::around(&mut self.text[..PIECE]);
            let more = self.zstd.run(&mut input, &mut output)?;
            lines += newlines(output.as_slice());
            match (more, input.pos() == self.stored.len()) {
                (0, true) => return Ok(lines),
                (0, false) => self.zstd.reinit()?,
                (_, true) if output.as_slice().is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }
}

/// Counts the lines of one gzip file on one thread.
fn stream(path: &str) -> io::Result<usize> {
    let stored = io::BufReader::with_capacity(PIECE, fs_err::File::open(path)?);
    let mut text = flate2::bufread::MultiGzDecoder::new(stored);
    let mut piece = vec![0; PIECE];
    let mut lines = 0;
    loop {
        match text.read(&mut piece)? {
            0 => return Ok(lines),
            length => lines += newlines(&piece[..length]),
        }
    }
}

fn newlines(text: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', text).count()
}

//! How fast gzip files are inflated: by each library, and by `Unpack`, alone and with helpers.
//!
//! `cargo run --release -p millstream-codec --example inflate -- FILE.gz…`
//!
//! All decoders take turns, five times. The best time of each is shown, with its ratio to libdeflate's.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use millstream_codec::{Unpack, UnpackOptions, Unpacked};
use millstream_core::helpers::{HelperPool, Job, NoHelpers};

/// The bytes of a chunk in which files are fed.
const CHUNK: usize = 256 << 10;

const ROUNDS: usize = 5;

/// Threads that wait for jobs.
#[derive(Debug)]
struct Threads {
    jobs: Sender<Job>,
    idle: Arc<AtomicUsize>,
}

impl Threads {
    fn start(count: usize) -> Self {
        let (jobs, queue) = channel::<Job>();
        let idle = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let (queue, idle) = (Arc::clone(&queue), Arc::clone(&idle));
            std::thread::spawn(move || work(&queue, &idle));
        }
        Threads { jobs, idle }
    }
}

fn work(queue: &Mutex<Receiver<Job>>, idle: &AtomicUsize) {
    loop {
        idle.fetch_add(1, Ordering::Relaxed);
        let job = queue.lock().map(|queue| queue.recv());
        let Ok(Ok(job)) = job else { return };
        job();
    }
}

impl HelperPool for Threads {
    fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    fn offer(&self, job: Job) {
        self.idle.fetch_sub(1, Ordering::Relaxed);
        drop(self.jobs.send(job));
    }
}

/// The lines of `data`, in as many chunks as it takes.
fn unpacked(data: &Bytes, at_once: bool, helpers: Arc<dyn HelperPool>) -> (usize, usize) {
    let mut unpack = Unpack::new(UnpackOptions::default()).with_helpers(helpers);
    let (mut fed, mut length, mut lines) = (0, 0, 0);
    let mut feed = |unpack: &mut Unpack| {
        let end = if at_once { data.len() } else { data.len().min(fed + CHUNK) };
        unpack.feed(data.slice(fed..end));
        if end == data.len() {
            unpack.end();
        }
        fed = end;
        fed < data.len()
    };
    let mut more = true;
    if at_once {
        more = feed(&mut unpack);
    }
    loop {
        while more && unpack.wants() > 0 {
            more = feed(&mut unpack);
        }
        match unpack.next().expect("good data") {
            Unpacked::Hungry => more = feed(&mut unpack),
            Unpacked::Text(text) => {
                length += text.len();
                lines += memchr::memchr_iter(b'\n', &text).count();
            }
            Unpacked::Done => return (length, lines),
            _ => {}
        }
    }
}

fn by_flate2(data: &Bytes) -> (usize, usize) {
    let mut reader = flate2::bufread::MultiGzDecoder::new(data.as_ref());
    let mut buffer = vec![0; 128 << 10];
    let (mut length, mut lines) = (0, 0);
    loop {
        let read = std::io::Read::read(&mut reader, &mut buffer).expect("good data");
        if read == 0 {
            return (length, lines);
        }
        length += read;
        lines += memchr::memchr_iter(b'\n', &buffer[..read]).count();
    }
}

/// Libdeflate on the whole of `data`, one member.
fn by_libdeflate(data: &Bytes, text: &mut Vec<u8>) -> (usize, usize) {
    use libdeflate_sys::{libdeflate_alloc_decompressor, libdeflate_free_decompressor, libdeflate_gzip_decompress};
    let size = u32::from_le_bytes(*data.last_chunk().expect("a trailer")) as usize;
    text.clear();
    text.reserve(size);
    let mut length = 0;
    // SAFETY: both buffers are valid for their lengths; `length` bytes have been written on success.
    unsafe {
        let state = libdeflate_alloc_decompressor();
        let (input, output) = (data.as_ptr().cast(), text.as_mut_ptr().cast());
        let result = libdeflate_gzip_decompress(state, input, data.len(), output, text.capacity(), &mut length);
        assert_eq!(result, 0, "one member of good data");
        libdeflate_free_decompressor(state);
        text.set_len(length);
    }
    (length, memchr::memchr_iter(b'\n', text).count())
}

type Way<'a> = (&'a str, Box<dyn FnMut(&Bytes) -> (usize, usize) + 'a>);

fn main() {
    let read = |path| Bytes::from(fs_err::read(path).expect("a file"));
    let files: Vec<Bytes> = std::env::args_os().skip(1).map(read).collect();
    let mut whole = Vec::new();
    let helpers: Arc<dyn HelperPool> = Arc::new(Threads::start(1));
    let mut ways: Vec<Way<'_>> = vec![
        ("libdeflate, whole files", Box::new(|data| by_libdeflate(data, &mut whole))),
        ("flate2 (zlib-rs), stream", Box::new(by_flate2)),
        ("Unpack, all at once", Box::new(|data| unpacked(data, true, Arc::new(NoHelpers)))),
        ("Unpack, in chunks", Box::new(|data| unpacked(data, false, Arc::new(NoHelpers)))),
        ("Unpack, one helper", Box::new(|data| unpacked(data, false, Arc::clone(&helpers)))),
    ];
    let mut best = vec![f64::MAX; ways.len()];
    let mut text = 0;
    for _ in 0..ROUNDS {
        for ((_, way), best) in ways.iter_mut().zip(&mut best) {
            let start = Instant::now();
            let sums: Vec<_> = files.iter().map(way).collect();
            *best = best.min(start.elapsed().as_secs_f64());
            text = sums.iter().map(|(length, _)| length).sum();
        }
    }
    for ((name, _), seconds) in ways.iter().zip(&best) {
        let speed = text as f64 / 1e6 / seconds;
        let _ = writeln!(std::io::stdout(), "{name:26} {speed:8.0} MB/s  {:5.2}", seconds / best[0]);
    }
}

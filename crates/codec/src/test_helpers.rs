//! Helper pools for tests, which run jobs at once, late, never, or on threads; and unpacking a unit with them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use millstream_core::Error;
use millstream_core::helpers::{HelperPool, Job};
use proptest::prelude::*;

use crate::{Limits, Unpack, UnpackOptions, Unpacked};

/// A pool that always has an idle helper. The variants differ in when jobs run.
#[derive(Debug)]
pub(crate) enum Helpers {
    /// The job runs before the offer returns.
    AtOnce,
    /// Jobs never run.
    Never,
    /// Each job has a thread.
    Threads,
    /// A job runs after the pool was asked `every` times for idle helpers.
    Late { every: usize, asked: AtomicUsize, jobs: Mutex<Jobs> },
}

#[derive(Default)]
pub(crate) struct Jobs(Vec<Job>);

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

impl Helpers {
    /// The pool of one kind.
    pub(crate) fn of_kind(kind: usize) -> Arc<dyn HelperPool> {
        let late = |every| Helpers::Late { every, asked: AtomicUsize::new(0), jobs: Mutex::default() };
        Arc::new(match kind % 6 {
            0 => Helpers::AtOnce,
            1 => Helpers::Never,
            2 | 3 => Helpers::Threads,
            4 => late(7),
            _ => late(23),
        })
    }
}

impl HelperPool for Helpers {
    fn idle(&self) -> usize {
        if let Helpers::Late { every, asked, jobs } = self
            && asked.fetch_add(1, Ordering::Relaxed) % every == every - 1
        {
            let jobs = std::mem::take(&mut *jobs.lock().expect("no panic"));
            jobs.0.into_iter().for_each(|job| job());
        }
        2
    }

    fn offer(&self, job: Job) {
        match self {
            Helpers::AtOnce => job(),
            Helpers::Never => drop(job),
            Helpers::Threads => drop(std::thread::spawn(job)),
            Helpers::Late { jobs, .. } => jobs.lock().expect("no panic").0.push(job),
        }
    }
}

/// Text, and the error that ends it.
pub(crate) type Outcome = (Vec<u8>, Option<Error>);

/// Unpacks `data`, which is fed as far as it asks for, in chunks of `chunk` bytes.
pub(crate) fn unpack_with(
    codec: &'static str,
    data: &[u8],
    chunk: usize,
    helpers: Arc<dyn HelperPool>,
    limits: Limits,
) -> Outcome {
    let options = UnpackOptions { expected: Some(codec), limits, ..UnpackOptions::default() };
    let mut unpack = Unpack::new(options).with_helpers(helpers);
    let mut chunks = data.chunks(chunk);
    let (mut text, mut fed, mut position) = (Vec::new(), 0, 0);
    loop {
        while unpack.wants() > 0
            && let Some(chunk) = chunks.next()
        {
            fed += chunk.len() as u64;
            unpack.feed(Bytes::copy_from_slice(chunk));
        }
        let next = unpack.next();
        assert!((position..=fed).contains(&unpack.compressed_position()));
        position = unpack.compressed_position();
        match next {
            Ok(Unpacked::Hungry) => match chunks.next() {
                Some(chunk) => {
                    fed += chunk.len() as u64;
                    unpack.feed(Bytes::copy_from_slice(chunk));
                }
                None => unpack.end(),
            },
            Ok(Unpacked::Text(piece)) => {
                assert!(!piece.is_empty());
                text.extend_from_slice(&piece);
            }
            Ok(Unpacked::Done) => {
                assert_eq!(position, data.len() as u64);
                assert_eq!(unpack.held(), 0);
                return (text, None);
            }
            Ok(_) => {}
            Err(error) => return (text, Some(error)),
        }
    }
}

/// Checks that both have the same text and no error, or the same error after texts of which one begins with the other.
pub(crate) fn same(one: &Outcome, other: &Outcome) -> Result<(), TestCaseError> {
    let common = one.0.len().min(other.0.len());
    prop_assert!(one.0[..common] == other.0[..common], "the text differs");
    match (&one.1, &other.1) {
        (None, None) => prop_assert_eq!(one.0.len(), other.0.len()),
        (Some(one), Some(other)) => {
            prop_assert_eq!(one.to_string(), other.to_string());
            prop_assert_eq!(one.offending_text(), other.offending_text());
            prop_assert_eq!(one.kind(), other.kind());
        }
        (one, other) => prop_assert!(false, "{:?} and {:?}", one, other),
    }
    Ok(())
}

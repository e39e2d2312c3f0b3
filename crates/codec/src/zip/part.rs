//! A part of an archive, compared with the directory while it is read.
//!
//! In a stream the directory comes last, so its faults are found when all rows have been given out. Here it is known
//! before: disagreements are found at once, with the same errors. Headers outside of all parts are not read.

use std::ops::Range;
use std::sync::Arc;

use millstream_core::{Error, Result};

use super::directory::{digest, disagree, not_listed, nothing_there, wanted_by_one};
use super::plan::{Entry, Part, ZipPlan};
use super::record::Header;
use crate::frame::corrupt;

/// The position of a walk in its part.
#[derive(Debug)]
pub(super) struct Listed {
    plan: Arc<ZipPlan>,
    part: Part,
    /// Entries of the part whose members have been read.
    read: usize,
}

impl Listed {
    /// At the beginning of the part of that number.
    pub(super) fn new(plan: Arc<ZipPlan>, part: usize) -> Result<Self> {
        let part = plan.part(part).cloned().ok_or_else(|| Error::internal("a part that the zip has not"))?;
        Ok(Listed { plan, part, read: 0 })
    }

    /// The bytes of the part.
    pub(super) fn bytes(&self) -> Range<u64> {
        self.part.bytes.clone()
    }

    /// The bytes of selected text before the part.
    pub(super) fn text_before(&self) -> u64 {
        self.part.text_before
    }

    /// The entry of the next member.
    fn next(&self) -> Option<&Entry> {
        self.plan.entries(&self.part).get(self.read)
    }

    /// Whether the part ends at byte `at`, where a record would begin.
    pub(super) fn ends(&self, at: u64) -> Result<bool> {
        if at < self.part.bytes.end {
            return Ok(false);
        }
        if at > self.part.bytes.end {
            return Err(self.overrun(at));
        }
        self.next().map_or(Ok(true), |missing| Err(nothing_there(missing.offset)))
    }

    /// Checks a member that begins at byte `at`.
    pub(super) fn begins(&self, at: u64, name: &str, wanted: bool) -> Result<()> {
        match self.next() {
            Some(next) if next.offset == at && next.wanted != wanted && next.size > 0 => {
                Err(wanted_by_one(at).in_member(name))
            }
            Some(next) if next.offset == at => Ok(()),
            Some(next) if next.offset < at => Err(nothing_there(next.offset)),
            _ if wanted => Err(not_listed(name, at).byte(at)),
            _ => Ok(()),
        }
    }

    /// Compares the member that began at byte `at`. Its header has the facts found in its data.
    pub(super) fn walked(&mut self, at: u64, header: &Header, name: &str) -> Result<()> {
        let Some(entry) = self.next().filter(|entry| entry.offset == at) else {
            return Ok(());
        };
        if entry.digest != digest(header) {
            return Err(disagree(at).in_member(name));
        }
        self.read += 1;
        Ok(())
    }

    /// The error of a member that continues after the end of the part, to byte `at`.
    pub(super) fn overrun(&self, at: u64) -> Error {
        corrupt("a member of the zip overlaps the next one in the directory", at)
    }
}

//! What one task reads becomes groups: cut into chunks, without those that an earlier run has written, and with the
//! rejects before the chunk that they belong to. Nothing waits here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_core::Result;

use super::group::{ChunkRows, Group, cut};
use super::load::Loading;
use super::pipeline::Pipeline;
use super::refused::Refused;
use super::units::{UnitNotes, Units};
use crate::member::MemberPlace;
use crate::read::rows::{LocatedRows, Piece};

/// Assembles the groups of one task.
pub(super) struct Assembler {
    loading: Arc<Loading>,
    /// The number of the pipeline that it reads for.
    number: usize,
    units: Arc<Units>,
    /// The unit and member of the last rows.
    member: Option<(Arc<str>, MemberPlace)>,
    refused: Refused,
    /// What is not enough for a group yet.
    group: Option<Group>,
    /// Groups that are full and have not been taken.
    full: Vec<Group>,
}

impl Assembler {
    pub(super) fn new(loading: &Arc<Loading>, number: usize) -> Self {
        Assembler::of_units(loading, number, Arc::clone(&loading.units[number]))
    }

    /// The same for other units.
    pub(super) fn of_units(loading: &Arc<Loading>, number: usize, units: Arc<Units>) -> Self {
        Assembler {
            loading: Arc::clone(loading),
            number,
            units,
            member: None,
            refused: Refused::default(),
            group: None,
            full: Vec::new(),
        }
    }

    /// Takes a piece of the unit `uri`; gives the groups that are full.
    pub(super) fn take(&mut self, uri: &Arc<str>, piece: Piece) -> Result<Vec<Group>> {
        let unit = self.units.notes(uri)?;
        match piece {
            Piece::Rows(rows) => {
                self.begin_member(uri, &unit, &rows.member)?;
                self.rows(rows, &unit)?;
            }
            Piece::Rejects(rejects, member) => {
                self.begin_member(uri, &unit, &member)?;
                let Assembler { loading, number, units, refused, .. } = self;
                refused.take((loading, *number), units, uri, &unit, &member, rejects)?;
            }
            Piece::Settled => {
                let rejects = self.refused.before(None, &self.loading.load.pipelines[self.number]);
                rejects.into_iter().for_each(|rejects| self.gather(rejects));
            }
            Piece::End => self.end(uri, &unit),
        }
        Ok(std::mem::take(&mut self.full))
    }

    /// Rows that are not enough for a group, when all has been read.
    pub(super) fn rest(self) -> Option<Group> {
        self.group
    }

    fn pipeline(&self) -> &Pipeline {
        &self.loading.load.pipelines[self.number]
    }

    fn begin_member(&mut self, uri: &Arc<str>, unit: &UnitNotes, member: &MemberPlace) -> Result<()> {
        if self.member.as_ref().is_none_or(|(last, before)| last != uri || before != member) {
            unit.begin_member(member).map_err(|error| error.in_step(self.pipeline().read().source()))?;
            self.member = Some((Arc::clone(uri), member.clone()));
        }
        Ok(())
    }

    fn rows(&mut self, rows: LocatedRows, unit: &Arc<UnitNotes>) -> Result<()> {
        let loading = Arc::clone(&self.loading);
        loading.came.read.fetch_add(rows.batch.num_rows() as u64, Ordering::Relaxed);
        for rows in cut(rows, unit, loading.chunk_bytes)? {
            if self.units.is_written(&rows.chunk) {
                match loading.load.by_workers.have_written(&rows.chunk) {
                    false => drop(loading.came.before.fetch_add(rows.count(), Ordering::Relaxed)),
                    // They are counted.
                    true => {
                        loading.came.read.fetch_sub(rows.count(), Ordering::Relaxed);
                        self.pipeline().read().reader().steps.parse.leave_out_rows(rows.count());
                    }
                }
                if let Some(limit) = loading.load.rejects.of_step(self.pipeline().read().source()) {
                    limit.roll_back_came(rows.count());
                }
                continue;
            }
            let rejects = self.refused.before(Some(&rows.chunk), &loading.load.pipelines[self.number]);
            rejects.into_iter().chain([rows]).for_each(|rows| self.gather(rows));
        }
        Ok(())
    }

    /// The unit has been read. If its last rows are in the group of this task, the group says that it is complete.
    fn end(&mut self, uri: &str, unit: &Arc<UnitNotes>) {
        if let Some(bundle) = &self.loading.load.bundle {
            let read = self.pipeline().read();
            bundle.keeper.ended(read.source(), &unit.complete_note().unit, read.reader().take_left_out(uri));
        }
        let own = self.group.as_mut().filter(|group| group.has(unit));
        match (unit.end(own.is_some()), own) {
            (Some(note), Some(group)) => group.complete(unit, note),
            (Some(note), None) => self.loading.add_notes(unit.version_note().into_iter().chain([note])),
            (None, _) => {}
        }
        self.units.complete(uri);
        let source = self.units.source();
        self.loading.load.bundle.iter().for_each(|bundle| bundle.keeper.reading(source, uri, false));
    }

    fn gather(&mut self, rows: ChunkRows) {
        let is_full = |group: &mut Group| group.is_full(self.loading.group_bytes, &rows.chunk);
        self.full.extend(self.group.take_if(is_full));
        self.group.get_or_insert_with(|| Group::new(self.number, &self.loading.load.budget)).push(rows);
    }
}

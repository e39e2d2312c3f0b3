//! What a stream has lost before its group has read it: decided by what the server says of both at one moment.
//!
//! Redis tells no reader that entries were trimmed. But it counts the entries that were ever added (A), and those that
//! a group has read (R): if the first entry that is left is behind the group's position, then A less the entries that
//! are left were removed, and R of them had been read. Trimming does not move the highest deleted id, `XDEL` does.

use super::reply::EntryId;

/// What `XINFO STREAM` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamFacts {
    /// How many entries it has.
    pub(super) length: u64,
    /// How many were ever added.
    pub(super) added: u64,
    /// The last id that was ever given.
    pub(super) last: EntryId,
    /// The first entry; 0-0 if there is none.
    pub(super) first: EntryId,
    /// The highest id that was deleted by `XDEL`.
    pub(super) deleted: EntryId,
}

/// What `XINFO GROUPS` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GroupFacts {
    /// The last entry that was handed out.
    pub(super) delivered: EntryId,
    /// How many entries of the stream are up to there; the server may not know it.
    pub(super) read: Option<u64>,
    /// How many are behind; the server may not know it.
    pub(super) lag: Option<u64>,
    /// How many other groups the stream has.
    pub(super) others: usize,
}

/// What a consumer remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The furthest position of the group, or the highest committed entry.
    pub(super) position: EntryId,
    /// How many entries had been added.
    pub(super) added: u64,
    /// The deleted entry that was reported last.
    pub(super) told: EntryId,
}

/// What was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// Entries that were not read were trimmed or deleted; how many, if that is known.
    Removed(Option<u64>),
    /// Entries that were not read were deleted, up to this one.
    Deleted(EntryId),
    /// The group's position went back: entries that were read come again.
    Back(EntryId),
    /// The stream was deleted and created again.
    Recreated,
}

/// What was lost, if anything was. With `deletes`, entries are deleted after they were loaded.
pub(super) fn gap(stream: &StreamFacts, group: &GroupFacts, seen: &Seen, deletes: bool) -> Option<Gap> {
    if stream.added < seen.added || stream.last < seen.position {
        return Some(Gap::Recreated);
    }
    if group.delivered < seen.position {
        return Some(Gap::Back(group.delivered));
    }
    let removed = stream.added.saturating_sub(stream.length);
    let is_read = group.delivered >= stream.last;
    let nothing_left = if stream.length == 0 { !is_read } else { stream.first > group.delivered };
    let lost = match group.read {
        // All entries that were ever added are up to here.
        Some(read) if is_read => stream.added.saturating_sub(read),
        Some(read) if nothing_left => removed.saturating_sub(read),
        _ => 0,
    };
    if lost > 0 {
        return Some(Gap::Removed(Some(lost)));
    }
    if stream.deleted > group.delivered && stream.deleted > seen.told {
        return Some(Gap::Deleted(stream.deleted));
    }
    // A group at 0-0 begins with what there is. Where loaded entries are deleted, having none left says nothing.
    let begins = group.delivered == EntryId::default();
    let is_unknown = group.read.is_none() && nothing_left && removed > 0 && !begins && !deletes;
    (is_unknown && stream.deleted <= group.delivered).then_some(Gap::Removed(None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(milliseconds: u64) -> EntryId {
        EntryId { milliseconds, sequence: 0 }
    }

    /// A stream to which entries 1, 2, 3 … are added, as Redis 7.0 counts.
    #[derive(Debug, Default)]
    struct Model {
        entries: Vec<u64>,
        added: u64,
        deleted: u64,
        position: u64,
        /// How many the group has read, and those that were lost and told.
        read: u64,
        lost: u64,
    }

    #[derive(Debug, Clone, Copy)]
    enum Act {
        Add(u64),
        /// Trims to so many entries.
        Trim(usize),
        Read(usize),
        /// Deletes all entries that were read.
        Clean,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            (1..5_u64).prop_map(Act::Add),
            (0..5_usize).prop_map(Act::Trim),
            (1..5_usize).prop_map(Act::Read),
            Just(Act::Clean),
        ];
        proptest::collection::vec(act, 0..40)
    }

    impl Model {
        fn facts(&self) -> (StreamFacts, GroupFacts) {
            let stream = StreamFacts {
                length: self.entries.len() as u64,
                added: self.added,
                last: id(self.added),
                first: self.entries.first().copied().map(id).unwrap_or_default(),
                deleted: id(self.deleted),
            };
            (stream, GroupFacts { delivered: id(self.position), read: Some(self.read), ..GroupFacts::default() })
        }

        fn trim(&mut self, length: usize) {
            while self.entries.len() > length {
                self.lost += u64::from(self.entries.remove(0) > self.position);
            }
        }

        fn read(&mut self, count: usize) {
            let unread: Vec<u64> = self.entries.iter().copied().filter(|entry| *entry > self.position).collect();
            if let Some(last) = unread[..unread.len().min(count)].last() {
                (self.position, self.read) = (*last, self.read + unread.len().min(count) as u64);
            }
        }
    }

    proptest! {
        #[test]
        fn all_that_is_trimmed_unread_is_told_once(acts in acts(), deletes: bool) {
            let (mut model, mut told, mut seen) = (Model::default(), 0, Seen::default());
            let check = |model: &mut Model, told: &mut u64, seen: &mut Seen| {
                let (stream, group) = model.facts();
                match gap(&stream, &group, seen, deletes) {
                    Some(Gap::Removed(Some(lost))) => (*told, model.read) = (*told + lost, model.read + lost),
                    None => {}
                    other => panic!("{other:?} of {model:?}"),
                }
                *seen = Seen { position: group.delivered, added: stream.added, ..*seen };
            };
            for act in acts {
                match act {
                    Act::Add(count) => {
                        model.entries.extend((1..=count).map(|more| model.added + more));
                        model.added += count;
                    }
                    Act::Trim(length) => model.trim(length),
                    Act::Read(count) => {
                        // Both happen in one transaction.
                        check(&mut model, &mut told, &mut seen);
                        model.read(count);
                    }
                    Act::Clean if deletes => {
                        let (entries, position) = (&mut model.entries, model.position);
                        let read = entries.iter().copied().filter(|one| *one <= position);
                        model.deleted = read.max().unwrap_or(model.deleted);
                        entries.retain(|entry| *entry > position);
                    }
                    Act::Clean => {}
                }
                prop_assert!(told <= model.lost, "{told} told of {model:?}");
            }
            check(&mut model, &mut told, &mut seen);
            model.read(usize::MAX);
            check(&mut model, &mut told, &mut seen);
            prop_assert_eq!(told, model.lost);
        }
    }

    #[test]
    fn each_loss_has_its_sign() {
        let stream = StreamFacts { length: 5, added: 10, last: id(10), first: id(6), deleted: id(0) };
        let group = GroupFacts { delivered: id(7), read: Some(7), ..GroupFacts::default() };
        let seen = Seen { position: id(7), added: 10, told: id(0) };
        let of = |stream: StreamFacts, group: GroupFacts| gap(&stream, &group, &seen, false);
        assert_eq!(of(stream, group), None);
        assert_eq!(of(StreamFacts { deleted: id(9), ..stream }, group), Some(Gap::Deleted(id(9))));
        assert_eq!(gap(&StreamFacts { deleted: id(9), ..stream }, &group, &Seen { told: id(9), ..seen }, false), None);
        assert_eq!(of(StreamFacts { deleted: id(7), ..stream }, group), None);
        assert_eq!(of(stream, GroupFacts { delivered: id(6), ..group }), Some(Gap::Back(id(6))));
        assert_eq!(of(StreamFacts { added: 9, ..stream }, group), Some(Gap::Recreated));
        assert_eq!(of(StreamFacts { last: id(3), ..stream }, group), Some(Gap::Recreated));
        let trimmed = StreamFacts { length: 1, first: id(10), ..stream };
        assert_eq!(of(trimmed, group), Some(Gap::Removed(Some(2))));
        assert_eq!(of(trimmed, GroupFacts { read: None, ..group }), Some(Gap::Removed(None)));
        assert_eq!(gap(&trimmed, &GroupFacts { read: None, ..group }, &seen, true), None);
        assert_eq!(of(StreamFacts { length: 0, first: id(0), ..stream }, group), Some(Gap::Removed(Some(3))));
        let new = GroupFacts { delivered: id(0), read: None, ..group };
        assert_eq!(gap(&trimmed, &new, &Seen::default(), false), None, "it begins with what there is");
    }
}

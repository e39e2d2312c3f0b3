//! Units that wait to be read, those of the largest size first. A cluster may read ten million of them, so they are
//! packed: the texts of neighbours in a listing have long beginnings in common.

use std::collections::VecDeque;
use std::io;

use serde::{Deserialize, Serialize};

/// Units of a packed block.
const BLOCK: usize = 1024;

/// A class for each number of bits that a size can have.
const CLASSES: usize = u64::BITS as usize + 1;

/// How much of a file a unit is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// All of it.
    #[default]
    Whole,
    /// The first of its parts. Where files are counted, it counts as one.
    Beginning,
    /// Another part, which does not count.
    Further,
}

impl Extent {
    const ALL: [Extent; 3] = [Extent::Whole, Extent::Beginning, Extent::Further];

    /// How many files it counts for.
    pub fn files(self) -> u64 {
        u64::from(self != Extent::Further)
    }
}

/// A unit, as it is sent to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedUnit {
    /// The number of the source in the job.
    pub source: u32,
    /// How many bytes are to be read, as stored; 0 if nobody knows.
    pub bytes: u64,
    /// Whether it is a whole file or a range of one. A range has a bundle of its own: in a bundle, the URI of a file
    /// identifies the unit.
    pub extent: Extent,
    /// Whether the target may have some of it.
    pub is_known: bool,
    /// The unit itself, which only workers read.
    pub text: String,
}

/// Units that wait.
#[derive(Debug)]
pub struct Pool {
    classes: Vec<Class>,
    units: u64,
    bytes: u64,
}

/// Units of about the same size: at most the double of another one.
#[derive(Debug, Default)]
struct Class {
    /// Those that come next.
    first: VecDeque<ListedUnit>,
    packed: VecDeque<Block>,
    /// Those that came last.
    last: Vec<ListedUnit>,
}

#[derive(Debug)]
struct Block {
    units: usize,
    /// What is packed, in bytes.
    size: usize,
    packed: Box<[u8]>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool { classes: (0..CLASSES).map(|_| Class::default()).collect(), units: 0, bytes: 0 }
    }
}

impl Pool {
    /// How many units wait.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a unit.
    ///
    /// # Errors
    /// If memory for packing is short.
    pub fn add(&mut self, unit: ListedUnit) -> io::Result<()> {
        let class = &mut self.classes[(u64::BITS - unit.bytes.leading_zeros()) as usize];
        self.units += 1;
        self.bytes = self.bytes.saturating_add(unit.bytes);
        class.last.push(unit);
        if class.last.len() == BLOCK {
            class.packed.push_back(pack(&class.last)?);
            class.last.clear();
        }
        Ok(())
    }

    /// Takes units of so many bytes, or a few more, but at most `most` of them; the largest first. A range of a file is
    /// taken alone.
    ///
    /// # Errors
    /// If what was packed cannot be unpacked.
    pub fn take(&mut self, bytes: u64, most: usize) -> io::Result<Vec<ListedUnit>> {
        let (mut taken, mut sum) = (Vec::new(), 0_u64);
        'classes: for class in self.classes.iter_mut().rev() {
            while taken.len() < most && (sum < bytes || taken.is_empty()) {
                let Some(unit) = class.next()? else { break };
                let is_range = unit.extent != Extent::Whole;
                if is_range && !taken.is_empty() {
                    class.first.push_front(unit);
                    break 'classes;
                }
                sum = sum.saturating_add(unit.bytes);
                taken.push(unit);
                if is_range {
                    break 'classes;
                }
            }
        }
        self.units -= taken.len() as u64;
        self.bytes = self.bytes.saturating_sub(sum);
        Ok(taken)
    }
}

impl Class {
    fn next(&mut self) -> io::Result<Option<ListedUnit>> {
        if self.first.is_empty() {
            match self.packed.pop_front() {
                Some(block) => self.first = unpack(&block)?.into(),
                None => self.first = std::mem::take(&mut self.last).into(),
            }
        }
        Ok(self.first.pop_front())
    }
}

/// For each unit: source, bytes, extent and whether it is known, how much of the text before it begins with as well,
/// and the rest of its text.
fn pack(units: &[ListedUnit]) -> io::Result<Block> {
    let (mut plain, mut before) = (Vec::new(), "");
    for unit in units {
        let same = before.bytes().zip(unit.text.bytes()).take_while(|(a, b)| a == b).count();
        let rest = &unit.text.as_bytes()[same..];
        let kind = unit.extent as u64 * 2 + u64::from(unit.is_known);
        for number in [u64::from(unit.source), unit.bytes, kind, same as u64, rest.len() as u64] {
            put(&mut plain, number);
        }
        plain.extend_from_slice(rest);
        before = &unit.text;
    }
    let packed = zstd::bulk::compress(&plain, 1)?.into_boxed_slice();
    Ok(Block { units: units.len(), size: plain.len(), packed })
}

fn unpack(block: &Block) -> io::Result<Vec<ListedUnit>> {
    let plain = zstd::bulk::decompress(&block.packed, block.size)?;
    let mut rest = plain.as_slice();
    let mut units: Vec<ListedUnit> = Vec::with_capacity(block.units);
    for _ in 0..block.units {
        let mut number = || take(&mut rest);
        let [source, bytes, kind, same, length] = [number()?, number()?, number()?, number()?, number()?];
        let extent = Extent::ALL.get(usize::try_from(kind / 2).unwrap_or(usize::MAX)).copied().ok_or_else(damaged)?;
        let before = units.last().map_or(&[][..], |unit| unit.text.as_bytes());
        let (same, own) = (before.get(..same as usize), rest.get(..length as usize));
        let text = same.zip(own).map(|(same, own)| [same, own].concat()).ok_or_else(damaged)?;
        rest = &rest[length as usize..];
        let (source, text) = (u32::try_from(source).ok(), String::from_utf8(text).ok());
        let (source, text) = source.zip(text).ok_or_else(damaged)?;
        units.push(ListedUnit { source, bytes, extent, is_known: kind % 2 == 1, text });
    }
    Ok(units)
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "packed units are damaged")
}

/// Seven bits in each byte, the lowest first; the highest bit says that more follow.
fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take(from: &mut &[u8]) -> io::Result<u64> {
    let (mut number, mut shift) = (0_u64, 0);
    loop {
        let (&byte, rest) = from.split_first().ok_or_else(damaged)?;
        *from = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift).ok_or_else(damaged)?;
        if byte < 0x80 {
            return Ok(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn unit(number: u64, bytes: u64) -> ListedUnit {
        ListedUnit {
            source: (number % 3) as u32,
            bytes,
            extent: Extent::Whole,
            is_known: number.is_multiple_of(5),
            text: format!("s3://bucket/day={}/part-{number}.gz", number / 1000),
        }
    }

    /// Of a hundred units some are ranges.
    fn any(number: u64, bytes: u64) -> ListedUnit {
        ListedUnit { extent: Extent::ALL[(number % 97 / 48) as usize], ..unit(number, bytes) }
    }

    #[test]
    fn what_is_put_in_comes_out_once_and_about_in_order_of_size() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut pool = Pool::default();
        let mut all = BTreeSet::new();
        for number in 0..10_000 {
            let bytes = random.u64(..) >> random.u32(0..64);
            all.insert((number, bytes));
            pool.add(any(number, bytes)).expect("added");
        }
        assert_eq!(pool.units(), 10_000);
        let (mut before, mut found) = (u64::MAX, BTreeSet::new());
        loop {
            let taken = pool.take(1 << 40, 100).expect("taken");
            if taken.is_empty() {
                break;
            }
            assert!(taken.len() <= 100);
            assert!(taken.len() == 1 || taken.iter().all(|unit| unit.extent == Extent::Whole));
            for its in taken {
                assert!(its.bytes / 2 <= before, "{} after {before}", its.bytes);
                before = its.bytes;
                let number: u64 = its.text.rsplit(['-', '.']).nth(1).and_then(|text| text.parse().ok()).expect("one");
                assert_eq!(its, any(number, its.bytes));
                assert!(found.insert((number, its.bytes)));
            }
        }
        assert_eq!((found, pool.units()), (all, 0));
    }

    #[test]
    fn a_bundle_has_one_unit_at_least_and_not_much_more_than_asked_for() {
        let mut pool = Pool::default();
        for number in 0..100 {
            pool.add(unit(number, if number == 50 { 1 << 40 } else { 1000 })).expect("added");
        }
        let large = pool.take(10_000, 1_000).expect("taken");
        assert_eq!(large.iter().map(|unit| unit.bytes).collect::<Vec<_>>(), [1 << 40]);
        assert_eq!(pool.take(10_000, 1_000).expect("taken").len(), 10);
        assert_eq!(pool.take(0, 1_000).expect("taken").len(), 1);
        assert_eq!(pool.take(u64::MAX, 1_000).expect("taken").len(), 88);
        assert!(pool.take(1, 1).expect("taken").is_empty());
    }
}

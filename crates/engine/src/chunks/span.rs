//! Which records of a group a row is from: a number that goes through all operators beside the row.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use millstream_core::{Error, Result};

use crate::rejects::carried::Carried;

/// Records of a group that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first, counted from 0.
    pub first: u64,
    /// The last, if the row is one of those that a step gave for a batch of records; otherwise it is the first itself.
    pub last: Option<u64>,
}

/// Bits for how many records a batch has, below those for the first of them.
const BITS: u32 = 32;

impl Span {
    /// The record `number`.
    pub fn one(number: u64) -> Self {
        Span { first: number, last: None }
    }

    /// As a number.
    ///
    /// # Errors
    /// If the group has too many records.
    pub fn pack(self) -> Result<u64> {
        let records = self.last.map_or(0, |last| last - self.first + 1);
        match self.first >> BITS == 0 && records >> BITS == 0 {
            true => Ok(self.first << BITS | records),
            false => Err(Error::internal("a group has too many records")),
        }
    }

    /// From a number.
    pub fn unpack(number: u64) -> Self {
        let (first, records) = (number >> BITS, number & ((1 << BITS) - 1));
        Span { first, last: records.checked_sub(1).map(|more| first + more) }
    }
}

/// The last column of rows of a group.
#[derive(Debug)]
pub struct Spans {
    /// Behind which records a chunk ends.
    pub chunk_ends: Vec<u64>,
}

impl Spans {
    fn chunk(&self, row: Span) -> usize {
        self.chunk_ends.partition_point(|end| *end <= row.first)
    }
}

impl Carried for Spans {
    fn is_apart(&self, column: &ArrayRef, one: usize, other: usize) -> bool {
        let rows = column.as_primitive::<UInt64Type>();
        self.chunk(Span::unpack(rows.value(one))) != self.chunk(Span::unpack(rows.value(other)))
    }

    fn together(&self, column: &ArrayRef) -> Result<ArrayRef> {
        let spans = || column.as_primitive::<UInt64Type>().values().iter().map(|number| Span::unpack(*number));
        let first = spans().map(|span| span.first).min().unwrap_or_default();
        let last = spans().map(|span| span.last.unwrap_or(span.first)).max();
        Ok(Arc::new(UInt64Array::from(vec![Span { first, last }.pack()?])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_records_of_one_chunk() {
        let column = |spans: &[Span]| -> ArrayRef {
            Arc::new(spans.iter().map(|span| span.pack().expect("few records")).collect::<UInt64Array>())
        };
        let unpacked = |column: &ArrayRef| Span::unpack(column.as_primitive::<UInt64Type>().value(0));
        let spans = Spans { chunk_ends: vec![3, 10] };
        let rows = column(&[0, 2, 3, 9, 5].map(Span::one));
        assert_eq!(spans.ends(&rows), [2, 5]);
        assert_eq!(spans.ends(&rows.slice(0, 0)), Vec::<usize>::new());
        let together = spans.together(&rows.slice(2, 3)).expect("few records");
        assert_eq!(unpacked(&together), Span { first: 3, last: Some(9) });
        // A row of a batch of one record is not that record.
        let alone = spans.together(&rows.slice(0, 1)).expect("few records");
        assert_eq!(unpacked(&alone), Span { first: 0, last: Some(0) });
        assert_eq!(unpacked(&rows), Span::one(0));
        // A batch of rows of batches.
        let rows = column(&[Span { first: 4, last: Some(8) }, Span { first: 3, last: Some(5) }]);
        assert_eq!(unpacked(&spans.together(&rows).expect("few records")), Span { first: 3, last: Some(8) });
        assert!(Span::one(1 << 32).pack().is_err());
    }
}

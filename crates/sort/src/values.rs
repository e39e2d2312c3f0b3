//! Single values as bytes whose order is the order of the values.
//!
//! | type | bytes |
//! |---|---|
//! | signed integers, decimals, dates, times, timestamps, durations | big-endian, the sign bit flipped |
//! | unsigned integers | big-endian |
//! | floats | IEEE 754's total order: of a negative number all bits are flipped, of another the sign |
//! | intervals | their parts, each as a signed integer |
//!
//! Bytes of any length (text, binary) are made in [`crate::rows`].

use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{IntervalDayTime, IntervalMonthDayNano, i256};
use half::f16;

/// A value of a fixed width that has bytes in order.
pub(crate) trait Ordered: Copy {
    /// Its bytes.
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default + Copy;

    /// Bytes that compare as the values do.
    fn to_ordered(self) -> Self::Bytes;

    /// The value of [`Ordered::to_ordered`]'s bytes.
    fn from_ordered(bytes: Self::Bytes) -> Self;
}

macro_rules! unsigned {
    ($($type:ty)*) => {$(
        impl Ordered for $type {
            type Bytes = [u8; size_of::<$type>()];

            fn to_ordered(self) -> Self::Bytes {
                self.to_be_bytes()
            }

            fn from_ordered(bytes: Self::Bytes) -> Self {
                Self::from_be_bytes(bytes)
            }
        }
    )*};
}

macro_rules! signed {
    ($($type:ty, $min:expr;)*) => {$(
        impl Ordered for $type {
            type Bytes = [u8; size_of::<$type>()];

            fn to_ordered(self) -> Self::Bytes {
                (self ^ $min).to_be_bytes()
            }

            fn from_ordered(bytes: Self::Bytes) -> Self {
                Self::from_be_bytes(bytes) ^ $min
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $bits:ty, $signed:ty;)*) => {$(
        impl Ordered for $type {
            type Bytes = [u8; size_of::<$type>()];

            fn to_ordered(self) -> Self::Bytes {
                let bits = self.to_bits();
                let negative = ((bits as $signed) >> (<$bits>::BITS - 1)) as $bits;
                (bits ^ (negative | 1 << (<$bits>::BITS - 1))).to_be_bytes()
            }

            fn from_ordered(bytes: Self::Bytes) -> Self {
                let bits = <$bits>::from_be_bytes(bytes);
                let positive = ((bits as $signed) >> (<$bits>::BITS - 1)) as $bits;
                Self::from_bits(bits ^ (!positive | 1 << (<$bits>::BITS - 1)))
            }
        }
    )*};
}

unsigned! { u8 u16 u32 u64 }
signed! { i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN; }
floats! { f16, u16, i16; f32, u32, i32; f64, u64, i64; }

impl Ordered for i256 {
    type Bytes = [u8; 32];

    fn to_ordered(self) -> [u8; 32] {
        let mut bytes = self.to_be_bytes();
        bytes[0] ^= 0x80;
        bytes
    }

    fn from_ordered(mut bytes: [u8; 32]) -> Self {
        bytes[0] ^= 0x80;
        i256::from_be_bytes(bytes)
    }
}

impl Ordered for IntervalDayTime {
    type Bytes = [u8; 8];

    fn to_ordered(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.days.to_ordered());
        bytes[4..].copy_from_slice(&self.milliseconds.to_ordered());
        bytes
    }

    fn from_ordered(bytes: [u8; 8]) -> Self {
        IntervalDayTime { days: part(&bytes[..4]), milliseconds: part(&bytes[4..]) }
    }
}

impl Ordered for IntervalMonthDayNano {
    type Bytes = [u8; 16];

    fn to_ordered(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.months.to_ordered());
        bytes[4..8].copy_from_slice(&self.days.to_ordered());
        bytes[8..].copy_from_slice(&self.nanoseconds.to_ordered());
        bytes
    }

    fn from_ordered(bytes: [u8; 16]) -> Self {
        IntervalMonthDayNano { months: part(&bytes[..4]), days: part(&bytes[4..8]), nanoseconds: part(&bytes[8..]) }
    }
}

/// The value whose ordered bytes are `bytes`.
fn part<T: Ordered>(bytes: &[u8]) -> T {
    let mut own = T::Bytes::default();
    own.as_mut().copy_from_slice(bytes);
    T::from_ordered(own)
}

/// Reads the values at `cursors` of `rows` and moves the cursors behind them. With `flip` all their bits are flipped.
pub(crate) fn read<T>(rows: &[&[u8]], cursors: &mut [usize], flip: bool) -> ScalarBuffer<T>
where
    T: Ordered + arrow::datatypes::ArrowNativeType,
{
    let mask = if flip { 0xff } else { 0 };
    let values: Vec<T> = rows
        .iter()
        .zip(cursors)
        .map(|(row, cursor)| {
            let mut bytes = T::Bytes::default();
            let width = bytes.as_ref().len();
            bytes.as_mut().copy_from_slice(&row[*cursor..*cursor + width]);
            bytes.as_mut().iter_mut().for_each(|byte| *byte ^= mask);
            *cursor += width;
            T::from_ordered(bytes)
        })
        .collect();
    values.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agrees<T: Ordered + PartialEq + std::fmt::Debug>(one: T, other: T, order: std::cmp::Ordering) {
        assert_eq!(one.to_ordered().as_ref().cmp(other.to_ordered().as_ref()), order, "{one:?} {other:?}");
    }

    proptest! {
        #[test]
        fn bytes_compare_as_numbers_do(a: i64, b: i64, c: u32, d: u32, e: i128, f: i128) {
            agrees(a, b, a.cmp(&b));
            agrees(c, d, c.cmp(&d));
            agrees(e, f, e.cmp(&f));
            agrees(i256::from_i128(e), i256::from_i128(f), e.cmp(&f));
            prop_assert_eq!(i64::from_ordered(a.to_ordered()), a);
            prop_assert_eq!(i256::from_ordered(i256::from_i128(e).to_ordered()), i256::from_i128(e));
        }

        #[test]
        fn bytes_compare_as_floats_do(a: u64, b: u64, c: u32, d: u32) {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            prop_assert_eq!(a.to_ordered().cmp(&b.to_ordered()), a.total_cmp(&b));
            prop_assert_eq!(f64::from_ordered(a.to_ordered()).to_bits(), a.to_bits());
            let (c, d) = (f32::from_bits(c), f32::from_bits(d));
            prop_assert_eq!(c.to_ordered().cmp(&d.to_ordered()), c.total_cmp(&d));
        }

        #[test]
        fn intervals_come_back(months: i32, days: i32, nanoseconds: i64) {
            let interval = IntervalMonthDayNano { months, days, nanoseconds };
            prop_assert_eq!(IntervalMonthDayNano::from_ordered(interval.to_ordered()), interval);
            let interval = IntervalDayTime { days, milliseconds: months };
            prop_assert_eq!(IntervalDayTime::from_ordered(interval.to_ordered()), interval);
        }
    }
}

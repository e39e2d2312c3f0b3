//! Values that their type does not allow: a decimal with more digits than its precision, a time of day below zero or
//! beyond midnight.
//!
//! An Arrow array can hold them, and nearly everything hands them on, until a writer cuts digits off. So they are
//! refused where they can come into being: in what a file holds, in what SQL computes, and at last before a sink.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, i256,
};

use crate::types::{decimal_text, type_name};
use crate::{Error, RejectKind, Result};

const NOT_WITHIN_A_DAY: &str = "the value is not within a day";

/// An error if a value of `batch` is none that its type allows.
pub fn check(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        if let Some(error) = fault(column, 0..column.len()) {
            let hint = match error.what() == NOT_WITHIN_A_DAY {
                true => {
                    "times range from 00:00:00 to before 24:00:00: filter out rows with other values, or convert them \
                     to text"
                }
                false => "CAST the column to a type that holds it: decimal(38, 2), float64, utf8",
            };
            // It is too late to leave the row out.
            return Err(error.column(field.name()).reject(RejectKind::Other).hint(hint));
        }
    }
    Ok(())
}

/// What is wrong with the first value, in the rows of `range`, that its type does not allow: an error of kind `Data`
/// with the value as its text.
pub fn fault(values: &ArrayRef, range: Range<usize>) -> Option<Error> {
    match values.data_type() {
        DataType::Decimal32(digits, scale) => {
            let most = i64::from(10_i32.checked_pow(u32::from(*digits)).unwrap_or(i32::MAX)).max(1);
            let index = outside::<Decimal32Type>(values, range, |value| i64::from(value).abs() < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal32Type>().value(index), *scale)))
        }
        DataType::Decimal64(digits, scale) => {
            let most = 10_i128.pow(u32::from(*digits));
            let index = outside::<Decimal64Type>(values, range, |value| i128::from(value).abs() < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal64Type>().value(index), *scale)))
        }
        DataType::Decimal128(digits, scale) => {
            let most = 10_i128.checked_pow(u32::from(*digits)).unwrap_or(i128::MAX);
            let index = outside::<Decimal128Type>(values, range, |value| -most < value && value < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal128Type>().value(index), *scale)))
        }
        DataType::Decimal256(digits, scale) => {
            let most = i256::from_i128(10).checked_pow(u32::from(*digits)).unwrap_or(i256::MAX);
            let least = most.wrapping_neg();
            let index = outside::<Decimal256Type>(values, range, |value| least < value && value < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal256Type>().value(index), *scale)))
        }
        DataType::Time32(TimeUnit::Second) => time::<Time32SecondType>(values, range, 1),
        DataType::Time32(_) => time::<Time32MillisecondType>(values, range, 1_000),
        DataType::Time64(TimeUnit::Microsecond) => time::<Time64MicrosecondType>(values, range, 1_000_000),
        DataType::Time64(_) => time::<Time64NanosecondType>(values, range, 1_000_000_000),
        DataType::List(_) => below(values, range, |range| in_list(values.as_list::<i32>(), &range)),
        DataType::LargeList(_) => below(values, range, |range| in_list(values.as_list::<i64>(), &range)),
        DataType::FixedSizeList(_, size) => below(values, range, |range| {
            let size = usize::try_from(*size).ok()?;
            fault(values.as_fixed_size_list().values(), range.start * size..range.end * size)
        }),
        DataType::Map(..) => below(values, range, |range| {
            let maps = values.as_map();
            let items = items(maps.offsets(), &range)?;
            maps.entries().columns().iter().find_map(|part| fault(part, items.clone()))
        }),
        DataType::Struct(_) => below(values, range, |range| {
            values.as_struct().columns().iter().find_map(|member| fault(member, range.clone()))
        }),
        _ => None,
    }
}

/// What `find` finds in the items or members of the rows in `range`, but not in those of a null.
fn below(values: &ArrayRef, range: Range<usize>, find: impl Fn(Range<usize>) -> Option<Error>) -> Option<Error> {
    let found = find(range.clone())?;
    if values.null_count() == 0 {
        return Some(found);
    }
    range.into_iter().filter(|row| values.is_valid(*row)).find_map(|row| find(row..row + 1))
}

fn in_list<O: OffsetSizeTrait>(lists: &GenericListArray<O>, range: &Range<usize>) -> Option<Error> {
    items(lists.offsets(), range).and_then(|items| fault(lists.values(), items))
}

/// The items of the lists in `range`.
pub fn items<O: OffsetSizeTrait>(offsets: &[O], range: &Range<usize>) -> Option<Range<usize>> {
    let (begin, end) = (offsets.get(range.start)?, offsets.get(range.end)?);
    Some(begin.to_usize()?..end.to_usize()?)
}

/// The first value in `range` that is not `sound`. What stands where there is a null does not matter.
fn outside<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    range: Range<usize>,
    sound: impl Fn(T::Native) -> bool,
) -> Option<usize> {
    let values = values.as_primitive::<T>();
    // Without a branch for each value: nearly always all of them are sound.
    if values.values().get(range.clone())?.iter().fold(true, |all, value| all & sound(*value)) {
        return None;
    }
    range.into_iter().find(|index| values.is_valid(*index) && !sound(values.value(*index)))
}

fn too_long(values: &ArrayRef, text: &str) -> Error {
    let data_type = type_name(values.data_type());
    Error::data(format!("the value has more digits than {data_type} allows")).text(text).reject(RejectKind::OutOfRange)
}

fn time<T: ArrowPrimitiveType>(values: &ArrayRef, range: Range<usize>, per_second: i64) -> Option<Error>
where
    T::Native: Into<i64>,
{
    // Not 24:00:00, which PostgreSQL knows: a csv sink would write 00:00:00.
    let day = 86_400 * per_second;
    let index = outside::<T>(values, range, |value| (0..day).contains(&value.into()))?;
    let value: i64 = values.as_primitive::<T>().value(index).into();
    let sign = if value < 0 { "-" } else { "" };
    let (whole, part) =
        (value.unsigned_abs() / per_second.unsigned_abs(), value.unsigned_abs() % per_second.unsigned_abs());
    let digits = per_second.ilog10() as usize;
    let fraction = if part > 0 { format!(".{part:0digits$}") } else { String::new() };
    let text = format!("{sign}{:02}:{:02}:{:02}{fraction}", whole / 3600, whole / 60 % 60, whole % 60);
    Some(Error::data(NOT_WITHIN_A_DAY).text(text).reject(RejectKind::OutOfRange))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array, FixedSizeListArray, LargeListArray,
        ListArray, StructArray, Time32SecondArray, Time64MicrosecondArray, Time64NanosecondArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Fields};

    use super::*;

    fn text(values: impl Array + 'static) -> Option<String> {
        let values: ArrayRef = Arc::new(values);
        let error = fault(&values, 0..values.len())?;
        error.offending_text().map(str::to_owned)
    }

    #[test]
    fn a_decimal_has_at_most_as_many_digits_as_its_precision() {
        let decimals = |values: Vec<i128>, digits, scale| {
            text(Decimal128Array::from(values).with_precision_and_scale(digits, scale).expect("a type"))
        };
        assert_eq!(decimals(vec![99999, -99999, 0], 5, 2), None);
        assert_eq!(decimals(vec![1, -100_000], 5, 2).as_deref(), Some("-1000.00"));
        assert_eq!(decimals(vec![-4_431_538], 5, 2).as_deref(), Some("-44315.38"));
        assert_eq!(
            decimals(vec![10_i128.pow(38)], 38, 38).as_deref(),
            Some(concat!("1.", "0000000000", "0000000000", "0000000000", "00000000"))
        );
        assert_eq!(decimals(vec![i128::MIN], 38, 0).as_deref(), Some("-170141183460469231731687303715884105728"));
        assert_eq!(decimals(vec![123], 2, -2).as_deref(), Some("12300"));
        let narrow = |value| Decimal32Array::from(vec![value]).with_precision_and_scale(9, 0).expect("a type");
        assert_eq!((text(narrow(999_999_999)), text(narrow(i32::MIN))), (None, Some("-2147483648".into())));
        let middle = |value| Decimal64Array::from(vec![value]).with_precision_and_scale(18, 3).expect("a type");
        assert_eq!(text(middle(i64::MAX)).as_deref(), Some("9223372036854775.807"));
        let wide = |value| Decimal256Array::from(vec![value]).with_precision_and_scale(76, 0).expect("a type");
        assert_eq!((text(wide(i256::ONE)), text(wide(i256::MAX)).map(|text| text.len())), (None, Some(77)));
    }

    #[test]
    fn a_time_is_within_a_day() {
        assert_eq!(text(Time32SecondArray::from(vec![0, 86_399])), None);
        assert_eq!(text(Time32SecondArray::from(vec![86_400])).as_deref(), Some("24:00:00"));
        assert_eq!(text(Time64MicrosecondArray::from(vec![86_400_000_001])).as_deref(), Some("24:00:00.000001"));
        let batch = |column: ArrayRef| RecordBatch::try_from_iter([("t", column)]).expect("a batch");
        let hint = |column| check(&batch(column)).expect_err("refused").hint_text().unwrap_or_default().to_owned();
        assert!(
            hint(Arc::new(Time32SecondArray::from(vec![-1])))
                .starts_with("times range from 00:00:00 to before 24:00:00")
        );
        let decimals = Decimal128Array::from(vec![1000]).with_precision_and_scale(2, 0).expect("a type");
        assert!(hint(Arc::new(decimals)).starts_with("CAST the column"));
        assert_eq!(text(Time64MicrosecondArray::from(vec![-13_899_000_000])).as_deref(), Some("-03:51:39"));
        assert_eq!(text(Time64NanosecondArray::from(vec![-1])).as_deref(), Some("-00:00:00.000000001"));
    }

    #[test]
    fn what_stands_where_there_is_a_null_does_not_matter() {
        let values = Time32SecondArray::new(vec![-1, 1].into(), Some(vec![false, true].into()));
        assert_eq!(text(values), None);
    }

    #[test]
    fn what_is_below_a_null_does_not_matter() {
        let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![1, -2, -3, 4]));
        let item = Arc::new(Field::new_list_field(times.data_type().clone(), true));
        let kinds = |nulls: [bool; 2]| -> [ArrayRef; 4] {
            let nulls = || Some(nulls.to_vec().into());
            let offsets = OffsetBuffer::new(vec![0, 2, 4].into());
            let large = OffsetBuffer::new(vec![0_i64, 2, 4].into());
            let member = Arc::new(Field::new("t", times.data_type().clone(), true));
            let members = vec![times.slice(1, 2)];
            [
                Arc::new(ListArray::new(Arc::clone(&item), offsets, Arc::clone(&times), nulls())),
                Arc::new(LargeListArray::new(Arc::clone(&item), large, Arc::clone(&times), nulls())),
                Arc::new(FixedSizeListArray::new(Arc::clone(&item), 2, Arc::clone(&times), nulls())),
                Arc::new(StructArray::new(vec![member].into(), members, nulls())),
            ]
        };
        let found = |values: &ArrayRef, range| fault(values, range)?.offending_text().map(str::to_owned);
        for (first, second) in kinds([true, false]).iter().zip(&kinds([false, true])) {
            let kind = first.data_type();
            assert_eq!(found(first, 0..2).as_deref(), Some("-00:00:02"), "{kind}");
            assert_eq!(found(second, 0..2).as_deref(), Some("-00:00:03"), "{kind}");
            assert_eq!((found(first, 1..2), found(second, 0..1)), (None, None), "{kind}");
            assert_eq!(found(&second.slice(1, 1), 0..1).as_deref(), Some("-00:00:03"), "{kind}");
        }
        for none in kinds([false, false]) {
            assert_eq!(found(&none, 0..2), None, "{}", none.data_type());
        }
    }

    #[test]
    fn it_is_found_inside_of_lists_and_structs() {
        let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![1, 2, -3, 4]));
        let item = Arc::new(Field::new_list_field(times.data_type().clone(), true));
        let offsets = arrow::buffer::OffsetBuffer::new(vec![0, 2, 4].into());
        let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, times, None));
        let fields = Fields::from(vec![Field::new("lists", lists.data_type().clone(), true)]);
        let whole: ArrayRef = Arc::new(StructArray::new(fields, vec![lists], None));
        assert!(fault(&whole, 0..1).is_none());
        assert_eq!(
            fault(&whole, 1..2).and_then(|error| error.offending_text().map(str::to_owned)).as_deref(),
            Some("-00:00:03")
        );
        assert!(fault(&whole.slice(0, 1), 0..1).is_none(), "a slice is looked at where it is");
        assert!(fault(&whole.slice(1, 1), 0..1).is_some());
    }
}

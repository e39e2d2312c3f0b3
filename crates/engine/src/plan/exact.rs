//! Whether a value that a job says keeps all of its digits in a column: a cast to a decimal rounds.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;

/// Enough digits for those before and behind the point of any column.
const WIDE: DataType = DataType::Decimal256(76, 38);

/// Whether `text` is the same number as a value of the type `kind`; true if that is no decimal.
pub fn keeps_digits(text: &str, kind: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    if !matches!(kind, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..)) {
        return true;
    }
    let text = ScalarValue::Utf8(Some(text.to_owned()));
    let kept = text.cast_to(kind).and_then(|value| value.cast_to(&WIDE));
    match (kept, text.cast_to(&WIDE)) {
        (Ok(kept), Ok(given)) => kept == given,
        // That it is no number is found by the cast itself.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_behind_the_last_one_are_lost() {
        let kind = DataType::Decimal128(10, 2);
        for exact in ["10", "10.1", "10.010", "-0.50", "99999999.99"] {
            assert!(keeps_digits(exact, &kind), "{exact}");
        }
        for lost in ["10.005", "0.001", "-1.999"] {
            assert!(!keeps_digits(lost, &kind), "{lost}");
        }
        assert!(keeps_digits("10.005", &DataType::Float64) && keeps_digits("x", &kind));
    }
}

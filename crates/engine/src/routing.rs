//! Which shard a row belongs to. The hash is part of the product: the same value goes to the same shard in every
//! version and on every machine, so it is fixed here and does not follow the engine's own.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray, UInt32Array};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility, lit,
};

/// `hash(value) mod shards` as an expression.
pub fn hash_mod(value: Expr, shards: u32) -> Expr {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(ScalarUDF::new_from_impl(HashMod::new())));
    FUNCTION.call(vec![value, lit(shards)])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct HashMod {
    signature: Signature,
}

impl HashMod {
    fn new() -> Self {
        HashMod { signature: Signature::new(TypeSignature::Any(2), Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for HashMod {
    fn name(&self) -> &str {
        "shard_of"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::UInt32)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let rows = arguments.number_rows;
        let [value, ColumnarValue::Scalar(ScalarValue::UInt32(Some(shards)))] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal("shard_of takes a value and the number of shards".into()));
        };
        let text = cast(&value.to_array(rows)?, &DataType::Utf8View)?;
        let text = text.as_string_view();
        let shard =
            |row| if text.is_valid(row) { (fnv1a(text.value(row).as_bytes()) % u64::from(*shards)) as u32 } else { 0 };
        Ok(ColumnarValue::Array(Arc::new((0..rows).map(shard).collect::<UInt32Array>())))
    }
}

/// FNV-1a, 64 bits, over the value's text (Fowler, Noll, Vo; RFC 9923), with the avalanche of MurmurHash3 behind it:
/// the low bits of plain FNV-1a are too regular for a small number of shards.
fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_fixed_and_even() {
        assert_eq!(fnv1a(b"") % 8, 6, "never change: files of earlier runs were sharded by it");
        let mut counts = [0u32; 8];
        (0..80_000).for_each(|number: u32| counts[(fnv1a(number.to_string().as_bytes()) % 8) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}

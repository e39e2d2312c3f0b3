//! What a program needs to add a SQL function.

pub use datafusion::common::DataFusionError;
pub use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarFunctionImplementation, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility, create_udf,
};

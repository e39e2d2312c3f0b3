//! What a SQL function is made of. These are types of DataFusion, whose documentation explains them; they change with
//! its versions.

pub use millstream_engine::sql::function::{
    ColumnarValue, DataFusionError, ScalarFunctionArgs, ScalarFunctionImplementation, ScalarUDF, ScalarUDFImpl,
    Signature, TypeSignature, Volatility, create_udf,
};

//! The parquet format.

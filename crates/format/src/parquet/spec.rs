//! What the job file may say of parquet.

use millstream_core::spec::{Fault, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of parquet. All are optional, and all are for writing: a file says itself how it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ParquetSpec {
    /// The compression inside the file.
    pub compression: Compression,
    /// The most rows of one row group. A group also ends when it takes about 64 MiB of memory.
    pub row_group_rows: u32,
}

/// The compression inside a parquet file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Quick, and read by everything.
    #[default]
    Snappy,
    /// Smaller than snappy.
    Zstd,
    /// Small and slow, for old readers.
    Gzip,
    /// As quick as snappy (the raw form of lz4).
    Lz4,
    /// None.
    None,
}

impl Default for ParquetSpec {
    fn default() -> Self {
        ParquetSpec { compression: Compression::default(), row_group_rows: 1 << 20 }
    }
}

impl Spec for ParquetSpec {
    const NAME: &'static str = "parquet";
    const SUMMARY: &'static str = "Parquet: columns with types and statistics.";
    const EXAMPLE: &'static str = "\
from: ranked
write: out/places.parquet
parquet: {compression: zstd}
";

    fn check(&self) -> Vec<Fault> {
        if self.row_group_rows > 0 {
            return Vec::new();
        }
        vec![Fault::new("row_group_rows", "a row group has at least one row")]
    }
}

//! Millstream's formats: lines, csv, json and parquet

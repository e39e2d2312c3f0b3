//! Tests of the csv format.

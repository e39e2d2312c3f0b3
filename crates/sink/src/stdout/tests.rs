//! Tests of standard output.

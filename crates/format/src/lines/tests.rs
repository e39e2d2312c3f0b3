//! Tests of the lines format.

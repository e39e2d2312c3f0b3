//! The json format: lines and arrays of objects.

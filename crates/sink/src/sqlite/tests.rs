//! Tests of the SQLite sink.

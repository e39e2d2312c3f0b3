//! The conformance suite of sinks.

//! Components of your own: how a program adds a source, a sink, transforms and a SQL function to Millstream. It depends
//! on the library alone.
//!
//! ```
//! use millstream::{Engine, JobBuilder, RunOptions};
//! use millstream_example_components::{channel, digits, numbers};
//! use serde_json::json;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mut registry = millstream::component::registry();
//! registry.add_source(numbers::ENTRY)?;
//! let batches = channel::add_to(&mut registry)?;
//! let engine = Engine::builder().registry(registry).function(digits::digit_sum());
//! # let state = tempfile::tempdir().unwrap();
//! # let asked = millstream::machine::Asked { state: Some(state.path().to_owned()), ..Default::default() };
//! # let engine = engine.machine(millstream::machine::Machine::detect(asked)?);
//! let engine = engine.build()?;
//!
//! let job = JobBuilder::new()
//!     .source("n", json!({"read": "numbers:1..100", "csv": {"header": false, "columns": {"n": "int64"}}}))
//!     .sql("result", "SELECT digit_sum(n) AS digits, count(*) AS numbers FROM n GROUP BY 1 ORDER BY 2 DESC LIMIT 1")
//!     .sink("out", json!({"from": "result", "write": "channel:results"}))
//!     .build(&engine)
//!     .await?;
//! engine.start(job, RunOptions::default())?.finish().await?;
//! assert_eq!(batches.try_iter().map(|(_, batch)| batch.num_rows()).sum::<usize>(), 1);
//! # Ok::<_, millstream::Failure>(())
//! # }).unwrap();
//! ```

pub mod channel;
pub mod digits;
pub mod mask;
pub mod numbers;
pub mod values;

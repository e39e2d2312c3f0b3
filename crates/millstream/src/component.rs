//! What components are made of: sources, transforms, sinks and formats that a program adds to an engine.
//!
//! ```
//! use millstream::component::Registry;
//! use millstream::Engine;
//!
//! let mut registry: Registry = millstream::component::registry();
//! // registry.add_source(…)?; registry.add_sink(…)?; registry.add_format(…)?;
//! let engine = Engine::builder().registry(registry).build()?;
//! # Ok::<_, millstream::Error>(())
//! ```

pub use millstream_core::budget::{Budget, Reservation};
pub use millstream_core::codec::{Codec, Decoder, Encoder, Limits};
pub use millstream_core::format::{
    Bound, Comparison, EmptyFiles, Format, OnDrift, ParseRequest, Parsed, Parser, RangeFormat, ReadAt, Reading, Reject,
    Required, RowEncoder, Rows, Sample, SeenColumns, Splitter, StreamFormat, TextPiece, TextPosition, Validate,
};
pub use millstream_core::pace::Pace;
pub use millstream_core::program::{Lines, ProgramContext};
pub use millstream_core::redact::Secrets;
pub use millstream_core::registry::{
    Build, Built, CodecEntry, FormatEntry, OptionalComponent, Registry, SinkEntry, SinkFormats, SourceEntry,
    StoreEntry, TransformEntry,
};
pub use millstream_core::sink::{
    Chunk, Delivered, Delivery, KnownLoad, Ledger, Load, LoadContext, Refusals, Refused, RefusedRow, Removed, Routing,
    RoutingKind, Sink, SinkParts, StagedLoad, Writer, WrittenChunks,
};
pub use millstream_core::source::{
    ByteStream, CacheUse, Content, OnError, OpenedUnit, PlaceClock, RowSource, Source, SourceContext, Window,
};
pub use millstream_core::spec::{Duration, Fault, Secret, Size, Spec, SpecInfo, TextOrSecret, parse};
pub use millstream_core::store::{Brought, Store, Stored, Upload};
pub use millstream_core::transform::{
    Answer, CallSize, Column, ColumnName, ColumnsFault, Distinct, Duplicate, EntryName, Expression, Failure, GivenRows,
    Keep, Lookup, Match, MatchWith, Miss, Per, Query, Relation, RowStream, ScratchPool, SortKey, SortTerm, SqlText,
    Taken, Text, TextKind, Transform, UnionBy, WorkRules, Worker, Workers,
};
pub use millstream_core::{Records, Step, Steps, Unit};
pub use millstream_engine::registry;

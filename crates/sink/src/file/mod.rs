//! The file sink: rows to files that appear under their final names only when all of them are complete.
//!
//! `naming.rs` says which file a row goes to, `load.rs` writes, `staging.rs` makes the result appear.

mod load;
mod naming;
mod spec;
mod staging;
#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::registry::{Built, SinkEntry};
use millstream_core::sink::{Load, LoadContext, Routing, RoutingKind, Sink, SinkParts};
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::{Error, Result};
use serde_json::Value;

use self::load::FileLoad;
use self::naming::{Route, Target};
pub use self::spec::{FileSpec, Roll, Shards};
use crate::encode::Encoding;
use crate::shared::{blocking, folder_fault};

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry { spec: SpecInfo::of::<FileSpec>(), schemes: &[""], formats: true, build };

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let spec: FileSpec = parse(settings)?;
    let target = Target::new(&parts.target, &spec);
    let encoding = Encoding::new(&parts, spec.level);
    match (target, encoding) {
        (Ok(target), Ok(encoding)) => Ok(Arc::new(FileSink { spec, target, encoding })),
        (target, encoding) => Err(target.err().into_iter().chain(encoding.err()).flatten().collect()),
    }
}

/// Writes files.
#[derive(Debug)]
pub(crate) struct FileSink {
    spec: FileSpec,
    target: Target,
    encoding: Encoding,
}

#[async_trait]
impl Sink for FileSink {
    fn name(&self) -> &'static str {
        "file"
    }

    fn target(&self) -> String {
        self.target.shown()
    }

    fn routing(&self) -> Option<Routing> {
        self.spec.routing()
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        let mut faults: Vec<Error> = self.encoding.check(schema).err().into_iter().collect();
        blocking(|| self.check_places(&mut faults));
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        let mut line = format!("{} to {}", self.encoding.describe(), self.target.shown());
        if let Some(routing) = self.routing() {
            line.push_str(&match routing.kind {
                RoutingKind::Hash(count) => format!(", {count} files by the hash of {}", routing.expression),
                RoutingKind::Mod(count) => format!(", {count} files by {} mod {count}", routing.expression),
                RoutingKind::Value => format!(", one file for each value of {}", routing.expression),
            });
        }
        if let Some(roll) = &self.spec.roll {
            let full = [roll.bytes.map(|size| size.to_string()), roll.rows.map(|rows| format!("{rows} rows"))];
            let full: Vec<String> = full.into_iter().flatten().collect();
            line.push_str(&format!(", a new file after {}", full.join(" or ")));
        }
        line
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        let load = blocking(|| FileLoad::begin(&self.spec, &self.target, &self.encoding, context))?;
        Ok(Arc::new(load))
    }
}

impl FileSink {
    /// All that is wrong with the places that the files go to, as far as it is known before there are rows.
    fn check_places(&self, faults: &mut Vec<Error>) {
        faults.extend(folder_fault(self.target.folder()));
        faults.extend(self.first_names().err());
        match staging::earlier_set(&self.target) {
            Ok(true) if !self.spec.overwrite => faults.push(
                Error::refused(format!("an earlier run's files {} exist already", self.target.shown()))
                    .hint("move them away, or leave `overwrite: false` out to replace them"),
            ),
            Ok(_) => {}
            // A folder that cannot be read has been told already.
            Err(error) => {
                if faults.is_empty() {
                    faults.push(error);
                }
            }
        }
    }

    /// The names that are known before there are rows.
    fn first_names(&self) -> Result<()> {
        let routes = match self.routing().map(|routing| routing.kind) {
            None => vec![Route::Only],
            Some(RoutingKind::Hash(count) | RoutingKind::Mod(count)) => (0..count).map(Route::Shard).collect(),
            Some(RoutingKind::Value) => vec![Route::Value(None)],
        };
        let folder: &Path = self.target.folder();
        routes.iter().try_for_each(|route| {
            let path = folder.join(self.target.path(route, 0)?);
            staging::existing_fault(&path, self.spec.overwrite)
        })
    }
}

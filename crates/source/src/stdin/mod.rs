//! Standard input: one unit, `-`, that can be read once, from front to back.

pub mod spec;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{Source, SourceContext};
use millstream_core::spec::SpecInfo;
use millstream_core::{ByteStream, Error, Result, Unit};

use crate::file::read::stream_pipe;
use spec::StdinSpec;

/// The source `stdin`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<StdinSpec>(),
    schemes: &["-"],
    check: &crate::pattern::check,
    rows: false,
    build: &|settings| {
        let StdinSpec {} = crate::settings(settings)?;
        Ok(Arc::new(StdinSource { taken: &TAKEN, descriptor: || io::stdin().as_fd().try_clone_to_owned() }))
    },
};

/// Whether this process has begun to read its standard input.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Standard input of this process.
#[derive(Debug)]
pub struct StdinSource {
    taken: &'static AtomicBool,
    descriptor: fn() -> io::Result<OwnedFd>,
}

#[async_trait]
impl Source for StdinSource {
    fn name(&self) -> &'static str {
        "stdin"
    }

    fn medium(&self) -> &'static str {
        "standard input"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn can_reopen(&self, _unit: &Unit) -> bool {
        false
    }

    fn reads_once(&self) -> Option<&'static str> {
        Some("standard input")
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, _: &str) -> BoxStream<'static, Result<Unit>> {
        futures::stream::once(async { Ok(Unit::new("-")) }).boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        if unit.range.is_some() {
            return Err(Error::refused("standard input has no ranges").in_unit("-", None));
        }
        if self.taken.swap(true, Ordering::SeqCst) {
            return Err(Error::refused("standard input can be read only once")
                .in_unit("-", None)
                .hint("write it to a file, and read that"));
        }
        let descriptor = (self.descriptor)()
            .map_err(|cause| Error::io("standard input cannot be read", &cause).in_unit("-", None))?;
        let file = fs_err::File::from_parts(descriptor.into(), "standard input");
        Ok(stream_pipe(context, Path::new("standard input").into(), Arc::new(file)))
    }
}

//! Objects on the web.
//!
//! `client.rs` sends one request, `transfer.rs` brings one unit to its end, `retry.rs` says when to try again. Here
//! they are wired to the source's trait. A URL is a unit without asking: the web cannot be listed.

mod client;
mod retry;
pub mod spec;
mod transfer;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{Source, SourceContext};
use millstream_core::spec::SpecInfo;
use millstream_core::{ByteStream, Error, ErrorKind, Result, Unit};
use tokio::runtime::Id;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::feed::feed;
use client::{Client, Target};
use spec::HttpSpec;
use transfer::{Output, SMALL, Transfer};

/// The source `http`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<HttpSpec>(),
    schemes: &["http", "https"],
    check: crate::pattern::check_url,
    build: |settings| Ok(Arc::new(HttpSource::new(crate::settings(settings)?))),
};

/// Objects on the web, read with one set of settings.
#[derive(Debug)]
pub struct HttpSource {
    spec: HttpSpec,
    /// Made at the first use: only then are secrets read.
    client: Mutex<Option<(Id, Arc<Client>)>>,
}

impl HttpSource {
    /// A source with these settings. Does no I/O.
    pub fn new(spec: HttpSpec) -> Self {
        HttpSource { spec, client: Mutex::new(None) }
    }

    async fn client(&self, context: &SourceContext) -> Result<Arc<Client>> {
        let runtime = context.io.id();
        if let Some((known, client)) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner)
            && *known == runtime
        {
            return Ok(Arc::clone(client));
        }
        let spec = self.spec.clone();
        let made = join(context.io.spawn_blocking(move || Client::shared(&spec, runtime))).await?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some((runtime, Arc::clone(&made)));
        Ok(made)
    }
}

#[async_trait]
impl Source for HttpSource {
    fn name(&self) -> &'static str {
        "http"
    }

    fn connections(&self) -> usize {
        self.spec.connections
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let unit = listed(pattern);
        futures::stream::once(async { unit }).boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        let client = self.client(context).await?;
        Target::parse(&unit.uri)?;
        let (sender, opened) = oneshot::channel();
        let unit = unit.clone();
        let stream = feed(context, SMALL as usize, move |feeder| async move {
            Transfer::new(client, unit, Output::Stream(feeder, Some(sender)))?.run().await
        });
        match opened.await {
            Ok(result) => result.map(|()| stream),
            Err(_) => Err(interrupted()),
        }
    }

    async fn read_range(&self, context: &SourceContext, unit: &Unit, range: Range<u64>) -> Result<Option<Bytes>> {
        if range.start >= range.end {
            return Ok(Some(Bytes::new()));
        }
        let client = self.client(context).await?;
        let part = Unit { range: Some(range), ..unit.clone() };
        let transfer = Transfer::new(client, part, Output::Buffer(BytesMut::new()))?;
        on_io(context, transfer.collect()).await
    }

    async fn size(&self, context: &SourceContext, unit: &Unit) -> Result<Option<u64>> {
        if unit.size.is_some() {
            return Ok(unit.size);
        }
        let client = self.client(context).await?;
        let uri = unit.uri.clone();
        on_io(context, async move { transfer::size(&client, &uri).await }).await
    }
}

/// The unit that a URL is.
fn listed(pattern: &str) -> Result<Unit> {
    let target = Target::parse(pattern)?;
    if target.path().contains(['*', '[', ']']) {
        return Err(Error::job("the web cannot be listed, so a URL has no wildcards").in_unit(pattern, None).hint(
            "write {a,b} or {000..999}, or a list of URLs with @list.txt; to mean the characters themselves, \
             write %2A, %5B and %5D",
        ));
    }
    Ok(Unit::new(pattern))
}

/// Runs `work` on the runtime of the network; it is stopped if nobody waits for it any more.
async fn on_io<T: Send + 'static>(
    context: &SourceContext,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    struct Stop(tokio::task::AbortHandle);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let task = context.io.spawn(work);
    let _stop = Stop(task.abort_handle());
    join(task).await
}

async fn join<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    match task.await {
        Ok(result) => result,
        Err(cause) if cause.is_cancelled() => Err(interrupted()),
        Err(cause) => Err(Error::internal("a fetching task failed").cause(cause)),
    }
}

/// The runtime is being shut down.
fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the run ended while an object was fetched")
}

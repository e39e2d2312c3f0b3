//! Objects on the web.
//!
//! `client.rs` sends one request, `transfer.rs` reads one unit, `retry.rs` decides on retries, `post.rs`
//! sends a text. This file implements the
//! source's trait with them. A URL is a unit without a request: the web cannot be listed.

pub(crate) mod answer;
pub(crate) mod client;
mod post;
pub(crate) mod retry;
pub mod spec;
pub(crate) mod transfer;
mod wire;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{OpenedUnit, Source, SourceContext};
use millstream_core::spec::{Spec, SpecInfo};
use millstream_core::{ByteStream, Error, Result, Unit};
use reqwest::Method;
use reqwest::header::{HeaderMap, IF_RANGE, RANGE};
use tokio::runtime::Id;

use crate::io::join;
use answer::Answer;
use client::{Client, Target};
pub use post::{Answered, post, request};
use retry::Fault;
pub use spec::HttpSpec;
use transfer::{Part, Remote};

/// The source `http`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<HttpSpec>(),
    schemes: &["http", "https"],
    check: &crate::pattern::check_url,
    rows: false,
    build: &|settings| Ok(Arc::new(HttpSource::new(crate::settings(settings)?))),
};

/// Objects on the web, read with one set of settings.
#[derive(Debug)]
pub struct HttpSource {
    spec: HttpSpec,
    /// Created at the first use, which reads the secrets.
    client: Mutex<Option<(Id, Arc<Client>)>>,
}

impl HttpSource {
    /// A source with these settings. Does no I/O.
    pub fn new(spec: HttpSpec) -> Self {
        HttpSource { spec, client: Mutex::new(None) }
    }

    async fn remote(&self, context: &SourceContext, unit: &Unit) -> Result<Arc<dyn Remote>> {
        Ok(Arc::new(Page { client: self.client(context).await?, target: Target::parse(&unit.uri)? }))
    }

    async fn client(&self, context: &SourceContext) -> Result<Arc<Client>> {
        let runtime = context.io.id();
        if let Some((known, client)) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner)
            && *known == runtime
        {
            return Ok(Arc::clone(client));
        }
        let spec = self.spec.clone();
        let io = context.io.clone();
        let made = join(context.io.spawn_blocking(move || Client::shared(&spec, HttpSpec::NAME, &io))).await?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some((runtime, Arc::clone(&made)));
        Ok(made)
    }
}

#[async_trait]
impl Source for HttpSource {
    fn name(&self) -> &'static str {
        "http"
    }

    fn medium(&self) -> &'static str {
        "network"
    }

    fn connections(&self) -> usize {
        self.spec.connections
    }

    fn opens_lightly(&self) -> bool {
        true
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let unit = listed(pattern);
        futures::stream::once(async { unit }).boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        Ok(self.open_known(context, unit).await?.content.into_stream())
    }

    async fn open_known(&self, context: &SourceContext, unit: &Unit) -> Result<OpenedUnit> {
        transfer::open(context, self.remote(context, unit).await?, unit).await
    }

    async fn read_range(&self, context: &SourceContext, unit: &Unit, range: Range<u64>) -> Result<Option<Bytes>> {
        if range.start >= range.end {
            return Ok(Some(Bytes::new()));
        }
        transfer::read_range(context, self.remote(context, unit).await?, unit, range).await
    }

    async fn look(&self, context: &SourceContext, unit: &Unit) -> Result<Unit> {
        if unit.size.is_some() && unit.etag.is_some() {
            return Ok(unit.clone());
        }
        transfer::look(context, self.remote(context, unit).await?, unit).await
    }

    async fn content_type(&self, context: &SourceContext, unit: &Unit) -> Result<Option<String>> {
        transfer::content_type(context, self.remote(context, unit).await?, unit).await
    }
}

/// An object on the web.
#[derive(Debug)]
struct Page {
    client: Arc<Client>,
    target: Target,
}

#[async_trait]
impl Remote for Page {
    fn client(&self) -> &Client {
        &self.client
    }

    async fn send(&self, method: &Method, part: Option<&Part>) -> Result<Answer, Fault> {
        let mut headers = HeaderMap::new();
        if let Some(part) = part {
            headers.insert(RANGE, part.range());
            headers.extend(part.version.clone().map(|version| (IF_RANGE, version)));
        }
        self.client.send(method, &self.target, &headers).await
    }
}

/// The unit of a URL.
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

//! Objects in buckets: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.
//!
//! `stores.rs` sets up each kind of store, `bridge.rs` sends signed requests by the client of `http/`, `bucket.rs`
//! reads answers and errors, `page.rs` their XML, `list.rs` finds objects, `http/transfer.rs` reads one, and
//! `upload.rs` writes one. This file implements the traits of sources and stores with them.
//!
//! A URI is `s3://bucket/name`, with the exact name in the bucket: nothing is decoded, and `?`, `#` and spaces are
//! ordinary characters. In a pattern, `*`, `?`, `[` and `\` mean what they mean in paths.

mod bridge;
mod bucket;
mod list;
mod page;
pub mod spec;
mod stores;
mod upload;

#[cfg(test)]
mod servers;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millstream_core::registry::{SourceEntry, StoreEntry};
use millstream_core::source::{OpenedUnit, Source, SourceContext};
use millstream_core::spec::{Fault, SpecInfo};
use millstream_core::store::{Brought, Store, Stored, Upload};
use millstream_core::{ByteStream, Error, Result, Unit};
use tokio::runtime::Id;

use crate::file::glob;
use crate::http::client::Client;
use crate::http::transfer::{self, Remote};
use crate::io::join;
use crate::pattern;
use bucket::{Bucket, Object, path_of};
use list::Listing;
use spec::{AzureSpec, GcsSpec, S3Spec};
use stores::Kind;
use upload::{Location, Ticket, Traffic, Writing};

/// The source `s3`.
pub const S3: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<S3Spec>(),
    schemes: &["s3"],
    check: &check::<S3Spec>,
    rows: false,
    build: &|settings| Ok(Arc::new(ObjectSource::<S3Spec>::new(crate::settings(settings)?))),
};

/// The most folders of a bucket that are listed at once: each answer has a thousand names, and objects are read
/// meanwhile.
const LISTED_AT_ONCE: usize = 16;

/// The source `gs`.
pub const GCS: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<GcsSpec>(),
    schemes: &["gs"],
    check: &check::<GcsSpec>,
    rows: false,
    build: &|settings| Ok(Arc::new(ObjectSource::<GcsSpec>::new(crate::settings(settings)?))),
};

/// The source `az`.
pub const AZURE: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<AzureSpec>(),
    schemes: &["az"],
    check: &check::<AzureSpec>,
    rows: false,
    build: &|settings| Ok(Arc::new(ObjectSource::<AzureSpec>::new(crate::settings(settings)?))),
};

/// S3, to write to.
pub const S3_STORE: StoreEntry = StoreEntry {
    spec: S3.spec,
    schemes: S3.schemes,
    build: &|settings| Ok(Arc::new(ObjectSource::<S3Spec>::new(crate::settings(settings)?))),
};

/// Google Cloud Storage, to write to.
pub const GCS_STORE: StoreEntry = StoreEntry {
    spec: GCS.spec,
    schemes: GCS.schemes,
    build: &|settings| Ok(Arc::new(ObjectSource::<GcsSpec>::new(crate::settings(settings)?))),
};

/// Azure Blob Storage, to write to.
pub const AZURE_STORE: StoreEntry = StoreEntry {
    spec: AZURE.spec,
    schemes: AZURE.schemes,
    build: &|settings| Ok(Arc::new(ObjectSource::<AzureSpec>::new(crate::settings(settings)?))),
};

/// Buckets by name, and by the runtime that their connections live on.
type Buckets = Arc<Mutex<HashMap<(Id, String), Arc<Bucket>>>>;

/// Objects of one kind of store, read and written with one set of settings.
#[derive(Debug)]
struct ObjectSource<K> {
    kind: K,
    /// Each is set up at its first use, which reads the secrets.
    buckets: Buckets,
    /// Counts the uploads.
    traffic: Arc<Traffic>,
}

impl<K: Kind> ObjectSource<K> {
    /// A source with these settings. Does no I/O.
    fn new(kind: K) -> Self {
        ObjectSource { kind, buckets: Arc::default(), traffic: Arc::default() }
    }

    /// The object that `unit` names.
    async fn remote(&self, context: &SourceContext, unit: &Unit) -> Result<Arc<dyn Remote>> {
        let (bucket, key) = locate::<K>(&unit.uri)?;
        let bucket = self.opener().bucket(context, bucket).await;
        Ok(Arc::new(Object::new(bucket.map_err(|error| error.in_unit(&unit.uri, None))?, key)?))
    }

    /// The object at `uri`, for writing.
    async fn location(&self, context: &SourceContext, uri: &str) -> Result<Location> {
        let (name, key) = parts::<K>(uri)?;
        let path = path_of(uri, key)?;
        let bucket = self.opener().bucket(context, name).await.map_err(|error| error.in_unit(uri, None))?;
        Ok(Location { bucket, path, uri: uri.to_owned(), io: context.io.clone() })
    }

    fn opener(&self) -> Opener<K> {
        Opener { kind: self.kind.clone(), buckets: Arc::clone(&self.buckets) }
    }
}

/// Sets up buckets.
struct Opener<K> {
    kind: K,
    buckets: Buckets,
}

impl<K: Kind> Opener<K> {
    async fn bucket(self, context: &SourceContext, name: &str) -> Result<Arc<Bucket>> {
        let key = (context.io.id(), name.to_owned());
        if let Some(known) = self.buckets.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(known));
        }
        let (kind, name, io) = (self.kind, name.to_owned(), context.io.clone());
        let made = join(context.io.spawn_blocking(move || {
            let client = Client::shared(&kind.connections(), K::NAME, &io)?;
            Bucket::open(&kind, &name, client).map(Arc::new)
        }));
        let made = made.await?;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(buckets.entry(key).or_insert(made)))
    }
}

#[async_trait]
impl<K: Kind> Source for ObjectSource<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn connections(&self) -> usize {
        self.kind.connections().connections
    }

    fn opens_lightly(&self) -> bool {
        true
    }

    /// Lists a pattern. The name of one object is a unit without a request, since opening it will show whether it
    /// exists.
    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let (opener, context, pattern) = (self.opener(), context.clone(), pattern.to_owned());
        let parallel = self.connections().min(LISTED_AT_ONCE);
        futures::stream::once(async move {
            let (name, key) = locate::<K>(&pattern)?;
            if !glob::has_wildcards(key) {
                let unit = Unit::new(format!("{}://{name}/{}", K::NAME, glob::unescape(key)));
                return Ok(futures::stream::once(async { Ok(unit) }).boxed());
            }
            let segments = glob::segments(key)
                .map_err(|what| Error::job(what).text(&pattern).hint(r"to mean the character itself, write `\[`"))?;
            let bucket = opener.bucket(&context, name).await.map_err(|error| error.in_unit(&pattern, None))?;
            Ok(Listing { bucket, segments, parallel }.stream(&context))
        })
        .try_flatten()
        .boxed()
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

#[async_trait]
impl<K: Kind> Store for ObjectSource<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn check(&self, uri: &str) -> Result<()> {
        let (_, key) = parts::<K>(uri)?;
        if key.is_empty() || key.ends_with('/') {
            return Err(Error::job("this names no object")
                .in_unit(uri, None)
                .hint(format!("name one in it, such as {}/result.csv", uri.trim_end_matches('/'))));
        }
        path_of(uri, key).map(drop)
    }

    /// A store without uploads as such (Azure) is not probed.
    async fn probe(&self, context: &SourceContext, uri: &str) -> Result<()> {
        let location = self.location(context, uri).await?;
        location.begin(&self.traffic).await?.abort().await
    }

    async fn begin(&self, context: &SourceContext, uri: &str) -> Result<Box<dyn Upload>> {
        let location = self.location(context, uri).await?;
        Ok(Box::new(Writing::new(context, location, Arc::clone(&self.traffic))))
    }

    async fn complete(&self, context: &SourceContext, brought: &Brought) -> Result<bool> {
        let location = self.location(context, &brought.uri).await?;
        match &brought.ticket {
            Some(ticket) => location.complete(Ticket::from_text(ticket)?, brought.bytes, brought.replaced).await,
            None => location.put(Bytes::new().into()).await.map(|()| true),
        }
    }

    async fn abort(&self, context: &SourceContext, brought: &Brought) -> Result<()> {
        let Some(ticket) = &brought.ticket else { return Ok(()) };
        self.location(context, &brought.uri).await?.abort(Ticket::from_text(ticket)?.id).await
    }

    async fn settle(&self) {
        self.traffic.settle().await;
    }

    async fn read(&self, context: &SourceContext, uri: &str) -> Result<Option<Stored>> {
        let location = self.location(context, uri).await?;
        location.repeat(|bucket, path| async move { bucket.read(&path).await }).await
    }

    async fn write_if(
        &self,
        context: &SourceContext,
        uri: &str,
        content: Bytes,
        before: Option<&Stored>,
    ) -> Result<Option<Stored>> {
        let (location, before) = (self.location(context, uri).await?, before.cloned());
        location
            .repeat(move |bucket, path| {
                let (content, before) = (content.clone(), before.clone());
                async move { bucket.put_if(&path, content, before.as_ref()).await }
            })
            .await
    }

    async fn names(&self, context: &SourceContext, prefix: &str) -> Result<Vec<String>> {
        let (name, key) = parts::<K>(prefix)?;
        let (opened, key) = (self.opener().bucket(context, name).await, key.to_owned());
        let bucket = opened.map_err(|error| error.in_unit(prefix, None))?;
        join(context.io.spawn(async move { list::names(&bucket, &key).await })).await
    }

    async fn length(&self, context: &SourceContext, uri: &str) -> Result<Option<u64>> {
        self.location(context, uri).await?.length().await
    }

    async fn remove(&self, context: &SourceContext, uri: &str) -> Result<()> {
        let location = self.location(context, uri).await?;
        location.repeat(|bucket, path| async move { bucket.remove(&path).await }).await
    }
}

/// Faults in the syntax of a pattern, for lints: its braces and wildcards, and the first object that it stands for.
fn check<K: Kind>(pattern: &str) -> Result<(), Fault> {
    pattern::check(pattern)?;
    let first = pattern::expand(pattern).ok().and_then(|mut all| all.next()).unwrap_or_default();
    locate::<K>(&first).map(drop).map_err(|error| Fault {
        path: Vec::new(),
        what: error.what().to_owned(),
        hint: error.hint_text().map(str::to_owned),
    })
}

/// The bucket and the name of an object in `uri`, as they stand there.
fn locate<K: Kind>(uri: &str) -> Result<(&str, &str)> {
    let (bucket, key) = parts::<K>(uri)?;
    if key.is_empty() || key.ends_with('/') {
        let folder = if key.is_empty() { "bucket" } else { "folder" };
        return Err(Error::refused(format!("this is a {folder}, not an object"))
            .in_unit(uri, None)
            .hint(format!("to read all objects in it, add **: {}/**", uri.trim_end_matches('/'))));
    }
    Ok((bucket, key))
}

/// The bucket in `uri`, and what follows it.
fn parts<K: Kind>(uri: &str) -> Result<(&str, &str)> {
    let fault = |what: String| Error::job(what).in_unit(uri, None);
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let usual = |character: char| character.is_ascii_alphanumeric() || "-_.$".contains(character);
    if bucket.is_empty() {
        return Err(fault("this names no bucket".into()).hint(format!("write {}://bucket/name", K::NAME)));
    }
    if !bucket.chars().all(usual) {
        let error = fault(format!("`{bucket}` is not a valid bucket name"));
        return Err(error.hint("the name has letters, digits, - and . only, and no wildcards"));
    }
    Ok((bucket, key))
}

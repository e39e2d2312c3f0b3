//! Writing an object: in parts, several on their way at once, seen only when it is complete.
//!
//! ```text
//!  write ─▶ [ part being filled ] ─full─▶ part 1 ──▶ ┐
//!                                         part 2 ──▶ ├─ complete ─▶ the object appears
//!                                         part 3 ──▶ ┘    or abort: the parts go
//! ```
//!
//! An object of one part is put as a whole when it is complete, unless it was finished before. What is filled and what is on its way is charged to the
//! budget. It is held already, so it cannot be refused: instead, whoever writes waits for parts on their way, until one
//! is left where the budget is used up.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use millstream_core::source::SourceContext;
use millstream_core::store::Upload;
use millstream_core::{Budget, Error, Result};
use object_store::PutPayload;
use object_store::multipart::PartId;
use object_store::path::Path;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::bucket::Bucket;
use crate::feed::Charge;
use crate::io::{interrupted, join};
use crate::retry::{Fault, Tries};

/// Bytes of the first parts. Stores want at least 5 MiB, and some want all but the last to be of one size.
const PART: usize = 8 << 20;

/// After so many parts, the next ones are four times as large.
const STEP: usize = 4_000;

/// No store takes more parts: that is 416 GiB.
const PARTS: usize = 10_000;

/// Parts that are on their way at once.
const LANES: usize = 4;

/// An object on its way into a bucket.
#[derive(Debug)]
pub(crate) struct Writing {
    bucket: Arc<Bucket>,
    path: Path,
    uri: String,
    io: Handle,
    budget: Arc<Budget>,
    filling: BytesMut,
    charges: Vec<Charge>,
    /// Given by the store when the first part is full.
    id: Option<String>,
    parts: Vec<Option<PartId>>,
    under_way: JoinSet<Result<(usize, PartId)>>,
    written: u64,
}

impl Writing {
    /// Nothing is sent before there is a part.
    pub(crate) fn new(context: &SourceContext, bucket: Arc<Bucket>, path: Path, uri: &str) -> Self {
        Writing {
            bucket,
            path,
            uri: uri.to_owned(),
            io: context.io.clone(),
            budget: Arc::clone(&context.budget),
            filling: BytesMut::new(),
            charges: Vec::new(),
            id: None,
            parts: Vec::new(),
            under_way: JoinSet::new(),
            written: 0,
        }
    }

    /// The size of the part that is being filled.
    fn part_size(&self) -> usize {
        PART << (2 * (self.parts.len() / STEP))
    }

    /// Sends what has been filled.
    async fn send_part(&mut self) -> Result<()> {
        if self.parts.len() == PARTS {
            return Err(Error::refused(format!("an object of more than {PARTS} parts cannot be written"))
                .in_unit(&self.uri, None)
                .hint("write several smaller ones"));
        }
        let id = self.upload_id().await?;
        self.make_room().await?;
        let number = self.parts.len();
        self.parts.push(None);
        let payload = PutPayload::from(self.filling.split().freeze());
        let charges = std::mem::take(&mut self.charges);
        let (bucket, path, uri) = (Arc::clone(&self.bucket), self.path.clone(), self.uri.clone());
        let part = async move {
            let _charges = charges;
            let mut tries = Tries::new(bucket.client.policy);
            let send = || async { bucket.put_part(&path, &id, number, payload.clone()).await };
            Ok((number, tries.repeat(&uri, send).await?))
        };
        self.under_way.spawn_on(part, &self.io);
        Ok(())
    }

    /// Waits until one more part may be under way.
    async fn make_room(&mut self) -> Result<()> {
        while self.under_way.len() >= LANES || (!self.under_way.is_empty() && self.budget.used() > self.budget.limit())
        {
            self.part_arrived().await?;
        }
        Ok(())
    }

    /// Waits for one part.
    async fn part_arrived(&mut self) -> Result<()> {
        if let Some(arrived) = self.under_way.join_next().await {
            let (number, part) = arrived.map_err(|_| interrupted())??;
            if let Some(place) = self.parts.get_mut(number) {
                *place = Some(part);
            }
        }
        Ok(())
    }

    async fn all_arrived(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.part_arrived().await?;
        }
        Ok(())
    }

    async fn upload_id(&mut self) -> Result<String> {
        if let Some(id) = &self.id {
            return Ok(id.clone());
        }
        let (bucket, path) = (Arc::clone(&self.bucket), self.path.clone());
        let id = self.repeat(move || begin(Arc::clone(&bucket), path.clone())).await?;
        self.id = Some(id.clone());
        Ok(id)
    }

    /// Tries `work` on the network's runtime until it is done or given up.
    async fn repeat<T, F>(&self, work: impl FnMut() -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let (uri, policy) = (self.uri.clone(), self.bucket.client.policy);
        join(self.io.spawn(async move { Tries::new(policy).repeat(&uri, work).await })).await
    }
}

async fn begin(bucket: Arc<Bucket>, path: Path) -> Result<String, Fault> {
    bucket.begin_upload(&path).await
}

#[async_trait]
impl Upload for Writing {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.written += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.filling.len() >= self.part_size() {
                self.send_part().await?;
            }
            let fitting = bytes.split_to(bytes.len().min(self.part_size() - self.filling.len()));
            self.charges.push(Charge::forced(&self.budget, fitting.len()));
            self.filling.extend_from_slice(&fitting);
        }
        Ok(())
    }

    /// Also what would fit into one request goes as a part: then completing it is short, and hardly anything can fail.
    async fn finish(&mut self) -> Result<()> {
        if !self.filling.is_empty() {
            self.send_part().await?;
        }
        self.all_arrived().await
    }

    async fn complete(mut self: Box<Self>) -> Result<u64> {
        if self.id.is_some() {
            self.finish().await?;
        }
        let (bucket, path) = (Arc::clone(&self.bucket), self.path.clone());
        let Some(id) = self.id.clone() else {
            let payload = PutPayload::from(self.filling.split().freeze());
            self.repeat(move || put(Arc::clone(&bucket), path.clone(), payload.clone())).await?;
            return Ok(self.written);
        };
        let parts: Vec<PartId> = self.parts.iter().flatten().cloned().collect();
        self.repeat(move || complete(Arc::clone(&bucket), path.clone(), id.clone(), parts.clone())).await?;
        self.id = None;
        Ok(self.written)
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        self.under_way.shutdown().await;
        let Some(id) = self.id.take() else { return Ok(()) };
        let (bucket, path) = (Arc::clone(&self.bucket), self.path.clone());
        self.repeat(move || abort(Arc::clone(&bucket), path.clone(), id.clone())).await
    }
}

async fn put(bucket: Arc<Bucket>, path: Path, payload: PutPayload) -> Result<(), Fault> {
    bucket.put(&path, payload).await
}

async fn complete(bucket: Arc<Bucket>, path: Path, id: String, parts: Vec<PartId>) -> Result<(), Fault> {
    bucket.complete_upload(&path, &id, parts).await
}

async fn abort(bucket: Arc<Bucket>, path: Path, id: String) -> Result<(), Fault> {
    bucket.abort_upload(&path, &id).await
}

impl Drop for Writing {
    /// Parts cost money until they are given up.
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (bucket, path) = (Arc::clone(&self.bucket), self.path.clone());
        let mut under_way = std::mem::take(&mut self.under_way);
        self.io.spawn(async move {
            under_way.shutdown().await;
            // There is nobody to tell.
            let _ = abort(bucket, path, id).await;
        });
    }
}

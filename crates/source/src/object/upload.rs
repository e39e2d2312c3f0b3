//! Writes an object in parts, several in flight at once. It is visible only when it is complete.
//!
//! ```text
//!  write ─▶ [ part being filled ] ─full─▶ part 1 ──▶ ┐
//!                                         part 2 ──▶ ├─ complete ─▶ the object appears
//!                                         part 3 ──▶ ┘    or abort: the parts go
//! ```
//!
//! An object of one part is put as a whole when it is complete, unless it was finished before. The part being filled
//! and the parts in flight are charged to the budget. They are already held, so the charge cannot be refused: instead,
//! a writer waits for parts in flight, of all uploads of the store, while the budget is used up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::source::SourceContext;
use millstream_core::store::{Brought, Upload};
use millstream_core::{Budget, Error, Result};
use object_store::PutPayload;
use object_store::multipart::PartId;
use object_store::path::Path;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::bucket::Bucket;
use crate::feed::Charge;
use crate::io::{interrupted, join};
use crate::retry::{Fault, Tries};

/// Bytes of the first parts. Stores want at least 5 MiB, and some want all but the last to be of one size.
const PART: usize = 8 << 20;

/// After so many parts, the next ones are four times as large.
const STEP: usize = 4_000;

/// The most parts of stores: that is 416 GiB.
const PARTS: usize = 10_000;

/// The most parts of one object in flight.
const PARTS_IN_FLIGHT: usize = 4;

/// The most parts of all objects of one store in flight.
const ALL_PARTS_IN_FLIGHT: usize = 16;

/// How long parts in flight may take when their upload is aborted.
const LAST_PARTS: Duration = Duration::from_secs(2);

/// Ends the parts in flight. They get the time `soon` to complete: a store may keep the data of a broken request, and
/// so a part of an upload that was aborted meanwhile.
async fn end(mut parts: JoinSet<Result<(usize, PartId)>>, soon: Duration) {
    let arrival = async { while parts.join_next().await.is_some() {} };
    // Parts that are not complete by then are stopped below.
    let _ = tokio::time::timeout(soon, arrival).await;
    parts.shutdown().await;
}

/// What all uploads of a store share: how many parts are in flight, and how many uploads are being begun or aborted.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    parts: AtomicUsize,
    leaving: AtomicUsize,
    moved: Notify,
}

impl Traffic {
    /// Waits until one more part may be sent. The first one always may.
    async fn admit(self: &Arc<Self>, budget: &Budget) -> Counted {
        let next = |parts: usize| {
            let room = parts < ALL_PARTS_IN_FLIGHT && budget.used() <= budget.limit();
            (parts == 0 || room).then_some(parts + 1)
        };
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.parts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok() {
                return Counted(Arc::clone(self), |traffic| &traffic.parts);
            }
            moved.await;
        }
    }

    /// Counts an upload that is being aborted, or whose id is not known yet.
    fn leave(self: &Arc<Self>) -> Counted {
        self.leaving.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(self), |traffic| &traffic.leaving)
    }

    /// Waits until no upload is being begun or aborted.
    pub(crate) async fn settle(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.leaving.load(Ordering::SeqCst) == 0 {
                return;
            }
            moved.await;
        }
    }
}

/// Decrements a counter when dropped.
struct Counted(Arc<Traffic>, fn(&Traffic) -> &AtomicUsize);

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }
}

/// One object of a bucket, with its client.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) path: Path,
    pub(crate) uri: String,
    pub(crate) io: Handle,
}

impl Location {
    /// Runs `work` with retries on the network's runtime.
    pub(crate) async fn repeat<T, F>(&self, mut work: impl FnMut(Arc<Bucket>, Path) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let location = self.clone();
        join(self.io.spawn(async move {
            let mut tries = Tries::new(location.bucket.client.policy);
            tries.repeat(&location.uri, || work(Arc::clone(&location.bucket), location.path.clone())).await
        }))
        .await
    }

    /// Completes the upload of `ticket` to an object of `bytes` bytes, which replaces one of `replaced` bytes; `false`
    /// if the store does not have the upload any more.
    pub(crate) async fn complete(&self, ticket: Ticket, bytes: u64, replaced: Option<u64>) -> Result<bool> {
        let telling = (replaced != Some(bytes)).then_some(bytes);
        let mut asked = false;
        self.repeat(move |bucket, path| {
            let (ticket, again) = (ticket.clone(), std::mem::replace(&mut asked, true));
            let done = telling.filter(|_| again);
            async move { bucket.complete_upload(&path, &ticket.id, ticket.parts, done).await }
        })
        .await
    }

    /// The size of the current object; `None` if there is none.
    pub(crate) async fn length(&self) -> Result<Option<u64>> {
        self.repeat(|bucket, path| async move { bucket.length(&path).await }).await
    }

    /// Puts an object of `payload`.
    pub(crate) async fn put(&self, payload: PutPayload) -> Result<()> {
        self.repeat(move |bucket, path| {
            let payload = payload.clone();
            async move { bucket.put(&path, payload).await.map(drop) }
        })
        .await
    }

    /// Begins an upload in parts.
    pub(crate) async fn begin(&self, traffic: &Arc<Traffic>) -> Result<Begun> {
        let (location, traffic, leaving) = (self.clone(), Arc::clone(traffic), traffic.leave());
        let (sender, receiver) = oneshot::channel();
        // Runs to its end even if the caller is dropped: an upload with an unknown id could not be aborted.
        self.io.spawn(async move {
            let id = location.repeat(|bucket, path| async move { bucket.begin_upload(&path).await }).await;
            let begun = id.map(|id| Begun { id: Some(id), location, traffic });
            drop(sender.send(begun));
            drop(leaving);
        });
        receiver.await.map_err(|_| interrupted())?
    }

    /// Aborts the upload `id`.
    pub(crate) async fn abort(&self, id: String) -> Result<()> {
        self.repeat(move |bucket, path| {
            let id = id.clone();
            async move { bucket.abort_upload(&path, &id).await }
        })
        .await
    }
}

/// What is needed to complete an upload: its id, and those of its parts.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) id: String,
    pub(crate) parts: Vec<PartId>,
}

impl Ticket {
    /// The ticket as text, for a later process: the ids as a list in JSON.
    fn to_text(&self) -> String {
        let names = std::iter::once(&self.id).chain(self.parts.iter().map(|part| &part.content_id));
        serde_json::Value::from_iter(names.map(String::as_str)).to_string()
    }

    /// The ticket that [`Ticket::to_text`] made.
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        let names: Vec<String> = serde_json::from_str(text).map_err(|cause| {
            Error::refused("the name of an upload that was not completed cannot be read").text(text).cause(cause)
        })?;
        let mut names = names.into_iter();
        let id = names.next().unwrap_or_default();
        Ok(Ticket { id, parts: names.map(|content_id| PartId { content_id }).collect() })
    }
}

/// An upload that the store has begun. Dropping it aborts the upload: parts cost money until then.
#[derive(Debug)]
pub(crate) struct Begun {
    /// The store's id of the upload, until it is released.
    id: Option<String>,
    location: Location,
    traffic: Arc<Traffic>,
}

impl Begun {
    /// Returns the id. From now on dropping does not abort the upload.
    fn release(mut self) -> String {
        self.id.take().unwrap_or_default()
    }

    /// Aborts the upload, even if the caller is dropped.
    pub(crate) async fn abort(mut self) -> Result<()> {
        match self.leave() {
            Some(leaving) => join(leaving).await,
            None => Ok(()),
        }
    }

    fn leave(&mut self) -> Option<JoinHandle<Result<()>>> {
        let id = self.id.take()?;
        let (location, leaving) = (self.location.clone(), self.traffic.leave());
        Some(self.location.io.spawn(async move {
            let left = location.abort(id).await;
            drop(leaving);
            left
        }))
    }

    fn id(&self) -> String {
        self.id.clone().unwrap_or_default()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // Errors cannot be reported here.
        drop(self.leave());
    }
}

/// An object that is being written.
#[derive(Debug)]
pub(crate) struct Writing {
    location: Location,
    budget: Arc<Budget>,
    traffic: Arc<Traffic>,
    /// The part that is being filled.
    filling: Vec<u8>,
    /// The charge for all its memory.
    charge: Charge,
    /// The upload, once the first part is full.
    begun: Option<Begun>,
    parts: Vec<Option<PartId>>,
    in_flight: JoinSet<Result<(usize, PartId)>>,
    written: u64,
}

impl Writing {
    /// Nothing is sent before there is a part.
    pub(crate) fn new(context: &SourceContext, location: Location, traffic: Arc<Traffic>) -> Self {
        Writing {
            location,
            budget: Arc::clone(&context.budget),
            traffic,
            filling: Vec::new(),
            charge: Charge::forced(&context.budget, 0),
            begun: None,
            parts: Vec::new(),
            in_flight: JoinSet::new(),
            written: 0,
        }
    }

    /// The size of the part that is being filled.
    fn part_size(&self) -> usize {
        PART << (2 * (self.parts.len() / STEP))
    }

    /// Adds `bytes`, which fit into the part.
    fn fill(&mut self, bytes: Bytes) {
        let length = self.filling.len() + bytes.len();
        if self.filling.is_empty() {
            // Bytes without other references are not copied.
            self.filling = bytes.into();
        } else {
            if length > self.filling.capacity() {
                let capacity = (2 * self.filling.capacity()).clamp(length, self.part_size());
                self.filling.reserve_exact(capacity - self.filling.len());
            }
            self.filling.extend_from_slice(&bytes);
        }
        self.charge.raise(self.filling.capacity());
    }

    /// Takes out the filled part.
    fn filled(&mut self) -> (PutPayload, Charge) {
        let charge = std::mem::replace(&mut self.charge, Charge::forced(&self.budget, 0));
        (Bytes::from(std::mem::take(&mut self.filling)).into(), charge)
    }

    /// Sends the filled part.
    async fn send_part(&mut self) -> Result<()> {
        let uri = self.location.uri.clone();
        if self.parts.len() == PARTS {
            return Err(Error::refused(format!("an object of more than {PARTS} parts cannot be written"))
                .in_unit(&uri, None)
                .hint("write several smaller ones"));
        }
        let begun = match &self.begun {
            Some(begun) => begun,
            None => self.begun.insert(self.location.begin(&self.traffic).await?),
        };
        let id = begun.id();
        while self.in_flight.len() >= PARTS_IN_FLIGHT {
            self.part_arrived().await?;
        }
        let counted = self.traffic.admit(&self.budget).await;
        let number = self.parts.len();
        self.parts.push(None);
        let (payload, charge) = self.filled();
        let (bucket, path) = (Arc::clone(&self.location.bucket), self.location.path.clone());
        let part = async move {
            let _held = (charge, counted);
            let mut tries = Tries::new(bucket.client.policy);
            let send = || async { bucket.put_part(&path, &id, number, payload.clone()).await };
            Ok((number, tries.repeat(&uri, send).await?))
        };
        self.in_flight.spawn_on(part, &self.location.io);
        Ok(())
    }

    /// Waits for one part.
    async fn part_arrived(&mut self) -> Result<()> {
        if let Some(arrived) = self.in_flight.join_next().await {
            let (number, part) = arrived.map_err(|_| interrupted())??;
            if let Some(location) = self.parts.get_mut(number) {
                *location = Some(part);
            }
        }
        Ok(())
    }

    /// Uploads everything that is left.
    async fn bring(&mut self) -> Result<()> {
        if !self.filling.is_empty() {
            self.send_part().await?;
        }
        while !self.in_flight.is_empty() {
            self.part_arrived().await?;
        }
        Ok(())
    }

    /// The ticket for completion, if there are parts.
    fn ticket(&mut self) -> Result<Option<Ticket>> {
        let Some(begun) = &self.begun else { return Ok(None) };
        let parts: Option<Vec<PartId>> = std::mem::take(&mut self.parts).into_iter().collect();
        let parts = parts.ok_or_else(|| Error::internal("an object lacks a part"))?;
        Ok(Some(Ticket { id: begun.id(), parts }))
    }

    /// From now on dropping does not abort the upload.
    fn release(&mut self) {
        self.begun.take().map(Begun::release);
    }
}

#[async_trait]
impl Upload for Writing {
    async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.written += bytes.len() as u64;
        while !bytes.is_empty() {
            let fitting = bytes.split_to(bytes.len().min(self.part_size() - self.filling.len()));
            self.fill(fitting);
            if self.filling.len() >= self.part_size() {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    /// Even a small object is uploaded as a part: completing it is then short, and hardly can fail.
    async fn finish(mut self: Box<Self>) -> Result<Brought> {
        self.bring().await?;
        let ticket = self.ticket()?.map(|ticket| ticket.to_text());
        self.release();
        Ok(Brought { uri: self.location.uri.clone(), bytes: self.written, ticket, replaced: None })
    }

    async fn complete(mut self: Box<Self>) -> Result<u64> {
        if self.begun.is_none() {
            let (content, _charge) = self.filled();
            self.location.put(content).await?;
            return Ok(self.written);
        }
        self.bring().await?;
        if let Some(ticket) = self.ticket()? {
            let replaced = self.location.length().await?;
            if !self.location.complete(ticket, self.written, replaced).await? {
                return Err(Error::refused("the store discarded the object's parts before it was complete")
                    .in_unit(&self.location.uri, None));
            }
            self.release();
        }
        Ok(self.written)
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        end(std::mem::take(&mut self.in_flight), LAST_PARTS).await;
        match self.begun.take() {
            Some(begun) => begun.abort().await,
            None => Ok(()),
        }
    }
}

impl Drop for Writing {
    /// Ends the parts in flight before the upload is aborted.
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        let leaving = self.traffic.leave();
        let in_flight = std::mem::take(&mut self.in_flight);
        self.location.io.spawn(async move {
            end(in_flight, LAST_PARTS).await;
            drop(begun);
            drop(leaving);
        });
    }
}

#[cfg(test)]
mod tests {
    use millstream_testkit::{FaultServer, Object, Plan};
    use serde_json::json;

    use super::super::tests::{BEGUN, anonymous};
    use super::*;
    use crate::conformance::with_context;

    fn writing(test: impl AsyncFnOnce(&SourceContext, Writing)) {
        let server = FaultServer::start(
            Plan::new()
                .object("/bucket/a?uploads=", Object::new(BEGUN))
                .object("/bucket/a?partNumber=1&uploadId=U", Object::new("").etag("\"1\""))
                .object("/bucket/a?uploadId=U", Object::new("")),
        );
        let source = anonymous(&server, json!({}));
        with_context(64 << 20, |context| async move {
            let location = source.location(&context, "s3://bucket/a").await.expect("a place");
            let traffic = Arc::new(Traffic::default());
            test(&context, Writing::new(&context, location, Arc::clone(&traffic))).await;
            traffic.settle().await;
        });
    }

    #[test]
    fn parts_on_their_way_arrive_before_an_upload_is_given_up_unless_that_takes_too_long() {
        with_context(1 << 20, |_| async {
            let arrived = Arc::new(AtomicUsize::new(0));
            let mut parts = JoinSet::new();
            for time in [Duration::from_millis(20), Duration::from_secs(600)] {
                let arrived = Arc::clone(&arrived);
                parts.spawn(async move {
                    tokio::time::sleep(time).await;
                    arrived.fetch_add(1, Ordering::SeqCst);
                    Ok((1, PartId { content_id: String::new() }))
                });
            }
            end(parts, Duration::from_secs(2)).await;
            assert_eq!(Arc::into_inner(arrived).map(AtomicUsize::into_inner), Some(1), "nobody is on the way any more");
        });
    }

    #[test]
    fn nothing_is_held_of_a_part_that_has_arrived() {
        writing(async |context, mut writing| {
            writing.write(vec![7; PART].into()).await.expect("it takes a part");
            writing.part_arrived().await.expect("it arrives");
            assert_eq!((writing.filling.capacity(), context.budget.used()), (0, 0));
        });
    }

    #[test]
    fn all_memory_of_a_part_is_charged() {
        writing(async |context, mut writing| {
            let piece = Bytes::from(vec![7; 300_001]);
            for _ in 0..PART / piece.len() {
                writing.write(piece.clone()).await.expect("it takes a piece");
                assert_eq!(context.budget.used(), writing.filling.capacity());
            }
            assert!(context.budget.peak() <= PART, "{}", context.budget.peak());
        });
    }

    #[test]
    fn an_object_that_lacks_a_part_is_not_completed() {
        writing(async |_, mut writing| {
            writing.write(vec![7; PART].into()).await.expect("it takes a part");
            writing.parts.push(None);
            let error = Box::new(writing).complete().await.expect_err("a part is missing");
            assert_eq!(error.what(), "an object lacks a part");
        });
    }
}

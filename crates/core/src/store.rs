//! The store traits: from bytes to an object that appears as a whole or not at all.
//!
//! What writes files has a folder, a temporary name and a rename; a bucket has none of them. What both can promise is
//! this: nothing is seen under the object's name before it is completed, and nothing of it stays if it is given up.
//! Formats and compression are the caller's matter.
//!
//! ```text
//!  begin ─▶ write … ─┬─ complete ─▶ the object appears
//!                    └─ finish ─▶ Brought ─┬─ Store::complete ─▶ the object appears
//!                                          └─ Store::abort ────▶ nothing stays
//! ```

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::Result;
use crate::source::SourceContext;

/// A place that objects are written to. Network and timers run on `context.io`; what is on its way is charged to
/// `context.budget`. Faults that may pass are tried again inside.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// What it is called in reports: `s3`.
    fn name(&self) -> &'static str;

    /// What keeps `uri` from being the name of an object, as far as it can be told without asking anybody.
    fn check(&self, uri: &str) -> Result<()>;

    /// Asks whether an object may be written at `uri`, as far as the store tells that before there is one. Nothing of
    /// it stays.
    async fn probe(&self, context: &SourceContext, uri: &str) -> Result<()>;

    /// Begins an object at `uri`, in place of the one that may be there.
    async fn begin(&self, context: &SourceContext, uri: &str) -> Result<Box<dyn Upload>>;

    /// Makes the object appear that was brought over, by this process or by one that is no more; `false` if the store
    /// has nothing of it any more, because it was completed, given up or thrown away.
    async fn complete(&self, context: &SourceContext, brought: &Brought) -> Result<bool>;

    /// Gives up what was brought over: nothing of it stays.
    async fn abort(&self, context: &SourceContext, brought: &Brought) -> Result<()>;

    /// Waits until nothing is left of uploads that were dropped.
    async fn settle(&self);

    /// A small object; `None` if there is none.
    async fn read(&self, context: &SourceContext, uri: &str) -> Result<Option<Stored>>;

    /// Writes a small object in one request, if what is there is still `before` (`None`: nothing is there), and returns
    /// it as it is now; `None` if something else is there, and then nothing was written. A store that knows no such
    /// condition writes it in any case.
    async fn write_if(
        &self,
        context: &SourceContext,
        uri: &str,
        content: Bytes,
        before: Option<&Stored>,
    ) -> Result<Option<Stored>>;

    /// The URIs of all objects whose URIs begin with `prefix`: the bucket, a slash, and the beginning of a name. There
    /// should be few.
    async fn names(&self, context: &SourceContext, prefix: &str) -> Result<Vec<String>>;

    /// The size of an object in bytes; `None` if there is none.
    async fn length(&self, context: &SourceContext, uri: &str) -> Result<Option<u64>>;

    /// Removes an object. It is fine if there is none.
    async fn remove(&self, context: &SourceContext, uri: &str) -> Result<()>;
}

/// A small object, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its bytes.
    pub content: Bytes,
    /// Its entity tag, with its quotes.
    pub etag: Option<String>,
    /// Its version or generation, where the store has such.
    pub version: Option<String>,
}

/// An object on its way. Dropped, it is given up as by [`Upload::abort`], as far as the runtime still lives to do so.
#[async_trait]
pub trait Upload: Debug + Send {
    /// Adds `bytes` of any size. It waits while too much is under way. After an error the upload is to be dropped.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Nothing more comes: all bytes are brought over, so that only the short [`Store::complete`] is left to be done.
    async fn finish(self: Box<Self>) -> Result<Brought>;

    /// Makes the object appear at once, with all bytes that were written, and returns how many there are.
    async fn complete(self: Box<Self>) -> Result<u64>;

    /// Gives it up: nothing of it stays.
    async fn abort(self: Box<Self>) -> Result<()>;
}

/// An object whose bytes are in the store, where nobody sees them. Whoever has this can complete it or give it up, also
/// another process; dropping it does neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brought {
    /// Where it will be.
    pub uri: String,
    /// Its size.
    pub bytes: u64,
    /// What the store knows it by, in words of its own; `None` if it has no bytes.
    pub ticket: Option<String>,
    /// The size of the object that it replaces, if that is known. After a lost answer the size shows whether the new
    /// object or the old one is there.
    pub replaced: Option<u64>,
}

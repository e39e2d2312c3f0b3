//! The store traits: from bytes to an object that appears as a whole or not at all.
//!
//! What writes files has a folder, a temporary name and a rename; a bucket has none of them. What both can promise is
//! this: nothing is seen under the object's name before [`Upload::complete`], and nothing of it stays if that is never
//! called. Formats and compression are the caller's matter.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::Result;
use crate::source::SourceContext;

/// A place that objects are written to.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// What it is called in reports: `s3`.
    fn name(&self) -> &'static str;

    /// Begins an object at `uri`, in place of the one that may be there. Network and timers run on `context.io`; what
    /// is on its way is charged to `context.budget`.
    async fn begin(&self, context: &SourceContext, uri: &str) -> Result<Box<dyn Upload>>;
}

/// An object on its way. Dropped, it is given up as by [`Upload::abort`], as far as the runtime still lives to do so.
#[async_trait]
pub trait Upload: Debug + Send {
    /// Adds `bytes` of any size. It waits while too much is under way. After an error the upload is to be dropped.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Nothing more comes: all that is large is brought over, so that [`Upload::complete`] is short. It may be left out.
    async fn finish(&mut self) -> Result<()>;

    /// Makes the object appear, with all bytes that were written, and returns how many there are.
    async fn complete(self: Box<Self>) -> Result<u64>;

    /// Gives it up: nothing of it stays.
    async fn abort(self: Box<Self>) -> Result<()>;
}

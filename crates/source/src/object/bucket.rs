//! One bucket: its objects, its listing page by page, and its errors.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::store::Stored;
use millstream_core::{Error, Result};
use object_store::list::PaginatedListOptions;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion};
use reqwest::Method;
use reqwest::header::{CONTENT_LENGTH, ETAG};

use super::bridge::{Bridge, Slot, fault_of};
use super::page::{self, Page};
use super::stores::{Kind, Opened, Store};
use crate::http::answer::Answer;
use crate::http::client::Client;
use crate::http::transfer::{Part, Remote, changed};
use crate::retry::Fault;

/// The most bytes that a page of a listing may have: a thousand long names are far below.
const PAGE_LIMIT: usize = 16 << 20;

/// The most bytes of an object that is read as a whole.
const CONTENT_LIMIT: usize = 64 << 20;

/// The header with the generation of an object at Google.
const GENERATION: &str = "x-goog-generation";

/// Codes of transient faults, regardless of their status.
const PASSING: &[&str] = &["InternalError", "OperationTimedOut", "RequestTimeout", "ServerBusy", "SlowDown"];

/// A bucket, with the client of its store.
pub(crate) struct Bucket {
    /// `s3`, `gs`, `az`: the scheme and the block of the job file.
    pub(crate) block: &'static str,
    pub(crate) name: String,
    pub(crate) client: Arc<Client>,
    store: Arc<dyn Store>,
    secrets: Vec<String>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket").field("block", &self.block).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Bucket {
    /// The bucket `name`. Blocks: it may read secrets from files.
    pub(crate) fn open<K: Kind>(kind: &K, name: &str, client: Arc<Client>) -> Result<Self> {
        let bridge = Bridge { client: Arc::clone(&client), as_stored: K::AS_STORED, hint: K::CREDENTIALS };
        let Opened { store, secrets } = kind.open(name, bridge)?;
        Ok(Bucket { block: K::NAME, name: name.to_owned(), client, store, secrets })
    }

    /// The URI of `key`.
    pub(crate) fn uri(&self, key: &str) -> String {
        format!("{}://{}/{key}", self.block, self.name)
    }

    /// A page of the objects whose names begin with `prefix`; with `by_folder`, names with a further slash are only
    /// given as prefixes.
    pub(crate) async fn page(&self, prefix: &str, by_folder: bool, token: Option<String>) -> Result<Page, Fault> {
        let slot = Slot::default();
        let options = PaginatedListOptions {
            delimiter: by_folder.then_some(Cow::Borrowed("/")),
            page_token: token,
            extensions: slot.extensions(),
            ..PaginatedListOptions::default()
        };
        let told = self.store.list_paginated(Some(prefix).filter(|prefix| !prefix.is_empty()), options).await;
        let answer = slot.answer(told).map_err(|fault| self.explained(fault))?;
        let body = self.client.body(answer, PAGE_LIMIT).await?;
        page::page(&body).map_err(|cause| {
            Fault::permanent("the listing cannot be read").cause(cause).hint("check that `endpoint` is that of a store")
        })
    }

    /// Begins an upload in parts. Returns the store's id of the upload.
    pub(crate) async fn begin_upload(&self, path: &Path) -> Result<String, Fault> {
        self.store.create_multipart(path).await.map_err(|error| self.failure(&error))
    }

    /// Sends part `number`, from 0.
    pub(crate) async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: usize,
        part: PutPayload,
    ) -> Result<PartId, Fault> {
        self.store.put_part(path, &upload.to_owned(), number, part).await.map_err(|error| self.failure(&error))
    }

    /// Completes the object from `parts`; `false` if the store does not have them any more. If an earlier attempt may
    /// have succeeded, `done` is the size that identifies the new object.
    pub(crate) async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: Vec<PartId>,
        done: Option<u64>,
    ) -> Result<bool, Fault> {
        let Err(error) = self.store.complete_multipart(path, &upload.to_owned(), parts).await else { return Ok(true) };
        let fault = fault_of(&error);
        if !is_gone(&fault) {
            return Err(self.explained(fault));
        }
        match done {
            Some(_) => self.length(path).await.map(|there| there == done),
            None => Ok(false),
        }
    }

    /// Aborts the upload, if it still exists: the answer to an earlier attempt may have been lost.
    pub(crate) async fn abort_upload(&self, path: &Path, upload: &str) -> Result<(), Fault> {
        let Err(error) = self.store.abort_multipart(path, &upload.to_owned()).await else { return Ok(()) };
        let fault = fault_of(&error);
        if is_missing(&fault) { Ok(()) } else { Err(self.explained(fault)) }
    }

    /// Puts a whole object.
    pub(crate) async fn put(&self, path: &Path, content: PutPayload) -> Result<PutResult, Fault> {
        let done = self.store.put_opts(path, content, PutOptions::default()).await;
        done.map_err(|error| self.failure(&error))
    }

    /// Puts a whole object if the current one is still `before`, and returns it as it is then; `None` if something else
    /// is there. A store without conditional writes puts it in any case.
    pub(crate) async fn put_if(
        &self,
        path: &Path,
        content: Bytes,
        before: Option<&Stored>,
    ) -> Result<Option<Stored>, Fault> {
        let stored =
            |done: PutResult| Some(Stored { content: content.clone(), etag: done.e_tag, version: done.version });
        let Some(mode) = self.condition(before) else {
            return self.put(path, content.clone().into()).await.map(stored);
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let error = match self.store.put_opts(path, content.clone().into(), options).await {
            Ok(done) => return Ok(stored(done)),
            Err(error) => error,
        };
        let fault = fault_of(&error);
        let parse_error = fault.text.as_deref().and_then(|text| page::parse_error(text.as_bytes()));
        match (fault.status, parse_error.as_ref().map_or("", |parse_error| parse_error.code.as_str())) {
            (Some(501), _) | (Some(400), "NotImplemented" | "InvalidArgument") => {
                self.put(path, content.clone().into()).await.map(stored)
            }
            (Some(304 | 412), _) | (Some(409), "BlobAlreadyExists") => self.if_there(path, &content).await,
            _ if is_missing(&fault) && before.is_some() => Ok(None),
            // Another client is writing it at this moment.
            (Some(409), _) => Err(Fault { transient: true, ..self.explained(fault) }),
            _ => Err(self.explained(fault)),
        }
    }

    /// The condition for replacing `before`; `None` if nothing identifies it.
    fn condition(&self, before: Option<&Stored>) -> Option<PutMode> {
        let Some(Stored { etag, version, .. }) = before else { return Some(PutMode::Create) };
        let is_told = match self.block {
            "gs" => version.is_some(),
            // A weak tag matches nothing.
            _ => etag.as_ref().is_some_and(|etag| etag.starts_with('"')),
        };
        is_told.then(|| PutMode::Update(UpdateVersion { e_tag: etag.clone(), version: version.clone() }))
    }

    /// The object, if it is `content`: the answer to an earlier attempt may have been lost.
    async fn if_there(&self, path: &Path, content: &Bytes) -> Result<Option<Stored>, Fault> {
        Ok(self.read(path).await?.filter(|there| there.content == *content))
    }

    /// A small object; `None` if there is none.
    pub(crate) async fn read(&self, path: &Path) -> Result<Option<Stored>, Fault> {
        let Some(answer) = self.ask(path, false).await? else { return Ok(None) };
        let told = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (etag, version) = (told(ETAG.as_str()), told(GENERATION));
        let content = self.client.body(answer, CONTENT_LIMIT).await?;
        Ok(Some(Stored { content, etag, version }))
    }

    /// The size of an object; `None` if there is none.
    pub(crate) async fn length(&self, path: &Path) -> Result<Option<u64>, Fault> {
        let Some(answer) = self.ask(path, true).await? else { return Ok(None) };
        let length = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        length.map(Some).ok_or_else(|| Fault::permanent("the server does not report the object's size"))
    }

    /// Removes an object, if there is one.
    pub(crate) async fn remove(&self, path: &Path) -> Result<(), Fault> {
        let Err(error) = self.store.delete(path).await else { return Ok(()) };
        let fault = fault_of(&error);
        if is_missing(&fault) {
            return Ok(());
        }
        if fault.status.is_some() || fault.transient {
            return Err(self.explained(fault));
        }
        // With requests that can remove several objects, errors of one are only texts.
        match self.length(path).await? {
            None => Ok(()),
            Some(_) => Err(Fault { what: "the object cannot be removed".into(), ..fault }),
        }
    }

    async fn ask(&self, path: &Path, head: bool) -> Result<Option<Answer>, Fault> {
        let slot = Slot::default();
        let options = GetOptions { head, extensions: slot.extensions(), ..GetOptions::default() };
        let told = self.store.get_opts(path, options).await;
        match slot.answer(told) {
            Err(fault) if is_missing(&fault) => Ok(None),
            answer => answer.map(Some).map_err(|fault| self.explained(fault)),
        }
    }

    /// The fault of a step of an upload.
    fn failure(&self, error: &object_store::Error) -> Fault {
        self.explained(fault_of(error))
    }

    /// Adds the store's code, message and a hint to a fault, instead of its XML.
    pub(crate) fn explained(&self, mut fault: Fault) -> Fault {
        let Some(status) = fault.status else { return fault };
        let parse_error = fault.text.as_deref().and_then(|text| page::parse_error(text.as_bytes()));
        let code = parse_error.as_ref().map_or("", |parse_error| parse_error.code.as_str());
        fault.transient |= PASSING.contains(&code);
        fault.hint =
            self.hint(status, code, parse_error.as_ref().and_then(|parse_error| parse_error.region.as_deref()));
        if let Some(parse_error) = &parse_error {
            fault.text = None;
            let words = [parse_error.code.as_str(), parse_error.message.as_str()].map(|text| self.redacted(text));
            fault.cause = Some(words.join(": ").trim_end_matches([':', ' ', '.']).to_owned());
        }
        fault.text = fault.text.map(|text| self.redacted(&text));
        fault
    }

    fn hint(&self, status: u16, code: &str, region: Option<&str>) -> Option<String> {
        let block = self.block;
        Some(match (status, code) {
            (_, "NoSuchBucket" | "ContainerNotFound") => {
                format!("check the name `{}` and the `endpoint` in the `{block}` block", self.name)
            }
            (301 | 307 | 400, _) if region.is_some() => {
                format!("the bucket's region is {}: set `region` in the `{block}` block", region.unwrap_or_default())
            }
            (301 | 307, _) => format!("check `region` and `endpoint` in the `{block}` block"),
            (_, "RequestTimeTooSkewed") => "check this machine's clock".into(),
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AuthenticationFailed" | "ExpiredToken")
            | (401, _) => "check the credentials: they are wrong or have expired".into(),
            (403, _) => {
                format!("check that the credentials may access `{}`; if it is public, set `anonymous: true`", self.name)
            }
            (404, _) => format!("check the name; what there is can be read by a pattern: {}", self.uri("**")),
            (429 | 503, _) => "lower `connections`".into(),
            _ => return None,
        })
    }

    /// `text` without the secrets, which a server may repeat.
    fn redacted(&self, text: &str) -> String {
        millstream_core::redact::values(text, self.secrets.iter().map(String::as_str))
    }
}

/// Whether the object does not exist, although the bucket may.
fn is_missing(fault: &Fault) -> bool {
    let parse_error = fault.text.as_deref().and_then(|text| page::parse_error(text.as_bytes()));
    fault.status == Some(404)
        && parse_error
            .is_none_or(|parse_error| !matches!(parse_error.code.as_str(), "NoSuchBucket" | "ContainerNotFound"))
}

/// Whether the parts of an upload do not exist (any more). For Azure these are blocks, without an upload.
fn is_gone(fault: &Fault) -> bool {
    let parse_error = || fault.text.as_deref().and_then(|text| page::parse_error(text.as_bytes()));
    is_missing(fault) || parse_error().is_some_and(|parse_error| parse_error.code == "InvalidBlockList")
}

/// An object of a bucket.
#[derive(Debug)]
pub(crate) struct Object {
    bucket: Arc<Bucket>,
    path: Path,
}

impl Object {
    /// The object named `key` in the bucket.
    pub(crate) fn new(bucket: Arc<Bucket>, key: &str) -> Result<Self> {
        Ok(Object { path: path_of(&bucket.uri(key), key)?, bucket })
    }
}

/// The name as a path of the store crate, which has no empty parts, and no `.` and `..`.
pub(crate) fn path_of(uri: &str, key: &str) -> Result<Path> {
    let error =
        || Error::refused("an object whose name has such a part cannot be named in a request").in_unit(uri, None);
    if key.starts_with('/') || key.ends_with('/') {
        return Err(error().cause("a part of the name is empty"));
    }
    Path::parse(key).map_err(|cause| match cause {
        object_store::path::Error::EmptySegment { .. } => error().cause("a part of the name is empty"),
        _ => error().cause("a part is `.` or `..`, or has a control character"),
    })
}

#[async_trait]
impl Remote for Object {
    fn client(&self) -> &Client {
        &self.bucket.client
    }

    fn has_ranges(&self) -> bool {
        true
    }

    async fn send(&self, method: &Method, part: Option<&Part>) -> Result<Answer, Fault> {
        let slot = Slot::default();
        let version = part.and_then(|part| part.version.as_ref()?.to_str().ok());
        let options = GetOptions {
            // A time of change is no condition here.
            if_match: version.filter(|version| version.starts_with('"')).map(str::to_owned),
            range: part.map(|part| match part.end {
                Some(end) => GetRange::Bounded(part.first..end),
                None => GetRange::Offset(part.first),
            }),
            head: *method == Method::HEAD,
            extensions: slot.extensions(),
            ..GetOptions::default()
        };
        let told = self.bucket.store.get_opts(&self.path, options).await;
        slot.answer(told).map_err(|fault| match fault.status {
            Some(412) => changed("while it was read"),
            _ => self.bucket.explained(fault),
        })
    }
}

//! The table of the API: for each path who may ask, what is asked with, and what comes back. The router, the checks of
//! roles and the description of the API are all made from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Method, Uri};
use millstream::Error;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::{Caller, Role};
use crate::problem::Problem;
use crate::shared::Shared;

/// A request whose caller is known.
#[derive(Debug)]
pub struct Request {
    /// Who asks.
    pub caller: Caller,
    /// The parts of the path that stand in braces in the table.
    pub ids: BTreeMap<String, String>,
    /// The address, with the query.
    pub uri: Uri,
    /// The body.
    pub body: bytes::Bytes,
}

impl Request {
    /// A part of the path.
    pub fn id(&self, name: &str) -> &str {
        self.ids.get(name).map_or("", String::as_str)
    }
}

/// No query, or no body.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// An answer that says nothing but that it worked.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Done {}

/// The schema of a type.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A path that is not in the table, since it does not answer with JSON or does not ask who it is.
pub struct Described {
    /// The path.
    pub path: &'static str,
    /// The method, in lower case.
    pub method: &'static str,
    /// The operation, for the description of the API.
    pub operation: fn(&mut SchemaGenerator) -> serde_json::Value,
}

/// What answers, with the text of an answer.
type Handler = Arc<dyn Fn(Arc<Shared>, Request) -> BoxFuture<'static, Result<String, Problem>> + Send + Sync>;

/// A line of the table.
pub struct Route {
    /// GET, POST or PUT.
    pub method: Method,
    /// The path, with names in braces.
    pub path: &'static str,
    /// What the caller must be allowed at least.
    pub role: Role,
    /// What it does.
    pub summary: &'static str,
    /// What is asked with: the query of a GET, the body of others.
    pub input: SchemaOf,
    /// What comes back.
    pub answer: SchemaOf,
    pub(crate) handler: Handler,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

fn query<Q: DeserializeOwned>(uri: &Uri) -> Result<Q, Problem> {
    let wrong = |cause: axum::extract::rejection::QueryRejection| {
        Problem::bad(Error::job("the query is wrong").text(uri.query().unwrap_or_default()).cause(cause.body_text()))
    };
    axum::extract::Query::try_from_uri(uri).map(|query| query.0).map_err(wrong)
}

fn body<B: DeserializeOwned>(body: &[u8]) -> Result<B, Problem> {
    let text = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(text)
        .map_err(|cause| Problem::bad(Error::job("the body of the request is wrong").cause(cause)))
}

fn text<A: Serialize>(answer: &A) -> Result<String, Problem> {
    let failed = |cause| Problem::from(Error::internal("the answer is no JSON").cause(cause));
    serde_json::to_string(answer).map_err(failed)
}

/// What is asked with: the query of a GET, the body of others.
fn input<I: DeserializeOwned>(method: &Method, request: &Request) -> Result<I, Problem> {
    match *method {
        Method::GET => query(&request.uri),
        _ => body(&request.body),
    }
}

/// A question that is answered from files and the history.
pub fn get<Q, A>(
    path: &'static str,
    role: Role,
    summary: &'static str,
    answer: fn(&Shared, &Request, Q) -> Result<A, Problem>,
) -> Route
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + 'static,
{
    act(Method::GET, path, role, summary, answer)
}

/// Something that is done on a thread of its own: files and the history may be slow.
pub fn act<I, A>(
    method: Method,
    path: &'static str,
    role: Role,
    summary: &'static str,
    answer: fn(&Shared, &Request, I) -> Result<A, Problem>,
) -> Route
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + 'static,
{
    let of = method.clone();
    let handler: Handler = Arc::new(move |shared, request| {
        let method = of.clone();
        Box::pin(blocking(move || {
            let input = input::<I>(&method, &request)?;
            text(&answer(&shared, &request, input)?)
        }))
    });
    Route { method, path, role, summary, input: I::json_schema, answer: A::json_schema, handler }
}

/// A question that is answered by asking the program.
pub fn ask<Q, A, F>(
    path: &'static str,
    role: Role,
    summary: &'static str,
    answer: fn(Arc<Shared>, Request, Q) -> F,
) -> Route
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + 'static,
    F: Future<Output = Result<A, Problem>> + Send + 'static,
{
    act_asking(Method::GET, path, role, summary, answer)
}

/// Something that is done, and for which the program is asked.
pub fn act_asking<I, A, F>(
    method: Method,
    path: &'static str,
    role: Role,
    summary: &'static str,
    answer: fn(Arc<Shared>, Request, I) -> F,
) -> Route
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    A: Serialize + JsonSchema + 'static,
    F: Future<Output = Result<A, Problem>> + Send + 'static,
{
    let of = method.clone();
    let handler: Handler = Arc::new(move |shared, request| {
        let method = of.clone();
        Box::pin(async move {
            let input = input::<I>(&method, &request)?;
            text(&answer(shared, request, input).await?)
        })
    });
    Route { method, path, role, summary, input: I::json_schema, answer: A::json_schema, handler }
}

async fn blocking(work: impl FnOnce() -> Result<String, Problem> + Send + 'static) -> Result<String, Problem> {
    let failed = |cause| Problem::from(Error::internal("the answer was not finished").cause(cause));
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

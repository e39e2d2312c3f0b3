//! Signing in and out, and the audit log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use millstream::Error;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::access::{AuditEntry, Begun, Caller, Role};
use crate::answers::{LARGEST_WAY, blocking, json_answer, read};
use crate::caller::{caller, token, too_many, wrong};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::{Described, Nothing, Request, Route, get};
use crate::shared::Shared;

/// The most entries of the audit log that are shown.
const ENTRIES: usize = 500;

/// How many passwords are looked at together: each takes 19 MiB and a core for a moment.
static PLACES: Semaphore = Semaphore::const_new(2);

pub fn routes() -> Vec<Route> {
    vec![
        get("/api/v1/session", Role::Look, "Who you are, and what is served", session),
        get("/api/v1/audit", Role::Edit, "Who did what, the last first", audit),
    ]
}

/// Signing in and out in the description of the API.
pub fn described() -> Vec<Described> {
    let begin = |schemas: &mut SchemaGenerator| {
        let [way, session] = [schemas.subschema_for::<Way>(), schemas.subschema_for::<Session>()];
        json!({
            "operationId": "post_session",
            "summary": "Sign in",
            "description": "Needs no token, but that of a link, or a user with a password.",
            "security": [],
            "requestBody": {"required": true, "content": {"application/json": {"schema": way}}},
            "responses": {"200": {"description": "Done", "content": {"application/json": {"schema": session}}}},
        })
    };
    let end = |_: &mut SchemaGenerator| {
        json!({
            "operationId": "delete_session",
            "summary": "Sign out",
            "description": "Ends the session whose token is sent.",
            "responses": {"200": {
                "description": "Done",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }},
        })
    };
    let path = "/api/v1/session";
    vec![Described { path, method: "post", operation: begin }, Described { path, method: "delete", operation: end }]
}

/// Who somebody is, and what is served.
#[derive(Debug, Serialize, JsonSchema)]
struct Session {
    /// The token, once, when the session begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    user: String,
    role: Role,
    /// When the session ends; 0 if it does not.
    expires: u64,
    /// The version of Millstream.
    version: &'static str,
    /// The folder that is served.
    folder: String,
    host: String,
    /// The state folder.
    state: String,
}

impl Session {
    fn of(shared: &Shared, caller: &Caller, token: Option<String>) -> Self {
        Session {
            token,
            user: caller.user.clone(),
            role: caller.role,
            expires: caller.expires.unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION"),
            folder: shared.folder.root().display().to_string(),
            host: shared.facts.host.clone(),
            state: shared.history.folder().display().to_string(),
        }
    }
}

fn session(shared: &Shared, request: &Request, _: Nothing) -> Result<Session, Problem> {
    Ok(Session::of(shared, &request.caller, None))
}

/// What signs somebody in: the token of a link, or a user with a password.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Way {
    token: Option<String>,
    user: Option<String>,
    password: Option<String>,
}

/// Begins a session.
pub async fn begin(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Response, Problem> {
    let body = read(body, LARGEST_WAY).await?;
    let unclear = || Problem::bad(Error::job("send `{\"token\": …}`, or `{\"user\": …, \"password\": …}`"));
    let way: Way = serde_json::from_slice(&body).map_err(|_| unclear())?;
    // On a task of its own: it is finished, and counted, even if the client does not wait for the answer.
    let signing_in = tokio::spawn(async move {
        match way {
            Way { token: Some(token), user: None, password: None } => by_link(&shared, &peer, token).await,
            Way { token: None, user: Some(user), password: Some(password) } => {
                by_password(&shared, &peer, user, password).await
            }
            _ => Err(unclear()),
        }
    });
    signing_in.await.map_err(|cause| Problem::from(Error::internal("not signed in").cause(cause)))?
}

async fn by_link(shared: &Arc<Shared>, peer: &Peer, token: String) -> Result<Response, Problem> {
    let from = peer.ip;
    match blocking(shared, move |shared| Ok(shared.access.begin_by_link(&token, from)?)).await? {
        Some(begun) => begun_by(shared, peer, "link", begun),
        None => {
            let guess = shared.access.tokens().enter().ok_or_else(too_many)?;
            Err(wrong(shared, guess, peer, "link", "the link was used, or is too old").await)
        }
    }
}

async fn by_password(shared: &Arc<Shared>, peer: &Peer, user: String, password: String) -> Result<Response, Problem> {
    // Looking at a password is work: those who guess get little of it done.
    let guess = shared.access.passwords().enter().ok_or_else(too_many)?;
    let closed = |cause| Problem::from(Error::internal("there are no places").cause(cause));
    let place = PLACES.acquire().await.map_err(closed)?;
    let from = peer.ip;
    let begun = blocking(shared, move |shared| Ok(shared.access.begin_by_password(&user, &password, from)?)).await?;
    drop(place);
    match begun {
        Some(begun) => begun_by(shared, peer, "password", begun),
        None => Err(wrong(shared, guess, peer, "password", "the name or the password is wrong").await),
    }
}

fn begun_by(shared: &Shared, peer: &Peer, what: &str, begun: Begun) -> Result<Response, Problem> {
    let Begun { token, caller } = begun;
    peer.known.store(true, Ordering::Relaxed);
    shared.note(&caller, "sign in", what, true);
    answer(&Session::of(shared, &caller, Some(token)))
}

/// Ends a session.
pub async fn end(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let caller = caller(&shared, &peer, &headers).await?;
    let token = token(&headers).unwrap_or_default().to_owned();
    blocking(&shared, move |shared| {
        shared.access.end(&token)?;
        shared.note(&caller, "sign out", "", true);
        Ok(())
    })
    .await?;
    Ok(json_answer("{}".to_owned()).into_response())
}

fn answer(session: &Session) -> Result<Response, Problem> {
    let failed = |cause| Problem::from(Error::internal("the answer is no JSON").cause(cause));
    serde_json::to_string(session).map(json_answer).map_err(failed)
}

/// The audit log.
#[derive(Debug, Serialize, JsonSchema)]
struct AuditList {
    entries: Vec<AuditEntry>,
}

fn audit(shared: &Shared, _: &Request, _: Nothing) -> Result<AuditList, Problem> {
    Ok(AuditList { entries: shared.access.audit().last(ENTRIES)? })
}

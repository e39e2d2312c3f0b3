//! Signing in and out, and the audit log.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use millstream::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{caller, json_answer, read, token, too_many, wrong};
use crate::access::{AuditEntry, Begun, Caller, Role};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::{Nothing, Request, Route, get};
use crate::server::Shared;

/// The most entries of the audit log that are shown.
const ENTRIES: usize = 500;

pub fn routes() -> Vec<Route> {
    vec![
        get("/api/v1/session", Role::Look, "Who you are, and what is served", session),
        get("/api/v1/audit", Role::Edit, "Who did what, the last first", audit),
    ]
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
#[derive(Debug, Deserialize)]
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
    let body = read(body).await?;
    let unclear = || Problem::bad(Error::job("send `{\"token\": …}`, or `{\"user\": …, \"password\": …}`"));
    let way: Way = serde_json::from_slice(&body).map_err(|_| unclear())?;
    // Looking at a password is work: those who guess get none of it done.
    if shared.access.slow().is_full() {
        return Err(too_many());
    }
    let (access, what) = (Arc::clone(&shared.access), if way.token.is_some() { "link" } else { "password" });
    let begun = tokio::task::spawn_blocking(move || match way {
        Way { token: Some(token), user: None, password: None } => access.begin_by_link(&token, peer.0).map(Some),
        Way { token: None, user: Some(user), password: Some(password) } => {
            access.begin_by_password(&user, &password, peer.0).map(Some)
        }
        _ => Ok(None),
    });
    let begun = begun.await.map_err(|cause| Problem::from(Error::internal("not signed in").cause(cause)))??;
    match begun.ok_or_else(unclear)? {
        Some(Begun { token, caller }) => {
            shared.note(&caller, "sign in", what, true);
            answer(&Session::of(&shared, &caller, Some(token)))
        }
        None if what == "link" => Err(wrong(&shared, peer, what, "the link was used, or is too old").await),
        None => Err(wrong(&shared, peer, what, "the name or the password is wrong").await),
    }
}

/// Ends a session.
pub async fn end(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let caller = caller(&shared, peer, &headers).await?;
    shared.access.end(token(&headers).unwrap_or_default())?;
    shared.note(&caller, "sign out", "", true);
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

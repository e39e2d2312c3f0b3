//! What the API answers: a module for each of its topics, and the router over all of them.

mod doing;
mod events;
mod files;
mod history;
mod machine;
mod overview;
mod runs;
mod schedule;
mod session;
pub mod summary;

pub use schedule::SchedulerState;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{RawPathParams, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on, post};
use axum::{Extension, Router};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use millstream::{Error, Result};

use crate::access::{Caller, Guess};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::{Request, Route};
use crate::server::Shared;
use crate::{metrics, openapi, pages};

/// The largest body of what writes a file, of what signs somebody in, and of all else; and how long a client may take
/// to send it.
const LARGEST_FILE: usize = 10 << 20;
const LARGEST_WAY: usize = 4 << 10;
const LARGEST_BODY: usize = 256 << 10;
const LONGEST_BODY: Duration = Duration::from_secs(30);

/// The longest token that is looked at.
const LONGEST_TOKEN: usize = 200;

/// All lines of the table.
pub fn routes() -> Vec<Route> {
    let topics = [
        session::routes(),
        overview::routes(),
        runs::routes(),
        doing::routes(),
        history::routes(),
        files::routes(),
        schedule::routes(),
        machine::routes(),
    ];
    topics.into_iter().flatten().collect()
}

/// What answers all requests.
pub fn router(shared: &Arc<Shared>) -> Router {
    let routes = routes();
    let description: Arc<str> = openapi::describe(&routes).to_string().into();
    let mut router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics::page))
        .route("/api/v1/openapi.json", get(move || async move { json_answer(description.to_string()) }))
        .route("/api/v1/session", post(session::begin).delete(session::end))
        .route("/api/v1/events", get(events::stream));
    for route in routes {
        let (path, filter) = (route.path, filter(&route.method));
        let route = Arc::new(route);
        router = router.route(
            path,
            on(filter, move |shared, peer, ids, uri, headers, body| {
                answer(Arc::clone(&route), shared, peer, ids, uri, headers, body)
            }),
        );
    }
    let unknown =
        |uri: Uri| async move { Problem::absent(Error::refused("the API has no such path").text(uri.path())) };
    let wrong_method = |method: Method| async move {
        let error = Error::refused("the API does not answer this method here").text(method.as_str());
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, error)
    };
    router
        .route("/api/{*rest}", axum::routing::any(unknown))
        .fallback(get(pages::page))
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(shared), guarded))
        .with_state(Arc::clone(shared))
}

fn filter(method: &Method) -> MethodFilter {
    match *method {
        Method::POST => MethodFilter::POST,
        Method::PUT => MethodFilter::PUT,
        _ => MethodFilter::GET,
    }
}

async fn guarded(State(shared): State<Arc<Shared>>, request: axum::extract::Request, next: Next) -> Response {
    let checked = shared.guard.check(request.method(), request.uri(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    shared.guard.protect(response.headers_mut());
    response
}

async fn answer(
    route: Arc<Route>,
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    ids: RawPathParams,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answered = async {
        let caller = caller(&shared, &peer, &headers).await?;
        if caller.role < route.role {
            if let Some(count) = shared.access.refused(&caller.user) {
                let did = format!("{} {} ({count} in all)", route.method, uri.path());
                shared.note(&caller, "refused", &did, false);
            }
            let what = format!(
                "this needs the role `{}`, and `{}` has `{}`",
                route.role.name(),
                caller.user,
                caller.role.name()
            );
            return Err(Problem::forbidden(Error::refused(what)));
        }
        let largest = if route.method == Method::PUT { LARGEST_FILE } else { LARGEST_BODY };
        let body = read(body, largest).await?;
        let ids = ids.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (route.handler)(Arc::clone(&shared), Request { caller, ids, uri, body }).await
    };
    match answered.await {
        Ok(text) => json_answer(text),
        Err(problem) => problem.into_response(),
    }
}

/// The body of a request.
async fn read(body: Body, largest: usize) -> Result<bytes::Bytes, Problem> {
    match tokio::time::timeout(LONGEST_BODY, to_bytes(body, largest)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(cause)) => {
            let error = Error::refused(format!("the body of this request has at most {largest} bytes")).cause(cause);
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error))
        }
        Err(_) => {
            let error = Error::refused(format!("the body did not come within {} s", LONGEST_BODY.as_secs()));
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, error))
        }
    }
}

fn json_answer(text: String) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The token of a request.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && token.len() <= LONGEST_TOKEN)
}

/// Who asks.
///
/// # Errors
/// If that is not known. A wrong token is slowed down.
pub async fn caller(shared: &Arc<Shared>, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Problem> {
    let Some(token) = token(headers) else {
        let error = Error::refused("this needs a token").hint("sign in, or send `Authorization: Bearer TOKEN`");
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    };
    let (token, from) = (token.to_owned(), peer.ip);
    if let Some(caller) = blocking(shared, move |shared| Ok(shared.access.caller(&token, from)?)).await? {
        peer.known.store(true, Ordering::Relaxed);
        return Ok(caller);
    }
    let guess = shared.access.tokens().enter().ok_or_else(too_many)?;
    Err(wrong(shared, guess, peer, "token", "the token is not known, or has ended").await)
}

/// Something that lets nobody in, after the time that such a guess costs. The guess keeps its place as long, also if
/// the client does not wait.
async fn wrong(shared: &Shared, guess: Guess, peer: &Peer, what: &str, why: &str) -> Problem {
    let wrong = guess.wrong(Instant::now());
    if let Some(count) = wrong.noted {
        let times = if count == 1 { String::new() } else { format!(" ({count} in all)") };
        shared.note_of("?", peer.ip, "wrong", &format!("{what}{times}"), false);
    }
    let waiting = tokio::spawn(async move {
        tokio::time::sleep(wrong.wait).await;
        drop(guess);
    });
    let _ = waiting.await;
    let error = Error::refused(why).hint("`millstream access link` prints a link that signs you in");
    Problem::new(StatusCode::UNAUTHORIZED, error)
}

/// Does `work`, which may wait for files or for the history, on a thread of its own.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let shared = Arc::clone(shared);
    let failed = |cause| Problem::from(Error::internal("the answer was not finished").cause(cause));
    tokio::task::spawn_blocking(move || work(&shared)).await.map_err(failed)?
}

fn too_many() -> Problem {
    let error = Error::transient("too many wrong tokens and passwords have come").hint("wait a while");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, error)
}

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

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawPathParams, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on, post};
use axum::{Extension, Router};
use http::{HeaderMap, Method, StatusCode, Uri};
use millstream::Error;

use crate::answers::{LARGEST_BODY, LARGEST_FILE, json_answer, read};
use crate::caller::caller;
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::{Described, Request, Route};
use crate::shared::Shared;
use crate::{metrics, openapi, pages};

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
    let others = [session::described(), events::described(), metrics::described()];
    let others: Vec<Described> = others.into_iter().flatten().collect();
    let description: Arc<str> = openapi::describe(&routes, &others).to_string().into();
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

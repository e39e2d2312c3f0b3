//! The stream of events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use millstream::Error;
use schemars::SchemaGenerator;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use crate::answers::blocking;
use crate::caller::{caller, token};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::Described;
use crate::shared::Shared;
use crate::watch::live_json;

/// The most clients of the stream.
const MOST: usize = 64;

/// So often a client gets a sign that the stream lives, whatever happens.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// So often it is looked whether the client may still listen.
const LOOK: Duration = Duration::from_secs(30);

/// The stream in the description of the API.
pub fn described() -> Vec<Described> {
    let operation = |_: &mut SchemaGenerator| {
        json!({
            "operationId": "get_events",
            "summary": "What happens, as server-sent events",
            "description": "Needs the role `look`. Events are `hello`, `runs`, `live`, `action`, `files`, `schedule`, \
                            `notice` and `resync`, after which a client asks again for what it shows. The data of \
                            each is JSON.",
            "parameters": [{
                "name": "run", "in": "query", "required": false, "schema": {"type": "string"},
                "description": "A run that is watched: its `live` events say how it goes, once a second.",
            }],
            "responses": {"200": {"description": "The stream", "content": {"text/event-stream": {}}}},
        })
    };
    vec![Described { path: "/api/v1/events", method: "get", operation }]
}

/// What a client wants to hear.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// The run that it watches.
    run: Option<String>,
}

/// The stream.
pub async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let caller = caller(&shared, &peer, &headers).await?;
    let wrong =
        |cause: axum::extract::rejection::QueryRejection| Error::job("the query is wrong").cause(cause.body_text());
    let Wanted { run } = wanted.map_err(|cause| Problem::bad(wrong(cause)))?.0;
    if shared.events.listeners() >= MOST {
        let error = Error::transient(format!("{MOST} clients listen already")).hint("close some of them");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, error));
    }
    let wanted = run.clone();
    let view = blocking(&shared, move |shared| match wanted {
        Some(run) if shared.history.glance(&run)?.is_none() => {
            Err(Problem::absent(Error::refused("there is no such run").text(run)))
        }
        Some(run) => Ok(shared.history.view_of(&run).map(|view| live_json(&run, &view))),
        None => Ok(None),
    });
    let view = view.await?;
    let token = token(&headers).unwrap_or_default().to_owned();
    let mut events = shared.events.listen();
    let stream = async_stream::stream! {
        let _watching = run.as_deref().map(|run| shared.events.watch(run));
        yield Ok::<_, Infallible>(Event::default().event("hello").data("{}"));
        if let Some(view) = view {
            yield Ok(Event::default().event("live").data(view));
        }
        let [mut look, mut sign] = [LOOK, SIGN_OF_LIFE].map(tokio::time::interval);
        look.reset();
        sign.reset();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(event) if event.run.is_some() && event.run.as_deref() != run.as_deref() => {}
                    Ok(event) => yield Ok(Event::default().event(event.name).data(&*event.data)),
                    Err(RecvError::Lagged(_)) => yield Ok(Event::default().event("resync").data("{}")),
                    Err(RecvError::Closed) => break,
                },
                _ = sign.tick() => yield Ok(Event::default().comment("")),
                _ = look.tick() => {
                    let is_known = shared.access.caller(&token, peer.ip).is_ok_and(|known| {
                        known.is_some_and(|known| known.user == caller.user)
                    });
                    if !is_known {
                        break;
                    }
                }
            }
        }
    };
    Ok(Sse::new(stream).into_response())
}

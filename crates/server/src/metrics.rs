//! The page for Prometheus: how many runs there are and how they ended, and what the server itself takes. What a run
//! does is on the page of the run (`millstream run --metrics`).

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};
use millstream::Error;
use millstream::history::{Outcome, RunFilter, RunRecord};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use schemars::SchemaGenerator;
use serde_json::json;

use crate::caller::caller;
use crate::listen::Peer;
use crate::problem::Problem;
use crate::routes::Described;
use crate::shared::Shared;

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How many runs of a file are looked at together for the last one that has ended.
const LOOKED_AT: u64 = 20;

type Labels = Vec<(String, String)>;

/// The page in the description of the API.
pub fn described() -> Vec<Described> {
    let operation = |_: &mut SchemaGenerator| {
        json!({
            "operationId": "get_metrics",
            "summary": "Metrics for Prometheus",
            "description": "Needs the role `look`.",
            "responses": {"200": {"description": "The page", "content": {MEDIA_TYPE: {}}}},
        })
    };
    vec![Described { path: "/metrics", method: "get", operation }]
}

/// The page.
///
/// # Errors
/// If the caller has no token, or the history cannot be read.
pub async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller(&shared, &peer, &headers).await?;
    let text = tokio::task::spawn_blocking(move || text(&shared)).await;
    let text = text.map_err(|cause| Problem::from(Error::internal("no metrics").cause(cause)))??;
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    Ok(response)
}

/// The last run that has ended, of those that `filter` lets through.
fn last_over(shared: &Shared, mut filter: RunFilter) -> Result<Option<RunRecord>, Problem> {
    loop {
        let runs = shared.history.browse(&filter, LOOKED_AT)?;
        let Some(last) = runs.last() else { return Ok(None) };
        filter.before = Some(last.run.clone());
        if let Some(over) = runs.into_iter().find(|run| run.outcome != Outcome::Running) {
            return Ok(Some(over));
        }
    }
}

/// When a run has ended; of one that was killed, when it was seen last.
fn ended_at(run: &RunRecord) -> u64 {
    run.ended.unwrap_or_else(|| run.began + run.took().map_or(0, |took| took.as_millis() as u64))
}

fn text(shared: &Shared) -> Result<String, Problem> {
    let mut registry = Registry::default();
    let running = RunFilter { outcome: Some(Outcome::Running), steps: true, ..RunFilter::default() };
    let running = shared.history.browse(&running, u64::MAX)?;
    let (runs, rows, ended, took) = (
        Family::<Labels, Gauge>::default(),
        Family::<Labels, Gauge>::default(),
        Family::<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>::default(),
        Family::<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>::default(),
    );
    for run in &running {
        let file = shared.folder.name_of(&run.job).unwrap_or_else(|| run.job.clone());
        runs.get_or_create(&vec![("file".to_owned(), file)]).inc();
    }
    let unfinished = Gauge::<i64>::default();
    unfinished.set(i64::try_from(shared.history.left_over(None, u64::MAX)?.len()).unwrap_or(i64::MAX));
    for known in shared.history.known_jobs()? {
        let filter = RunFilter { job: Some(known.job.clone()), steps: true, ..RunFilter::default() };
        let Some(last) = last_over(shared, filter)? else { continue };
        let file = shared.folder.name_of(&known.job).unwrap_or(known.job);
        let labels = |more: Option<(&str, &str)>| {
            let more = more.map(|(name, value)| (name.to_owned(), value.to_owned()));
            [("file".to_owned(), file.clone())].into_iter().chain(more).collect::<Labels>()
        };
        let seconds = |milliseconds: u64| milliseconds as f64 / 1_000.0;
        ended.get_or_create(&labels(Some(("outcome", last.outcome.name())))).set(seconds(ended_at(&last)));
        took.get_or_create(&labels(None)).set(last.took().unwrap_or_default().as_secs_f64());
        for (what, count) in
            [("read", last.rows_read), ("written", last.rows_written), ("rejected", last.rows_rejected)]
        {
            rows.get_or_create(&labels(Some(("rows", what)))).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    registry.register("millstream_runs_running", "Runs that run, by file", runs);
    registry.register("millstream_runs_unfinished", "Runs that left something to do", unfinished);
    registry.register_with_unit(
        "millstream_last_run_end_time",
        "When the last run of a file ended",
        Unit::Seconds,
        ended,
    );
    registry.register_with_unit(
        "millstream_last_run_duration",
        "How long the last run of a file took",
        Unit::Seconds,
        took,
    );
    registry.register("millstream_last_run_rows", "Rows of the last run of a file", rows);
    let resident = Gauge::<i64>::default();
    resident.set(i64::try_from(millstream::machine::resident()).unwrap_or(i64::MAX));
    registry.register_with_unit("millstream_server_resident", "Resident size of the server", Unit::Bytes, resident);
    let clients = Gauge::<i64>::default();
    clients.set(i64::try_from(shared.events.listeners()).unwrap_or(i64::MAX));
    registry.register("millstream_server_listeners", "Clients of the stream of events", clients);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|cause| Problem::from(Error::internal("no metrics").cause(cause)))?;
    Ok(text)
}

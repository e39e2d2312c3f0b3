//! Traces: a run is a span, and what it spends its time with are spans below it. The epochs of a run that reads a queue
//! are traces of their own, which are linked to the run, so that a service's trace does not grow without end and the
//! usual samplers apply to them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream::report::{Report, Stage, StageKind, Totals};
use millstream::{Error, Event, Failure};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Link, SpanContext, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use super::export::{Client, Faults, Noted, Watched};

/// The most epochs of a run that are traced in a second; the sampler may leave out more.
const EPOCHS_PER_SECOND: u32 = 5;

/// How long the last spans may take at the end.
const LAST_EXPORT: Duration = Duration::from_secs(5);

/// Where traces go, with passwords left out, if the environment says that there are to be some.
pub fn endpoint() -> Option<String> {
    endpoint_of(&|name| std::env::var(name).ok())
}

fn endpoint_of(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let is_otlp = |exporters: String| exporters.split(',').any(|exporter| exporter.trim() == "otlp");
    if is_off || !set("OTEL_TRACES_EXPORTER").is_none_or(is_otlp) {
        return None;
    }
    set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

/// Makes traces, and exports them.
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// What the command is a part of: nothing, unless `TRACEPARENT` says so.
    parent: Context,
    noted: Noted,
    endpoint: String,
}

impl Traces {
    /// Begins to export to `endpoint`, on the runtime `io`; everything else is said by variables of the environment,
    /// which the libraries read.
    ///
    /// # Errors
    /// A warning that says why there will be no traces.
    pub fn begin(endpoint: &str, io: &Handle) -> Result<Self, String> {
        let endpoint = millstream::text::redacted(endpoint);
        let failed = |cause: String| format!("traces are not exported to {endpoint}: {cause}");
        let either = |ending: &str| {
            let named = |name: String| std::env::var(name).ok().filter(|value| !value.is_empty());
            named(format!("OTEL_EXPORTER_OTLP_TRACES_{ending}"))
                .or_else(|| named(format!("OTEL_EXPORTER_OTLP_{ending}")))
        };
        if let Some(other) = either("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            let cause = format!("the protocol is `{other}`, and Millstream has `http/protobuf` only");
            return Err(failed(cause) + " (OTEL_EXPORTER_OTLP_PROTOCOL)");
        }
        let noted = Noted::default();
        let client = Client::new(io, either("CERTIFICATE").as_deref(), noted.clone()).map_err(failed)?;
        let exporter = SpanExporter::builder().with_http().with_http_client(client);
        let exporter = exporter.with_protocol(Protocol::HttpBinary).build();
        let exporter = exporter.map_err(|error| failed(millstream::text::redacted(&error.to_string())))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(Watched { exporter, noted: noted.clone() })
            .build();
        let tracer = provider.tracer("millstream");
        Ok(Traces { provider, tracer, parent: parent(), noted, endpoint })
    }

    /// A run of `job` begins, whose span has the name `span`.
    pub fn run(&self, span: &'static str, job: &str) -> TracedRun {
        let job = millstream::text::redacted(job);
        let span = self.tracer.span_builder(span);
        let span = span.with_attributes([KeyValue::new("millstream.job", job.clone())]);
        let span = span.start_with_context(&self.tracer, &self.parent);
        let parent = self.parent.span().span_context().clone();
        let run = Context::new().with_span(span);
        TracedRun {
            tracer: self.tracer.clone(),
            run,
            job,
            with_epochs: !parent.is_valid() || parent.is_sampled(),
            state: Mutex::default(),
        }
    }

    /// Exports what is left, which takes a few seconds at most. What comes back is a warning, if spans were lost.
    pub fn end(&self) -> Option<String> {
        let ended = self.provider.shutdown_with_timeout(LAST_EXPORT);
        let Faults { lost, cause } = self.noted.take();
        if lost == 0 && ended.is_ok() {
            return None;
        }
        let cause = cause.unwrap_or_else(|| "it took too long".to_owned());
        Some(format!("traces could not be exported to {}: {cause}", self.endpoint))
    }
}

/// What all spans share. The name of the service is `millstream`, unless the environment has another one.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let of_environment = Resource::builder().with_attribute(version.clone()).build();
    let name = of_environment.get(&"service.name".into()).map(|name| name.to_string()).unwrap_or_default();
    match name.is_empty() || name.starts_with("unknown_service") {
        true => Resource::builder().with_attribute(version).with_service_name("millstream").build(),
        false => of_environment,
    }
}

/// What `TRACEPARENT` and `TRACESTATE` name.
fn parent() -> Context {
    let variable = |name: &str| std::env::var(name.to_uppercase()).ok().map(|value| (name.to_owned(), value));
    let carrier: HashMap<String, String> = ["traceparent", "tracestate"].into_iter().filter_map(variable).collect();
    TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier)
}

/// The trace of a run.
pub struct TracedRun {
    tracer: SdkTracer,
    /// With the run's span.
    run: Context,
    job: String,
    /// Whether epochs are traced: not if the command is a part of something that is not.
    with_epochs: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The sinks' loads, until the whole load is known: their span is below that one's.
    sinks: Vec<Stage>,
    /// The second that began last with an epoch, and how many it had.
    second: Option<(Instant, u32)>,
    /// The name of the run, and what it had read and written.
    last: Option<(String, Totals)>,
}

impl TracedRun {
    /// What programs get that the run starts: by it they take part in the trace.
    pub fn environment(&self) -> Vec<(String, String)> {
        let mut carrier: HashMap<String, String> = HashMap::new();
        TraceContextPropagator::new().inject_context(&self.run, &mut carrier);
        let set = carrier.into_iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| (name.to_uppercase(), value)).collect()
    }

    /// Something happens.
    pub fn see(&self, event: &Event) {
        match event {
            Event::Progress(progress) => self.state().last = Some((progress.run.clone(), progress.totals)),
            Event::Stage(stage) => self.add(stage),
            _ => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run has gone through `stage`.
    fn add(&self, stage: &Stage) {
        let mut state = self.state();
        match stage.kind {
            StageKind::Prepare => drop(self.span("prepare", stage, &self.run)),
            StageKind::Sink => state.sinks.push(stage.clone()),
            StageKind::Load => {
                let load = self.span("load", stage, &self.run);
                state.sinks.drain(..).for_each(|sink| drop(self.span("load sink", &sink, &load)));
            }
            StageKind::Commit => drop(self.span("commit", stage, &self.run)),
            StageKind::Hook => drop(self.span("hook", stage, &self.run)),
            StageKind::Epoch if self.with_epochs && state.may_add_epoch() => self.epoch(stage),
            _ => {}
        }
    }

    /// Adds a span, and returns the context of those below it.
    fn span(&self, name: &'static str, stage: &Stage, parent: &Context) -> Context {
        let of = stage.of.clone().map(|of| KeyValue::new("millstream.entry", of));
        let span = self.tracer.span_builder(name).with_start_time(stage.began).with_attributes(of);
        let context = Context::new().with_span(span.start_with_context(&self.tracer, parent));
        if stage.failed {
            context.span().set_status(Status::error(""));
        }
        context.span().end_with_timestamp(stage.began + stage.took);
        context
    }

    fn epoch(&self, stage: &Stage) {
        let run: SpanContext = self.run.span().span_context().clone();
        let messages = i64::try_from(stage.messages).unwrap_or(i64::MAX);
        let span = self
            .tracer
            .span_builder("epoch")
            .with_start_time(stage.began)
            .with_links(vec![Link::with_context(run)])
            .with_attributes([
                KeyValue::new("millstream.job", self.job.clone()),
                KeyValue::new("millstream.messages", messages),
            ])
            .start_with_context(&self.tracer, &Context::new());
        Context::new().with_span(span).span().end_with_timestamp(stage.began + stage.took);
    }

    /// The run has ended so, with a report if it makes one.
    pub fn end(self, ended: Result<Option<&Report>, &Failure>) {
        let state = self.state();
        state.sinks.iter().for_each(|sink| drop(self.span("load sink", sink, &self.run)));
        let span = self.run.span();
        match ended {
            Ok(Some(report)) => span.set_attributes(of_report(report)),
            _ => state.last.iter().for_each(|(run, totals)| span.set_attributes(of_run(run, totals))),
        }
        let code = ended.err().map_or(0, crate::exit_code::exit_code);
        span.set_attribute(KeyValue::new("process.exit.code", i64::from(code)));
        if let Err(failure) = ended {
            let kind = failure.errors.first().map(Error::kind);
            let kind = kind.map_or("lints".to_owned(), |kind| format!("{kind:?}").to_lowercase());
            span.set_attribute(KeyValue::new("error.type", kind));
            // The text of an error may quote data.
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

impl State {
    fn may_add_epoch(&mut self) -> bool {
        let now = Instant::now();
        let (since, epochs) = self.second.unwrap_or((now, 0));
        let is_over = now.duration_since(since) >= Duration::from_secs(1);
        let (since, epochs) = if is_over { (now, 0) } else { (since, epochs) };
        self.second = Some((since, epochs + 1));
        epochs < EPOCHS_PER_SECOND
    }
}

fn of_report(report: &Report) -> Vec<KeyValue> {
    let Report { rows_read, rows_written, rows_rejected, .. } = *report;
    let mut attributes = of_run(&report.run, &Totals { rows_read, rows_written, rows_rejected, ..Totals::default() });
    attributes.push(KeyValue::new("millstream.attempts", i64::from(report.attempts)));
    attributes.push(KeyValue::new("millstream.verdict", report.verdict.sentence.clone()));
    attributes
}

fn of_run(run: &str, totals: &Totals) -> Vec<KeyValue> {
    let count = |name: &'static str, count: u64| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX));
    vec![
        KeyValue::new("millstream.run", run.to_owned()),
        count("millstream.rows.read", totals.rows_read),
        count("millstream.rows.written", totals.rows_written),
        count("millstream.rows.rejected", totals.rows_rejected),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        endpoint_of(&find)
    }

    #[test]
    fn there_are_traces_where_the_environment_says_so() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), None);
        assert_eq!(of(&[endpoint]).as_deref(), Some("http://a"));
        assert_eq!(of(&[endpoint, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")]).as_deref(), Some("http://b"));
        assert_eq!(of(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), None);
        assert_eq!(of(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), None);
        assert!(of(&[endpoint, ("OTEL_TRACES_EXPORTER", "console, otlp")]).is_some());
    }

    #[test]
    fn few_epochs_of_a_second_are_traced() {
        let mut state = State::default();
        let added = (0..100).filter(|_| state.may_add_epoch()).count();
        assert_eq!(added, EPOCHS_PER_SECOND as usize);
        state.second = Some((Instant::now() - Duration::from_secs(1), EPOCHS_PER_SECOND));
        assert!(state.may_add_epoch());
    }
}

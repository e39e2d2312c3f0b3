//! What others see of runs while they last: metrics for Prometheus (`--metrics`), and traces for OpenTelemetry (by its
//! usual variables). Both only observe: they read the events of a run, work on a thread of their own, and neither slows
//! a run nor fails it.
//!
//! `metrics.rs` keeps the numbers, `page.rs` writes them and `server.rs` serves them; `traces.rs` makes spans and
//! `export.rs` sends them.

mod export;
mod metrics;
mod page;
mod server;
mod traces;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use millstream::report::Report;
use millstream::{Engine, Error, Event, Failure, Job, Result, RunOptions};
use tokio::runtime::{Builder, Runtime};

use crate::output::Output;
use metrics::Metrics;
use traces::{TracedRun, Traces};

/// What observes the runs of a command.
pub struct Telemetry {
    output: Output,
    metrics: Option<Arc<Metrics>>,
    traces: Option<Traces>,
    /// `None` if there is nothing to do.
    io: Option<Runtime>,
}

impl Telemetry {
    /// Begins to serve metrics at the address `metrics`, if there is one, and to export traces, if the environment says
    /// so.
    ///
    /// # Errors
    /// If the address is wrong or in use, or if the system starts no more threads.
    pub fn begin(output: Output, metrics: Option<&str>, engine: &Engine) -> Result<Self> {
        let endpoint = traces::endpoint();
        if metrics.is_none() && endpoint.is_none() {
            return Ok(Telemetry { output, metrics: None, traces: None, io: None });
        }
        let listener = metrics.map(listen).transpose()?;
        let io = Builder::new_multi_thread().worker_threads(1).thread_name("telemetry").enable_all().build();
        let io = io.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
        let traces = endpoint.and_then(|endpoint| {
            let traces = Traces::begin(&endpoint, io.handle());
            traces.map_err(|warning| output.message(&format!("warning: {warning}\n"))).ok()
        });
        let metrics = listener.map(|(listener, address)| {
            let metrics = Arc::new(Metrics::new(engine.clone()));
            server::serve(io.handle(), listener, Arc::clone(&metrics));
            output.chat(&format!("metrics at http://{address}/metrics\n"));
            metrics
        });
        Ok(Telemetry { output, metrics, traces, io: Some(io) })
    }

    /// A run of `job` is to begin.
    pub fn run(&self, job: &Job) -> Observed {
        self.observed(job, "millstream run")
    }

    /// Rejects of `job` are to be loaded again.
    pub fn replay(&self, job: &Job) -> Observed {
        self.observed(job, "millstream rejects")
    }

    fn observed(&self, job: &Job, span: &'static str) -> Observed {
        self.metrics.iter().for_each(|metrics| metrics.begin(job));
        let trace = self.traces.as_ref().map(|traces| traces.run(span, job.path()));
        Observed { metrics: self.metrics.clone(), trace }
    }

    /// Sends what is left. Says once what could not be exported.
    pub fn end(&self) {
        if let Some(warning) = self.traces.as_ref().and_then(Traces::end) {
            self.output.message(&format!("warning: {warning}\n"));
        }
    }
}

impl Drop for Telemetry {
    /// A slow client is not awaited.
    fn drop(&mut self) {
        self.io.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A run, as it is observed.
#[derive(Default)]
pub struct Observed {
    metrics: Option<Arc<Metrics>>,
    trace: Option<TracedRun>,
}

impl Observed {
    /// Options of a run that is observed so.
    pub fn options(&self) -> RunOptions {
        let environment = self.trace.as_ref().map(TracedRun::environment).unwrap_or_default();
        RunOptions { environment, stages: self.trace.is_some(), ..RunOptions::default() }
    }

    /// Something happens.
    pub fn see(&self, event: &Event) {
        self.metrics.iter().for_each(|metrics| metrics.see(event));
        self.trace.iter().for_each(|trace| trace.see(event));
    }

    /// The run has ended, with a report if it makes one.
    pub fn end(self, ended: std::result::Result<Option<&Report>, &Failure>) {
        self.trace.into_iter().for_each(|trace| trace.end(ended));
    }
}

/// Listens at `address`: a port of this machine, or a host and a port.
fn listen(address: &str) -> Result<(TcpListener, SocketAddr)> {
    let wrong = |cause: std::io::Error| {
        let error = Error::job("the address for metrics is wrong").text(address).cause(cause);
        error.hint("write a port, or a host and a port: `--metrics 127.0.0.1:9100`")
    };
    let addresses: Vec<SocketAddr> = match address.strip_prefix(':').unwrap_or(address).parse::<u16>() {
        Ok(port) => vec![(Ipv4Addr::LOCALHOST, port).into()],
        Err(_) => address.to_socket_addrs().map_err(wrong)?.collect(),
    };
    let failed = |cause: std::io::Error| {
        let hint = match cause.kind() {
            ErrorKind::AddrNotAvailable => "name an address of this machine, or 0.0.0.0 for all of them",
            ErrorKind::PermissionDenied => "choose a port from 1024 on, or 0 for any that is free",
            _ => "choose another port, or 0 for any that is free",
        };
        Error::job(format!("metrics cannot be served at {address}")).cause(cause).hint(hint)
    };
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

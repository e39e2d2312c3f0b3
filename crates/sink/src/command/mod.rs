//! A program as a sink. It takes rows on its standard input, and what it does with them cannot be rolled back.
//!
//! The end of its input tells the program that all rows are there. So it gets it when nothing else of the run can fail
//! any more, and a run that fails before kills the program first. If another sink's commit fails behind it, or the run
//! is killed in that moment, a resumed run calls the program again: at least once.

mod spec;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::epochs::{Guarantee, QueueFacts};
use millstream_core::program::ProgramContext;
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts, Writer};
use millstream_core::source::SourceContext;
use millstream_core::spec::{Duration as Time, SpecInfo, parse};
use millstream_core::transform::Per;
use millstream_core::{Error, Result};
use millstream_process::command::{Encoder, Exchange};
use millstream_process::{Child, Children, Program, after};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

pub use self::spec::CommandSpec;
use crate::encode::ENCODE_ROWS;
use crate::shared::counted;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<CommandSpec>(),
    schemes: &["command"],
    words: &[],
    stores: false,
    formats: SinkFormats::None,
    build: &build,
};

/// How long what the program has started may take to end behind it.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// The variable that names the run: the first one, if it is resumed.
const RUN_VARIABLE: &str = "MILLSTREAM_RUN";

fn build(settings: &Value, _: SinkParts) -> Built<dyn Sink> {
    let spec: CommandSpec = parse(settings)?;
    let exchange = spec.exchange.exchange()?;
    Ok(Arc::new(CommandSink { spec, exchange }))
}

/// Gives rows to a program.
#[derive(Debug)]
struct CommandSink {
    spec: CommandSpec,
    exchange: Exchange,
}

impl CommandSink {
    fn program(&self, context: &ProgramContext) -> Result<Program> {
        Program::new(&self.spec.command.0, &self.spec.env, context)
    }

    fn encoder(&self, schema: &SchemaRef) -> Result<Encoder> {
        Encoder::new(&self.exchange, Per::Stream, schema)
    }
}

#[async_trait]
impl Sink for CommandSink {
    fn name(&self) -> &'static str {
        "command"
    }

    fn medium(&self) -> &'static str {
        "program"
    }

    fn shows_rows_early(&self) -> bool {
        true
    }

    fn target(&self) -> String {
        format!("the program {}", self.spec.command.program().unwrap_or_default())
    }

    /// What two programs of one name do is their own.
    fn is_shareable(&self) -> bool {
        true
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        self.encoder(&schema).map(drop).map_err(|error| vec![error])
    }

    async fn reach(&self, context: &SourceContext, _resumes: Option<&str>) -> Result<(), Vec<Error>> {
        let found = self.program(&context.programs).and_then(|program| program.look_up());
        found.map_err(|error| vec![error])
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        let words: Vec<&str> = self.spec.command.0.iter().map(String::as_str).collect();
        format!("{} to the program `{}`, at least once", self.spec.exchange.name(), words.join(" "))
    }

    fn guarantee(&self, _queue: &QueueFacts) -> Result<Guarantee, String> {
        Ok(Guarantee::once_or_more("the program runs once for each epoch, before its messages are acknowledged"))
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        let mut program = self.program(&context.programs)?;
        program.shows_output = true;
        program.environment.push((RUN_VARIABLE.to_owned(), context.first.clone().into()));
        let encoder = self.encoder(&context.schema)?;
        let lines = Arc::clone(&context.programs.lines);
        let name = program.name();
        let start = context.io.spawn(async move { Children::of_process()?.start(&program, lines).await });
        let child = start.await.map_err(|_| Error::internal("the task that starts a program has ended"))??;
        child.hold_input();
        let timeout = self.spec.timeout.map(|timeout| timeout.0);
        let running = Running { name, child, encoder, timeout, is_begun: false };
        let shared = Shared { context, rows: AtomicU64::new(0), running: Mutex::new(Some(running)) };
        Ok(Arc::new(CommandLoad(Arc::new(shared))))
    }
}

struct CommandLoad(Arc<Shared>);

/// Shared by the load and its writers.
struct Shared {
    context: LoadContext,
    rows: AtomicU64,
    /// The program, until it has ended.
    running: Mutex<Option<Running>>,
}

/// A program that runs.
struct Running {
    name: String,
    child: Child,
    encoder: Encoder,
    timeout: Option<Duration>,
    /// Whether it has what stands before all rows.
    is_begun: bool,
}

#[async_trait]
impl Load for CommandLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(CommandWriter(Arc::clone(&self.0))))
    }

    async fn prepare(&self) -> Result<()> {
        let mut running = self.0.running.lock().await;
        match running.as_mut() {
            Some(program) => program.finish(&self.0.context).await?,
            None => return Err(Error::internal("a program that has ended gets rows")),
        }
        *running = None;
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        Ok(format!("{} taken", counted(self.0.rows.load(Ordering::Relaxed), "row")))
    }

    async fn abort(&self) {
        // Killed by the drop, before its input ends.
        drop(self.0.running.lock().await.take());
    }

    /// What it has done with its rows is not known.
    fn can_roll_back(&self) -> bool {
        false
    }
}

/// Writes one partition: each batch as a whole.
struct CommandWriter(Arc<Shared>);

#[async_trait]
impl Writer for CommandWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let shared = &self.0;
        let asked = Instant::now();
        let mut running = shared.running.lock().await;
        shared.context.step.add_waiting_output(asked.elapsed());
        let Some(program) = running.as_mut() else {
            return Err(Error::internal("a program that has ended gets rows"));
        };
        for from in (0..batch.num_rows()).step_by(ENCODE_ROWS) {
            let rows = batch.slice(from, ENCODE_ROWS.min(batch.num_rows() - from));
            let bytes = shared.context.step.busy(|| program.encoded(Some(&rows)))?;
            program.send(&shared.context, &bytes).await?;
        }
        shared.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Running {
    /// `rows` as the program reads them, or what stands behind all rows.
    fn encoded(&mut self, rows: Option<&RecordBatch>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            self.encoder.begin(&mut bytes);
        }
        match rows {
            Some(rows) => self.encoder.rows(rows, &mut bytes)?,
            None => self.encoder.finish(&mut bytes)?,
        }
        Ok(bytes)
    }

    /// Writes `bytes` to its standard input.
    async fn send(&mut self, context: &LoadContext, bytes: &[u8]) -> Result<()> {
        let start = Instant::now();
        let sent = self.write(bytes).await;
        context.step.add_waiting_output(start.elapsed());
        sent?;
        context.step.add_bytes(bytes.len() as u64);
        Ok(())
    }

    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let Running { child, timeout, .. } = self;
        let Some(mut stdin) = child.stdin.take() else { return Err(Error::internal("a program without input")) };
        while !bytes.is_empty() {
            let written = tokio::select! {
                biased;
                // What it does not read any more would lie in the pipe.
                () = child.over() => break,
                written = stdin.write(bytes) => written,
                () = after(*timeout) => {
                    child.kill();
                    return Err(self.late("has read nothing for"));
                }
            };
            match written {
                Ok(count) => bytes = &bytes[count..],
                Err(_) => break,
            }
        }
        child.stdin = Some(stdin);
        match bytes {
            [] => Ok(()),
            _ => Err(self.ended("ended before it had read all rows").await),
        }
    }

    /// Ends its input, and awaits its end.
    async fn finish(&mut self, context: &LoadContext) -> Result<()> {
        let bytes = self.encoded(None)?;
        self.send(context, &bytes).await?;
        self.child.end_input();
        let start = Instant::now();
        tokio::select! {
            biased;
            () = self.child.over() => {}
            () = after(self.timeout) => {
                self.child.kill();
                return Err(self.late("has read all rows, and not ended within"));
            }
        }
        let is_alone = self.child.leaves_nothing(LAST_MOMENT).await;
        context.step.add_waiting_output(start.elapsed());
        if !is_alone {
            let what = format!("the program `{}` has ended, and what it has started is still at work", self.name);
            return Err(Error::data(what).hint("have it wait for the programs that it starts"));
        }
        match (self.child.wait().await?.is_success(), self.child.unread()) {
            (true, 0) => Ok(()),
            (true, _) => Err(self.ended("ended before it had read all rows").await),
            (false, _) => Err(self.ended("failed").await),
        }
    }

    /// The error of a program that has ended, or is about to: `what` has happened.
    async fn ended(&mut self, what: &str) -> Error {
        let _ = tokio::time::timeout(LAST_MOMENT, self.child.over()).await;
        self.child.kill();
        Error::data(format!("the program `{}` {what}", self.name)).cause(self.child.last_words().await)
    }

    fn late(&self, what: &str) -> Error {
        let time = Time(self.timeout.unwrap_or_default());
        Error::data(format!("the program `{}` {what} {time}", self.name))
            .hint("raise `timeout`, or see what it waits for")
    }
}

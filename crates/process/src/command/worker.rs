//! A program that computes rows.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::StreamExt;
use millstream_core::program::Lines;
use millstream_core::transform::{Answer, Failure, GivenRows, Per, RowStream, Worker};
use millstream_core::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::answer::{Answers, Given};
use super::exchange::{Encoder, Exchange};
use crate::{Child, Children, Program};

/// How long the rest of an answer is awaited when the program has ended: it is in the pipe by then.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// A program and the columns that it takes and gives.
#[derive(Debug, Clone)]
pub struct Command {
    /// The program with its surroundings.
    pub program: Program,
    /// The form of its rows.
    pub exchange: Exchange,
    /// What it is called with.
    pub per: Per,
    /// The columns of the rows that it takes.
    pub takes: SchemaRef,
    /// The columns of the rows that it gives.
    pub gives: SchemaRef,
}

/// A program that runs.
pub struct CommandWorker {
    command: Arc<Command>,
    child: Child,
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    encoder: Encoder,
    answers: Answers,
    has_answered: bool,
}

/// What has become of rows that were passed through a program.
struct Passed {
    /// The pipe to the program, if more may follow.
    stdin: Option<pipe::Sender>,
    /// Whether the program may have taken all rows.
    is_taken: bool,
    /// Whether it has ended its answer to a group.
    is_complete: bool,
    /// The last rows of a stream.
    rest: Result<Vec<RecordBatch>>,
}

impl CommandWorker {
    /// Starts the program.
    ///
    /// # Errors
    /// If it cannot be started, or the columns have no form in its exchange.
    pub async fn start(children: &Children, command: &Arc<Command>, lines: Lines) -> Result<CommandWorker> {
        let encoder = Encoder::new(&command.exchange, &command.takes)?;
        let answers = Answers::new(&command.exchange, command.per, &command.gives);
        let mut child = children.start(&command.program, lines).await?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(CommandWorker { command: Arc::clone(command), child, stdin, stdout, encoder, answers, has_answered: false })
    }

    fn name(&self) -> String {
        self.command.program.name()
    }

    /// What is sent for a batch, and how many answers it gets; or why it cannot be sent.
    fn request(&mut self, batch: &RecordBatch, ends: &[usize]) -> Result<(Vec<u8>, usize)> {
        let mut request = Vec::new();
        let (encoder, per) = (&mut self.encoder, self.command.per);
        let is_text = matches!(self.command.exchange, Exchange::Text(..));
        if per != Per::Group {
            encoder.rows(batch, per != Per::Row, &mut request)?;
            if is_text && per == Per::Batch {
                encoder.end(&mut request)?;
            }
            return Ok((request, if per == Per::Row { batch.num_rows() } else { 1 }));
        }
        let starts = std::iter::once(&0).chain(ends);
        for (start, end) in starts.zip(ends) {
            encoder.rows(&batch.slice(*start, end - start), true, &mut request)?;
            encoder.end(&mut request)?;
        }
        Ok((request, ends.len()))
    }

    /// Sends `request` and reads until `asked` answers are there; whether they are.
    async fn exchange(&mut self, request: &[u8], asked: usize) -> Result<bool> {
        let CommandWorker { child, stdin: Some(stdin), stdout: Some(stdout), answers, .. } = self else {
            return Ok(false);
        };
        let send = async { Ok(stdin.write_all(request).await.is_ok()) };
        let receive = async {
            while !answers.is_complete(asked)? {
                if !matches!(stdout.read_buf(answers.space()).await, Ok(1..)) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let both = async { futures::try_join!(send, receive) };
        tokio::pin!(both);
        let done = tokio::select! {
            biased;
            done = &mut both => done,
            // What it wrote before is in the pipe.
            () = child.over() => tokio::time::timeout(LAST_BYTES, both).await.unwrap_or(Ok((false, false))),
        };
        Ok(done? == (true, true))
    }

    /// Why it does not answer.
    async fn ended(&mut self) -> Error {
        (self.stdin, self.stdout) = (None, None);
        let what = format!("the program `{}` ended before it had answered", self.name());
        Error::data(what).cause(self.child.last_words().await)
    }

    /// Passes `rows` through the program and what it gives to `given`.
    async fn through(
        &mut self,
        mut stdin: pipe::Sender,
        stdout: &mut pipe::Receiver,
        mut rows: RowStream,
        given: &dyn GivenRows,
    ) -> Result<Passed> {
        let is_stream = self.command.per == Per::Stream;
        let CommandWorker { child, encoder, answers, .. } = self;
        let child = &*child;
        let feed = async move {
            let mut bytes = Vec::new();
            encoder.begin(&mut bytes);
            let mut is_open = true;
            while is_open && let Some(batch) = rows.next().await {
                encoder.rows(&batch?, !is_stream, &mut bytes)?;
                is_open = send(&mut stdin, &bytes, child).await;
                bytes.clear();
            }
            match is_stream {
                true => encoder.finish(&mut bytes)?,
                false => encoder.end(&mut bytes)?,
            }
            let is_taken = is_open && send(&mut stdin, &bytes, child).await;
            // Without the pipe the input of a stream ends here.
            Ok(((!is_stream).then_some(stdin), is_taken))
        };
        let drain = async {
            let mut reading = Given::new(answers)?;
            loop {
                for rows in reading.rows()? {
                    given.take(rows).await?;
                }
                if reading.is_complete() || !matches!(stdout.read_buf(reading.space()).await, Ok(1..)) {
                    break;
                }
            }
            Ok((reading.is_complete(), if is_stream { reading.rest() } else { Ok(Vec::new()) }))
        };
        let both = async { futures::try_join!(feed, drain) };
        tokio::pin!(both);
        let done = tokio::select! {
            biased;
            done = &mut both => done,
            () = child.over() => {
                // What it has left behind may hold its output open.
                child.kill();
                both.await
            }
        };
        let ((stdin, is_taken), (is_complete, rest)) = done?;
        Ok(Passed { stdin, is_taken, is_complete, rest })
    }

    /// Waits until the program has ended. That is an error unless it has read all rows and says that all is well.
    async fn succeeded(&mut self, is_taken: bool) -> Result<()> {
        let ending = self.child.wait().await?;
        let what = match (ending.is_success(), is_taken && self.child.unread() == 0) {
            (true, true) => return Ok(()),
            (true, false) => "ended before it had read all rows",
            (false, _) => "failed",
        };
        let error = Error::data(format!("the program `{}` {what}", self.name())).cause(self.child.last_words().await);
        match ending.is_success() {
            true => Err(error.hint("a program that wants the first rows alone gets them from a query with LIMIT")),
            false => Err(error),
        }
    }

    fn surplus(&self) -> Error {
        let what = format!("the program `{}` gave more than it was asked for", self.name());
        Error::data(what).hint(match self.command.per {
            Per::Row => "with `per: row` it gives one record for each row; messages belong on standard error",
            _ => "it gives nothing before it has rows; messages belong on standard error",
        })
    }
}

#[async_trait]
impl Worker for CommandWorker {
    async fn call(&mut self, batch: &RecordBatch, ends: &[usize]) -> Result<Answer> {
        if self.has_answered {
            if let Some(stdout) = &self.stdout {
                let _ = stdout.try_read_buf(self.answers.space());
            }
            if self.answers.is_surplus() {
                return Err(self.surplus());
            }
        }
        let (request, asked) = match self.request(batch, ends) {
            Ok(request) => request,
            Err(error) => {
                let rows = RecordBatch::new_empty(Arc::clone(&self.command.gives));
                let origins = (self.command.per == Per::Row).then(|| Vec::<u32>::new().into());
                return Ok(Answer { rows, origins, failures: vec![Failure { part: None, error }] });
            }
        };
        let mut bytes = Vec::new();
        self.encoder.begin(&mut bytes);
        bytes.extend(request);
        if !self.exchange(&bytes, asked).await? {
            return Err(self.ended().await);
        }
        self.has_answered = true;
        let answer = self.answers.take(asked)?;
        if self.answers.is_surplus() {
            return Err(self.surplus());
        }
        Ok(answer)
    }

    async fn pass(&mut self, rows: RowStream, given: &dyn GivenRows) -> Result<()> {
        let (Some(stdin), Some(mut stdout)) = (self.stdin.take(), self.stdout.take()) else {
            return Err(self.ended().await);
        };
        let Passed { stdin, is_taken, is_complete, rest } = self.through(stdin, &mut stdout, rows, given).await?;
        if self.command.per == Per::Stream {
            self.succeeded(is_taken).await?;
            for rows in rest? {
                given.take(rows).await?;
            }
            return Ok(());
        }
        if !is_taken || !is_complete {
            return Err(self.ended().await);
        }
        (self.stdin, self.stdout, self.has_answered) = (stdin, Some(stdout), true);
        if self.answers.is_surplus() { Err(self.surplus()) } else { Ok(()) }
    }

    fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        let id = self.child.id();
        Box::new(move || crate::memory::of_tree(id))
    }
}

/// Writes `bytes`; whether the program has taken them, or may do so.
async fn send(stdin: &mut pipe::Sender, bytes: &[u8], child: &Child) -> bool {
    tokio::select! {
        biased;
        sent = stdin.write_all(bytes) => sent.is_ok(),
        () = child.over() => false,
    }
}

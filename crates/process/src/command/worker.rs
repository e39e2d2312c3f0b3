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
use tokio::sync::oneshot;

use super::answer::{Answers, Given};
use super::exchange::{Encoder, Exchange};
use super::silence::Silence;
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
    /// Whether its calls have a time, which its user knows: then one that does nothing is not given up before.
    pub is_timed: bool,
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
    lines: Lines,
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
        let encoder = Encoder::new(&command.exchange, command.per, &command.takes)?;
        let answers = Answers::new(&command.exchange, command.per, &command.gives);
        let mut child = children.start(&command.program, Arc::clone(&lines)).await?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(CommandWorker {
            command: Arc::clone(command),
            child,
            stdin,
            stdout,
            encoder,
            answers,
            has_answered: false,
            lines,
        })
    }

    fn name(&self) -> String {
        self.command.program.name()
    }

    /// What is sent for a batch, and how many answers it gets; or why it cannot be sent.
    fn request(&mut self, batch: &RecordBatch, ends: &[usize]) -> Result<(Vec<u8>, usize)> {
        let mut request = Vec::new();
        let (encoder, per) = (&mut self.encoder, self.command.per);
        let is_text = matches!(self.command.exchange, Exchange::Text(..));
        if per == Per::Group {
            encoder.groups(batch, ends, &mut request)?;
            return Ok((request, ends.len()));
        }
        encoder.rows(batch, &mut request)?;
        if is_text && per == Per::Batch {
            encoder.end(&mut request)?;
        }
        Ok((request, if per == Per::Row { batch.num_rows() } else { 1 }))
    }

    /// Sends `request` and reads until `asked` answers are there; whether they are.
    async fn exchange(&mut self, request: &[u8], asked: usize) -> Result<bool> {
        let CommandWorker { command, child, stdin: Some(stdin), stdout: Some(stdout), answers, lines, .. } = self
        else {
            return Ok(false);
        };
        let send = stdin.write_all(request);
        tokio::pin!(send);
        let (mut is_sent, mut is_over, mut silence) = (false, false, Silence::new());
        loop {
            // A program that says too much may wait until it is read, and not read before.
            let is_complete = answers.is_complete(asked)?;
            if is_complete && (is_sent || answers.is_surplus()) {
                return Ok(true);
            }
            if answers.is_too_long() {
                return Err(too_long());
            }
            tokio::select! {
                biased;
                sent = &mut send, if !is_sent && !is_over => match sent {
                    Ok(()) => is_sent = true,
                    Err(_) => return Ok(false),
                },
                read = stdout.read_buf(answers.space()) => match read {
                    Ok(1..) => silence.end(),
                    _ => return Ok(answers.is_complete(asked)? && is_sent),
                },
                () = child.over(), if !is_over => is_over = true,
                // What it wrote before is in the pipe.
                () = tokio::time::sleep(LAST_BYTES), if is_over => return Ok(is_complete && is_sent),
                () = tokio::time::sleep(silence.pause()) => {
                    silence.look(child, command, lines, answers.count(), asked)?;
                }
            }
        }
    }

    /// Why it does not answer.
    async fn ended(&mut self) -> Error {
        (self.stdin, self.stdout) = (None, None);
        // One that has closed its output gives nothing any more.
        let _ = tokio::time::timeout(LAST_BYTES, self.child.over()).await;
        self.child.kill();
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
        let CommandWorker { command, child, encoder, answers, lines, .. } = self;
        let child = &*child;
        let (fed, mut is_fed) = oneshot::channel::<()>();
        let feed = async move {
            let _fed = fed;
            let mut bytes = Vec::new();
            encoder.begin(&mut bytes);
            let mut is_open = true;
            while is_open && let Some(batch) = rows.next().await {
                encoder.rows(&batch?, &mut bytes)?;
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
            let mut reading = Given::new(answers, given.wanted())?;
            let (mut is_over, mut silence) = (false, Silence::new());
            loop {
                for rows in reading.rows()? {
                    given.take(rows).await?;
                }
                if reading.is_complete() && (is_over || reading.is_surplus() || is_fed.is_terminated()) {
                    break;
                }
                if reading.is_too_long() {
                    return Err(too_long());
                }
                tokio::select! {
                    biased;
                    read = stdout.read_buf(reading.space()) => match read {
                        Ok(1..) => silence.end(),
                        _ => break,
                    },
                    _ = &mut is_fed, if !is_fed.is_terminated() => {}
                    () = child.over(), if !is_over => is_over = true,
                    () = tokio::time::sleep(LAST_BYTES), if is_over => return Err(held_open()),
                    // At the end of its input a stream may take any time for what it gives.
                    () = tokio::time::sleep(silence.pause()), if !is_stream && is_fed.is_terminated() => {
                        silence.look(child, command, lines, 0, 1)?;
                    }
                }
            }
            Ok((reading.is_complete(), if is_stream { reading.rest() } else { Ok(Vec::new()) }))
        };
        let ((stdin, is_taken), (is_complete, rest)) = futures::try_join!(feed, drain)?;
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

    /// Looks for what came too late to be seen with the answer that it belongs to.
    fn check_trust(&mut self) -> Result<()> {
        if self.has_answered {
            if let Some(stdout) = &self.stdout {
                let _ = stdout.try_read_buf(self.answers.space());
            }
            if self.answers.is_surplus() {
                return Err(self.untrusted());
            }
        }
        Ok(())
    }

    /// More has come than was asked for, some time after the answer: nobody knows to which rows it belongs.
    fn untrusted(&self) -> Error {
        let (surplus, kind) = (self.surplus(), "rows of earlier answers may be those of other rows");
        let error = Error::refused(surplus.what()).cause(kind);
        surplus.hint_text().into_iter().fold(error, Error::hint)
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
        self.check_trust()?;
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
        match bytes.is_empty() {
            true => bytes = request,
            false => bytes.extend(request),
        }
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
        self.check_trust()?;
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

    async fn finish(&mut self) -> Result<()> {
        // One that nobody has asked for anything has nothing to say.
        if !self.has_answered {
            return Ok(());
        }
        self.stdin = None;
        if let Some(mut stdout) = self.stdout.take() {
            let mut is_over = false;
            loop {
                tokio::select! {
                    biased;
                    read = stdout.read_buf(self.answers.space()) => {
                        if !matches!(read, Ok(1..)) || self.answers.is_too_long() {
                            break;
                        }
                    }
                    () = self.child.over(), if !is_over => is_over = true,
                    () = tokio::time::sleep(LAST_BYTES), if is_over => break,
                }
            }
        }
        if self.answers.has_rows_left()? {
            return Err(self.untrusted());
        }
        self.succeeded(true).await
    }

    fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        self.child.measure()
    }
}

fn too_long() -> Error {
    Error::data("the program gave more for one batch or group than can be held").hint("does it end its answers?")
}

fn held_open() -> Error {
    Error::data("the program has ended, but what it has started holds its output open")
        .hint("have it wait for the programs that it starts, or give these another output")
}

/// Writes `bytes`; whether the program has taken them, or may do so.
async fn send(stdin: &mut pipe::Sender, bytes: &[u8], child: &Child) -> bool {
    tokio::select! {
        biased;
        sent = stdin.write_all(bytes) => sent.is_ok(),
        () = child.over() => false,
    }
}

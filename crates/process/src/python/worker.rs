//! A worker: a Python process that calls one function.

use std::ffi::OsString;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::buffer::Buffer;
use arrow::compute::{concat_batches, filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow_ipc::writer::StreamEncoder;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millstream_core::buffers;
use millstream_core::program::Lines;
use millstream_core::reject::RejectKind;
use millstream_core::transform::{Answer, Failure, GivenRows, Per, RowStream, Worker};
use millstream_core::{Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::marshal;
use super::unmarshal::{self, Faults, Object, Objects, unreadable};
use crate::arrow_rows::{common_schema, given, in_common_types, nullable};
use crate::command::arrow_stream::ArrowStream;
use crate::unread::Unread;
use crate::{Child, Children, Program};

/// What a worker runs.
const WORKER: &str = include_str!("worker.py");

/// Reads what a worker runs, which comes before all messages, and runs it: arguments of a process are seen by all.
const START: &str = "\
import os
code = b''
while len(code) < LENGTH:
    part = os.read(0, LENGTH - len(code))
    code += part or exit()
exec(compile(code, '<millstream worker>', 'exec'))";

/// The kind and the length before each message.
const HEAD_BYTES: usize = 9;

/// Where the values of Arrow's columns may lie in memory.
const ALIGNMENT: usize = 64;

/// How long the rest of an answer is awaited when the worker has ended: it is in the pipe by then.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// How long a worker may take to end when it has no more to do.
const LONGEST_END: Duration = Duration::from_secs(5);

/// The longest message that is taken, in bytes.
const MOST_BYTES: u64 = 4 << 30;

/// A Python function and the columns that it takes and gives.
#[derive(Debug, Clone)]
pub struct Function {
    /// The interpreter with its surroundings: its command is one program.
    pub interpreter: Program,
    /// The file with the function.
    pub file: PathBuf,
    /// Its name there; names within classes with dots.
    pub name: String,
    /// What it is called with.
    pub per: Per,
    /// Whether it takes and gives batches of pyarrow; otherwise dicts.
    pub is_arrow: bool,
    /// Whether it takes the values of a row as its arguments, and gives the value of the one column; only for rows.
    pub takes_values: bool,
    /// The columns of the rows that it takes.
    pub takes: SchemaRef,
    /// The columns of the rows that it gives.
    pub gives: SchemaRef,
}

impl Function {
    /// `score of features.py`, for messages.
    pub fn shown(&self) -> String {
        format!("`{}` of {}", self.name, self.file.display())
    }

    fn hello(&self) -> Result<Vec<u8>> {
        let answer = |field: &Arc<Field>| json!([field.name(), kind(field.data_type()), answering(field.data_type())]);
        let answers: Vec<Value> = self.gives.fields().iter().map(answer).collect();
        let names: Vec<&String> = self.takes.fields().iter().map(|field| field.name()).collect();
        let hello = json!({
            "file": self.file.display().to_string(),
            "function": self.name,
            "per": match self.per {
                Per::Row => "row",
                Per::Batch => "batch",
                Per::Group => "group",
                Per::Stream => "stream",
            },
            "values": self.takes_values,
            "form": if self.is_arrow { "arrow" } else { "dicts" },
            "names": names,
            "conversions": if self.is_arrow { json!([]) } else { marshal::conversions(&self.takes)? },
            "answers": answers,
        });
        let mut bytes = Vec::new();
        marshal::write_json(&hello, &mut bytes);
        Ok(bytes)
    }
}

impl Function {
    /// The message of the kind R or K with rows.
    fn rows(&self, kind: u8, batch: &RecordBatch, ends: &[usize]) -> Result<Message> {
        let mut message = head(kind, 0).to_vec();
        marshal::begin_tuple(&mut message, 3);
        marshal::write_int(batch.num_rows() as i64, &mut message);
        let columns = message.len();
        match self.is_arrow {
            // Where the stream begins.
            true => marshal::write_int(0, &mut message),
            false => marshal::write(batch, &mut message)?,
        }
        let columns = columns..message.len();
        marshal::begin_tuple(&mut message, ends.len());
        ends.iter().for_each(|end| marshal::write_int(*end as i64, &mut message));
        if self.is_arrow {
            let place = (message.len() - HEAD_BYTES).next_multiple_of(ALIGNMENT);
            let mut number = Vec::with_capacity(columns.len());
            marshal::write_int(place as i64, &mut number);
            message[columns].copy_from_slice(&number);
            message.resize(HEAD_BYTES + place, 0);
        }
        let stream = if self.is_arrow { arrow_stream(batch)? } else { Vec::new() };
        let length = message.len() - HEAD_BYTES + stream.iter().map(Buffer::len).sum::<usize>();
        message[1..HEAD_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
        Ok(Message { begin: message, stream })
    }

    /// What an answer to `asked` rows says.
    fn answer(&self, message: &Bytes, asked: usize) -> Result<Answer> {
        let mut objects = Objects::new(message);
        if objects.list()? != 4 {
            return Err(unreadable());
        }
        let origins = match objects.next()? {
            Object::None => None,
            Object::List(length) => {
                let numbers = (0..length).map(|_| u32::try_from(objects.int()?).map_err(|_| unreadable()));
                Some(numbers.collect::<Result<Vec<u32>>>()?)
            }
            _ => return Err(unreadable()),
        };
        let count = usize::try_from(objects.int()?).map_err(|_| unreadable())?;
        let mut faults = Faults::new();
        let rows = match self.is_arrow {
            true => self.batches(&mut objects, message)?,
            false => self.dicts(&mut objects, count, &mut faults)?,
        };
        let mut failures = Vec::new();
        for _ in 0..objects.list()? {
            objects.list()?;
            let (part, what, trace) = (objects.int()?, objects.text()?, objects.text()?);
            let error = Error::data(what).reject(RejectKind::Expression);
            let error = if trace.is_empty() { error } else { error.cause(trace.trim_end()) };
            failures.push(Failure { part: u32::try_from(part).ok(), error });
        }
        let origins = match (self.per, origins) {
            (Per::Row, Some(origins)) => Some(UInt32Array::from(origins)),
            (Per::Row, None) => Some(UInt32Array::from_iter_values(0..asked as u32)),
            _ => None,
        };
        match &origins {
            Some(origins) if origins.len() != count || origins.iter().flatten().any(|row| row as usize >= asked) => {
                return Err(unreadable());
            }
            _ => {}
        }
        without(Answer { rows, origins, failures }, &faults)
    }

    /// The rows of an answer with the values of each column.
    fn dicts(&self, objects: &mut Objects<'_>, count: usize, faults: &mut Faults) -> Result<RecordBatch> {
        let gives = &self.gives;
        if objects.list()? != gives.fields().len() {
            return Err(unreadable());
        }
        let mut columns = Vec::with_capacity(gives.fields().len());
        for field in gives.fields() {
            // The form and the values are a tuple.
            objects.list()?;
            columns.push(unmarshal::column(objects, field, count, faults)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(nullable(gives), columns, &options).map_err(|_| unreadable())
    }

    /// The rows of an answer in Arrow's form, which is at the end of the message. One that cannot be read as such has
    /// no form at all.
    fn batches(&self, objects: &mut Objects<'_>, message: &Bytes) -> Result<RecordBatch> {
        let length = usize::try_from(objects.int()?).map_err(|_| unreadable())?;
        let start = message.len().checked_sub(length).ok_or_else(unreadable)?;
        let mut unread = Unread::from(message.slice(start..));
        let (mut stream, mut batches) = (ArrowStream::default(), Vec::new());
        while let Some(batch) = stream.next(&mut unread)? {
            batches.push(given(&batch, &self.gives, "the function")?);
        }
        if !unread.is_empty() {
            return Err(unreadable());
        }
        concat_batches(&nullable(&self.gives), &batches).map_err(|_| unreadable())
    }
}

/// A message to a worker.
struct Message {
    /// Its head, and what it says.
    begin: Vec<u8>,
    /// What follows: the buffers of columns as they lie.
    stream: Vec<Buffer>,
}

impl Message {
    async fn send(&self, requests: &mut pipe::Sender) -> std::io::Result<()> {
        let parts = std::iter::once(&self.begin[..]).chain(self.stream.iter().map(Buffer::as_slice));
        let mut parts: Vec<IoSlice<'_>> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match requests.write_vectored(left).await? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut left, written),
            }
        }
        Ok(())
    }
}

/// `batch` as a stream of Arrow IPC.
fn arrow_stream(batch: &RecordBatch) -> Result<Vec<Buffer>> {
    let failed = |cause| Error::data("the rows have no form in Arrow IPC").cause(cause);
    let schema = common_schema(&batch.schema());
    let batch = in_common_types(batch, &schema)?;
    let mut encoder = StreamEncoder::try_new(&schema).map_err(failed)?;
    let mut stream = encoder.encode(&batch).map_err(failed)?;
    stream.extend(encoder.finish().map_err(failed)?);
    Ok(stream)
}

/// How the worker packs the values of a column.
fn kind(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::Date32
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..) => "int",
        DataType::Float16 | DataType::Float32 | DataType::Float64 => "float",
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => "text",
        _ => "plain",
    }
}

/// How the worker converts the values of a column; null where it does not.
fn answering(data_type: &DataType) -> Value {
    match data_type {
        DataType::List(item) => json!({"list": answering(item.data_type())}),
        DataType::Struct(members) => {
            let member = |member: &Arc<Field>| json!([member.name(), answering(member.data_type())]);
            json!({"struct": members.iter().map(member).collect::<Vec<_>>()})
        }
        other => json!(marshal::conversion_of(other)),
    }
}

/// A Python process that calls one function.
#[derive(Debug)]
pub struct PythonWorker {
    child: Child,
    requests: Option<pipe::Sender>,
    answers: Option<pipe::Receiver>,
    function: Arc<Function>,
    message: Bytes,
    is_watched: bool,
    /// The row or group at which it says it is.
    at: Option<u32>,
    /// `Python 3.11`.
    interpreter: String,
}

impl PythonWorker {
    /// Starts a worker and has it load the function.
    ///
    /// # Errors
    /// If the interpreter cannot be started, or the function cannot be loaded: the cause has the traceback.
    pub async fn start(children: &Children, function: &Arc<Function>, lines: Lines) -> Result<PythonWorker> {
        let mut program = function.interpreter.clone();
        let start = START.replace("LENGTH", &WORKER.len().to_string());
        program.command.extend(["-c", &start].map(OsString::from));
        let mut child = children.start(&program, lines).await?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let mut worker = PythonWorker {
            child,
            requests,
            answers,
            function: Arc::clone(function),
            message: Bytes::new(),
            is_watched: false,
            at: None,
            interpreter: String::new(),
        };
        let hello = function.hello()?;
        let mut message = WORKER.as_bytes().to_vec();
        message.extend(head(b'H', hello.len()));
        message.extend(hello);
        worker.send(&Message { begin: message, stream: Vec::new() }).await?;
        match worker.receive().await? {
            b'H' => {
                let version = Objects::new(&worker.message).text()?;
                let minor: Vec<&str> = version.split('.').take(2).collect();
                worker.interpreter = format!("Python {}", minor.join("."));
                Ok(worker)
            }
            b'F' => {
                let mut objects = Objects::new(&worker.message);
                objects.list()?;
                let (text, trace, hint) = (objects.text()?, objects.text()?, objects.text()?);
                let error = Error::job(format!("{} cannot be loaded", function.shown())).cause(joined(&trace, &text));
                Err(if hint.is_empty() { error } else { error.hint(hint) })
            }
            _ => Err(unreadable()),
        }
    }

    async fn send(&mut self, message: &Message) -> Result<()> {
        let PythonWorker { child, requests: Some(requests), .. } = self else { return Err(self.ended().await) };
        let sent = tokio::select! {
            biased;
            sent = message.send(requests) => sent.is_ok(),
            () = child.over() => false,
        };
        if sent { Ok(()) } else { Err(self.ended().await) }
    }

    /// Reads the next message; gives its kind.
    async fn receive(&mut self) -> Result<u8> {
        let PythonWorker { child, answers: Some(answers), message, at, .. } = self else {
            return Err(self.ended().await);
        };
        // Its children may keep the pipe open when it has ended.
        let received = tokio::select! {
            biased;
            received = read_answer(answers, message, at) => received,
            () = child.over() => None,
        };
        if received.is_none() {
            // What it said last.
            let rest = async { while read_answer(answers, message, at).await.is_some() {} };
            let _ = tokio::time::timeout(LAST_BYTES, rest).await;
        }
        match received {
            Some((kind, true)) => Ok(kind),
            Some((_, false)) => Err(unreadable()),
            None => Err(self.ended().await),
        }
    }

    /// Why it does not answer.
    async fn ended(&mut self) -> Error {
        (self.requests, self.answers) = (None, None);
        let error = Error::data(format!("the Python worker of {} ended before it had answered", self.function.shown()));
        error.cause(self.child.last_words().await)
    }
}

#[async_trait]
impl Worker for PythonWorker {
    fn interpreter(&self) -> Option<&str> {
        Some(&self.interpreter)
    }

    async fn call(&mut self, batch: &RecordBatch, ends: &[usize]) -> Result<Answer> {
        self.at = None;
        let is_watched = std::mem::take(&mut self.is_watched);
        let request = self.function.rows(if is_watched { b'K' } else { b'R' }, batch, ends)?;
        self.send(&request).await?;
        match self.receive().await? {
            b'A' => self.function.answer(&self.message, batch.num_rows()),
            _ => Err(unreadable()),
        }
    }

    fn watch(&mut self) {
        self.is_watched = matches!(self.function.per, Per::Row | Per::Group);
    }

    fn at(&self) -> Option<u32> {
        self.at
    }

    async fn pass(&mut self, rows: RowStream, taker: &dyn GivenRows) -> Result<()> {
        if self.through(rows, taker).await? { Ok(()) } else { Err(self.ended().await) }
    }

    async fn finish(&mut self) -> Result<()> {
        // Without requests it ends by itself, and does what the code has registered for its end.
        (self.requests, self.answers) = (None, None);
        let _ = tokio::time::timeout(LONGEST_END, self.child.over()).await;
        self.child.kill();
        self.child.wait().await.map(drop)
    }

    fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        self.child.measure()
    }
}

impl PythonWorker {
    /// Passes `rows` through the function and what it gives to `taker`; whether it has answered.
    async fn through(&mut self, mut rows: RowStream, taker: &dyn GivenRows) -> Result<bool> {
        let PythonWorker { child, requests: Some(requests), answers: Some(answers), function, message, .. } = self
        else {
            return Ok(false);
        };
        let feed = async {
            let mut is_open = requests.write_all(&head(b'S', 0)).await.is_ok();
            while is_open && let Some(batch) = rows.next().await {
                let batch = batch?;
                if batch.num_rows() > 0 {
                    is_open = function.rows(b'R', &batch, &[])?.send(requests).await.is_ok();
                }
            }
            Ok(is_open && requests.write_all(&head(b'E', 0)).await.is_ok())
        };
        let drain = async {
            loop {
                match read(answers, message).await {
                    Some((kind @ (b'P' | b'A'), true)) => {
                        let Answer { rows, failures, .. } = function.answer(message, 0)?;
                        if let Some(failure) = failures.into_iter().next() {
                            return Err(failure.error);
                        }
                        if rows.num_rows() > 0 {
                            taker.take(rows).await?;
                        }
                        if kind == b'A' {
                            return Ok(true);
                        }
                    }
                    Some(_) => return Err(unreadable()),
                    None => return Ok(false),
                }
            }
        };
        let both = async { futures::try_join!(feed, drain) };
        tokio::pin!(both);
        let done = tokio::select! {
            biased;
            done = &mut both => done,
            () = child.over() => {
                // What it has left behind may hold its output open; what it has read nothing of is not taken any more.
                child.kill();
                tokio::time::timeout(LAST_BYTES, both).await.unwrap_or(Ok((false, false)))
            }
        };
        Ok(done? == (true, true))
    }
}

/// Reads a message that is an answer, as [`read`] does, and before it at which row or group the worker is.
async fn read_answer(answers: &mut pipe::Receiver, message: &mut Bytes, at: &mut Option<u32>) -> Option<(u8, bool)> {
    loop {
        match read(answers, message).await {
            Some((b'M', true)) => *at = number(message),
            other => return other,
        }
    }
}

/// The number in a message of the kind M; none if the worker is at no row.
fn number(message: &[u8]) -> Option<u32> {
    u32::try_from(i32::from_le_bytes(message.try_into().ok()?)).ok()
}

/// Reads a message into `message`; gives its kind and whether it is not too long. `None` if there is none.
async fn read(answers: &mut pipe::Receiver, message: &mut Bytes) -> Option<(u8, bool)> {
    let mut head = [0; HEAD_BYTES];
    answers.read_exact(&mut head).await.ok()?;
    let [kind, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES {
        return Some((kind, false));
    }
    // Of the one before, only rows are left.
    *message = Bytes::new();
    let mut bytes = buffers::take(length as usize);
    let read = answers.take(length).read_to_end(&mut bytes).await;
    *message = buffers::share(bytes);
    read.is_ok_and(|read| read as u64 == length).then_some((kind, true))
}

fn head(kind: u8, length: usize) -> [u8; HEAD_BYTES] {
    let mut head = [kind; HEAD_BYTES];
    head[1..].copy_from_slice(&(length as u64).to_le_bytes());
    head
}

/// A traceback and the exception behind it.
fn joined(trace: &str, text: &str) -> String {
    if trace.is_empty() { text.to_owned() } else { format!("{text}\n{}", trace.trim_end()) }
}

/// `answer` without the rows that have a value at fault, which have failed.
fn without(mut answer: Answer, faults: &[unmarshal::ValueFault]) -> Result<Answer> {
    if faults.is_empty() {
        return Ok(answer);
    }
    let failure = |part, fault: &unmarshal::ValueFault| {
        let error = Error::data(&fault.what).text(&fault.text).column(&fault.column).reject(RejectKind::Value);
        Failure { part, error }
    };
    let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be left out").cause(cause);
    let Some(origins) = &answer.origins else {
        answer.failures.extend(faults.first().map(|fault| failure(None, fault)));
        answer.rows = answer.rows.slice(0, 0);
        return Ok(answer);
    };
    let mut is_good = vec![true; answer.rows.num_rows()];
    for fault in faults {
        // Of a row the first fault is enough.
        if std::mem::replace(&mut is_good[fault.row], false) {
            answer.failures.push(failure(Some(origins.value(fault.row)), fault));
        }
    }
    let is_good = BooleanArray::from(is_good);
    let kept = filter(origins, &is_good).map_err(failed)?;
    answer.origins = Some(UInt32Array::from(kept.to_data()));
    answer.rows = filter_record_batch(&answer.rows, &is_good).map_err(failed)?;
    Ok(answer)
}

//! A worker: a Python process that calls one function.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::program::Lines;
use millstream_core::reject::RejectKind;
use millstream_core::transform::{Answer, Failure, Per, Worker};
use millstream_core::{Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::marshal;
use super::unmarshal::{self, Faults, Object, Objects, unreadable};
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
            "per": match self.per { Per::Row => "row", Per::Batch => "batch" },
            "names": names,
            "conversions": marshal::conversions(&self.takes)?,
            "answers": answers,
        });
        let mut bytes = Vec::new();
        marshal::write_json(&hello, &mut bytes);
        Ok(bytes)
    }
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
    message: Vec<u8>,
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
        let mut worker = PythonWorker { child, requests, answers, function: Arc::clone(function), message: Vec::new() };
        let hello = function.hello()?;
        let mut message = WORKER.as_bytes().to_vec();
        message.extend(head(b'H', hello.len()));
        message.extend(hello);
        worker.send(&message).await?;
        match worker.receive().await? {
            b'H' => Ok(worker),
            b'F' => {
                let mut objects = Objects::new(&worker.message);
                objects.list()?;
                let (text, trace) = (objects.text()?, objects.text()?);
                Err(Error::job(format!("{} cannot be loaded", function.shown())).cause(joined(&trace, &text)))
            }
            _ => Err(unreadable()),
        }
    }

    fn answer(&self, asked: usize) -> Result<Answer> {
        let mut objects = Objects::new(&self.message);
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
        let gives = &self.function.gives;
        if objects.list()? != gives.fields().len() {
            return Err(unreadable());
        }
        let mut faults = Faults::new();
        let mut columns = Vec::with_capacity(gives.fields().len());
        for field in gives.fields() {
            // The form and the values are a tuple.
            objects.list()?;
            columns.push(unmarshal::column(&mut objects, field, count, &mut faults)?);
        }
        let mut failures = Vec::new();
        for _ in 0..objects.list()? {
            objects.list()?;
            let (row, what, trace) = (objects.int()?, objects.text()?, objects.text()?);
            let error = Error::data(what).reject(RejectKind::Expression);
            let error = if trace.is_empty() { error } else { error.cause(trace.trim_end()) };
            failures.push(Failure { row: u32::try_from(row).ok(), error });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let nullable: Vec<_> = gives.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(nullable)), columns, &options)
            .map_err(|_| unreadable())?;
        let origins = match (self.function.per, origins) {
            (Per::Batch, _) => None,
            (Per::Row, Some(origins)) => Some(UInt32Array::from(origins)),
            (Per::Row, None) => Some(UInt32Array::from_iter_values(0..asked as u32)),
        };
        match &origins {
            Some(origins) if origins.len() != count || origins.iter().flatten().any(|row| row as usize >= asked) => {
                return Err(unreadable());
            }
            _ => {}
        }
        without(Answer { rows, origins, failures }, &faults)
    }

    async fn send(&mut self, message: &[u8]) -> Result<()> {
        let PythonWorker { child, requests: Some(requests), .. } = self else { return Err(self.ended().await) };
        let sent = tokio::select! {
            biased;
            sent = requests.write_all(message) => sent.is_ok(),
            () = child.over() => false,
        };
        if sent { Ok(()) } else { Err(self.ended().await) }
    }

    /// Reads the next message; gives its kind.
    async fn receive(&mut self) -> Result<u8> {
        let PythonWorker { child, answers: Some(answers), message, .. } = self else { return Err(self.ended().await) };
        // Its children may keep the pipe open when it has ended.
        let received = tokio::select! {
            biased;
            received = read(answers, message) => received,
            () = child.over() => None,
        };
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
        match self.child.wait().await {
            Ok(ending) => {
                let last = self.child.last_lines();
                error.cause(std::iter::once(ending.to_string()).chain(last).collect::<Vec<_>>().join("\n"))
            }
            Err(unknown) => unknown,
        }
    }
}

#[async_trait]
impl Worker for PythonWorker {
    async fn call(&mut self, batch: &RecordBatch) -> Result<Answer> {
        let mut message = head(b'R', 0).to_vec();
        message.push(b'(');
        message.extend(2_u32.to_le_bytes());
        message.push(b'i');
        message.extend((batch.num_rows() as u32).to_le_bytes());
        marshal::write(batch, &mut message)?;
        let length = (message.len() - HEAD_BYTES) as u64;
        message[1..HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        self.send(&message).await?;
        match self.receive().await? {
            b'A' => self.answer(batch.num_rows()),
            _ => Err(unreadable()),
        }
    }

    fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        let id = self.child.id();
        Box::new(move || crate::memory::of_tree(id))
    }
}

/// Reads a message into `message`; gives its kind and whether it is not too long. `None` if there is none.
async fn read(answers: &mut pipe::Receiver, message: &mut Vec<u8>) -> Option<(u8, bool)> {
    let mut head = [0; HEAD_BYTES];
    answers.read_exact(&mut head).await.ok()?;
    let [kind, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES {
        return Some((kind, false));
    }
    message.clear();
    message.reserve(length as usize);
    let read = answers.take(length).read_to_end(message).await;
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
    let failure = |row, fault: &unmarshal::ValueFault| {
        let error = Error::data(&fault.what).text(&fault.text).column(&fault.column).reject(RejectKind::Value);
        Failure { row, error }
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

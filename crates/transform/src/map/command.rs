//! Workers that are programs.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::format::{Format, TEXT};
use millstream_core::program::ProgramContext;
use millstream_core::spec::Fault;
use millstream_core::transform::{ColumnsFault, WorkRules, Worker, Workers};
use millstream_core::{Result, stable_hash};
use millstream_process::command::{Command, CommandWorker, Exchange, ExchangeForm};
use millstream_process::{Children, Program};
use serde_json::{Value, json};

use super::Own;

/// The longest script whose text is part of the fingerprint, in bytes. What is longer is a program, and has a version.
const MOST_SCRIPT: u64 = 1 << 20;

/// Workers that are programs.
#[derive(Debug)]
pub struct CommandWorkers {
    own: Own,
    exchange: Exchange,
}

impl CommandWorkers {
    /// Those that `own` says.
    ///
    /// # Errors
    /// If the columns do not go with the exchange.
    pub fn new(own: Own) -> Result<Self, Vec<Fault>> {
        let form = own.spec.exchange.unwrap_or(ExchangeForm::Arrow);
        if form == ExchangeForm::Lines
            && let Some(column) = own.gives.fields().iter().find(|column| *column.data_type() != TEXT)
        {
            let what = format!("lines are text, and `{}` is of another type", column.name());
            return Err(vec![Fault::new("columns", what).hint("write utf8, and convert it behind this step")]);
        }
        let exchange = form.exchange()?;
        Ok(CommandWorkers { own, exchange })
    }

    /// The program and its arguments.
    fn words(&self) -> &[String] {
        self.own.spec.command.as_ref().map_or(&[], |command| &command.0)
    }
}

#[async_trait]
impl Workers for CommandWorkers {
    fn name(&self) -> &'static str {
        "command"
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        if let Exchange::Text(_, format) = &self.exchange {
            let format: &dyn Format = format.as_ref();
            format.encoder(Arc::new(input.clone()), true)?;
        }
        Ok(Arc::clone(&self.own.gives))
    }

    fn rules(&self) -> &WorkRules {
        &self.own.rules
    }

    fn fingerprint(&self, folder: &Path) -> Result<Value> {
        let words = self.words();
        // Whatever is a small file may be the code, or a setting that it reads.
        let hash = |argument: &String| {
            let path = folder.join(argument);
            let is_script = argument.contains(['/', '.'])
                && fs_err::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= MOST_SCRIPT);
            is_script.then(|| fs_err::read(&path).ok().map(|text| format!("{:016x}", stable_hash::hash(&text))))
        };
        let files: Vec<Option<Option<String>>> = words.iter().map(hash).collect();
        Ok(json!({"command": words, "files": files, "version": self.own.spec.version}))
    }

    async fn start(&self, input: &SchemaRef, context: &ProgramContext) -> Result<Box<dyn Worker>> {
        let program = Program::new(self.words(), &self.own.spec.env, context)?;
        program.look_up_script()?;
        let command = Command {
            program,
            exchange: self.exchange.clone(),
            per: self.own.spec.per,
            takes: Arc::clone(input),
            gives: Arc::clone(&self.own.gives),
            is_timed: self.own.rules.timeout.is_some(),
        };
        let (children, lines) = (Children::of_process()?, Arc::clone(&context.lines));
        Ok(Box::new(CommandWorker::start(&children, &Arc::new(command), lines).await?))
    }
}

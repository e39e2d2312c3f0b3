//! The output of a program: one unit, which is read once, while the program runs.
//!
//! Nothing of it counts unless the program ends with status 0: the end of its output is no end of the unit before that
//! is known. If the unit is not read to its end, the program is killed.

mod spec;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::program::ProgramContext;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{Source, SourceContext};
use millstream_core::spec::{Duration as Time, SpecInfo};
use millstream_core::{ByteStream, Error, Result, Unit};
use millstream_process::{Child, Children, Program, after};
use tokio::io::AsyncReadExt;

use self::spec::CommandSettings;
pub use self::spec::CommandSpec;
use crate::feed::{Feeder, feed};

/// The source `command`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<CommandSpec>(),
    schemes: &["command"],
    check: &|_| Ok(()),
    rows: false,
    build: &|settings| {
        // Every source has one of each kind; most have no program.
        let is_none = settings.as_object().is_some_and(serde_json::Map::is_empty);
        let spec = if is_none { None } else { Some(crate::settings::<CommandSpec>(settings)?) };
        Ok(Arc::new(CommandSource(spec.map(CommandSpec::into_settings).unwrap_or_default())))
    },
};

/// How much is read at once, in bytes: what a pipe holds at most.
const BLOCK: usize = 1 << 20;

/// How many blocks wait to be decoded.
const BLOCKS: usize = 4;

/// How long the rest of the output is awaited when the program has ended: it is in the pipe by then.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// A program whose output is read.
#[derive(Debug)]
struct CommandSource(CommandSettings);

impl CommandSource {
    fn program(&self, context: &ProgramContext) -> Result<Program> {
        if self.0.run.program().is_none() {
            let hint = "write `command: [./export.sh, --all]` in place of `read`";
            return Err(Error::job("nothing says which program is read").hint(hint));
        }
        Program::new(&self.0.run.0, &self.0.env, context)
    }
}

#[async_trait]
impl Source for CommandSource {
    fn name(&self) -> &'static str {
        "command"
    }

    fn medium(&self) -> &'static str {
        "program"
    }

    fn can_reopen(&self, _unit: &Unit) -> bool {
        false
    }

    fn look_up(&self, context: &SourceContext) -> Result<()> {
        self.program(&context.programs)?.look_up()
    }

    fn reads_once(&self) -> Option<&'static str> {
        Some("the output of a program")
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let found = self.look_up(context).map(|()| Unit::new(pattern));
        futures::stream::once(async move { found }).boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        if unit.range.is_some() {
            return Err(Error::internal("the output of a program has no ranges"));
        }
        let (program, lines) = (self.program(&context.programs)?, Arc::clone(&context.programs.lines));
        let (timeout, patience) = (self.0.timeout.map(|timeout| timeout.0), context.programs.patience);
        let start = context.io.spawn(async move {
            let child = Children::of_process()?.start(&program, lines).await?;
            Ok::<_, Error>(Output { name: program.name(), child, timeout, patience })
        });
        let output = start.await.map_err(|_| Error::internal("the task that starts a program has ended"))??;
        Ok(feed(context, BLOCKS * BLOCK, async move |feeder| output.read(feeder).await))
    }
}

/// A program that runs, and how long it may be silent.
struct Output {
    name: String,
    child: Child,
    timeout: Option<Duration>,
    /// How long it may take if it is only looked at.
    patience: Option<Duration>,
}

impl Output {
    /// Reads it to its end, and awaits the program's. If it takes longer than it may, it is killed.
    async fn read(self, feeder: Feeder) -> Result<()> {
        let Some(patience) = self.patience else { return self.read_all(feeder).await };
        let what = format!("the program `{}` has not written what is looked at within {}", self.name, Time(patience));
        tokio::time::timeout(patience, self.read_all(feeder)).await.unwrap_or_else(|_| {
            let hint = "declare the `columns` in the format block: then only a run or a preview starts it";
            Err(Error::data(what).cause("its columns are made out from its first rows, up to 1 MiB").hint(hint))
        })
    }

    async fn read_all(mut self, feeder: Feeder) -> Result<()> {
        // It reads nothing: what asks for input must not wait for it.
        self.child.stdin = None;
        let Some(mut stdout) = self.child.stdout.take() else {
            return Err(Error::internal("a program without standard output"));
        };
        let mut is_over = false;
        loop {
            let room = feeder.room(BLOCK).await;
            let mut block = BytesMut::with_capacity(BLOCK);
            let read = loop {
                tokio::select! {
                    biased;
                    read = stdout.read_buf(&mut block) => break read,
                    () = self.child.over(), if !is_over => is_over = true,
                    () = tokio::time::sleep(LAST_BYTES), if is_over => return Err(self.held_open()),
                    () = after(self.timeout), if !is_over => return Err(self.silent("has written nothing for")),
                }
            };
            match read {
                Ok(0) => break,
                Ok(_) => feeder.send(block.freeze(), room),
                Err(cause) => return Err(Error::io(format!("the output of `{}` cannot be read", self.name), &cause)),
            }
        }
        tokio::select! {
            biased;
            () = self.child.over() => {}
            () = after(self.timeout) => return Err(self.silent("has closed its output, and not ended within")),
        }
        match self.child.wait().await?.is_success() {
            true => Ok(()),
            false => Err(Error::data(format!("the program `{}` failed", self.name))
                .cause(self.child.last_words().await)
                .hint("its output counts only if it ends with status 0")),
        }
    }

    fn silent(&self, what: &str) -> Error {
        let time = Time(self.timeout.unwrap_or_default());
        Error::data(format!("the program `{}` {what} {time}", self.name))
            .hint("raise `timeout`, or see what it waits for")
    }

    fn held_open(&self) -> Error {
        Error::data(format!("the program `{}` has ended, but what it has started holds its output open", self.name))
            .hint("have it wait for the programs that it starts, or give these another output")
    }
}

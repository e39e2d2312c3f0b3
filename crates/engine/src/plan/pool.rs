//! The workers of a step: as many processes as it may have, started when they are needed, kept for the whole run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millstream_core::program::StepLines;
use millstream_core::spec::{Duration as Time, Size};
use millstream_core::transform::{Answer, WorkContext, WorkRules, Worker, Workers};
use millstream_core::{Error, Result};
use millstream_job::Job;
use serde_json::Value;
use tokio::sync::Semaphore;

/// How often the memory of a worker is measured that may not take any amount.
const MEASURE_EVERY: Duration = Duration::from_millis(200);

/// How long a worker may take to start, with what it loads.
const LONGEST_START: Duration = Duration::from_secs(600);

/// The most lines of standard error of a step that are shown.
const MOST_LINES: usize = 1000;

/// What the workers of a job are started with, but for what depends on their step.
pub struct WorkSurroundings {
    folder: PathBuf,
    withheld: Vec<String>,
    lines: StepLines,
}

impl WorkSurroundings {
    /// Those of `job`.
    pub fn of(job: &Job, lines: StepLines) -> Self {
        let folder = Path::new(job.path()).parent().map(Path::to_owned).unwrap_or_default();
        // Without a working folder, relative paths lead nowhere, whatever they are relative to.
        let folder = std::path::absolute(folder.join(".")).unwrap_or(folder);
        let mut withheld = Vec::new();
        let sources = job.sources.iter().map(|step| &step.settings);
        let transforms = job.transforms.iter().map(|step| &step.settings);
        let sinks = job.sinks.iter().map(|step| &step.settings);
        sources.chain(transforms).chain(sinks).for_each(|settings| variables_of_secrets(settings, &mut withheld));
        WorkSurroundings { folder, withheld, lines }
    }

    fn context(&self, step: &str) -> WorkContext {
        let (step, lines, shown) = (step.to_owned(), Arc::clone(&self.lines), Mutex::new(0_usize));
        let take = move |line: &str| {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            *shown += 1;
            match *shown {
                ..=MOST_LINES => lines(&step, line),
                count if count == MOST_LINES + 1 => lines(&step, "… further lines are not shown"),
                _ => {}
            }
        };
        WorkContext { folder: self.folder.clone(), withheld: self.withheld.clone(), lines: Arc::new(take) }
    }
}

/// The variables of the environment that hold secrets of `settings`.
fn variables_of_secrets(settings: &Value, variables: &mut Vec<String>) {
    match settings {
        Value::Object(members) => {
            let secret = members.get("secret").and_then(Value::as_str).filter(|_| members.len() == 1);
            variables.extend(secret.and_then(|secret| secret.strip_prefix("env:")).map(str::to_owned));
            members.values().for_each(|member| variables_of_secrets(member, variables));
        }
        Value::Array(items) => items.iter().for_each(|item| variables_of_secrets(item, variables)),
        _ => {}
    }
}

/// The workers of a step.
pub struct Pool {
    workers: Arc<dyn Workers>,
    step: String,
    takes: SchemaRef,
    context: WorkContext,
    size: usize,
    permits: Semaphore,
    idle: Mutex<Vec<Idle>>,
    /// What its rows depend on beside the settings, when the first worker was started.
    code: OnceLock<Value>,
}

/// A worker that does nothing, and when its memory was measured.
struct Idle {
    worker: Box<dyn Worker>,
    measured: Instant,
}

impl Pool {
    /// The workers of `step`, none of which is started yet, for rows with the columns `takes`. There are `cores` of
    /// them unless the job says otherwise.
    pub fn new(
        workers: Arc<dyn Workers>,
        step: &str,
        takes: SchemaRef,
        surroundings: &WorkSurroundings,
        cores: usize,
    ) -> Self {
        let size = workers.rules().workers.map_or(cores, Into::into);
        Pool {
            workers,
            step: step.to_owned(),
            takes,
            context: surroundings.context(step),
            size,
            permits: Semaphore::new(size),
            idle: Mutex::default(),
            code: OnceLock::new(),
        }
    }

    /// The name of the step.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// What its workers are called.
    pub fn name(&self) -> &'static str {
        self.workers.name()
    }

    /// How it is used.
    pub fn rules(&self) -> &WorkRules {
        self.workers.rules()
    }

    /// How many workers there are at most.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What the rows depend on beside the settings.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn code(&self) -> Result<Value> {
        match self.code.get() {
            Some(code) => Ok(code.clone()),
            None => self.workers.fingerprint(&self.context.folder),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker, unless there is one: whatever keeps the step from working is known then.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn begin(&self) -> Result<()> {
        if self.idle().is_empty() {
            let worker = self.start().await?;
            self.idle().push(worker);
        }
        Ok(())
    }

    async fn start(&self) -> Result<Idle> {
        let started = self.workers.start(&self.takes, &self.context);
        let started = tokio::time::timeout(LONGEST_START, started).await.unwrap_or_else(|_| {
            let what = format!("the {} worker has not started within {}", self.name(), Time(LONGEST_START));
            Err(Error::refused(what).hint("what does the code do when it is loaded?"))
        });
        let worker = started?;
        // What was loaded before may have changed since, but not what is loaded after.
        let code = self.workers.fingerprint(&self.context.folder)?;
        if *self.code.get_or_init(|| code.clone()) != code {
            let what = format!("the code of `{}` has changed since the run began", self.step);
            return Err(Error::refused(what).hint("run it again: rows of two versions would be mixed"));
        }
        Ok(Idle { worker, measured: Instant::now() })
    }

    /// What a worker gives for `batch`; waits for one that is idle. With `fresh` it is a new one. The inner error is
    /// that of a worker which has failed at it and has ended.
    ///
    /// # Errors
    /// If no worker can be started.
    pub async fn call(&self, batch: &RecordBatch, fresh: bool) -> Result<Result<Answer>> {
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|_| Error::internal("the workers of a step have ended"))?;
        let idle = self.idle().pop();
        let mut worker = match idle.filter(|_| !fresh) {
            Some(worker) => worker,
            None => self.start().await?,
        };
        let answer = self.watched(&mut worker, batch).await;
        if answer.is_ok() {
            self.idle().push(worker);
        }
        Ok(answer)
    }

    /// Calls `worker`, within its time and memory.
    async fn watched(&self, Idle { worker, measured }: &mut Idle, batch: &RecordBatch) -> Result<Answer> {
        let rules = self.rules();
        let measure = worker.measure();
        let call = async {
            match rules.timeout {
                None => worker.call(batch).await,
                Some(timeout) => tokio::time::timeout(timeout, worker.call(batch)).await.unwrap_or_else(|_| {
                    let what = format!("the {} worker has not answered within {}", self.name(), Time(timeout));
                    Err(Error::data(what).hint("raise `timeout`, or see what the function waits for"))
                }),
            }
        };
        let Some(limit) = rules.memory else { return call.await };
        tokio::pin!(call);
        let mut answer = None;
        while answer.is_none() {
            tokio::select! {
                biased;
                answered = &mut call => answer = Some(answered),
                () = tokio::time::sleep(MEASURE_EVERY.saturating_sub(measured.elapsed())) => {}
            }
            if measured.elapsed() < MEASURE_EVERY {
                continue;
            }
            let bytes = measure();
            *measured = Instant::now();
            if bytes > limit {
                let what = format!("the {} worker takes more memory than it may", self.name());
                return Err(Error::data(what)
                    .cause(format!("it has {}, and `memory` is {}", Size(bytes), Size(limit)))
                    .hint("raise `memory`, or have the function keep less"));
            }
        }
        answer.unwrap_or_else(|| Err(Error::internal("a worker has given no answer")))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("step", &self.step).field("workers", &self.workers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_found_wherever_they_are() {
        let settings = json!({
            "env": {"TOKEN": {"secret": "env:TOKEN"}, "PLAIN": "env:NO_SECRET"},
            "list": [{"secret": "env:OTHER"}, {"secret": "file:/secret"}, {"secret": "env:NONE", "beside": 1}],
        });
        let mut variables = Vec::new();
        variables_of_secrets(&settings, &mut variables);
        assert_eq!(variables, ["TOKEN", "OTHER"]);
    }
}

//! From the text of a job file to a job, or to everything that is wrong with it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_core::{Error, Result, clock};
use millstream_job::around::Allow;
use millstream_job::lint::tidy;
use millstream_job::sequence::NamedJob;
use millstream_job::{Job, JobEntry, Lint, LoadOptions, Loaded};

use crate::checks;
use crate::chunks::sinks;
use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::job_plan::Runnable;
use crate::prepare::{Asked, Reach, prepare_with_sinks};
use crate::{hooks, overlap, sql};

/// Milliseconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(clock::now()).unwrap_or(i64::MAX)
}

/// Where variables have their values.
pub(crate) struct Variables<'a> {
    /// The caller's, which come first.
    pub set: &'a BTreeMap<String, String>,
    /// The environment's.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// When the logical run begins, in milliseconds since 1970.
    pub now: i64,
}

/// What parsing needs beside the text.
#[derive(Debug, Clone, Default)]
pub struct ParseOptions {
    /// Values of variables. They come before those of the environment.
    pub set: BTreeMap<String, String>,
    /// Whether a secret that is not there is an error: the job is about to run. Otherwise it is a warning.
    pub needs_secrets: bool,
    /// What `today` and `now` are, in milliseconds since 1970. `None`: the time at which the job is parsed; a run that
    /// begins on another day takes that.
    pub now: Option<i64>,
}

/// A job that was parsed.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The job.
    pub job: Arc<Job>,
    /// What is strange about it and no error.
    pub warnings: Vec<Lint>,
}

/// What can be said of a job file, whatever is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// Its entries.
    pub entries: Vec<JobEntry>,
    /// The variables that those may set who may only start it; `None` if the file is too broken to know.
    pub allow: Option<Allow>,
    /// What is wrong with it, or strange.
    pub lints: Vec<Lint>,
}

/// The text of the job file at `path`.
fn read_text(path: &str) -> Result<String, Failure> {
    let absent = match path.contains("://") {
        true => "a job file is a local file; `millstream cat URL` writes the text of what is there",
        false => "`millstream guess URL > job.yaml` writes a first one",
    };
    let bytes = fs_err::read(path).map_err(|cause| unreadable("the job file", path, &cause, absent))?;
    millstream_job::decode(path, &bytes).map(str::to_owned).map_err(|lint| Failure::from(*lint))
}

impl Engine {
    /// Reads and parses the job file at `path`.
    ///
    /// # Errors
    /// If it cannot be read; else everything that is wrong with it, as far as that is known without a network. Entries
    /// that are sound are checked against their files even where others are not.
    pub async fn read_job(&self, path: &str, options: &ParseOptions) -> Result<Parsed, Failure> {
        self.parse_job(path, &read_text(path)?, options).await
    }

    /// Reads the job file at `path`, and says what its entries are, also those that are wrong. Looks at nothing else.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn outline(&self, path: &str, options: &ParseOptions) -> Result<Outline, Failure> {
        let Loaded { job, sound, outline, lints, .. } = self.parse_as(path, &read_text(path)?, options);
        let allow = job.or(sound).map(|job| job.around.allow);
        Ok(Outline { entries: outline, allow, lints })
    }

    /// Parses a job. `path` names it in messages, and its runs in the run history.
    ///
    /// # Errors
    /// As those of [`Engine::read_job`].
    pub async fn parse_job(&self, path: &str, text: &str, options: &ParseOptions) -> Result<Parsed, Failure> {
        let Loaded { job, sound, lints, .. } = self.parse_as(path, text, options);
        let Some(job) = job else {
            let sound = sound.map(Arc::new);
            return Err(self.with_faults_of(sound, Failure { lints, errors: Vec::new() }).await);
        };
        Ok(Parsed { job: Arc::new(job), warnings: lints })
    }

    /// Parses a job as `options` say, with the environment of this process.
    fn parse_as(&self, path: &str, text: &str, options: &ParseOptions) -> Loaded {
        let environment = |name: &str| std::env::var(name).ok();
        let now = options.now.unwrap_or_else(now);
        let variables = Variables { set: &options.set, environment: &environment, now };
        self.parse(path, text, variables, options.needs_secrets)
    }

    pub(crate) fn parse(&self, path: &str, text: &str, variables: Variables<'_>, needs_secrets: bool) -> Loaded {
        self.parse_with(
            path,
            text,
            &LoadOptions {
                set: variables.set,
                environment: variables.environment,
                only_set: false,
                references: &|query| sql::references(query),
                running: needs_secrets,
                replace: None,
                now: variables.now,
            },
        )
    }

    pub(crate) fn parse_with(&self, path: &str, text: &str, options: &LoadOptions<'_>) -> Loaded {
        let mut loaded = millstream_job::load(path, text, self.registry(), options);
        let job = loaded.job.as_ref().or(loaded.sound.as_ref());
        loaded.lints.extend(job.into_iter().flat_map(|job| overlap::lints(job).into_iter().chain(sinks::lints(job))));
        // A sink that is left out for its faults may read what no other does.
        loaded.lints.extend(loaded.job.iter().flat_map(checks::lints::lints));
        let job = loaded.job.as_ref().or(loaded.sound.as_ref());
        loaded.lints.extend(job.into_iter().flat_map(|job| hooks::lints(job, self.machine())));
        tidy(&mut loaded.lints);
        if loaded.lints.iter().any(Lint::is_error) {
            loaded.sound = loaded.job.take().or(loaded.sound);
        }
        loaded
    }

    /// What is wrong with a job that a sequence names, as far as that is known without a network.
    pub fn lints_of_named(&self, named: &NamedJob<'_>) -> Vec<Lint> {
        let environment = |name: &str| std::env::var(name).ok();
        if named.later.is_empty() {
            let variables = Variables { set: named.set, environment: &environment, now: named.now };
            return self.parse(named.path, named.text, variables, false).lints;
        }
        let options = LoadOptions {
            set: named.set,
            environment: &environment,
            only_set: false,
            references: &|query| sql::references(query),
            running: false,
            replace: None,
            now: named.now,
        };
        millstream_job::check(named.path, named.text, self.registry(), &options, named.later)
    }

    /// `work` with components that no run has had: those of the job itself for its first run, for others new ones.
    ///
    /// # Errors
    /// If the beginning of something that cannot be read twice was read to make the plan; if the job does not parse
    /// any more, for example since a secret is gone.
    pub(crate) fn fresh(&self, work: Runnable) -> Result<Runnable, Failure> {
        let Runnable { job, known } = work;
        if let Some(uri) = known.as_ref().and_then(|known| known.consumed.first()) {
            let what = "the plan has read the beginning of this, and it cannot be read again";
            let hint = "declare the `columns` of the source, or start the job itself in place of the plan";
            return Err(Error::refused(what).in_unit(uri, None).hint(hint).into());
        }
        if !job.taken.swap(true, Ordering::Relaxed) {
            return Ok(Runnable { job, known });
        }
        let now = job.around.moment.milliseconds();
        Ok(Runnable { job: Arc::new(self.parse_again(&job, now)?), known })
    }

    /// `work` in a logical run that begins at `now`, in milliseconds since 1970.
    ///
    /// # Errors
    /// If the job has to be parsed again, since its dates are others then, and does not parse any more.
    pub(crate) fn at(&self, work: &Runnable, now: i64) -> Result<Runnable, Failure> {
        let Runnable { job, known } = work;
        if job.around.moment.milliseconds() == now {
            return Ok(work.clone());
        }
        match job.at(now) {
            Some(job) => Ok(Runnable { job: Arc::new(job), known: known.clone() }),
            // What was found out of its sources was that of other files.
            None => Ok(Runnable { job: Arc::new(self.parse_again(job, now)?), known: None }),
        }
    }

    fn parse_again(&self, job: &Job, now: i64) -> Result<Job, Failure> {
        let parsed = self.parse_with(
            job.path(),
            &job.text.whole(),
            &LoadOptions {
                set: &job.variables,
                environment: &|name| std::env::var(name).ok(),
                only_set: true,
                references: &|query| sql::references(query),
                running: true,
                replace: job.replaced.as_ref(),
                now,
            },
        );
        match parsed.job {
            Some(fresh) => {
                fresh.taken.store(true, Ordering::Relaxed);
                Ok(Job { set: job.set.clone(), ..fresh })
            }
            None => Err(Failure { lints: parsed.lints, errors: Vec::new() }),
        }
    }

    /// `all`, and what is wrong with the entries of `sound`, which parsed.
    async fn with_faults_of(&self, sound: Option<Arc<Job>>, mut all: Failure) -> Failure {
        let Some(sound) = sound else { return all };
        if let Err(more) = self.check(sound, true).await {
            all.lints.extend(more.lints);
            let is_new = |error: &Error| all.lints.iter().all(|lint| lint.what != error.what());
            all.errors.extend(more.errors.into_iter().filter(is_new));
            tidy(&mut all.lints);
        }
        all
    }

    /// Checks `job` as far as it can be checked without running it: columns of the sources, SQL, targets. Offline it
    /// asks neither network nor database.
    pub async fn check(&self, job: Arc<Job>, offline: bool) -> Result<Checked, Failure> {
        self.with_looking_context(async move |context: &RunContext| {
            let reach = if offline { Reach::Offline } else { Reach::Online };
            let prepared = prepare_with_sinks(context, &job, None, reach, Asked::Check).await?;
            Failure::of(prepared.unopened())?;
            if prepared.unknown.is_empty() {
                sinks::by_chunk(&job, &prepared.plan_sinks(&job).await?)?;
            }
            Ok(Checked { unknown: prepared.unknown, warnings: prepared.warnings })
        })
        .await
    }
}

/// What a check found out.
#[derive(Debug, Default)]
pub struct Checked {
    /// Sources and transforms whose columns could not be known offline.
    pub unknown: Vec<String>,
    /// What is strange and no error.
    pub warnings: Vec<Lint>,
}

/// The file at `path`, which is `what`, cannot be read; `absent` is what to do if there is none.
pub fn unreadable(what: &str, path: &str, cause: &io::Error, absent: &str) -> Error {
    let error = Error::job(format!("{what} {path} cannot be read"));
    match cause.kind() {
        io::ErrorKind::NotFound => error.cause("there is no such file").hint(absent),
        io::ErrorKind::IsADirectory => error.cause("it is a folder"),
        io::ErrorKind::PermissionDenied => error.cause("you have no permission to read it"),
        _ => error.cause(cause),
    }
}

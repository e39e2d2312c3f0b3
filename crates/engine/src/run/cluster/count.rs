//! Lines of files that workers count. What a bundle has come to counts once, by its lease.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::StreamExt;
use millstream_cluster::{Link, ListedUnit, Load, Outcome, ReadBundle, Seen, ToRead, Worker};
use millstream_core::{Error, ErrorKind, Result, Unit};
use serde_json::Value;

use super::hindrance::{is_valid_everywhere, of_reader};
use super::session::{Tell, coordinated, deadly, listed, unit_of, unpacked};
use super::task::{Assignment, CountTask, from_value, to_value};
use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::options::ClusterOptions;
use crate::read::cuts::Cuts;
use crate::run::events::Event;
use crate::urls::{self, Counts, Urls};

impl Engine {
    /// Counts the lines of all units, with the workers that join as `options` say; `by_unit` keeps those of each unit.
    /// `tell` hears of workers.
    ///
    /// # Errors
    /// As [`Engine::count`]; if the units cannot be distributed, and `options` insist.
    pub async fn count_in_cluster(
        &self,
        urls: Urls,
        by_unit: bool,
        options: ClusterOptions,
        tell: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Counts, Failure> {
        let tell: Tell = Arc::new(tell);
        self.with_context(async move |context: &RunContext| count(context, urls, by_unit, &options, &tell).await).await
    }
}

async fn count(
    context: &RunContext,
    urls: Urls,
    by_unit: bool,
    options: &ClusterOptions,
    tell: &Tell,
) -> Result<Counts, Failure> {
    let reader = urls.reader(context, "count")?;
    let why = match reader.patterns.iter().any(|pattern| pattern == "-") {
        true => Err("standard input can only be read here".to_owned()),
        false => of_reader(&reader, true, &options.shared),
    };
    if let Err(why) = why {
        if options.always {
            let error = Error::refused("the workers of a cluster cannot count this").cause(why);
            return Err(error.hint("leave out `--cluster=always`: then this machine counts alone").into());
        }
        tell(Event::NotDistributed { why });
        return urls::count(context, &urls, by_unit).await;
    }
    let folder = std::env::current_dir().map_err(|cause| Error::io("the working folder is not known", &cause))?;
    let task = CountTask { urls: urls.clone(), by_unit, folder, reads_files: reader.reads_files() };
    let task = to_value(&Assignment::Count(task))?;
    let counting = Arc::new(Counting { counts: Mutex::default(), workers: Mutex::default(), tell: Arc::clone(tell) });
    // What workers do not get is counted here.
    let own = Mutex::new(Vec::new());
    let keep = |unit: Unit| own.lock().unwrap_or_else(PoisonError::into_inner).push(unit);
    // The names of units whose ranges are counted apart.
    let cut = Mutex::new(BTreeSet::new());
    let list = async |sender: tokio::sync::mpsc::Sender<ListedUnit>| {
        let (mut units, mut cuts) = (reader.list_once(), Cuts::new(&reader, 1));
        while let Some(unit) = units.next().await {
            let unit = unit?;
            if !is_valid_everywhere(&reader, &unit, &options.shared) {
                keep(unit);
                continue;
            }
            let mut parts = cuts.of(&unit).await;
            match parts.is_empty() {
                true => parts.push(unit),
                false => drop(cut.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.name())),
            }
            for part in parts {
                if sender.send(listed(0, &part)?).await.is_err() {
                    keep(part);
                }
            }
        }
        Ok(())
    };
    let load = Arc::clone(&counting) as Arc<dyn Load>;
    let ended = coordinated(options, &context.runtimes.io(), task, load, tell, list).await?;
    let ended = ended.map_err(|errors| Failure { lints: Vec::new(), errors })?;
    let mut counts = std::mem::take(&mut *counting.counts());
    let cut = cut.into_inner().unwrap_or_else(PoisonError::into_inner);
    let own = own.into_inner().unwrap_or_else(PoisonError::into_inner);
    let left: Option<Vec<Unit>> = match ended {
        Some(Outcome::Finished) if own.is_empty() => return Ok(counts.of_whole_units(&cut)),
        Some(Outcome::Finished) => Some(own),
        Some(Outcome::Alone(left)) => {
            let left = left.units().map_err(unpacked)?.iter().map(unit_of).collect::<Result<Vec<Unit>>>()?;
            Some([left, own].concat())
        }
        None => None,
    };
    let rest = urls::count_units(context, &urls, by_unit, left).await?;
    counts.lines += rest.lines;
    counts.units.extend(rest.units);
    Ok(counts.of_whole_units(&cut))
}

/// What workers have counted.
struct Counting {
    counts: Mutex<Counts>,
    /// The names of workers.
    workers: Mutex<HashMap<Worker, String>>,
    tell: Tell,
}

impl Counting {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, worker: Worker) -> String {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).get(&worker).cloned().unwrap_or_default()
    }
}

#[async_trait]
impl Load for Counting {
    async fn keep(&self, _worker: Worker, _what: Value) -> Result<()> {
        Err(Error::internal("what is counted is not kept"))
    }

    fn tell(&self, _worker: Worker, _told: Value) -> Result<()> {
        Ok(())
    }

    async fn count(&self, _worker: Worker, outcome: Value) -> Result<()> {
        let counted: Counts = from_value(outcome)?;
        let mut counts = self.counts();
        counts.lines += counted.lines;
        counts.units.extend(counted.units);
        Ok(())
    }

    async fn lose(&self, _worker: Worker) {}

    fn deadly(&self, unit: &ListedUnit) -> Error {
        deadly(unit, None)
    }

    fn see(&self, seen: Seen) {
        (self.tell)(match seen {
            Seen::Joined(worker, hello) => {
                let name = hello.name();
                self.workers.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, name.clone());
                Event::Joined { worker: name, cores: hello.cores }
            }
            Seen::Refused(worker, error) => Event::NotJoined { worker, error },
            Seen::Left(worker) => Event::Left { worker: self.name(worker) },
            Seen::Lost(worker, why, bundles) => Event::Lost { worker: self.name(worker), why, bundles: bundles as u64 },
            Seen::Standing(_) => return,
        });
    }
}

/// A worker that counts.
pub(super) struct CountWork {
    engine: Engine,
    task: CountTask,
}

impl CountWork {
    /// One that counts as `task` says.
    pub(super) fn new(engine: Engine, task: CountTask) -> Self {
        CountWork { engine, task }
    }
}

#[async_trait]
impl ReadBundle for CountWork {
    async fn read(&self, to_read: ToRead, link: Link) -> Result<Value, Vec<Error>> {
        let units: Result<Vec<Unit>> = to_read.units.iter().map(unit_of).collect();
        let (units, task) = (units.map_err(|error| vec![error])?, self.task.clone());
        let counting = self.engine.with_context(async move |context: &RunContext| {
            urls::count_units(context, &task.urls, task.by_unit, Some(units)).await
        });
        let counted = tokio::select! {
            biased;
            () = link.stopped() => return Err(vec![Error::new(ErrorKind::Interrupted, "the bundle was stopped")]),
            counted = counting => counted,
        };
        let counted = counted.map_err(Failure::into_errors)?;
        to_value(&counted).map_err(|error| vec![error])
    }
}

//! The resume policy: what a run does about what earlier runs of its job have left. These are pure functions over
//! facts; `point.rs` and `left.rs` collect the facts, and do what is decided.
//!
//! **The run history** comes first. Only `--resume` asks it, for the last run of the job that had begun to load:
//!
//! | the last run | this run |
//! |---|---|
//! | there is none | starts from the beginning |
//! | is running | is refused |
//! | failed, was interrupted or killed | resumes it, unless the job has changed |
//! | is done, and sources are incremental | starts from the beginning: the ledger knows the files |
//! | is done, and `today` in the job was another day | starts from the beginning |
//! | is done, and was of another job | resumes the last run of its own, if that failed, was interrupted or killed |
//! | is done | has nothing to do; is refused if the job, its files or its target have changed |
//!
//! **The target of a sink** may know loads that the history does not. Of a load chunk by chunk:
//!
//! | the load of another run | plain | `--resume`, with a run to resume | `--resume`, without | `--restart` |
//! |---|---|---|---|---|
//! | is empty, and its run is dead or a day old | forgotten | forgotten | forgotten | forgotten |
//! | is empty otherwise | left alone | left alone | left alone | forgotten |
//! | its run is done | forgotten | forgotten | forgotten | forgotten |
//! | has all rows | refused | forgotten later | resumed, the last, if none has only some | forgotten |
//! | has some rows, or connections | refused | refused | resumed, if it is the only one | forgotten |
//!
//! Of a load all at once, which has a commit marker if its rows are visible:
//!
//! | the load of another run | plain | `--resume`, with a run to resume | `--resume`, without | `--restart` |
//! |---|---|---|---|---|
//! | has connections | refused | refused | resumed; beside one with its marker refused | forgotten later |
//! | has its marker, and its run is not done | refused | forgotten later | resumed before others | forgotten later |
//! | otherwise | forgotten later | forgotten later | resumed, the last | forgotten later |
//!
//! Later means: once this run is done. A load whose rows are compared with those that are there (`mode: history`) is
//! not refused for its marker: loading them again changes nothing.
//!
//! Rows that a run of the same resume chain has staged, or has merged into the table in its last moment, are used only
//! if they are what this run would stage ([`Staged::can_be_used`]). Otherwise it stages everything again, and no run is
//! refused for them.
//!
//! The load of incremental sources belongs to all runs: nothing of it is left by others. A replay forgets its earlier
//! rounds, which are complete.

use millstream_core::Result;
use millstream_core::sink::KnownLoad;
use millstream_state::{Outcome, RunRecord};

use super::refusals;
use crate::fingerprint::Compared;

/// An empty load is forgotten when it is older than this, in seconds.
const OLD: u64 = 24 * 60 * 60;

/// What a run was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// To resume the last run.
    pub resume: bool,
    /// To start again, whatever an earlier run has left.
    pub restart: bool,
    /// To load rejects again.
    pub replay: bool,
    /// The run history has led to a run that this one resumes.
    pub has_run: bool,
}

impl Asked {
    /// Whether this run may take loads over from other runs.
    pub fn takes_over(self) -> bool {
        self.resume || self.replay
    }

    /// Whether this run resumes a load that only the target knows.
    fn adopts(self) -> bool {
        self.resume && !self.has_run
    }

    /// Whether this run was asked neither to resume another one nor to leave what it has done.
    fn is_plain(self) -> bool {
        !self.takes_over() && !self.restart
    }
}

/// What a run is, by the run history.
#[derive(Debug, Clone)]
pub enum Start {
    /// It starts from the beginning.
    Fresh,
    /// It resumes this run.
    Resumes(Box<RunRecord>),
    /// There is nothing to resume: this run was the last one, and is done.
    AfterTheEnd(Box<RunRecord>),
}

/// What a run is whose job was run before, the last time as `last`. `begins_anew` says whether it has something to do
/// after that was done: its sources are incremental, or `today` is another day.
pub fn start(last: Option<RunRecord>, begins_anew: bool) -> Result<Start> {
    let Some(last) = last else { return Ok(Start::Fresh) };
    match last.outcome {
        Outcome::Running => Err(refusals::still_running(&last)),
        Outcome::Done if begins_anew => Ok(Start::Fresh),
        Outcome::Done => Ok(Start::AfterTheEnd(Box::new(last))),
        Outcome::Failed | Outcome::Interrupted | Outcome::Killed | Outcome::Skipped => {
            Ok(Start::Resumes(Box::new(last)))
        }
    }
}

/// The run that a job resumes whose last run was of another job under the same name: of `runs`, the last one first, the
/// first that is of the same job, unless it is done.
pub fn earlier(runs: Vec<RunRecord>, compare: impl Fn(&str) -> Compared) -> Option<RunRecord> {
    let is_same = |run: &RunRecord| run.fingerprint.as_deref().is_some_and(|before| compare(before) == Compared::Same);
    let last = runs.into_iter().find(is_same)?;
    matches!(last.outcome, Outcome::Failed | Outcome::Interrupted | Outcome::Killed).then_some(last)
}

/// Refuses to resume unless the job is the same. Of the files of its code, these are known to have changed.
pub fn same_job(compared: Compared, changed_files: &[String]) -> Result<()> {
    match compared {
        Compared::Same => Ok(()),
        Compared::Changed => Err(refusals::has_changed(changed_files)),
        Compared::Newer => Err(refusals::is_newer()),
    }
}

/// What has happened since the last run, which is done.
#[derive(Debug)]
pub struct SinceTheEnd {
    /// How the job compares with the one that was run.
    pub compared: Compared,
    /// The first sink whose rows are gone, and what its target lacks.
    pub lost: Option<(String, String)>,
    /// Whether the sources have other files.
    pub files_changed: bool,
    /// The files of code that are known to have changed.
    pub code_changed: Vec<String>,
}

/// Refuses to load again what the last run has added: it would be there twice. If this succeeds, there is nothing to
/// do. `path` is the job's.
pub fn after_the_end(since: &SinceTheEnd, path: &str) -> Result<()> {
    if since.compared == Compared::Newer {
        return Err(refusals::is_newer());
    }
    if let Some((sink, lost)) = &since.lost {
        return Err(refusals::is_lost(sink, lost, path));
    }
    match since {
        SinceTheEnd { compared: Compared::Same, files_changed: false, .. } => Ok(()),
        SinceTheEnd { compared: Compared::Same, .. } => {
            Err(refusals::differs_since_the_end("its files have changed", path))
        }
        SinceTheEnd { code_changed, .. } => match code_changed.first() {
            Some(file) => Err(refusals::differs_since_the_end(&format!("{file} has changed"), path)),
            None => Err(refusals::differs_since_the_end("the job has changed", path)),
        },
    }
}

/// How a sink loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadKind {
    /// Chunk by chunk.
    ByChunk,
    /// Chunk by chunk, each file once in all runs.
    Incremental,
    /// Chunk by chunk, in a round of a replay.
    Round,
    /// All at once.
    AtOnce,
}

/// The load of another run in the target of a sink.
#[derive(Debug)]
pub struct OtherLoad {
    /// What the ledger says of it.
    pub known: KnownLoad,
    /// Whether its run was of this machine, and is dead: its connections are about to end.
    pub has_died: bool,
    /// Whether the run history says that its run is done.
    pub is_done: bool,
    /// What is written of it, where this decides ([`OtherLoad::is_open`]).
    pub written: Option<Written>,
}

/// What is written of a load.
#[derive(Debug)]
pub struct Written {
    /// Whether that is everything.
    pub is_complete: bool,
    /// Whether this program may resume it, by this job.
    pub may_be_resumed: Result<()>,
}

impl OtherLoad {
    fn connections(&self) -> &[String] {
        if self.has_died { &[] } else { &self.known.connections }
    }

    fn is_empty(&self) -> bool {
        self.known.chunks == 0 && self.connections().is_empty()
    }

    fn is_abandoned(&self) -> bool {
        self.is_empty() && (self.has_died || self.known.idle_seconds > OLD)
    }

    /// Whether what is written of it decides what is done.
    pub fn is_open(&self, asked: Asked) -> bool {
        !self.is_empty() && !self.is_done && !asked.restart
    }
}

/// What there is in the target of a sink.
#[derive(Debug)]
pub struct Facts<'a> {
    /// How the sink loads.
    pub kind: LoadKind,
    /// Whether rows that are loaded twice are there twice.
    pub adds_rows: bool,
    /// The loads of other runs that this one looks after.
    pub loads: Vec<OtherLoad>,
    /// The target, for messages.
    pub target: &'a str,
    /// The command that resumes, for messages.
    pub resume_command: &'a str,
}

/// What becomes of the loads of other runs.
#[derive(Debug)]
pub struct Decision {
    /// What is forgotten now, in this order.
    pub forget: Vec<Forget>,
    /// What this run loads, or why it is refused.
    pub choice: Result<Choice>,
}

/// A load that is forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forget {
    /// It is not needed any more.
    Always(String),
    /// If it still has no rows. If another session holds it, that is no fault, and a later run does it.
    Unwritten(String),
}

/// What a run loads into a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The load of another run that this one resumes; otherwise it has a load of its own.
    pub resumes: Option<String>,
    /// Loads that are forgotten, but not before this run is done: if it fails before it is in the run history, another
    /// may still resume one of them.
    pub stale: Vec<String>,
}

/// Decides what becomes of the loads of other runs.
pub fn decide(facts: Facts<'_>, asked: Asked) -> Decision {
    match facts.kind {
        LoadKind::Incremental => Decision { forget: Vec::new(), choice: Ok(Choice::default()) },
        LoadKind::Round => {
            // One that was killed when only this was left to do has left its load.
            let forget = facts.loads.into_iter().map(|other| Forget::Always(other.known.load)).collect();
            Decision { forget, choice: Ok(Choice::default()) }
        }
        LoadKind::ByChunk => by_chunk(facts, asked),
        LoadKind::AtOnce => Decision { forget: Vec::new(), choice: at_once(facts, asked) },
    }
}

fn by_chunk(facts: Facts<'_>, asked: Asked) -> Decision {
    let Facts { loads, target, resume_command, .. } = facts;
    let (mut forget, mut unfinished, mut complete) = (Vec::new(), Vec::new(), Vec::new());
    for other in loads {
        if other.is_abandoned() {
            forget.push(Forget::Unwritten(other.known.load));
        } else if other.is_done || asked.restart {
            forget.push(Forget::Always(other.known.load));
        } else if !other.is_empty() {
            match other.written.as_ref().is_some_and(|written| written.is_complete) {
                true if asked.is_plain() => {
                    return Decision { forget, choice: Err(refusals::is_there(target, resume_command)) };
                }
                true => complete.push(other),
                false => unfinished.push(other),
            }
        }
    }
    if asked.adopts() && unfinished.is_empty() {
        // Its run has died before it could say so.
        unfinished.extend(complete.pop());
    }
    let stale = complete.into_iter().map(|other| other.known.load).collect();
    Decision { forget, choice: choose(unfinished, stale, asked, target, resume_command) }
}

/// What to do about loads that are `unfinished`.
fn choose(
    unfinished: Vec<OtherLoad>,
    stale: Vec<String>,
    asked: Asked,
    target: &str,
    resume_command: &str,
) -> Result<Choice> {
    let mut unfinished = unfinished.into_iter();
    match (unfinished.next(), unfinished.next()) {
        (None, _) => Ok(Choice { resumes: None, stale }),
        (Some(other), None) if asked.adopts() => {
            other.written.map_or(Ok(()), |written| written.may_be_resumed)?;
            Ok(Choice { resumes: Some(other.known.load), stale })
        }
        (Some(other), _) if !other.connections().is_empty() => Err(refusals::is_loading(other.connections())),
        (Some(other), _) => Err(refusals::is_unfinished(&other.known, target, resume_command)),
    }
}

fn at_once(facts: Facts<'_>, asked: Asked) -> Result<Choice> {
    let (mut adopted, mut stale): (Option<KnownLoad>, _) = (None, Vec::new());
    for other in facts.loads {
        // One whose rows are there goes before one that has only begun.
        if asked.adopts() && adopted.as_ref().is_none_or(|one| one.chunks == 0) {
            stale.extend(adopted.replace(other.known).map(|former| former.load));
        } else if !other.connections().is_empty() && !asked.restart {
            return Err(refusals::is_loading(other.connections()));
        } else if other.known.chunks > 0 && asked.is_plain() && !other.is_done && facts.adds_rows {
            return Err(refusals::is_there(facts.target, facts.resume_command));
        } else {
            stale.push(other.known.load);
        }
    }
    Ok(Choice { resumes: adopted.map(|other| other.load), stale })
}

/// Whether a load that the run `other` has begun chunk by chunk, and of which a part is there, keeps the run `own` of
/// the resume chain `first` from loading all at once. `idle_seconds` is the time since the last chunk of that load.
///
/// A run that resumes another one by the run history goes on beside older loads: the chain has begun with `--restart`
/// in spite of them, or they were done. A load that was begun after the chain, or has loaded something since, is one of
/// a run with another state folder. It did not see the chain, of which nothing was visible, and the rows that it has
/// loaded would be there twice. Ages are compared, and not the clocks of two machines.
pub fn is_in_the_way(other: &str, idle_seconds: u64, [first, own]: [&str; 2], asked: Asked) -> bool {
    // The name of a run begins with the time at which it began, in milliseconds.
    let began = |run: &str| run.split('-').next().and_then(|time| time.parse::<u64>().ok());
    let since_first = began(own).unwrap_or(0).saturating_sub(began(first).unwrap_or(0));
    !asked.has_run || began(other) > began(first) || idle_seconds < since_first / 1_000
}

/// What is known of rows that an earlier run of the resume chain has staged.
#[derive(Debug, Clone, Copy)]
pub struct Staged {
    /// How the job compares with the one that has staged them.
    pub compared: Compared,
    /// Whether they are cut into chunks by rules that this program knows.
    pub known_rules: bool,
    /// Whether they were looked up in what there is now.
    pub same_references: bool,
    /// Whether the files that they are from are as they were, and no others, if the rows are visible.
    pub same_files: bool,
}

impl Staged {
    /// Whether this run only has to stage the rest.
    pub fn can_be_used(self) -> bool {
        self.compared == Compared::Same && self.known_rules && self.same_references && self.same_files
    }
}

/// What the ledger of a sink has of the load that this run resumes.
#[derive(Debug, Clone, Copy)]
pub struct Trace {
    /// Nothing.
    pub is_empty: bool,
    /// Everything.
    pub is_complete: bool,
}

/// Refuses to resume the chain `first`, which has made `rows` rows visible, if the ledgers have no record of them.
pub fn rows_are_known(first: &str, rows: u64, traces: &[Trace]) -> Result<()> {
    let some_empty = traces.iter().any(|trace| trace.is_empty);
    let all_empty = traces.iter().all(|trace| trace.is_empty);
    // If one of several is complete, all had entries: one without was forgotten.
    let forgotten = all_empty || (some_empty && traces.iter().any(|trace| trace.is_complete));
    match rows > 0 && !traces.is_empty() && forgotten {
        true => Err(refusals::is_forgotten(first, rows)),
        false => Ok(()),
    }
}

//! Loads of incremental sources under other values of `--set`: each set of values has loads of its own, so what others
//! have loaded is new to a set that comes for the first time. This finds them; `run/begin.rs` warns of them.

use std::collections::BTreeMap;

use millstream_core::Result;
use millstream_core::sink::{LoadContext, WrittenChunks};
use millstream_job::SinkStep;
use millstream_state::JobKey;

use super::ResumePoint;

/// The load of a sink, in runs of the same job file with other values of `--set`.
pub struct OtherValues {
    /// What is noted of it.
    pub written: WrittenChunks,
    /// How the values differ, in words; `None` if the run history does not know them.
    pub difference: Option<String>,
}

impl ResumePoint {
    /// What `sink` has loaded under other values of `--set`, if it has loaded nothing under those of this run. Nothing
    /// where that is meant: in a series of `--for`, with `--restart`, in a replay.
    pub async fn other_values(&self, sink: &SinkStep, context: &LoadContext) -> Result<Vec<OtherValues>> {
        let asked = self.asked();
        let is_meant = asked.replay || asked.restart || self.options.series.is_some();
        let has_run = self.history.as_ref().map(|history| history.last(&self.job)).transpose()?.flatten().is_some();
        if is_meant || has_run || !sink.sink.adds_rows() {
            return Ok(Vec::new());
        }
        let names = self.names(sink);
        let known = sink.sink.known_loads(context.clone()).await?;
        let mut others = Vec::new();
        for load in known.iter().map(|known| known.load.as_str()) {
            if let Some(job) = names.other_job(load).filter(|job| self.job.is_of_file(job)) {
                let written = sink.sink.noted(load, context.clone()).await?;
                others.push(OtherValues { written, difference: self.difference(job)? });
            }
        }
        let is_new = others.is_empty() || sink.sink.noted(&names.incremental(), context.clone()).await?.is_empty();
        Ok(if is_new { others } else { Vec::new() })
    }

    /// How the values of the job whose key has the text `job` differ from those of this run.
    fn difference(&self, job: &str) -> Result<Option<String>> {
        if job == self.job.path {
            return Ok(Some(difference(&self.job.variables, "")));
        }
        let runs = self.history.as_ref().map(|history| history.list(Some(&self.job.path), u64::MAX)).transpose()?;
        let mut keys = runs.into_iter().flatten().map(|run| JobKey { path: run.job, variables: run.variables });
        Ok(keys.find(|key| key.text() == job).map(|key| difference(&self.job.variables, &key.variables)))
    }
}

/// How the values `others` differed from `own`, both as the run history has them. The values themselves are not shown:
/// they may be long, or confidential.
fn difference(own: &str, others: &str) -> String {
    let values = |variables: &str| -> BTreeMap<String, String> {
        let pairs = variables.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (own, others) = (values(own), values(others));
    let mut names: Vec<&String> = own.keys().chain(others.keys()).collect();
    names.sort();
    names.dedup();
    let of = |name: &String| match (own.get(name), others.get(name)) {
        (Some(_), None) => Some(format!("{name} was not set")),
        (None, Some(_)) => Some(format!("{name} was set")),
        (now, before) => (now != before).then(|| format!("{name} was another")),
    };
    names.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn names_say_how_values_differ() {
        assert_eq!(difference("A=1", ""), "A was not set");
        assert_eq!(difference("", "A=1"), "A was set");
        assert_eq!(difference("A=1\nB=2\nC=3", "A=1\nB=3\nD=4"), "B was another, C was not set, D was set");
    }
}

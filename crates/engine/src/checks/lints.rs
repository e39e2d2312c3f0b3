//! Checks that the rest of a job makes impossible, whatever its rows.

use millstream_job::{CheckSeverity, Job, Lint};

/// Lints of checks that are never evaluated, and of sinks that show rows before checks are.
pub fn lints(job: &Job) -> Vec<Lint> {
    unused(job).chain(shown_early(job)).collect()
}

/// An entry whose rows no sink wants is not computed.
fn unused(job: &Job) -> impl Iterator<Item = Lint> {
    let sources = job.sources.iter().map(|step| (&step.name, &step.checks));
    let transforms = job.transforms.iter().map(|step| (&step.name, &step.checks));
    let is_read = |name: &str| job.sinks.iter().any(|sink| job.reads(&sink.from.value, name));
    let unused = sources.chain(transforms).filter(move |(name, _)| !is_read(&name.value));
    unused.filter_map(|(name, checks)| {
        let what = format!("no sink reads `{}`, so its checks are never evaluated", name.value);
        let hint = "let a sink read it; `write: discard` is one that keeps nothing";
        Some(job.text.error(checks.first()?.span, what).hint(hint))
    })
}

/// What has gone to standard output or to a program cannot be taken back.
fn shown_early(job: &Job) -> impl Iterator<Item = Lint> {
    let failing = job.checks().map(|(_, check)| check).find(|check| check.severity == CheckSeverity::Fail);
    let early = job.sinks.iter().filter(|sink| sink.sink.shows_rows_early());
    failing.into_iter().flat_map(move |check| {
        early.clone().map(|sink| {
            let what = format!("the check may fail the run, and `{}` shows its rows before that", sink.name.value);
            let hint = "use `severity: warn` or `severity: reject`, or write to a file and publish it from there";
            job.text.error(check.span, what).hint(hint)
        })
    })
}

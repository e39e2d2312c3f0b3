//! Any text as the file of a sequence: no panic, bounded memory, and either a sequence or lints whose locations are in
//! the file. Whatever it names is there, and sound.

use std::collections::BTreeMap;
use std::io;

use millstream_job::Lint;
use millstream_job::sequence::{NamedFiles, NamedJob, SequenceOptions, StepState, load};

use crate::job::{LONGEST, MEMORY_LIMIT, REGISTRY, tables};
use crate::memory;

struct Files;

impl NamedFiles for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match path.len() % 3 {
            0 => Err(io::ErrorKind::NotFound.into()),
            1 => Ok(b"steps: {a: {command: [a, '${A}']}}\n".to_vec()),
            _ => Ok(b"sources:\n".to_vec()),
        }
    }

    fn job_lints(&self, _: &NamedJob<'_>) -> Vec<Lint> {
        Vec::new()
    }
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = match millstream_job::decode("nightly.yaml", data) {
        Ok(text) if text.len() <= LONGEST => text,
        _ => return,
    };
    let (loaded, held) = memory::peak_of(|| {
        let options = SequenceOptions {
            set: &BTreeMap::new(),
            environment: &|name| (name == "DAY").then(|| "${DAY}: {x".to_owned()),
            references: &tables,
            columns: &|_| Vec::new(),
            schedule: &|_| Vec::new(),
            pools: None,
            files: &Files,
            running: false,
            now: 0,
        };
        load("nightly.yaml", text, &REGISTRY, &options)
    });
    assert!(held < MEMORY_LIMIT, "{held} bytes held for {} of text", text.len());
    assert_eq!(loaded.sequence.is_none(), loaded.lints.iter().any(Lint::is_error));
    for lint in loaded.lints.iter().filter(|lint| lint.path == "nightly.yaml") {
        let line = loaded.text.line(lint.line).chars().count();
        assert!(lint.column <= line + 1 && !lint.what.is_empty(), "{lint:?}");
    }
    if let Some(sequence) = loaded.sequence {
        // Decisions come to an end: whatever starts, succeeds.
        let mut states = vec![StepState::Waiting; sequence.steps.len()];
        for _ in 0..=states.len() {
            let decision = sequence.decide(&states);
            decision.start.iter().chain(&decision.ask).for_each(|&step| states[step] = StepState::Succeeded);
            decision.skip.iter().for_each(|&step| states[step] = StepState::Skipped);
            decision.not_run.iter().for_each(|&step| states[step] = StepState::NotRun);
        }
        assert!(states.iter().all(|state| state.is_over()), "{states:?}");
    }
}

//! Tests of files that workers of a cluster hand over: only what is adopted becomes visible, and nothing else stays.

use std::sync::Arc;

use millstream_core::sink::{Kept, Load, LoadContext, Sink, WorkerPart};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bucket_tests::Bench;
use super::tests::{csv_sink, names, read_file, visible};
use crate::conformance::{context, listing, write};

const TARGET: &str = "a.csv";

/// The parts of a load: its own context, and those of workers.
struct Parts(LoadContext);

impl Parts {
    fn of_attempt(&self, attempt: u64) -> LoadContext {
        LoadContext {
            worker: Some(WorkerPart { worker: attempt, attempt, at_once: 1, kept: Kept::default() }),
            ..self.0.clone()
        }
    }

    /// What a worker hands over that has written so many rows.
    async fn handed(&self, sink: &Arc<dyn Sink>, attempt: u64, rows: i64) -> Value {
        let load = sink.begin(self.of_attempt(attempt)).await.expect("it joins");
        write(sink, &load, 2, rows, 100).await.expect("written");
        let handed = load.hand_over().await.expect("handed over");
        drop(load);
        handed
    }
}

/// Two attempts of workers, one of which counts, one that is dropped, and rows of the run itself.
async fn adopted(sink: &Arc<dyn Sink>) -> Arc<dyn Load> {
    let parts = Parts(context(2));
    let run = sink.begin(parts.0.clone()).await.expect("it begins");
    run.begin_for_workers().await.expect("it is seen");
    let [counts, late] = [parts.handed(sink, 1, 500).await, parts.handed(sink, 2, 700).await];
    let dropped = sink.begin(parts.of_attempt(3)).await.expect("it joins");
    write(sink, &dropped, 2, 900, 100).await.expect("written");
    drop(dropped);
    run.adopt(counts).await.expect("it is there");
    run.discard(late).await;
    write(sink, &run, 2, 300, 100).await.expect("written");
    run.prepare().await.expect("prepared");
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_folder_only_adopted_files_become_visible() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join(TARGET), json!({"roll": {"bytes": "4kB"}}));
    let run = adopted(&sink).await;
    assert!(names(folder.path()).is_empty(), "before the commit");
    run.commit().await.expect("committed");
    let found = names(folder.path());
    assert!(found.iter().any(|name| name == "a-000010000.csv") && found.iter().any(|name| name == "a-000020000.csv"));
    assert!(
        found.len() > 4 && found.iter().all(|name| name.starts_with("a-00001000") || name.starts_with("a-00002000"))
    );
    assert_eq!(visible(folder.path()).iter().flat_map(|path| read_file(path)).count(), 800);
    assert_eq!(listing(folder.path()).len(), found.len() + 1, "and the list");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_bucket_only_adopted_objects_become_visible() {
    let bench = Bench::new();
    let sink = bench.sink(TARGET, json!({"roll": {"bytes": "4kB"}}));
    let run = adopted(&sink).await;
    assert!(bench.names().is_empty(), "before the commit");
    run.commit().await.expect("committed");
    assert_eq!(bench.rows().len(), 800);
    assert!(bench.settled().await, "{} uploads are left", bench.uploads());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_takes_adopted_files_with_it() {
    let (folder, bench) = (TempDir::new().expect("a folder"), Bench::new());
    let settings = json!({"roll": {"bytes": "4kB"}});
    for sink in [csv_sink(&folder.path().join(TARGET), settings.clone()), bench.sink(TARGET, settings)] {
        adopted(&sink).await.abort().await;
    }
    assert!(listing(folder.path()).is_empty(), "{:?}", listing(folder.path()));
    assert!(bench.names().is_empty() && bench.settled().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_another_run_cannot_join() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join(TARGET), json!({"roll": {"bytes": "4kB"}}));
    let [dead, next] = [Parts(context(2)), Parts(context(2))];
    let joined = sink.begin(dead.of_attempt(1)).await.err().expect("nothing has begun");
    assert!(joined.hint_text().is_some_and(|hint| hint.contains("the same one on all machines")), "{joined}");
    let run = sink.begin(next.0.clone()).await.expect("it begins");
    run.begin_for_workers().await.expect("it is seen");
    let joined = sink.begin(dead.of_attempt(1)).await.err().expect("it is of another run");
    assert!(joined.cause_text().is_some_and(|cause| cause.ends_with("run is of another run")), "{joined}");
    run.abort().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_what_a_worker_has_written_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join(TARGET), json!({"roll": {"bytes": "1MB"}}));
    let parts = Parts(context(2));
    let run = sink.begin(parts.0.clone()).await.expect("it begins");
    run.begin_for_workers().await.expect("it is seen");
    let handed = parts.handed(&sink, 1, 500).await;
    let name = handed["files"][0]["name"].as_str().expect("a name").to_owned();
    let path = folder.path().join(".a.csv.tmp").join(name);
    fs_err::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(7)).expect("it is ours");
    let error = run.adopt(handed).await.expect_err("it is cut");
    assert!(error.cause_text().is_some_and(|cause| cause.starts_with("it has 7 bytes, and not ")), "{error}");
    run.abort().await;
}

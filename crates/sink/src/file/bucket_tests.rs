//! Tests of files in a bucket: the conformance suite against a real S3 server, and every failure of a store.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::sink::{Load, LoadContext, Sink, SinkParts};
use millstream_core::source::SourceContext;
use millstream_core::store::Store;
use millstream_core::{Budget, ErrorKind};
use millstream_testkit::{KEY, S3Server, SECRET, Trouble};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bucket::Bucket;
use super::build;
use super::destination::{Destination, TargetFiles};
use super::naming::Target;
use super::plan::PlannedFile;
use super::spec::FileSpec;
use super::tests::{read_file, visible};
use crate::conformance::{self, Csv, Gzip, Parquet, Subject, context, listing, rows, run, shown_rows, suite, write};

/// A bucket that is the folder `bucket` of a folder.
pub(crate) struct Bench {
    folder: TempDir,
    server: S3Server,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench::of(false)
    }

    fn of(signed: bool) -> Self {
        let folder = TempDir::new().expect("a folder");
        let server = serve(folder.path(), signed);
        Bench { folder, server }
    }

    pub(crate) fn sink(&self, target: &str, settings: Value) -> Arc<dyn Sink> {
        sink(target, settings, store(&self.server, json!({"anonymous": true})))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let bucket = self.folder.path().join("bucket");
        let below = |path: &PathBuf| path.strip_prefix(&bucket).expect("below the folder").display().to_string();
        visible(&bucket).iter().map(below).collect()
    }

    pub(crate) fn rows(&self) -> Vec<String> {
        let mut rows: Vec<String> =
            visible(&self.folder.path().join("bucket")).iter().flat_map(|path| read_file(path)).collect();
        rows.sort();
        rows
    }

    /// Uploads that are neither complete nor aborted.
    pub(crate) fn uploads(&self) -> usize {
        let names = fs_err::read_dir(self.folder.path()).expect("a folder");
        let names = names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(".upload-") || name.contains(".part-")).count()
    }

    /// Waits until the uploads of a dropped load are aborted.
    pub(crate) async fn settled(&self) -> bool {
        for _ in 0..6_000 {
            if self.uploads() == 0 {
                return true;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        false
    }

    fn list(&self) -> PathBuf {
        self.folder.path().join("bucket/.a.csv.millstream.json")
    }
}

pub(crate) fn serve(folder: &Path, signed: bool) -> S3Server {
    fs_err::create_dir_all(folder.join("bucket")).expect("a folder");
    S3Server::start(folder, signed)
}

pub(crate) fn store(server: &S3Server, more: Value) -> Arc<dyn Store> {
    let mut settings =
        json!({"endpoint": server.url(), "region": "us-east-1", "allow_http": true, "max_backoff": "20ms"});
    if let (Some(all), Value::Object(more)) = (settings.as_object_mut(), more) {
        all.extend(more);
    }
    let entry = millstream_source::STORES.iter().find(|entry| entry.spec.name == "s3").expect("a store");
    (entry.build)(&settings).expect("valid settings")
}

pub(crate) fn sink(target: &str, settings: Value, store: Arc<dyn Store>) -> Arc<dyn Sink> {
    let parts = SinkParts {
        target: format!("s3://bucket/{target}"),
        format: Some(if target.ends_with(".parquet") { Arc::new(Parquet(4096)) } else { Arc::new(Csv) }),
        codec: if target.ends_with(".gz") { Some(Arc::new(Gzip)) } else { None },
        store: Some(store),
    };
    build(&settings, parts).expect("valid settings")
}

pub(crate) fn network() -> SourceContext {
    SourceContext {
        io: tokio::runtime::Handle::current(),
        budget: Budget::new(64 << 20),
        cache: Arc::default(),
        programs: Arc::default(),
        pace: Arc::default(),
    }
}

fn expected(count: i64) -> Vec<String> {
    let mut rows = shown_rows(&rows(0..count));
    rows.sort();
    rows
}

/// A file sink into a bucket, with a server for each folder.
struct Objects {
    target: &'static str,
    settings: Value,
    servers: Mutex<HashMap<PathBuf, S3Server>>,
}

impl Subject for Objects {
    fn sink(&self, folder: &Path) -> Arc<dyn Sink> {
        let mut servers = self.servers.lock().expect("no panic");
        let server = servers.entry(folder.to_owned()).or_insert_with(|| serve(folder, false));
        sink(self.target, self.settings.clone(), store(server, json!({"anonymous": true})))
    }

    fn read(&self, folder: &Path) -> Vec<String> {
        let bucket = folder.join("bucket");
        if !bucket.exists() {
            return Vec::new();
        }
        visible(&bucket).iter().flat_map(|path| read_file(path)).collect()
    }

    /// The content of the bucket, and parts that were not aborted.
    fn listing(&self, folder: &Path) -> BTreeSet<PathBuf> {
        let parts = listing(folder).into_iter().filter(|path| path.to_string_lossy().contains(".part-"));
        parts.chain(listing(&folder.join("bucket"))).collect()
    }
}

/// The subjects of the suite by name.
pub(crate) fn subject(name: &str) -> Option<Box<dyn Subject>> {
    let (target, settings) = match name {
        "bucket" => ("a.csv", json!({})),
        "bucket-parquet" => ("new/folder/a.parquet", json!({})),
        "bucket-shards" => ("a-{shard}.csv.gz", json!({"shards": {"count": 3, "hash": "id"}})),
        "bucket-split-few" => ("name={value}/a.csv.gz", json!({"split": "name", "max_open": 2, "mode": "replace"})),
        "bucket-roll-bytes" => ("a.csv.gz", json!({"roll": {"bytes": "40kB"}})),
        _ => return None,
    };
    Some(Box::new(Objects { target, settings, servers: Mutex::default() }))
}

macro_rules! suites {
    ($($test:ident $name:literal)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let subject = subject($name).expect("a subject of that name");
                suite($name, subject.as_ref()).await;
            }
        )*
    };
}

suites! {
    one_object_conforms "bucket"
    one_parquet_object_conforms "bucket-parquet"
    shards_conform "bucket-shards"
    a_split_with_few_open_files_conforms "bucket-split-few"
    rolling_by_bytes_conforms "bucket-roll-bytes"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_set_leaves_no_objects_of_the_larger_one() {
    let bench = Bench::new();
    let shards = |count: u32| json!({"shards": {"count": count, "mod": "id"}});
    fs_err::write(bench.folder.path().join("bucket/a-099.csv"), "id,name,amount,day\n").expect("a stranger's file");
    run(&bench.sink("a.csv", shards(5)), 2, 100, 10).await.expect("five shards");
    run(&bench.sink("a.csv", shards(2)), 2, 100, 10).await.expect("two shards");
    assert_eq!(bench.names(), ["a-000.csv", "a-001.csv", "a-099.csv"]);
    let list: Value = serde_json::from_slice(&fs_err::read(bench.list()).expect("a list")).expect("json");
    assert_eq!(
        (list["files"].as_array().map(Vec::len), list.get("unfinished"), list.get("stale")),
        (Some(2), None, None)
    );
    run(&bench.sink("a.csv", json!({})), 2, 100, 10).await.expect("one file");
    assert_eq!(bench.names(), ["a-099.csv", "a.csv"]);
    assert!(!bench.list().exists(), "no list stays beside a single object");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_slow_or_breaks_is_tried_again() {
    let bench = Bench::new();
    let asked = AtomicUsize::new(0);
    bench.server.trouble(move |method, path| match asked.fetch_add(1, Ordering::SeqCst) % 4 {
        _ if !path.contains("pload") => None,
        0 => Some(Trouble::Status(503)),
        2 if method == "PUT" => Some(Trouble::Close),
        _ => None,
    });
    run(&bench.sink("a.csv", json!({"shards": {"count": 3, "mod": "id"}})), 2, 3000, 100).await.expect("it passes");
    assert_eq!(bench.rows(), expected(3000));
    assert_eq!(bench.uploads(), 0);
}

/// Begins, writes and prepares, and rolls back if something fails.
async fn rolled_back(sink: &Arc<dyn Sink>) -> millstream_core::Error {
    let load = sink.begin(context(2)).await.expect("it begins");
    let written = write(sink, &load, 2, 3000, 100).await;
    let prepared = match written {
        Ok(()) => load.prepare().await,
        failed => failed,
    };
    load.abort().await;
    prepared.expect_err("it cannot be brought over")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_brought_over_leaves_nothing() {
    for (trouble, kind) in [(Trouble::Close, ErrorKind::Transient), (Trouble::Status(403), ErrorKind::Refused)] {
        let bench = Bench::new();
        let sink = bench.sink("a.csv", json!({"shards": {"count": 3, "mod": "id"}}));
        run(&sink, 1, 10, 10).await.expect("a run before");
        bench.server.trouble(move |_, path| path.contains("partNumber=").then_some(trouble));
        let error = rolled_back(&sink).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.location().uri.as_deref().is_some_and(|uri| uri.starts_with("s3://bucket/a-00")), "{error:?}");
        assert_eq!(bench.rows(), expected(10), "the earlier result stays");
        assert_eq!(bench.uploads(), 0, "{trouble:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_begins_while_the_load_is_rolled_back_is_aborted() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"shards": {"count": 3, "mod": "id"}}));
    bench.server.trouble(|method, path| match () {
        () if path.contains("partNumber=") => Some(Trouble::Status(403)),
        () if method == "POST" && path.contains("a-002") => Some(Trouble::Late(Duration::from_millis(300))),
        () => None,
    });
    rolled_back(&sink).await;
    let begun =
        bench.server.requests().iter().filter(|asked| asked.starts_with("POST") && asked.contains("?uploads")).count();
    assert_eq!((begun, bench.uploads()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_reported_before_there_are_rows() {
    let bench = Bench::of(true);
    let reached = async |settings: Value, target: &str, own: Value| {
        let sink = sink(target, own, store(&bench.server, settings));
        let faults = sink.reach(&network(), None).await.err().unwrap_or_default();
        let told = |error: &millstream_core::Error| format!("{} {:?}", error.what(), error.cause_text());
        faults.iter().map(told).collect::<Vec<_>>().join("; ")
    };
    let secret = |text: &str| {
        let path = bench.folder.path().join("secret");
        fs_err::write(&path, text).expect("a file");
        json!({"access_key_id": KEY, "secret_access_key": {"secret": format!("file:{}", path.display())}})
    };
    let wrong = reached(secret("wrong"), "a.csv", json!({})).await;
    assert!(wrong.contains("403") && wrong.contains("SignatureDoesNotMatch"), "{wrong}");
    assert!(!bench.server.requests().is_empty() && !wrong.contains("wrong\""), "{wrong}");
    let kept = json!({"overwrite": false});
    assert_eq!(reached(secret(SECRET), "a.csv", kept.clone()).await, "");
    run(&sink("a.csv", json!({}), store(&bench.server, secret(SECRET))), 1, 10, 10).await.expect("it runs");
    let there = reached(secret(SECRET), "a.csv", kept.clone()).await;
    assert_eq!(there, "s3://bucket/a.csv exists already None");
    assert_eq!(reached(secret(SECRET), "a.csv", json!({})).await, "");
    let few = json!({"split": "name"});
    run(&sink("b.csv", few.clone(), store(&bench.server, secret(SECRET))), 1, 10, 10).await.expect("it runs");
    let there = reached(secret(SECRET), "b.csv", json!({"split": "name", "overwrite": false})).await;
    let names = "s3://bucket/.b.csv.millstream.json names what is there: 7 files, such as b-%5F_null__.csv";
    assert_eq!(
        there,
        format!("files of an earlier run exist already in s3://bucket/b-{{value}}.csv {:?}", Some(names))
    );
    let late = sink("b.csv", json!({"split": "name", "overwrite": false}), store(&bench.server, secret(SECRET)));
    fs_err::remove_file(bench.folder.path().join("bucket/.b.csv.millstream.json")).expect("the list");
    let error = run(&late, 1, 10, 10).await.expect_err("there are such objects");
    assert!(error.what().ends_with(" exists already"), "{error}");
    assert!(bench.settled().await, "asking leaves nothing");
    fs_err::write(bench.list(), "{}").expect("a file");
    let damaged = reached(secret(SECRET), "a.csv", json!({})).await;
    assert!(damaged.contains("s3://bucket/.a.csv.millstream.json, is damaged"), "{damaged}");
    fs_err::remove_file(bench.list()).expect("a file");
    bench.server.trouble(|method, _| (method == "POST").then_some(Trouble::Status(403)));
    let denied = reached(secret(SECRET), "a.csv", json!({})).await;
    assert!(denied.starts_with("the server answers 403 Forbidden"), "{denied}");
}

/// Two sets, the second of which stops in the middle of its commit: some objects are complete, and others are not.
async fn half_committed(bench: &Bench) {
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 100}}));
    run(&sink, 1, 1200, 100).await.expect("12 files");
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 90}}));
    let load: Arc<dyn Load> = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 540, 100).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    let asked = AtomicUsize::new(0);
    bench.server.trouble(move |method, path| {
        let completes = method == "POST" && path.contains("uploadId=");
        (completes && asked.fetch_add(1, Ordering::SeqCst) >= 3).then_some(Trouble::Close)
    });
    let error = load.commit().await.expect_err("the store is gone");
    assert!(error.hint_text().is_some_and(|hint| hint.starts_with("the run is committed")), "{error:?}");
    load.abort().await;
    bench.server.trouble(|_, _| None);
    assert_eq!(bench.names().len(), 12, "new objects stand beside old ones");
    assert!(bench.uploads() > 0, "what is committed is not given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_cut_short_is_finished_by_the_next_run() {
    let bench = Bench::new();
    half_committed(&bench).await;
    // Beginning is enough: this run is rolled back.
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 100}}));
    let load = sink.begin(context(1)).await.expect("it begins");
    load.abort().await;
    assert_eq!((bench.names().len(), bench.uploads()), (6, 0));
    assert_eq!(bench.rows(), expected(540));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cannot_be_finished_any_more_is_replaced_by_the_next_run() {
    let bench = Bench::new();
    half_committed(&bench).await;
    // A rule of the bucket has removed what was never completed.
    for entry in fs_err::read_dir(bench.folder.path()).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with(".upload") {
            fs_err::remove_file(entry.path()).expect("a file");
        }
    }
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 100}}));
    let load = sink.begin(context(1)).await.expect("it begins");
    load.abort().await;
    assert_eq!(bench.names().len(), 12, "nothing is removed before there is something better");
    run(&sink, 1, 300, 100).await.expect("it runs");
    assert_eq!(bench.names().len(), 3);
    assert_eq!(bench.rows(), expected(300));
}

/// From here on the first attempt to complete an object fails transiently, and then the upload does not exist.
fn completes_nothing(bench: &Bench) {
    let asked = Mutex::new(BTreeSet::new());
    bench.server.trouble(move |method, path| {
        let completes = method == "POST" && path.contains("uploadId=");
        let first = || asked.lock().expect("no test failed").insert(path.to_owned());
        completes.then(|| Trouble::Status(if first() { 503 } else { 404 }))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_object_is_not_taken_for_a_new_one_of_its_size() {
    // Alone.
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({}));
    run(&sink, 1, 100, 10).await.expect("it runs");
    completes_nothing(&bench);
    run(&sink, 1, 100, 10).await.expect_err("nothing was completed");
    // As one of a set, whose commit was cut short.
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 100}}));
    run(&sink, 1, 300, 100).await.expect("it runs");
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 300, 100).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    bench.server.trouble(|method, path| (method == "POST" && path.contains("uploadId=")).then_some(Trouble::Close));
    load.commit().await.expect_err("the store is gone");
    completes_nothing(&bench);
    sink.begin(context(1)).await.expect("it begins").abort().await;
    let list = fs_err::read_to_string(bench.list()).expect("a list");
    assert!(list.contains("unfinished"), "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_runs_at_once_one_is_reported() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"split": "name", "mode": "replace"}));
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 100, 10).await.expect("it writes");
    run(&sink, 1, 70, 10).await.expect("another is quicker");
    let error = load.prepare().await.expect_err("its list is there");
    assert_eq!(error.what(), "another run has written s3://bucket/a-{value}.csv in the meantime");
    load.abort().await;
    assert_eq!((bench.rows(), bench.uploads()), (expected(70), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_load_gives_its_uploads_up() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"roll": {"rows": 100}}));
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 300, 100).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    assert!(bench.uploads() > 0);
    drop(load);
    assert!(bench.settled().await, "{} files of uploads are left", bench.uploads());
}

#[tokio::test(flavor = "multi_thread")]
async fn open_objects_hold_a_part_of_the_budget_and_the_rest_goes_to_scratch() {
    const COUNT: usize = 3;
    let bench = Bench::new();
    let spec = FileSpec { split: Some("x".into()), ..FileSpec::default() };
    let target_files = TargetFiles::new(Target::new("s3://bucket/a-{value}", &spec, true).expect("a target"), &spec);
    let context = conformance::context(1);
    context.budget.set_limit(6 << 20);
    let bucket = Bucket(store(&bench.server, json!({"anonymous": true})));
    let staging = bucket.begin(&target_files, &context).await.expect("it begins");
    // Pieces of odd sizes, in turns.
    let piece: Vec<u8> = (0..700_001_usize).map(|index| ((index * index) >> 7) as u8).collect();
    let mut drafts = Vec::new();
    for number in 0..COUNT {
        drafts.push(staging.file(number, &format!("a-{number}")).await.expect("it begins"));
    }
    for _ in 0..30 {
        for draft in &mut drafts {
            draft.append(&piece).await.expect("it takes bytes");
        }
    }
    for draft in drafts {
        draft.close().await.expect("it closes");
    }
    let file = |number| PlannedFile {
        staged: Some(number),
        path: format!("a-{number}"),
        bytes: 30 * 700_001,
        ..PlannedFile::default()
    };
    staging.prepare((0..COUNT).map(file).collect()).await.expect("it prepares");
    staging.commit().await.expect("it commits");
    for number in 0..COUNT {
        let content = fs_err::read(bench.folder.path().join(format!("bucket/a-{number}"))).expect("an object");
        assert!(content == piece.repeat(30), "object {number}");
    }
    assert!(context.step.snapshot().spilled_bytes > 10 << 20, "{:?}", context.step.snapshot());
    assert!(context.budget.peak() < 28 << 20, "{} bytes, of 63 MB", context.budget.peak());
    drop(staging);
    assert_eq!(context.budget.used(), 0);
}

/// A load of `count` rows that is prepared.
async fn prepared(sink: &Arc<dyn Sink>, context: LoadContext, count: i64) -> Arc<dyn Load> {
    let load = sink.begin(context).await.expect("it begins");
    write(sink, &load, 1, count, 10).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    load
}

fn marked(marker: &str) -> LoadContext {
    LoadContext { marker: Some(marker.to_owned()), ..context(1) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_runs_that_commit_at_once_one_is_refused() {
    for mode in ["replace", "partitions", "append"] {
        for there in [false, true] {
            let bench = Bench::new();
            let sink = bench.sink("a.csv", json!({"split": "name", "mode": mode}));
            if there {
                run(&sink, 1, 10, 10).await.expect("a run before");
            }
            let (one, two) = (prepared(&sink, context(1), 100).await, prepared(&sink, context(1), 70).await);
            one.commit().await.expect("the first");
            let rows = bench.rows();
            let error = two.commit().await.expect_err("the list is another");
            assert_eq!(error.what(), format!("another run has written {} in the meantime", sink.target()));
            two.abort().await;
            assert_eq!((bench.rows(), bench.uploads()), (rows, 0), "{mode}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_comes_to_its_end_keeps_no_other_from_committing() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"mode": "append"}));
    prepared(&sink, marked("one"), 10).await.commit().await.expect("the first");
    let known = async || -> Vec<String> {
        let known = sink.known_loads(context(1)).await.expect("a list");
        known.into_iter().map(|known| known.load).collect()
    };
    assert_eq!(known().await, ["one"]);
    let two = prepared(&sink, marked("two"), 10).await;
    sink.forget_marker("one", context(1), false).await.expect("the first is at its end");
    two.commit().await.expect("the second");
    assert_eq!(known().await, ["two"]);
    // It is already committed: nothing is written.
    let again = prepared(&sink, marked("two"), 10).await;
    assert!(again.is_there());
    again.commit().await.expect("nothing to do");
    sink.forget_marker("two", context(1), true).await.expect("it has rows, and so stays");
    assert_eq!((known().await, bench.rows().len(), bench.names().len()), (vec!["two".to_owned()], 20, 2));
}

/// Commits a load whose commit the store interrupts and cannot finish.
async fn lose(bench: &Bench, load: &Arc<dyn Load>, complete: usize) {
    let asked = AtomicUsize::new(0);
    bench.server.trouble(move |method, path| {
        let completes = method == "POST" && path.contains("uploadId=");
        (completes && asked.fetch_add(1, Ordering::SeqCst) >= complete).then_some(Trouble::Close)
    });
    load.commit().await.expect_err("the store is gone");
    load.abort().await;
    bench.server.trouble(|_, _| None);
    for entry in fs_err::read_dir(bench.folder.path()).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with(".upload") {
            fs_err::remove_file(entry.path()).expect("a file");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_objects_the_store_has_lost_is_as_if_it_had_never_been() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"split": "name", "mode": "append"}));
    prepared(&sink, marked("one"), 100).await.commit().await.expect("a run before");
    let lost = marked("two");
    let load = prepared(&sink, lost.clone(), 100).await;
    lose(&bench, &load, 2).await;
    assert!(bench.names().len() > 7, "some of it can be seen");
    let again = sink.begin(lost).await.expect("it begins");
    assert!(!again.is_there(), "its rows are not there");
    assert_eq!((bench.rows(), bench.names().len()), (expected(100), 7));
    write(&sink, &again, 1, 100, 10).await.expect("it writes");
    again.prepare().await.expect("it prepares");
    again.commit().await.expect("it commits");
    assert_eq!((bench.rows().len(), bench.names().len()), (200, 14));
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_the_store_has_lost_are_written_again_or_reported() {
    let bench = Bench::new();
    let sink = bench.sink("a-{value}.csv", json!({"split": "name", "mode": "partitions"}));
    prepared(&sink, context(1), 200).await.commit().await.expect("all values");
    let load = prepared(&sink, context(1), 100).await;
    lose(&bench, &load, 2).await;
    // One value is not enough, though it is written.
    let few = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &few, 1, 1, 10).await.expect("it writes");
    let error = few.prepare().await.expect_err("others are not complete");
    assert!(error.what().contains(" are not complete"), "{error}");
    few.abort().await;
    let adding = bench.sink("a-{value}.csv", json!({"split": "name", "mode": "append"}));
    let error = adding.begin(context(1)).await.err().expect("it cannot add to them");
    assert!(error.what().contains(" are not complete"), "{error}");
    prepared(&sink, context(1), 100).await.commit().await.expect("all of them again");
    assert_eq!(bench.rows(), expected(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_runs_name_that_is_not_listed_stays() {
    let bench = Bench::new();
    let sink = bench.sink("a.csv", json!({"mode": "append"}));
    let first = context(1);
    prepared(&sink, first.clone(), 10).await.commit().await.expect("the first");
    fs_err::remove_file(bench.list()).expect("the list");
    let resumed = LoadContext { first: first.run, ..context(1) };
    let load = sink.begin(resumed).await.expect("it begins");
    write(&sink, &load, 1, 5, 10).await.expect("it writes");
    let error = load.prepare().await.expect_err("the file is there");
    assert!(error.what().ends_with(" exists already"), "{error}");
    load.abort().await;
    assert_eq!(bench.rows(), expected(10));
}

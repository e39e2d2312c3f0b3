//! Tests of epochs in files, in a folder and in a bucket of a real S3 server: each row once, whoever else has the
//! partition, and wherever a process dies.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::epochs::{EpochTarget, QueueLoad};
use millstream_core::positions::{Move, Moved, Position, Positions};
use millstream_core::queue::{Consumer, Joining, MessageId, Messages, Queue};
use millstream_core::sink::{Delivered, Delivery, LoadContext, Sink};
use millstream_core::{Error, ErrorKind, Result, clock};
use millstream_testkit::S3Server;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::in_bucket::InBucket;
use super::in_folder::InFolder;
use super::keeper::Keeper;
use super::record::{By, EpochFile, PositionRecord};
use super::writing::Writing;
use super::*;
use crate::conformance::{self, Csv, Gzip, Parquet, rows, shown_rows};
use crate::file::bucket_tests::{network, serve, sink, store};
use crate::file::build;
use crate::file::spec::FileSpec;
use crate::file::tests::{read_file, visible};

/// A queue of which only the names are asked for.
#[derive(Debug)]
struct Unread {
    is_partitioned: bool,
}

#[async_trait]
impl Queue for Unread {
    fn shown(&self) -> String {
        "kafka://b/events".into()
    }

    fn name(&self) -> String {
        "kafka events".into()
    }

    fn group(&self) -> &str {
        "g"
    }

    fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    fn shown_id(&self, id: MessageId) -> String {
        id.minor.to_string()
    }

    async fn sample(&self, _: usize, _: &Handle) -> Result<Messages> {
        Err(Error::internal("nothing is read"))
    }

    async fn join(&self, _: Joining) -> Result<Box<dyn Consumer>> {
        Err(Error::internal("nothing is read"))
    }
}

/// Where files are.
pub(super) struct Place {
    folder: TempDir,
    pub(super) server: Option<S3Server>,
    /// The name of the target: `a.csv.gz`.
    name: &'static str,
}

impl Place {
    pub(super) fn folder(name: &'static str) -> Self {
        Place { folder: TempDir::new().expect("a folder"), server: None, name }
    }

    pub(super) fn bucket(name: &'static str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let server = Some(serve(folder.path(), false));
        Place { folder, server, name }
    }

    /// Both.
    pub(super) fn all(name: &'static str) -> [Self; 2] {
        [Place::folder(name), Place::bucket(name)]
    }

    pub(super) fn root(&self) -> PathBuf {
        match self.server {
            None => self.folder.path().to_owned(),
            Some(_) => self.folder.path().join("bucket"),
        }
    }

    fn target(&self) -> String {
        self.root().join(self.name).display().to_string()
    }

    fn sink(&self) -> Arc<dyn Sink> {
        match &self.server {
            Some(server) => sink(self.name, json!({}), store(server, json!({"anonymous": true}))),
            None => {
                let parts = millstream_core::sink::SinkParts {
                    target: self.target(),
                    format: Some(if self.name.ends_with(".parquet") { Arc::new(Parquet(4096)) } else { Arc::new(Csv) }),
                    codec: if self.name.ends_with(".gz") { Some(Arc::new(Gzip)) } else { None },
                    store: None,
                };
                build(&json!({}), parts).expect("valid settings")
            }
        }
    }

    pub(super) async fn open(&self, load: &str, owner: &str, is_partitioned: bool) -> Result<EpochTarget> {
        let context = LoadContext { sink: "o".into(), ..conformance::context(1) };
        let load = queue_load(load, owner, is_partitioned);
        Ok(self.sink().epochs(&load, context).await?.expect("it takes epochs"))
    }

    /// Positions as the process `owner` opens them.
    pub(super) async fn positions(&self, owner: &str) -> Arc<dyn Positions> {
        let target = self.open(LOAD, owner, true).await.expect("it opens");
        Arc::clone(target.positions().expect("exactly once"))
    }

    /// What a process `owner` works with, so that it can die between two steps.
    pub(super) fn files(&self, owner: &str) -> Files {
        self.files_in(owner, |keeper| keeper)
    }

    /// The same, with another keeper around the real one.
    pub(super) fn files_in(&self, owner: &str, around: impl FnOnce(Arc<dyn Keeper>) -> Arc<dyn Keeper>) -> Files {
        let text = self.server.as_ref().map_or_else(|| self.target(), |_| format!("s3://bucket/{}", self.name));
        let target = Target::new(&text, &FileSpec::default(), self.server.is_some()).expect("a path");
        let keeper: Arc<dyn Keeper> = match &self.server {
            None => Arc::new(InFolder::new(&target, owner)),
            Some(server) => {
                Arc::new(InBucket::new(store(server, json!({"anonymous": true})), &target, owner, network()))
            }
        };
        let parts = millstream_core::sink::SinkParts {
            target: text,
            format: Some(Arc::new(Csv)),
            codec: Some(Arc::new(Gzip)),
            store: None,
        };
        let encoding = Encoding::new(&parts, None).expect("an encoding");
        Files::new(around(keeper), &target, &encoding, owner, conformance::context(1))
    }

    pub(super) fn names(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(self.root()).expect("below").display().to_string();
        visible(&self.root()).iter().map(name).collect()
    }

    pub(super) fn rows(&self) -> Vec<String> {
        let mut rows: Vec<String> = visible(&self.root()).iter().flat_map(|path| read_file(path)).collect();
        rows.sort();
        rows
    }

    pub(super) fn hidden(&self) -> PathBuf {
        self.root().join(format!(".{}.epochs", self.name))
    }

    /// What is in the hidden folder.
    pub(super) fn left(&self) -> Vec<String> {
        listing(&self.hidden())
    }
}

/// The names in a folder, in order.
pub(super) fn listing(folder: &Path) -> Vec<String> {
    let names = fs_err::read_dir(folder).expect("a folder");
    let names = names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The name of the load.
pub(super) const LOAD: &str = "job.yaml\no\n\nqueue";

pub(super) fn queue_load(load: &str, owner: &str, is_partitioned: bool) -> QueueLoad {
    let source: Arc<dyn Queue> = Arc::new(Unread { is_partitioned });
    QueueLoad { load: load.to_owned(), owner: owner.to_owned(), queue: source.facts(), source }
}

/// Commits rows, which move the position from its first version on, as a process that dies before the file appears.
pub(super) async fn commit_and_die(place: &Place, ids: Range<u64>) -> EpochFile {
    let dead = Arc::new(place.files("dead"));
    let path = dead.path(&format!("00003-{:020}", ids.start)).expect("a path");
    let mut writing = Writing::begin(&dead, "00003-", &path).await.expect("it begins");
    writing.write(&batch(&ids)).await.expect("it takes rows");
    let (file, _) = writing.finish().await.expect("it is staged");
    let before = dead.keeper.of(3).await.expect("it reads").expect("a record");
    let by = By { owner: "dead", attempt: "dead-1", file: Some(file.clone()) };
    let record = PositionRecord::new("events 3", 1, &state(ids.end), by);
    assert!(dead.keeper.keep(3, &record, Some(&before)).await.expect("an answer").is_some());
    file
}

pub(super) fn state(next: u64) -> String {
    format!("{{\"version\":1,\"next\":{next},\"topic\":\"t\",\"epoch\":0}}")
}

pub(super) fn one(from: Option<u64>, next: u64) -> Move {
    Move { place: "events 3".to_owned(), from, to: Some(state(next)) }
}

pub(super) fn batch(ids: &Range<u64>) -> RecordBatch {
    rows(ids.start as i64..ids.end as i64)
}

pub(super) fn expected(ids: Range<u64>) -> Vec<String> {
    let mut rows = shown_rows(&batch(&ids));
    rows.sort();
    rows
}

pub(super) async fn register(positions: &Arc<dyn Positions>, next: u64) {
    assert_eq!(positions.set(vec![one(None, next)]).await.expect("it answers"), Moved::All);
}

/// Rows on their way that move the position, which is at the first of them, from this version on.
pub(super) async fn sent(positions: &Arc<dyn Positions>, from: u64, ids: Range<u64>) -> Box<dyn Delivery> {
    let mut delivery = positions.delivery(vec![one(Some(from), ids.end)], 0).await.expect("it begins");
    delivery.write(batch(&ids)).await.expect("it takes rows");
    delivery
}

pub(super) async fn deliver(positions: &Arc<dyn Positions>, from: u64, ids: Range<u64>) -> Result<Delivered> {
    sent(positions, from, ids).await.commit().await
}

pub(super) fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

/// Version, owner and state.
pub(super) fn seen(positions: &[Position]) -> Vec<(u64, &str, String)> {
    positions.iter().map(|it| (it.version, it.owner.as_str(), it.state.clone())).collect()
}

pub(super) async fn read(positions: &Arc<dyn Positions>) -> Vec<Position> {
    positions.read().await.expect("it reads")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_epoch_makes_a_file_that_is_named_by_its_first_offset() {
    for name in ["a.csv.gz", "a.parquet"] {
        for place in Place::all(name) {
            let first = place.positions("a").await;
            assert_eq!(read(&first).await, []);
            register(&first, 7).await;
            assert_eq!(place.names(), [""; 0]);
            assert_eq!(deliver(&first, 1, 7..30).await.expect("an answer"), written(23));
            assert_eq!(deliver(&first, 2, 30..40).await.expect("an answer"), written(10));
            // A process that comes later continues where the files end.
            let second = place.positions("b").await;
            assert_eq!(seen(&read(&second).await), [(3, "a", state(40))]);
            assert_eq!(deliver(&second, 3, 40..50).await.expect("an answer"), written(10));
            let (stem, ending) = name.split_once('.').expect("an ending");
            let file = |first: u64| format!("{stem}-00003-{first:020}.{ending}");
            assert_eq!(place.names(), [file(7), file(30), file(40)]);
            assert_eq!(place.rows(), expected(7..50));
            assert_eq!(
                second.summary(10),
                format!("10 rows in 1 file {}", second.target().trim_start_matches("files "))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_without_rows_moves_the_position_and_makes_no_file() {
    for place in Place::all("a.csv.gz") {
        let positions = place.positions("a").await;
        register(&positions, 0).await;
        let delivery = positions.delivery(vec![one(Some(1), 100)], 0).await.expect("it begins");
        assert_eq!(delivery.commit().await.expect("an answer"), written(0));
        assert_eq!(deliver(&positions, 2, 100..110).await.expect("an answer"), written(10));
        assert_eq!(place.names(), [format!("a-00003-{:020}.csv.gz", 100)]);
        assert_eq!(seen(&read(&positions).await), [(3, "a", state(110))]);
    }
}

/// Two processes believe to have the partition, with epochs that end elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_one_makes_the_file() {
    for place in Place::all("a.csv.gz") {
        let (first, second) = (place.positions("a").await, place.positions("b").await);
        register(&first, 0).await;
        let mut begin = 0;
        for round in 1..=10 {
            let ends = [begin + 20 + round, begin + 30 - round];
            let (one, other) = (sent(&first, round, begin..ends[0]).await, sent(&second, round, begin..ends[1]).await);
            let (one, other) = tokio::join!(one.commit(), other.commit());
            let all = [one.expect("an answer"), other.expect("an answer")];
            let winner = all.iter().position(|one| matches!(one, Delivered::Written { .. })).expect("one");
            assert_eq!(all[winner], written(ends[winner] - begin));
            let Delivered::Moved(now) = &all[1 - winner] else { panic!("both have written: {all:?}") };
            assert_eq!(seen(now), [(round + 1, ["a", "b"][winner], state(ends[winner]))]);
            begin = ends[winner];
        }
        assert_eq!(place.rows(), expected(0..begin));
        assert_eq!(place.names().len(), 10);
    }
}

/// A process stands still within an epoch while another one makes more files, which are moved away since.
#[tokio::test(flavor = "multi_thread")]
async fn who_wakes_up_late_makes_no_file() {
    for place in Place::all("a.csv.gz") {
        let (late, other) = (place.positions("a").await, place.positions("b").await);
        register(&late, 0).await;
        let open = sent(&late, 1, 0..25).await;
        for round in 1..=5 {
            let ids = (round - 1) * 10..round * 10;
            assert_eq!(deliver(&other, round, ids).await.expect("an answer"), written(10));
        }
        assert_eq!(place.rows(), expected(0..50));
        visible(&place.root()).iter().for_each(|path| fs_err::remove_file(path).expect("it is removed"));
        // By its own knowledge it might have been the first of those that followed.
        let (Delivered::Moved(now) | Delivered::Unknown(now)) = open.commit().await.expect("an answer") else {
            panic!("it was written")
        };
        assert_eq!(seen(&now), [(6, "b", state(50))]);
        assert_eq!(place.names(), [""; 0]);
        assert_eq!(seen(&read(&late).await), [(6, "b", state(50))]);
        assert_eq!(deliver(&late, 6, 50..60).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(50..60));
    }
}

/// Whoever comes next completes what a process has committed that died before its file appeared.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_committed_appears() {
    for place in Place::all("a.csv.gz") {
        let first = place.positions("a").await;
        register(&first, 0).await;
        commit_and_die(&place, 0..10).await;
        assert_eq!(place.names(), [""; 0]);
        // One that knows nothing of that loses, and sees it when it looks.
        let Delivered::Moved(now) = deliver(&first, 1, 0..20).await.expect("an answer") else { panic!("written") };
        assert_eq!(seen(&now), [(2, "dead", state(10))]);
        assert_eq!(place.names(), [""; 0]);
        assert_eq!(seen(&read(&first).await), [(2, "dead", state(10))]);
        assert_eq!(place.rows(), expected(0..10));
        assert_eq!(deliver(&first, 2, 10..20).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(0..20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_may_be_moved_away() {
    for place in Place::all("a.csv.gz") {
        let first = place.positions("a").await;
        register(&first, 0).await;
        deliver(&first, 1, 0..10).await.expect("an answer");
        // As at the end of a run: what is noted after the file has appeared is waited for.
        first.settle().await;
        visible(&place.root()).iter().for_each(|path| fs_err::remove_file(path).expect("it is removed"));
        let second = place.positions("b").await;
        assert_eq!(seen(&read(&second).await), [(2, "a", state(10))]);
        deliver(&second, 2, 10..20).await.expect("an answer");
        assert_eq!(place.rows(), expected(10..20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_others_is_not_written_over() {
    for place in Place::all("a.csv.gz") {
        let positions = place.positions("a").await;
        register(&positions, 0).await;
        let foreign = place.root().join("a-00003-00000000000000000000.csv.gz");
        fs_err::write(&foreign, "foreign").expect("a file");
        let error = deliver(&positions, 1, 0..10).await.expect_err("it is in the way");
        assert!(error.what().contains("exists already"), "{error:?}");
        assert_eq!(fs_err::read_to_string(&foreign).expect("it reads"), "foreign");
        fs_err::remove_file(&foreign).expect("it is removed");
        assert_eq!(deliver(&positions, 1, 0..10).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(0..10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_another_load_are_refused() {
    for place in Place::all("a.csv.gz") {
        place.positions("a").await;
        let Err(error) = place.open("other.yaml\no\n\nqueue", "b", true).await else { panic!("it opens") };
        assert!(error.what().contains("belong to another load"), "{error:?}");
        let cause = error.cause_text().unwrap_or_default();
        assert!(cause.contains("the sink `o` of job.yaml") && cause.contains("kafka://b/events"), "{cause}");
    }
}

/// What is staged is removed if it is not committed, and what earlier records have left goes with the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left() {
    let place = Place::folder("a.csv.gz");
    let positions = place.positions("a").await;
    register(&positions, 0).await;
    for round in 1..=20 {
        let ids = (round - 1) * 10..round * 10;
        drop(sent(&positions, round, ids.clone()).await);
        assert_eq!(deliver(&positions, round, ids).await.expect("an answer"), written(10));
    }
    read(&positions).await;
    drop(place.positions("b").await);
    let positions = place.positions("c").await;
    read(&positions).await;
    positions.settle().await;
    assert_eq!(place.left(), ["00003", "load.json"]);
    let mut left: Vec<String> = listing(&place.hidden().join("00003"));
    left.iter_mut().for_each(|name| name.truncate(name.find(['-', '.']).unwrap_or_default()));
    assert_eq!(left, [format!("{:020}", 21), format!("{:020}", 21)], "a record, and the note of its file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_conditions_is_refused() {
    let place = Place::bucket("a.csv.gz");
    place.server.as_ref().expect("a server").ignore_conditions();
    let Err(error) = place.open("load", "a", true).await else { panic!("it opens") };
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.what().contains("ignores conditions of writing"), "{error:?}");
}

/// Of a queue whose messages are shared, each process and epoch makes a file.
#[tokio::test(flavor = "multi_thread")]
async fn files_at_least_once_have_names_of_their_own() {
    for place in Place::all("a.csv.gz") {
        let began = clock::now();
        for owner in ["a", "b"] {
            let target = place.open("load", owner, false).await.expect("it opens");
            assert!(target.positions().is_none());
            for ids in [0..10, 10..20] {
                let mut delivery = target.epochs().delivery(vec![], 0).await.expect("it begins");
                delivery.write(batch(&ids)).await.expect("it takes rows");
                assert_eq!(delivery.commit().await.expect("an answer"), written(10));
            }
            let nothing = target.epochs().delivery(vec![], 0).await.expect("it begins");
            assert_eq!(nothing.commit().await.expect("an answer"), written(0));
        }
        assert_eq!(place.names().len(), 4, "{:?}", place.names());
        let is_named = |name: &String| {
            let parts: Vec<&str> = name.trim_end_matches(".csv.gz").split('-').collect();
            let time: u64 = parts[1].parse().expect("a time");
            time >= began && ["a", "b"].contains(&parts[2]) && ["00000001", "00000002"].contains(&parts[3])
        };
        assert!(place.names().iter().all(is_named), "{:?}", place.names());
        let mut all = [expected(0..20), expected(0..20)].concat();
        all.sort();
        assert_eq!(place.rows(), all);
    }
}

//! Tests of files of epochs when something fails or takes very long: nothing is lost, and what cannot be known is said.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use millstream_core::positions::Positions;
use millstream_core::sink::Delivered;
use millstream_core::{Error, ErrorKind, Result};
use millstream_testkit::Trouble;

use super::keeper::{EpochDraft, Keeper, Published, Unkept};
use super::partitions::PartitionFiles;
use super::record::{EpochFile, Kept, PositionRecord};
use super::tests::*;
use super::*;

/// What becomes of the write of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is done, and the answer is an error.
    Done(ErrorKind),
    /// It is not done, but nobody can know that.
    NotDone(ErrorKind),
    /// It has not begun.
    NotBegun(ErrorKind),
}

/// A keeper in which records with files meet with faults.
struct Faulty {
    keeper: Arc<dyn Keeper>,
    faults: Mutex<Vec<Fault>>,
}

#[async_trait]
impl Keeper for Faulty {
    fn shown(&self) -> String {
        self.keeper.shown()
    }

    fn shown_record(&self, partition: u32, record: &PositionRecord) -> String {
        self.keeper.shown_record(partition, record)
    }

    async fn prepare(&self) -> Result<()> {
        self.keeper.prepare().await
    }

    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>> {
        self.keeper.claim(claim).await
    }

    async fn partitions(&self) -> Result<Vec<u32>> {
        self.keeper.partitions().await
    }

    async fn of(&self, partition: u32) -> Result<Option<Kept>> {
        self.keeper.of(partition).await
    }

    async fn keep(
        &self,
        partition: u32,
        record: &PositionRecord,
        before: Option<&Kept>,
    ) -> Result<Option<Kept>, Unkept> {
        let error = |kind| Error::new(kind, "a fault of the test");
        let fault = record.staged().and_then(|_| self.faults.lock().expect("no panic").pop());
        match fault {
            None => self.keeper.keep(partition, record, before).await,
            Some(Fault::Done(kind)) => {
                self.keeper.keep(partition, record, before).await?;
                Err(Unkept::perhaps(error(kind)))
            }
            Some(Fault::NotDone(kind)) => Err(Unkept::perhaps(error(kind))),
            Some(Fault::NotBegun(kind)) => Err(error(kind).into()),
        }
    }

    async fn draft(&self, name: &str, path: &str) -> Result<Box<dyn EpochDraft>> {
        self.keeper.draft(name, path).await
    }

    async fn discard(&self, file: &EpochFile) {
        self.keeper.discard(file).await;
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        self.keeper.exists(path).await
    }

    async fn publish(&self, file: &EpochFile) -> Result<Published> {
        self.keeper.publish(file).await
    }

    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept> {
        self.keeper.settle(partition, kept).await
    }

    async fn forget(&self) -> Result<()> {
        self.keeper.forget().await
    }
}

/// Positions of the process `owner`, which meets with these faults, the last one first.
async fn faulty(place: &Place, owner: &str, faults: &[Fault]) -> Arc<dyn Positions> {
    let faults = Mutex::new(faults.to_vec());
    let files = Arc::new(place.files_in(owner, |keeper| Arc::new(Faulty { keeper, faults })));
    PartitionFiles::open(files, &queue_load(LOAD, owner, true)).await.expect("it opens")
}

/// Whether something is staged that no record names, or that has not appeared.
fn stages(place: &Place) -> bool {
    let is_upload = |name: &String| name.starts_with(".upload") || name.contains("upload_id");
    match place.server {
        None => place.left().iter().any(|name| name.ends_with(".data")),
        Some(_) => listing(place.root().parent().expect("a folder")).iter().any(is_upload),
    }
}

/// An error of the write of a record that was done loses nothing, whether the next answer tells or not.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_written_a_record_learns_it_after_an_error() {
    use ErrorKind::{Refused, Transient};
    for faults in [&[Fault::Done(Refused)][..], &[Fault::Done(Transient)], &[Fault::NotDone(Transient)]] {
        for place in Place::all("a.csv.gz") {
            let positions = faulty(&place, "a", faults).await;
            register(&positions, 0).await;
            assert_eq!(deliver(&positions, 1, 0..10).await.expect("an answer"), written(10), "{faults:?}");
            assert_eq!(deliver(&positions, 2, 10..20).await.expect("an answer"), written(10));
            assert_eq!(place.rows(), expected(0..20));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_committed_is_not_given_up() {
    for place in Place::all("a.csv.gz") {
        // Also the answer to the question fails.
        let positions =
            faulty(&place, "a", &[Fault::NotDone(ErrorKind::Refused), Fault::Done(ErrorKind::Refused)]).await;
        register(&positions, 0).await;
        let error = deliver(&positions, 1, 0..10).await.expect_err("a fault");
        assert_eq!(error.what(), "a fault of the test");
        assert!(stages(&place));
        // A delivery that is tried again finds that the position has moved.
        let Delivered::Moved(now) = deliver(&positions, 1, 0..10).await.expect("an answer") else { panic!("twice") };
        assert_eq!(seen(&now), [(2, "a", state(10))]);
        let next = place.positions("b").await;
        assert_eq!(seen(&read(&next).await), [(2, "a", state(10))]);
        assert_eq!(deliver(&next, 2, 10..20).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(0..20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_committed_is_written_by_the_next_delivery() {
    use ErrorKind::Refused;
    for (fault, is_left) in [(Fault::NotDone(Refused), true), (Fault::NotBegun(Refused), false)] {
        for place in Place::all("a.csv.gz") {
            let positions = faulty(&place, "a", &[fault]).await;
            register(&positions, 0).await;
            assert!(!stages(&place));
            deliver(&positions, 1, 0..10).await.expect_err("a fault");
            assert_eq!((place.names().len(), stages(&place)), (0, is_left), "{fault:?}");
            assert_eq!(deliver(&positions, 1, 0..10).await.expect("an answer"), written(10));
            assert_eq!(place.rows(), expected(0..10));
        }
    }
}

/// What has the name of the record cannot be read: it might be the record.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_folder_does_not_tell_is_not_known() {
    let place = Place::folder("a.csv.gz");
    let positions = place.positions("a").await;
    register(&positions, 0).await;
    let in_the_way = place.hidden().join(format!("00003/{:020}.json", 2));
    fs_err::create_dir(&in_the_way).expect("a folder");
    deliver(&positions, 1, 0..10).await.expect_err("it cannot be read");
    assert!(stages(&place));
    fs_err::remove_dir(&in_the_way).expect("it is removed");
    assert_eq!(deliver(&positions, 1, 0..10).await.expect("an answer"), written(10));
    assert_eq!(place.rows(), expected(0..10));
}

/// Of two requests the first one is taken, and its answer lost; the second one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_bucket_has_taken_is_found() {
    for refused in [1, usize::MAX] {
        let place = Place::bucket("a.csv.gz");
        let positions = place.positions("a").await;
        register(&positions, 0).await;
        let asked = AtomicUsize::new(0);
        let server = place.server.as_ref().expect("a server");
        server.trouble(move |method, path| {
            if !path.contains("/00003.json") || (method != "PUT" && asked.load(Ordering::SeqCst) == 0) {
                return None;
            }
            match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Some(Trouble::Unanswered),
                number if number <= refused => Some(Trouble::Status(403)),
                _ => None,
            }
        });
        let delivered = deliver(&positions, 1, 0..10).await;
        match refused {
            1 => assert_eq!(delivered.expect("an answer"), written(10)),
            _ => drop(delivered.expect_err("all is refused")),
        }
        server.trouble(|_, _| None);
        let next = place.positions("b").await;
        assert_eq!(seen(&read(&next).await), [(2, "a", state(10))]);
        assert_eq!(deliver(&next, 2, 10..20).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(0..20));
    }
}

/// Sets back the time at which files were written.
fn set_back(paths: impl IntoIterator<Item = std::path::PathBuf>, hours: u64) {
    let time = SystemTime::now() - Duration::from_secs(hours * 3600);
    for path in paths {
        let file = fs_err::OpenOptions::new().write(true).open(&path).expect("a file");
        file.file().set_modified(time).expect("it has a time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_appears_even_after_a_day() {
    let place = Place::folder("a.csv.gz");
    let first = place.positions("a").await;
    register(&first, 0).await;
    // It stands still, and might still commit.
    let asleep = sent(&first, 1, 0..20).await;
    let committed = commit_and_die(&place, 0..10).await;
    let of = |ending: &str| {
        let names = place.left().into_iter().filter(|name| name.ends_with(ending));
        names.map(|name| place.hidden().join(name)).collect::<Vec<_>>()
    };
    assert_eq!(of(".data").len(), 2);
    set_back(of(".data"), 26);
    let record = place.hidden().join("00003").join(format!("{:020}.json", 2));
    set_back([record], 25);
    // What was staged for an epoch that another one has overtaken goes, and what is committed stays.
    let next = place.positions("b").await;
    assert_eq!(
        place.left().iter().filter(|name| name.ends_with(".data")).collect::<Vec<_>>(),
        [committed.staged.as_ref().expect("it is staged")]
    );
    assert_eq!(place.names(), [""; 0]);
    assert_eq!(seen(&read(&next).await), [(2, "dead", state(10))]);
    assert_eq!(place.rows(), expected(0..10));
    assert!(matches!(asleep.commit().await, Ok(Delivered::Moved(_))));
    assert_eq!(deliver(&next, 2, 10..20).await.expect("an answer"), written(10));
    assert_eq!(place.rows(), expected(0..20));
}

/// What is staged and committed goes missing, as by a rule of a bucket.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_lost_is_an_error() {
    for place in Place::all("a.csv.gz") {
        let first = place.positions("a").await;
        register(&first, 0).await;
        let file = commit_and_die(&place, 0..10).await;
        place.files("dead").keeper.discard(&file).await;
        let error = first.read().await.expect_err("rows are lost");
        let name = format!("a-00003-{:020}.csv.gz is missing", 0);
        assert!(error.kind() == ErrorKind::Refused && error.what().contains(&name), "{error:?}");
        let record = if place.server.is_some() { "00003.json" } else { "00003/00000000000000000002.json" };
        assert!(error.hint_text().is_some_and(|hint| hint.contains(record)), "{error:?}");
        assert!(first.delivery(vec![one(Some(2), 20)], 0).await.is_err(), "nothing is written behind it");
        if place.server.is_some() {
            continue;
        }
        // As the hint says.
        let record = place.hidden().join(record);
        let text = fs_err::read_to_string(&record).expect("it reads");
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["file"] = serde_json::Value::Null;
        fs_err::write(&record, json.to_string()).expect("it is written");
        assert_eq!(deliver(&first, 2, 10..20).await.expect("an answer"), written(10));
        assert_eq!(place.rows(), expected(10..20));
    }
}

/// Who has renamed a file may be killed before that is noted.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_there_has_appeared() {
    for place in Place::all("a.csv.gz") {
        let first = place.positions("a").await;
        register(&first, 0).await;
        let file = commit_and_die(&place, 0..10).await;
        let dead = place.files("dead");
        assert_eq!(dead.keeper.publish(&file).await.expect("an answer"), Published::Now);
        assert_eq!(dead.keeper.publish(&file).await.expect("an answer"), Published::Before);
        assert_eq!(seen(&read(&first).await), [(2, "dead", state(10))]);
        first.settle().await;
        crate::file::tests::visible(&place.root()).iter().for_each(|path| fs_err::remove_file(path).expect("removed"));
        assert_eq!(dead.keeper.publish(&file).await.expect("an answer"), Published::Lost);
        assert_eq!(seen(&read(&place.positions("b").await).await), [(2, "dead", state(10))], "it is noted");
    }
}

/// A name that has become free again is given back by a process that comes late to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_comes_late_is_not_the_last_one() {
    for place in Place::all("a.csv.gz") {
        let positions = place.positions("a").await;
        register(&positions, 0).await;
        let late = place.files("late");
        let before = late.keeper.of(3).await.expect("it reads").expect("a record");
        for version in 1..=3 {
            assert_eq!(
                deliver(&positions, version, (version - 1) * 10..version * 10).await.expect("it ends"),
                written(10)
            );
        }
        positions.settle().await;
        let by = record::By { owner: "late", attempt: "late-1", file: None };
        let record = PositionRecord::new("events 3", 1, &state(99), by);
        assert_eq!(late.keeper.keep(3, &record, Some(&before)).await.expect("an answer"), None);
        assert_eq!(seen(&read(&positions).await), [(4, "a", state(30))]);
        let anew =
            PositionRecord::new("events 3", 0, &state(99), record::By { owner: "late", attempt: "late-2", file: None });
        assert_eq!(late.keeper.keep(3, &anew, None).await.expect("an answer"), None);
        assert_eq!(seen(&read(&positions).await), [(4, "a", state(30))]);
        positions.settle().await;
        if place.server.is_none() {
            assert_eq!(listing(&place.hidden().join("00003")).len(), 2, "the record, and the note of its file");
        }
    }
}

/// A record whose write is repeated counts as kept until another one is behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_may_be_kept_twice() {
    for place in Place::all("a.csv.gz") {
        let files = place.files("a");
        files.keeper.prepare().await.expect("it is ready");
        let record = |before, attempt| {
            PositionRecord::new("events 3", before, &state(before), record::By { owner: "a", attempt, file: None })
        };
        let (first, second) = (record(0, "a-1"), record(1, "a-2"));
        for _ in 0..2 {
            let kept = files.keeper.keep(3, &first, None).await.expect("an answer").expect("it is kept");
            assert_eq!(kept.record, first);
        }
        let kept = files.keeper.of(3).await.expect("it reads").expect("a record");
        for _ in 0..2 {
            assert!(files.keeper.keep(3, &second, Some(&kept)).await.expect("an answer").is_some());
        }
        assert_eq!(files.keeper.keep(3, &first, None).await.expect("an answer"), None);
        assert_eq!(files.keeper.of(3).await.expect("it reads").expect("a record").record, second);
    }
}

//! Both sides together, over loopback: what becomes of bundles when workers come, go, fail and fall silent.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::*;
use crate::ListedUnit;
use crate::coordinator::{Listening, Load, Outcome, Seen, Settings, coordinate};

/// What a load has heard.
#[derive(Default)]
struct Heard {
    counted: BTreeMap<String, u64>,
    kept: u64,
    lost: Vec<Worker>,
    refused: Vec<Error>,
}

#[derive(Default)]
struct TestLoad(Mutex<Heard>);

#[async_trait]
impl Load for TestLoad {
    async fn keep(&self, _worker: Worker, _what: Value) -> Result<()> {
        locked(&self.0).kept += 1;
        Ok(())
    }

    fn tell(&self, _worker: Worker, _told: Value) -> Result<()> {
        Ok(())
    }

    async fn count(&self, _worker: Worker, outcome: Value) -> Result<()> {
        for unit in outcome.as_array().into_iter().flatten().filter_map(Value::as_str) {
            *locked(&self.0).counted.entry(unit.to_owned()).or_default() += 1;
        }
        Ok(())
    }

    async fn lose(&self, worker: Worker) {
        locked(&self.0).lost.push(worker);
    }

    fn deadly(&self, unit: &ListedUnit) -> Error {
        Error::refused(format!("{} is deadly", unit.text))
    }

    fn see(&self, seen: Seen) {
        if let Seen::Refused(_, error) = seen {
            locked(&self.0).refused.push(error);
        }
    }
}

/// What a worker does with each bundle.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Read,
    /// It takes some time for each unit.
    ReadSlowly,
    /// Its disk is full.
    HasNoRoom,
    /// It never ends.
    Hang,
    Fail,
    Refuse,
}

#[async_trait]
impl Work for Does {
    async fn begin(&self, _worker: Worker, task: Value) -> Result<Arc<dyn ReadBundle>> {
        assert_eq!(task, json!({"task": 1}));
        match self {
            Does::Refuse => Err(Error::refused("the folder is not there")),
            _ => Ok(Arc::new(*self)),
        }
    }
}

#[async_trait]
impl ReadBundle for Does {
    async fn read(&self, ToRead { units, .. }: ToRead, link: Link) -> Result<Value, Vec<Error>> {
        match self {
            Does::Read => {}
            Does::ReadSlowly => tokio::time::sleep(Duration::from_millis(5) * units.len() as u32).await,
            Does::HasNoRoom => return Err(vec![Error::refused("no space left on device")]),
            Does::Fail => return Err(vec![Error::data("a number is expected")]),
            _ => {
                link.stopped().await;
                return Err(vec![lost()]);
            }
        }
        let keeping = link.clone();
        let kept = tokio::task::spawn_blocking(move || keeping.keep(json!("rejects"))).await;
        kept.expect("it has ended").map_err(|error| vec![error])?;
        Ok(units.into_iter().map(|unit| Value::String(unit.text)).collect())
    }
}

fn identity(folder: &Path, name: &str) -> Identity {
    let path = folder.join(name);
    if !path.exists() {
        Identity::create(&path).expect("made");
    }
    Identity::read(&path).expect("read")
}

fn hello() -> Hello {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later");
    Hello {
        protocol: crate::PROTOCOL,
        version: "1".to_owned(),
        host: "here".to_owned(),
        process: 1,
        slots: 2,
        cores: 1,
        memory: 1 << 30,
        now: now.as_millis() as i64,
    }
}

fn settings() -> Settings {
    let (beat, patience) = (Duration::from_millis(100), Duration::from_millis(600));
    Settings { version: "1".to_owned(), beat, patience, wait: Some(Duration::from_secs(20)) }
}

type Coordinated = tokio::task::JoinHandle<Result<Outcome, Vec<Error>>>;

/// A coordinator with so many units, and its address.
async fn coordinator(folder: &Path, count: usize, settings: Settings) -> (String, Arc<TestLoad>, Coordinated) {
    let listening = Listening::at("127.0.0.1:0", &identity(folder, "secret")).await.expect("it listens");
    let (address, load) = (listening.address().to_string(), Arc::new(TestLoad::default()));
    let (sender, units) = mpsc::channel(16);
    tokio::spawn(async move {
        for number in 0..count {
            let unit = ListedUnit {
                source: 0,
                bytes: 1_000_000,
                extent: crate::Extent::Whole,
                is_known: false,
                text: format!("unit {number}"),
            };
            sender.send(unit).await.expect("it is taken");
        }
    });
    let coordinating = coordinate(listening, json!({"task": 1}), settings, units, Arc::clone(&load) as Arc<dyn Load>);
    (address, load, tokio::spawn(coordinating))
}

async fn work(address: &str, folder: &Path, does: Does, leave: watch::Receiver<bool>) -> Result<Parted> {
    join(address, &identity(folder, "secret"), hello(), Arc::new(does), leave).await
}

fn is_well(parted: Result<Parted>) -> bool {
    matches!(parted, Ok(Parted::Well))
}

fn all_counted_once(load: &TestLoad, count: usize) {
    let heard = locked(&load.0);
    assert_eq!((heard.counted.len(), heard.counted.values().max()), (count, Some(&1)));
}

#[tokio::test]
async fn workers_read_each_unit_once_and_part_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, load, coordinating) = coordinator(folder.path(), 200, settings()).await;
    let (_stay, leave) = watch::channel(false);
    let one = work(&address, folder.path(), Does::Read, leave.clone());
    let other = work(&address, folder.path(), Does::Read, leave);
    let (one, other) = tokio::join!(one, other);
    assert!(is_well(one) && is_well(other));
    assert!(matches!(coordinating.await, Ok(Ok(Outcome::Finished))));
    all_counted_once(&load, 200);
    let heard = locked(&load.0);
    assert!(heard.kept >= 4, "{}", heard.kept);
}

#[tokio::test]
async fn what_a_lost_worker_had_is_read_by_another_after_it_was_fenced() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, load, coordinating) = coordinator(folder.path(), 50, settings()).await;
    let (_stay, leave) = watch::channel(false);
    let (cut, path) = (address.clone(), folder.path().to_owned());
    let hanging = leave.clone();
    let lost = tokio::spawn(async move { work(&cut, &path, Does::Hang, hanging).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    lost.abort();
    work(&address, folder.path(), Does::Read, leave).await.expect("it joined");
    assert!(matches!(coordinating.await, Ok(Ok(Outcome::Finished))));
    all_counted_once(&load, 50);
    assert!(locked(&load.0).lost.contains(&1));
}

#[tokio::test]
async fn a_worker_that_is_to_leave_ends_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let wait = Some(Duration::from_millis(300));
    let (address, load, coordinating) = coordinator(folder.path(), 50, Settings { wait, ..settings() }).await;
    let (_stay, leave) = watch::channel(true);
    assert!(is_well(work(&address, folder.path(), Does::Read, leave).await));
    let Ok(Ok(Outcome::Alone(left))) = coordinating.await else { panic!("it is alone") };
    let counted = locked(&load.0).counted.len();
    assert_eq!((left.units().expect("they are there").len(), counted), (50 - counted, counted));
}

#[tokio::test]
async fn an_error_of_a_worker_ends_the_run_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, _, coordinating) = coordinator(folder.path(), 5, settings()).await;
    let (_stay, leave) = watch::channel(false);
    let parted = work(&address, folder.path(), Does::Fail, leave).await.expect("it joined");
    assert!(matches!(&parted, Parted::Failed(why) if why.contains("on the worker here:1")), "{parted:?}");
    let errors = coordinating.await.expect("it has ended").expect_err("it fails");
    assert_eq!(errors[0].cause_text(), Some("on the worker here:1"));
}

#[tokio::test]
async fn what_one_worker_has_no_room_for_another_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, load, coordinating) = coordinator(folder.path(), 600, settings()).await;
    let (_stay, leave) = watch::channel(false);
    let secret = identity(folder.path(), "secret");
    let join_as =
        |process: u32, does: Does| join(&address, &secret, Hello { process, ..hello() }, Arc::new(does), leave.clone());
    let full = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let first = join_as(2, Does::HasNoRoom).await;
        (first, join_as(2, Does::HasNoRoom).await)
    };
    let (other, (first, second)) = tokio::join!(join_as(1, Does::ReadSlowly), full);
    assert!(is_well(other));
    for parted in [first, second] {
        assert!(
            matches!(&parted, Ok(Parted::Refused(error)) if error.what() == "no space left on device"),
            "{parted:?}"
        );
    }
    assert!(matches!(coordinating.await, Ok(Ok(Outcome::Finished))));
    all_counted_once(&load, 600);
}

/// A third worker that asks for nothing could still do it. With one unit it is that over which both have failed; with
/// more of them nobody has said which it is, and the errors are the same.
#[tokio::test]
async fn what_two_workers_fail_at_ends_the_run() {
    for count in [1, 100] {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, _, coordinating) = coordinator(folder.path(), count, settings()).await;
        let (_stay, leave) = watch::channel(false);
        let secret = identity(folder.path(), "secret");
        let join_as = |process: u32, slots: u64, does: Does| {
            join(&address, &secret, Hello { process, slots, ..hello() }, Arc::new(does), leave.clone())
        };
        let failing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            tokio::join!(join_as(1, 1, Does::HasNoRoom), join_as(2, 1, Does::HasNoRoom))
        };
        let all = async { tokio::join!(join_as(3, 0, Does::Read), failing) };
        let _ = tokio::time::timeout(Duration::from_secs(10), all).await.expect("the run ends");
        let errors = coordinating.await.expect("it has ended").expect_err("it fails");
        assert_eq!(errors[0].what(), "no space left on device");
    }
}

#[tokio::test]
async fn strangers_and_workers_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let wait = Some(Duration::from_secs(3));
    let (address, load, coordinating) = coordinator(folder.path(), 5, Settings { wait, ..settings() }).await;
    let (_stay, leave) = watch::channel(false);
    let stranger = identity(folder.path(), "another");
    let refused = join(&address, &stranger, hello(), Arc::new(Does::Read), leave.clone()).await;
    assert!(refused.expect_err("it is a stranger").what().starts_with("no coordinator answers"));
    let secret = identity(folder.path(), "secret");
    for other in [
        Hello { version: "2".to_owned(), ..hello() },
        Hello { now: hello().now - 120_000, ..hello() },
        Hello { protocol: 0, ..hello() },
    ] {
        let parted = join(&address, &secret, other, Arc::new(Does::Read), leave.clone()).await.expect("it answers");
        assert!(matches!(parted, Parted::Refused(_)), "{parted:?}");
    }
    let unable = work(&address, folder.path(), Does::Refuse, leave).await.expect("it answers");
    assert!(matches!(unable, Parted::Refused(error) if error.what() == "the folder is not there"));
    assert!(matches!(coordinating.await, Ok(Ok(Outcome::Alone(_)))));
    let refused: Vec<String> = locked(&load.0).refused.iter().map(|error| error.what().to_owned()).collect();
    assert_eq!(refused.len(), 5, "{refused:?}");
    assert!(refused.contains(&"it does not have the secret of this cluster".to_owned()), "{refused:?}");
}

/// A worker that says nothing more, as if its machine slept.
#[tokio::test]
async fn a_silent_worker_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, load, coordinating) = coordinator(folder.path(), 20, settings()).await;
    let secret = identity(folder.path(), "secret");
    let stream = TcpStream::connect(&address).await.expect("it answers");
    let connected = secret.connector().expect("sound").connect(Identity::name().expect("a name"), stream).await;
    let (mut from, mut to) = tokio::io::split(connected.expect("let in"));
    for said in [FromWorker::Hello(hello()), FromWorker::Ready(None), FromWorker::Ask] {
        send(&mut to, &said).await.expect("said");
    }
    assert!(matches!(receive(&mut from).await, Ok(Some(FromCoordinator::Welcome(_)))));
    let (_stay, leave) = watch::channel(false);
    work(&address, folder.path(), Does::Read, leave).await.expect("it joined");
    assert!(matches!(coordinating.await, Ok(Ok(Outcome::Finished))));
    all_counted_once(&load, 20);
    assert_eq!(locked(&load.0).lost.first(), Some(&1));
}

//! Tests of the file sink: the conformance suite for every way of spreading rows over files, and every fault of a disk
//! that can be made to happen.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_core::format::Format;
use millstream_core::sink::Sink;
use millstream_core::{Budget, ErrorKind};
use millstream_testkit::Mount;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bucket_tests::network;
use super::build;
use crate::conformance::{
    self, Csv, Parquet, Subject, context, listing, parts, read_csv, routed, rows, run, schema, shown_rows, suite, write,
};

/// A file sink with settings.
struct Files {
    target: &'static str,
    settings: Value,
}

impl Files {
    fn format(&self) -> Arc<dyn Format> {
        if self.target.ends_with(".parquet") { Arc::new(Parquet(4096)) } else { Arc::new(Csv) }
    }
}

impl Subject for Files {
    fn sink(&self, folder: &Path) -> Arc<dyn Sink> {
        sink(&folder.join(self.target), self.format(), self.settings.clone())
    }

    fn read(&self, folder: &Path) -> Vec<String> {
        visible(folder).iter().flat_map(|path| read_file(path)).collect()
    }
}

fn sink(target: &Path, format: Arc<dyn Format>, settings: Value) -> Arc<dyn Sink> {
    let gzip = target.to_string_lossy().ends_with(".gz");
    build(&settings, parts(target, format, gzip)).expect("valid settings")
}

pub(crate) fn csv_sink(target: &Path, settings: Value) -> Arc<dyn Sink> {
    sink(target, Arc::new(Csv), settings)
}

/// The files that other programs see.
pub(crate) fn visible(folder: &Path) -> Vec<PathBuf> {
    let hidden = |path: &Path| {
        let below = path.strip_prefix(folder).expect("below the folder");
        below.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.'))
    };
    listing(folder).into_iter().filter(|path| path.is_file() && !hidden(path)).collect()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let below = |path: &PathBuf| path.strip_prefix(folder).expect("below the folder").display().to_string();
    visible(folder).iter().map(below).collect()
}

fn read_text(path: &Path) -> Vec<u8> {
    let bytes = fs_err::read(path).expect("a file");
    if path.extension().is_none_or(|ending| ending != "gz") {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut text).expect("whole gzip members");
    text
}

pub(crate) fn read_file(path: &Path) -> Vec<String> {
    if path.extension().is_none_or(|ending| ending != "parquet") {
        return read_csv(&read_text(path));
    }
    let file = fs_err::File::open(path).expect("a file").into_file();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("a parquet file").build().expect("readable");
    reader.flat_map(|batch| shown_rows(&batch.expect("a batch"))).collect()
}

/// The subjects of the suite by name.
pub(crate) fn subject(name: &str) -> Option<Box<dyn Subject>> {
    let (target, settings) = match name {
        "file" => ("a.csv", json!({})),
        "file-gzip" => ("new/folder/a.csv.gz", json!({"level": 1})),
        "file-parquet" => ("a.parquet", json!({})),
        "file-shards" => ("a-{shard}.csv.gz", json!({"shards": {"count": 3, "hash": "id"}})),
        "file-shards-parquet" => ("a.parquet", json!({"shards": {"count": 3, "mod": "id"}})),
        "file-split" => ("name={value}/a.csv", json!({"split": "name", "mode": "replace"})),
        "file-split-parquet" => ("{value}.parquet", json!({"split": "name", "roll": {"rows": 300}, "mode": "replace"})),
        "file-split-few" => ("a.csv.gz", json!({"split": "name", "max_open": 2, "mode": "replace"})),
        "file-roll-rows" => ("a.csv", json!({"roll": {"rows": 123}})),
        "file-roll-bytes" => ("a.csv.gz", json!({"roll": {"bytes": "10kB"}})),
        "file-split-roll-few" => {
            ("a.csv.gz", json!({"split": "name", "roll": {"rows": 100}, "max_open": 2, "mode": "replace"}))
        }
        _ => return None,
    };
    Some(Box::new(Files { target, settings }))
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
    one_file_conforms "file"
    one_gzip_file_conforms "file-gzip"
    one_parquet_file_conforms "file-parquet"
    shards_conform "file-shards"
    parquet_shards_conform "file-shards-parquet"
    a_split_conforms "file-split"
    a_rolled_split_of_parquet_conforms "file-split-parquet"
    a_split_with_few_open_files_conforms "file-split-few"
    rolling_by_rows_conforms "file-roll-rows"
    rolling_by_bytes_conforms "file-roll-bytes"
    a_rolled_split_with_few_open_files_conforms "file-split-roll-few"
}

/// The state after a process died in the middle of its commit: the plan is written, and one file of several is renamed.
pub(crate) fn half_commit(folder: &Path) {
    let temporary = listing(folder).into_iter().find(|path| path.ends_with(".a.csv.tmp")).expect("temporary files");
    fs_err::rename(temporary.join("plan.new"), temporary.join("plan.json")).expect("the plan");
    let plan = fs_err::read_to_string(temporary.join("plan.json")).expect("the plan");
    let plan: Value = serde_json::from_str(&plan).expect("json");
    let first = &plan["files"][0];
    let staged = temporary.join(format!("{:06}", first["staged"].as_u64().expect("a number")));
    fs_err::rename(staged, folder.join(first["path"].as_str().expect("a path"))).expect("the first file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_cut_short_is_finished_by_the_next_run() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a.csv");
    run(&csv_sink(&target, json!({"roll": {"rows": 10}})), 1, 5000, 100).await.expect("500 files");
    conformance::crash("file-roll-rows", "committing", folder.path());
    assert!(visible(folder.path()).len() >= 500, "old files are still beside the first new one");
    // Beginning is enough: this run is rolled back.
    let sink = csv_sink(&target, json!({"roll": {"rows": 10}}));
    let load = sink.begin(context(1)).await.expect("it begins");
    load.abort().await;
    let mut seen: Vec<String> = visible(folder.path()).iter().flat_map(|path| read_file(path)).collect();
    seen.sort();
    let mut expected = shown_rows(&rows(0..20_000));
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(visible(folder.path()).len(), 163, "20,000 rows in files of 123, and none of the 500");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_set_leaves_no_files_of_the_larger_one() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a.csv");
    let shards = |count: u32| json!({"shards": {"count": count, "mod": "id"}});
    let stranger = folder.path().join("a-099.csv");
    fs_err::write(&stranger, "not ours").expect("a file");
    run(&csv_sink(&target, shards(5)), 2, 100, 10).await.expect("five shards");
    run(&csv_sink(&target, shards(2)), 2, 100, 10).await.expect("two shards");
    assert_eq!(names(folder.path()), ["a-000.csv", "a-001.csv", "a-099.csv"]);
    run(&csv_sink(&target, json!({})), 2, 100, 10).await.expect("one file");
    assert_eq!(names(folder.path()), ["a-099.csv", "a.csv"]);
    assert_eq!(listing(folder.path()).len(), 2, "no list stays beside a single file");
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_values_that_are_no_more_go_with_their_files() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join("{value}/a.csv"), json!({"split": "name", "mode": "replace"}));
    run(&sink, 2, 100, 10).await.expect("all values");
    assert_eq!(
        names(folder.path()),
        ["Z%C3%BCrich%2F..%2Fx/a.csv", "__empty__/a.csv", "__null__/a.csv", "%5F_null__/a.csv"]
            .into_iter()
            .chain(["a%20%22quote%22%2C%20a%20comma/a.csv", "plain/a.csv", "two%0Alines/a.csv"])
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    run(&sink, 1, 1, 10).await.expect("one value");
    assert_eq!(names(folder.path()), ["plain/a.csv"]);
    assert!(!folder.path().join("__null__").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn rolled_files_are_as_large_as_they_may_be() {
    let folder = TempDir::new().expect("a folder");
    let rolled = json!({"roll": {"rows": 100}});
    run(&csv_sink(&folder.path().join("r.csv"), rolled), 4, 1050, 33).await.expect("it runs");
    let counts: Vec<usize> = visible(folder.path()).iter().map(|path| read_file(path).len()).collect();
    assert_eq!((counts.len(), counts[..10].to_vec(), counts[10]), (11, vec![100; 10], 50));

    for partitions in [1, 4] {
        let folder = TempDir::new().expect("a folder");
        let sink = csv_sink(&folder.path().join("b.csv.gz"), json!({"roll": {"bytes": 20_000}}));
        run(&sink, partitions, 50_000, 1000).await.expect("it runs");
        let files = visible(folder.path());
        let sizes: Vec<u64> = files.iter().map(|path| path.metadata().expect("a file").len()).collect();
        assert!(files.len() > 3, "{partitions}: {sizes:?}");
        assert!(sizes.iter().all(|size| *size < 80_000), "{partitions}: {sizes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_writer_keeps_the_order() {
    for (target, settings) in [("a.csv", json!({})), ("a.csv.gz", json!({"roll": {"bytes": "5kB"}}))] {
        let folder = TempDir::new().expect("a folder");
        run(&csv_sink(&folder.path().join(target), settings), 1, 10_000, 777).await.expect("it runs");
        let seen: Vec<String> = visible(folder.path()).iter().flat_map(|path| read_file(path)).collect();
        assert_eq!(seen, shown_rows(&rows(0..10_000)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_have_all_their_rows_in_order() {
    for (target, settings) in
        [("a.csv", json!({})), ("a-{shard}.csv", json!({"shards": {"count": 2, "mod": "id"}, "max_open": 1}))]
    {
        let folder = TempDir::new().expect("a folder");
        run(&csv_sink(&folder.path().join(target), settings), 1, 240_000, 1999).await.expect("it runs");
        let files = visible(folder.path());
        assert!(files.iter().all(|path| path.metadata().expect("a file").len() > 5 << 19), "larger than large");
        let rows = shown_rows(&rows(0..240_000));
        for (number, path) in files.iter().enumerate() {
            let of_file: Vec<&String> = rows.iter().skip(number).step_by(files.len()).collect();
            assert!(read_file(path).iter().eq(of_file), "{}", path.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_writer_makes_one_gzip_member() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a.csv.gz");
    run(&csv_sink(&target, json!({})), 1, 50_000, 5000).await.expect("it runs");
    let bytes = fs_err::read(&target).expect("a file");
    let mut text = Vec::new();
    flate2::bufread::GzDecoder::new(bytes.as_slice()).read_to_end(&mut text).expect("a member");
    assert_eq!(read_csv(&text).len(), 50_000);
}

#[tokio::test]
async fn a_runtime_with_one_thread_is_enough() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a.csv.gz");
    run(&csv_sink(&target, json!({"split": "name"})), 3, 1000, 100).await.expect("it runs");
    assert_eq!(visible(folder.path()).iter().flat_map(|path| read_file(path)).count(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_files_are_reported() {
    let folder = TempDir::new().expect("a folder");
    let settings = json!({"split": "name", "max_open": 3});
    let sink = sink(&folder.path().join("a.parquet"), Arc::new(Parquet(4096)), settings);
    let error = run(&sink, 1, 100, 10).await.expect_err("seven values, three open files");
    assert_eq!(error.what(), "more than 3 files at once, and a parquet file cannot be closed and continued");

    for settings in [json!({"split": "name", "max_files": 3}), json!({"roll": {"rows": 5}, "max_files": 3})] {
        let sink = csv_sink(&folder.path().join("a.csv"), settings);
        let error = run(&sink, 1, 100, 10).await.expect_err("more than three files");
        assert_eq!(error.what(), "the sink would create more than 3 files");
    }
    assert_eq!(listing(folder.path()).len(), 0, "nothing stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_keeps_others_out() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a.csv");
    let sink = csv_sink(&target, json!({}));
    let first = context(1);
    let name = first.run.clone();
    let load = sink.begin(first).await.expect("it begins");
    let error = sink.begin(context(1)).await.err().expect("the first lives");
    assert_eq!(error.what(), format!("another run is writing {}", target.display()));
    assert_eq!(error.cause_text(), Some(format!("run {name}").as_str()));
    write(&sink, &load, 1, 10, 10).await.expect("the first goes on");
    load.prepare().await.expect("it prepares");
    load.commit().await.expect("it commits");
    assert_eq!(read_file(&target).len(), 10);
    run(&sink, 1, 20, 10).await.expect("now the second may");
    assert_eq!(read_file(&target).len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_runs_at_once_each_writes_all_or_nothing() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("new/a.csv");
    let run_one = |size: i64| {
        let sink = csv_sink(&target, json!({"split": "name", "mode": "replace"}));
        tokio::spawn(async move { (size, run(&sink, 2, size, 10).await) })
    };
    let mut sizes = Vec::new();
    for round in 1..=5 {
        let runs: Vec<_> = (0..8).map(|run| run_one(round * 100 + run)).collect();
        for run in runs {
            match run.await.expect("no panic") {
                (size, Ok(_)) => sizes.push(size),
                (_, Err(error)) => assert!(error.what().starts_with("another run is writing "), "{error}"),
            }
        }
        let rows: usize = visible(folder.path()).iter().map(|path| read_file(path).len()).sum();
        assert!(sizes.contains(&(rows as i64)), "{rows} rows, and the runs that ended well had {sizes:?}");
    }
    let hidden = |path: &PathBuf| path.to_string_lossy().ends_with(".tmp");
    assert!(!listing(folder.path()).iter().any(hidden), "{:?}", listing(folder.path()));
}

/// How many files below `folder` this process has open.
fn open_below(folder: &Path) -> usize {
    let open = fs_err::read_dir("/proc/self/fd").expect("the open files").flatten();
    let targets = open.filter_map(|entry| fs_err::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(folder) && !target.ends_with("lock")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_files_are_open_than_allowed() {
    let cases = [
        ("a.csv", json!({"split": "name", "max_open": 2}), 2),
        ("a.csv", json!({"split": "name", "max_open": 2, "roll": {"bytes": "1kB"}}), 2),
        ("a.csv", json!({"split": "name", "max_open": 2, "roll": {"rows": 50}}), 1),
        ("a.csv", json!({"shards": {"count": 20, "hash": "id"}, "max_open": 3}), 2),
    ];
    for (target, settings, partitions) in cases {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().canonicalize().expect("a path");
        let most = settings["max_open"].as_u64().expect("a number") as usize;
        let sink = csv_sink(&path.join(target), settings.clone());
        let load = sink.begin(context(partitions)).await.expect("it begins");
        let mut writers = Vec::new();
        for partition in 0..partitions {
            writers.push(load.writer(partition).await.expect("a writer"));
        }
        for start in 0..20_i64 {
            for (offset, writer) in (0..).zip(&mut writers) {
                let first = (start * partitions as i64 + offset) * 100;
                writer.write(routed(sink.as_ref(), rows(first..first + 100))).await.expect("it writes");
                assert!(open_below(&path) <= most, "{settings}: {} open", open_below(&path));
            }
        }
        for writer in &mut writers {
            writer.close().await.expect("it closes");
            assert!(open_below(&path) <= most, "{settings}: {} open", open_below(&path));
        }
        load.prepare().await.expect("it prepares");
        assert_eq!(open_below(&path), 0, "{settings}");
        load.commit().await.expect("it commits");
        let mut seen: Vec<String> = visible(&path).iter().flat_map(|path| read_file(path)).collect();
        let mut expected = shown_rows(&rows(0..2000 * partitions as i64));
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected, "{settings}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_parquet_files_hold_no_more_than_the_budget() {
    let folder = TempDir::new().expect("a folder");
    let settings = json!({"split": "name"});
    let sink = sink(&folder.path().join("a.parquet"), Arc::new(Parquet(usize::MAX)), settings);
    let context = conformance::context(1);
    let budget = Arc::clone(&context.budget);
    budget.set_limit(4 << 20);
    let load = sink.begin(context).await.expect("it begins");
    write(&sink, &load, 1, 200_000, 10_000).await.expect("it writes");
    assert!(budget.refusals() > 0, "it is more than fits");
    // Each of the seven files may always hold a little.
    assert!(budget.peak() <= (4 << 20) + 7 * (256 << 10), "{}", budget.peak());
    load.prepare().await.expect("it prepares");
    assert_eq!(budget.used(), 0);
    load.commit().await.expect("it commits");
    assert_eq!(visible(folder.path()).iter().map(|path| read_file(path).len()).sum::<usize>(), 200_000);
}

/// The faults of `check`, one text each.
async fn checked(sink: &Arc<dyn Sink>) -> Vec<String> {
    let faults = match sink.check(schema()).await {
        Ok(()) => sink.reach(&network(), None).await,
        faults => faults,
    };
    faults.expect_err("something is wrong").iter().map(|error| error.what().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_reported_and_stays() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs_err::create_dir(at("folder.csv")).expect("a folder");
    fs_err::write(at("file"), "mine").expect("a file");
    fs_err::write(at("there.csv"), "mine").expect("a file");
    let path = |name: &str| at(name).display().to_string();
    let cases = [
        (at("folder.csv"), json!({}), format!("{} is a folder, not a file", path("folder.csv"))),
        (at("file/a.csv"), json!({}), format!("{} is a file, but a folder is needed", path("file"))),
        (at("there.csv"), json!({"overwrite": false}), format!("{} exists already", path("there.csv"))),
        (PathBuf::from("/dev/full"), json!({}), "/dev/full is a device or a pipe, not a file".to_owned()),
        // It leads to a file if the output of the tests is redirected.
        (PathBuf::from("/dev/stdout"), json!({}), "/dev/stdout is a device or a pipe, not a file".to_owned()),
    ];
    for (target, settings, what) in cases {
        let sink = csv_sink(&target, settings);
        assert!(checked(&sink).await.contains(&what), "{}: {:?}", target.display(), checked(&sink).await);
        if target.starts_with("/dev") {
            continue;
        }
        let before = listing(folder.path());
        assert!(run(&sink, 1, 10, 10).await.is_err(), "{}: also without the check", target.display());
        assert_eq!(listing(folder.path()), before, "{}", target.display());
    }
    fs_err::os::unix::fs::symlink("nowhere", at("link")).expect("a link to nothing");
    let error = run(&csv_sink(&at("link/a.csv"), json!({})), 1, 10, 10).await.expect_err("a link to nothing");
    assert!(error.what().starts_with("cannot create the folder "), "{error}");
    assert_eq!(fs_err::read_to_string(at("there.csv")).expect("a file"), "mine");
    let long = csv_sink(&at(&format!("{}.csv", "n".repeat(252))), json!({}));
    assert_eq!(checked(&long).await, ["the name of a file is too long: 256 bytes, and at most 255 are allowed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_there_is_kept_if_asked_for() {
    let folder = TempDir::new().expect("a folder");
    let target = folder.path().join("a-{value}.csv");
    run(&csv_sink(&target, json!({"split": "name"})), 1, 100, 10).await.expect("it runs");
    let sink = csv_sink(&target, json!({"split": "name", "overwrite": false}));
    assert!(checked(&sink).await.iter().any(|what| what.contains("exist already")));
    assert!(run(&sink, 1, 100, 10).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_list_is_reported_and_never_followed_out_of_the_folder() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out");
    fs_err::create_dir(&out).expect("a folder");
    fs_err::write(folder.path().join("victim"), "mine").expect("a file");
    let list = out.join(".a.csv.millstream.json");
    let plan = |path: &str| {
        let file = json!({"staged": 0, "path": path, "rows": 0, "bytes": 0});
        json!({"version": 1, "run": "r", "set": true, "files": [file]})
    };
    let absolute = folder.path().join("victim").display().to_string();
    let bad = [plan("../victim").to_string(), plan(&absolute).to_string(), "{".to_owned()];
    for text in bad {
        fs_err::write(&list, &text).expect("a list");
        let sink = csv_sink(&out.join("a.csv"), json!({}));
        assert!(checked(&sink).await[0].contains("is damaged"), "{text}");
        let error = run(&sink, 1, 10, 10).await.expect_err(&text);
        assert!(error.what().contains("is damaged"), "{error}");
        assert!(folder.path().join("victim").exists());
        assert_eq!(listing(&out).len(), 1, "nothing but the list stays");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_keeps_the_earlier_result() {
    let Some(disk) = Mount::tmpfs("size=256k") else { return };
    let target = disk.path().join("out/a.csv");
    run(&csv_sink(&target, json!({})), 1, 100, 100).await.expect("100 rows fit");
    for settings in [json!({}), json!({"roll": {"rows": 100}}), json!({"split": "name"})] {
        let sink = csv_sink(&target, settings);
        let load = sink.begin(context(2)).await.expect("it begins");
        let error = match write(&sink, &load, 2, 50_000, 1000).await {
            Ok(()) => load.prepare().await.expect_err("2 MB do not fit"),
            Err(error) => error,
        };
        load.abort().await;
        assert!(error.what().starts_with("cannot write ") && error.what().contains("out/a"), "{error}");
        assert!(error.cause_text().is_some_and(|cause| cause.contains("no space left")), "{error:?}");
        assert_eq!(error.hint_text(), Some("free some space, or write to another disk"));
        assert_eq!((error.kind(), names(disk.path())), (ErrorKind::Refused, vec!["out/a.csv".to_owned()]));
        assert_eq!(listing(disk.path()).len(), 2, "the folder and the earlier result");
    }
    assert_eq!(read_file(&target).len(), 100);
}

/// Fills the disk, in smaller and smaller pieces, since delayed allocation can free some room again.
fn fill(filler: &Path) {
    use std::io::Write;
    let mut file = fs_err::File::create(filler).expect("a file");
    for piece in [1 << 20, 64 << 10, 1 << 10] {
        let refused = loop {
            if let Err(error) = file.write_all(&vec![1; piece]).and_then(|()| file.sync_all()) {
                break error;
            }
        };
        assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    }
}

/// Renames need room, too, if a folder must grow. Which name does not fit depends on the disk: if it is that of the
/// list, nothing is committed, and another disk is tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_for_the_renames_is_reported_and_the_next_run_continues() {
    for _ in 0..20 {
        let image = TempDir::new().expect("a folder");
        let Some(disk) = Mount::ext4(&image.path().join("image")) else { return };
        if full_for_the_renames(&disk).await {
            return;
        }
    }
    panic!("the renames were never reached");
}

/// Whether `disk` had no room for the renames, rather than for the list before.
async fn full_for_the_renames(disk: &Mount) -> bool {
    let name = "n".repeat(200);
    let target = disk.path().join(format!("out/{name}-{{shard}}.csv"));
    let sink = csv_sink(&target, json!({"shards": {"count": 1000, "mod": "id"}}));
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 2000, 1000).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    let filler = disk.path().join("filler");
    fill(&filler);

    let error = load.commit().await.expect_err("the folder cannot grow");
    load.abort().await;
    drop(load);
    assert!(error.cause_text().is_some_and(|cause| cause.contains("no space left")), "{error:?}");
    let published = visible(disk.path()).len() - 1;
    if error.what().starts_with("cannot commit what was written in ") {
        assert_eq!(published, 0, "{error}");
        return false;
    }
    assert!(error.what().starts_with("cannot give its final name to "), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.starts_with("the run is committed: ")), "{error:?}");
    assert!(published < 1000, "{published}");

    // Not even for the lock, or for the name that failed.
    let error = sink.begin(context(1)).await.err().expect("still no room");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("no space left")), "{error:?}");
    fs_err::remove_file(&filler).expect("room again");
    sink.begin(context(1)).await.expect("it finishes the renames").abort().await;
    assert_eq!(visible(disk.path()).len(), 1000);
    assert_eq!(visible(disk.path()).iter().map(|path| read_file(path).len()).sum::<usize>(), 2000);
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_becomes_a_file_is_reported_and_stays() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out");
    for prepared in [false, true] {
        let sink = csv_sink(&out.join("a.csv"), json!({"roll": {"rows": 10}}));
        let load = sink.begin(context(1)).await.expect("it begins");
        write(&sink, &load, 1, 15, 10).await.expect("it writes");
        if prepared {
            load.prepare().await.expect("it prepares");
        }
        fs_err::rename(&out, folder.path().join("moved")).expect("it goes");
        fs_err::write(&out, "mine").expect("a file in its place");
        let error = match load.prepare().await {
            Err(error) => error,
            Ok(()) => load.commit().await.expect_err("the folder is gone"),
        };
        load.abort().await;
        assert!(error.what().contains(&out.display().to_string()), "{error}");
        assert_eq!(error.hint_text(), Some("a part of the path is a file, but a folder is needed"), "{prepared}");
        assert_eq!(fs_err::read_to_string(&out).expect("a file"), "mine");
        assert_eq!(names(&folder.path().join("moved")), Vec::<String>::new(), "nothing has a final name");
        fs_err::remove_file(&out).expect("it goes");
        fs_err::remove_dir_all(folder.path().join("moved")).expect("it goes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_in_the_place_of_stale_files_are_left_alone() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join("{value}/a.csv"), json!({"split": "name", "mode": "replace"}));
    run(&sink, 1, 100, 10).await.expect("all values");
    let theirs = folder.path().join("__null__/a.csv");
    fs_err::remove_file(&theirs).expect("it goes");
    fs_err::create_dir(&theirs).expect("a folder in its place");
    fs_err::remove_dir_all(folder.path().join("__empty__")).expect("it goes");
    fs_err::write(folder.path().join("__empty__"), "mine").expect("a file in the place of a folder");
    run(&sink, 1, 1, 10).await.expect("what is not ours is no hindrance");
    assert_eq!(names(folder.path()), ["__empty__", "plain/a.csv"]);
    assert!(theirs.is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk_is_reported() {
    let Some(disk) = Mount::tmpfs("ro,size=64k") else { return };
    for target in [disk.path().join("a.csv"), disk.path().join("new/folder/a.csv")] {
        let sink = csv_sink(&target, json!({}));
        let what = format!("cannot write to the folder {}", disk.path().display());
        assert_eq!(checked(&sink).await, [what]);
        let error = run(&sink, 1, 10, 10).await.expect_err("read-only");
        assert!(error.what().starts_with("cannot create the folder "), "{error}");
        assert_eq!(error.hint_text(), Some("write to a folder on a disk that can be written to"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_rights_is_reported() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: rights do not bind root; the read-only disk stands for it");
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let closed = folder.path().join("closed");
    fs_err::create_dir(&closed).expect("a folder");
    let rights = std::os::unix::fs::PermissionsExt::from_mode(0o555);
    fs_err::set_permissions(&closed, rights).expect("rights");
    let sink = csv_sink(&closed.join("a.csv"), json!({}));
    assert_eq!(checked(&sink).await, [format!("cannot write to the folder {}", closed.display())]);
    assert!(run(&sink, 1, 10, 10).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_vanishes_while_writing_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out");
    let sink = csv_sink(&out.join("a.csv"), json!({}));
    let load = sink.begin(context(1)).await.expect("it begins");
    fs_err::remove_dir_all(&out).expect("it goes");
    let written = write(&sink, &load, 1, 10, 10).await;
    assert!(written.is_err() || load.prepare().await.is_err());
    load.abort().await;
    assert_eq!(listing(folder.path()).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_holds_no_more_than_its_bounds() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join("a.csv"), json!({"split": "name"}));
    let context = conformance::context(1);
    let budget: Arc<Budget> = Arc::clone(&context.budget);
    let load = sink.begin(context).await.expect("it begins");
    let mut writer = load.writer(0).await.expect("a writer");
    for start in 0..40 {
        writer.write(routed(sink.as_ref(), rows(start * 10_000..(start + 1) * 10_000))).await.expect("it writes");
    }
    assert!(budget.used() > 0, "what waits is charged");
    assert!(budget.peak() <= 17 << 20, "{}", budget.peak());
    load.abort().await;
}

#[test]
fn wrong_settings_are_reported_all_at_once() {
    let faults = |target: &str, settings: Value, gzip: bool| -> Vec<String> {
        let parts = parts(Path::new(target), Arc::new(Csv), gzip);
        let built = build(&settings, parts).expect_err("wrong settings");
        built.iter().map(|fault| format!("{}: {}", fault.path.join("."), fault.what)).collect()
    };
    let both = json!({"split": "a", "shards": {"count": 0, "hash": "a", "mod": "b"}, "roll": {"rows": 0, "bytes": 0}});
    assert_eq!(
        faults("a.csv", both, false),
        [
            "split: both `shards` and `split`",
            "shards.count: 0 shards",
            "shards: both `hash` and `mod`",
            "roll.bytes: a file of 0 bytes",
            "roll.rows: a file of 0 rows",
        ]
    );
    assert_eq!(faults("a.csv", json!({"shards": {"count": 2}}), false), ["shards: neither `hash` nor `mod`"]);
    assert_eq!(faults("a.csv", json!({"roll": {}, "split": " "}), false).len(), 2);
    assert_eq!(
        faults("a-{value}.csv", json!({"level": 3}), false),
        ["write: `{value}` in the path, but no `split`", "level: a level without a compression"]
    );
    assert_eq!(faults("a.csv", json!({"level": 99}), true), ["level: gzip has no level 99"]);
    let mut whole = parts(Path::new("a.parquet"), Arc::new(Parquet(4096)), true);
    assert!(build(&json!({}), whole.clone()).expect_err("gzip around parquet")[0].what.contains("its own pages"));
    whole.format = None;
    assert_eq!(
        build(&json!({}), whole).expect_err("no format")[0].what,
        "`a.parquet` does not say which format to write"
    );
}

#[tokio::test]
async fn nested_columns_are_refused_before_the_run() {
    use arrow::datatypes::{DataType, Field, Schema};
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    let schema = Arc::new(Schema::new(vec![Field::new("l", list, true)]));
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join("a.csv"), json!({}));
    assert_eq!(sink.check(schema).await.expect_err("nested")[0].what(), "csv has no nested values");
}

#[test]
fn explain_says_what_goes_where() {
    let settings = json!({"shards": {"count": 4, "hash": "country"}, "roll": {"bytes": "64MB", "rows": 10}});
    let sink = csv_sink(Path::new("out/a.csv.gz"), settings);
    assert_eq!(
        sink.describe(schema()),
        "csv, gzip to out/a-{shard}-{part}.csv.gz, 4 files by the hash of country, a new file after 64.0 MB or 10 rows"
    );
    assert_eq!((sink.name(), sink.target().as_str()), ("file", "out/a-{shard}-{part}.csv.gz"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_a_newer_version_is_left_alone() {
    let folder = TempDir::new().expect("a folder");
    let list = folder.path().join(".a.csv.millstream.json");
    fs_err::write(&list, json!({"version": 9, "strange": []}).to_string()).expect("a list");
    let sink = csv_sink(&folder.path().join("a.csv"), json!({}));
    assert!(checked(&sink).await[0].ends_with("is of a newer Millstream"));
    let error = run(&sink, 1, 10, 10).await.expect_err("it cannot be read");
    assert!(error.hint_text().is_some_and(|hint| hint.starts_with("run the newer version")), "{error:?}");
    assert_eq!(listing(folder.path()).len(), 1, "nothing but the list");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_appended_file_never_takes_the_name_of_another() {
    let folder = TempDir::new().expect("a folder");
    let sink = csv_sink(&folder.path().join("a-{run}.csv"), json!({"mode": "append"}));
    let first = context(1);
    let load = sink.begin(first.clone()).await.expect("it begins");
    let stranger = folder.path().join(format!("a-{}.csv", first.run));
    fs_err::write(&stranger, "mine").expect("a file");
    write(&sink, &load, 1, 10, 10).await.expect("it writes");
    let error = load.prepare().await.expect_err("the name is taken");
    assert_eq!(error.what(), format!("{} exists already", stranger.display()));
    load.abort().await;
    assert_eq!(fs_err::read_to_string(&stranger).expect("a file"), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_files_that_were_there_count_as_removed() {
    let folder = TempDir::new().expect("a folder");
    let shards = |count: u32| csv_sink(&folder.path().join("a.csv"), json!({"shards": {"count": count, "mod": "id"}}));
    run(&shards(4), 1, 100, 10).await.expect("four shards");
    fs_err::remove_file(folder.path().join("a-002.csv")).expect("somebody removes one");
    let sink = shards(1);
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 100, 10).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    load.commit().await.expect("it commits");
    let gone = ["a-001.csv", "a-003.csv"].map(|name| folder.path().join(name).display().to_string());
    assert_eq!((load.removed().files, load.removed().first), (2, gone.to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn max_files_counts_one_run() {
    let folder = TempDir::new().expect("a folder");
    let settings = json!({"split": "name", "mode": "append", "max_files": 7});
    for _ in 0..3 {
        run(&csv_sink(&folder.path().join("a.csv"), settings.clone()), 1, 100, 10).await.expect("seven files");
    }
    assert_eq!(names(folder.path()).len(), 21);
}

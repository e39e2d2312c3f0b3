//! Tests of standard output, with a pipe or a file in its place: the parts of the conformance suite that apply to
//! standard output.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use millstream_core::ErrorKind;
use millstream_core::sink::Sink;
use serde_json::json;

use super::{StdoutSink, build};
use crate::conformance::{Csv, Parquet, context, parts, read_csv, rows, run, schema, shown_rows, write};
use crate::encode::Encoding;

/// Standard output into `file`, and the file.
fn sink(gzip: bool) -> (Arc<dyn Sink>, File) {
    let file = tempfile::tempfile().expect("a file");
    (sink_into(gzip, file.try_clone().expect("a second handle")), file)
}

fn sink_into(gzip: bool, file: File) -> Arc<dyn Sink> {
    let encoding = Encoding::new(&parts(Path::new("-"), Arc::new(Csv), gzip), None).expect("a format");
    Arc::new(StdoutSink { encoding, output: Some(Arc::new(file)) })
}

fn text(mut file: File, gzip: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("readable");
    if !gzip {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut text).expect("whole gzip members");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_read() {
    for gzip in [false, true] {
        for (partitions, count) in [(1, 5000), (4, 50_000), (3, 0)] {
            let (sink, file) = sink(gzip);
            sink.check(schema()).await.expect("nothing is wrong");
            let line = run(&sink, partitions, count, 700).await.expect("it runs");
            assert_eq!(line, format!("{count} rows on standard output"));
            let mut seen = read_csv(&text(file, gzip));
            let mut expected = shown_rows(&rows(0..count));
            if partitions > 1 {
                seen.sort();
                expected.sort();
            }
            assert_eq!(seen, expected, "{partitions} writers, gzip: {gzip}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_out_as_soon_as_they_are_written() {
    let (sink, file) = sink(false);
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 10, 10).await.expect("it writes");
    assert_eq!(read_csv(&text(file.try_clone().expect("a handle"), false)).len(), 10);
    load.abort().await;
    assert_eq!(read_csv(&text(file, false)).len(), 10, "what is out is out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_has_gone_ends_the_run_quietly() {
    for partitions in [1, 3] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let sink = sink_into(false, File::from(OwnedFd::from(writer)));
        let load = sink.begin(context(partitions)).await.expect("it begins");
        drop(reader);
        let error = match write(&sink, &load, partitions, 100_000, 5000).await {
            Ok(()) => load.prepare().await.expect_err("nobody reads"),
            Err(error) => error,
        };
        assert_eq!((error.kind(), error.kind().exit_code()), (ErrorKind::OutputClosed, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_does_not_wait_is_waited_for() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).expect("a flag");
    let sink = sink_into(false, File::from(OwnedFd::from(writer)));
    let slow = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map(|_| text)
    });
    run(&sink, 1, 20_000, 1000).await.expect("it runs");
    drop(sink);
    assert_eq!(read_csv(&slow.join().expect("no panic").expect("readable")).len(), 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_device_is_reported() {
    let full = fs_err::OpenOptions::new().write(true).open("/dev/full").expect("the device").into_file();
    let error = run(&sink_into(false, full), 1, 10, 10).await.expect_err("it is always full");
    assert_eq!(error.what(), "cannot write to standard output");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("no space left")), "{error:?}");
}

#[test]
fn it_is_built_from_a_format() {
    let built = build(&json!({}), parts(Path::new("-"), Arc::new(Parquet(4096)), false)).expect("any format");
    assert_eq!((built.name(), built.target().as_str()), ("stdout", "standard output"));
    assert_eq!(built.describe(schema()), "parquet to standard output");
    let mut nothing = parts(Path::new("-"), Arc::new(Csv), false);
    nothing.format = None;
    assert_eq!(build(&json!({}), nothing).expect_err("no format")[0].path, ["write"]);
    assert!(build(&json!({"lvl": 3}), parts(Path::new("-"), Arc::new(Csv), false)).is_err());
}

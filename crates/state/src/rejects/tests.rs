//! Tests of the reject log as a whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use millstream_core::RejectKind;
use millstream_core::reject::{RawText, Rejected};
use millstream_core::sink::WrittenChunks;

use super::*;

fn chunk(number: u64) -> ChunkId {
    ChunkId { sink: "o".to_owned(), unit: "s\na.csv".to_owned(), number }
}

fn reject(chunk: Option<ChunkId>, message: &str) -> RejectLine {
    RejectLine {
        rejected: Rejected {
            step: "s".to_owned(),
            kind: RejectKind::Value,
            message: message.to_owned(),
            column: None,
            source: Some("s".to_owned()),
            sink: None,
            uri: Some("a.csv".to_owned()),
            member: None,
            line: Some(7),
            id: None,
            last_line: None,
            byte: Some(70),
            raw: Some(RawText::new(b"caf\xe9")),
            row: None,
        },
        head: None,
        chunk,
        delivery: 0,
        again: None,
    }
}

fn line(line: RejectLine) -> Line {
    Line::Reject(Box::new(line))
}

fn messages(earlier: &Earlier) -> Vec<&str> {
    earlier.kept.iter().map(|kept| kept.line.rejected.message.as_str()).collect()
}

#[test]
fn nothing_is_made_until_there_is_a_reject() {
    let state = tempfile::TempDir::new().expect("a folder");
    let log = RejectLog::new(state.path(), "1-1", "1-1");
    log.add_delivery(vec![chunk(0)], vec![], vec![], HashMap::new()).expect("nothing to write");
    log.flush().expect("nothing to write");
    assert_eq!(fs_err::read_dir(state.path()).expect("a folder").count(), 0);
    log.add([line(reject(None, "bad"))], true).expect("written");
    let kept = read(&folder(state.path(), "1-1")).expect("readable").kept;
    assert_eq!((kept[0].id.as_str(), &kept[0].line), ("1-1/1", &reject(None, "bad")));
}

#[test]
fn of_a_chunk_the_last_delivery_counts() {
    let state = tempfile::TempDir::new().expect("a folder");
    let first = RejectLog::new(state.path(), "1-1", "1-1");
    first.add([line(reject(Some(chunk(0)), "read"))], false).expect("it waits");
    first
        .add_delivery(vec![chunk(0), chunk(1)], vec![reject(Some(chunk(0)), "first")], vec![], HashMap::new())
        .expect("written");
    first.add_delivery(vec![chunk(2)], vec![reject(Some(chunk(2)), "stays")], vec![], HashMap::new()).expect("written");
    let of = folder(state.path(), "1-1");
    assert_eq!(messages(&read(&of).expect("readable")), ["first", "stays"]);
    // Another run reads chunk 0 again, and does not come to its delivery.
    let second = RejectLog::new(state.path(), "1-1", "2-2");
    second.add([line(reject(Some(chunk(0)), "read again"))], true).expect("written");
    assert_eq!(messages(&read(&of).expect("readable")), ["first", "stays"]);
    let two = vec![reject(Some(chunk(0)), "second"), reject(Some(chunk(0)), "two")];
    second.add_delivery(vec![chunk(0)], two, vec![], HashMap::new()).expect("written");
    assert_eq!(messages(&read(&of).expect("readable")), ["stays", "second", "two"]);
    // Delivered once more, the chunk has none.
    second.add_delivery(vec![chunk(0)], vec![], vec![], HashMap::new()).expect("written");
    assert_eq!(messages(&read(&of).expect("readable")), ["stays"]);
    let written = WrittenChunks::new([("s\na.csv".to_owned(), 2)], str::to_owned);
    let kept = read(&of).expect("readable").kept;
    assert_eq!(committed(&kept, "o", &written).0.len(), 1);
    assert_eq!(committed(&kept, "other", &written).0.len(), 0);
}

#[test]
fn a_load_that_begins_anew_forgets() {
    let state = tempfile::TempDir::new().expect("a folder");
    let first = RejectLog::new(state.path(), "1-1", "1-1");
    let other = || {
        let mut other = reject(None, "of another source");
        other.rejected.source = Some("t".to_owned());
        other
    };
    first.add([line(reject(None, "old")), line(other())], true).expect("written");
    let second = RejectLog::new(state.path(), "1-1", "2-2");
    let anew = Line::Anew { anew: vec!["s".to_owned()] };
    second.add([anew, line(reject(None, "new"))], true).expect("written");
    let earlier = read(&folder(state.path(), "1-1")).expect("readable");
    assert_eq!(messages(&earlier), ["of another source", "new"]);
}

#[test]
fn a_truncated_frame_is_skipped_and_a_damaged_file_is_reported() {
    let state = tempfile::TempDir::new().expect("a folder");
    let log = RejectLog::new(state.path(), "1-1", "1-1");
    log.add([line(reject(None, "whole"))], true).expect("written");
    let whole = fs_err::metadata(log.path(1)).expect("a file").len();
    log.add([line(reject(None, "cut"))], true).expect("written");
    let bytes = fs_err::read(log.path(1)).expect("a file");
    for length in whole as usize..bytes.len() {
        fs_err::write(log.path(1), &bytes[..length]).expect("written");
        assert_eq!(messages(&read(&log.folder).expect("readable")), ["whole"], "{length}");
    }
    fs_err::write(log.path(1), b"this is no zstd").expect("written");
    let error = read(&log.folder).expect_err("it is damaged");
    assert!(error.what().contains("1-1.jsonl.zst cannot be read"), "{error:?}");
}

/// Writes lines as they stand in a file.
fn file(state: &Path, lines: &[&str]) -> PathBuf {
    let folder = folder(state, "1-1");
    fs_err::create_dir_all(&folder).expect("a folder");
    let text = lines.join("\n") + "\n";
    let bytes = zstd::encode_all(text.as_bytes(), 1).expect("packed");
    fs_err::write(folder.join(format!("1-1{ENDING}")), bytes).expect("written");
    folder
}

#[test]
fn a_file_says_its_version_and_a_newer_one_is_refused() {
    let state = tempfile::TempDir::new().expect("a folder");
    let log = RejectLog::new(state.path(), "1-1", "1-1");
    log.add([line(reject(None, "a"))], true).expect("written");
    log.add([line(reject(None, "b"))], true).expect("written");
    let text = zstd::decode_all(&*fs_err::read(log.path(1)).expect("a file")).expect("packed");
    let text = String::from_utf8(text).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), (r#"{"version":1,"came":{}}"#, 3));
    // A file without a version.
    let first = file(state.path(), &lines[1..]);
    assert_eq!(messages(&read(&first).expect("readable")), ["a", "b"]);
    let newer = file(state.path(), &[r#"{"version":2,"came":{}}"#, r#"{"nobody": "knows"}"#]);
    let error = read(&newer).expect_err("it is newer");
    assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
    assert!(failed_again(&newer).is_err());
}

#[test]
fn what_was_loaded_later_is_marked_and_what_failed_again_has_its_new_reason() {
    let state = tempfile::TempDir::new().expect("a folder");
    let log = RejectLog::new(state.path(), "1-1", "1-1");
    log.add([line(reject(None, "a")), line(reject(None, "b"))], true).expect("written");
    ReplayedRejects::add(&log.folder, "o", ["1-1/1".to_owned()].into_iter()).expect("written");
    let replayed = ReplayedRejects::read(&log.folder).expect("readable");
    assert!(replayed.has("1-1/1", "o") && !replayed.has("1-1/1", "other") && !replayed.has("1-1/2", "o"));
    assert_eq!((replayed.rounds("o"), replayed.rounds("other")), (1, 0));
    assert!(read(&log.folder).expect("readable").kept.iter().all(|kept| !kept.replayed));
    ReplayedRejects::finish(&log.folder, &["1-1/1".to_owned()]).expect("written");
    let again = Again { id: "1-1/2".to_owned(), sink: "o".to_owned(), round: 0 };
    let again = RejectLine { again: Some(again), ..reject(None, "b, still") };
    RejectLog::new(state.path(), "1-1", "2-2").add([line(again)], true).expect("written");
    let kept = read(&log.folder).expect("readable").kept;
    let told: Vec<_> = kept.iter().map(|kept| (kept.line.rejected.message.as_str(), kept.replayed)).collect();
    assert_eq!(told, [("a", true), ("b, still", false)]);
}

#[test]
fn what_checks_counted_counts_once_however_chunks_are_grouped() {
    let folder = tempfile::tempdir().expect("a folder");
    let counted = |rows, broken: u64| {
        let broken = (broken > 0).then(|| ("not_null: id".to_owned(), broken)).into_iter().collect();
        vec![CheckedRows { entry: "s".to_owned(), rows, broken }]
    };
    let first = RejectLog::new(folder.path(), "1", "1");
    first.add_delivery(vec![chunk(0), chunk(1)], vec![], counted(20, 3), HashMap::new()).expect("written");
    first.add_delivery(vec![chunk(2)], vec![], counted(10, 0), HashMap::new()).expect("written");
    // The first delivery was not committed, and its chunks are delivered in other groups.
    let second = RejectLog::new(folder.path(), "1", "2");
    second.add_delivery(vec![chunk(1), chunk(3)], vec![], counted(15, 2), HashMap::new()).expect("written");
    second.add_delivery(vec![chunk(0)], vec![], counted(11, 1), HashMap::new()).expect("written");
    let third = RejectLog::new(folder.path(), "1", "3");
    let earlier = third.earlier().expect("lines");
    let (unit, sink) = (|number| (chunk(0).unit, number), chunk(0).sink);
    let rows = |numbers: &[u64]| {
        let written = WrittenChunks::new(numbers.iter().map(|number| unit(*number)), str::to_owned);
        let counted: Vec<_> = committed_checks(&earlier.checked, &sink, &written).collect();
        counted.iter().map(|checked| checked.rows).sum::<u64>()
    };
    assert_eq!(rows(&[0, 1, 2, 3]), 36);
    assert_eq!(rows(&[2]), 10, "what is not committed is counted when it is delivered again");
    assert_eq!(rows(&[]), 0);
}

/// The names of the files in `folder`.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn pieces_are_read_in_their_order_and_a_half_written_one_takes_no_other_with_it() {
    let state = tempfile::TempDir::new().expect("a folder");
    let rotation = Rotation { keep: Duration::from_secs(3_000), bytes: 1 };
    let log = RejectLog::new(state.path(), "1-1", "1-1").in_pieces(rotation);
    let all: Vec<String> = (1..=12).map(|number| format!("reject {number}")).collect();
    for (number, message) in (0..).zip(&all) {
        let rejects = vec![reject(Some(chunk(number)), message)];
        log.add_delivery(vec![chunk(number)], rejects, vec![], HashMap::new()).expect("written");
    }
    let kept = read(&log.folder).expect("readable").kept;
    let ids: Vec<&str> = kept.iter().map(|kept| kept.id.as_str()).collect();
    assert_eq!((ids[0], ids[1], ids[11]), ("1-1/1", "1-1.2/1", "1-1.12/1"));
    assert_eq!(messages(&Earlier { kept, ..Earlier::default() }), all);
    let half = fs_err::read(log.path(3)).expect("a file");
    fs_err::write(log.path(3), &half[..half.len() / 2]).expect("written");
    let kept = read(&log.folder).expect("readable").kept;
    assert_eq!(kept.len(), 11);
    assert!(kept.iter().all(|kept| kept.id != "1-1.3/1"));
}

#[test]
fn old_pieces_are_removed_and_a_removed_one_is_not_written_into() {
    let state = tempfile::TempDir::new().expect("a folder");
    let day = Duration::from_secs(86_400);
    let log = |bytes| RejectLog::new(state.path(), "1-1", "1-1").in_pieces(Rotation { keep: 30 * day, bytes });
    let small = log(1);
    for message in ["old", "new"] {
        small.add([line(reject(None, message))], true).expect("written");
    }
    let other = state.path().join("rejects/2-2");
    fs_err::create_dir_all(&other).expect("a folder");
    for file in [log(1).path(1), other.join("2-2.jsonl.zst")] {
        let file = fs_err::File::options().append(true).create(true).open(file).expect("a file");
        file.into_parts().0.set_modified(SystemTime::now() - 31 * day).expect("a time");
    }
    remove_old(state.path(), &["1-1".to_owned()], 30 * day);
    assert_eq!(names(&small.folder), ["1-1.2.jsonl.zst"]);
    assert_eq!(names(&other), ["2-2.jsonl.zst"], "it is of another job");
    assert_eq!(messages(&read(&small.folder).expect("readable")), ["new"]);
    let large = RejectLog::new(state.path(), "1-1", "3-3").in_pieces(Rotation { keep: 30 * day, bytes: 1 << 20 });
    large.add([line(reject(None, "gone"))], true).expect("written");
    fs_err::remove_file(large.path(1)).expect("removed");
    large.add([line(reject(None, "kept"))], true).expect("written");
    assert_eq!(messages(&read(&small.folder).expect("readable")), ["new", "kept"]);
}

#[test]
fn dropped_chunks_have_no_rejects_and_nothing_is_remembered_of_settled_ones() {
    let state = tempfile::TempDir::new().expect("a folder");
    let log = RejectLog::new(state.path(), "1-1", "1-1").in_pieces(Rotation::new(Duration::from_secs(60)));
    for number in 0..2 {
        let rejects = vec![reject(Some(chunk(number)), &format!("of {number}"))];
        let counted = vec![CheckedRows { entry: "s".to_owned(), rows: 1, broken: Default::default() }];
        log.add_delivery(vec![chunk(number)], rejects, counted, HashMap::new()).expect("written");
    }
    log.void(&[chunk(0)]).expect("written");
    log.settle(&[chunk(1)]);
    assert!(!log.is_pending());
    let earlier = log.earlier().expect("readable");
    assert_eq!((messages(&earlier), earlier.checked.len()), (vec!["of 1"], 0));
}

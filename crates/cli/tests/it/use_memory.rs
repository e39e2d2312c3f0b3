//! Memory through the real binary: it does not grow with the number or the size of the files, and what does not fit
//! spills.
//!
//! The peaks are those of a development build, of which tens of megabytes are the program itself.

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::use_support::{Lab, csv_rows, gzip, names};

/// Runs that are compared should not run beside each other: what one waits for, the other holds.
static ALONE: Mutex<()> = Mutex::new(());

/// What two runs of the same may differ by: threads that happened to meet, arenas of the allocator.
const NOISE: f64 = 12e6;

/// 50,000 records, about 2 MB of text.
fn block() -> String {
    (0..50_000_u32).fold(String::new(), |mut text, id| {
        let _ = writeln!(text, "{id},name {},{}", id.wrapping_mul(2_654_435_761), id % 1000);
        text
    })
}

/// Folders `few`, `many` (ten times as many files) and `large` (files ten times as large).
fn lab(job: &str) -> Lab {
    let lab = Lab::with_job(job);
    let block = block();
    let member = gzip(block.as_bytes());
    let file = |blocks: usize| [gzip(b"id,name,v\n"), member.repeat(blocks)].concat();
    for (folder, files, blocks) in [("few", 4, 4), ("many", 40, 4), ("large", 4, 40)] {
        let first = lab.file(&format!("{folder}/0.csv.gz"), file(blocks));
        for number in 1..files {
            fs_err::hard_link(&first, lab.path(&format!("{folder}/{number}.csv.gz"))).expect("a link");
        }
    }
    lab
}

/// The peak of a run, from its report.
fn reported_peak(lab: &Lab, arguments: &[&str]) -> f64 {
    lab.run(arguments).ok().json()["peak_rss_bytes"].as_u64().expect("a number") as f64
}

/// The peak of a command that reports none, from the kernel while the command runs.
fn watched_peak(lab: &Lab, arguments: &[&str], expected: &str) -> f64 {
    let mut child = lab.command(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0_f64;
    while child.try_wait().expect("it can be waited for").is_none() {
        let text = fs_err::read_to_string(&status).unwrap_or_default();
        // Until it is itself, the child has the memory of the one who starts it.
        let is_child = text.starts_with("Name:\tmillstream\n");
        let line = text.lines().filter(|_| is_child).find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        peak = peak.max(kibibytes.unwrap_or(0.0) * 1024.0);
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(peak > 0.0, "it was seen at work");
    peak
}

fn assert_flat(few: f64, other: f64, what: &str) {
    assert!(other < few * 1.10 + NOISE, "{what}: from {:.1} MB to {:.1} MB", few / 1e6, other / 1e6);
}

#[test]
fn a_run_that_streams_holds_as_much_of_many_or_large_files_as_of_few() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let lab = lab("sources:\n  s: {read: '${FOLDER}/*.csv.gz', csv: {columns: {id: int64, name: utf8, v: \
         int64}}}\ntransforms:\n  \
         f: {filter: {from: s, where: v < 100}}\nsinks:\n  o: {from: f, write: out.csv.gz}\n");
    let peak = |folder: &str| {
        let set = format!("FOLDER={folder}");
        reported_peak(&lab, &["run", "job.yaml", "--json", "--cores", "2", "--set", &set])
    };
    let few = peak("few");
    assert_flat(few, peak("many"), "ten times as many");
    assert_flat(few, peak("large"), "ten times as large");
}

#[test]
fn count_holds_little_of_any_files() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let lab = lab("");
    let peak =
        |folder: &str, expected: &str| watched_peak(&lab, &["count", "--cores", "2", &format!("{folder}/*")], expected);
    let few = peak("few", "800004\n");
    let (many, large) = (peak("many", "8000040\n"), peak("large", "8000004\n"));
    assert_flat(few, many, "ten times as many");
    assert_flat(few, large, "ten times as large");
    for peak in [few, many, large] {
        assert!(peak < 128e6, "{:.1} MB", peak / 1e6);
    }
}

/// What cannot be held in the least budget there is goes to scratch, and comes back complete and in order.
#[test]
fn groups_and_sorts_that_do_not_fit_spill() {
    let lab = Lab::new();
    let count = 400_000_u64;
    let text = (0..count).fold("id,name\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},some name that is long enough {}", id * 7_919 % count);
        text
    });
    lab.file("in.csv", &text);
    let source = "sources:\n  s: {read: in.csv, csv: {columns: {id: int64, name: utf8}}}\ntransforms:\n";
    let run = |transforms: &str, from: &str| {
        let sinks = format!("sinks:\n  o: {{from: {from}, write: out.csv}}\n");
        lab.file("job.yaml", [source, transforms, &sinks].concat());
        let report: Value = lab.report(&["--memory", "64MiB"]);
        let steps = report["steps"].as_array().expect("steps");
        let spilled: u64 = steps.iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum();
        assert!(spilled > 1 << 20, "{from}: {spilled} bytes spilled: {report:#}");
    };
    run("  o: {sort: {from: s, by: [name]}}\n", "o");
    let rows = csv_rows(&lab.read("out.csv"));
    assert_eq!(rows.len() as u64, count);
    assert!(rows.is_sorted_by_key(|row| row[1].clone()));
    let ids: u64 = rows.iter().map(|row| row[0].parse::<u64>().expect("a number")).sum();
    assert_eq!(ids, count * (count - 1) / 2, "every row once");

    run(
        "  g: {sql: 'select name, count(*) AS n, min(id) AS id from s group by name'}\n  \
         t: {sql: 'select count(*) AS groups, sum(n) AS n, sum(id) AS ids from g'}\n",
        "t",
    );
    let expected = [count, count, count * (count - 1) / 2].map(|number| number.to_string());
    assert_eq!(csv_rows(&lab.read("out.csv")), [expected]);
}

/// The left side of such a join is held in memory; where it does not fit, the join reads it again from its beginning.
#[test]
fn a_join_by_a_condition_whose_left_side_does_not_fit_loses_and_doubles_nothing() {
    let lab = Lab::new();
    for file in 0..8 {
        let rows = (0..12_500).fold("id,x,pad\n".to_owned(), |mut text, row| {
            let _ = writeln!(text, "{},{},{}", file * 12_500 + row, row % 1000, "p".repeat(500));
            text
        });
        lab.file(&format!("served/{file}.csv"), rows);
    }
    lab.file("r1.csv", "low,high\n0,9\n");
    lab.file("r2.csv", "low,high\n500,509\n");
    // How large it is over there is not known, so it stays on the left.
    let nginx = millstream_testkit::Nginx::start(&lab.path("served"));
    lab.file("xs.csv", (0..1000).fold("x\n".to_owned(), |text, x| format!("{text}{x}\n")));
    std::fs::create_dir(lab.path("scratch")).expect("a folder");
    // The second has a left side whose operators can be executed only once.
    for left in ["big", "(SELECT big.* FROM big JOIN xs ON big.x = xs.x)"] {
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  big: {{read: '{}', csv: {{columns: {{id: int64, x: int64, pad: utf8}}}}}}\n  \
                 xs: {{read: xs.csv, csv: {{}}}}\n  ranges: {{read: 'r*.csv', csv: {{}}}}\ntransforms:\n  \
                 t: {{sql: 'SELECT count(*) AS n, count(low) AS matched, sum(id) AS ids, min(length(pad)) AS pad \
                 FROM {left} AS l LEFT JOIN ranges ON l.x BETWEEN low AND high'}}\n\
                 sinks:\n  o: {{from: t, write: out.csv}}\n",
                nginx.url("{0..7}.csv")
            ),
        );
        let report = lab.report(&["--memory", "80MiB", "--cores", "2", "--scratch", "scratch"]);
        assert_eq!(csv_rows(&lab.read("out.csv")), [["100000", "2000", "4999950000", "500"]]);
        assert!(report["rows_read"].as_u64() > Some(101_002), "it must have been read again");
        assert_eq!(names(&lab.path("scratch")), [""; 0], "what was spilled is gone");
    }
}

//! Scratch of sorts: machine files and their pools, disks that are full or fail, and processes that are killed in
//! either phase.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::Mount;

use crate::harness::{self, MILLSTREAM};
use crate::use_support::{Lab, finish, names, sorted};

/// How long something may take to begin.
const PATIENCE: Duration = Duration::from_secs(180);

/// Lines of 80 bytes in no order; `count` of them, which differ in their first bytes.
fn lines(count: u64) -> String {
    (0..count).fold(String::new(), |mut text, row| {
        let _ =
            writeln!(text, "{:09} {}", row * 7_919 % count, "a line that has some length ".repeat(2) + "and ends here");
        text
    })
}

/// A job that sorts the lines of `read` to `write`, in a folder with `scratch/`.
fn lab(read: &str, write: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: '{read}', lines: {{}}}}\ntransforms:\n  o: {{sort: {{from: s, by: line}}}}\nsinks:\n  \
         out: {{from: o, write: '{write}', lines: {{}}}}\n"
    ));
    fs_err::create_dir(lab.path("scratch")).expect("writable");
    lab
}

const RUN: [&str; 6] = ["run", "job.yaml", "--memory", "64MiB", "--cores", "2"];

/// `RUN` with scratch in `folder`.
fn with_scratch(folder: &str) -> Vec<&str> {
    [&RUN[..], &["--scratch", folder]].concat()
}

/// A run whose input is written, and whose output is read, as the test likes; killed when the test ends.
struct Running(Child);

impl Running {
    fn start(lab: &Lab) -> Self {
        let mut command = lab.command(&with_scratch("scratch"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("it starts"))
    }

    fn feed(&mut self, text: &str) {
        self.0.stdin.as_mut().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    }

    /// Waits until it has written to scratch, which it does to files without names.
    fn wait_for_runs(&self) {
        let folder = format!("/proc/{}/fd", self.0.id());
        self.wait_until(|| {
            let links = fs_err::read_dir(&folder).into_iter().flatten().flatten();
            links.into_iter().any(|link| {
                let target = fs_err::read_link(link.path()).unwrap_or_default();
                let written = fs_err::metadata(link.path()).is_ok_and(|file| file.is_file() && file.len() > 0);
                written && target.to_string_lossy().contains("/scratch/millstream-")
            })
        });
    }

    fn wait_until(&self, mut there: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !there() {
            assert!(begun.elapsed() < PATIENCE, "it never began");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As `kill -9` does.
    fn kill(mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("it has ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// After a run was killed its folder is there, with nothing in it but its lock, and the next run removes it.
fn what_is_left_goes_with_the_next_run(lab: &Lab) {
    let left = names(&lab.path("scratch"));
    assert_eq!(left.len(), 1, "{left:?}");
    let folder = lab.path("scratch").join(&left[0]);
    // The SQL engine has a folder of its own in it.
    let files = names(&folder).into_iter().filter(|name| name != "lock" && !names(&folder.join(name)).is_empty());
    assert_eq!(files.collect::<Vec<_>>(), [""; 0], "runs have no names");
    finish(lab.command(&with_scratch("scratch")), Some(b"b\na\n".to_vec())).ok();
    assert_eq!(names(&lab.path("scratch")), [""; 0]);
}

/// As on a failing disk: larger files cannot be written.
#[test]
fn a_write_that_fails_is_reported_and_leaves_nothing() {
    let lab = lab("in.txt", "out.txt");
    lab.file("in.txt", lines(400_000));
    let mut limited = harness::program(lab.0.root(), "bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$0\" \"$@\"", MILLSTREAM]).args(with_scratch("scratch"));
    let ran = finish(limited, None);
    ran.ended(1).says(&["rows to sort cannot be written to scratch in ", "file too large"]);
    assert_eq!(names(&lab.path("scratch")), [""; 0], "nothing is left in scratch");
    assert!(!lab.path("out.txt").exists());
}

#[test]
fn a_kill_in_the_sorting_phase_leaves_nothing() {
    let lab = lab("-", "-");
    let mut run = Running::start(&lab);
    run.feed(&lines(300_000));
    run.wait_for_runs();
    run.kill();
    what_is_left_goes_with_the_next_run(&lab);
}

#[test]
fn a_kill_in_the_merging_phase_leaves_nothing() {
    let lab = lab("-", "-");
    let mut run = Running::start(&lab);
    run.feed(&lines(400_000));
    drop(run.0.stdin.take());
    // The first output appears when the merge has begun. The merge cannot end, since the rest is not read.
    let mut first = [0; 9];
    run.0.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("it writes");
    assert_eq!(&first, b"000000000");
    run.wait_for_runs();
    run.kill();
    what_is_left_goes_with_the_next_run(&lab);
}

#[test]
fn scratch_that_is_removed_while_it_is_in_use_is_no_matter() {
    let lab = lab("-", "out.txt");
    let mut run = Running::start(&lab);
    let text = lines(300_000);
    let (first, second) = text.split_at(81 * 200_000);
    run.feed(first);
    run.wait_for_runs();
    fs_err::remove_dir_all(lab.path("scratch")).expect("it is there");
    run.feed(second);
    drop(run.0.stdin.take());
    assert!(run.0.wait().expect("it ends").success());
    assert!(lab.read("out.txt").lines().eq(sorted(text.lines().collect::<Vec<_>>())));
}

#[test]
fn scratch_that_is_removed_before_it_is_used_is_reported() {
    let lab = lab("-", "out.txt");
    let mut run = Running::start(&lab);
    run.feed("first\n");
    run.wait_until(|| !names(&lab.path("scratch")).is_empty());
    // Its lock, and what the SQL engine makes there.
    run.wait_until(|| names(&lab.path("scratch").join(&names(&lab.path("scratch"))[0])).len() == 2);
    fs_err::remove_dir_all(lab.path("scratch")).expect("it is there");
    let text = lines(300_000);
    // It may end before it has read all.
    let _ = run.0.stdin.take().expect("a pipe").write_all(text.as_bytes());
    let mut stderr = String::new();
    run.0.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!(run.0.wait().expect("it ends").code(), Some(1), "{stderr}");
    assert!(stderr.contains("rows to sort cannot be written to scratch in "), "{stderr}");
    assert!(stderr.contains("/scratch/millstream-"), "{stderr}");
    assert!(!lab.path("out.txt").exists());
}

#[test]
fn rows_that_are_larger_than_what_a_sort_may_hold() {
    let lab = lab("in.txt", "out.txt");
    lab.file("job.yaml", lab.read("job.yaml").replace("'in.txt', lines: {}", "'in.txt', lines: {max_record: 64MB}"));
    let mut text = lines(1000);
    for length in [20, 3, 12] {
        let _ = writeln!(text, "{:09} {}", length, "long ".repeat(length << 18));
    }
    lab.file("in.txt", &text);
    lab.run(&with_scratch("scratch")).ok();
    assert!(lab.read("out.txt").lines().eq(sorted(text.lines().collect::<Vec<_>>())));
    assert_eq!(names(&lab.path("scratch")), [""; 0]);
}

/// What all steps of a run wrote to scratch.
fn spilled(lab: &Lab, arguments: &[&str]) -> u64 {
    let ran = lab.run(&[&RUN[..], &["--json"], arguments].concat());
    let report = ran.ok().json();
    report["steps"].as_array().expect("steps").iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum()
}

#[test]
fn a_machine_file_says_where_and_how() {
    let lab = lab("in.txt", "out.txt");
    let text = lines(400_000);
    lab.file("in.txt", &text);
    let expected = sorted(text.lines().collect::<Vec<_>>());
    lab.file("plain.yaml", "scratch: {disks: [scratch], compression: none}\n");
    let plain = spilled(&lab, &["--machine", "plain.yaml"]);
    assert!(plain > 10 << 20, "{plain}");
    let packed = spilled(&lab, &["--scratch", "scratch"]);
    assert!(packed < plain * 6 / 10, "as nothing is said: {packed} of {plain}");
    for compression in ["lz4", "zstd"] {
        lab.file(
            "machine.yaml",
            format!(
                "scratch:\n  disks: [scratch, more]\n  compression: {compression}\n  block: 32KiB\n  buffer: true\n"
            ),
        );
        let _ = fs_err::create_dir(lab.path("more"));
        let packed = spilled(&lab, &["--machine", "machine.yaml"]);
        assert!(packed < plain * 6 / 10, "{compression}: {packed} of {plain}");
        assert!(lab.read("out.txt").lines().eq(expected.iter().copied()));
    }
    assert_eq!((names(&lab.path("scratch")), names(&lab.path("more"))), (vec![], vec![]));
    let mut command = lab.command(&["explain", "job.yaml"]);
    command.env("MILLSTREAM_MACHINE", "machine.yaml");
    let plan = finish(command, None).ok().stdout.clone();
    assert!(
        plan.contains("scratch in scratch, more, runs packed with zstd, in blocks of 32.8 kB, a buffer before"),
        "{plan}"
    );
}

#[test]
fn what_the_command_line_says_comes_before_the_machine_file() {
    let lab = lab("in.txt", "out.txt");
    lab.file("in.txt", "b\na\n");
    lab.file(
        "machine.yaml",
        "memory: 100MB\ncores: 1\nscratch: {disks: [scratch]}\nnodes:\n  a: {cores: 7}\n  b: {memory: 200MB}\n",
    );
    let plan = |arguments: &[&str]| {
        let all = [&["explain", "job.yaml", "--machine", "machine.yaml"], arguments].concat();
        lab.run(&all).ok().stdout.lines().next().expect("a line").to_owned()
    };
    let first = plan(&["--node", "a"]);
    assert!(first.starts_with("machine: 7 cores, 100 MB") && first.ends_with("scratch in scratch"), "{first}");
    assert!(plan(&["--node", "b"]).starts_with("machine: 1 cores, 200 MB"));
    let asked =
        plan(&["--node", "b", "--cores", "3", "--memory", "300MB", "--scratch", "/tmp", "--scratch", "scratch"]);
    assert!(asked.starts_with("machine: 3 cores, 300 MB") && asked.ends_with("scratch in /tmp, scratch"), "{asked}");
    lab.run(&["run", "job.yaml", "--machine", "machine.yaml", "--node", "c"]).ended(2).says(&[
        "machine.yaml:4:1",
        "this machine is `c`, and no node has this name",
        "nodes: a, b",
    ]);
}

#[test]
fn what_is_wrong_with_a_machine_file_is_reported_with_its_places() {
    let lab = lab("in.txt", "out.txt");
    lab.file("in.txt", "b\na\n");
    let told = |text: &str, parts: &[&str]| {
        lab.file("machine.yaml", text);
        lab.run(&["run", "job.yaml", "--machine", "machine.yaml"]).ended(2).says(parts);
        assert!(!lab.path("out.txt").exists());
    };
    told("memory: 12MB\n", &["machine.yaml:1:9", "a memory budget of 12.0 MB is too small", "64MiB"]);
    told("scratch: {block: 1GB}\n", &["machine.yaml:1:18", "blocks of 1.00 GB", "16MiB"]);
    told(
        "scratch:\n  disks: [scratch, /no/such/folder, scratch]\n",
        &["machine.yaml:2:20", "/no/such/folder", "no such file", "machine.yaml:2:37", "is named twice"],
    );
    told("scratch: {disk: [a]}\n", &["machine.yaml:1:11", "unknown key `disk`", "did you mean `disks`?"]);
    lab.run(&["run", "job.yaml", "--machine", "none.yaml"]).ended(2).says(&["none.yaml", "there is no such file"]);
    lab.file("latin.yaml", b"memory: \xff\n");
    lab.run(&["run", "job.yaml", "--machine", "latin.yaml"]).ended(2).says(&["latin.yaml:1:9", "not UTF-8"]);
}

#[test]
fn a_sort_names_its_pool() {
    let Some(small) = Mount::tmpfs("size=2m") else { return };
    let lab = lab("-", "out.txt");
    let text = lines(300_000);
    let machine = |disks: &str| lab.file("machine.yaml", format!("scratch:\n  compression: none\n  disks:\n{disks}"));
    let small = small.path().display();
    machine(&format!("    - {small}\n    - {{folder: scratch, pools: [large]}}\n"));
    let run = [&RUN[..], &["--machine", "machine.yaml"]].concat();
    let ran = lab.run_with_input(&run, text.as_bytes());
    ran.ended(1).says(&["rows to sort cannot be written to scratch in", &small.to_string(), "no space left"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("by: line", "by: line, pool: large"));
    lab.run_with_input(&run, text.as_bytes()).ok();
    assert!(lab.read("out.txt").lines().eq(sorted(text.lines().collect::<Vec<_>>())));
    let plan = lab.run(&[&["explain"], &run[1..]].concat());
    assert!(plan.ok().stdout.contains("pool=large"), "{}", plan.stdout);
    assert!(
        plan.stdout.contains(&format!("scratch in {small} (in memory), scratch for large, runs as")),
        "{}",
        plan.stdout
    );
    // An unknown pool is an error; without any pools the setting is ignored.
    lab.file("job.yaml", lab.read("job.yaml").replace("pool: large", "pool: larg"));
    lab.run_with_input(&run, b"b\na\n").ended(2).says(&[
        "job.yaml:4:39",
        "no scratch in a pool `larg`",
        "did you mean `large`?",
    ]);
    lab.run_with_input(&with_scratch("scratch"), b"b\na\n").ok();
    assert_eq!(names(Path::new(&small.to_string())), [""; 0]);
}

#[test]
fn another_disk_is_used_when_one_is_full() {
    let Some(small) = Mount::tmpfs("size=2m") else { return };
    let lab = lab("-", "out.txt");
    let text = lines(300_000);
    let small = small.path().display().to_string();
    // Packed, all of it would fit.
    lab.file("plain.yaml", "scratch: {compression: none}\n");
    let run = [&with_scratch(&small)[..], &["--machine", "plain.yaml"]].concat();
    let ran = lab.run_with_input(&run, text.as_bytes());
    ran.ended(1).says(&["rows to sort cannot be written to scratch in", &small, "no space left", "was to be written"]);
    assert!(names(Path::new(&small)).is_empty() && !lab.path("out.txt").exists());
    let both = [&run[..], &["--scratch", "scratch"]].concat();
    lab.run_with_input(&both, text.as_bytes()).ok();
    assert!(lab.read("out.txt").lines().eq(sorted(text.lines().collect::<Vec<_>>())));
    assert!(names(Path::new(&small)).is_empty() && names(&lab.path("scratch")).is_empty());
}

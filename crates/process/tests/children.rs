//! Programs start, answer, fail and end, and none is left behind.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::program::Lines;
use millstream_process::{Child, Children, Program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What takes lines, and what it has taken.
fn collected() -> (Lines, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let taken = Arc::clone(&lines);
    (Arc::new(move |line: &str| taken.lock().expect("no panic").push(line.to_owned())), lines)
}

fn program(command: &[&str]) -> Program {
    Program { command: command.iter().map(OsString::from).collect(), ..Program::default() }
}

async fn start(children: &Children, command: &[&str]) -> Child {
    children.start(&program(command), collected().0).await.expect("started")
}

async fn output(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().expect("untouched").read_to_string(&mut text).await.expect("read");
    text
}

/// Whether the process `id` is there and has not ended.
fn lives(id: i32) -> bool {
    let stat = fs_err::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !matches!(rest.trim().chars().next(), None | Some('Z' | 'X')))
}

fn all_end(ids: &[i32]) {
    let begun = Instant::now();
    while ids.iter().any(|id| lives(*id)) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{ids:?} live");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A shell that has a child of its own and waits; it writes the number of the child.
const TREE: &[&str] = &["sh", "-c", "sleep 1000 & echo $!; wait"];

async fn tree(children: &Children) -> (Child, Vec<i32>) {
    let mut child = start(children, TREE).await;
    let mut text = [0; 20];
    let length = child.stdout.as_mut().expect("untouched").read(&mut text).await.expect("read");
    let grandchild = String::from_utf8_lossy(&text[..length]).trim().parse().expect("a number");
    let ids = vec![child.id(), grandchild];
    assert!(ids.iter().all(|id| lives(*id)));
    (child, ids)
}

#[tokio::test]
async fn a_program_answers_and_ends() {
    let children = Children::new().expect("started");
    let mut child = start(&children, &["cat"]).await;
    let mut stdin = child.stdin.take().expect("untouched");
    stdin.write_all(b"one\ntwo\n").await.expect("written");
    drop(stdin);
    assert_eq!(output(&mut child).await, "one\ntwo\n");
    let ending = child.wait().await.expect("known");
    assert!(ending.is_success(), "{ending}");
    assert_eq!(child.wait().await.expect("still known"), ending);
}

#[tokio::test]
async fn what_it_says_when_it_fails_is_there() {
    let children = Children::new().expect("started");
    let (lines, taken) = collected();
    let script = "for i in $(seq 30); do echo line $i >&2; done; exit 3";
    let mut child = children.start(&program(&["sh", "-c", script]), lines).await.expect("started");
    let ending = child.wait().await.expect("known");
    assert_eq!((ending.is_success(), ending.to_string().as_str()), (false, "it ended with status 3"));
    assert_eq!(taken.lock().expect("no panic").len(), 30);
    let last = child.last_lines();
    assert_eq!((last.len(), last[0].as_str(), last[19].as_str()), (20, "line 11", "line 30"));
    let mut killed = start(&children, &["sh", "-c", "kill -9 $$"]).await;
    assert_eq!(killed.wait().await.expect("known").to_string(), "it was killed (signal 9)");
}

#[tokio::test]
async fn a_program_that_is_none_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs_err::write(folder.path().join(name), text).expect("written");
    write("plain.sh", "#!/bin/sh\n");
    write("lost.sh", "#!/nonexistent/interpreter\n");
    let children = Children::new().expect("started");
    for (command, cause) in [
        ("millstream-nonexistent", "no such file or directory"),
        ("./plain.sh", "permission denied"),
        ("./nosuch.sh", "no such file or directory"),
    ] {
        let program = Program { folder: Some(folder.path().to_owned()), ..program(&[command]) };
        let error = children.start(&program, collected().0).await.expect_err(command);
        assert_eq!(error.what(), format!("the program `{command}` cannot be started"));
        assert_eq!(error.cause_text().map(str::to_lowercase).as_deref(), Some(cause), "{command}");
        assert!(error.hint_text().is_some(), "{command}");
    }
}

#[tokio::test]
async fn the_environment_is_what_was_given() {
    let children = Children::new().expect("started");
    let mut program = program(&["sh", "-c", "echo $GIVEN-$HOME-"]);
    program.environment.push(("GIVEN".to_owned(), "here".into()));
    program.withheld.push("HOME".to_owned());
    let mut child = children.start(&program, collected().0).await.expect("started");
    assert_eq!(output(&mut child).await, "here--\n");
}

#[tokio::test]
async fn a_program_that_is_dropped_ends_with_its_children() {
    let children = Children::new().expect("started");
    let (child, ids) = tree(&children).await;
    drop(child);
    all_end(&ids);
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let children = Children::new().expect("started");
    let mut child = start(&children, &["sh", "-c", "sleep 1000 >&- 2>&- & echo $!"]).await;
    let left: i32 = output(&mut child).await.trim().parse().expect("a number");
    assert!(child.wait().await.expect("known").is_success());
    all_end(&[left]);
}

/// Not a test of its own: the next one runs it in a process, and kills that.
#[tokio::test]
#[ignore = "runs in a process of its own"]
async fn a_process_that_will_be_killed() {
    let children = Children::new().expect("started");
    let (_first, ids) = tree(&children).await;
    let (_second, more) = tree(&children).await;
    println!("\nids {} {} {} {} {}", ids[0], ids[1], more[0], more[1], copy());
    tokio::time::sleep(Duration::from_secs(600)).await;
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let this = std::env::current_exe().expect("known");
    let mut process = Command::new(this)
        .args(["--exact", "a_process_that_will_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let stdout = std::io::BufReader::new(process.stdout.take().expect("piped"));
    let ids = std::io::BufRead::lines(stdout)
        .find_map(|line| line.expect("text").strip_prefix("ids ").map(str::to_owned))
        .expect("it said which");
    let ids: Vec<i32> = ids.split(' ').map(|id| id.parse().expect("a number")).collect();
    assert!(ids.len() == 5 && ids.iter().all(|id| lives(*id)), "{ids:?}");
    process.kill().expect("killed");
    process.wait().expect("ended");
    // What another thread has forked lives on, and keeps nobody from ending.
    let [programs @ .., copy] = &ids[..] else { panic!("{ids:?}") };
    all_end(programs);
    assert!(lives(*copy));
    end(*copy);
}

/// A copy of this process, which does nothing.
fn copy() -> i32 {
    // SAFETY: the copy makes no other call than this one, which is safe there.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: it has no arguments.
            unsafe { libc::pause() };
        },
        process => process,
    }
}

fn end(process: i32) {
    // SAFETY: the process was started here and not waited for.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

#[tokio::test]
async fn a_copy_of_the_process_holds_no_pipe_open() {
    let children = Children::new().expect("started");
    let mut child = start(&children, &["cat"]).await;
    let copy = copy();
    child.stdin.take().expect("untouched").write_all(b"one").await.expect("written");
    let ended = tokio::time::timeout(Duration::from_secs(120), child.over()).await;
    assert!(lives(copy));
    end(copy);
    ended.expect("it saw the end of its input");
    assert_eq!(output(&mut child).await, "one");
}

/// The guard is a copy of a process that may hold much and have any arguments.
#[test]
fn the_guard_has_neither_the_memory_nor_the_arguments_of_the_process() {
    let held = vec![1_u8; 200 << 20];
    let _children = Children::new().expect("started");
    let this = std::process::id();
    let status = |id: i32| fs_err::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
        line.unwrap_or_default().trim().trim_end_matches(" kB").to_owned()
    };
    let guards = || {
        let processes = fs_err::read_dir("/proc").expect("processes");
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let is_guard = |id: &i32| {
            let status = status(*id);
            field(&status, "PPid") == this.to_string() && field(&status, "Name") == "millstream-guar"
        };
        ids.filter(is_guard).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    let is_light = |id: &i32| field(&status(*id), "RssAnon").parse::<u64>().is_ok_and(|kilobytes| kilobytes < 20 << 10);
    while guards().is_empty() || !guards().iter().all(is_light) {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            guards().into_iter().map(status).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    for guard in guards() {
        let line = fs_err::read_to_string(format!("/proc/{guard}/cmdline")).unwrap_or_default();
        // One of another test may have ended.
        assert!(line.is_empty() || line.trim_end_matches('\0') == "millstream-guard", "{line}");
    }
    assert_eq!(held[held.len() - 1], 1);
}

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
        assert!(begun.elapsed() < Duration::from_secs(20), "{ids:?} live");
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
    println!("\nids {} {} {} {}", ids[0], ids[1], more[0], more[1]);
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
    assert!(ids.len() == 4 && ids.iter().all(|id| lives(*id)), "{ids:?}");
    process.kill().expect("killed");
    process.wait().expect("ended");
    all_end(&ids);
}

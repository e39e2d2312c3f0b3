//! Sinks that keep no positions take the rows of a queue at least once.

use super::*;

/// Messages into a sink with these keys.
fn scene(until: &str, sink: &str) -> Scene {
    let scene = Scene::new(in_sqlite, &format!("until: {until}\ncommit: {{rows: 300}}"), "", "");
    let job = scene.lab.read("job.yaml");
    let source = &job[..job.find("sinks:").expect("it has sinks")];
    scene.lab.file("job.yaml", format!("{source}sinks:\n  o: {{from: events, {sink}}}\n"));
    scene
}

fn ids<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<usize> {
    lines.filter_map(|line| line.split(',').next()?.parse().ok()).collect()
}

#[test]
fn rows_are_counted_and_discarded() {
    let scene = scene("now", "write: discard");
    scene.add(0..1_000);
    let explained = scene.lab.run(&["explain", "job.yaml"]);
    let guarantee = "rows become visible epoch by epoch, at least once: rows are counted before";
    assert!(explained.ok().stdout.contains(guarantee), "{}", explained.stdout);
    scene.run(&[]).ok().says(&["1,000 rows read, 1,000 written"]);
    assert!(scene.pending().starts_with('0'), "{}", scene.pending());
}

#[test]
fn rows_come_to_standard_output_under_one_heading() {
    let scene = scene("now", "write: '-', csv: {}");
    scene.add(0..1_000);
    let ran = scene.run(&[]);
    let lines: Vec<&str> = ran.ok().stdout.lines().collect();
    assert_eq!((lines.len(), lines[0]), (1_001, "id,name,_id"));
    assert_eq!(ids(lines.into_iter()), (0..1_000).collect::<Vec<_>>());
    assert!(scene.pending().starts_with('0'), "{}", scene.pending());
}

/// A program runs once for each epoch, and again for those that were not acknowledged.
#[test]
fn a_program_gets_each_epoch() {
    let program = "[sh, -c, 'cat > \"epoch-$MILLSTREAM_RUN.csv\"']";
    let scene = scene("{empty: 1s}", &format!("command: {program}, exchange: csv"));
    scene.add(0..1_000);
    assert_eq!(scene.start("epoch.committed:2").wait().expect("it ends").signal(), Some(9));
    scene.run(&[]).ok();
    let files: Vec<_> = fs_err::read_dir(scene.lab.path("")).expect("a folder").filter_map(Result::ok).collect();
    let files = files.iter().filter(|file| file.file_name().to_string_lossy().starts_with("epoch-"));
    let texts: Vec<String> = files.map(|file| fs_err::read_to_string(file.path()).expect("it is read")).collect();
    assert!(texts.len() > 3, "{}", texts.len());
    let mut all = ids(texts.iter().flat_map(|text| text.lines()));
    assert!(all.len() > 1_000, "what was not acknowledged comes again");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
    assert!(scene.pending().starts_with('0'), "{}", scene.pending());
}

#[test]
fn a_program_that_fails_ends_the_run_and_its_messages_come_again() {
    let scene = scene("now", "command: [sh, -c, 'cat > /dev/null; test -e ready'], exchange: csv");
    scene.add(0..10);
    scene.run(&[]).ended(1).says(&["the program `sh` failed"]);
    scene.lab.file("ready", "");
    let job = scene.lab.read("job.yaml").replace("until: now", "until: {empty: 1s}");
    scene.lab.file("job.yaml", job);
    scene.run(&[]).ok().says(&["10 rows read, 10 written"]);
    assert!(scene.pending().starts_with('0'), "{}", scene.pending());
}

#[test]
fn sinks_that_take_no_epochs_say_why() {
    for (sink, why) in [
        ("write: out.csv, roll: {rows: 10}", "`roll` spreads all rows over files"),
        ("write: '-', parquet: {}", "cannot be written piece by piece"),
    ] {
        let scene = scene("now", sink);
        for command in ["run", "explain"] {
            scene.lab.run(&[command, "job.yaml"]).ended(2).says(&["`o` cannot take rows of a queue", why]);
        }
    }
}

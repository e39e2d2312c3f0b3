//! The server is killed again and again, while it starts, cancels and resumes runs for several clients: no run is lost,
//! none is doubled, and nothing that it answered is forgotten.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, Served, numbers};
use crate::use_support::sqlite;

/// How often the server is killed.
const KILLS: usize = 50;

/// Numbers that only look random, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn a_server_that_is_killed_at_any_moment_loses_nothing() {
    let job = |name: &str| {
        format!(
            "throttle: {{bytes_per_second: 200kB}}\nsources:\n  s: {{read: in.csv, csv: {{columns: {{n: int64}}}}, \
                add: \
             [_line]}}\nsinks:\n  o: {{from: s, write: 'sqlite:{name}.db', table: t}}\n"
        )
    };
    let rows = 20_000;
    let mut files: Vec<(String, String)> = (0..4).map(|n| (format!("job{n}.yaml"), job(&format!("job{n}")))).collect();
    files.push(("in.csv".to_owned(), numbers(rows)));
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let mut served = Served::new(&files);
    let token = served.browser().token;
    let mut dice = Dice(std::process::id().into());
    eprintln!("the dice begin with {}", dice.0);
    let (mut begun, mut asked) = (BTreeSet::new(), 0);
    for _ in 0..KILLS {
        let until = Instant::now() + Duration::from_millis(dice.below(700));
        while Instant::now() < until {
            let browser = super::Browser { served: &served, token: token.clone() };
            let action = match dice.below(4) {
                0 => {
                    let file = format!("job{}.yaml", dice.below(4));
                    browser.send("POST", "/api/v1/start", &json!({"file": file}))
                }
                1 => {
                    let runs = browser.get("/api/v1/runs?outcome=running&limit=1");
                    let Some(run) = runs["runs"][0]["run"].as_str().map(str::to_owned) else { continue };
                    browser.send("POST", &format!("/api/v1/runs/{run}/cancel"), &Value::Null);
                    continue;
                }
                2 => {
                    let runs = browser.get("/api/v1/runs?unfinished=true&limit=1");
                    let Some(run) = runs["runs"][0]["run"].as_str().map(str::to_owned) else { continue };
                    browser.send("POST", &format!("/api/v1/runs/{run}/resume"), &Value::Null)
                }
                _ => {
                    browser.get("/api/v1/overview");
                    continue;
                }
            };
            if action.status == 200 {
                asked += 1;
                begun.insert(action.json()["id"].as_str().expect("a name").to_owned());
            }
        }
        served.kill_and_restart();
    }
    let browser = super::Browser { served: &served, token };
    // Whatever it has answered is still known, with what has become of it.
    let since = Instant::now();
    // The last 200 are kept.
    for id in begun.iter().rev().take(150) {
        let action = browser.get_until(&format!("/api/v1/actions/{id}"), |action| action["state"] != "running");
        let is_right = match action["state"].as_str() {
            Some("done") => true,
            // A second run of a job is refused while one runs, and some are cancelled.
            Some("failed" | "lost") => true,
            _ => false,
        };
        assert!(is_right, "{action}");
    }
    assert!(since.elapsed() < PATIENCE && asked >= 10, "{asked} were asked for");
    assert_eq!(begun.len(), asked, "each has a name of its own");
    // Nobody runs behind the back of the history.
    browser.get_until("/api/v1/runs?outcome=running", |runs| runs["runs"] == json!([]));
    let command = served.lab.run(&["runs", "--json", "-n", "1000"]).ok().json();
    let of_command: Vec<&Value> = command["runs"].as_array().expect("runs").iter().map(|run| &run["run"]).collect();
    let mut of_server = Vec::new();
    let mut path = "/api/v1/runs?limit=50".to_owned();
    loop {
        let list = browser.get(&path);
        of_server.extend(list["runs"].as_array().expect("runs").iter().map(|run| run["run"].clone()));
        match list["next"].as_str() {
            Some(next) => path = format!("/api/v1/runs?limit=50&before={next}"),
            None => break,
        }
    }
    assert_eq!(of_command, of_server.iter().collect::<Vec<_>>());
    // What is left of each job is done, and each of its rows is there as often as its logical runs say.
    for number in 0..4 {
        let file = format!("job{number}.yaml");
        let unfinished = browser.get(&format!("/api/v1/runs?file={file}&unfinished=true&limit=1"));
        if let Some(run) = unfinished["runs"][0]["run"].as_str() {
            let action = browser.post(&format!("/api/v1/runs/{run}/resume"), &Value::Null);
            let ended = browser.ended(&action);
            assert_eq!(ended["state"], "done", "{ended}");
        }
        let runs = browser.get(&format!("/api/v1/runs?file={file}&limit=500"));
        let runs = runs["runs"].as_array().expect("runs");
        let done: BTreeSet<&str> =
            runs.iter().filter(|run| run["outcome"] == "done").filter_map(|run| run["logical"].as_str()).collect();
        if done.is_empty() {
            continue;
        }
        let counts = sqlite(
            &served.lab.path(&format!("jobs/job{number}.db")),
            "SELECT min(c), max(c), count(*) FROM (SELECT count(*) AS c FROM t GROUP BY n)",
        );
        let counts: Vec<u64> = counts[0].iter().map(|count| count.parse().expect("a number")).collect();
        let all: BTreeSet<&str> = runs.iter().filter_map(|run| run["logical"].as_str()).collect();
        assert_eq!(counts[2], rows, "{file}");
        let (least, most) = (done.len() as u64, all.len() as u64);
        assert!(least <= counts[0] && counts[1] <= most, "{file}: {counts:?}, {least} done of {most}");
    }
}

//! The API as a whole: it is as its description says, and bad requests, clients and state folders do it no harm.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::{Served, is_otherwise, numbers};
use crate::use_support::Lab;

const JOB: &str = "sources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n";

#[test]
fn answers_are_as_the_description_says() {
    let served = Served::new(&[
        ("job.yaml", JOB),
        ("in.csv", &numbers(10)),
        ("nightly.yaml", "schedule: {cron: '0 2 * * *'}\nsteps:\n  load: {job: job.yaml}\n"),
    ]);
    let description = served.send("GET", "/api/v1/openapi.json", "", "").is(200).json();
    let browser = served.browser();
    let run = browser.start(&json!({"file": "job.yaml"}));
    browser.run_ended(&run);
    let sequence = browser.start(&json!({"file": "nightly.yaml"}));
    browser.run_ended(&sequence);
    let action = browser.get("/api/v1/actions")["actions"][0]["id"].as_str().expect("a name").to_owned();
    let seen = browser.get("/api/v1/file?file=job.yaml")["etag"].clone();
    let schema_of = |method: &str, path: &str| {
        let mut schema =
            description["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"].clone();
        assert!(schema.is_object(), "{method} {path}");
        schema["components"] = description["components"].clone();
        jsonschema::validator_for(&schema).expect("a schema")
    };
    let mut seen_paths = 0;
    for (path, operations) in description["paths"].as_object().expect("paths") {
        for method in operations.as_object().expect("operations").keys() {
            if is_otherwise(method, path) {
                continue;
            }
            let queries: &[&str] = match path.as_str() {
                "/api/v1/file" | "/api/v1/check" | "/api/v1/explain" => &["?file=job.yaml", "?file=nightly.yaml"],
                "/api/v1/preview" => &["?file=job.yaml"],
                "/api/v1/runs" => &["", "?outcome=done&kind=job&limit=1", "?unfinished=true"],
                "/api/v1/history" => &["", "?file=job.yaml&days=7"],
                _ => &[""],
            };
            let body = match (method.as_str(), path.as_str()) {
                ("post", "/api/v1/start") => json!({"file": "job.yaml"}),
                ("put", _) => json!({"file": "job.yaml", "text": JOB, "etag": seen}),
                _ => Value::Null,
            };
            for (query, run) in queries.iter().flat_map(|query| [(query, &run), (query, &sequence)]) {
                let address = path.replace("{run}", run).replace("{id}", &action);
                let answer = browser.send(&method.to_uppercase(), &format!("{address}{query}"), &body);
                if answer.status == 200 {
                    let json = answer.json();
                    let errors: Vec<String> =
                        schema_of(method, path).iter_errors(&json).map(|error| error.to_string()).collect();
                    assert!(errors.is_empty(), "{method} {path}: {errors:?}\n{json}");
                    seen_paths += 1;
                } else {
                    // Nothing is left to resume, to cancel or to replay.
                    assert!(method == "post" && [400, 409].contains(&answer.status), "{method} {path}: {answer:?}");
                    assert!(!answer.problem().starts_with(':'), "{answer:?}");
                }
            }
        }
    }
    assert!(seen_paths > 30, "{seen_paths}");
}

#[test]
fn bad_requests_get_clear_errors() {
    let served = Served::new(&[("job.yaml", JOB)]);
    let browser = served.browser();
    let headers = format!("authorization: Bearer {}\r\n", browser.token);
    for (method, path, body, status, says) in [
        ("GET", "/api/v1/nothing", "", 404, "no such path"),
        ("GET", "/api/v1/runs/no-such", "", 404, "no such run"),
        ("GET", "/api/v1/runs/..%2f..%2fetc", "", 404, "no such run"),
        ("GET", "/api/v1/actions/..%2f..", "", 404, "nothing with this name"),
        ("DELETE", "/api/v1/runs", "", 405, "does not answer this method"),
        ("GET", "/api/v1/runs?limit=many", "", 400, "the query is wrong"),
        ("GET", "/api/v1/runs?colour=red", "", 400, "the query is wrong"),
        ("GET", "/api/v1/runs?outcome=great", "", 400, "this is no outcome"),
        ("POST", "/api/v1/start", "{", 400, "the body of the request is wrong"),
        ("POST", "/api/v1/start", "\u{fffd}", 400, "the body of the request is wrong"),
        ("GET", "/api/v1/events?run=1-1", "", 404, "no such run"),
        ("GET", "/api/v1/file", "", 400, "missing field `file`"),
    ] {
        let answer = served.send(method, path, &headers, body);
        assert!(answer.is(status).problem().contains(says), "{method} {path}: {answer:?}");
    }
    served.send("GET", "/no/such.js", "", "").is(404);
    let page = served.send("GET", "/runs/1-1", "", "");
    assert!(page.is(200).body.contains("<html"), "each page is the one page: {page:?}");
    let large = "x".repeat(11 << 20);
    let body = json!({"file": "job.yaml", "text": large, "etag": null}).to_string();
    assert!(served.send("PUT", "/api/v1/file", &headers, &body).is(413).problem().contains("at most"));
    let long = "x".repeat(100_000);
    for request in [
        format!("GET /{long} HTTP/1.1\r\nhost: {}\r\n\r\n", served.address),
        format!("GET / HTTP/1.1\r\nhost: {}\r\nx: {long}\r\n\r\n", served.address),
        "\x16\x03\x01\x02\x00\x01\x00\x01".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("POST /api/v1/start HTTP/1.1\r\nhost: {}\r\ncontent-length: -1\r\n\r\n", served.address),
    ] {
        let answer = served.raw(request.as_bytes());
        assert!([0, 400, 413, 414, 431, 505].contains(&answer.status), "{answer:?}");
    }
    browser.get("/api/v1/session");
}

#[test]
fn slow_clients_keep_nobody_out() {
    let served = Served::new(&[]);
    let browser = served.browser();
    // More than the server holds: half of them say nothing, half of them never end.
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(&served.address).expect("it listens");
        if number % 2 == 0 {
            let _ = write!(
                stream,
                "POST /api/v1/session HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\n",
                served.address
            );
        }
        slow.push(stream);
    }
    let begun = Instant::now();
    browser.get("/api/v1/session");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // One that asks for events and never reads them does not fill the memory, and goes away at some time.
    let mut deaf = TcpStream::connect(&served.address).expect("it listens");
    let headers = format!("host: {}\r\nauthorization: Bearer {}\r\n", served.address, browser.token);
    write!(deaf, "GET /api/v1/events HTTP/1.1\r\n{headers}\r\n").expect("it reads");
    let mut first = [0; 12];
    deaf.read_exact(&mut first).expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 200");
    drop(slow);
    browser.get("/api/v1/overview");
}

#[test]
fn a_hundred_thousand_runs_are_listed_page_by_page() {
    let lab = Lab::new();
    fs_err::create_dir_all(lab.path("jobs")).expect("a folder");
    lab.run(&["runs"]).ok();
    let jobs = lab.path("jobs");
    let mut connection = Connection::open(lab.path(".state/runs.db")).expect("a history");
    let transaction = connection.transaction().expect("begun");
    let insert = "INSERT INTO runs (run, logical, job, variables, fingerprint, process, began, ended, outcome, \
        message, \
                  rows_read, rows_written, report) VALUES (?1, ?1, ?2, '', 'x', 1, ?3, ?3 + 5000, ?4, ?5, ?6, ?6, ?7)";
    let report = json!({"bytes_read": 7, "steps": []}).to_string();
    for number in 0..100_000_i64 {
        let began = 1_790_000_000_000 + number * 60_000;
        let (run, job) =
            (format!("{began}-{number}"), jobs.join(format!("job{}.yaml", number % 50)).display().to_string());
        let (outcome, message) = if number % 100 == 99 { ("failed", Some("no")) } else { ("done", None) };
        let report = (number >= 90_000).then_some(&report);
        transaction.execute(insert, params![run, job, began, outcome, message, number, report]).expect("inserted");
    }
    transaction.commit().expect("committed");
    let served = Served::in_lab(lab, &[]);
    let browser = served.browser();
    let overview = browser.get("/api/v1/overview");
    assert_eq!(overview["strips"].as_array().map(Vec::len), Some(50));
    assert_eq!(overview["strips"][0]["runs"].as_array().map(Vec::len), Some(20));
    // Of each job that fails, a later run is done, but for the last failure.
    assert_eq!(overview["unfinished"].as_array().map(Vec::len), Some(1), "{overview}");
    let first = browser.get("/api/v1/runs?outcome=failed&limit=400");
    let second =
        browser.get(&format!("/api/v1/runs?outcome=failed&limit=500&before={}", first["next"].as_str().expect("more")));
    let third = browser
        .get(&format!("/api/v1/runs?outcome=failed&limit=500&before={}", second["next"].as_str().expect("more")));
    let lengths = [&first, &second, &third].map(|list| list["runs"].as_array().map_or(0, Vec::len));
    assert_eq!((lengths, &third["next"]), ([400, 500, 100], &Value::Null));
    let found = browser.get("/api/v1/runs?q=JOB49.yaml&limit=500&from=1795999000000");
    assert!(
        found["runs"]
            .as_array()
            .is_some_and(|runs| !runs.is_empty() && runs.iter().all(|run| run["file"] == "job49.yaml"))
    );
    let left = browser.get("/api/v1/runs?unfinished=true&limit=1");
    let next = browser.get(&format!(
        "/api/v1/runs?unfinished=true&limit=1&before={}",
        left["runs"][0]["run"].as_str().expect("a run")
    ));
    assert_eq!((left["next"].clone(), next["runs"].as_array().map(Vec::len)), (Value::Null, Some(0)), "{left} {next}");
    let history = browser.get("/api/v1/history?file=job7.yaml&days=100000");
    assert_eq!((history["runs"].as_array().map(Vec::len), &history["is_cut"]), (Some(2_000), &json!(false)));
    assert_eq!(history["runs"][1_999]["bytes_read"], 7, "the last ones have reports");
}

#[test]
fn state_folders_of_other_versions_and_broken_ones_are_reported() {
    let lab = Lab::new();
    fs_err::create_dir_all(lab.path("jobs")).expect("a folder");
    lab.run(&["runs"]).ok();
    fs_err::create_dir_all(lab.path(".state/server")).expect("a folder");
    lab.file(".state/server/access.json", "{\"version\": 99, \"users\": [], \"tokens\": []}");
    let serve = ["serve", "jobs", "--listen", "0"];
    lab.run(&serve).ended(1).says(&["access.json was written by a newer version", "upgrade Millstream"]);
    lab.file(".state/server/access.json", "{");
    lab.run(&serve).ended(1).says(&["access.json cannot be read", "add the users again"]);
    fs_err::remove_file(lab.path(".state/server/access.json")).expect("removed");
    // Sessions that cannot be read are over.
    lab.file(".state/server/sessions.json", "{");
    lab.file(".state/server/actions/1-1/action.json", "{");
    let connection = Connection::open(lab.path(".state/runs.db")).expect("a history");
    connection.pragma_update(None, "user_version", 1).expect("an older version");
    drop(connection);
    // What the migrations add is there already in this one.
    fs_err::remove_file(lab.path(".state/runs.db")).expect("removed");
    let served = Served::in_lab(lab, &[]);
    let browser = served.browser();
    assert_eq!(browser.get("/api/v1/actions")["actions"], json!([]));
    let (lab, code) = served.stopped();
    assert_eq!(code, 0, "{}", lab.read("serve.log"));
    let connection = Connection::open(lab.path(".state/runs.db")).expect("a history");
    connection.pragma_update(None, "user_version", 99).expect("a newer version");
    drop(connection);
    lab.run(&serve).ended(1).says(&["was written by a newer version"]);
}

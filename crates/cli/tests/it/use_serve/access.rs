//! Who may ask what: each rule, by somebody who tries to break it.

use std::time::{Duration, Instant};

use millstream_testkit::{Authority, Validity};
use serde_json::{Value, json};

use super::{Served, is_otherwise, numbers};
use crate::use_support::Lab;

const JOB: &str = "allow: {DAY: '[0-9]{4}-[0-9]{2}-[0-9]{2}', REGION: [north, south]}\nsources:\n  s: {read: in.csv, \
    csv: \
                   {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: \
                   'out-${DAY:-none}-${REGION:-none}-${OTHER:-none}.csv'}\n";

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[test]
fn a_link_signs_in_once_and_nothing_else_does() {
    let served = Served::new(&[]);
    for path in ["/api/v1/session", "/api/v1/overview", "/api/v1/runs", "/api/v1/events", "/metrics", "/api/v1/files"] {
        let answer = served.send("GET", path, "", "");
        assert!(answer.is(401).problem().contains("this needs a token"), "{answer:?}");
    }
    served.send("GET", "/healthz", "", "").is(200);
    let browser = served.browser();
    assert_eq!(browser.get("/api/v1/session")["role"], "edit");
    let token = served.link.split_once('=').expect("a token").1.to_owned();
    let again = served.send("POST", "/api/v1/session", "", &json!({"token": token}).to_string());
    assert!(again.is(401).problem().contains("was used"), "{again:?}");
    served.send("GET", "/api/v1/runs", &bearer(&token), "").is(401);
    // Neither cookies nor the address carry a token.
    served.send("GET", &format!("/api/v1/runs?token={}", browser.token), "", "").is(401);
    served.send("GET", "/api/v1/runs", &format!("cookie: token={}\r\n", browser.token), "").is(401);
    served.send("DELETE", "/api/v1/session", &bearer(&browser.token), "").is(200);
    served.send("GET", "/api/v1/runs", &bearer(&browser.token), "").is(401);
}

#[test]
fn each_role_may_do_what_it_may_and_no_more() {
    let served = Served::new(&[("job.yaml", JOB)]);
    let description = served.send("GET", "/api/v1/openapi.json", "", "").is(200).json();
    let roles = ["look", "operate", "edit"];
    let browsers = roles.map(|role| served.browser_as(role));
    let mut asked = 0;
    for (path, operations) in description["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            if is_otherwise(method, path) {
                continue;
            }
            let needs = operation["description"].as_str().expect("a description");
            let needed = roles.iter().position(|role| needs.contains(&format!("`{role}`"))).expect("a role");
            let path = path.replace("{run}", "1-1").replace("{id}", "1-1");
            served.send(&method.to_uppercase(), &path, "", "").is(401);
            for (role, browser) in browsers.iter().enumerate() {
                // Without what it needs, it is refused in another way.
                let answer = browser.send(&method.to_uppercase(), &path, &Value::Null);
                assert_eq!(answer.status == 403, role < needed, "{} {method} {path}: {answer:?}", roles[role]);
                asked += 1;
            }
        }
    }
    assert!(asked > 50, "{asked}");
    let audit = browsers[2].get("/api/v1/audit");
    let refused =
        audit["entries"].as_array().expect("entries").iter().filter(|entry| entry["did"] == "refused").count();
    assert!(refused >= 8, "{audit}");
}

#[test]
fn wrong_tokens_are_slowed_down_and_logged_and_right_ones_are_not() {
    let served = Served::new(&[]);
    let browser = served.browser();
    let begun = Instant::now();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let guesses = |thread: usize| {
            let served = &served;
            scope.spawn(move || {
                let guess = |number: usize| {
                    let wrong = format!("{:064x}", thread * 1_000 + number);
                    match number % 3 {
                        0 => served.send("GET", "/api/v1/runs", &bearer(&wrong), "").status,
                        1 => served.send("POST", "/api/v1/session", "", &json!({"token": wrong}).to_string()).status,
                        _ => {
                            let way = json!({"user": "ada", "password": wrong}).to_string();
                            served.send("POST", "/api/v1/session", "", &way).status
                        }
                    }
                };
                (0..10).map(guess).collect::<Vec<u16>>()
            })
        };
        let threads: Vec<_> = (0..100).map(guesses).collect();
        // Meanwhile those who are known are answered at once.
        for _ in 0..20 {
            let asked = Instant::now();
            browser.get("/api/v1/session");
            assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
        }
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    assert_eq!(statuses.len(), 1_000);
    assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    let looked_at = statuses.iter().filter(|status| **status == 401).count();
    // At most 16 wait at a time, each five seconds in the end.
    let most = 40 + 16 * (begun.elapsed().as_secs() as usize + 5) / 4;
    assert!(looked_at < most && looked_at < 900, "{looked_at} of 1,000 were looked at in {:?}", begun.elapsed());
    let audit = browser.get("/api/v1/audit");
    let wrong = audit["entries"].as_array().expect("entries").iter().filter(|entry| entry["did"] == "wrong");
    let noted: Vec<&str> = wrong.map(|entry| entry["what"].as_str().expect("a text")).collect();
    assert!(noted.len() > 5 && noted.len() < 60, "{noted:?}");
}

#[test]
fn other_sites_and_other_names_are_refused_and_answers_are_protected() {
    let served = Served::new(&[]);
    let browser = served.browser();
    let asked = |headers: &str| served.send("GET", "/api/v1/runs", &format!("{}{headers}", bearer(&browser.token)), "");
    asked("").is(200);
    let port = served.address.rsplit_once(':').expect("a port").1;
    for host in ["evil.example", "127.0.0.1", "169.254.169.254"] {
        let answer = asked(&format!("host: {host}\r\n"));
        assert!(answer.is(421).problem().contains("not asked under this name"), "{answer:?}");
    }
    asked(&format!("host: localhost:{port}\r\n")).is(200);
    for header in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        asked(header).is(403);
    }
    asked(&format!("origin: http://{}\r\n", served.address)).is(200);
    let preflight = served.send(
        "OPTIONS",
        "/api/v1/start",
        &format!("origin: http://{}\r\naccess-control-request-method: POST\r\n", served.address),
        "",
    );
    assert!(!preflight.head.to_lowercase().contains("access-control-allow"), "{preflight:?}");
    for path in ["/", "/runs/1-1", "/api/v1/runs", "/api/v1/no/such", "/no.such", "/healthz", "/metrics"] {
        let head = served.send("GET", path, "", "").head.to_lowercase();
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{path}: {header} is not in {head}");
        }
        assert!(!head.contains("access-control") && !head.contains("set-cookie"), "{path}: {head}");
    }
}

#[test]
fn operators_set_what_jobs_allow() {
    let served = Served::new(&[("job.yaml", JOB), ("in.csv", &numbers(3))]);
    let (operator, editor) = (served.browser_as("operate"), served.browser_as("edit"));
    let started = |browser: &super::Browser<'_>, set: Value| {
        let action = browser.post("/api/v1/start", &json!({"file": "job.yaml", "set": set, "restart": true}));
        browser.ended(&action)
    };
    let done = started(&operator, json!({"DAY": "2026-01-31", "REGION": "north"}));
    assert_eq!(done["state"], "done", "{done}");
    assert!(served.lab.path("jobs/out-2026-01-31-north-none.csv").exists());
    for (set, why) in [
        (json!({"DAY": "../../x"}), "has to match"),
        (json!({"REGION": "west"}), "is none of the values"),
        (json!({"OTHER": "x"}), "does not name the variable `OTHER`"),
        (json!({"PATH": "x"}), "does not name the variable `PATH`"),
    ] {
        let refused = operator.send("POST", "/api/v1/start", &json!({"file": "job.yaml", "set": set, "restart": true}));
        assert!(refused.is(403).problem().contains(why), "{refused:?}");
    }
    // So does a sequence.
    served.lab.file("jobs/nightly.yaml", "allow: [DAY]\nsteps:\n  x: {command: ['true', '${DAY:-}', '${OTHER:-}']}\n");
    let refused = operator.send("POST", "/api/v1/start", &json!({"file": "nightly.yaml", "set": {"OTHER": "x"}}));
    assert!(refused.is(403).problem().contains("does not name the variable `OTHER`"), "{refused:?}");
    let audit = editor.get("/api/v1/audit")["entries"].to_string();
    assert!(audit.contains("jobs/nightly.yaml with OTHER"), "{audit}");
    // Of a broken file nobody knows what it allows: it is started, and says what is wrong.
    served.lab.file("jobs/broken.yaml", "allow: [DAY\n");
    let action = operator.post("/api/v1/start", &json!({"file": "broken.yaml", "set": {"DAY": "x"}}));
    assert_eq!(operator.ended(&action)["exit_code"], 2);
    // The run looks again.
    let late = served.lab.run(&["run", "jobs/job.yaml", "--set", "REGION=west", "--only-allowed", "--restart"]);
    late.ended(1).says(&["is none of the values"]);
    for set in [json!({"A=B": "x"}), json!({"": "x"}), json!({"A\u{0}": "x"})] {
        operator.send("POST", "/api/v1/start", &json!({"file": "job.yaml", "set": set})).is(400);
    }
    let done = started(&editor, json!({"OTHER": "edited"}));
    assert_eq!(done["state"], "done", "{done}");
    assert!(served.lab.path("jobs/out-none-none-edited.csv").exists());
    assert_eq!(operator.get("/api/v1/explain?file=job.yaml")["allow"], json!(["DAY", "REGION"]));
}

#[test]
fn users_sign_in_with_passwords_and_lose_their_sessions_when_removed() {
    let served = Served::new(&[]);
    let add = |name: &str, password: &str, role: &str| {
        served.lab.run_with_input(&["access", "add-user", name, "--role", role], format!("{password}\n").as_bytes())
    };
    add("ada", "short", "look").ended(2).says(&["fewer than 12 characters"]);
    add("a/b", "a long enough password", "look").ended(2).says(&["this is no name"]);
    add("ada", "a long enough password", "operate").ok().says(&["ada may look, and start"]);
    let sign_in = |user: &str, password: &str| {
        let way = json!({"user": user, "password": password}).to_string();
        served.send("POST", "/api/v1/session", "", &way)
    };
    assert!(sign_in("ada", "wrong").is(401).problem().contains("name or the password"));
    assert!(sign_in("bob", "wrong").is(401).problem().contains("name or the password"));
    let token = sign_in("ada", "a long enough password").is(200).json()["token"].as_str().expect("a token").to_owned();
    let session = served.send("GET", "/api/v1/session", &bearer(&token), "").is(200).json();
    assert_eq!((&session["user"], &session["role"]), (&json!("ada"), &json!("operate")));
    let list = served.lab.run(&["access", "list"]);
    list.ok().prints(&["user     ada           operate", "ada from 127.0.0.1"]);
    served.lab.run(&["access", "remove", "ada"]).ok();
    served.send("GET", "/api/v1/session", &bearer(&token), "").is(401);
    served.lab.run(&["access", "remove", "ada"]).ended(1).says(&["there is no user or token `ada`"]);
}

#[test]
fn sessions_are_listed_and_ended_by_the_command() {
    let served = Served::new(&[]);
    let (browser, other) = (served.browser(), served.browser_as("look"));
    let sessions = served.lab.run(&["access", "list", "--json"]).ok().json()["sessions"].clone();
    let look = sessions.as_array().expect("sessions").iter().find(|session| session["role"] == "look");
    let look = look.unwrap_or_else(|| panic!("{sessions}"))["id"].as_str().expect("a name");
    served.lab.run(&["access", "list"]).ok().prints(&[look, "link from 127.0.0.1"]);
    served.lab.run(&["access", "sign-out", look]).ok().says(&["1 session ended"]);
    other.send("GET", "/api/v1/session", &Value::Null).is(401);
    browser.get("/api/v1/session");
    served.lab.run(&["access", "sign-out", "link"]).ok().says(&["1 session ended"]);
    browser.send("GET", "/api/v1/session", &Value::Null).is(401);
    served.lab.run(&["access", "sign-out", "link"]).ended(1).says(&["there is no session of `link`"]);
}

#[test]
fn a_journal_gets_no_link() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;

    let lab = Lab::new();
    fs_err::create_dir_all(lab.path("jobs")).expect("a folder");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let stream = fs_err::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)));
    let stream = stream.expect("it is open");
    let folder = lab.path("jobs").display().to_string();
    let mut command = lab.command(&["serve", &folder, "--listen", "0"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
    let mut child = command.stdout(writer).stderr(std::process::Stdio::null()).spawn().expect("it starts");
    drop(command);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).expect("it prints");
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert!(line.starts_with("http://127.0.0.1:") && !line.contains("token"), "{line}");
}

#[test]
fn a_program_reads_metrics_with_a_token() {
    let served = Served::new(&[("job.yaml", JOB), ("in.csv", &numbers(3))]);
    let token = served.lab.run(&["access", "add-token", "prometheus", "--days", "30"]).ok().stdout.trim().to_owned();
    let browser = served.browser();
    let run = browser.start(&json!({"file": "job.yaml"}));
    browser.run_ended(&run);
    let page = served.send("GET", "/metrics", &bearer(&token), "");
    let body = &page.is(200).body;
    for line in [
        "millstream_last_run_rows{file=\"job.yaml\",rows=\"written\"} 3",
        "millstream_runs_unfinished 0",
        "# TYPE millstream_server_resident_bytes gauge",
    ] {
        assert!(body.contains(line), "{line} is not in {body}");
    }
    served.send("POST", "/api/v1/start", &bearer(&token), "{\"file\": \"job.yaml\"}").is(403);
    served.lab.run(&["access", "remove", "prometheus"]).ok();
    served.send("GET", "/metrics", &bearer(&token), "").is(401);
}

#[test]
fn what_others_can_reach_is_encrypted() {
    let lab = Lab::new();
    fs_err::create_dir_all(lab.path("jobs")).expect("a folder");
    let refused = lab.run(&["serve", "jobs", "--listen", "0.0.0.0:0"]);
    refused.ended(2).says(&["can be reached from other machines", "--tls-cert"]);
    lab.file("cert.pem", "no certificate");
    lab.file("key.pem", "no key");
    let tls = ["serve", "jobs", "--listen", "0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    lab.run(&tls).ended(2).says(&["cert.pem cannot be used for TLS", "PEM files"]);
    let authority = Authority::new();
    let made = authority.certificate("localhost", Validity::Current);
    let certificate = lab.file("cert.pem", &made.certificate);
    let key = lab.file("key.pem", &made.key);
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let served = Served::in_lab(lab, &["--tls-cert", &certificate, "--tls-key", &key]);
    assert!(served.link.starts_with("https://127.0.0.1:"), "{}", served.link);
    // What speaks no TLS is not answered.
    assert_eq!(served.send("GET", "/healthz", "", "").status, 0);
    let port = served.address.rsplit_once(':').expect("a port").1;
    // Another test may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answer = runtime.block_on(async {
        let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).expect("a certificate");
        let client = reqwest::Client::builder().tls_certs_only([root]).build().expect("a client");
        let answer = client.get(format!("https://localhost:{port}/healthz")).send().await.expect("an answer");
        let header = answer.headers().get("strict-transport-security").cloned();
        (answer.status().as_u16(), header.is_some())
    });
    assert_eq!(answer, (200, true));
}

#[test]
fn a_port_or_a_state_folder_that_is_taken_is_reported() {
    let served = Served::new(&[]);
    let port = served.address.rsplit_once(':').expect("a port").1;
    let second = served.lab.run(&["serve", "jobs", "--listen", port, "--state", "other"]);
    second.ended(2).says(&["the server cannot listen at", "millstream access link"]);
    let second = served.lab.run(&["serve", "jobs", "--listen", "0"]);
    second.ended(2).says(&["another server works on this state folder", &served.address, "millstream access link"]);
    let nowhere = served.lab.run(&["serve", "no such folder", "--state", "other"]);
    nowhere.ended(1).says(&["the folder no such folder cannot be served"]);
    let unnamed = ["serve", "jobs", "--listen", "0.0.0.0:0", "--state", "other", "--tls-cert", "a", "--tls-key", "b"];
    served.lab.run(&unnamed).ended(2).says(&["cannot be used for TLS"]);
}

#[test]
fn a_line_break_sets_no_second_variable() {
    let job = "allow: [DAY]\nsources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: \
               '${OUT:-out}-${DAY:-0}.csv'}\n";
    let served = Served::new(&[("job.yaml", job), ("in.csv", &numbers(3))]);
    let operator = served.browser_as("operate");
    for value in ["x\nOUT=evil", "x\rOUT=evil", "x\u{0}"] {
        let answer = operator.send("POST", "/api/v1/start", &json!({"file": "job.yaml", "set": {"DAY": value}}));
        assert!(answer.is(400).problem().contains("more than one line"), "{answer:?}");
    }
    let answer = operator.send("POST", "/api/v1/start", &json!({"file": "job.yaml", "set": {"--restart": "x"}}));
    assert!(answer.is(400).problem().contains("no name of a variable"), "{answer:?}");
}

#[test]
fn clients_that_hang_up_take_nothing_from_others() {
    let served = Served::new(&[(
        "slow.yaml",
        "sources:\n  s: {read: 'http://127.0.0.1:9/x.csv', http: {retries: 50}}\nsinks:\n  \
                                                o: {from: s, write: out.csv}\n",
    )]);
    let browser = served.browser();
    let hang_up = |request: &str| {
        let mut stream = std::net::TcpStream::connect(&served.address).expect("it listens");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it reads");
        std::thread::sleep(Duration::from_millis(30));
    };
    let host = format!("host: {}\r\n", served.address);
    for number in 0..40 {
        let token = bearer(&browser.token);
        hang_up(&format!("GET /api/v1/explain?file=slow.yaml HTTP/1.1\r\n{host}{token}\r\n"));
        let way = json!({"user": "ada", "password": format!("wrong {number}")}).to_string();
        let length = way.len();
        hang_up(&format!("POST /api/v1/session HTTP/1.1\r\n{host}content-length: {length}\r\n\r\n{way}"));
        hang_up(&format!("GET /api/v1/runs HTTP/1.1\r\n{host}{}\r\n", bearer(&format!("wrong {number}"))));
    }
    // Others are answered, and links work, whatever is guessed meanwhile.
    let begun = Instant::now();
    browser.get("/api/v1/runs");
    served.browser_as("look").get("/api/v1/session");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let check = browser.get("/api/v1/check?file=slow.yaml&offline=true");
    assert_eq!(check["errors"], json!([]), "{check}");
    // Who guesses passwords and hangs up is counted even so.
    let audit = browser.get("/api/v1/audit");
    let wrong = audit["entries"].as_array().expect("entries").iter().filter(|entry| entry["did"] == "wrong").count();
    assert!(wrong >= 10, "{audit}");
}

#[test]
fn the_audit_log_keeps_what_was_done_whatever_is_asked() {
    let served = Served::new(&[]);
    let looker = served.browser_as("look");
    let long = "x".repeat(20_000);
    for _ in 0..100 {
        looker.send("POST", &format!("/api/v1/runs/{long}/cancel"), &Value::Null).is(403);
    }
    let size = fs_err::metadata(served.lab.path(".state/server/audit.jsonl")).expect("a log").len();
    assert!(size < 20_000, "{size}");
    let audit = served.browser().get("/api/v1/audit");
    let did: Vec<&Value> = audit["entries"].as_array().expect("entries").iter().map(|entry| &entry["did"]).collect();
    assert!(did.iter().filter(|did| **did == "sign in").count() == 2, "{audit}");
}

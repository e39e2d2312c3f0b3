//! `millstream serve` through the real binary: what its API answers, who may ask what, and what happens to runs when it
//! is killed.

mod access;
mod api;
mod files;
mod kills;
mod pages;
mod runs;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::use_support::Lab;

/// How long something may take that is waited for, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A job whose rows come slowly until it is written anew.
pub const SLOW: &str = "throttle: {bytes_per_second: 20kB}\nsources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\n\
                        sinks:\n  o: {from: s, write: 'sqlite:out.db', table: t}\n";

/// A server of the folder `jobs` of a lab.
pub struct Served {
    pub lab: Lab,
    child: Child,
    /// `127.0.0.1:PORT`.
    pub address: String,
    /// The link that it printed.
    pub link: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The answer, which has this status.
    #[track_caller]
    pub fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The message of a problem.
    #[track_caller]
    pub fn problem(&self) -> String {
        let json = self.json();
        let text = |key: &str| json["error"][key].as_str().unwrap_or_default().to_owned();
        format!("{}: {} ({})", text("what"), text("cause"), text("hint"))
    }
}

/// Somebody who has signed in.
pub struct Browser<'s> {
    served: &'s Served,
    pub token: String,
}

impl Served {
    /// A server in a new lab with these files in `jobs`.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let lab = Lab::new();
        fs_err::create_dir_all(lab.path("jobs")).expect("a folder");
        for (name, text) in files {
            lab.file(&format!("jobs/{name}"), text);
        }
        Served::in_lab(lab, &[])
    }

    /// A server in `lab` with these arguments.
    pub fn in_lab(lab: Lab, arguments: &[&str]) -> Self {
        let (child, address, link) = start(&lab, "0", arguments);
        Served { lab, child, address, link }
    }

    /// Kills the server, and starts another one at the same port.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it ends");
        let port = self.address.rsplit_once(':').expect("a port").1.to_owned();
        let begun = Instant::now();
        // Runs that it has started do not hold its port.
        (self.child, self.address, self.link) = start(&self.lab, &port, &[]);
        assert!(begun.elapsed() < PATIENCE);
    }

    /// The end of the server, when it is asked to stop.
    pub fn stopped(mut self) -> (Lab, i32) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it gets the signal");
        let code = self.child.wait().expect("it ends").code().unwrap_or(-1);
        let lab = std::mem::replace(&mut self.lab, Lab::new());
        (lab, code)
    }

    /// Sends a request as it is, and gives what comes until the connection ends.
    pub fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        // It may answer and close before it has read all.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// A request with these headers, a line each.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let host = if headers.to_lowercase().contains("host:") {
            String::new()
        } else {
            format!("host: {}\r\n", self.address)
        };
        self.raw(
            format!(
                "{method} {path} HTTP/1.1\r\n{host}connection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )
    }

    /// Signs in with the link that the server printed.
    pub fn browser(&self) -> Browser<'_> {
        self.browser_with(&self.link)
    }

    /// Signs in with a link.
    pub fn browser_with(&self, link: &str) -> Browser<'_> {
        let token = link.split_once("#token=").expect("a link").1;
        let answer = self.send("POST", "/api/v1/session", "", &json!({"token": token}).to_string());
        let token = answer.is(200).json()["token"].as_str().expect("a token").to_owned();
        Browser { served: self, token }
    }

    /// Signs in with a new link of this role.
    pub fn browser_as(&self, role: &str) -> Browser<'_> {
        let link = self.lab.run(&["access", "link", "--role", role]);
        self.browser_with(link.ok().stdout.trim())
    }
}

fn start(lab: &Lab, port: &str, arguments: &[&str]) -> (Child, String, String) {
    let folder = lab.path("jobs").display().to_string();
    let mut all = vec!["serve", &folder, "--listen", port, "--json"];
    all.extend(arguments);
    let mut command = lab.command(&all);
    // Relative paths in jobs begin where the server was started.
    command.current_dir(lab.path("jobs"));
    let log = fs_err::File::create(lab.path("serve.log")).expect("a file").into_parts().0;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::from(log)).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it prints");
    let printed: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}{}", lab.read("serve.log")));
    let link = printed["link"].as_str().expect("a link").to_owned();
    let url = printed["url"].as_str().expect("an address");
    let address = url.split_once("://").expect("an address").1.to_owned();
    (child, address, link)
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser<'_> {
    fn headers(&self) -> String {
        format!("authorization: Bearer {}\r\n", self.token)
    }

    pub fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.served.send(method, path, &self.headers(), &body)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null).is(200).json()
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).is(200).json()
    }

    /// What `path` answers once `is_right` holds.
    #[track_caller]
    pub fn get_until(&self, path: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.get(path);
            if is_right(&answer) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{path}: {answer}\n{}", self.served.lab.read("serve.log"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a file, and gives the name of its run once that has begun.
    #[track_caller]
    pub fn start(&self, body: &Value) -> String {
        let action = self.post("/api/v1/start", body);
        self.run_of(&action)
    }

    /// The run that an action has begun.
    #[track_caller]
    pub fn run_of(&self, action: &Value) -> String {
        let path = format!("/api/v1/actions/{}", action["id"].as_str().expect("a name"));
        let action = self.get_until(&path, |action| action["run"].is_string() || action["state"] != "running");
        action["run"].as_str().unwrap_or_else(|| panic!("no run: {action}")).to_owned()
    }

    /// The action, once it has ended.
    #[track_caller]
    pub fn ended(&self, action: &Value) -> Value {
        let path = format!("/api/v1/actions/{}", action["id"].as_str().expect("a name"));
        self.get_until(&path, |action| action["state"] != "running")
    }

    /// The run, once it has an outcome.
    #[track_caller]
    pub fn run_ended(&self, run: &str) -> Value {
        self.get_until(&format!("/api/v1/runs/{run}"), |detail| detail["run"]["outcome"] != "running")
    }

    /// The stream of events, read by a thread.
    pub fn events(&self, query: &str) -> Events {
        let stream = TcpStream::connect(&self.served.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let request =
            format!("GET /api/v1/events{query} HTTP/1.1\r\nhost: {}\r\n{}\r\n", self.served.address, self.headers());
        (&stream).write_all(request.as_bytes()).expect("it reads");
        Events { lines: BufReader::new(stream) }
    }
}

/// A stream of events.
pub struct Events {
    lines: BufReader<TcpStream>,
}

impl Events {
    /// The data of the next event of this name for which `is_right` holds.
    #[track_caller]
    pub fn next(&mut self, name: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        let (begun, mut event) = (Instant::now(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("it sends") > 0, "the stream has ended");
            assert!(begun.elapsed() < PATIENCE, "no event {name} has come");
            let line = line.trim_end();
            if let Some(name) = line.strip_prefix("event: ").or_else(|| line.strip_prefix("event:")) {
                event = name.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data:")
                && event == name
            {
                let data: Value = serde_json::from_str(data.trim()).expect("JSON");
                if is_right(&data) {
                    return data;
                }
            }
        }
    }
}

/// Whether the API answers this without JSON or without asking who it is, or ends the session that asks.
pub fn is_otherwise(method: &str, path: &str) -> bool {
    ["/metrics", "/api/v1/events"].contains(&path) || (path == "/api/v1/session" && method != "get")
}

/// Numbers from 0 on, a line each below `n`.
pub fn numbers(count: u64) -> String {
    let lines: String = (0..count).map(|number| format!("{number}\n")).collect();
    format!("n\n{lines}")
}

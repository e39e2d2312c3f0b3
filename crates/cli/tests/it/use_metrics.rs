//! `run --metrics` and OpenTelemetry's variables through the real binary: what a scraper and a collector get, and that
//! neither of them disturbs a run.

mod exposition;
mod queues;
mod traces;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::Redis;

use crate::use_support::Lab;
use exposition::Page;

/// Reads standard input; after the run a hook waits for the file `go`.
const JOB: &str = "on_success: [{command: [sh, -c, 'while [ ! -e go ]; do sleep 0.05; done']}]\nsources:\n  s: {read: \
                   '-', csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n";

/// A run whose metrics are served.
struct Serving {
    child: Child,
    input: Option<ChildStdin>,
    address: String,
}

impl Serving {
    /// Starts `command`, which serves metrics at a free port.
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let prefix = "metrics at http://";
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(prefix));
        std::thread::spawn(move || lines.for_each(drop));
        let address = line.as_deref().and_then(|line| line.strip_prefix(prefix)?.strip_suffix("/metrics"));
        let address = address.expect("it prints the address").to_owned();
        let input = child.stdin.take();
        Serving { child, input, address }
    }

    fn write(&mut self, text: &str) {
        self.input.as_mut().expect("it is open").write_all(text.as_bytes()).expect("it reads");
    }

    fn scrape(&self) -> Page {
        let (head, body) = self.get("/metrics", "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        Page::prometheus(&body)
    }

    /// The head and the body of an answer.
    fn get(&self, path: &str, headers: &str) -> (String, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.address))
    }

    fn send(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_owned(), body.to_owned())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(180))).expect("a time");
        stream
    }

    /// Scrapes until the page is as `is_right` wants it.
    #[track_caller]
    fn scrape_until(&self, is_right: impl Fn(&Page) -> bool) -> Page {
        let begun = Instant::now();
        loop {
            let page = self.scrape();
            if is_right(&page) {
                return page;
            }
            assert!(begun.elapsed() < Duration::from_secs(180), "{page:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets the hook go, and waits for the end.
    fn end(mut self, lab: &Lab) {
        drop(self.input.take());
        lab.file("go", "");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PARSED: [(&str, &str); 2] = [("step", "s"), ("kind", "parse")];
const LOADED: [(&str, &str); 2] = [("step", "o"), ("kind", "load")];

fn rows(from: usize, to: usize) -> String {
    (from..to).map(|id| format!("{id}\n")).collect()
}

#[test]
fn metrics_follow_a_run_to_its_end() {
    let lab = Lab::new();
    // What needs an escape in a label.
    let name = "a \"quoted\\name\".yaml";
    lab.file(name, JOB);
    let mut run = Serving::start(lab.command(&["run", name, "--metrics", "0"]));
    let page = run.scrape();
    assert_eq!(page.value("millstream_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), Some(1.0));
    run.write("id\n");
    run.write(&rows(0, 600_000));
    let early = run.scrape_until(|page| page.value("millstream_rows_total", &PARSED).unwrap_or_default() > 0.0);
    let phase = |page: &Page, phase| page.value("millstream_run_phase", &[("phase", phase)]);
    assert_eq!((phase(&early, "reading"), phase(&early, "committing")), (Some(1.0), Some(0.0)));
    let info = early.labels("millstream_run_info");
    assert_eq!((info["job"].as_str(), info["run"].is_empty()), (name, false));
    for metric in ["limit", "budget", "resident"] {
        assert!(early.value(&format!("millstream_memory_{metric}_bytes"), &[]).expect(metric) > 1e6, "{metric}");
    }
    assert!(early.value("millstream_memory_used_bytes", &[]).is_some());
    assert!(early.value("millstream_run_start_time_seconds", &[]).expect("a time") > 1.7e9);

    run.write(&rows(600_000, 900_000));
    drop(run.input.take());
    let last = run.scrape_until(|page| phase(page, "committing") == Some(1.0) && lab.path("out.csv").exists());
    for labels in [PARSED, LOADED] {
        assert_eq!(last.value("millstream_rows_total", &labels), Some(900_000.0), "{labels:?}");
        assert!(last.value("millstream_busy_seconds_total", &labels).is_some());
    }
    for reason in ["input", "output", "scratch"] {
        let labels = [PARSED[0], PARSED[1], ("reason", reason)];
        assert!(last.value("millstream_waiting_seconds_total", &labels).is_some(), "{reason}");
    }
    let read = last.value("millstream_bytes_total", &[("step", "s"), ("kind", "fetch")]);
    assert_eq!(read, Some((3 + rows(0, 900_000).len()) as f64));
    early.grows_into(&last);

    let (head, body) = run.get("/metrics", "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let open = Page::open_metrics(&body);
    assert_eq!(open.value("millstream_rows_total", &PARSED), Some(900_000.0));
    assert_eq!(open.labels("millstream_run_info"), info);
    run.end(&lab);
}

#[test]
fn a_port_in_use_or_a_wrong_address_is_an_error_before_the_first_row() {
    let lab = Lab::with_job(JOB);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let ran = lab.run(&["run", "job.yaml", "--metrics", &address]);
    ran.ended(2).says(&[&format!("metrics cannot be served at {address}"), "in use", "choose another port"]);
    for (wrong, cause) in [
        ("nonsense", "invalid"),
        ("127.0.0.1", "invalid"),
        ("127.0.0.1:66000", "invalid port"),
        ("", "invalid"),
        ("no.such.host.invalid:0", "address information"),
    ] {
        let ran = lab.run(&["run", "job.yaml", "--metrics", wrong]);
        ran.ended(2).says(&["the address for metrics is wrong", cause, "write a port"]);
    }
    let ran = lab.run(&["run", "job.yaml", "--metrics", "192.0.2.1:0"]);
    ran.ended(2).says(&["metrics cannot be served at 192.0.2.1:0", "name an address of this machine"]);
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn metrics_are_served_only_where_the_option_says() {
    let lab = Lab::with_job(JOB);
    for (option, host, other) in [("0", "127.0.0.1", "127.0.0.2"), ("127.0.0.2:0", "127.0.0.2", "127.0.0.1")] {
        let run = Serving::start(lab.command(&["run", "job.yaml", "--metrics", option]));
        run.scrape();
        let (served, port) = run.address.rsplit_once(':').expect("a host and a port");
        assert_eq!(served, host);
        assert!(TcpStream::connect(format!("{other}:{port}")).is_err(), "{other} is open, too");
    }
}

/// A step of the job waits while rejects are loaded again, which the page shows meanwhile.
#[test]
fn loading_rejects_again_has_metrics() {
    let step = "map: {from: s, command: [sh, -c, 'while [ ! -e go ]; do sleep 0.05; done; cat'], exchange: json, \
                columns: {id: int64}}";
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, max_rejects: 5, csv: {{columns: {{id: int64}}}}}}\ntransforms:\n  t:\n    \
         {step}\nsinks:\n  o: {{from: t, write: 'sqlite:t.db', table: t}}\n"
    ));
    lab.file("in.csv", "id\n1\nx\n");
    lab.file("go", "");
    lab.run(&["run", "job.yaml"]).ok().says(&["1 rejected"]);
    fs_err::remove_file(lab.path("go")).expect("it is there");
    lab.file("job.yaml", lab.read("job.yaml").replace("csv: {", "csv: {'null': [x], "));
    let run = Serving::start(lab.command(&["rejects", "--replay", "--metrics", "0"]));
    let page = run.scrape_until(|page| page.value("millstream_rows_total", &PARSED) == Some(1.0));
    assert!(page.labels("millstream_run_info")["job"].ends_with("job.yaml"));
    run.end(&lab);
    lab.run(&["rejects", "--metrics", "0"]).ended(2).says(&["--replay"]);
}

#[test]
fn no_client_keeps_others_out_or_the_run_from_its_end() {
    let lab = Lab::with_job(JOB);
    let mut run = Serving::start(lab.command(&["run", "job.yaml", "--metrics", "0"]));
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = run.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nx-slow: ").expect("it is sent");
            stream
        })
        .collect();
    // It never reads the answer.
    let mut deaf = run.connect();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is sent");
    run.scrape();
    let status = |request: String| run.send(&request).0.split_whitespace().nth(1).map(str::to_owned);
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n".to_owned()).as_deref(), Some("404"));
    assert_eq!(status("POST /metrics HTTP/1.1\r\ncontent-length: 0\r\n\r\n".to_owned()).as_deref(), Some("405"));
    assert_eq!(status("\u{1}\u{2} nonsense\r\n\r\n".to_owned()).as_deref(), Some("400"));
    let many: String = (0..80).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(status(format!("GET /metrics HTTP/1.1\r\n{many}\r\n")).as_deref(), Some("431"));
    let (head, body) = run.send("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}");
    run.write("id\n1\n2\n");
    drop(run.input.take());
    for _ in 0..1000 {
        run.scrape();
    }
    run.scrape_until(|page| page.value("millstream_rows_total", &LOADED) == Some(2.0));
    run.end(&lab);
    assert_eq!(lab.read("out.csv"), "id\n1\n2\n");
    drop((slow, deaf));
}

#[test]
fn counters_add_up_over_the_runs_of_a_command() {
    // Only the last run's hook waits.
    let job = JOB.replace("! -e go", "-e out-2.csv -a ! -e go");
    let lab = Lab::with_job(&job.replace("'-'", "'in-${PART}.csv'").replace("out.csv", "'out-${PART}.csv'"));
    lab.file("in-1.csv", "id\n1\n2\n");
    lab.file("in-2.csv", "id\n3\n");
    let run = Serving::start(lab.command(&["run", "job.yaml", "--metrics", "0", "--for", "PART=1..2"]));
    let page = run.scrape_until(|page| page.value("millstream_rows_total", &PARSED) == Some(3.0));
    assert_eq!(page.value("millstream_rows_total", &LOADED).map(|rows| rows <= 3.0), Some(true));
    let units = [("step", "s"), ("kind", "fetch")];
    run.scrape_until(|page| page.value("millstream_units_total", &units) == Some(2.0));
    run.end(&lab);
}

/// A job that reads the stream `events` of `redis` into a table; a hook waits as in [`JOB`].
fn queue_job(redis: &Redis) -> String {
    let hook = JOB.lines().next().expect("a line");
    format!(
        "{hook}\nuntil: now\ncommit: {{rows: 10}}\nsources:\n  events: {{read: '{}', redis: {{stream: events, group: \
         load}}, json: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: events, write: 'sqlite:t.db', table: t}}\n",
        redis.url()
    )
}

fn add_messages(redis: &Redis, count: usize) {
    for id in 0..count {
        redis.command(&["XADD", "events", "*", "body", &format!("{{\"id\": {id}}}")]);
    }
}

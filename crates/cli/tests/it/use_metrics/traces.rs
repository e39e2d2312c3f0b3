//! Traces, as a collector gets them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_testkit::{Authority, Nginx, Redis, RedisOptions, Validity};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;

use super::{add_messages, queue_job};
use crate::use_support::{Lab, Ran, finish};

/// A collector, which keeps what it gets.
struct Collector {
    port: u16,
    /// The heads of the requests, and what they bring.
    got: Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let got: Arc<Mutex<Vec<_>>> = Arc::default();
        let keeps = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let lower = head.to_lowercase();
                let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).expect("a body");
                let request = ExportTraceServiceRequest::decode(&body[..]).expect("protobuf");
                keeps.lock().expect("no panic").push((head, request));
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                reader.get_mut().write_all(answer.as_bytes()).expect("it is sent");
            }
        });
        Collector { port, got }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().expect("no panic");
        let of_resource = got.iter().flat_map(|(_, request)| &request.resource_spans);
        of_resource.flat_map(|spans| &spans.scope_spans).flat_map(|spans| spans.spans.clone()).collect()
    }

    fn heads(&self) -> Vec<String> {
        self.got.lock().expect("no panic").iter().map(|(head, _)| head.clone()).collect()
    }

    /// The attributes of the service.
    fn service(&self) -> BTreeMap<String, String> {
        let got = self.got.lock().expect("no panic");
        let resource = got[0].1.resource_spans[0].resource.clone().expect("a resource");
        texts(&resource.attributes)
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(&attribute.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let named: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(named.len(), 1, "{name}: {spans:?}");
    named[0]
}

fn failed(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
}

/// A job whose source, steps, sinks and hook are code of its own, which notes its `TRACEPARENT`.
fn lab() -> Lab {
    let note = |name: &str, rest: &str| format!("[sh, -c, 'echo $TRACEPARENT > {name}; {rest}']");
    let lab = Lab::with_job(&format!(
        "on_success: [{{command: {}}}]\non_failure: [{{command: {}}}]\nsources:\n  s: {{command: {}, csv: {{columns: \
         {{id: int64}}}}}}\ntransforms:\n  c:\n    map: {{from: s, command: {}, exchange: json, per: stream, columns: \
         {{id: int64}}}}\n  f:\n    map: {{from: c, python: code.py:f, columns: {{id: int64}}}}\nsinks:\n  o: {{from: \
         f, write: 'sqlite:t.db', table: t}}\n  p: {{from: f, command: {}, exchange: json}}\n",
        note("of-hook", "cat > given"),
        note("of-hook", "cat > given"),
        note("of-source", "cat in.csv"),
        note("of-command", "cat"),
        note("of-sink", "cat > taken"),
    ));
    let function = "import os\n\ndef f(row):\n    name = os.path.join(os.path.dirname(__file__), 'of-function')\n    \
                    with open(name, 'w') as file:\n        print(os.environ.get('TRACEPARENT'), file=file)\n    \
                    return row\n";
    lab.file("code.py", function);
    lab.file("in.csv", "id\n1\n2\n");
    lab
}

fn run(lab: &Lab, variables: &[(&str, &str)]) -> Ran {
    let mut command = lab.command(&["run", "job.yaml"]);
    command.envs(variables.iter().copied());
    finish(command, None)
}

#[test]
fn a_run_is_a_trace_of_its_stages() {
    let (lab, collector) = (lab(), Collector::start());
    let ran = run(
        &lab,
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()), ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hunter2")],
    );
    ran.ok();
    let spans = collector.spans();
    let root = only(&spans, "millstream run");
    assert!(root.parent_span_id.is_empty() && !failed(root));
    let attributes = texts(&root.attributes);
    let report: serde_json::Value = serde_json::from_str(&lab.read("given")).expect("JSON");
    for (name, value) in [
        ("millstream.job", "job.yaml"),
        ("millstream.run", report["run"].as_str().expect("a name")),
        ("millstream.rows.read", "2"),
        ("millstream.rows.written", "4"),
        ("millstream.rows.rejected", "0"),
        ("process.exit.code", "0"),
    ] {
        assert_eq!(attributes.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!attributes["millstream.verdict"].is_empty());
    for name in ["prepare", "load", "commit", "hook"] {
        let span = only(&spans, name);
        assert_eq!((&span.trace_id, &span.parent_span_id), (&root.trace_id, &root.span_id), "{name}");
        assert!(root.start_time_unix_nano <= span.start_time_unix_nano, "{name}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{name}");
        assert!(span.end_time_unix_nano <= root.end_time_unix_nano, "{name}");
    }
    let load = only(&spans, "load");
    let sinks: Vec<&Span> = spans.iter().filter(|span| span.name == "load sink").collect();
    let mut names: Vec<String> = sinks.iter().map(|sink| texts(&sink.attributes)["millstream.entry"].clone()).collect();
    names.sort();
    assert_eq!(names, ["o", "p"]);
    assert!(sinks.iter().all(|sink| sink.parent_span_id == load.span_id));
    assert_eq!(texts(&only(&spans, "hook").attributes)["millstream.entry"], "on_success: command");

    let service = collector.service();
    assert_eq!(
        (service["service.name"].as_str(), service["service.version"].as_str()),
        ("millstream", env!("CARGO_PKG_VERSION"))
    );
    let heads = collector.heads();
    assert!(heads.iter().all(|head| head.starts_with("POST /v1/traces HTTP/1.1")), "{heads:?}");
    assert!(heads[0].contains("x-key: hunter2") && heads[0].contains("content-type: application/x-protobuf"));

    // The programs take part in it.
    let expected = format!("00-{}-{}-01\n", hex(&root.trace_id), hex(&root.span_id));
    for file in ["of-hook", "of-source", "of-command", "of-function", "of-sink"] {
        assert_eq!(lab.read(file), expected, "{file}");
    }
}

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

#[test]
fn a_run_is_a_part_of_its_callers_trace() {
    let (lab, collector) = (lab(), Collector::start());
    let sampled = format!("{CALLER}-01");
    let endpoint = format!("{}/own/path", collector.url());
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
        ("TRACEPARENT", &sampled),
        ("OTEL_SERVICE_NAME", "nightly"),
    ];
    run(&lab, &variables).ok();
    let spans = collector.spans();
    let root = only(&spans, "millstream run");
    assert_eq!(hex(&root.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&root.parent_span_id), "b7ad6b7169203331");
    assert_eq!(collector.service()["service.name"], "nightly");
    assert!(collector.heads()[0].starts_with("POST /own/path HTTP/1.1"));
    assert_eq!(lab.read("of-hook"), format!("00-{}-{}-01\n", hex(&root.trace_id), hex(&root.span_id)));

    // One that is not sampled gives no spans, and programs see that.
    let seen = spans.len();
    let unsampled = format!("{CALLER}-00");
    run(&lab, &[variables[0], ("TRACEPARENT", &unsampled)]).ok();
    assert_eq!(collector.spans().len(), seen);
    assert!(lab.read("of-hook").ends_with("-00\n"), "{}", lab.read("of-hook"));

    // Without traces the caller's goes to the programs as it is.
    run(&lab, &[variables[0], variables[1], ("OTEL_SDK_DISABLED", "true")]).ok();
    assert_eq!(lab.read("of-hook"), format!("{sampled}\n"));
    assert_eq!(collector.spans().len(), seen);
}

#[test]
fn a_failed_run_says_so_without_what_may_be_confidential() {
    let (lab, collector) = (lab(), Collector::start());
    lab.file("in.csv", "id\nhunter2\n");
    lab.file("job.yaml", lab.read("job.yaml") + "# hunter2\n");
    run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())]).ended(1);
    let spans = collector.spans();
    let root = only(&spans, "millstream run");
    let attributes = texts(&root.attributes);
    assert!(failed(root) && failed(only(&spans, "load")) && !failed(only(&spans, "prepare")));
    assert_eq!((attributes["error.type"].as_str(), attributes["process.exit.code"].as_str()), ("data", "1"));
    assert!(!attributes["millstream.run"].is_empty());
    assert_eq!(texts(&only(&spans, "hook").attributes)["millstream.entry"], "on_failure: command");
    assert!(!format!("{spans:?}").contains("hunter2"));
}

#[test]
fn a_collector_that_is_away_is_one_warning() {
    let lab = lab();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let endpoint = format!("http://user:hunter2@127.0.0.1:{port}");
    let ran = run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    ran.ok().says(&["2 rows read, 4 written", "warning: traces could not be exported to http://user:***@127.0.0.1"]);
    assert_eq!(ran.stderr.matches("warning:").count(), 1, "{}", ran.stderr);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);

    // One that accepts and never answers delays the end by a few seconds at most.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", silent.local_addr().expect("an address"));
    let begun = Instant::now();
    run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).ok().says(&["warning: traces could not be exported"]);
    assert!(begun.elapsed() < Duration::from_secs(200));

    for (variables, words) in [
        (vec![("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "`http/protobuf` only"),
        (vec![("OTEL_EXPORTER_OTLP_CERTIFICATE", "none.pem")], "none.pem"),
    ] {
        let all = [variables, vec![("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]].concat();
        run(&lab, &all).ok().says(&["warning: traces are not exported to", words]);
    }
}

#[test]
fn a_collector_may_have_a_certificate_of_its_own_authority() {
    let (lab, collector, authority) = (lab(), Collector::start(), Authority::new());
    let server = Nginx::start_secure_before(collector.port, &authority.certificate("localhost", Validity::Current));
    let ca = lab.file("ca.pem", authority.pem()).display().to_string();
    let endpoint = server.url("");
    let ran = run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca)]);
    assert!(!ran.ok().stderr.contains("warning:"), "{}", ran.stderr);
    only(&collector.spans(), "millstream run");

    // One that is not trusted gets nothing.
    let seen = collector.spans().len();
    run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)])
        .ok()
        .says(&["warning: traces could not be exported to https://localhost", "UnknownIssuer"]);
    assert_eq!(collector.spans().len(), seen);
}

#[test]
fn epochs_are_traces_of_their_own() {
    let redis = Redis::start(RedisOptions::default());
    let job = queue_job(&redis)
        + "  p: {from: events, command: [sh, -c, 'echo $TRACEPARENT > of-sink; cat > taken'], \
                                   exchange: json}\n";
    let (lab, collector) = (Lab::with_job(&job), Collector::start());
    lab.file("go", "");
    add_messages(&redis, 200);
    run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())]).ok();
    let spans = collector.spans();
    let root = only(&spans, "millstream run");
    assert_eq!(lab.read("of-sink"), format!("00-{}-{}-01\n", hex(&root.trace_id), hex(&root.span_id)));
    let epochs: Vec<&Span> = spans.iter().filter(|span| span.name == "epoch").collect();
    assert!(!epochs.is_empty() && epochs.iter().all(|epoch| !failed(epoch)));
    for epoch in &epochs {
        assert!(epoch.parent_span_id.is_empty() && epoch.trace_id != root.trace_id);
        assert_eq!((&epoch.links[0].trace_id, &epoch.links[0].span_id), (&root.trace_id, &root.span_id));
        assert!(texts(&epoch.attributes)["millstream.messages"].parse::<u64>().is_ok_and(|messages| messages > 0));
    }

    let seen = spans.len();
    add_messages(&redis, 20);
    let sampler = ("OTEL_TRACES_SAMPLER", "always_off");
    run(&lab, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()), sampler]).ok();
    assert_eq!(collector.spans().len(), seen);
}

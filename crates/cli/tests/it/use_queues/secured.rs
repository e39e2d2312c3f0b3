//! Queues that speak TLS and ask for a login, through the real binary: what is read and written over it, and what is
//! said of a wrong password, an authority that is not trusted, and a secret that is not there.

use millstream_testkit::{Authority, Kafka, KafkaOptions, PASSWORD, Redis, RedisOptions, USER, Validity};

use crate::use_resume::in_sqlite;
use crate::use_support::{Lab, Ran, finish};

/// A queue with a login: its URL, and the settings of a source and of a sink, as far as they are not about the login.
struct Queue {
    kind: &'static str,
    read: (String, String),
    write: (String, String),
}

/// What a job says of the login.
const LOGIN: &str = "user: etl, password: {secret: env:QUEUE_PASSWORD}, tls: verify, ca: ca.pem";

impl Queue {
    /// A job from the queue to a table, and one from a file to the queue, with this `login`.
    fn jobs(&self, lab: &Lab, until: &str, login: &str) {
        let Queue { kind, read: (from, source), write: (to, sink) } = self;
        let login = login.replace("etl", USER);
        lab.file(
            "read.yaml",
            format!(
                "until: {until}\nsources:\n  s: {{read: '{from}', {kind}: {{{source}, {login}}}, json: {{columns: \
                 {{id: int64}}}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t}}\n"
            ),
        );
        let comma = if sink.is_empty() { "" } else { ", " };
        lab.file(
            "write.yaml",
            format!(
                "sources:\n  s: {{read: rows.jsonl, json: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: s, write: \
                 '{to}', {kind}: {{{sink}{comma}{login}}}}}\n"
            ),
        );
    }

    fn run(&self, lab: &Lab, job: &str, password: Option<&str>) -> Ran {
        let mut command = lab.command(&["run", job]);
        command.envs(password.map(|password| ("QUEUE_PASSWORD", password)));
        finish(command, None)
    }

    /// Messages go through the queue, and faults of the login and of the trust are said, whatever the job does; also a
    /// service does not wait for them.
    fn works_and_says_what_is_wrong(&self, lab: &Lab, refused: &str) {
        lab.file("rows.jsonl", (0..100).map(|id| format!("{{\"id\": {id}}}\n")).collect::<String>());
        self.jobs(lab, "now", LOGIN);
        self.run(lab, "write.yaml", Some(PASSWORD)).ok().says(&["100 messages added"]);
        self.run(lab, "read.yaml", Some(PASSWORD)).ok().says(&["100 rows added"]);
        assert_eq!(in_sqlite(lab).query("SELECT count(DISTINCT id) FROM t"), ["100"]);
        for until in ["now", "stopped"] {
            self.jobs(lab, until, LOGIN);
            for job in ["read.yaml", "write.yaml"] {
                let wrong = self.run(lab, job, Some("wrong1"));
                assert!(!wrong.stderr.contains("wrong1"), "{}", wrong.stderr);
                wrong.ended(1).says(&[refused, "check user and password"]);
                self.run(lab, job, None).ended(2).says(&["QUEUE_PASSWORD"]);
            }
            self.jobs(lab, until, &LOGIN.replace(", ca: ca.pem", ""));
            for job in ["read.yaml", "write.yaml"] {
                self.run(lab, job, Some(PASSWORD)).ended(1).says(&["name the authority of the", "in `ca`"]);
            }
        }
    }
}

#[test]
fn kafka_over_tls_with_a_login() {
    let authority = Authority::new();
    let certificate = Some(authority.certificate("localhost", Validity::Current));
    let broker = Kafka::start(KafkaOptions { certificate, login: true, ..KafkaOptions::default() });
    for sasl in ["plain", "scram-sha-512"] {
        let topic = broker.topic(2);
        let url = format!("kafka://{}/{topic}", broker.door());
        let queue = Queue {
            kind: "kafka",
            read: (url.clone(), format!("group: g, sasl: {sasl}")),
            write: (url, format!("sasl: {sasl}")),
        };
        let lab = Lab::new();
        lab.file("ca.pem", authority.pem());
        queue.works_and_says_what_is_wrong(&lab, "refuses");
    }
}

#[test]
fn redis_over_tls_with_a_user() {
    let (lab, authority) = (Lab::new(), Authority::new());
    lab.file("ca.pem", authority.pem());
    let certificate = Some(authority.certificate("localhost", Validity::Current));
    let server = Redis::start(RedisOptions { certificate, password: true, ..RedisOptions::default() });
    server.command(&["ACL", "SETUSER", USER, "on", &format!(">{PASSWORD}"), "~events", "+@all"]);
    let url = format!("rediss://localhost:{}/0", server.port());
    let queue = Queue {
        kind: "redis",
        read: (url.clone(), "stream: events, group: g".to_owned()),
        write: (url, "stream: events".to_owned()),
    };
    queue.works_and_says_what_is_wrong(&lab, "WRONGPASS");
    // A key that the user has no right to.
    queue.jobs(&lab, "now", LOGIN);
    for job in ["read.yaml", "write.yaml"] {
        lab.file(job, lab.read(job).replace("stream: events", "stream: others"));
        queue.run(&lab, job, Some(PASSWORD)).ended(1).says(&["NOPERM", "grant the user this command, and the keys"]);
    }
}

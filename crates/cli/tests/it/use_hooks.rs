//! `on_success:` and `on_failure:` through the real binary: a program, a webhook, a mail, and their faults.

use std::time::Instant;

use millstream_testkit::{Answer, Authority, Fault, FaultServer, Object, Plan, SmtpServer, Validity};
use serde_json::Value;

use crate::use_support::{Lab, Ran, finish};

/// A job that copies a file, with these keys beside.
fn job(keys: &str) -> String {
    format!(
        "{keys}sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: s, write: \
         out.csv}}\n"
    )
}

fn lab(keys: &str) -> Lab {
    let lab = Lab::with_job(&job(keys));
    lab.file("in.csv", "id\n1\n2\n");
    lab
}

/// A program that keeps what it is given in `given`.
const KEEP: &str = "[sh, -c, 'cat > given; echo $MILLSTREAM_OUTCOME $MILLSTREAM_RUN $MILLSTREAM_JOB > names; echo \
                    told']";

fn given(lab: &Lab) -> Value {
    serde_json::from_str(&lab.read("given")).expect("JSON")
}

#[test]
fn a_program_gets_the_report() {
    let lab = lab(&format!("on_success: [{{command: {KEEP}}}]\non_failure: [{{command: {KEEP}}}]\n"));
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ok().says(&["on_success: told"]);
    let report = given(&lab);
    assert_eq!((report["outcome"].as_str(), report["rows_written"].as_u64()), (Some("done"), Some(2)));
    let run = report["run"].as_str().expect("a name");
    assert_eq!(lab.read("names"), format!("done {run} job.yaml\n"));
    let report = lab.report(&[]);
    assert_eq!(report["hooks"], serde_json::json!([{"hook": "sh", "error": null}]));

    lab.file("in.csv", "id\nx\n");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["on_failure: told"]);
    let report = given(&lab);
    assert_eq!((report["outcome"].as_str(), report["attempts"].as_u64()), (Some("failed"), Some(1)));
    assert_eq!(report["errors"][0]["kind"], "data");
    assert!(report["run"].is_string() && report["began"].is_string());
}

#[test]
fn nothing_is_told_of_a_job_that_does_not_parse_or_is_skipped() {
    let keys = format!("on_success: [{{command: {KEEP}}}]\non_failure: [{{command: {KEEP}}}]\n");
    let lab = lab(&(keys.clone() + "require: [{exists: a.ok, otherwise: skip}]\n"));
    lab.run(&["run", "job.yaml"]).ok();
    assert!(!lab.path("given").exists());
    lab.file("job.yaml", job(&(keys.clone() + "unknown: 1\n")));
    lab.run(&["run", "job.yaml"]).ended(2);
    assert!(!lab.path("given").exists());
    lab.file("job.yaml", job(&(keys + "require: [{exists: a.ok}]\n")));
    lab.run(&["run", "job.yaml"]).ended(4);
    assert_eq!(given(&lab)["errors"][0]["kind"], "requirement");
}

#[test]
fn a_hook_that_fails_is_a_warning() {
    let lab =
        lab("on_success:\n  - command: [sh, -c, 'echo no pager >&2; exit 7']\n  - command: ./none.sh\n  - {command: \
        [sleep, \
         '600'], timeout: 200ms}\n");
    lab.file("job.yaml", lab.read("job.yaml").replace("command: ./none.sh", "command: [./none.sh]"));
    let begun = Instant::now();
    let ran = lab.run(&["run", "job.yaml", "--json"]);
    assert!(begun.elapsed().as_secs() < 200);
    ran.ok().says(&[
        "warning: on_success: sh: it ended with status 7",
        "cause no pager",
        "warning: on_success: ./none.sh: the program `./none.sh` cannot be started",
        "warning: on_success: sleep: it took longer than 0.2 s",
    ]);
    let hooks = ran.json()["hooks"].clone();
    assert_eq!(hooks.as_array().map(Vec::len), Some(3));
    assert!(hooks[0]["error"].as_str().is_some_and(|error| error.contains("status 7")), "{hooks}");
    assert_eq!(lab.read("out.csv"), "id\n1\n2\n");
}

#[test]
fn a_webhook_gets_the_report_once_it_answers() {
    let unavailable = || Fault::Answer(Answer::status(503));
    let server = FaultServer::start(
        Plan::new()
            .object("/done", Object::new("").fault(1, unavailable()))
            .object("/refused", Object::new("").always(Fault::Answer(Answer::status(400).body("what is this")))),
    );
    let lab = lab(&format!(
        "on_success:\n  - webhook: {{url: '{}', headers: {{authorization: {{secret: 'env:TOKEN'}}}}}}\n  - webhook: \
        {{url: \
         '{}'}}\n",
        server.url("/done"),
        server.url("/refused")
    ));
    lab.run(&["run", "job.yaml"]).ended(2).says(&["the secret's variable TOKEN is not set"]);
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("TOKEN", "Bearer hunter2");
    let ran = finish(command, None);
    ran.ok().says(&["warning: on_success: http://", "/refused: the server answers 400", "what is this"]);
    let requests = server.requests();
    let done: Vec<_> = requests.iter().filter(|request| request.path == "/done").collect();
    assert_eq!(done.len(), 2, "the first was refused");
    let last = done[1];
    assert_eq!((last.method.as_str(), last.header("content-type")), ("POST", Some("application/json")));
    assert_eq!(last.header("authorization"), Some("Bearer hunter2"));
    let report: Value = serde_json::from_str(&last.body).expect("JSON");
    assert_eq!((report["outcome"].as_str(), report["rows_read"].as_u64()), (Some("done"), Some(2)));
}

#[test]
fn secrets_are_left_out_of_what_is_told() {
    let server = FaultServer::start(Plan::new().object("/hook", Object::new("")));
    let lab = lab(&format!("on_failure: [{{webhook: {{url: {{secret: 'env:URL'}}}}}}, {{command: {KEEP}}}]\n"));
    lab.file("in.csv", format!("id\n{}\n", server.url("/hook")));
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("URL", server.url("/hook"));
    finish(command, None).ended(1);
    let body = server.requests()[0].body.clone();
    assert!(body.contains("\"text\":\"***\"") && !body.contains("/hook"), "{body}");
    assert!(!lab.read("given").contains("/hook"));
}

fn mails(lab: &Lab, server: &SmtpServer, more: &str) -> Ran {
    let smtp = format!(
        "smtp: {{host: 127.0.0.1, port: {}, tls: none, from: 'Mill <mill@example.com>'{more}}}\n",
        server.port()
    );
    lab.file("machine.yaml", smtp);
    let mut command = lab.command(&["run", "job.yaml", "--machine", "machine.yaml"]);
    command.env("SMTP_PASSWORD", "hunter2");
    finish(command, None)
}

#[test]
fn a_mail_says_how_the_run_has_ended() {
    let server = SmtpServer::start();
    let mail = "[{mail: {to: [ops@example.com, 'Jörg <j@example.com>']}}]";
    let lab = lab(&format!("on_success: {mail}\non_failure: [{{mail: {{to: ops@example.com, subject: Wake up}}}}]\n"));
    mails(&lab, &server, ", user: mill, password: {secret: 'env:SMTP_PASSWORD'}").ok();
    let sent = server.mails();
    assert_eq!((sent.len(), sent[0].from.as_str()), (1, "mill@example.com"));
    assert_eq!(sent[0].to, ["ops@example.com", "j@example.com"]);
    let text = &sent[0].text;
    for part in
        ["Subject: millstream: success of job.yaml", "2 rows read, 2 written", "report.json", "\"outcome\":\"done\""]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // AUTH PLAIN is the user and the password in base64.
    assert_eq!(sent[0].login.as_deref(), Some("AG1pbGwAaHVudGVyMg=="));

    lab.file("in.csv", "id\nx\n");
    mails(&lab, &server, "").ended(1);
    let sent = server.mails();
    assert!(
        sent[1].text.contains("Subject: Wake up") && sent[1].text.contains("the value is not an int64"),
        "{}",
        sent[1].text
    );
    assert_eq!(sent[1].login, None);
}

#[test]
fn mails_are_encrypted_by_certificates_that_are_trusted() {
    let authority = Authority::new();
    let certificate = authority.certificate("127.0.0.1", Validity::Current);
    let lab = lab("on_success: [{mail: {to: ops@example.com}}]\n");
    lab.file("ca.pem", authority.pem());
    for (server, tls) in
        [(SmtpServer::encrypted(&certificate), "tls"), (SmtpServer::with_starttls(&certificate), "starttls")]
    {
        let run = |more: &str| {
            let address = format!("host: 127.0.0.1, port: {}", server.port());
            lab.file("machine.yaml", format!("smtp: {{{address}, tls: {tls}, from: mill@example.com{more}}}\n"));
            lab.run(&["run", "job.yaml", "--machine", "machine.yaml"])
        };
        let ran = run(", ca: ca.pem");
        ran.ok();
        assert!(!ran.stderr.contains("warning"), "{tls}: {}", ran.stderr);
        assert_eq!(
            server.mails().iter().map(|mail| mail.to.concat()).collect::<Vec<_>>(),
            ["ops@example.com"],
            "{tls}"
        );
        // Without the authority its certificate is nobody's.
        run("").ok().says(&["warning: on_success: mail to ops@example.com", "certificate"]);
        assert_eq!(server.mails().len(), 1, "{tls}");
    }
}

#[test]
fn a_mail_that_is_not_taken_is_a_warning() {
    let server = SmtpServer::start();
    let lab = lab("on_success: [{mail: {to: refused@example.com}}]\n");
    let ran = mails(&lab, &server, "");
    ran.ok().says(&["warning: on_success: mail to refused@example.com: the mail server 127.0.0.1", "550"]);
    // The server does not encrypt.
    mails(&lab, &server, "").ok();
    let machine = lab.read("machine.yaml").replace("tls: none", "tls: starttls");
    lab.file("machine.yaml", machine);
    lab.run(&["run", "job.yaml", "--machine", "machine.yaml"]).ok().says(&["the mail server 127.0.0.1"]);
    assert_eq!(server.mails().len(), 0);
    // Without a server that is known before.
    lab.run(&["check", "job.yaml"]).ok().says(&["this machine has no mail server", "job.yaml:1:15"]);
    lab.file("job.yaml", job("on_success: [{mail: {to: ops}}]\n"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["a recipient of the mail has no address"]);
}

#[test]
fn mistakes_in_hooks_are_lints() {
    let lab = lab("on_success:\n  - {command: [a], mail: {to: a@b}}\n  - {timeout: 1s}\non_failure: {command: [a]}\n");
    lab.run(&["check", "job.yaml"]).ended(2).says(&[
        "this hook has both `command` and `mail`",
        "this hook says nothing",
        "expected a list for `on_failure`",
    ]);
}

#[test]
fn explain_shows_what_applies_to_runs() {
    let lab = lab(
        "require:\n  - {exists: '${today}.ok', otherwise: skip}\n  - units: {of: s, min: 2}\n  - age: {of: s, min: \
         10m}\nretry_run: {count: 3}\non_success: [{webhook: {url: 'https://example.com/?token=abc'}}]\non_failure: \
         [{command: [page, ops]}]\n",
    );
    let shown = lab.run(&["explain", "job.yaml", "--set", "today=2026-01-31"]).ok().stdout.clone();
    let expected = "\na run:\n  ${today} is 2026-01-31\n  requires that 2026-01-31.ok exists; otherwise the run is \
                    skipped\n  requires that s has at least 2 files\n  requires that the files of s are at least 10m \
                    old\n  resumes itself 3 times, after 1m, if it fails\n  on success: \
                    https://example.com/?token=***\n  on failure: page\n";
    assert!(shown.ends_with(expected), "{shown}");
}

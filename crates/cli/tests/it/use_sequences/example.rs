//! The nightly run of the examples, as its README describes it.

use std::path::Path;

use millstream_testkit::SmtpServer;

use super::outcomes;
use crate::use_support::{Lab, Ran, finish, sqlite};

fn run(lab: &Lab, more: &[&str]) -> Ran {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nightly/nightly.yaml");
    let mut command =
        lab.command(&[&["run", &path.to_string_lossy(), "--machine", "machine.yaml", "--json"], more].concat());
    command.env("OUT", lab.path("out"));
    finish(command, None)
}

#[test]
fn the_night_is_loaded_and_reported() {
    let (lab, server) = (Lab::new(), SmtpServer::start());
    let smtp = |port: u16| format!("smtp: {{host: 127.0.0.1, port: {port}, tls: none, from: m@example.com}}\n");
    // Nothing listens on port 1.
    lab.file("machine.yaml", smtp(1));
    let day = ["--set", "DAY=2026-01-31"];
    let failed = run(&lab, &day);
    failed.ended(1).says(&["report: failed: the mail server 127.0.0.1 does not take the mail"]);
    assert_eq!(
        outcomes(&failed),
        ["folder=success", "load=success", "cities=success", "largest=success", "report=failed", "alarm=skipped"]
    );
    let cities = lab.read("out/2026-01-31/US.csv");
    assert!(cities.starts_with("name,population\nNew York City,8804190\n") && cities.lines().count() == 11, "{cities}");
    assert_eq!(sqlite(&lab.path("out/nightly.db"), "SELECT count(*) FROM cities"), [["34006"]]);
    lab.file("machine.yaml", smtp(server.port()));
    run(&lab, &[&day[..], &["--resume"]].concat()).ok();
    let mails = server.mails();
    assert_eq!((mails.len(), mails[0].to[0].as_str()), (1, "boss@example.com"));
    assert!(mails[0].text.contains("Subject: Night of 2026-01-31: 34006 cities of "), "{}", mails[0].text);
}

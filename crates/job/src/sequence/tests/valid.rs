//! Sequences without faults, and what they become.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Files, JOB, WITH_DATABASE, loaded, loaded_with, shown, usual_files};
use crate::sequence::model::{Action, Awaited, Hidden, Items, Sequence, When};
use crate::sequence::spec::{Attachment, Method, Pace};
use crate::sequence::template::Reference;
use crate::sequence::{is_sequence, schema, sources};

/// A sequence with every key.
pub(super) const FULL: &str = r#"schedule: {cron: "0 2 * * *", timezone: Europe/Berlin, catch_up: last}
parameters: {DAY: "${today - 1 day}", HOST: "${HOST}", FROM: "${DAY - 6 days}", LIMIT: 3}
steps:
  load:
    job: load.yaml
    set: {DAY: "${DAY}"}
    retries: {count: 3, wait: 1m}
    time_limit: 1h
    pool: db
    memory: 2GiB
  rows:
    query: SELECT count(*) AS n FROM t WHERE day = '${DAY}' AND run = '${steps.load.run}'
    from: postgres://etl@${HOST}/shop
    postgres: {password: {secret: env:PASSWORD}}
    needs: [load]
  each:
    sequence: shop.yaml
    set: {SHOP: "${SHOP}"}
    needs: rows
    when: steps.rows.n > 0 AND steps.load.ok AND 3 <= LIMIT
    for_each: {SHOP: [a, 2, true]}
    parallel: 2
  days:
    command: [./day, "${DATE | %Y%m%d}", 7, "$${HOME}"]
    for_each: {DATE: {first: "${FROM}", last: "${DAY}", every: week}}
    needs: [load]
  tables:
    command: [./table, "${TABLE}", "${TABLE.schema}"]
    for_each: {TABLE: {query: SELECT name FROM t, from: postgres://db/d, postgres: {connections: 2}}}
  files:
    command: [./file, "${FILE.name}"]
    for_each: {FILE: {files: "in/*.csv"}}
  arrived: {wait: {file: "in/${DAY}/_SUCCESS", for: 2h, every: 30s}}
  closed:
    wait: {query: SELECT closed AS c FROM days, from: postgres://db/d, until: c > 0, postgres: {}}
    needs: arrived
  done:
    webhook:
      url: {secret: env:PASSWORD}
      method: PUT
      body: '{"rows": ${steps.load.rows_written}}'
      headers: {X-Day: "${DAY}", Authorization: {secret: env:PASSWORD}}
    needs: [each, days]
  alarm:
    mail: {to: [boss@example.com, "Ops <ops@example.com>"], subject: "${DAY} failed", attach: nothing}
    needs: [done]
    when: failure
  reader: {job: load.yaml, keep_running: true}
"#;

fn sequence(yaml: &str) -> Sequence {
    let loaded = loaded(yaml);
    assert_eq!(shown(&loaded.lints), "");
    loaded.sequence.expect("no lints")
}

#[test]
fn a_sequence_becomes_steps() {
    let sequence = sequence(FULL);
    let names: Vec<&str> = sequence.steps.iter().map(|step| step.name.value.as_str()).collect();
    let all = ["load", "rows", "each", "days", "tables", "files", "arrived", "closed", "done", "alarm", "reader"];
    assert_eq!(names, all);
    // 23:30 UTC is the next day in Berlin.
    let parameters = [("DAY", "2026-01-31"), ("FROM", "2026-01-25"), ("HOST", "db.example"), ("LIMIT", "3")];
    assert_eq!(
        sequence.parameters,
        BTreeMap::from(parameters.map(|(name, value)| (name.to_owned(), value.to_owned())))
    );
    assert_eq!((sequence.moment.zone(), sequence.path()), ("Europe/Berlin", "etc/nightly.yaml"));
    assert_eq!(sequence.schedule_value().and_then(|value| value.get("catch_up").cloned()), Some(Value::from("last")));
    assert_eq!(sequence.dates["today - 1 day"], "2026-01-31");
    assert_eq!(sequence.secrets.iter().collect::<Vec<_>>(), ["env:PASSWORD"]);
    let needs = |name: &str| sequence.graph.needs(sequence.step(name).expect("a step")).to_vec();
    assert_eq!((needs("each"), needs("done"), needs("load")), (vec![1], vec![2, 3], vec![]));
    let load = &sequence.steps[0];
    assert_eq!((load.memory, load.time_limit.map(|limit| limit.as_secs())), (Some(2 << 30), Some(3600)));
    let retries = load.retries.expect("it retries");
    assert_eq!((retries.count, retries.wait.as_secs()), (3, 60));
    assert_eq!(load.pool.as_ref().map(|pool| pool.value.as_str()), Some("db"));
    let Action::Job(job) = &load.action else { panic!("{:?}", load.action) };
    assert_eq!((job.file.value.as_str(), job.set[0].1.known()), ("load.yaml", Some("2026-01-31")));
    assert_eq!(sequence.path_of(&job.file.value), "etc/load.yaml");
    let kinds: Vec<&str> = sequence.steps.iter().map(|step| step.action.kind()).collect();
    let wanted =
        ["job", "query", "sequence", "command", "command", "command", "wait", "wait", "webhook", "mail", "job"];
    assert_eq!(kinds, wanted);
    assert!(sequence.steps[10].keep_running && !load.keep_running);
}

#[test]
fn conditions_know_which_results_they_use() {
    let sequence = sequence(FULL);
    let When::Condition(condition) = &sequence.steps[2].when else { panic!("a condition") };
    let used: Vec<(&str, &str, &str)> = condition
        .references
        .iter()
        .map(|one| (one.step.as_str(), one.name.as_str(), &condition.sql.value[one.range.clone()]))
        .collect();
    assert_eq!(used, [("rows", "n", "steps.rows.n"), ("load", "ok", "steps.load.ok")]);
    assert_eq!((condition.references[1].span.line, condition.references[1].span.column), (20, 32));
    let literal = |one: &crate::sequence::references::StepsReference| format!("<{}>", one.name);
    assert_eq!(condition.filled(&literal), "<n> > 0 AND <ok> AND 3 <= LIMIT");
    assert!(matches!(sequence.steps[9].when, When::Failure) && matches!(sequence.steps[0].when, When::Success));
}

#[test]
fn texts_keep_what_is_known_later() {
    let sequence = sequence(FULL);
    let Action::Query(query) = &sequence.steps[1].action else { panic!("a query") };
    assert_eq!(query.from.known(), Some("postgres://etl@db.example/shop"));
    let run = |reference: &Reference| {
        let is_run = matches!(reference, Reference::Result { step, name } if step == "load" && name == "run");
        is_run.then(|| "r1".to_owned())
    };
    let sql = query.query.fill(sequence.moment, &run).expect("a value");
    assert_eq!(sql, "SELECT count(*) AS n FROM t WHERE day = '2026-01-31' AND run = 'r1'");
    let span = query.query.references().next().expect("a reference").1;
    assert_eq!(sequence.text.of(span), "${steps.load.run}");
    let Action::Command(words) = &sequence.steps[3].action else { panic!("a command") };
    let filled: Vec<String> = words
        .iter()
        .map(|word| word.fill(sequence.moment, &|_| Some("2026-01-25".to_owned())).expect("a date"))
        .collect();
    assert_eq!(filled, ["./day", "20260125", "7", "${HOME}"]);
    let source =
        sources::of_query(query, "postgres://h/d", "SELECT 1", &sequence.text, &WITH_DATABASE).expect("a source");
    assert_eq!(source.settings["postgres"]["query"], "SELECT 1");
    assert_eq!(source.settings["postgres"]["password"]["secret"], "env:PASSWORD");
    let none = sources::of_query(query, "in.csv", "SELECT 1", &sequence.text, &WITH_DATABASE).expect_err("no database");
    assert_eq!(none[0].what, "this is no database");
}

#[test]
fn loops_and_waits_have_their_kinds() {
    let sequence = sequence(FULL);
    let items = |index: usize| sequence.steps[index].for_each.as_ref().expect("a loop");
    let Items::List(list) = &items(2).items else { panic!("a list") };
    assert_eq!(list.iter().filter_map(|item| item.known()).collect::<Vec<_>>(), ["a", "2", "true"]);
    assert_eq!((items(2).parallel, items(3).parallel, items(2).variable.value.as_str()), (2, 1, "SHOP"));
    let Items::Days(days) = &items(3).items else { panic!("days") };
    assert_eq!(
        (days.first.known(), days.last.known(), days.every),
        (Some("2026-01-25"), Some("2026-01-31"), Pace::Week)
    );
    assert!(matches!(&items(4).items, Items::Rows(query) if query.block.is_some()));
    assert!(matches!(&items(5).items, Items::Files(files) if files.known() == Some("in/*.csv")));
    let Items::Files(files) = &items(5).items else { panic!("files") };
    let listed = sources::of_files(files, "in/*.csv", &sequence.text, &WITH_DATABASE).expect("files");
    assert_eq!(listed.read[0].value, "in/*.csv");
    assert!(sources::of_files(files, "postgres://h/d", &sequence.text, &WITH_DATABASE).is_err());
    let Action::Wait(file) = &sequence.steps[6].action else { panic!("a wait") };
    assert_eq!((file.limit.map(|limit| limit.as_secs()), file.every.as_secs()), (Some(7200), 30));
    assert!(matches!(&file.what, Awaited::File(file) if file.known() == Some("in/2026-01-31/_SUCCESS")));
    let Action::Wait(closed) = &sequence.steps[7].action else { panic!("a wait") };
    assert_eq!((closed.limit, closed.every.as_secs()), (None, 10));
    assert!(matches!(&closed.what, Awaited::Query { until: Some(until), .. } if until.value == "c > 0"));
    let Action::Webhook(request) = &sequence.steps[8].action else { panic!("a webhook") };
    assert_eq!((request.method, request.headers.len()), (Method::Put, 2));
    assert!(matches!(request.url, Hidden::Secret(_)) && request.body.is_some());
    let Action::Mail(mail) = &sequence.steps[9].action else { panic!("a mail") };
    assert_eq!((mail.to.len(), mail.attach), (2, Attachment::Nothing));
}

#[test]
fn set_replaces_parameters_and_what_is_computed_of_them() {
    let loaded = loaded_with(FULL, &usual_files(), &[("DAY", "2025-03-10")]);
    let sequence = loaded.sequence.expect("no lints");
    assert_eq!(
        (sequence.parameters["DAY"].as_str(), sequence.parameters["FROM"].as_str()),
        ("2025-03-10", "2025-03-04")
    );
    let loaded = loaded_with(FULL, &usual_files(), &[("today", "2025-03-10")]);
    assert_eq!(loaded.sequence.expect("no lints").parameters["DAY"], "2025-03-09");
    // What is used, and is no parameter, can be set as in jobs.
    let job = "steps: {one: {command: [echo, '${COUNT}']}}\n";
    let sequence = loaded_with(job, &Files::default(), &[("COUNT", "9")]).sequence.expect("no lints");
    assert!(matches!(&sequence.steps[0].action, Action::Command(words) if words[1].known() == Some("9")));
}

#[test]
fn a_parameter_without_a_value_has_to_be_given() {
    let yaml = "parameters: {SHOP: }\nsteps: {one: {command: [echo, '${SHOP}']}}\n";
    assert!(loaded(yaml).sequence.is_none());
    let given = loaded_with(yaml, &Files::default(), &[("SHOP", "a")]);
    assert_eq!(shown(&given.lints), "");
}

#[test]
fn a_file_with_steps_is_a_sequence() {
    assert!(is_sequence(FULL) && is_sequence("steps: {}\n") && is_sequence("steps:\n\t- broken\n"));
    assert!(!is_sequence(JOB) && !is_sequence("") && !is_sequence("x: {steps: 1}\n"));
}

#[test]
fn the_schema_accepts_what_is_loaded() {
    let schema = schema(&WITH_DATABASE);
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let (root, _) = crate::tree::parse(&crate::JobText::new("", FULL), FULL);
    let value = root.expect("YAML").to_value();
    let faults: Vec<String> = validator.iter_errors(&value).map(|fault| fault.to_string()).collect();
    assert_eq!(faults, Vec::<String>::new());
    for bad in [r#"{"steps": {}}"#, r#"{"steps": {"a": {"jbo": "x"}}}"#, r#"{"steps": {"a": {"job": 1}}}"#, "{}"] {
        let value: Value = serde_json::from_str(bad).expect("JSON");
        assert!(!validator.is_valid(&value), "{bad}");
    }
}

#[test]
fn the_reference_has_every_key_and_its_example_is_good() {
    let example = crate::reference::SEQUENCE_EXAMPLE;
    assert_eq!(shown(&loaded(example).lints), "");
    insta::assert_snapshot!(crate::sequence_reference(&WITH_DATABASE, &WITH_DATABASE.sources[0].spec));
}

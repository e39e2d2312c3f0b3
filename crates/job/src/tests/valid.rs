//! What good jobs become.

use millstream_core::reject::MaxRejects;
use std::collections::BTreeMap;

use serde_json::Value;

use super::{REGISTRY, loaded, loaded_with, shown};
use crate::{Job, JobEntry, reference, schema};

/// A job that uses nearly everything.
pub const FULL: &str = r#"# a comment
sources:
  places:
    read: "data/{000..003}/part-?#*.tsv.gz"
    csv: &places_csv
      header: false
      columns: {id: int64, name: utf8}
      max_record: 1MB
    members: ["*.csv", b.csv]
    limits: {ratio: 100}
    add: [_uri, _line]
    on_drift: null
    max_rejects: 3
  remote:
    read:
      - https://example.com/${DAY}.csv
      - "@lists/urls.txt"
    http:
      tries: 3
      password: {secret: env:PASSWORD}
      headers: {accept: text/csv, authorization: {secret: env:PASSWORD}}
    csv: *places_csv
  input: {read: "-", json: }
transforms:
  joined:
    sql: |
      SELECT p.id, count(*) AS n
      FROM places p JOIN remote r ON p.id = r.id
      GROUP BY p.id
  kept: {filter: {from: joined, where: "n > 3 AND id IN (SELECT id FROM input)"}}
  chosen: {select: {from: kept, columns: {id: id, twice: n * 2, one: 1, yes_or_no: true}}}
  chosen_too: {select: {from: kept, columns: [id, n * 2 AS twice, "1 AS one", "true AS yes_or_no"]}}
  together: {union: [chosen, chosen_too]}
  apart: {union: {of: [chosen, chosen_too], by: position, distinct: true}}
  ranked: {sort: {from: together, by: [twice desc, "id nulls first", 'lower(name) ASC NULLS LAST'], limit: 10}}
  single: {dedupe: {from: apart, by: id, keep: last, order: [twice]}}
  newest: {sort: {from: single, by: [id, twice], dedupe: {by: [id, one], keep: last}, stable: true}}
  listed: {sort: {from: newest, by: id, unique: true, pool: large}}
sinks:
  table: {from: ranked, write: "sqlite:out.db", table: t, mode: replace}
  files: {from: single, write: out/a.tsv.gz, csv: {header: true}}
  plain: {from: listed, write: out/b.csv.gz, compress: none}
  screen: {from: single, write: "-", json: {}}
"#;

fn job(yaml: &str) -> Job {
    let loaded = loaded(yaml);
    assert_eq!(shown(&loaded.lints), "", "a good job has no lints");
    loaded.job.expect("a good job")
}

#[test]
fn a_full_job_becomes_a_graph() {
    let job = job(FULL);
    let names: Vec<&str> = job.sources.iter().map(|step| step.name.value.as_str()).collect();
    assert_eq!(names, ["places", "remote", "input"]);
    let places = &job.sources[0];
    assert_eq!((places.max_rejects, places.limits.ratio, places.members.len()), (MaxRejects::Count(3), 100, 2));
    assert_eq!(places.add.iter().map(|column| column.name()).collect::<Vec<_>>(), ["_uri", "_line"]);
    assert_eq!(places.on_drift, millstream_core::format::OnDrift::Null, "without quotes");
    let kinds: Vec<&str> = job.sources[1].inputs.iter().map(|(_, source)| source.name()).collect();
    assert_eq!(kinds, ["file", "http"], "a list may mix all kinds");
    assert_eq!(job.sources[1].read[0].value, "https://example.com/monday.csv");
    assert_eq!(job.sources[2].format.as_ref().map(|format| format.name()), Some("json"), "an empty block is a block");
    let uses = |name: &str| job.transforms.iter().find(|step| step.name.value == name).map(|step| step.uses.clone());
    assert_eq!(uses("joined"), Some(vec!["places".to_owned(), "remote".to_owned()]));
    assert_eq!(uses("kept"), Some(vec!["input".to_owned(), "joined".to_owned()]));
    assert_eq!(uses("single"), Some(vec!["apart".to_owned()]));
}

#[test]
fn texts_of_transforms_keep_their_places() {
    let job = job(FULL);
    let step = |name: &str| job.transforms.iter().find(|step| step.name.value == name).expect(name);
    // The column in which each SQL text begins, and its end.
    let texts = |name: &str| {
        let step = step(name);
        let texts = step.rows.sql().into_iter().map(|sql| step.located(sql.text));
        let shown = |text: crate::Located<String>| {
            let (start, end) = (text.locate(1, 1), text.locate(1, usize::MAX));
            let line = job.text.line(start.line).chars();
            let written: String = line.skip(start.column - 1).take(end.column - start.column).collect();
            (text.value, written)
        };
        texts.map(shown).collect::<Vec<_>>()
    };
    let as_written = |texts: &[&str]| texts.iter().map(|text| (text.to_string(), text.to_string())).collect::<Vec<_>>();
    assert_eq!(texts("kept"), as_written(&["n > 3 AND id IN (SELECT id FROM input)"]));
    assert_eq!(texts("chosen"), as_written(&["id", "n * 2", "1", "true"]));
    assert_eq!(texts("chosen_too"), as_written(&["id", "n * 2 AS twice", "1 AS one", "true AS yes_or_no"]));
    assert_eq!(texts("ranked"), as_written(&["twice", "id", "lower(name)"]));
    assert_eq!(texts("newest"), as_written(&["id", "twice", "id", "one"]));
    assert_eq!(texts("single"), as_written(&["id", "twice"]));
    assert!(texts("joined")[0].0.starts_with("SELECT p.id, count(*) AS n\n"));
    assert_eq!(texts("together"), []);
    let pools = step("listed").rows.pools();
    let pool = pools.first().map(|pool| step("listed").located(&pool.0)).expect("a pool");
    assert_eq!((pool.value.as_str(), job.text.of(pool.span).as_str()), ("large", "large"));
}

#[test]
fn a_number_is_the_expression_that_it_is_written_as() {
    let job =
        job("sources: {a: {read: a}}\ntransforms: {b: {select: {from: a, columns: {x: 1.50, y: 0x10, z: -0}}}}\n\
                   sinks: {o: {from: b, write: out}}\n");
    let texts: Vec<&str> = job.transforms[0].rows.sql().into_iter().map(|sql| sql.text.as_str()).collect();
    assert_eq!(texts, ["1.50", "0x10", "-0"]);
}

#[test]
fn a_sink_is_made_from_its_block_and_its_targets_name() {
    let job = job(FULL);
    let describe = |name: &str| {
        let sink = job.sinks.iter().find(|sink| sink.name.value == name).expect("the sink");
        sink.sink.describe(std::sync::Arc::new(arrow::datatypes::Schema::empty()))
    };
    let files = describe("files");
    assert!(files.contains(r#"delimiter: \"\\t\""#) && files.contains("gzip"), "tabs and gzip by its name: {files}");
    assert!(describe("plain").contains("codec: None"), "`none` outweighs the name");
    assert!(describe("table").contains("format: None"));
}

#[test]
fn transforms_come_after_what_they_use() {
    let text = "sources: {a: {read: a}}\ntransforms:\n  z: {sort: {from: y, by: a}}\n  y: {sort: {from: x, by: a}}\n  \
                x: {sort: {from: a, by: a}}\nsinks: {o: {from: z, write: out}}\n";
    let job = job(text);
    let order: Vec<&str> = job.transforms_in_order().iter().map(|step| step.name.value.as_str()).collect();
    assert_eq!(order, ["x", "y", "z"]);
}

#[test]
fn variables_are_filled_into_values_and_typed_again() {
    let yaml = "sources:\n  a:\n    read: data/${DAY}/${NO:-x}/$${DAY}\n    max_rejects: ${COUNT}\n    \
                allow_empty: '${E:-true}'\nsinks: {b: {from: a, write: out}}\n";
    let quoted = loaded(yaml);
    assert!(
        shown(&quoted.lints).contains("found the text `${E:-true}`"),
        "quotes keep it text: {}",
        shown(&quoted.lints)
    );
    let job = job(&yaml.replace('\'', ""));
    let source = &job.sources[0];
    assert_eq!(source.read[0].value, "data/monday/x/${DAY}");
    assert_eq!((source.max_rejects, source.allow_empty), (MaxRejects::Count(3), true));
    let set = BTreeMap::from([("COUNT".to_owned(), "7".to_owned())]);
    let set = loaded_with(&yaml.replace('\'', ""), &set, false).job.expect("a job");
    assert_eq!(set.sources[0].max_rejects, MaxRejects::Count(7), "--set comes before the environment");
}

#[test]
fn a_value_cannot_add_keys() {
    let set = BTreeMap::from([("DAY".to_owned(), "x}, allow_empty: true, y: {z: \n  b: 1".to_owned())]);
    let loaded = loaded_with("sources: {a: {read: \"${DAY}\"}}\nsinks: {b: {from: a, write: out}}\n", &set, false);
    assert!(loaded.job.is_none_or(|job| !job.sources[0].allow_empty));
}

#[test]
fn the_schema_agrees_with_an_independent_validator() {
    let schema = schema(&REGISTRY);
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let instance = |yaml: &str| {
        let text = crate::JobText::new("job.yaml", yaml);
        crate::tree::parse(&text, yaml).0.map_or(Value::Null, |node| node.to_value())
    };
    let problems: Vec<String> = validator.iter_errors(&instance(FULL)).map(|error| error.to_string()).collect();
    assert_eq!(problems, Vec::<String>::new());
    for bad in super::faults::AGAINST_THE_SCHEMA {
        assert!(!validator.is_valid(&instance(bad)), "the schema accepts what the lints refuse:\n{bad}");
        assert!(loaded(bad).job.is_none(), "the lints accept it:\n{bad}");
    }
}

#[test]
fn every_example_of_a_component_is_a_good_entry() {
    let indent = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    for entry in REGISTRY.sources.iter().map(|one| one.spec).chain(REGISTRY.formats.iter().map(|one| one.spec)) {
        job(&format!("sources:\n  a:\n{}sinks: {{o: {{from: a, write: out}}}}\n", indent(entry.example)));
    }
    for entry in &REGISTRY.transforms {
        job(&format!(
            "sources: {{ranked: {{read: a}}, others: {{read: b}}}}\ntransforms:\n  t:\n{}sinks: {{o: {{from: t, write: \
             o}}, p: {{from: ranked, write: p}}, q: {{from: others, write: q}}}}\n",
            indent(entry.spec.example)
        ));
    }
    for entry in &REGISTRY.sinks {
        job(&format!("sources: {{a: {{read: a}}}}\nsinks:\n  o:\n{}", indent(entry.spec.example)));
    }
}

#[test]
fn the_reference_has_every_key() {
    insta::assert_snapshot!(reference(&REGISTRY));
}

#[test]
fn what_is_sound_is_kept_apart_from_what_is_broken() {
    let loaded = loaded(
        "sources: {a: {read: a}, bad: {red: b}}\ntransforms:\n  fine: {sql: SELECT x FROM a}\n  unknown: {sql: SELECT \
         x FROM nothing}\n  \
         after_bad: {sort: {from: bad, by: x}}\n  after_unknown: {union: [fine, unknown]}\n  ring: {sort: {from: ring, \
         by: x}}\n\
         sinks: {good: {from: fine, write: o}, worse: {from: after_bad, write: p}, worst: {from: after_unknown, write: \
         q}}\n",
    );
    assert!(loaded.job.is_none());
    let sound = loaded.sound.expect("some is sound");
    let names = |steps: &[crate::TransformStep]| steps.iter().map(|step| step.name.value.clone()).collect::<Vec<_>>();
    assert_eq!(names(&sound.transforms), ["fine"]);
    assert_eq!(sound.sinks.iter().map(|sink| sink.name.value.as_str()).collect::<Vec<_>>(), ["good"]);
}

#[test]
fn what_is_said_of_the_whole_job_holds_for_each_source_that_says_nothing() {
    let of = |yaml: &str| job(yaml).sources.iter().map(|source| source.incremental).collect::<Vec<_>>();
    let rest = "sources: {a: {read: a}, b: {read: b, incremental: false}, c: {read: c, incremental: true}}\n\
                transforms: {all: {union: [a, b, c]}}\nsinks: {o: {from: all, write: o}}\n";
    assert_eq!(of(rest), [false, false, true]);
    assert_eq!(of(&format!("incremental: true\n{rest}")), [true, false, true]);
    assert_eq!(of(&format!("incremental: false\n{rest}")), [false, false, true]);
}

#[test]
fn the_registry_knows_the_keys_beside_a_transform() {
    let mut schema = schema(&REGISTRY);
    let keys = schema["$defs"]["transform"]["properties"].as_object_mut().expect("keys");
    REGISTRY.transforms.iter().for_each(|entry| drop(keys.remove(entry.spec.name).expect("its key")));
    let mut known = millstream_core::transform::KEYS_BESIDE.to_vec();
    known.sort_unstable();
    let mut keys: Vec<&str> = keys.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, known);
}

/// Of a sound job, its file and the job itself say the same.
#[test]
fn the_outline_of_a_job_has_its_entries() {
    let loaded = loaded(FULL);
    assert_eq!(loaded.outline, JobEntry::all_of(&loaded.job.expect("it is sound")));
}

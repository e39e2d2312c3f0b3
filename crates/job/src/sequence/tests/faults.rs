//! Every kind of lint of a sequence's own file.

use std::collections::BTreeMap;

use super::{Files, WITH_DATABASE, loaded, loaded_with, shown, transcript};
use crate::sequence::{SequenceOptions, load};
use crate::tests::tables;

#[test]
fn what_stands_beside_the_steps() {
    insta::assert_snapshot!(transcript(&[
        "",
        "- steps\n",
        "just text\n",
        "parameters: {A: 1}\n",
        "step: {one: {command: [a]}}\n",
        "steps:\n",
        "steps: {}\n",
        "steps: [{job: load.yaml}]\n",
        "steps: {one: {job: load.yaml}}\nsources: {a: {read: x}}\nparamters: {A: 1}\n",
        "schedule: {cron: never}\ntimezone: 3\nparameters: {A: [1], 1B: x, today: y}\nsteps: {one: {job: load.yaml}}\n",
        "schedule: {cron: '0 2 * * *', timezone: Europe/Berln}\nsteps: {one: {job: load.yaml}}\n",
        "steps: {on-e: {job: load.yaml}}\n",
        "steps:\n  one: {job: load.yaml\n  two: {job: load.yaml}\n  three: job: x\n",
        "steps:\n  one: {job: load.yaml}\n  one: {job: load.yaml}\n",
        "steps: {one: {job: load.yaml, throttle: {connections: 1}, schedule: {cron: '@daily'}}}\nhours: 20:00-06:00\n",
    ]));
}

#[test]
fn each_step_does_one_thing() {
    insta::assert_snapshot!(transcript(&[
        "steps: {one: {job: load.yaml, command: [a]}, two: {}, three: {needs: one}, four: , five: x}\n",
        "steps: {one: {depends_on: two, timeout: 1m, run: ls, env: {A: 1}}, two: {job: load.yaml}}\n",
        "steps: {one: {for_each: [a], command: [a]}, two: {webhook: https://h}, three: {mail: a@b}}\n",
        "steps: {one: {jbo: load.yaml}, two: {job: load.yaml, ned: one, on_failure: []}}\n",
        "steps: {one: {command: ./run --all}, two: {command: []}, three: {command: ['']}, four: {command: [[a]]}}\n",
        "steps: {one: {query: SELECT 1}, two: {from: postgres://h/d, job: load.yaml}, three: {query: S, from: \
         in.csv}}\n",
        "steps: {one: {query: S, from: postgres://h/d, postgres: {conections: 2}}, two: {query: S, from: \
         'postgres://h h/d'}}\n",
        "steps: {one: {query: S, from: postgres://h/d, postgres: {connections: 9}}, two: {command: [a], postgres: \
         {}}}\n",
        "steps: {one: {webhook: {}}, two: {webhook: {url: https://h, method: SEND, header: {}}}, three: {mail: {to: \
         boss}}}\n",
        "steps: {one: {mail: {to: [a@b, c]}}, two: {mail: {to: []}}, three: {mail: {to: a@b, attach: pdf}}}\n",
        "steps: {one: {wait: {}}, two: {wait: {file: a, query: S, from: postgres://h/d}}, three: {wait: {query: S}}}\n",
        "steps: {one: {wait: {file: a, until: x, for: soon}}, two: {wait: {file: a, every: 0s}}, three: {wait: a}}\n",
        "steps: {one: {wait: {query: S, from: postgres://h/d, until: 'n > 1)'}}}\n",
        "steps: {one: {wait: {file: 'in/{a,b'}}, two: {wait: {file: 'htp://h/a'}}, three: {wait: {file: \
         postgres://h/d}}}\n",
    ]));
}

#[test]
fn keys_that_say_how_a_step_runs() {
    insta::assert_snapshot!(transcript(&[
        "steps: {one: {job: load.yaml, retries: 3, time_limit: 10, parallel: 2, memory: much}}\n",
        "steps: {one: {job: load.yaml, retries: {count: 0, wait: 1}, time_limit: 0s, pool: 1}}\n",
        "steps: {one: {job: load.yaml, pool: dbs}, two: {job: load.yaml, pool: network}}\n",
        "steps: {one: {command: [a], set: {A: 1}, keep_running: true, memory: 1GB}, two: {mail: {to: a@b}, memory: \
         1GB}}\n",
        "steps: {one: {job: load.yaml, set: {DAY: [1], X: }, keep_running: yes}}\n",
        "steps: {one: {job: load.yaml, keep_running: true, retries: {count: 2}}, two: {needs: one, command: [a]}}\n",
    ]));
}

#[test]
fn loops() {
    let one = |for_each: &str| format!("steps: {{one: {{command: [a, '${{A}}'], for_each: {for_each}}}}}\n");
    let sequences = [
        one("[a, b]"),
        one("{}"),
        one("{A: [a], B: [b]}"),
        one("{A: []}"),
        one("{A: [a, b, a]}"),
        one("{A: a}"),
        one("{1A: [a]}"),
        one("{today: [a]}"),
        one("{A: {first: 2026-01-31, last: yesterday}}"),
        one("{A: {first: 2026-01-31, last: 2026-01-30}}"),
        one("{A: {first: 2026-01-31}}"),
        one("{A: {first: 2026-01-01, last: 2026-01-31, every: hour}}"),
        one("{A: {query: SELECT 1}}"),
        one("{A: {query: SELECT 1, from: x.csv}}"),
        one("{A: {file: 'in/*.csv'}}"),
        one("{A: {files: 'postgres://h/d'}}"),
    ];
    insta::assert_snapshot!(transcript(&sequences.each_ref().map(String::as_str)));
}

#[test]
fn needs_and_cycles() {
    insta::assert_snapshot!(transcript(&[
        "steps: {load: {job: load.yaml}, two: {command: [a], needs: [laod, load, load]}}\n",
        "steps: {one: {command: [a], needs: one}}\n",
        "steps:\n  a: {command: [x], needs: [d]}\n  b: {command: [x], needs: [c]}\n  c: {command: [x], needs: [e, \
         b]}\n  d: {command: [x], needs: e}\n  e: {command: [x], needs: a}\n",
        "steps: {a: {command: [x], needs: 3}, b: {command: [x], needs: {a: 1}}}\n",
        "steps: {a: {command: [x], when: failure}}\n",
        // A broken step is still known by name.
        "steps: {a: {comand: [x]}, b: {command: [x], needs: a}}\n",
    ]));
}

#[test]
fn conditions() {
    let one = |when: &str| {
        format!(
            "parameters: {{LIMIT: 3}}\nsteps:\n  load: {{job: load.yaml}}\n  Rows: {{query: S, from: \
         postgres://h/d}}\n  \
                 one: {{command: [a], needs: [load, Rows], when: {when}}}\n  two: {{command: ['${{LIMIT}}']}}\n"
        )
    };
    let good = ["steps.load.ok", "\"steps.rows.n > LIMIT AND 'steps.no.x' <> ''\"", "LIMIT", "'true'", "always"];
    for when in good {
        assert_eq!(shown(&loaded(&one(when)).lints), "", "{when}");
    }
    let bad = [
        "sucess",
        "failed",
        "''",
        "' '",
        "true",
        "steps.lod.ok",
        "steps.load.rows",
        "steps.load",
        "steps.two.ok",
        "steps.one.ok",
        "steps.load.rows_written > 0)",
        "'${steps.load.ok}'",
        "(SELECT max(x) FROM t) > 1",
        "[steps.load.ok]",
    ]
    .map(one);
    insta::assert_snapshot!(transcript(&bad.each_ref().map(String::as_str)));
}

#[test]
fn variables() {
    insta::assert_snapshot!(transcript(&[
        "parameters: {A: 1, B: '${A}', c: 2, D: 3}\nsteps: {one: {command: [x], when: C > 1}}\n",
        "steps: {one: {job: load.yaml, set: {DAY: '${today}'}, for_each: {DATE: [a]}}}\n",
        "steps: {one: {command: ['${NO_SUCH}', '${today - 1 dya}', '${steps.x}', '${steps.load.a b}']}}\n",
        "parameters: {A: '${B}', B: '${steps.load.run}', C: }\nsteps: {one: {command: [x, '${A}', '${B}', '${C}']}}\n",
        // Results that are not there, or not yet.
        "steps:\n  load: {job: load.yaml}\n  one: {command: ['${steps.load.rows_writen}', '${steps.laod.run}', \
         '${steps.one.ok}', '${steps.two.output}', '${steps.three.ok}'], needs: load}\n  two: {command: [x], needs: \
         one}\n  three: {command: [x]}\n",
        "steps:\n  each: {job: load.yaml, for_each: {A: [1]}}\n  one: {command: ['${steps.each.run}', \
         '${steps.each.items}'], needs: each}\n",
        // Where there can be none.
        "steps:\n  load: {job: load.yaml}\n  one: {job: '${steps.load.run}.yaml', needs: load, pool: \
         '${steps.load.run}', time_limit: '${steps.load.run}'}\n",
        // Items.
        "steps: {one: {job: '${A}.yaml', set: {DAY: '${A.x}'}, when: \"'${A}' = 'a'\", for_each: {A: [a]}}}\n",
        "steps: {one: {command: ['${F.size}', '${F.stem}', '${F | %Q}'], for_each: {F: {files: 'in/${F}'}}}}\n",
        "steps:\n  one:\n    command: [a]\n    retries:\n      count: ${COUNT}\n      wait: ${COUNT}\n    \
         time_limit: '${COUNT}s'\n",
    ]));
}

#[test]
fn what_is_set_in_vain_is_reported() {
    let yaml = "parameters: {DAY: 1}\nsteps: {one: {command: [a, '${DAY}']}}\n";
    let loaded = loaded_with(yaml, &Files::default(), &[("DYA", "1")]);
    insta::assert_snapshot!(shown(&loaded.lints));
    assert!(loaded.sequence.is_none());
}

#[test]
fn without_a_machine_file_pools_are_a_warning_and_before_a_run_secrets_are() {
    let yaml = "steps: {one: {job: load.yaml, pool: any}, two: {webhook: {url: {secret: env:NO_SUCH}}}}\n";
    let files = super::usual_files();
    let with = |pools: Option<&[String]>, running: bool| {
        let options = SequenceOptions {
            set: &BTreeMap::new(),
            environment: &super::environment,
            references: &tables,
            columns: &|_| Vec::new(),
            schedule: &|_| Vec::new(),
            pools,
            files: &files,
            running,
            now: crate::tests::NOW,
        };
        shown(&load("etc/nightly.yaml", yaml, &WITH_DATABASE, &options).lints)
    };
    insta::assert_snapshot!(format!("{}---\n{}", with(None, false), with(Some(&[]), true)));
}

#[test]
fn secrets_in_the_file_are_never_shown() {
    let yaml = "steps:\n  one: {webhook: {url: https://h, headers: {A: {secrt: hunter2}}}}\n  two: {query: S, from: \
                'postgres://me:hunter2@h/d', postgres: {password: hunter2}}\n  three: {webhok: {url: \
                'https://h/?token=hunter2'}}\n";
    let lints = shown(&loaded(yaml).lints);
    assert!(!lints.is_empty() && !lints.contains("hunter2"), "{lints}");
}

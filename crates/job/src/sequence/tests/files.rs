//! Files that sequences name.

use super::{Files, JOB, loaded_with, shown};
use crate::sequence::model::Action;

fn lints(nightly: &str, files: &[(&str, &str)]) -> String {
    shown(&loaded_with(nightly, &Files::of(files), &[]).lints)
}

#[test]
fn files_are_there_and_are_what_they_are_named_as() {
    insta::assert_snapshot!(lints(
        "steps:\n  one: {job: laod.yaml}\n  two: {sequence: none.yaml}\n  three: {job: shop.yaml}\n  four: {sequence: \
         load.yaml}\n  five: {job: locked.yaml}\n  six: {sequence: latin.yaml}\n  seven: {job: ''}\n  eight: \
         {sequence: empty.yaml}\n",
        &[
            ("etc/load.yaml", JOB),
            ("etc/shop.yaml", "steps: {one: {command: [a]}}\n"),
            ("etc/locked.yaml", "locked"),
            ("etc/latin.yaml", "latin"),
            ("etc/empty.yaml", ""),
        ],
    ));
}

#[test]
fn the_lints_of_named_files_come_with_their_own_places() {
    insta::assert_snapshot!(lints(
        "steps:\n  one: {job: jobs/load.yaml, needs: oen}\n  two: {sequence: sub/shop.yaml}\n  three: {job: \
         jobs/load.yaml}\n",
        &[
            ("etc/jobs/load.yaml", "sources: {a: {raed: x}}\nsinks: {out: {from: b, write: out.csv}}\n"),
            ("etc/sub/shop.yaml", "steps:\n  one: {job: inner.yaml}\n  two: {command: [a], neds: one}\n"),
            ("etc/sub/inner.yaml", "sources: {a: {read: x}}\nsinks: {}\n"),
        ],
    ));
}

#[test]
fn warnings_of_named_files_do_not_keep_a_sequence_from_running() {
    let job = "sources: {a: {read: x}, b: {read: y}}\nsinks: {out: {from: a, write: out.csv}}\n";
    let loaded = loaded_with("steps: {one: {job: load.yaml}}\n", &Files::of(&[("etc/load.yaml", job)]), &[]);
    assert_eq!(loaded.lints.len(), 1, "{}", shown(&loaded.lints));
    assert_eq!((loaded.lints[0].path.as_str(), loaded.lints[0].is_error()), ("etc/load.yaml", false));
    assert!(loaded.sequence.is_some());
}

#[test]
fn values_go_to_the_variables_of_named_files() {
    let job =
        "sources:\n  a:\n    read: in/${DAY}.csv\n    max_rejects: ${LIMIT}\nsinks: {out: {from: a, write: out.csv}}\n";
    let shop = "parameters: {SHOP: , DAY: '${today}'}\nsteps:\n  one: {job: load.yaml, set: {DAY: '${SHOP}', LIMIT: \
                3}}\n  two: {command: [x, '${DAY + 1 day}']}\n";
    let files = [("etc/load.yaml", job), ("etc/shop.yaml", shop)];
    // All is given: fixed, by a result, by an item.
    let good = "steps:\n  one: {job: load.yaml, set: {DAY: '${today}', LIMIT: 4}}\n  two: {job: load.yaml, set: {DAY: \
                '${steps.one.run}', LIMIT: '${steps.one.rows_read}'}, needs: one}\n  three: {sequence: shop.yaml, set: \
                {SHOP: '${S}', DAY: '${S}'}, for_each: {S: [a]}}\n";
    assert_eq!(lints(good, &files), "");
    // Nothing, something wrong, or too much.
    insta::assert_snapshot!(lints(
        "steps:\n  one: {job: load.yaml}\n  two: {job: load.yaml, set: {DAY: 1, LIMIT: many, DYA: 2}}\n  three: \
         {sequence: shop.yaml}\n  four: {sequence: shop.yaml, set: {SHOP: a, SHPO: '${S}', DAY: no}, for_each: {S: \
         [a]}}\n",
        &files,
    ));
}

#[test]
fn a_file_with_the_variable_of_a_loop_gets_the_item() {
    let yaml = "steps:\n  one: {job: load.yaml, for_each: {DAY: [a, b]}}\n  two: {sequence: shop.yaml, for_each: \
                {SHOP: \
                [a]}}\n  three: {job: load.yaml, set: {DAY: '${D}'}, for_each: {D: [a]}}\n  four: {job: load.yaml, \
                set: {DAY: x}, for_each: {D: [a]}}\n  five: {job: load.yaml, set: {DAY: x}, for_each: {DAY: [a]}}\n";
    let loaded = loaded_with(yaml, &super::usual_files(), &[]);
    insta::assert_snapshot!(shown(&loaded.lints));
    let sequence = loaded.sequence.expect("warnings only");
    let set = |step: usize| -> Vec<(&str, &str)> {
        let (Action::Job(file) | Action::Sequence(file)) = &sequence.steps[step].action else { panic!("a file") };
        file.set.iter().map(|(name, value)| (name.value.as_str(), value.text.value.as_str())).collect()
    };
    assert_eq!((set(0), set(1), set(2)), (vec![("DAY", "${DAY}")], vec![("SHOP", "${SHOP}")], vec![("DAY", "${D}")]));
    let Action::Job(file) = &sequence.steps[0].action else { panic!("a job") };
    let filled = file.set[0].1.fill(sequence.moment, &|_| Some("a".to_owned()));
    assert_eq!(filled.as_deref(), Ok("a"));
}

#[test]
fn a_file_is_linted_once_for_all_steps_that_give_it_the_same() {
    let job = "sources: {a: {raed: x}}\nsinks: {out: {from: a, write: out.csv}}\n";
    let yaml = "steps:\n  one: {job: load.yaml}\n  two: {job: ./load.yaml}\n  three: {job: load.yaml, set: {X: 1}}\n";
    let lints = lints(yaml, &[("etc/load.yaml", job)]);
    assert_eq!(lints.matches("unknown key `raed`").count(), 2, "{lints}");
}

#[test]
fn sequences_do_not_run_themselves() {
    insta::assert_snapshot!(lints(
        "steps: {one: {sequence: nightly.yaml}, two: {sequence: ../etc/b.yaml}}\n",
        &[
            ("etc/nightly.yaml", "steps: {one: {command: [a]}}\n"),
            ("etc/b.yaml", "steps: {one: {sequence: c.yaml}}\n"),
            ("etc/c.yaml", "steps:\n  one: {sequence: b.yaml}\n  two: {sequence: ./nightly.yaml}\n"),
        ],
    ));
}

#[test]
fn a_long_chain_of_sequences_ends() {
    let files: Vec<(String, String)> = (0..100)
        .map(|number| {
            let next = number + 1;
            (format!("etc/s{number}.yaml"), format!("steps: {{one: {{sequence: s{next}.yaml}}}}\n"))
        })
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let lints = lints("steps: {one: {sequence: s0.yaml}}\n", &files);
    assert!(lints.contains("sequences name each other more than 32 levels deep"), "{lints}");
}

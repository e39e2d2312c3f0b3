//! Jobs that name what a build leaves out.

use std::sync::LazyLock;

use millstream_core::Registry;
use millstream_core::registry::OptionalComponent;

use super::components::REGISTRY;
use super::{loaded_by, shown};

/// The test components, in a build without SFTP and MySQL. `http` is only listed here: the registry has it.
static SMALLER: LazyLock<Registry> = LazyLock::new(|| {
    REGISTRY.clone().with_optional(
        const {
            &[
                OptionalComponent { name: "sftp", schemes: &["sftp"], feature: "sftp" },
                OptionalComponent { name: "mysql", schemes: &["mysql", "mariadb"], feature: "mysql" },
                OptionalComponent { name: "http", schemes: &["http"], feature: "web" },
            ]
        },
        const { &[OptionalComponent { name: "mysql", schemes: &["mysql", "mariadb"], feature: "mysql" }] },
    )
});

fn lints(job: &str) -> String {
    shown(&loaded_by(&SMALLER, job).lints)
}

#[test]
fn a_source_that_is_left_out_names_its_feature() {
    let job = "sources:\n  a:\n    read: [a.csv, SFTP://h/a.csv]\n    sftp: {user: me}\n  b:\n    read: \
               '@sftp://h/list'\n    http: {tries: 3}\nsinks: {out: {from: a, write: a.csv}, two: {from: b, \
               write: b.csv}}\n";
    assert_eq!(
        lints(job),
        "\
error job.yaml:3:19: this build of Millstream leaves `sftp` out
  |     read: [a.csv, SFTP://h/a.csv]
  |                   ^^^^^^^^^^^^^^
  text: SFTP://h/a.csv
  hint: build it with the feature `sftp`, or use a complete build
error job.yaml:4:5: this build of Millstream leaves `sftp` out
  |     sftp: {user: me}
  |     ^^^^
  text: sftp
  hint: build it with the feature `sftp`, or use a complete build
error job.yaml:6:11: this build of Millstream leaves `sftp` out
  |     read: '@sftp://h/list'
  |           ^^^^^^^^^^^^^^^^
  text: '@sftp://h/list'
  hint: build it with the feature `sftp`, or use a complete build
"
    );
}

#[test]
fn a_sink_that_is_left_out_names_its_feature() {
    let job = "sources: {a: {read: a.csv}}\nsinks:\n  out:\n    from: a\n    write: mariadb://u@h/d\n    table: t\n    \
               connections: 3\n";
    assert_eq!(
        lints(job),
        "\
error job.yaml:5:12: this build of Millstream leaves `mysql` out
  |     write: mariadb://u@h/d
  |            ^^^^^^^^^^^^^^^
  text: mariadb://u@h/d
  hint: build it with the feature `mysql`, or use a complete build
"
    );
}

#[test]
fn what_no_build_has_is_unknown_still() {
    let job =
        "sources:\n  a:\n    read: gopher://h/a\n    gopher: {}\nsinks: {out: {from: a, write: 'gopher://h/o'}}\n";
    let lints = loaded_by(&SMALLER, job).lints;
    assert_eq!(lints.len(), 3, "{}", shown(&lints));
    assert!(lints.iter().all(|lint| !lint.what.contains("leaves")), "{}", shown(&lints));
}

#[test]
fn a_component_that_a_program_adds_takes_the_place_of_one_left_out() {
    let job = "sources: {a: {read: http://h/a, http: {tries: 3}}}\nsinks: {out: {from: a, write: o.csv}}\n";
    assert_eq!(lints(job), "");
}

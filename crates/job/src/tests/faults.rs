//! Every kind of lint.

use std::collections::BTreeMap;

use super::{loaded, loaded_with, shown, transcript};

const SINK: &str = "sinks: {out: {from: a, write: out.csv}}\n";

/// Jobs that already the schema refuses.
pub const AGAINST_THE_SCHEMA: &[&str] = &[
    // Unknown keys at every level.
    "sources: {a: {read: a.csv, csv: {delimeter: ','}, on_drfit: null}}\nsinks: {out: {from: a, write: out.csv}}\nx: \
     1\n",
    // Keys of the job in its entries.
    "sources: {a: {read: a.csv, throttle: {connections: 1}}}\nsinks: {out: {from: a, write: out.csv, hours: \
     20:00-06:00}}\n",
    // Wrong types.
    "sources: {a: {read: a.csv, csv: {header: yes}, max_rejects: abc}}\nsinks: {out: {from: a, write: out.csv}}\n",
    "sources: {a: {read: [a.csv, 3], csv: [1], max_rejects: \"3\"}}\nsinks: {out: {from: a, write: out.csv}}\n",
    "sources: {a: {read: {x: 1}, allow_empty: 1, csv: {delimiter: 1}}}\nsinks: {out: {from: a, write: out.csv}}\n",
    "incremental: 3\nsources: {a: {read: a}}\nsinks: {out: {from: a, write: o}}\n",
    // Missing keys.
    "sources: {a: {csv: {}}}\nsinks: {out: {from: a}}\n",
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: 'sqlite:a.db'}}\n",
    // A required key with a slip of the pen is one fault.
    "sources: {a: {raed: a}}\nsinks: {out: {form: a, wirte: out.csv}, two: {from: a, write: 'sqlite:a.db', tabel: \
     t}}\n",
    // Choices.
    "sources: {a: {read: a, on_drift: fial, add: [_url], csv: {columns: {x: int46}}}}\nsinks: {out: {from: a, write: \
     o}}\n",
    // Ranges, lengths, forms.
    "sources: {a: {read: https://h/a, http: {tries: 0}, csv: {delimiter: ab, max_record: 12 parsecs}}}\nsinks: {out: \
     {from: a, write: o}}\n",
    "sources: {a: {read: https://h/a, http: {tries: 21}, csv: {delimiter: ''}, max_rejects: -1}}\nsinks: {out: {from: \
     a, write: o}}\n",
    // Alternatives: the closest one is told.
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: o, shards: {hash: {of: x, count: many}}}}\n",
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: o, shards: 4}}\n",
    "sources: {a: {read: a}}\ntransforms: {b: {union: {of: [a], by: nmae}}}\nsinks: {out: {from: b, write: o}}\n",
    "sources: {a: {read: a}}\ntransforms: {b: {select: {from: a, columns: 3}}}\nsinks: {out: {from: b, write: o}}\n",
    // Two formats, two transforms, none.
    "sources: {a: {read: a, csv: {}, json: {}}}\nsinks: {out: {from: a, write: o}}\n",
    "sources: {a: {read: a}}\ntransforms: {b: {sql: SELECT 1 FROM a, sort: {from: a, by: x}}, c: {}, d: }\nsinks: \
     {out: {from: b, write: o}}\n",
    "sources: {a: {read: a}}\ntransforms: {b: {sroted: {from: a}}}\nsinks: {out: {from: b, write: o}}\n",
    // Sinks: keys of another kind, formats where there are none.
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: o, table: t}}\n",
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: 'sqlite:o', table: t, csv: {}, compress: gzip, shards: \
     1}}\n",
    "sources: {a: {read: a}}\nsinks: {out: {from: a, write: o.csv, compress: bzip2}}\n",
    // Names.
    "sources: {a-b: {read: a}, 1c: {read: a}}\nsinks: {out: {from: a-b, write: o}}\n",
    // No sections.
    "sources: {a: {read: a}}\n",
    "sinks: {out: {from: a, write: o}}\n",
    "sources: [a]\nsinks: {}\n",
    "just text\n",
    // A secret in plain text.
    "sources: {a: {read: https://h/a, http: {password: hunter2, tries: 0}}}\nsinks: {out: {from: a, write: o}}\n",
];

#[test]
fn what_the_schema_refuses() {
    insta::assert_snapshot!(transcript(AGAINST_THE_SCHEMA));
}

#[test]
fn what_components_refuse_has_its_place() {
    insta::assert_snapshot!(transcript(&[
        "sources:\n  a:\n    read: a.csv\n    csv: {header: false}\nsinks: {out: {from: a, write: out.csv}}\n",
        "sources:\n  a:\n    read: https://h/a\n    http:\n      headers:\n        good: x\n        not good: \
         y\nsinks: {out: {from: a, write: out}}\n",
        "sources: {a: {read: a}}\nsinks:\n  out:\n    from: a\n    write: out.csv\n    csv:\n      header: false\n",
        "sources: {a: {read: a.csv, http: {tries: 3}}}\nsinks: {out: {from: a, write: out}}\n",
        // Beside faults that the schema shows; what the keys say together is not told then.
        "sources: {a: {read: https://h/a, http: {treis: 3, headers: {not good: y}}, csv: {colums: {}, header: \
         false}}}\nsinks: {out: {from: a, write: out}}\n",
    ]));
}

#[test]
fn a_name_that_promises_what_cannot_be_written() {
    let job = |end: &str| format!("sources: {{a: {{read: a}}}}\nsinks:\n  out:\n    from: a\n    write: o.csv{end}\n");
    let lints = loaded(&job(".bz2")).lints;
    assert_eq!((lints.len(), lints[0].line, lints[0].text.as_str()), (1, 5, "o.csv.bz2"));
    assert!(lints[0].what.contains("bzip2") && lints[0].is_error(), "{}", lints[0].what);
    assert!(loaded(&job(".bz2\n    compress: none")).lints.is_empty() && loaded(&job(".gz")).lints.is_empty());
}

#[test]
fn names_and_links() {
    let sources = "sources: {a: {read: a}, places: {read: b}}\n";
    let with = |rest: &str| format!("{sources}{rest}");
    let jobs = [
        with("sinks: {out: {from: plaecs, write: out}, two: {from: a, write: o2}}\n"),
        with(
            "transforms:\n  b:\n    sql: |\n      SELECT *\n      FROM a JOIN placse p ON true\nsinks: {out: {from: b, \
             write: out}}\n",
        ),
        with(
            "transforms:\n  b: {filter: {from: aa, where: x > 1}}\n  c: {union: [a, b, d]}\nsinks: {out: {from: c, \
             write: out}}\n",
        ),
        with("transforms:\n  a: {filter: {from: places, where: x}}\nsinks: {out: {from: a, write: out}}\n"),
        with(
            "transforms:\n  x: {sql: SELECT * FROM y}\n  y: {sort: {from: z, by: q}}\n  z: {union: [x, a]}\n  own: \
             {sql: SELECT * FROM own}\nsinks: {out: {from: z, write: out}}\n",
        ),
        with("transforms:\n  b: {sort: {from: a, by: q}}\nsinks: {out: {from: a, write: out}}\n"),
        // Expressions of every short form can name steps.
        with(
            "transforms:\n  b: {select: {from: a, columns: [\"(SELECT max(x) FROM places) AS m\"]}}\n  c: {sort: \
             {from: b, by: [\"(SELECT x FROM plaecs) desc\"]}}\nsinks: {out: {from: c, write: out}}\n",
        ),
        "sources: {Big: {read: a}}\ntransforms:\n  b: {sql: SELECT * FROM Big}\nsinks: {out: {from: b, write: out}}\n"
            .to_owned(),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn sql_faults_have_their_place_in_the_file() {
    let job = |sql: &str| {
        format!("sources: {{a: {{read: a}}}}\ntransforms:\n  b:\n    {sql}\nsinks: {{out: {{from: b, write: out}}}}\n")
    };
    let jobs = [
        job("sql: |\n      SELECT (1)\n      FROM a WHERE x) = 1"),
        job("sql: >-\n      SELECT (1)\n      FROM a WHERE x) = 1"),
        job("sql: \"SELECT (1)\\n\\tFROM a WHERE x) = 1\""),
        job("sql: SELECT 1 FROM a\n      WHERE x) = 1"),
        job("filter: {from: a, where: x > 1)}"),
        job("select:\n      from: a\n      columns:\n        y: \"(x))\""),
        job("sql: SELECT '${DAY}' FROM a WHERE x) = 1"),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn patterns_and_targets() {
    let read = |pattern: &str| format!("sources: {{a: {{read: \"{pattern}\"}}}}\n{SINK}");
    let write = |sinks: &str| format!("sources: {{a: {{read: a}}}}\nsinks:\n{sinks}");
    let jobs = [
        read("htp://host/a.csv"),
        read("https://ho st/a.csv"),
        read("data/{a,b.csv"),
        read(""),
        read("@"),
        read("https://me:hunter2@host/a.csv?token=abc&x=1"),
        write("  o: {from: a, write: \"mysq://h/d\"}\n"),
        write(
            "  o: {from: a, write: x/out.csv}\n  p: {from: a, write: ./x//./out.csv}\n  q: {from: a, write: \
             /x/out.csv}\n",
        ),
        write(
            "  o: {from: a, write: \"sqlite:d\", table: t}\n  p: {from: a, write: \"sqlite:./d\", table: T}\n  q: \
             {from: a, write: \"sqlite:d\", table: u}\n",
        ),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn transforms_that_say_too_little_or_too_much() {
    let job = |transform: &str| {
        format!(
            "sources: {{a: {{read: a}}}}\ntransforms: {{b: {transform}}}\nsinks: {{out: {{from: b, write: out}}}}\n"
        )
    };
    let jobs = [
        job("{sort: {from: a, by: \"x desc, y\"}}"),
        job("{sort: {from: a, by: [desc]}}"),
        job("{sort: {from: a, by: []}}"),
        job("{sort: {from: a}}"),
        job("{sort: {from: a, by: x, unique: true, dedupe: {by: y}}}"),
        job("{sort: {from: a, by: [], unique: true, dedupe: {by: []}, limt: 3}}"),
        job("{sort: {from: a, by: x, dedupe: {keep: newest}}}"),
        job("{dedupe: {from: a, keep: newest}}"),
        job("{sql: }"),
        job("{sql: \"\"}"),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn variables() {
    let jobs = [
        format!("sources:\n  a:\n    read: x/${{NO_SUCH}}/y\n    max_rejects: ${{ALSO_NOT}}\n{SINK}"),
        format!("sources: {{a: {{read: \"x/${{}}\", members: \"${{1a}}\"}}}}\n{SINK}"),
        format!("sources: {{a: {{read: \"x/${{DAY\"}}}}\n{SINK}"),
        format!("sources:\n  a:\n    read: x\n    max_rejects: ${{PASSWORD}}\n    on_drift: ${{PASSWORD}}\n{SINK}"),
        format!("sources: {{a: {{read: x, max_rejects: ${{COUNT}}}}}}\n{SINK}"),
        format!("sources: {{a: {{read: x, max_rejects: \"${{COUNT}}\"}}}}\n{SINK}"),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn a_set_variable_that_nothing_uses_is_reported() {
    let set = BTreeMap::from([("DYA".to_owned(), "1".to_owned())]);
    let loaded = loaded_with(&format!("sources: {{a: {{read: \"${{DAY}}\"}}}}\n{SINK}"), &set, false);
    insta::assert_snapshot!(shown(&loaded.lints));
    assert!(loaded.job.is_none(), "the run would be another than was asked for");
}

#[test]
fn what_comes_twice_and_what_lacks_its_brackets() {
    let jobs = [
        format!("sources: {{a: {{read: [x.csv, y.csv, x.csv]}}}}\n{SINK}"),
        format!("sources: {{a: {{read: x.csv}}}}\ntransforms: {{b: {{union: {{of: a}}}}}}\n{SINK}"),
        format!(
            "sources: {{a: {{read: x}}}}\ntransforms: {{f: {{filter: {{from: a, where: x IN ('DE','AT')}}}}}}\n{SINK}"
        ),
        format!("sources:\n  a: {{read: x}}\ntransforms:\n  f:\n    sql: \"SELECT\" * FROM a\n{SINK}"),
    ];
    insta::assert_snapshot!(transcript(&jobs.each_ref().map(String::as_str)));
}

#[test]
fn a_missing_secret_is_an_error_only_for_a_run() {
    let yaml = format!("sources: {{a: {{read: https://h/a, http: {{password: {{secret: env:NO_SUCH}}}}}}}}\n{SINK}");
    let (checked, run) = (loaded_with(&yaml, &BTreeMap::new(), false), loaded_with(&yaml, &BTreeMap::new(), true));
    assert!(checked.job.is_some() && run.job.is_none());
    insta::assert_snapshot!(format!("{}{}", shown(&checked.lints), shown(&run.lints)));
}

#[test]
fn secrets_in_the_file_are_never_shown() {
    let jobs = [
        "sources: {a: {read: https://h/a, http: {tries: 99, password: hunter2, x: 1}}}\n",
        "sources:\n  a:\n    read: https://h/a\n    http:\n      password: |\n        hunter2\n        hunter2\n",
        "sources: {a: {read: https://h/a, http: {password: [hunter2]}}}\n",
        "sources: {a: {read: 'https://me:hunter2@h/a', x: 1}}\n",
        "sources: {a: {read: x, max_rejects: ${PASSWORD}}}\n",
    ];
    for yaml in jobs {
        let loaded = loaded(&format!("{yaml}{SINK}"));
        let text = shown(&loaded.lints);
        assert!(!loaded.lints.is_empty() && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn yaml_that_is_none() {
    insta::assert_snapshot!(transcript(&[
        "sources:\n\ta: 1\n",
        "sources:\n  a: {read: *.csv}\nsinks: {}\n",
        "sources:\n  a:\n    read: @list.txt\n",
        "sources:\n  a:\n    read: {a,b}.csv\n",
        "sources:\n  a:\n    read: a: b\n  b:\n    read: \"x\n  c:\n    read: [1, 2\nsinks:\n  out: {from: a, write: \
         o}\n",
        "sources:\n  a:\n    read: \"C:\\data\"\n",
        "sources:\n  a: {read: x}\n b: {read: y}\n",
        "sources: {a: {read: x, read: y}}\nsinks: {out: {from: a, write: o}}\nsources: {b: {read: x}}\n",
        "sources: {a: {read: x}}\n---\nsources: {}\n",
        "sources: {a: {read: !env X}}\nsinks: {out: {from: a, write: o}}\n",
        "sources: {? [x] : 1}\nsinks: {out: {from: a, write: o}}\n",
        "sources: &s {a: {read: x, csv: *s}}\nsinks: {out: {from: a, write: o}}\n",
        "",
        "# nothing\n",
    ]));
}

#[test]
fn bytes_that_are_not_utf_8() {
    let lint = crate::decode("job.yaml", b"sources:\n  \xc3\xa4: \xff\n").expect_err("no UTF-8");
    assert_eq!((lint.line, lint.column, lint.text.as_str()), (2, 6, "\\xff"));
    let utf16 = crate::decode("job.yaml", b"\xff\xfes\x00").expect_err("UTF-16");
    assert_eq!(utf16.hint.as_deref(), Some("the file is UTF-16: save it as UTF-8"));
}

#[test]
fn a_fault_in_a_block_that_is_used_twice_is_reported_once() {
    let loaded = loaded(
        "sources:\n  a: {read: x, csv: &c {delimeter: x}}\n  b: {read: y, csv: *c}\n\
         sinks: {o: {from: a, write: o}, p: {from: b, write: p}}\n",
    );
    assert_eq!(loaded.lints.len(), 1, "{}", shown(&loaded.lints));
}

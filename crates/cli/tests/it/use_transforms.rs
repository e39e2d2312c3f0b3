//! Transforms through the real binary, against SQLite or plain Rust on the same rows.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::use_support::{Lab, csv_rows, rows_of, sorted, step};

const COUNTRIES: [&str; 5] = ["DE", "FR", "IT", "PL", ""];

/// Towns: id, name, country (sometimes none), people (sometimes none).
fn towns() -> Vec<(u64, String, Option<&'static str>, Option<u64>)> {
    (0..500)
        .map(|id| {
            let country = COUNTRIES[(id * 7 % 5) as usize];
            let people = (id % 11 != 0).then_some(id * 7919 % 1000);
            (id, format!("town {}", id % 90), (!country.is_empty()).then_some(country), people)
        })
        .collect()
}

fn lab(transforms: &str, sinks: &[&str]) -> Lab {
    let mut job =
        "sources:\n  towns: {read: 'in/*.csv', csv: {columns: {id: int64, name: utf8, country: utf8, people: \
                   int64}}}\n  \
                   names: {read: names.csv, csv: {}}\ntransforms:\n"
            .to_owned();
    job += transforms;
    job += "sinks:\n";
    for sink in sinks {
        let _ = writeln!(job, "  out_{sink}: {{from: {sink}, write: out/{sink}.csv}}");
    }
    let lab = Lab::with_job(&job);
    lab.file("names.csv", "iso,country_name\nDE,Germany\nFR,France\nXX,Nowhere\n");
    for part in 0..4 {
        let mut text = "id,name,country,people\n".to_owned();
        for (id, name, country, people) in towns().into_iter().filter(|town| town.0 % 4 == part) {
            let people = people.map(|people| people.to_string()).unwrap_or_default();
            let _ = writeln!(text, "{id},{name},{},{people}", country.unwrap_or_default());
        }
        lab.file(&format!("in/{part}.csv"), text);
    }
    lab
}

fn reference() -> rusqlite::Connection {
    let connection = rusqlite::Connection::open_in_memory().expect("SQLite");
    connection
        .execute_batch(
            "create table towns (id integer, name text, country text, people integer);
             create table names (iso text, country_name text);
             insert into names values ('DE', 'Germany'), ('FR', 'France'), ('XX', 'Nowhere');",
        )
        .expect("tables");
    for (id, name, country, people) in towns() {
        connection
            .execute(
                "insert into towns values (?, ?, ?, ?)",
                rusqlite::params![id as i64, name, country, people.map(|n| n as i64)],
            )
            .expect("a row");
    }
    connection
}

fn out(lab: &Lab, name: &str) -> Vec<Vec<String>> {
    csv_rows(&lab.read(&format!("out/{name}.csv")))
}

#[test]
fn queries_give_what_another_database_gives() {
    let queries = [
        (
            "cte",
            "with big as (select * from towns where people > 500) select country, count(*) AS n from big group by \
             country",
        ),
        (
            "windows",
            "select id, row_number() over (partition by country order by people desc nulls last, id) AS place, \
             sum(people) over (partition by country) AS together from towns where country is not null",
        ),
        (
            "subquery",
            "select name, people from towns t where people = (select max(people) from towns u where u.country = \
             t.country)",
        ),
        (
            "semi",
            "select id from towns where country in (select iso from names) and id not in (select id from towns where \
             people is null)",
        ),
        (
            "outer_join",
            "select n.country_name, count(t.id) AS towns, sum(t.people) AS people from names n left join towns t on \
             t.country = n.iso group by n.country_name having count(*) > 0",
        ),
        (
            "unions",
            "select name from towns where people > 900 union select country_name from names union all select iso from \
             names",
        ),
        (
            "texts",
            "select upper(name) AS loud, length(name) AS size, coalesce(country, 'none') AS country, case when people \
             > 500 then 'big' else 'small' end AS kind from towns",
        ),
    ];
    let transforms: String = queries.iter().map(|(name, query)| format!("  {name}: {{sql: \"{query}\"}}\n")).collect();
    let lab = lab(&transforms, &queries.map(|(name, _)| name));
    lab.run(&["run", "job.yaml"]).ok();
    let reference = reference();
    for (name, query) in queries {
        let expected = sorted(rows_of(&reference, query));
        assert!(!expected.is_empty());
        assert_eq!(sorted(out(&lab, name)), expected, "{name}");
    }
}

#[test]
fn short_forms_do_what_their_queries_would() {
    let lab = lab(
        "  few: {filter: {from: towns, where: \"people > 900 and country <> 'FR'\"}}\n  \
         listed: {select: {from: towns, columns: [id, people * 2 AS double, upper(country) AS loud]}}\n  \
         mapped: {select: {from: towns, columns: {key: id, one: 1, yes: true, size: length(name)}}}\n  \
         left_names: {select: {from: names, columns: [iso]}}\n  \
         two: {union: [few, names]}\n  \
         places: {union: {of: [left_names, left_names], by: position}}\n  \
         once: {union: {of: [left_names, left_names], distinct: true}}\n  \
         any: {dedupe: {from: towns, by: [country, name]}}\n  \
         first: {dedupe: {from: towns, by: [country], order: [people, id]}}\n  \
         last: {dedupe: {from: towns, by: [country], keep: last, order: [people nulls first, id]}}\n  \
         same: {dedupe: {from: left_names}}\n",
        &["few", "listed", "mapped", "two", "places", "once", "any", "first", "last", "same"],
    );
    lab.run(&["run", "job.yaml"]).ok();
    let reference = reference();
    for (name, query) in [
        ("few", "select * from towns where people > 900 and country <> 'FR'"),
        ("listed", "select id, people * 2, upper(country) from towns"),
        (
            "two",
            "select id, name, country, people, null, null from towns where people > 900 and country <> 'FR' union all \
             select null, null, null, null, iso, country_name from names",
        ),
        ("places", "select iso from names union all select iso from names"),
        ("once", "select iso from names"),
        ("same", "select iso from names"),
        (
            "first",
            "select id, name, country, people from (select *, row_number() over (partition by country order by people \
             nulls last, id) r from towns) where r = 1",
        ),
        (
            "last",
            "select id, name, country, people from (select *, row_number() over (partition by country order by people \
             desc nulls last, id desc) r from towns) where r = 1",
        ),
    ] {
        assert_eq!(sorted(out(&lab, name)), sorted(rows_of(&reference, query)), "{name}");
    }
    // The columns of a map come out under their names, whatever their order.
    let mapped = lab.read("out/mapped.csv");
    let header: Vec<&str> = mapped.lines().next().expect("a header").split(',').collect();
    let column = |name: &str| header.iter().position(|one| *one == name).expect("a column");
    let (key, one, yes, size) = (column("key"), column("one"), column("yes"), column("size"));
    let rows = csv_rows(&mapped);
    assert_eq!(rows.len(), 500);
    assert!(rows.iter().all(|row| row[one] == "1" && row[yes] == "true"));
    assert!(rows.iter().all(|row| {
        let id: u64 = row[key].parse().expect("a number");
        row[size] == format!("town {}", id % 90).len().to_string()
    }));
    // Of equal rows any one stays: as many as there are kinds, each of them a row that exists.
    let kinds = rows_of(&reference, "select distinct country, name from towns");
    let any = out(&lab, "any");
    assert_eq!(sorted(any.iter().map(|row| vec![row[2].clone(), row[1].clone()]).collect()), sorted(kinds));
    let all = rows_of(&reference, "select * from towns");
    assert!(any.iter().all(|row| all.contains(row)));
}

#[test]
fn sorts_keep_their_order_to_the_file() {
    let lab = lab(
        "  up: {sort: {from: towns, by: [people, id]}}\n  \
         down: {sort: {from: towns, by: [country desc nulls last, people desc nulls last, id]}}\n  \
         nulls: {sort: {from: towns, by: [people asc nulls first, 'id desc']}}\n  \
         top: {sort: {from: towns, by: [people desc nulls last, id], limit: 7}}\n",
        &["up", "down", "nulls", "top"],
    );
    lab.run(&["run", "job.yaml"]).ok();
    let reference = reference();
    for (name, order) in [
        ("up", "people nulls last, id"),
        ("down", "country desc nulls last, people desc nulls last, id"),
        ("nulls", "people nulls first, id desc"),
        ("top", "people desc nulls last, id limit 7"),
    ] {
        assert_eq!(out(&lab, name), rows_of(&reference, &format!("select * from towns order by {order}")), "{name}");
    }
}

/// Every level of the recursion reads its tables from their beginning: a source, and a step that several use.
#[test]
fn recursive_queries_walk_all_levels() {
    let lab = Lab::with_job(
        "sources:\n  tree: {read: 'tree*.csv', csv: {columns: {id: int64, parent: int64}}}\ntransforms:\n  \
         source: {sql: 'WITH RECURSIVE w AS (SELECT 1 AS id, 1 AS depth UNION ALL SELECT t.id, w.depth + 1 FROM tree t \
         JOIN w ON t.parent = w.id) SELECT * FROM w'}\n  \
         shared: {sql: 'WITH RECURSIVE w AS (SELECT id, 1 AS depth FROM tree WHERE parent IS NULL UNION ALL SELECT \
         t.id, w.depth + 1 FROM tree t JOIN w ON t.parent = w.id) SELECT * FROM w'}\n\
         sinks:\n  a: {from: source, write: out/source.csv}\n  b: {from: shared, write: out/shared.csv}\n",
    );
    lab.file("tree1.csv", "id,parent\n1,\n2,1\n4,3\n");
    lab.file("tree2.csv", "id,parent\n3,2\n5,4\n6,5\n7,2\n");
    for cores in ["1", "3"] {
        lab.run(&["run", "job.yaml", "--cores", cores]).ok();
        let expected = [["1", "1"], ["2", "2"], ["3", "3"], ["4", "4"], ["5", "5"], ["6", "6"], ["7", "3"]];
        for name in ["source", "shared"] {
            assert_eq!(sorted(out(&lab, name)), expected, "{name} on {cores} cores");
        }
    }
}

#[test]
fn a_pipe_is_not_read_again_in_silence() {
    let lab = Lab::with_job(
        "sources:\n  tree: {read: '-', csv: {columns: {id: int64, parent: int64}}}\ntransforms:\n  \
         walk: {sql: 'WITH RECURSIVE w AS (SELECT 1 AS id UNION ALL SELECT t.id FROM tree t JOIN w ON t.parent = w.id) \
         SELECT * FROM w'}\n\
         sinks:\n  a: {from: walk, write: out/x.csv}\n",
    );
    let ran = lab.run_with_input(&["run", "job.yaml"], b"id,parent\n2,1\n3,2\n4,3\n");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("standard input can be read only once"), "{}", ran.stderr);
}

#[test]
fn lines_are_searched_before_they_are_rows() {
    let lab = Lab::with_job(
        "sources:\n  log: {read: log.txt, lines: {}, add: [_line], max_rejects: 1}\ntransforms:\n  \
         bad: {filter: {from: log, where: \"line LIKE '%ERROR%' AND line LIKE '%disk%'\"}}\nsinks:\n  o: {from: bad, \
         write: o.csv}\n",
    );
    let text: Vec<u8> = (1..=20_000_u32).fold(Vec::new(), |mut text, number| {
        match number {
            7_000 => text.extend_from_slice(b"ERROR disk \xff\n"),
            _ if number % 5_000 == 0 => writeln!(text, "{number} ERROR disk full").expect("memory"),
            _ if number % 1_000 == 0 => writeln!(text, "{number} ERROR network").expect("memory"),
            _ => writeln!(text, "{number} fine").expect("memory"),
        }
        text
    });
    lab.file("log.txt", text);
    let report = lab.report(&[]);
    let expected: Vec<Vec<String>> =
        (1..=4).map(|row| vec![format!("{} ERROR disk full", row * 5_000), (row * 5_000).to_string()]).collect();
    assert_eq!(sorted(csv_rows(&lab.read("o.csv"))), sorted(expected));
    assert_eq!(step(&report, "log", "parse")["rows"], 19_999, "all that was read");
    assert_eq!(report["rows_rejected"], 1);
}

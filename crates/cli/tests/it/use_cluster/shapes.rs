//! Jobs of all shapes that workers can do: with one, two and five of them each gives what it gives alone.

use std::fmt::Write as _;

use super::{Cluster, Process, RECORDS, cluster_of, counts, mariadb, postgres, records};
use crate::use_databases::Database;
use crate::use_support::{finish, gzip, tar_of, zip_of};

/// Files of each kind.
const FILES: usize = 8;

/// The source that most shapes read: in each file one record is bad.
const CSV: &str = "s: {read: 'in/*.csv.gz', csv: {header: false, columns: {id: int64, name: utf8, v: int64}}, \
                   max_rejects: 100}";

/// Its name, the sources, the transforms, and what is loaded into the tables `t` and, of some, `u`.
struct Shape {
    name: &'static str,
    sources: &'static str,
    transforms: &'static str,
    loaded: &'static [&'static str],
}

const SHAPES: [Shape; 12] = [
    Shape { name: "rows as they are", sources: CSV, transforms: "", loaded: &["s"] },
    Shape {
        name: "filters and expressions",
        sources: CSV,
        transforms: "kept: {filter: {from: s, where: 'v > 0'}}, short: {select: {from: kept, columns: {id: id, who: \
                     upper(name), double: v * 2}}}",
        loaded: &["short"],
    },
    Shape {
        name: "sql that keeps rows",
        sources: CSV,
        transforms: "kept: {sql: \"SELECT id, concat(name, '!') AS called, CASE WHEN v > 3 THEN v END AS high FROM s \
                     WHERE id % 3 = 0\"}",
        loaded: &["kept"],
    },
    Shape {
        name: "rows that an expression rejects",
        sources: CSV,
        transforms: "less: {sql: \"SELECT id, CAST(CASE id % 14 WHEN 1 THEN name ELSE '5' END AS BIGINT) AS five FROM \
                     s WHERE v = 1 AND id < 700\", max_rejects: 100}",
        loaded: &["less"],
    },
    Shape { name: "json", sources: "j: {read: 'in/*.jsonl.gz'}", transforms: "", loaded: &["j"] },
    Shape {
        name: "lines",
        sources: "l: {read: 'in/*.jsonl.gz', lines: {}}",
        transforms: "parsed: {sql: \"SELECT json_get_int(line, 'id') AS id, length(line) AS bytes FROM l WHERE line \
                     LIKE '%7%'\"}",
        loaded: &["parsed"],
    },
    Shape {
        name: "records of several lines",
        sources: "q: {read: 'in/*.quoted.csv', csv: {columns: {id: int64, name: utf8, v: int64}}}",
        transforms: "",
        loaded: &["q"],
    },
    Shape {
        name: "archives",
        sources: "z: {read: ['in/*.zip', 'in/*.tar.gz'], members: '*.csv', csv: {header: false, columns: {id: int64, \
                  name: utf8, v: int64}}}",
        transforms: "",
        loaded: &["z"],
    },
    Shape {
        name: "two sources into one table",
        sources: "s: {read: 'in/*.csv.gz', csv: {header: false, columns: {id: int64, name: utf8, v: int64}}, \
                  max_rejects: 100}, q: {read: 'in/*.quoted.csv', csv: {columns: {id: int64, name: utf8, v: int64}}}",
        transforms: "both: {union: [s, q]}",
        loaded: &["both"],
    },
    Shape {
        name: "two sources into two tables",
        sources: "s: {read: 'in/*.csv.gz', csv: {header: false, columns: {id: int64, name: utf8, v: int64}}, \
                  max_rejects: 100}, j: {read: 'in/*.jsonl.gz'}",
        transforms: "even: {filter: {from: s, where: 'id % 2 = 0'}}, odd: {filter: {from: j, where: 'id % 2 = 1'}}",
        loaded: &["even", "odd"],
    },
    Shape {
        name: "own code by row and by batch",
        sources: CSV,
        transforms: "some: {filter: {from: s, where: 'v < 3'}}, one: {map: {from: some, python: 'steps.py:one', \
                     columns: {w: int64}, keep: [id], deterministic: true}}, many: {map: {from: one, python: \
                     'steps.py:many', per: batch, columns: {id: int64, w: int64, x: utf8}, deterministic: true}}",
        loaded: &["many"],
    },
    Shape {
        name: "a lookup",
        sources: "s: {read: 'in/*.csv.gz', csv: {header: false, columns: {id: int64, name: utf8, v: int64}}, \
                  max_rejects: 100}, names: {read: in/more/names.csv, csv: {columns: {v: int64, called: utf8}}}",
        transforms: "named: {lookup: {from: s, in: names, on: [v], take: [called], miss: drop}}",
        loaded: &["named"],
    },
];

/// With files of all kinds that the shapes read.
fn cluster(database: Database) -> Cluster {
    let cluster = Cluster::new(database, FILES, ", max_rejects: 100");
    let lab = &cluster.lab;
    for file in 0..FILES {
        let plain = records(file, false);
        let (mut json, mut quoted) = (String::new(), "id,name,v\n".to_owned());
        for line in plain.lines() {
            let [id, name, v] = line.split(',').collect::<Vec<_>>().try_into().expect("three fields");
            let inner = if v == "3" { "null" } else { v };
            let _ = writeln!(json, r#"{{"id": {id}, "name": "{name} \"é\"", "inner": {{"v": {inner}}}}}"#);
            let _ = writeln!(quoted, "{id},\"{name}\nof two \"\"lines\"\", {v}\",{v}");
        }
        lab.file(&format!("in/{file}.jsonl.gz"), gzip(json.as_bytes()));
        lab.file(&format!("in/{file}.quoted.csv"), quoted);
        let members = [("a.csv", plain.as_bytes()), ("b.txt", b"no,such,thing\n".as_slice())];
        lab.file(&format!("in/{file}.zip"), zip_of(&members));
        lab.file(&format!("in/{file}.tar.gz"), gzip(&tar_of(&members)));
    }
    lab.file("in/more/names.csv", "v,called\n1,one\n2,two\n5,five\n");
    let code = "def one(row):\n    return {'w': row['v'] * 3}\n\n\ndef many(rows):\n    return [{'id': row['id'], 'w': \
                row['w'] + 1, 'x': str(row['id'])} for row in rows]\n";
    lab.file("steps.py", code);
    cluster
}

impl Cluster {
    fn shaped(&self, shape: &Shape) {
        let url = &self.database().url;
        let sinks = shape.loaded.iter().zip(["t", "u"]).fold(String::new(), |mut text, (step, table)| {
            let _ = writeln!(text, "  to_{table}: {{from: {step}, write: '{url}', table: {table}}}");
            text
        });
        let Shape { sources, transforms, .. } = shape;
        self.lab.file("job.yaml", format!("sources: {{{sources}}}\ntransforms: {{{transforms}}}\nsinks:\n{sinks}"));
    }

    /// The rows of all tables that the shape loads, which are gone then.
    fn taken(&self, shape: &Shape) -> Vec<Vec<String>> {
        let take = |table: &str| {
            // Of a server a record of several lines comes in several lines.
            let mut rows = self.database().query(&format!("SELECT * FROM {table}"));
            rows.sort();
            self.database().query(&format!("DROP TABLE {table}"));
            rows
        };
        let rows = ["t", "u"].into_iter().take(shape.loaded.len()).map(take).collect();
        assert!(self.database().tables().is_empty(), "{}: {:?}", shape.name, self.database().tables());
        rows
    }
}

fn each_shape_gives_what_it_gives_alone(database: Database) {
    let mut cluster = cluster(database);
    let alone: Vec<_> = SHAPES
        .iter()
        .map(|shape| {
            cluster.shaped(shape);
            let ran = cluster.lab.run(&["run", "job.yaml", "--json"]);
            let counts = counts(&ran.ok().json());
            assert!(counts[1] > 0, "{}: {counts:?}", shape.name);
            (counts, cluster.taken(shape))
        })
        .collect();
    let mut workers: Vec<Process> = Vec::new();
    for count in [1, 2, 5] {
        while workers.len() < count {
            workers.push(cluster.worker(&[]));
        }
        for (shape, alone) in SHAPES.iter().zip(&alone) {
            cluster.shaped(shape);
            let ran = finish(cluster.coordinator(&["--cluster=always", "--restart"]), None);
            let report = ran.ok().json();
            let found = (counts(&report), cluster.taken(shape));
            assert!(found == *alone, "{} with {count}: {:?} instead of {:?}", shape.name, found.0, alone.0);
            let read = cluster_of(&report).iter().map(|worker| worker["units"].as_u64().expect("a count")).sum::<u64>();
            assert!(read >= FILES as u64, "{}: {report:#}", shape.name);
        }
    }
}

#[test]
fn each_shape_gives_in_mariadb_what_it_gives_alone() {
    each_shape_gives_what_it_gives_alone(mariadb());
}

#[test]
fn each_shape_gives_in_postgresql_what_it_gives_alone() {
    each_shape_gives_what_it_gives_alone(postgres());
}

#[test]
fn an_incremental_source_gives_workers_what_no_run_has_loaded() {
    for database in Database::both() {
        let mut cluster = Cluster::new(database, 6, ", incremental: true");
        let _workers = [cluster.worker(&[]), cluster.worker(&[])];
        let load = |cluster: &Cluster| {
            let report = finish(cluster.coordinator(&["--cluster=always"]), None).ok().json();
            counts(&report)[0]
        };
        assert_eq!(load(&cluster), 6 * RECORDS as u64);
        for file in 6..9 {
            cluster.lab.file(&format!("in/{file:03}.csv.gz"), gzip(records(file, false).as_bytes()));
        }
        assert_eq!(load(&cluster), 3 * RECORDS as u64);
        let ids = (0..9 * RECORDS).filter(|id| id % 7 > 0).count();
        let found = cluster.database().query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
        assert_eq!(found, [format!("{ids}\t{ids}")]);
        let _ = &mut cluster;
    }
}

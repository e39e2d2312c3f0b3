//! Sorting through the real binary, in the least memory there is: every order is right, nothing is lost, and scratch
//! that is too small is an error.

use std::fmt::Write as _;

use millstream_testkit::Mount;

use crate::use_support::{Lab, csv_rows, gunzip, gzip, names};

const ROWS: u64 = 400_000;
const LEAST: [&str; 4] = ["--memory", "64MiB", "--cores", "2"];

/// `in.csv` with rows in no order, of which each seventh has no value, and a job with some more lines.
fn lab(job: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, g: int64, v: float64, name: utf8}}}}}}\n{job}"
    ));
    let text = (0..ROWS).fold("id,g,v,name\n".to_owned(), |mut text, row| {
        let id = row * 7_919 % ROWS;
        let value = if id.is_multiple_of(7) { String::new() } else { format!("{}.5", id % 1000) };
        let _ = writeln!(text, "{id},{},{value},some name that is long enough {}", id % 100, id % 500);
        text
    });
    lab.file("in.csv", text);
    lab
}

/// The rows of `out.csv` after a run that had to write to scratch.
fn sorted(lab: &Lab) -> Vec<Vec<String>> {
    let report = lab.report(&LEAST);
    let steps = report["steps"].as_array().expect("steps");
    let spilled: u64 = steps.iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum();
    assert!(spilled > 1 << 20, "{report:#}");
    csv_rows(&lab.read("out.csv"))
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

fn ids(rows: &[Vec<String>]) -> u64 {
    rows.iter().map(|row| row[0].parse::<u64>().expect("a number")).sum()
}

#[test]
fn several_keys_in_several_directions() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: [v desc nulls last, name, id desc]}}\nsinks:\n  \
                   out: {from: o, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    let key = |row: &Vec<String>| {
        let value = if row[2].is_empty() { f64::INFINITY } else { -number(&row[2]) };
        (value, row[3].clone(), -number(&row[0]))
    };
    assert!(rows.is_sorted_by(|one, other| key(one) < key(other)));
}

#[test]
fn keys_that_are_computed_and_only_a_part_of_the_rows() {
    let lab = lab("transforms:\n  o: {sql: 'SELECT id, name FROM s ORDER BY id % 1000 DESC, upper(name), id LIMIT \
                   150000 OFFSET 10'}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!(rows.len(), 150_000);
    let key = |row: &Vec<String>| (-(number(&row[0]) % 1000.0), row[1].to_uppercase(), number(&row[0]));
    assert!(rows.is_sorted_by(|one, other| key(one) < key(other)));
    // Of each of the 1000 values there are 400 rows, and ten are skipped.
    assert_eq!(
        (number(&rows[0][0]) % 1000.0, number(&rows[389][0]) % 1000.0, number(&rows[390][0]) % 1000.0),
        (999.0, 999.0, 998.0)
    );
}

#[test]
fn partitions_that_are_sorted_apart() {
    let lab =
        lab("transforms:\n  w: {sql: 'SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY name, id) AS n, name \
                   FROM s'}\nsinks:\n  out: {from: w, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    let mut group: Vec<&Vec<String>> = rows.iter().filter(|row| row[1] == "42").collect();
    group.sort_by_key(|row| number(&row[2]) as u64);
    let numbers: Vec<u64> = group.iter().map(|row| number(&row[2]) as u64).collect();
    assert_eq!(numbers, (1..=ROWS / 100).collect::<Vec<_>>());
    assert!(group.is_sorted_by_key(|row| (row[3].clone(), number(&row[0]) as u64)));
}

/// The transform `o` of `lab`, and the line of its sort in its plan.
fn with_transform(transform: &str) -> (Lab, Vec<String>) {
    let lab = lab(&format!("transforms:\n  o: {transform}\nsinks:\n  out: {{from: o, write: out.csv}}\n"));
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    let plan = plan.ok().stdout.clone();
    assert!(!plan.contains("Aggregate") && !plan.contains("WindowAgg"), "{plan}");
    let sorts = plan.lines().filter(|line| line.contains("SortExec")).map(str::to_owned).collect();
    (lab, sorts)
}

/// The rows of `lab`'s source as they stand.
fn rows_as_they_stand(lab: &Lab) -> Vec<Vec<String>> {
    csv_rows(&lab.read("in.csv"))
}

#[test]
fn one_of_the_same_rows_stays_in_the_same_pass() {
    let (lab, sorts) =
        with_transform("{sort: {from: s, by: [g, v desc nulls last, id], dedupe: {by: g, keep: first}}}");
    assert!(matches!(&sorts[..], [sort] if sort.contains("keep=first of equal [g@1]")), "{sorts:?}");
    let report = lab.report(&LEAST);
    let told = format!("{} duplicates dropped", ROWS - 100);
    assert!(report.to_string().contains(&told), "{report:#}");
    let rows = csv_rows(&lab.read("out.csv"));
    let mut expected = rows_as_they_stand(&lab);
    let value = |row: &Vec<String>| if row[2].is_empty() { f64::INFINITY } else { -number(&row[2]) };
    expected.sort_by(|one, other| {
        let key = |row: &Vec<String>| (number(&row[1]), value(row), number(&row[0]));
        key(one).partial_cmp(&key(other)).expect("numbers")
    });
    expected.dedup_by_key(|row| row[1].clone());
    assert_eq!(rows, expected);
}

#[test]
fn what_came_last_stays_where_there_is_no_order() {
    let (lab, sorts) = with_transform("{dedupe: {from: s, by: [name, g], keep: last}}");
    assert_eq!(sorts.len(), 1, "{sorts:?}");
    lab.report(&LEAST);
    let mut rows = csv_rows(&lab.read("out.csv"));
    let mut last = std::collections::BTreeMap::new();
    for row in rows_as_they_stand(&lab) {
        last.insert((row[3].clone(), number(&row[1]) as u64), row);
    }
    rows.sort_by_key(|row| (row[3].clone(), number(&row[1]) as u64));
    assert!(rows == last.into_values().collect::<Vec<_>>());
}

#[test]
fn rows_are_sorted_otherwise_than_they_are_the_same() {
    let (lab, sorts) = with_transform(
        "{sort: {from: s, by: [v desc nulls last, id], dedupe: {by: [g, name], keep: last}, limit: 450}}",
    );
    assert_eq!(sorts.len(), 2, "{sorts:?}");
    lab.report(&LEAST);
    let key = |row: &Vec<String>| (if row[2].is_empty() { f64::INFINITY } else { -number(&row[2]) }, number(&row[0]));
    let mut last = std::collections::BTreeMap::new();
    for row in rows_as_they_stand(&lab) {
        let kept = last.entry((row[1].clone(), row[3].clone())).or_insert_with(|| row.clone());
        if key(kept) < key(&row) {
            *kept = row;
        }
    }
    let mut expected: Vec<Vec<String>> = last.into_values().collect();
    expected.sort_by(|one, other| key(one).partial_cmp(&key(other)).expect("numbers"));
    expected.truncate(450);
    assert!(csv_rows(&lab.read("out.csv")) == expected);
}

#[test]
fn nothing_is_equal_to_nothing_and_numbers_are_what_they_mean() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, csv: {columns: {id: int64}}}\ntransforms:\n  \
         v: {sql: \"SELECT id, x, y FROM s CROSS JOIN (VALUES (CAST('NaN' AS double), 'a'), (-CAST('NaN' AS double), \
         'a'), \
         (0.0, 'b'), (-0.0, 'b'), (NULL, NULL), (NULL, NULL)) AS t(x, y)\"}\n  \
         u: {sort: {from: v, by: [y desc, x], unique: true}}\n  \
         d: {dedupe: {from: v, by: x, keep: last, order: id}}\nsinks:\n  u: {from: u, write: u.csv}\n  \
         d: {from: d, write: d.csv}\n",
    );
    lab.file("in.csv", "id\n1\n2\n");
    lab.report(&[]);
    let kinds: Vec<String> = csv_rows(&lab.read("u.csv")).into_iter().map(|row| row[2].clone()).collect();
    assert_eq!(kinds, ["", "b", "a"]);
    let rows = csv_rows(&lab.read("d.csv"));
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows.iter().all(|row| row[0] == "2"), "{rows:?}");
}

#[test]
fn a_stable_order_is_that_of_files_and_lines() {
    // The last file is the largest, so an order by size would put it first.
    let lab = Lab::with_job(
        "sources:\n  s: {read: 'in/*.csv', csv: {columns: {id: int64, a: int64, b: int64}}}\ntransforms:\n  \
         o: {sort: {from: s, by: a, stable: true}}\n  \
         by_b: {sort: {from: s, by: [b, id desc]}}\n  \
         both: {sort: {from: by_b, by: a desc, stable: true, limit: 1000}}\n  \
         first: {sort: {from: s, by: a, unique: true, stable: true}}\nsinks:\n  \
         o: {from: o, write: o.csv}\n  both: {from: both, write: both.csv}\n  first: {from: first, write: first.csv}\n",
    );
    let mut rows: Vec<[u64; 3]> = Vec::new();
    for (file, count) in [3, 500, 60_000, 150_000].into_iter().enumerate() {
        let mut text = "id,a,b\n".to_owned();
        for _ in 0..count {
            let id = rows.len() as u64;
            let row = [id, id * 7_919 % 50, id * 104_729 % 1009];
            let _ = writeln!(text, "{},{},{}", row[0], row[1], row[2]);
            rows.push(row);
        }
        lab.file(&format!("in/{file}.csv"), text);
    }
    lab.report(&["--cores", "2"]);
    let out = |name: &str| -> Vec<[u64; 3]> {
        let rows = csv_rows(&lab.read(name));
        rows.iter().map(|row| [0, 1, 2].map(|column| number(&row[column]) as u64)).collect()
    };
    let mut expected = rows.clone();
    expected.sort_by_key(|row| row[1]);
    assert!(out("o.csv") == expected);
    expected.dedup_by_key(|row| row[1]);
    assert_eq!(out("first.csv"), expected);
    let mut expected = rows;
    expected.sort_by_key(|row| (std::cmp::Reverse(row[1]), row[2], std::cmp::Reverse(row[0])));
    expected.truncate(1000);
    assert!(out("both.csv") == expected);
}

/// Days of the year with some rows each, in files that follow each other; one day has more rows than fit in memory.
fn days() -> (Lab, Vec<[u64; 3]>) {
    let lab = Lab::with_job(
        "sources:\n  s:\n    read: 'in/*.csv.gz'\n    sorted_by: [day]\n    csv: {columns: {day: int64, id: int64, n: \
         int64}}\n\
         transforms:\n  o: {sort: {from: s, by: [day, n desc, id]}}\nsinks:\n  out: {from: o, write: out.csv}\n",
    );
    let mut rows = Vec::new();
    for file in 0..4_u64 {
        let mut text = "day,id,n\n".to_owned();
        for day in file * 90..(file + 1) * 90 {
            for _ in 0..if day == 200 { 600_000 } else { 300 } {
                let id = rows.len() as u64;
                let row = [day, id, id * 7_919 % 1000];
                let _ = writeln!(text, "{},{},{}", row[0], row[1], row[2]);
                rows.push(row);
            }
        }
        lab.file(&format!("in/{file}.csv.gz"), gzip(text.as_bytes()));
    }
    (lab, rows)
}

#[test]
fn rows_that_are_in_order_already_are_sorted_within_it() {
    let (lab, mut rows) = days();
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    assert!(plan.ok().stdout.contains("within groups of equal [day@0]"), "{}", plan.stdout);
    let report = lab.report(&LEAST);
    let spilled: u64 =
        report["steps"].as_array().expect("steps").iter().filter_map(|s| s["spilled_bytes"].as_u64()).sum();
    assert!(spilled > 1 << 20, "one of the days does not fit: {report:#}");
    rows.sort_by_key(|row| (row[0], std::cmp::Reverse(row[2]), row[1]));
    let out: Vec<[u64; 3]> =
        csv_rows(&lab.read("out.csv")).iter().map(|row| [0, 1, 2].map(|column| number(&row[column]) as u64)).collect();
    assert!(out == rows);
    // What they were sorted by does not have to be the first that is wanted of them, nor to come out.
    lab.file(
        "job.yaml",
        lab.read("job.yaml").replace("by: [day, n desc, id]", "by: [day, id], dedupe: {by: day, keep: last}"),
    );
    lab.report(&["--cores", "2"]);
    rows.sort_by_key(|row| (row[0], row[1]));
    let last: Vec<String> = rows.chunk_by(|a, b| a[0] == b[0]).map(|day| day[day.len() - 1][1].to_string()).collect();
    assert_eq!(csv_rows(&lab.read("out.csv")).into_iter().map(|row| row[1].clone()).collect::<Vec<_>>(), last);
    lab.file("job.yaml", lab.read("job.yaml").replace("by: [day, id], dedupe: {by: day, keep: last}", "by: [id desc]"));
    lab.report(&["--cores", "2"]);
    rows.sort_by_key(|row| std::cmp::Reverse(row[1]));
    let ids: Vec<u64> = csv_rows(&lab.read("out.csv")).iter().map(|row| number(&row[1]) as u64).collect();
    assert!(ids == rows.iter().map(|row| row[1]).collect::<Vec<_>>());
}

#[test]
fn an_order_that_rows_do_not_have_is_reported_with_its_place() {
    let (lab, _) = days();
    let text = gunzip(&fs_err::read(lab.path("in/2.csv.gz")).expect("a file"));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.swap(1, 2000);
    lab.file("in/2.csv.gz", gzip(lines.join("\n").as_bytes()));
    let ran = lab.run(&["run", "job.yaml", "--cores", "2"]);
    ran.ended(1).says(&["in/2.csv.gz", "line 3", "are not in the order that `sorted_by` says", "day=180", "day=186"]);
    assert!(!lab.path("out.csv").exists());
    // From one file to the next, too.
    fs_err::rename(lab.path("in/0.csv.gz"), lab.path("in/2.csv.gz")).expect("renamed");
    let ran = lab.run(&["run", "job.yaml", "--cores", "2"]);
    ran.ended(1).says(&["in/2.csv.gz", "line 2", "day=0", "day=179"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("sorted_by: [day]", "sorted_by: [dya desc]"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["there is no column `dya` to sort by", "job.yaml:4:17", "`day`"]);
}

#[test]
fn sorts_that_are_too_many_for_the_memory_are_refused() {
    let lab = Lab::new();
    lab.file("in.csv", "id\n2\n1\n");
    let sorts: String = (0..30).map(|n| format!("  s{n}: {{sort: {{from: i, by: id}}}}\n")).collect();
    let sinks: String = (0..30).map(|n| format!("  o{n}: {{from: s{n}, write: out/{n}.csv}}\n")).collect();
    let columns = "csv: {columns: {id: int64}}";
    lab.file("job.yaml", format!("sources: {{i: {{read: in.csv, {columns}}}}}\ntransforms:\n{sorts}sinks:\n{sinks}"));
    for command in ["explain", "run"] {
        let ended = lab.run(&[command, "job.yaml", LEAST[0], LEAST[1], LEAST[2], LEAST[3]]);
        ended.ended(1).says(&["30 sorts need 92.3 MB of memory", "is left for them", "raise `--memory`"]);
        assert!(!lab.path("out").exists(), "nothing is written");
    }
    lab.run(&["run", "job.yaml", "--memory", "512MiB", "--cores", "2"]).ok();
    assert_eq!(lab.read("out/29.csv"), "id\n1\n2\n");
}

#[test]
fn a_transform_says_the_order_of_its_rows() {
    let (lab, mut rows) = days();
    let job = lab.read("job.yaml").replace("    sorted_by: [day]\n", "").replace(
        "transforms:\n  o: {sort: {from: s,",
        "transforms:\n  even: {filter: {from: s, where: 'id % 2 = 0'}, sorted_by: day}\n  o: {sort: {from: even,",
    );
    lab.file("job.yaml", &job);
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    assert!(plan.ok().stdout.contains("within groups of equal [day@0]"), "{}", plan.stdout);
    lab.report(&["--cores", "2"]);
    rows.retain(|row| row[1] % 2 == 0);
    rows.sort_by_key(|row| (row[0], std::cmp::Reverse(row[2]), row[1]));
    let out: Vec<[u64; 3]> =
        csv_rows(&lab.read("out.csv")).iter().map(|row| [0, 1, 2].map(|column| number(&row[column]) as u64)).collect();
    assert!(out == rows);
    // The message about an order that the data does not have names the step.
    lab.file("job.yaml", job.replace("sorted_by: day}", "sorted_by: [n desc, day]}"));
    let told = ["`sorted_by` says", "even", "the row before it has"];
    lab.run(&["run", "job.yaml", "--cores", "2"]).ended(1).says(&told);
    lab.file("job.yaml", job.replace("sorted_by: day}", "sorted_by: dya}"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["there is no column `dya` to sort by", "`day`"]);
}

#[test]
fn first_rows_of_any_sort_never_go_to_scratch() {
    type Order = fn(&mut Vec<Vec<String>>);
    let sorts: [(&str, Order); 3] = [
        ("by: name, stable: true", |rows| rows.sort_by_key(|row| row[3].clone())),
        ("by: [g, id], dedupe: {by: g, keep: last}", |rows| {
            rows.sort_by_key(|row| (number(&row[1]) as u64, std::cmp::Reverse(number(&row[0]) as u64)));
            rows.dedup_by_key(|row| row[1].clone());
        }),
        ("by: [name, id], stable: true, dedupe: {by: name}", |rows| {
            rows.sort_by_key(|row| (row[3].clone(), number(&row[0]) as u64));
            rows.dedup_by_key(|row| row[3].clone());
        }),
    ];
    for (sort, order) in sorts {
        let (lab, plan) = with_transform(&format!("{{sort: {{from: s, {sort}, limit: 1000}}}}"));
        assert!(matches!(&plan[..], [sort] if sort.contains("fetch=1000")), "{plan:?}");
        let report = lab.report(&LEAST);
        let spilled =
            report["steps"].as_array().expect("steps").iter().filter_map(|step| step["spilled_bytes"].as_u64());
        assert_eq!(spilled.sum::<u64>(), 0, "{report:#}");
        let mut expected = rows_as_they_stand(&lab);
        order(&mut expected);
        expected.truncate(1000);
        assert!(csv_rows(&lab.read("out.csv")) == expected, "{sort}");
    }
}

#[test]
fn an_order_that_a_window_has_made_is_made_use_of() {
    let job = "transforms:\n  w: {sql: 'SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY id) AS n, name, \
               row_number() \
               OVER (PARTITION BY g ORDER BY name, id DESC) AS m FROM s'}\nsinks:\n  out: {from: w, write: out.csv}\n";
    let lab = lab(job);
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    assert!(plan.ok().stdout.contains("within groups of equal [g@"), "{}", plan.stdout);
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    for group in ["7", "42"] {
        let mut group: Vec<&Vec<String>> = rows.iter().filter(|row| row[1] == group).collect();
        let counted = |group: &[&Vec<String>], column: usize| {
            group.iter().zip(1..).all(|(row, count)| number(&row[column]) as u64 == count)
        };
        group.sort_by_key(|row| number(&row[0]) as u64);
        assert!(counted(&group, 2));
        group.sort_by_key(|row| (row[3].clone(), std::cmp::Reverse(number(&row[0]) as u64)));
        assert!(counted(&group, 4));
    }
}

#[test]
fn no_rows_are_wanted() {
    for sort in ["by: id, limit: 0", "by: id, limit: 0, stable: true"] {
        let lab = lab(&format!(
            "transforms:\n  o: {{sort: {{from: s, {sort}}}}}\nsinks:\n  out: {{from: o, write: out.csv}}\n"
        ));
        lab.report(&LEAST);
        assert_eq!(csv_rows(&lab.read("out.csv")), Vec::<Vec<String>>::new(), "{sort}");
    }
}

#[test]
fn keys_that_are_none_are_reported_with_their_place() {
    for (sort, told) in [
        ("sort: {from: s, by: [v descending]}", "`descending` is where the direction of a sort key belongs"),
        ("sort: {from: s, by: [v desc nulls frist]}", "`desc` is where the direction of a sort key belongs"),
        ("sort: {from: s, by: []}", "`by` names no column"),
        ("sort: {from: s, by: v, dedupe: {by: []}}", "`by` names no column"),
        ("dedupe: {from: s, by: []}", "`by` names no column"),
    ] {
        let lab = lab(&format!("transforms:\n  o: {{{sort}}}\nsinks:\n  out: {{from: o, write: out.csv}}\n"));
        lab.run(&["check", "job.yaml"]).ended(2).says(&[told, "job.yaml:4:"]);
    }
    // These are expressions.
    let lab = lab(
        "transforms:\n  l: {select: {from: s, columns: [id, id AS \"date last seen\", id AS up]}}\n  o: {sort: {from: \
         l, \
                   by: ['\"date last seen\" desc', 'abs( up )', '- up']}}\nsinks:\n  out: {from: o, write: out.csv}\n",
    );
    lab.run(&["check", "job.yaml"]).ok();
}

#[test]
fn one_sort_for_two_sinks() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n  \
                   too: {from: o, write: too.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    assert!(rows.is_sorted_by_key(|row| row[3].clone()));
    assert!(lab.read("too.csv") == lab.read("out.csv"));
}

#[test]
fn the_plan_is_reported_before() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    let line = plan.ok().stdout.lines().find(|line| line.contains("SortExec")).expect("the sort").to_owned();
    assert!(line.contains("memory=") && line.contains(" runs, 1 merge pass, scratch="), "{line}");
    let plan = lab.run(&["explain", "job.yaml", "--memory", "1GB", "--cores", "2"]);
    let line = plan.ok().stdout.lines().find(|line| line.contains("SortExec")).expect("the sort").to_owned();
    assert!(line.ends_with(" in memory"), "{line}");
}

#[test]
fn the_size_of_packed_files_is_estimated_from_the_beginning_of_one() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.txt.gz, lines: {}}\ntransforms:\n  o: {sort: {from: s, by: line}}\nsinks:\n  \
         out: {from: o, write: out.txt, lines: {}}\n",
    );
    let text: String = (0..200_000).map(|row| format!("{row:09} {}\n", "and so on ".repeat(8))).collect();
    let packed = gzip(text.as_bytes());
    assert!(text.len() / packed.len() > 6, "not what is taken for it where nothing is known");
    lab.file("in.txt.gz", packed);
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]).ok().stdout.clone();
    let about = plan.split_once(", about ").and_then(|(_, rest)| rest.split_once(" MB in ")).expect("a size").0;
    assert!((0.8..1.25).contains(&(number(about) * 1e6 / text.len() as f64)), "{plan}");
}

#[test]
fn what_is_the_same_in_each_part_of_a_union_is_not_so_in_all() {
    let union =
        format!("SELECT 'b' AS src, id, name FROM s UNION ALL SELECT 'a' AS src, id + {ROWS} AS id, name FROM s");
    for steps in [
        "d: {dedupe: {from: u, by: [id, src]}}\n  o: {sort: {from: d, by: [src, id]}}",
        "o: {sort: {from: u, by: [src, id], dedupe: {by: id}}}",
    ] {
        let lab = lab(&format!(
            "transforms:\n  u: {{sql: \"{union}\"}}\n  {steps}\nsinks:\n  out: {{from: o, write: out.csv}}\n"
        ));
        let rows = sorted(&lab);
        assert_eq!(rows.len() as u64, 2 * ROWS);
        let key = |row: &Vec<String>| (row[0].clone(), number(&row[1]));
        assert!(rows.is_sorted_by(|one, other| key(one) < key(other)), "{steps}");
    }
}

#[test]
fn first_rows_that_do_not_fit_go_to_scratch() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.txt, lines: {}}\ntransforms:\n  o: {sort: {from: s, by: line, limit: 20000}}\n\
         sinks:\n  out: {from: o, write: out.txt, lines: {}}\n",
    );
    let line = |row: u64| format!("{:05}{}", row * 7_919 % 30_000, "x".repeat(2000));
    lab.file("in.txt", (0..30_000).map(|row| line(row) + "\n").collect::<String>());
    let report = lab.report(&LEAST);
    let steps = report["steps"].as_array().expect("steps");
    assert!(steps.iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum::<u64>() > 100_000, "{report:#}");
    let rows = lab.read("out.txt");
    let numbers: Vec<u64> = rows.lines().map(|line| line[..5].parse().expect("a number")).collect();
    assert_eq!(numbers, (0..20_000).collect::<Vec<_>>());
}

#[test]
fn scratch_that_is_too_small_is_reported_before_anything_is_read_or_when_it_is_full() {
    let Some(small) = Mount::tmpfs("size=1m") else { return };
    let scratch = small.path().display().to_string();
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let arguments = [&["run", "job.yaml", "--scratch", &scratch][..], &LEAST].concat();
    let ran = lab.run(&arguments);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("error: sorting about ") && ran.stderr.contains(" of scratch, and "), "{}", ran.stderr);
    assert!(ran.stderr.contains("--scratch"), "{}", ran.stderr);
    // What a group-by leaves is not known before, and little.
    let query = "{sql: 'SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY g'}";
    lab.file("grouped.yaml", lab.read("job.yaml").replace("{sort: {from: s, by: name}}", query));
    lab.run(&[&["run", "grouped.yaml", "--scratch", &scratch][..], &LEAST].concat()).ok();
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 100);
    fs_err::remove_file(lab.path("out.csv")).expect("it is there");
    // The size of a pipe is unknown.
    let job = lab.read("job.yaml").replace("read: in.csv", "read: '-'");
    lab.file("job.yaml", job);
    let input = lab.read("in.csv");
    let ran = lab.run_with_input(&arguments, input.as_bytes());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("cannot be written to scratch in ") && ran.stderr.contains("no space left"),
        "{}",
        ran.stderr
    );
    assert_eq!(names(small.path()), [""; 0], "nothing is left in scratch");
    assert!(!lab.path("out.csv").exists());
}

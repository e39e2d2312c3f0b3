//! `check`, `preview` and `run` agree: all of them report what prevents a job from running, before anything is written.

use millstream_testkit::{MariaDb, PASSWORD, Postgres, USER};

use crate::use_support::{Lab, Ran, gzip};

const ROWS: &str = "id,name\n1,a\n2,b\nx,c\n4,d\n";

fn lab(job: &str) -> Lab {
    let lab = Lab::with_job(job);
    lab.file("a.csv", ROWS);
    lab
}

/// The errors that a command reports, without their count.
fn errors(ran: &Ran) -> String {
    let errors = ran.stderr.find("error: ").map_or("", |at| &ran.stderr[at..]);
    let is_count = |line: &str| line.starts_with(|one: char| one.is_ascii_digit()) && line.contains(" error");
    errors.lines().filter(|line| !is_count(line)).collect::<Vec<_>>().join("\n")
}

/// `check` and `run` must refuse the job with `code`, and with the same words, which hold `parts`.
#[track_caller]
fn both_refuse(lab: &Lab, code: i32, parts: &[&str]) {
    let checked = lab.run(&["check", "job.yaml"]);
    checked.ended(code).says(parts);
    let ran = lab.run(&["run", "job.yaml", "--quiet"]);
    ran.ended(code);
    assert_eq!(errors(&checked), errors(&ran), "the same fault, the same message");
}

/// What other tools read from or write to is not taken for a slip.
#[test]
fn a_place_that_is_not_supported_is_named_with_what_works_instead() {
    for (read, write, parts) in [
        ("hdfs://a/b.csv", "o.csv", ["no source reads `hdfs://`", "HDFS is not supported: mount it"]),
        ("mssql://a/b", "o.csv", ["no source reads `mssql://`", "SQL Server is not supported: let it export files"]),
        ("amqp://a/b", "o.csv", ["no source reads `amqp://`", "RabbitMQ is not supported: let a program write"]),
        ("kafka://a/b", "o.csv", ["`s` needs settings in a block `kafka`: missing field `group`", "for example:"]),
        ("a.csv", "ftp://a/b.csv", ["no sink writes to `ftp:", "writing to FTP is not supported: write a file"]),
        ("a.csv", "snowflake://a/b", ["no sink writes to `snowflake:", "Snowflake is not supported: write files"]),
        ("a.csv", "myqsl://a/b", ["no sink writes to `myqsl:", "did you mean `mysql://`?"]),
    ] {
        let lab = lab(&format!(
            "sources:\n  s: {{read: '{read}', csv: {{columns: {{id: utf8}}}}}}\nsinks:\n  o: {{from: s, write: \
             '{write}'}}\n"
        ));
        let checked = lab.run(&["check", "job.yaml"]);
        checked.ended(2).says(&parts);
        assert_eq!(checked.stderr.contains("did you mean"), write.starts_with("myqsl"), "{}", checked.stderr);
    }
}

#[test]
fn a_preview_leaves_out_what_a_run_would() {
    let reject = |at: &str, columns: &str, sql: &str| {
        lab(&format!(
            "sources:\n  s: {{read: a.csv, csv: {{columns: {columns}}}{}}}\ntransforms:\n  t: {{sql: \
             '{sql}'{}}}\nsinks:\n  \
             o: {{from: t, write: out.csv}}\n",
            if at == "s" { ", max_rejects: 1" } else { "" },
            if at == "t" { ", max_rejects: 1" } else { "" },
        ))
    };
    let by_parser = reject("s", "{id: int64, name: utf8}", "SELECT id, name FROM s");
    let by_expression = reject("t", "{id: utf8, name: utf8}", "SELECT CAST(id AS int) AS id, name FROM s");
    for (lab, entry) in [(&by_parser, "s"), (&by_expression, "t")] {
        let shown = lab.run(&["preview", "job.yaml", "--json"]);
        shown.ok().says(&[&format!("1 record left out by `{entry}`:\n"), "`x`"]);
        let rows = shown.json();
        let ids: Vec<i64> = rows.as_array().expect("rows").iter().filter_map(|row| row["id"].as_i64()).collect();
        assert_eq!(ids, [1, 2, 4]);
        assert!(!lab.path(".state").exists(), "a preview keeps nothing");
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(lab.read("out.csv"), "id,name\n1,a\n2,b\n4,d\n");
    }
    by_parser.file("a.csv", ROWS.to_owned() + "y,e\n");
    let shown = by_parser.run(&["preview", "job.yaml"]);
    shown
        .ended(3)
        .says(&["2 records were rejected, and `max_rejects` of `s` allows 1", "hint: fix the data or the job"]);
}

#[test]
fn what_cannot_be_loaded_file_by_file_is_said_before_the_run() {
    const FILES: &str = "read: a.csv, csv: {columns: {id: utf8, name: utf8}}";
    let job = |source: &str, transforms: &str, sinks: &str| {
        let lab = lab(&format!(
            "sources:\n  s: {{{source}, incremental: true}}\n  r: {{{FILES}}}\n{transforms}sinks:\n{sinks}  rest: \
             {{from: r, write: \
             rest.csv}}\n"
        ));
        let database = rusqlite::Connection::open(lab.path("in.db")).expect("a database");
        database.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)").expect("a table");
        lab
    };
    let into = |from: &str, rest: &str| format!("  o: {{from: {from}, write: {rest}}}\n");
    let table = "'sqlite:o.db', table: t";
    let replace = format!("{table}, mode: replace");
    let count = "transforms:\n  j: {sql: 'SELECT count(*) AS n FROM s'}\n";
    for (source, transforms, sinks, code, why) in [
        (FILES, "", into("s", &replace), 2, "this target cannot note which files it has"),
        (FILES, "", into("s", "o.csv"), 2, "this target cannot note which files it has"),
        ("read: 'sqlite:in.db', sqlite: {table: t}", "", into("s", table), 2, "a database has no files"),
        ("read: '-', csv: {columns: {id: utf8}}", "", into("s", table), 2, "standard input has no files"),
        (FILES, count, into("j", table), 2, "an aggregate would combine the rows of one run"),
    ] {
        let lab = job(source, transforms, &sinks);
        both_refuse(&lab, code, &["`s` is incremental, and `o` cannot be loaded file by file", why]);
        assert!(!lab.path("o.db").exists() && !lab.path("o.csv").exists());
    }
    let lab = job(FILES, "", &into("s", table));
    lab.run(&["check", "job.yaml"]).ok();
    lab.run(&["run", "job.yaml"]).ok();
}

/// The error says that `folder` takes no files. It does not say that the folder is missing.
#[track_caller]
fn assert_no_files(ran: &Ran, folder: &str) {
    let says = |what: &str| ran.stderr.contains(&format!("{what} {folder}"));
    let rights = says("cannot write to the folder");
    assert!(
        rights || says("files cannot be created in") && ran.stderr.contains("write to another folder"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains("no such file or directory\n  hint: write"), "{}", ran.stderr);
}

#[test]
fn a_target_that_cannot_be_written_is_said_before_the_run() {
    let job = |sink: &str| {
        lab(&format!(
            "sources:\n  s: {{read: a.csv, csv: {{columns: {{id: utf8, name: utf8}}}}}}\nsinks:\n  o: {{from: s, \
             {sink}}}\n"
        ))
    };
    for (sink, what) in [
        ("write: /proc/o.csv", "/proc"),
        ("write: /sys/deep/o.csv", "/sys"),
        ("write: 'sqlite:/proc/o.db', table: t", "/proc"),
    ] {
        let lab = job(sink);
        both_refuse(&lab, 1, &[what]);
        assert_no_files(&lab.run(&["check", "job.yaml"]), what);
    }
    let lab = job("write: out/o.csv");
    lab.0.folder("out");
    lab.run(&["check", "job.yaml"]).ok();
    assert_eq!(crate::use_support::names(&lab.path("out")), Vec::<String>::new(), "a check leaves nothing");
}

#[test]
fn rights_that_a_user_of_a_server_lacks_are_said_before_the_run() {
    const TABLE: &str = "CREATE TABLE t (id VARCHAR(9) PRIMARY KEY, name VARCHAR(9))";
    let mariadb = MariaDb::shared();
    let (name, user) = (mariadb.database(), "only_reads");
    mariadb.query(&name, TABLE);
    mariadb.query(&name, &format!("CREATE USER '{user}_{name}'@'%' IDENTIFIED BY '{PASSWORD}'"));
    let in_mariadb = |sql: &str| mariadb.query(&name, &sql.replace("USER", &format!("'{user}_{name}'@'%'")));
    let postgres = Postgres::shared();
    let other = postgres.database();
    postgres.query(&other, TABLE);
    postgres.query(&other, &format!("CREATE USER {user}_{other} PASSWORD '{PASSWORD}'"));
    let in_postgres = |sql: &str| postgres.query(&other, &sql.replace("USER", &format!("{user}_{other}")));
    type Query<'a> = &'a dyn Fn(&str) -> Vec<String>;
    let servers: [(Query, String); 2] = [
        (&in_mariadb, mariadb.url(&name).replace(USER, &format!("{user}_{name}"))),
        (&in_postgres, postgres.url(&other).replace(USER, &format!("{user}_{other}"))),
    ];
    for (grant, url) in servers {
        grant("GRANT SELECT ON t TO USER");
        let lab = lab(&format!(
            "sources:\n  s: {{read: a.csv, csv: {{columns: {{id: utf8, name: utf8}}}}}}\nsinks:\n  o: {{from: s, \
             write: '{url}', \
             table: t, key: [id], mode: MODE}}\n"
        ));
        let text = lab.read("job.yaml");
        let mode = |mode: &str| drop(lab.file("job.yaml", text.replace("MODE", mode)));
        for all in ["append", "truncate", "merge", "ignore"] {
            mode(all);
            both_refuse(&lab, 1, &["the user may not write to table t of", "denied"]);
        }
        grant("GRANT INSERT ON t TO USER");
        mode("append");
        lab.run(&["check", "job.yaml"]).ok();
        mode("merge");
        both_refuse(&lab, 1, &["the user may not write to table t of", "UPDATE"]);
        // What a merge changes are the columns that are no key.
        grant("GRANT UPDATE (name) ON t TO USER");
        lab.run(&["check", "job.yaml"]).ok();
        assert_eq!(grant("SELECT count(*) FROM t"), ["0"]);
    }
}

/// The load ignores the case of names, and `check` does not wait for a locked table.
#[test]
fn a_check_of_a_table_compares_names_as_the_load_does_and_waits_for_no_lock() {
    let postgres = Postgres::shared();
    let name = postgres.database();
    postgres.query(&name, "CREATE TABLE t (id VARCHAR(9), \"NAME\" VARCHAR(9))");
    let lab = lab(&format!(
        "sources:\n  s: {{read: a.csv, csv: {{columns: {{id: utf8, name: utf8}}}}}}\ntransforms:\n  u: {{sql: 'SELECT \
         id AS \"ID\", \
         name FROM s'}}\nsinks:\n  o: {{from: u, write: '{}', table: t}}\n",
        postgres.url(&name)
    ));
    lab.run(&["check", "job.yaml"]).ok();
    let locking = name.clone();
    let sleeper = std::thread::spawn(move || {
        Postgres::shared().query(&locking, "BEGIN; LOCK TABLE t IN EXCLUSIVE MODE; SELECT pg_sleep(600); COMMIT")
    });
    let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND relation = 't'::regclass";
    while postgres.query(&name, locked) != ["1"] {
        assert!(!sleeper.is_finished(), "the lock is not taken");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    lab.run(&["check", "job.yaml"]).ok();
    assert!(!sleeper.is_finished(), "the check has waited for the lock");
    let stop = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> \
                pg_backend_pid() AND datname = current_database()";
    postgres.query(&name, stop);
    // psql says that its connection has ended, which fails the thread.
    let _ = sleeper.join();
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(postgres.query(&name, "SELECT count(*) FROM t"), ["4"]);
}

/// Faults of several entries come together, whatever stage of the check finds them.
#[test]
fn what_can_be_known_together_is_said_together() {
    let lab =
        lab("sources:\n  s: {read: a.csv}\n  gone: {read: gone.csv}\ntransforms:\n  t:\n    sql: SELECT idd, nam, \
         upper(amount) AS u FROM s \
         WHERE oher > 1\n  u: {filter: {from: nowhere, where: id > 1}}\nsinks:\n  o: {from: t, write: \
         /proc/o.csv}\n  p: {from: s, \
         write: p/}\n");
    for command in [&["check", "job.yaml"][..], &["run", "job.yaml"]] {
        lab.run(command).ended(2).says(&[
            "there is no column `idd`",
            "there is no column `nam`",
            "there is no column `oher`",
            "there is no column `amount`",
            "`nowhere`",
            "gone.csv",
            "`p/` is a folder",
        ]);
    }
    let sound = "sources:\n  s: {read: a.csv}\n  gone: {read: gone.csv}\ntransforms:\n  t: {sql: 'SELECT idd FROM \
                 s'}\nsinks:\n  o: \
                 {from: t, write: o.csv}\n  p: {from: s, write: /proc/p.csv}\n  q: {from: gone, write: q.csv}\n";
    lab.file("job.yaml", sound);
    for command in [&["check", "job.yaml"][..], &["run", "job.yaml"]] {
        let ran = lab.run(command);
        ran.ended(2).says(&["there is no column `idd`", "gone.csv"]);
        assert_no_files(&ran, "/proc");
    }
}

#[test]
fn a_constant_that_no_row_needs_stops_nobody() {
    let job = |sql: &str| {
        lab(&format!(
            "sources:\n  s: {{read: a.csv, csv: {{columns: {{id: utf8, name: utf8}}}}}}\ntransforms:\n  t:\n    sql: \
             |\n      {sql}\n\
             sinks:\n  o: {{from: t, write: out.csv}}\n"
        ))
    };
    let never = job("SELECT CASE WHEN id = 'never' THEN CAST('abc' AS int) ELSE 0 END AS v FROM s");
    never.run(&["run", "job.yaml"]).ok();
    assert_eq!(never.read("out.csv"), "v\n0\n0\n0\n0\n");
    let once = job("SELECT CASE WHEN id = 'x' THEN CAST('abc' AS int) ELSE 0 END AS v FROM s");
    once.run(&["run", "job.yaml"]).ended(1).says(&["the text cannot be converted to int32\n  step t\n  text `abc`"]);
    let always = job("SELECT CAST('abc' AS int) AS v FROM s");
    both_refuse(&always, 2, &["job.yaml:6:19", "the text cannot be converted to int32"]);
}

/// A value that YAML cuts at a comma, a quote or a `#` is shown as a whole, with its quotes.
#[test]
fn sql_that_yaml_takes_apart_is_to_be_quoted() {
    for (entry, parts) in [
        (
            "{sql: SELECT id, name, upper(name) FROM s, max_rejects: 3}",
            &[
                "error: the comma before `name` ends the value of `sql`",
                "hint: inside `{ }`, put a value that holds a comma in quotes: sql: \"SELECT id, name, upper(name) \
                 FROM s\"",
                "1 error",
            ][..],
        ),
        ("{filter: {from: s, where: substr(name, 1, 2) = 'x'}}", &["where: \"substr(name, 1, 2) = 'x'\""]),
        ("{sql: SELECT id FROM s WHERE name IN ('a', 'b')}", &["put a value that holds one, such as SQL, in quotes"]),
        ("{select: {from: s, columns: [coalesce(id, name) AS x]}}", &["the parentheses do not match", "in quotes"]),
        ("{sql: SELECT id FROM s WHERE name = 'a: b'}", &["such as SQL or `${NAME}`, in quotes"]),
        ("{sql: SELECT name #> 'x' FROM s}", &["a `#` after a space begins a comment"]),
    ] {
        let job = format!(
            "sources:\n  s: {{read: a.csv}}\ntransforms:\n  t: {entry}\nsinks:\n  o: {{from: t, write: o.csv}}\n"
        );
        let checked = lab(&job).run(&["check", "job.yaml"]);
        let told: Vec<&str> = parts.iter().copied().filter(|part| *part != "1 error").collect();
        checked.ended(2).says(&told);
        if parts.contains(&"1 error") {
            assert_eq!(checked.stderr.matches("error: ").count(), 1, "{}", checked.stderr);
        }
    }
    let mode = "sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: 'sqlite:o.db', table: t, mode: upsert}\n";
    lab(mode).run(&["check", "job.yaml"]).ended(2).says(&["did you mean `merge`?"]);
}

/// A value that does not fit a narrower decimal is a reject of the step that converts it.
#[test]
fn a_decimal_that_does_not_fit_is_a_reject_of_its_step() {
    let lab =
        lab("sources:\n  s: {read: d.csv, csv: {columns: {id: int64, d: 'decimal(7, 2)'}}}\ntransforms:\n  t: {sql: \
         'SELECT id, CAST(d AS \
         decimal(5, 2)) AS d FROM s', max_rejects: 1}\nsinks:\n  o: {from: t, write: out.csv}\n");
    lab.file("d.csv", "id,d\n1,12.34\n2,99999.99\n3,12.30\n");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("out.csv"), "id,d\n1,12.34\n3,12.30\n");
    lab.file("job.yaml", lab.read("job.yaml").replace(", max_rejects: 1", ""));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["step t", "`max_rejects: 100` (or `1%`) at `t`"]);
}

/// What a filter compares is the converted value, in whichever step the conversion stands.
#[test]
fn a_filter_compares_what_a_step_before_it_converts() {
    let lab =
        lab("sources:\n  s: {read: d.csv, csv: {columns: {id: int64, d: 'decimal(7, 2)'}}}\ntransforms:\n  t: {sql: \
         'SELECT id, CAST(d AS \
         decimal(7, 1)) AS d FROM s'}\n  f: {filter: {from: t, where: d = 12.3}}\nsinks:\n  o: {from: f, write: \
         out.csv}\n");
    lab.file("d.csv", "id,d\n1,12.34\n2,99.99\n3,12.30\n");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("out.csv"), "id,d\n1,12.3\n3,12.3\n");
}

/// A time far ahead is compared as it is stored, and not in nanoseconds.
#[test]
fn times_far_ahead_are_compared() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: a.csv, csv: {columns: {id: int64, until: timestamp}}}\ntransforms:\n  t: {filter: \
         {from: s, \
         where: \"until > TIMESTAMP '2024-01-01' AND until >= DATE '2024-01-01'\"}}\nsinks:\n  o: {from: t, write: \
         o.csv}\n",
    );
    lab.file("a.csv", "id,until\n1,9999-12-31 00:00:00\n2,2023-12-31 00:00:00\n3,2024-06-01 00:00:00\n");
    lab.run(&["run", "job.yaml"]).ok();
    let rows = lab.read("o.csv");
    let ids: Vec<&str> = rows.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(ids, ["1", "3"]);
}

/// With columns declared, only an attempt to read the first file shows that it cannot be read.
#[test]
fn a_first_file_that_is_damaged_or_of_another_kind_is_said_by_check() {
    let job = |file: &str| {
        Lab::with_job(&format!(
            "sources:\n  s: {{read: {file}, csv: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: s, write: o.csv}}\n"
        ))
    };
    let other = job("a.csv");
    other.file("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and more".as_slice());
    both_refuse(&other, 1, &["a.csv"]);
    let cut = job("a.csv.gz");
    let whole = gzip(b"id\n1\n2\n3\n");
    cut.file("a.csv.gz", &whole[..whole.len() - 6]);
    both_refuse(&cut, 1, &["a.csv.gz"]);
}

/// A refused target hides no warning about a source.
#[test]
fn warnings_stand_beside_a_refused_target() {
    let lab = Lab::with_job("sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: o.csv, mode: error}\n");
    lab.file("a.csv", "id;name\n1;a\n2;b\n");
    lab.file("o.csv", "id\n");
    for command in ["check", "run"] {
        let told = lab.run(&[command, "job.yaml"]);
        told.ended(1).says(&["split by commas, `s` has one column", "o.csv exists already"]);
    }
}

/// What YAML takes off a value may be a part of a password.
#[test]
fn a_password_that_yaml_cuts_is_not_shown() {
    let sink = |settings: &str| {
        lab(&format!("sources:\n  s: {{read: a.csv}}\nsinks:\n  o: {{from: s, table: t, {settings}}}\n"))
    };
    for settings in [
        "write: 'mysql://etl@h/shop', password: ab12, cd34",
        "write: mysql://etl:ab12,cd34@h/shop",
        "write: mysql://etl:ab12, cd34@h/shop",
    ] {
        let told = sink(settings).run(&["check", "job.yaml", "--offline"]);
        assert!(!told.stderr.contains("hint") || !told.stderr.contains("ab12, cd34"), "{settings}: {}", told.stderr);
        let hint = told.stderr.lines().filter(|line| line.contains("hint")).collect::<String>();
        assert!(!hint.contains("cd34"), "{settings}: {}", told.stderr);
    }
    let block = lab("sources:\n  s:\n    read: a.csv\n    on drift:\nsinks:\n  o: {from: s, write: o.csv}\n");
    block.run(&["check", "job.yaml"]).ended(2).says(&["unknown key `on drift` in `s`", "`on_drift`"]);
}

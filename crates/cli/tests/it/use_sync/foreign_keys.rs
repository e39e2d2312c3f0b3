//! Tables that refer to each other by foreign keys, kept in step by one job.

use std::os::unix::process::ExitStatusExt;

use millstream_testkit::MariaDb;

use super::TARGETS;
use crate::use_resume::{Target, in_mariadb, in_postgres};
use crate::use_support::Lab;

const SETTINGS: &str = "mode: sync, key: [id], missing: delete, max_deletes: 100%, lock_timeout: 5s, retries: 0";

/// A job that loads `orders.csv` and `customers.csv` into tables of which the first refers to the second.
fn lab(make: fn(&Lab) -> Target) -> (Lab, Target) {
    let lab = Lab::new();
    let target = make(&lab);
    let url = target.url();
    let settings =
        if url.starts_with("sqlite") { SETTINGS.split(", lock").next().unwrap_or_default() } else { SETTINGS };
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  o: {{read: orders.csv, csv: {{columns: {{id: int64, customer: int64}}}}}}\n  c: {{read: \
             customers.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\nsinks:\n  orders: {{from: o, write: \
             '{url}', table: orders, {settings}}}\n  customers: {{from: c, write: '{url}', table: customers, \
             {settings}}}\n"
        ),
    );
    target.query("CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    target.query(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, CONSTRAINT of_customer FOREIGN KEY \
         (customer) REFERENCES customers (id))",
    );
    (lab, target)
}

/// Writes the inputs: the names of customers by their numbers, and the customer of each order.
fn inputs(lab: &Lab, customers: &[(i64, &str)], orders: &[(i64, i64)]) {
    let lines = |header: &str, rows: Vec<String>| format!("{header}\n{}\n", rows.join("\n"));
    let customers = customers.iter().map(|(id, name)| format!("{id},{name}")).collect();
    let orders = orders.iter().map(|(id, customer)| format!("{id},{customer}")).collect();
    lab.file("customers.csv", lines("id,name", customers));
    lab.file("orders.csv", lines("id,customer", orders));
}

/// The tables must have these rows.
#[track_caller]
fn has(target: &Target, customers: &[&str], orders: &[&str]) {
    assert_eq!(target.query("SELECT id, name FROM customers ORDER BY id"), customers, "{}", target.url());
    assert_eq!(target.query("SELECT id, customer FROM orders ORDER BY id"), orders, "{}", target.url());
}

#[test]
fn tables_that_refer_to_each_other_are_kept_in_step_by_one_job() {
    for make in TARGETS {
        let (lab, target) = lab(make);
        inputs(&lab, &[(1, "a"), (2, "b")], &[(10, 1), (11, 2)]);
        lab.run(&["run", "job.yaml"]).ok();
        has(&target, &["1\ta", "2\tb"], &["10\t1", "11\t2"]);
        // A new customer has an order, one has another name, and an order is not there any more.
        inputs(&lab, &[(1, "A"), (2, "b"), (3, "c")], &[(11, 3), (12, 3)]);
        let report = lab.report(&[]);
        let changes = |sink: usize| report["results"][sink]["changes"].clone();
        assert_eq!((changes(0)["inserted"].as_u64(), changes(0)["deleted"].as_u64()), (Some(1), Some(1)));
        assert_eq!((changes(1)["inserted"].as_u64(), changes(1)["updated"].as_u64()), (Some(1), Some(1)));
        has(&target, &["1\tA", "2\tb", "3\tc"], &["11\t3", "12\t3"]);
        // The customer without orders goes.
        inputs(&lab, &[(1, "A"), (3, "c")], &[(11, 3), (12, 3)]);
        lab.run(&["run", "job.yaml"]).ok();
        has(&target, &["1\tA", "3\tc"], &["11\t3", "12\t3"]);
    }
}

/// Customers that are not there any more go with their orders, which are deleted first.
#[test]
fn rows_are_deleted_before_those_to_which_they_refer() {
    for make in TARGETS {
        let (lab, target) = lab(make);
        inputs(&lab, &[(1, "a"), (2, "b")], &[(10, 1), (11, 2), (12, 2)]);
        lab.run(&["run", "job.yaml"]).ok();
        inputs(&lab, &[(1, "a"), (3, "c")], &[(10, 3), (13, 1)]);
        let report = lab.report(&[]);
        let changes = |sink: usize| report["results"][sink]["changes"].clone();
        assert_eq!((changes(0)["inserted"].as_u64(), changes(0)["deleted"].as_u64()), (Some(1), Some(2)), "{report}");
        assert_eq!((changes(1)["inserted"].as_u64(), changes(1)["deleted"].as_u64()), (Some(1), Some(1)), "{report}");
        has(&target, &["1\ta", "3\tc"], &["10\t3", "13\t1"]);
    }
}

/// An order that goes over to another customer stays there, and so does its old one.
#[test]
fn rows_to_which_others_refer_are_not_deleted() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make);
        inputs(&lab, &[(1, "a"), (2, "b")], &[(10, 1), (11, 2)]);
        lab.run(&["run", "job.yaml"]).ok();
        inputs(&lab, &[(1, "a"), (3, "c")], &[(11, 1), (12, 3)]);
        lab.run(&["run", "job.yaml"]).ended(1).says(&[
            "rows that are missing from the input cannot be deleted from table customers of",
            "of_customer",
            "rows of another table refer to them: delete those before (if this job loads that table, its input and \
             this one disagree)",
            "these sinks have already deleted the rows that were missing: orders",
        ]);
        has(&target, &["1\ta", "2\tb"], &["11\t2"]);
    }
}

/// SQLite compares foreign keys once all rows are there. The error names the entry whose rows lack others.
#[test]
fn an_order_without_a_customer_is_an_error_of_orders() {
    for make in TARGETS {
        for job_order in [false, true] {
            let (lab, target) = lab(make);
            if job_order {
                let job = lab.read("job.yaml");
                let (start, sinks) = job.split_once("sinks:\n").expect("sinks");
                let (orders, customers) = sinks.split_once("  customers:").expect("two sinks");
                lab.file("job.yaml", format!("{start}sinks:\n  customers:{customers}{orders}"));
            }
            inputs(&lab, &[(1, "a")], &[(10, 1), (11, 7)]);
            lab.run(&["run", "job.yaml"]).ended(1).says(&["step orders"]);
            assert!(target.query("SELECT id FROM orders").is_empty());
        }
    }
}

/// Too many rows would go from one of the tables: none goes from the other.
#[test]
fn neither_table_changes_if_too_many_rows_of_one_are_missing() {
    for make in TARGETS {
        for (most, name) in [
            ("customers, mode: sync, key: [id], missing: delete, max_deletes: 1", "customers"),
            ("orders, mode: sync, key: [id], missing: delete, max_deletes: 1", "orders"),
        ] {
            let (lab, target) = lab(make);
            inputs(&lab, &[(1, "a"), (2, "b"), (3, "c")], &[(10, 1), (11, 2), (12, 3)]);
            lab.run(&["run", "job.yaml"]).ok();
            let job = lab.read("job.yaml");
            let all = format!("table: {name}, mode: sync, key: [id], missing: delete, max_deletes: 100%");
            assert!(job.contains(&all), "{job}");
            lab.file("job.yaml", job.replace(&all, &format!("table: {most}")));
            inputs(&lab, &[(1, "A")], &[(10, 1)]);
            lab.run(&["run", "job.yaml"]).ended(1).says(&["2 of 3 rows of table", name, "nothing was changed"]);
            has(&target, &["1\ta", "2\tb", "3\tc"], &["10\t1", "11\t2", "12\t3"]);
        }
    }
}

/// What can be known before anything is visible is known before the first of the tables changes.
#[test]
fn neither_table_changes_if_one_has_no_input() {
    for make in TARGETS {
        let (lab, target) = lab(make);
        inputs(&lab, &[(1, "a")], &[(10, 1)]);
        lab.run(&["run", "job.yaml"]).ok();
        lab.file("customers.csv", "id,name\n1,b\n");
        lab.file("orders.csv", "id,customer\n");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["no row came for table orders of"]);
        has(&target, &["1\ta"], &["10\t1"]);
    }
}

/// Not only tables in step: what a load locks, and when, depends on its mode.
#[test]
fn tables_that_refer_to_each_other_are_loaded_in_other_modes_too() {
    for make in TARGETS {
        for (orders, customers, is_kept) in [
            ("merge", "merge", true),
            ("ignore", "sync, missing: keep", true),
            ("append, atomic: true", "sync, missing: keep", true),
            ("append, atomic: true, defer_indexes: true", "merge", true),
            ("truncate", "merge", false),
            ("sync, missing: keep", "append, atomic: true", true),
        ] {
            let (lab, target) = lab(make);
            inputs(&lab, &[(1, "a"), (2, "b")], &[(10, 1)]);
            lab.run(&["run", "job.yaml"]).ok();
            let job = lab.read("job.yaml").replace("max_deletes: 100%, ", "").replace(", max_deletes: 100%", "");
            let set = |job: String, table: &str, mode: &str| {
                let before = format!("table: {table}, mode: sync, key: [id], missing: delete");
                assert!(job.contains(&before), "{job}");
                job.replace(&before, &format!("table: {table}, key: [id], mode: {mode}"))
            };
            lab.file("job.yaml", set(set(job, "orders", orders), "customers", customers));
            // An order of a customer that is there and changes, or comes, in the same run.
            let adds = customers.starts_with("append");
            let rows = if adds { &[(3, "c")][..] } else { &[(1, "A"), (2, "b"), (3, "c")] };
            inputs(&lab, rows, &[(11, if orders.starts_with("append") { 1 } else { 3 })]);
            lab.run(&["run", "job.yaml"]).ok();
            let first = if adds { "1\ta" } else { "1\tA" };
            let new = if orders.starts_with("append") { "11\t1" } else { "11\t3" };
            let expected = if is_kept { vec!["10\t1", new] } else { vec![new] };
            has(&target, &[first, "2\tb", "3\tc"], &expected);
        }
    }
}

/// The tables of a server have one name, whatever the sinks call the server, and in MySQL whatever database they use.
#[test]
fn tables_of_one_server_are_known_whatever_its_url() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make);
        let job = lab.read("job.yaml");
        let url = target.url();
        let by_name = url.replace("127.0.0.1", "localhost");
        assert_ne!(url, by_name);
        lab.file("job.yaml", job.replacen(&url, &by_name, 1));
        in_step_twice(&lab);
        has(&target, &["1\tA", "3\tc"], &["12\t3"]);
    }
}

#[test]
fn tables_of_two_databases_of_one_server_may_refer_to_each_other() {
    let mariadb = MariaDb::shared();
    let (lab, _) = lab(in_mariadb);
    let [of_orders, of_customers] = [mariadb.database(), mariadb.database()];
    let mut job = lab.read("job.yaml");
    for (table, database) in [("orders", &of_orders), ("customers", &of_customers)] {
        let end = job.find(&format!("', table: {table},")).expect("its table");
        let start = job[..end].rfind("mysql:").expect("its URL");
        job.replace_range(start..end, &mariadb.url(database));
    }
    lab.file("job.yaml", job);
    mariadb.query(&of_customers, "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    mariadb.query(
        &of_orders,
        &format!(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, FOREIGN KEY (customer) REFERENCES \
             {of_customers}.customers (id))"
        ),
    );
    in_step_twice(&lab);
    assert_eq!(mariadb.query(&of_customers, "SELECT id, name FROM customers ORDER BY id"), ["1\tA", "3\tc"]);
    assert_eq!(mariadb.query(&of_orders, "SELECT id, customer FROM orders ORDER BY id"), ["12\t3"]);
}

/// Runs the job twice: the second time a customer goes with its order, and another comes with one.
fn in_step_twice(lab: &Lab) {
    inputs(lab, &[(1, "a"), (2, "b")], &[(10, 1), (11, 2)]);
    lab.run(&["run", "job.yaml"]).ok();
    inputs(lab, &[(1, "A"), (3, "c")], &[(12, 3)]);
    lab.run(&["run", "job.yaml"]).ok();
}

/// A fault in the second table, which is known only when the first one is there.
#[test]
fn an_error_names_the_tables_that_have_changed() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make);
        inputs(&lab, &[(1, "a")], &[(10, 1), (11, 7)]);
        let job = lab.read("job.yaml") + "  copy: {from: o, write: copy.csv}\n";
        lab.file("job.yaml", job);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["of_customer", "these sinks were already committed: customers"]);
        has(&target, &["1\ta"], &[]);
        assert!(!lab.path("copy.csv").exists());
        inputs(&lab, &[(1, "a")], &[(10, 1), (11, 1)]);
        lab.run(&["run", "job.yaml"]).ok();
        has(&target, &["1\ta"], &["10\t1", "11\t1"]);
    }
}

/// Killed between the two commits, the first table is as its source; a resumed run brings the other one in step.
#[test]
fn killed_in_between_both_are_in_step_in_the_end() {
    for make in TARGETS {
        let windows =
            ["delete.before", "delete.after", "publish.before", "publish.next", "publish.prepared", "publish.after"];
        for window in windows {
            let (lab, target) = lab(make);
            inputs(&lab, &[(1, "a"), (2, "b")], &[(10, 1), (11, 2)]);
            lab.run(&["run", "job.yaml"]).ok();
            inputs(&lab, &[(3, "c"), (2, "B")], &[(11, 3), (12, 3)]);
            let status = lab.run_to(window);
            let is_sqlite = target.url().starts_with("sqlite");
            assert!(status.signal() == Some(9) || is_sqlite, "{window} {}", target.url());
            lab.run(&["run", "job.yaml", "--resume"]).ok();
            has(&target, &["2\tB", "3\tc"], &["11\t3", "12\t3"]);
        }
    }
}

/// A foreign key may let rows go with those to which they refer, or change them. Those of a table of the job stay, as
/// its own input says, and the run fails as it does without such a key.
#[test]
fn rows_of_a_table_of_the_job_do_not_go_with_others() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        for (rule, mode) in [
            ("CASCADE", None),
            ("SET NULL", None),
            ("CASCADE", Some("merge, key: [id]")),
            ("CASCADE", Some("append, atomic: true")),
        ] {
            let (lab, target) = lab(make);
            let drop = if target.url().starts_with("mysql") { "FOREIGN KEY" } else { "CONSTRAINT" };
            target.query(&format!("ALTER TABLE orders DROP {drop} of_customer"));
            let nullable = match target.url().starts_with("mysql") {
                true => "ALTER TABLE orders MODIFY customer BIGINT",
                false => "ALTER TABLE orders ALTER COLUMN customer DROP NOT NULL",
            };
            target.query(nullable);
            target.query(&format!(
                "ALTER TABLE orders ADD CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES customers (id) ON \
                 DELETE {rule}"
            ));
            // One that the job does not load goes with its customer.
            target.query(
                "CREATE TABLE notes (id BIGINT PRIMARY KEY, customer BIGINT, FOREIGN KEY (customer) REFERENCES \
                 customers (id) ON DELETE CASCADE)",
            );
            inputs(&lab, &[(1, "a"), (2, "b"), (3, "c")], &[(10, 1), (11, 2), (12, 2)]);
            lab.run(&["run", "job.yaml"]).ok();
            target.query("INSERT INTO notes VALUES (1, 3)");
            let job = lab.read("job.yaml");
            if let Some(mode) = mode {
                let before = "table: orders, mode: sync, key: [id], missing: delete, max_deletes: 100%";
                assert!(job.contains(before), "{job}");
                lab.file("job.yaml", job.replace(before, &format!("table: orders, mode: {mode}")));
            }
            let (orders, left): (&[(i64, i64)], &[&str]) = match mode {
                None => (&[(10, 1), (11, 2)], &["10\t1", "11\t2"]),
                // Such a load has the first place.
                Some(mode) if mode.starts_with("append") => (&[(13, 1)], &["10\t1", "11\t2", "12\t2", "13\t1"]),
                Some(_) => (&[(13, 1)], &["10\t1", "11\t2", "12\t2"]),
            };
            inputs(&lab, &[(1, "A")], orders);
            let on_delete = format!("of_customer has ON DELETE {rule}");
            let ran = lab.run(&["run", "job.yaml"]);
            ran.ended(1).says(&[
                "rows that are missing from the input cannot be deleted from table customers of",
                "step customers",
                "id=2",
                "orders",
                &on_delete,
            ]);
            has(&target, &["1\ta", "2\tb", "3\tc"], left);
            assert_eq!(target.query("SELECT id FROM notes"), ["1"]);
            // Without a row that refers to it, a customer goes, and so does what only the database knows.
            lab.file("job.yaml", job);
            inputs(&lab, &[(1, "A"), (2, "b")], &[(10, 1), (11, 2)]);
            let report = lab.report(&[]);
            assert_eq!(report["results"][1]["changes"]["deleted"].as_u64(), Some(1), "{report}");
            has(&target, &["1\tA", "2\tb"], &["10\t1", "11\t2"]);
            assert!(target.query("SELECT id FROM notes").is_empty());
            inputs(&lab, &[(1, "A")], &[(10, 1)]);
            lab.run(&["run", "job.yaml"]).ok();
            has(&target, &["1\tA"], &["10\t1"]);
        }
    }
}

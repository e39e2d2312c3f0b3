//! The files of the folder through the server.

use serde_json::{Value, json};

use super::Served;

const JOB: &str = "sources:\n  s: {read: 'postgres://etl:hunter2@db.example/x', table: t}\nsinks:\n  o: {from: s, \
    write: \
                   out.csv}\n";

#[test]
fn only_files_of_the_folder_are_there() {
    let served =
        Served::new(&[("a.yaml", JOB), ("deep/b.yaml", "steps:\n  x: {command: ['true']}\n"), ("data.csv", "1\n")]);
    served.lab.file("secret.yaml", "password: hunter3\n");
    fs_err::os::unix::fs::symlink(served.lab.path("secret.yaml"), served.lab.path("jobs/out.yaml")).expect("a link");
    fs_err::os::unix::fs::symlink("/", served.lab.path("jobs/root")).expect("a link");
    let browser = served.browser();
    let files = browser.get("/api/v1/files");
    let names: Vec<&Value> = files["files"].as_array().expect("files").iter().map(|file| &file["file"]).collect();
    assert_eq!(names, ["a.yaml", "deep/b.yaml"]);
    let root = served.lab.path("").display().to_string();
    for name in [
        "../secret.yaml",
        "%2e%2e/secret.yaml",
        "deep/../../secret.yaml",
        "out.yaml",
        "root/etc/passwd",
        "data.csv",
        "/etc/passwd",
        "",
        ".",
        "a.yaml%00",
        "deep",
        "..%2fsecret.yaml",
        "....//secret.yaml",
        &format!("{root}/secret.yaml"),
    ] {
        for path in ["file", "check", "explain", "preview"] {
            let answer = browser.send("GET", &format!("/api/v1/{path}?file={name}"), &Value::Null);
            assert!([403, 404].contains(&answer.status), "{path} {name}: {answer:?}");
            assert!(!answer.body.contains("hunter3") && !answer.body.contains("root:"), "{answer:?}");
        }
    }
    for name in ["../new.yaml", "out.yaml", "root/tmp/new.yaml", "new.sh", ".new.yaml", "/tmp/new.yaml"] {
        let answer = browser.send("PUT", "/api/v1/file", &json!({"file": name, "text": "x", "etag": null}));
        assert!([400, 403, 404].contains(&answer.status), "{name}: {answer:?}");
    }
    assert_eq!(served.lab.read("secret.yaml"), "password: hunter3\n");
}

#[test]
fn files_are_written_by_those_who_may_and_have_seen_them() {
    let served = Served::new(&[("a.yaml", JOB)]);
    let (editor, operator) = (served.browser_as("edit"), served.browser_as("operate"));
    let mut events = editor.events("");
    events.next("hello", |_| true);
    let seen = editor.get("/api/v1/file?file=a.yaml");
    assert_eq!((&seen["text"], &seen["is_redacted"]), (&json!(JOB), &json!(false)));
    let new = json!({"file": "a.yaml", "text": "sources: {}\n", "etag": seen["etag"]});
    operator.send("PUT", "/api/v1/file", &new).is(403);
    // Somebody changes it on the disk.
    served.lab.file("jobs/a.yaml", "sinks: {}\n");
    events.next("files", |data| data["files"] == json!(["a.yaml"]));
    assert!(editor.send("PUT", "/api/v1/file", &new).is(412).problem().contains("has changed meanwhile"));
    let seen = editor.get("/api/v1/file?file=a.yaml");
    let new = json!({"file": "a.yaml", "text": "sources: {}\n", "etag": seen["etag"]});
    editor.send("PUT", "/api/v1/file", &new).is(200);
    assert_eq!(served.lab.read("jobs/a.yaml"), "sources: {}\n");
    editor.send("PUT", "/api/v1/file", &json!({"file": "new/c.yaml", "text": "x", "etag": null})).is(200);
    editor.send("PUT", "/api/v1/file", &json!({"file": "new/c.yaml", "text": "y", "etag": null})).is(412);
    assert_eq!(served.lab.read("jobs/new/c.yaml"), "x");
}

#[test]
fn passwords_in_files_are_for_editors() {
    let served = Served::new(&[("a.yaml", JOB)]);
    for role in ["look", "operate"] {
        let browser = served.browser_as(role);
        for path in ["file?file=a.yaml", "check?file=a.yaml&offline=true", "explain?file=a.yaml"] {
            let answer = browser.send("GET", &format!("/api/v1/{path}"), &Value::Null);
            assert!(!answer.is(200).body.contains("hunter2"), "{role} {path}: {answer:?}");
        }
        assert_eq!(browser.get("/api/v1/file?file=a.yaml")["is_redacted"], true);
    }
    // Neither the variables of a run nor what it prints or reports have them.
    let job = "on_success: [{command: ['true', '${DB_PASSWORD}']}]\nsources:\n  s: {read: in.csv, csv: {columns: {n: \
               int64}}}\nsinks:\n  o: {from: s, write: 'out-${DAY}.csv'}\n";
    served.lab.file("jobs/b.yaml", job);
    served.lab.file("jobs/in.csv", "n\n1\n");
    let editor = served.browser_as("edit");
    let run = editor.start(&json!({"file": "b.yaml", "set": {"DAY": "1", "DB_PASSWORD": "hunter2"}}));
    editor.run_ended(&run);
    for text in ["PASSWORD=h", "hunter2"] {
        let found = editor.get(&format!("/api/v1/runs?q={text}"));
        assert_eq!(found["runs"], json!([]), "what is not shown is not found: {text}");
    }
    for path in
        [format!("runs/{run}"), "runs".to_owned(), "overview".to_owned(), format!("runs/{run}/log"), "audit".to_owned()]
    {
        let answer = editor.send("GET", &format!("/api/v1/{path}"), &Value::Null);
        assert!(!answer.is(200).body.contains("hunter2"), "{path}: {answer:?}");
    }
}

#[test]
fn a_broken_job_has_a_graph_too() {
    let served = Served::new(&[(
        "job.yaml",
        "sources:\n  s: {read: 'in-${DAY}.csv', csv: {columns: {n: int64}}}\ntransforms:\n  t: {sql: SELECT n FROM \
         s}\n  u: {sort: {from: t, bye: [n]}}\nsinks:\n  o: {from: u, write: 'out-${DAY}.csv'}\n  p: {from: nothing, \
         write: p.csv}\n",
    )]);
    let explain = served.browser().get("/api/v1/explain?file=job.yaml");
    let lints = explain["lints"].to_string();
    assert!(lints.contains("the variable DAY is not set") && lints.contains("`bye`"), "{explain}");
    let entry = |name: &str, kind: &str, reads: &[&str]| json!({"entry": name, "kind": kind, "reads": reads});
    assert_eq!(
        explain["entries"],
        json!([
            entry("s", "source", &[]),
            entry("t", "transform", &["s"]),
            entry("u", "transform", &["t"]),
            entry("o", "sink", &["u"]),
            entry("p", "sink", &[]),
        ])
    );
}

#[test]
fn a_job_is_explained_and_its_first_rows_are_shown() {
    let job = "allow: [DAY]\nsources:\n  s: {read: in.csv, csv: {columns: {n: int64, name: utf8}}}\ntransforms:\n  t: \
        {sql: \
               'SELECT n * 2 AS twice FROM s'}\nsinks:\n  o: {from: t, write: out.csv}\n";
    let served = Served::new(&[("job.yaml", job), ("in.csv", "n,name\n1,a\n2,\n")]);
    let browser = served.browser_as("operate");
    let explain = browser.get("/api/v1/explain?file=job.yaml");
    let entries: Vec<&Value> =
        explain["entries"].as_array().expect("entries").iter().map(|one| &one["entry"]).collect();
    assert_eq!(
        (explain["kind"].as_str(), entries),
        (Some("job"), vec![&json!("s"), &json!("t"), &json!("o")]),
        "{explain}"
    );
    assert_eq!(explain["transforms"][0]["columns"], json!([{"name": "twice", "type": "int64"}]), "{explain}");
    assert_eq!((&explain["allow"], &explain["errors"]), (&json!(["DAY"]), &json!([])));
    let rows = browser.get("/api/v1/preview?file=job.yaml&step=s&rows=5");
    assert_eq!(rows["columns"], json!([{"name": "n", "type": "int64"}, {"name": "name", "type": "utf8"}]), "{rows}");
    assert_eq!(rows["rows"], json!([["1", "a"], ["2", null]]), "{rows}");
    let rows = browser.get("/api/v1/preview?file=job.yaml");
    assert_eq!(rows["rows"], json!([["2"], ["4"]]), "{rows}");
    // Names are never taken for options.
    let rows = browser.get("/api/v1/preview?file=job.yaml&step=--help");
    assert!(rows["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{rows}");
    fs_err::remove_file(served.lab.path("jobs/in.csv")).expect("removed");
    let explain = browser.get("/api/v1/explain?file=job.yaml");
    assert_eq!(explain["entries"].as_array().map(Vec::len), Some(3), "the graph is known even so: {explain}");
    assert!(explain["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{explain}");
}

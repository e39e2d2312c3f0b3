//! Sources that cannot be read: missing, forbidden, or a server that fails.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_testkit::{Answer, Fault, FaultServer, Object, Plan};

use crate::harness::MILLSTREAM;
use crate::transcript::{COLUMNS, Session, assert_transcript};

#[test]
fn a_missing_file() {
    let mut session = Session::with("data/rows.csv", "id,name\n1,a\n");
    session.job(&format!("rows: {{read: data/row.csv, {COLUMNS}}}"), "write: out/x.csv");
    session.fails_everywhere(1);
    session.fails_without_job("data/row.csv");
    session.job(&format!("rows: {{read: dat/rows.csv, {COLUMNS}}}"), "write: out/x.csv");
    session.fails_everywhere(1);
    session.job(&format!("rows: {{read: 'data/*.gz', {COLUMNS}}}"), "write: out/x.csv");
    session.fails_everywhere(1);
    session.fails_without_job("data/*.gz");
    session.job(&format!("rows: {{read: data, {COLUMNS}}}"), "write: out/x.csv");
    session.fails_everywhere(1);
    assert_transcript!("location_missing", session);
}

/// The program that runs the binary without root's right to read everything.
fn without_rights() -> Vec<&'static str> {
    if rustix::process::geteuid().is_root() {
        vec!["setpriv", "--bounding-set=-dac_override,-dac_read_search", MILLSTREAM]
    } else {
        vec![MILLSTREAM]
    }
}

#[test]
fn a_folder_and_a_file_without_rights() {
    let mut session = Session::with("closed/rows.csv", "id,name\n1,a\n");
    session.tree.file("rows.csv", "id,name\n1,a\n");
    let set = |name: &str, mode: u32| {
        fs_err::set_permissions(session.tree.path(name), std::fs::Permissions::from_mode(mode)).expect("our own file");
    };
    set("closed", 0o000);
    set("rows.csv", 0o000);
    let mut ended = Vec::new();
    for pattern in ["closed/rows.csv", "closed/*.csv", "**/rows.csv", "rows.csv"] {
        session.job(&format!("rows: {{read: '{pattern}', {COLUMNS}}}"), "write: out/x.csv");
        let output = session.within(&without_rights(), &["run", "job.yaml"]).output();
        ended.push((pattern, output.expect("setpriv of util-linux takes rights from root")));
    }
    set("closed", 0o755);
    for (pattern, output) in ended {
        let ended = session.record(&format!("millstream run job.yaml   # reads {pattern}"), output);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    }
    assert!(session.left().is_empty());
    assert_transcript!("location_without_rights", session);
}

/// A session with a job that reads `path` of a server.
fn served(server: &FaultServer, path: &str) -> Session {
    let session = Session::new();
    let url = server.url(path);
    session.job(&format!("rows: {{read: '{url}', {COLUMNS}, http: {{retries: 2}}}}"), "write: out/x.csv");
    session
}

#[test]
fn not_found() {
    let server = FaultServer::start(Plan::new());
    let mut session = served(&server, "/rows.csv");
    session.fails_everywhere(1);
    session.fails_without_job(&server.url("/rows.csv"));
    assert_transcript!("server_404", session);
}

#[test]
fn one_of_many_is_not_found() {
    let plan = Plan::new().object("/0.csv", Object::new("id,name\n1,a\n"));
    let server = FaultServer::start(plan);
    let mut session = served(&server, "/{0..1}.csv");
    session.fails(1, &["run", "job.yaml"]);
    assert_transcript!("server_one_404", session);
}

/// A list of many objects, a few of which are missing: all of these are named, and by default the run fails.
#[test]
fn some_of_a_long_list_are_gone() {
    let mut session = Session::new();
    let gone = [5, 77, 200, 201, 555, 900, 999];
    for number in (0..1000).filter(|number| !gone.contains(number)) {
        session.tree.file(&format!("served/{number}.csv"), format!("id,name\n{number},a\n"));
    }
    let nginx = millstream_testkit::Nginx::start(&session.tree.path("served"));
    let list: String = (0..1000).map(|number| format!("{}\n", nginx.url(&format!("{number}.csv")))).collect();
    session.tree.file("list.txt", list);
    let source = |more: &str| format!("rows: {{read: '@list.txt', {COLUMNS}{more}}}");
    session.job(&source(""), "write: out/x.csv");
    let ended = session.fails(1, &["run", "--quiet", "job.yaml"]);
    for number in gone {
        assert!(ended.stderr.contains(&format!("/{number}.csv\n")), "{number}: {}", ended.stderr);
    }
    assert_eq!(ended.stderr.matches("404 Not Found").count(), gone.len(), "{}", ended.stderr);
    assert!(session.left().is_empty(), "nothing was written");
    let counted = session.fails(1, &["count", "@list.txt"]);
    assert_eq!(counted.stderr.matches("404 Not Found").count(), gone.len(), "{}", counted.stderr);
    assert_eq!(counted.stdout, "", "no number that would be too small");

    session.job(&source(", on_error: skip"), "write: out/x.csv");
    let ended = session.run(&["run", "--json", "job.yaml"]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("a report");
    assert_eq!((ended.code, &report["units_skipped"]), (Some(0), &serde_json::json!(7)));
    assert_eq!(
        (&report["rows_written"], report["skipped"].as_array().map(Vec::len)),
        (&serde_json::json!(993), Some(7))
    );
    let told = session.run(&["run", "job.yaml"]).stderr;
    assert!(told.contains("skipped, because they cannot be opened: 7\n"), "{told}");

    session.tree.file("list.txt", format!("{}\n{}\n", nginx.url("5.csv"), nginx.url("77.csv")));
    let ended = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!(ended.code, Some(1), "no empty result instead of a full one");
    assert!(ended.stderr.contains("every unit of the source was skipped"), "{}", ended.stderr);
    // Without `columns` these are looked for first, and no message mentions them.
    session.job("rows: {read: '@list.txt', csv: {}}", "write: out/x.csv");
    let ended = session.run(&["check", "job.yaml"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr.matches("404 Not Found").count(), 2, "all that were looked at: {}", ended.stderr);
    session.job("rows: {read: '@list.txt', csv: {}, on_error: skip}", "write: out/x.csv");
    let ended = session.run(&["check", "job.yaml"]);
    assert!(!ended.stderr.contains("`on_error: skip`"), "it is set: {}", ended.stderr);
    assert!(ended.stderr.contains("declare `columns`"), "{}", ended.stderr);
}

/// Names that are not what they look like, and lists and patterns of nothing.
#[test]
fn names_that_mean_something_else() {
    let mut session = Session::with("a[1].csv", "id,name\n1,a\n");
    session.tree.file("empty.txt", "# nothing\n");
    session.tree.file("c7.csv.gz", "");
    for pattern in ["a[1].csv", "@empty.txt", "$HOME_OF_NOBODY/a.csv", "nope.csv.gz"] {
        session.job(&format!("rows: {{read: '{pattern}', {COLUMNS}}}"), "write: out/x.csv");
        session.fails_everywhere(1);
    }
    session.job("rows: {read: 'none*.csv', allow_empty: true}", "write: out/x.csv");
    let ended = session.run(&["check", "job.yaml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_transcript!("location_names", session);
}

#[test]
fn a_parquet_file_has_no_lines() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: rows.parquet");
    assert_eq!(session.run(&["run", "--quiet", "job.yaml"]).code, Some(0));
    let ended = session.fails(1, &["count", "rows.parquet"]);
    assert!(ended.stderr.contains("a Parquet file has rows, not lines"), "{}", ended.stderr);
    session.tree.file("text.txt", "PAR1\n");
    assert_eq!(session.run(&["count", "text.txt"]).stdout, "1\n", "a text may begin so");
}

#[test]
fn not_allowed() {
    let refused = Fault::Answer(Answer::status(401));
    let server = FaultServer::start(Plan::new().object("/rows.csv", Object::new("").always(refused)));
    let mut session = served(&server, "/rows.csv");
    session.fails_everywhere(1);
    assert_transcript!("server_401", session);
}

#[test]
fn overloaded_for_good() {
    let busy = Fault::Answer(Answer::status(503).body("try later"));
    let server = FaultServer::start(Plan::new().object("/rows.csv", Object::new("").always(busy)));
    let mut session = served(&server, "/rows.csv");
    session.fails_everywhere(1);
    assert_transcript!("server_503", session);
    assert_eq!(
        server.requests().iter().filter(|request| request.method == "GET").count(),
        6,
        "two runs of three tries"
    );
}

#[test]
fn a_port_without_a_listener() {
    let mut session = Session::new();
    let port = millstream_testkit::free_port();
    let url = format!("http://127.0.0.1:{port}/rows.csv");
    session.job(&format!("rows: {{read: '{url}', {COLUMNS}, http: {{retries: 1}}}}"), "write: out/x.csv");
    session.fails_everywhere(1);
    assert_transcript!("server_unreachable", session);
}

fn many_rows() -> String {
    (0..40_000).fold("id,name\n".to_owned(), |text, number| text + &format!("{number},name {number}\n"))
}

#[test]
fn a_server_that_dies_three_times_and_recovers_loses_nothing() {
    let rows = many_rows();
    let object = Object::new(rows.clone()).etag("\"1\"").fault(3, Fault::Cut { after: 150_000 });
    let server = FaultServer::start(Plan::new().object("/rows.csv", object));
    let mut session = served(&server, "/rows.csv");
    let ended = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let written = fs_err::read_to_string(session.tree.path("out/x.csv")).expect("the result");
    assert_eq!(written, rows, "complete, in order, nothing twice");
    let ranges = server.requests().iter().filter(|request| request.header("range").is_some()).count();
    assert!(ranges >= 3, "it resumes where it was: {ranges}");
}

#[test]
fn a_server_that_dies_three_times_and_knows_no_ranges_loses_nothing() {
    let rows = many_rows();
    let object = Object::new(rows.clone()).without_ranges().fault(3, Fault::Cut { after: 150_000 });
    let server = FaultServer::start(Plan::new().object("/rows.csv", object));
    let session = served(&server, "/rows.csv");
    let url = server.url("/rows.csv");
    session.job(&format!("rows: {{read: '{url}', {COLUMNS}, http: {{retries: 4}}}}"), "write: out/x.csv");
    let ended = session.command(&["run", "--quiet", "job.yaml"]).output().expect("the binary starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(fs_err::read_to_string(session.tree.path("out/x.csv")).expect("the result"), rows);
}

#[test]
fn a_server_that_dies_for_good() {
    let object = Object::new(many_rows()).etag("\"1\"").fault(2, Fault::Cut { after: 50_000 }).always(Fault::Close);
    let server = FaultServer::start(Plan::new().object("/rows.csv", object.clone()));
    let mut session = served(&server, "/rows.csv");
    session.fails(1, &["run", "job.yaml"]);
    let server = FaultServer::start(Plan::new().object("/rows.csv", object.always(Fault::Cut { after: 100 })));
    let url = server.url("/rows.csv");
    session.job(&format!("rows: {{read: '{url}', {COLUMNS}, http: {{retries: 2}}}}"), "write: 'sqlite:x.db', table: t");
    session.fails(1, &["run", "job.yaml"]);
    let database = rusqlite::Connection::open(session.tree.path("x.db")).expect("a database");
    let tables: i64 = database.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).expect("a count");
    assert_eq!(tables, 0, "no table, no rows");
    assert_transcript!("server_dies", session);
}

#[test]
fn a_body_shorter_than_promised() {
    let object = Object::new("id,name\n1,a\n").always(Fault::Length(100));
    let server = FaultServer::start(Plan::new().object("/rows.csv", object));
    let mut session = served(&server, "/rows.csv");
    session.fails_everywhere(1);
    assert_transcript!("server_short_body", session);
}

#[test]
fn a_file_that_changes_while_it_is_read() {
    let after = Object::new("id,name\n9,z\n".repeat(40_000)).etag("\"2\"");
    let object =
        Object::new(many_rows()).etag("\"1\"").fault(1, Fault::Cut { after: 150_000 }).replaced_after(1, after);
    let server = FaultServer::start(Plan::new().object("/rows.csv", object));
    let mut session = served(&server, "/rows.csv");
    session.fails(1, &["run", "job.yaml"]);
    assert_transcript!("server_object_changed", session);
}

/// Parts of a Parquet file are asked for one by one: whenever it changes, they are all of one version, or it is an
/// error.
#[test]
fn a_parquet_file_that_changes_between_two_parts() {
    let file = |value: u32| {
        let mut session = Session::with("rows.csv", format!("id,name\n{value},v{value}\n"));
        session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: out/x.parquet");
        assert_eq!(session.run(&["run", "--quiet", "job.yaml"]).code, Some(0));
        fs_err::read(session.tree.path("out/x.parquet")).expect("the result")
    };
    let (old, new) = (file(1), file(2));
    let mut refused = 0;
    for requests in 1..12 {
        let after = Object::new(new.clone()).etag("\"2\"");
        let object = Object::new(old.clone()).etag("\"1\"").replaced_after(requests, after);
        let server = FaultServer::start(Plan::new().object("/rows.parquet", object));
        let mut session = Session::new();
        session.job(&format!("rows: {{read: '{}'}}", server.url("/rows.parquet")), "write: out/x.csv");
        let ended = session.run(&["run", "--quiet", "job.yaml"]);
        if ended.code == Some(0) {
            let written = fs_err::read_to_string(session.tree.path("out/x.csv")).expect("the result");
            assert!(["id,name\n1,v1\n", "id,name\n2,v2\n"].contains(&written.as_str()), "{requests}: {written}");
        } else {
            assert!(ended.stderr.contains("the object has changed"), "{requests}: {}", ended.stderr);
            refused += 1;
        }
    }
    assert!(refused > 0, "it was never replaced in the middle");
}

#[test]
fn what_breaks_off_is_not_left_out_however_small_it_is() {
    for size in [1_000, 1_000_000] {
        let object = Object::new("id,name\n".to_owned() + &"1,a\n".repeat(size / 4))
            .etag("\"1\"")
            .always(Fault::Cut { after: 300 });
        let server = FaultServer::start(Plan::new().object("/rows.csv", object));
        let mut session = Session::new();
        let url = server.url("/rows.csv");
        let source = format!("rows: {{read: '{url}', {COLUMNS}, on_error: skip, http: {{retries: 1}}}}");
        session.job(&source, "write: out/x.csv");
        let ended = session.run(&["run", "--quiet", "job.yaml"]);
        assert_eq!(ended.code, Some(1), "{size}: {}", ended.stderr);
        assert!(ended.stderr.contains("the connection broke in the middle of the body"), "{size}: {}", ended.stderr);
        assert!(session.left().is_empty());
    }
}

#[test]
fn a_body_that_is_packed_in_an_unknown_way() {
    let object = Object::new("id,name\n1,a\n").header("content-encoding", "br");
    let server = FaultServer::start(Plan::new().object("/rows.csv", object));
    let ended = served(&server, "/rows.csv").run(&["run", "--quiet", "job.yaml"]);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("the server sends it compressed as `br`, which is not supported"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_server_that_repeats_the_password_does_not_make_us_show_it() {
    let echo = Answer::status(403).body("you sent authorization: Basic bWU6czNjcjN0, which is s3cr3t");
    let server = FaultServer::start(Plan::new().object("/rows.csv", Object::new("").always(Fault::Answer(echo))));
    let url = server.url("/rows.csv").replace("http://", "http://me:s3cr3t@");
    let ended = Session::new().run(&["count", &url]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("you sent authorization: ***, which is ***"), "{}", ended.stderr);
}

#[test]
fn no_server_gets_more_connections_than_the_source_may_have() {
    for connections in [1, 3] {
        let object =
            |number| (format!("/{number}.csv"), Object::new("id,name\n1,a\n").delayed(Duration::from_millis(20)));
        let plan = (0..20).map(object).fold(Plan::new(), |plan, (path, object)| plan.object(&path, object));
        let server = FaultServer::start(plan);
        let mut session = Session::new();
        let (url, more) = (server.url("/{0..19}.csv"), format!("http: {{connections: {connections}}}"));
        session.job(&format!("rows: {{read: '{url}', {COLUMNS}, {more}}}"), "write: out/x.csv");
        let ended = session.run(&["run", "--quiet", "--cores", "4", "job.yaml"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(server.connections() <= connections, "{} of {connections}", server.connections());
    }
}

/// 1,000 servers: as many addresses of this machine.
#[test]
fn a_list_of_many_servers_is_not_opened_all_at_once() {
    let listener = std::net::TcpListener::bind(("0.0.0.0", 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (Arc::clone(&open), Arc::clone(&most));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (open, most) = (Arc::clone(&open), Arc::clone(&most));
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::spawn(move || {
                let _ = answer_once(stream);
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let (_, most) = counted;
    let mut session = Session::new();
    let hosts = (0..1_000).map(|host| format!("http://127.0.{}.{}:{port}/a\n", 1 + host / 250, 1 + host % 250));
    session.tree.file("list.txt", hosts.collect::<String>());
    let ended = session.run(&["count", "@list.txt"]);
    assert_eq!(ended.stdout, "1000\n", "{}", ended.stderr);
    let most = most.load(Ordering::SeqCst);
    assert!((2..=300).contains(&most), "{most} at once");
}

/// Answers one request with a line, a little later, and closes the connection.
fn answer_once(mut stream: std::net::TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(20));
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\na\n")
}

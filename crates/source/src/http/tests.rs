//! The web with a real nginx, with and without TLS; and faults.

use std::time::{Duration, Instant, SystemTime};

use futures::TryStreamExt;
use millstream_core::ErrorKind;
use millstream_core::spec::{Fault as SpecFault, Spec};
use millstream_testkit::{Answer, Authority, Fault, FaultServer, Nginx, Object, Plan, TempTree, Validity};

use super::*;
use crate::conformance::{TestSource, conformance, noise, read_all, with_context};

fn test_source() -> TestSource {
    let tree = TempTree::new();
    let server = Nginx::start(tree.root());
    let base = server.url("");
    TestSource {
        source: Arc::new(HttpSource::new(HttpSpec::default())),
        tree,
        base,
        bring: None,
        _server: Some(Box::new(server)),
    }
}

conformance!(super::test_source());

/// A spec with the given settings, and short pauses by default.
fn spec(settings: serde_json::Value) -> HttpSpec {
    let mut all = serde_json::json!({"max_backoff": "20ms", "timeout": "5s"});
    if let (Some(all), serde_json::Value::Object(settings)) = (all.as_object_mut(), settings) {
        all.extend(settings);
    }
    millstream_core::spec::parse(&all).expect("good settings")
}

fn quick() -> HttpSpec {
    spec(serde_json::json!({}))
}

/// Reads one unit.
fn read_unit(spec: HttpSpec, unit: Unit) -> Result<Vec<u8>> {
    let source = HttpSource::new(spec);
    with_context(16 << 20, |context| async move { read_all(source.open(&context, &unit).await).await })
}

fn read(spec: HttpSpec, url: &str) -> Result<Vec<u8>> {
    read_unit(spec, Unit::new(url))
}

/// A server with one object at `/a`.
fn serve(object: Object) -> FaultServer {
    FaultServer::start(Plan::new().object("/a", object))
}

/// `what` without the tries and the time.
fn what(error: &Error) -> &str {
    error.what().split(" (").next().unwrap_or_default()
}

#[test]
fn connections_are_kept() {
    let tree = TempTree::new();
    for number in 0..300 {
        tree.file(&format!("{number}"), noise(number * 10));
    }
    let server = Nginx::start(tree.root());
    let source = HttpSource::new(spec(serde_json::json!({"connections": 4})));
    with_context(16 << 20, |context| async move {
        let (source, context, server) = (&source, &context, &server);
        let reading = (0..300).map(|number| async move {
            let unit = Unit::new(server.url(&number.to_string()));
            read_all(source.open(context, &unit).await).await.map(|read| assert_eq!(read, noise(number * 10)))
        });
        let all: Result<Vec<()>> = futures::stream::iter(reading).buffer_unordered(4).try_collect().await;
        assert_eq!(all.expect("readable").len(), 300);
        let accepted = server.accepted();
        // The library may open one more while another one is about to become idle.
        assert!(accepted <= 6, "300 objects, 4 at once, took {accepted} connections");
    });
}

#[test]
fn one_after_the_other_takes_one_connection() {
    let server = serve(Object::new(noise(100_000)));
    let source = HttpSource::new(quick());
    with_context(16 << 20, |context| async move {
        for _ in 0..50 {
            let read = read_all(source.open(&context, &Unit::new(server.url("/a"))).await).await.expect("readable");
            assert_eq!(read.len(), 100_000);
        }
        assert!(server.connections() <= 2, "{} connections", server.connections());
    });
}

#[test]
fn sources_with_the_same_settings_share_their_connections() {
    let server = serve(Object::new("text"));
    with_context(16 << 20, |context| async move {
        let (one, other) = (HttpSource::new(quick()), HttpSource::new(quick()));
        let clients = (one.client(&context).await, other.client(&context).await);
        assert!(Arc::ptr_eq(&clients.0.expect("a client"), &clients.1.expect("a client")));
        let different = HttpSource::new(spec(serde_json::json!({"user_agent": "other"})));
        read_all(different.open(&context, &Unit::new(server.url("/a"))).await).await.expect("readable");
        assert_eq!(server.requests()[0].header("user-agent"), Some("other"));
        assert_eq!(server.requests()[0].header("accept-encoding"), Some("identity"));
    });
}

#[test]
fn a_body_that_breaks_resumes_where_it_broke() {
    let body = noise(1_000_000);
    for etag in ["\"1\"", "W/\"1\""] {
        let object = Object::new(body.clone()).etag(etag).fault(3, Fault::Cut { after: 300_000 });
        let server = serve(object);
        assert!(read(quick(), &server.url("/a")).expect("it recovers") == body);
        let ranges: Vec<_> =
            server.requests().iter().map(|request| request.header("range").map(str::to_owned)).collect();
        let wanted = [None, Some("bytes=300000-999999"), Some("bytes=600000-999999"), Some("bytes=900000-999999")];
        assert_eq!(ranges, wanted.map(|range| range.map(str::to_owned)));
        let guard = server.requests()[1].header("if-range").map(str::to_owned);
        assert_eq!(guard.as_deref(), Some("\"1\"").filter(|_| etag == "\"1\""), "a weak etag cannot guard");
    }
}

#[test]
fn small_pieces_and_early_ends_are_recovered_from_too() {
    let body = noise(5000);
    for object in [
        Object::new(body.clone()).fault(3, Fault::Cut { after: 1000 }),
        Object::new(body.clone()).fault(2, Fault::Close).fault(2, Fault::Cut { after: 0 }),
        Object::new(body.clone()).without_ranges().fault(3, Fault::Cut { after: 1000 }),
        Object::new(body.clone()).chunked().etag("\"1\"").fault(2, Fault::Cut { after: 2000 }),
        Object::new(body.clone()).chunked().etag("\"1\"").fault(1, Fault::Cut { after: 5000 }),
    ] {
        let server = serve(object.clone());
        let read = read(quick(), &server.url("/a"));
        assert!(read.expect("it recovers") == body, "{object:?}");
    }
}

#[test]
fn a_server_that_never_recovers_is_given_up() {
    let server = serve(Object::new(noise(5000)).always(Fault::Cut { after: 1000 }));
    let spec = spec(serde_json::json!({"retries": 2}));
    let error = read(spec, &server.url("/a")).expect_err("it never ends");
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert_eq!(error.location().uri, Some(server.url("/a")));
    assert!(error.what().starts_with("the connection broke in the middle of the body (3 tries, "), "{error}");
    assert!(error.cause_text().is_some());
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_length_that_is_never_reached_is_an_error() {
    // The second answer has another length, and so counts as another object.
    for object in [Object::new("short").always(Fault::Length(100)), Object::new("short").fault(1, Fault::Length(100))] {
        let server = serve(object);
        let error = read(quick(), &server.url("/a")).expect_err("95 bytes are missing");
        assert_eq!(what(&error), "the object has changed while it was read");
        assert!(error.what().contains("(2 tries, "), "{error}");
    }
}

#[test]
fn statuses_that_may_pass_are_tried_again() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let server = serve(Object::new("text").fault(2, Fault::Answer(Answer::status(status).body("later"))));
        assert_eq!(read(quick(), &server.url("/a")).expect("it passes"), b"text", "{status}");
        assert_eq!(server.requests().len(), 3);
    }
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let read_after = |status, wait: &str| {
        let fault = Fault::Answer(Answer::status(status).header("retry-after", wait));
        let server = serve(Object::new("text").fault(1, fault));
        assert_eq!(read(quick(), &server.url("/a")).expect("it passes"), b"text", "{status}");
    };
    let start = Instant::now();
    read_after(429, "1");
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    // A date has no parts of a second.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
    read_after(503, &date);
    assert!(SystemTime::now() >= httpdate::parse_http_date(&date).expect("a date"), "before {date}");
}

#[test]
fn statuses_that_stay_fail_at_once() {
    for (status, said, hint) in [
        (400, "400 Bad Request", None),
        (401, "401 Unauthorized", Some("set `auth`")),
        (403, "403 Forbidden", Some("signed URL")),
        (404, "404 Not Found", Some("check the URL")),
        (410, "410 Gone", Some("check the URL")),
        (501, "501 Not Implemented", None),
    ] {
        let answer = Answer::status(status).body("no such bucket").header("content-type", "text/plain");
        let server = serve(Object::new("text").always(Fault::Answer(answer)));
        let error = read(quick(), &server.url("/a")).expect_err("it stays");
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(what(&error), format!("the server answers {said}"));
        assert!(error.what().contains("(1 try, "), "{error}");
        assert_eq!(error.offending_text(), Some("no such bucket"));
        assert_eq!(error.hint_text().is_some(), hint.is_some(), "{status}");
        assert!(error.hint_text().unwrap_or_default().contains(hint.unwrap_or_default()), "{error:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn an_object_that_changes_between_two_pieces_is_an_error() {
    for (first, second) in [
        (Object::new(noise(5000)).etag("\"1\""), Object::new(noise(5000)).etag("\"2\"")),
        (Object::new(noise(5000)).etag("W/\"1\""), Object::new(noise(5000)).etag("W/\"2\"")),
        (
            Object::new(noise(5000)).etag("\"1\"").without_ranges(),
            Object::new(noise(5000)).etag("\"2\"").without_ranges(),
        ),
        (Object::new(noise(5000)), Object::new(noise(6000))),
        (
            Object::new(noise(5000)).header("last-modified", "Fri, 21 Nov 2025 10:00:00 GMT"),
            Object::new(noise(5000)).header("last-modified", "Fri, 21 Nov 2025 10:00:05 GMT"),
        ),
        (Object::new(noise(5000)), Object::new(noise(500))),
    ] {
        let server = serve(first.fault(1, Fault::Cut { after: 1000 }).replaced_after(1, second));
        let error = read(quick(), &server.url("/a")).expect_err("another object");
        assert_eq!(what(&error), "the object has changed while it was read");
        assert_eq!(error.kind(), ErrorKind::Refused);
    }
}

#[test]
fn a_server_without_ranges_sends_all_again_and_the_rest_is_used() {
    let body = noise(100_000);
    let server = serve(Object::new(body.clone()).etag("\"1\"").without_ranges().fault(2, Fault::Cut { after: 70_000 }));
    assert!(read(quick(), &server.url("/a")).expect("it recovers") == body);
    let source = HttpSource::new(quick());
    with_context(16 << 20, |context| async move {
        let unit = Unit::new(server.url("/a"));
        assert_eq!(source.read_range(&context, &unit, 5..10).await.expect("no error"), None);
        let part = Unit { range: Some(5..10), ..unit };
        assert_eq!(read_all(source.open(&context, &part).await).await.expect("readable"), body[5..10]);
    });
}

#[test]
fn the_size_is_asked_for_by_head_or_by_the_first_byte() {
    for (object, size) in [
        (Object::new(noise(1234)), Some(1234)),
        (Object::new(noise(1234)).without_heads(), Some(1234)),
        (Object::new(noise(1234)).without_heads().without_ranges(), Some(1234)),
        (Object::new("").without_heads(), Some(0)),
        (Object::new(noise(1234)).chunked(), Some(1234)),
        (Object::new(noise(1234)).chunked().without_ranges(), None),
        (Object::new(noise(1234)).fault(2, Fault::Close), Some(1234)),
    ] {
        let server = serve(object.clone());
        let source = HttpSource::new(quick());
        with_context(1 << 20, |context| async move {
            let found = source.look(&context, &Unit::new(server.url("/a"))).await.expect("an answer");
            assert_eq!(found.size, size, "{object:?}");
        });
    }
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let body = noise(5000);
    let stall = Fault::Stall { after: 1000, time: Duration::from_secs(100) };
    let server = serve(Object::new(body.clone()).etag("\"1\"").fault(1, stall.clone()));
    let spec = |timeout: &str| spec(serde_json::json!({"timeout": timeout, "retries": 1}));
    let start = Instant::now();
    assert!(read(spec("2s"), &server.url("/a")).expect("it recovers") == body);
    assert!(start.elapsed() < Duration::from_secs(60));
    let server = serve(Object::new(body).always(stall));
    let error = read(spec("300ms"), &server.url("/a")).expect_err("always silent");
    assert_eq!(what(&error), "the server was silent for 0.3 s");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`timeout`")));
}

#[test]
fn a_port_without_a_listener() {
    let url = format!("http://127.0.0.1:{}/a", millstream_testkit::free_port());
    let error = read(spec(serde_json::json!({"retries": 1})), &url).expect_err("nobody");
    assert!(error.to_string().starts_with(&format!("{url}: the server cannot be reached (2 tries, ")), "{error}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("refused")), "{error}");
    assert_eq!(error.kind(), ErrorKind::Transient);
}

#[test]
fn redirects_are_followed_but_not_for_ever() {
    let server = serve(Object::new("text"));
    let to = |url: String| Object::new("").always(Fault::Answer(Answer::status(302).header("location", url)));
    server.put("/one", to("/two".into()));
    server.put("/two", to(server.url("/a")));
    assert_eq!(read(quick(), &server.url("/one")).expect("two redirects"), b"text");
    server.put("/left", to("/right".into()));
    server.put("/right", to("/left".into()));
    let error = read(quick(), &server.url("/left")).expect_err("a circle");
    assert_eq!((what(&error), error.kind()), ("the server's redirects form a loop", ErrorKind::Refused));
    (0..20).for_each(|number| server.put(&format!("/{number}"), to(format!("/{}", number + 1))));
    let error = read(quick(), &server.url("/0")).expect_err("too many");
    assert_eq!(what(&error), "the server redirects more than 10 times");
    server.put("/odd", to("file:///etc/passwd".into()));
    let error = read(quick(), &server.url("/odd")).expect_err("no web server");
    assert_eq!(what(&error), "the server redirects to something that is not a URL of a web server");
}

#[test]
fn secrets_do_not_follow_to_another_host() {
    let tree = TempTree::new();
    let secret = |name: &str| {
        let file = tree.file(name, format!("{name}-value\n"));
        serde_json::json!({"secret": format!("file:{}", file.display())})
    };
    let settings = serde_json::json!({
        "headers": {"x-api-key": secret("key"), "x-plain": "plain", "accept": "text/csv"},
        "auth": {"bearer": {"token": secret("token")}},
    });
    let other = serve(Object::new("text").fault(1, Fault::Cut { after: 1 }));
    let named = serve(Object::new("").always(Fault::Answer(Answer::status(307).header("location", other.url("/a")))));
    assert_eq!(read(spec(settings), &named.url("/a")).expect("readable"), b"text");
    let told = &named.requests()[0];
    assert_eq!(told.header("authorization"), Some("Bearer token-value"));
    assert_eq!(told.header("x-api-key"), Some("key-value"));
    assert_eq!(other.requests().len(), 2);
    for request in other.requests() {
        for name in ["authorization", "x-api-key", "x-plain"] {
            assert_eq!(request.header(name), None);
        }
        assert_eq!(request.header("accept"), Some("text/csv"));
    }
    assert_eq!(other.requests()[1].header("range"), Some("bytes=1-3"), "what is ours goes along");
}

#[test]
fn secrets_are_not_shown() {
    let tree = TempTree::new();
    let password = tree.file("password", "open sesame");
    let settings = serde_json::json!({
        "auth": {"basic": {"user": "me", "password": {"secret": format!("file:{}", password.display())}}},
    });
    let echo = Answer::status(401).body("bad: open sesame, Basic bWU6b3BlbiBzZXNhbWU=");
    let server = serve(Object::new("").always(Fault::Answer(echo)));
    let source = HttpSource::new(spec(settings));
    let shown = with_context(1 << 20, |context| async move {
        let error = source.open(&context, &Unit::new(server.url("/a"))).await.map(drop).expect_err("refused");
        assert_eq!(server.requests()[0].header("authorization"), Some("Basic bWU6b3BlbiBzZXNhbWU="));
        assert_eq!(error.offending_text(), Some("bad: ***, ***"));
        format!("{error:?} {:?}", source.client(&context).await.expect("a client").policy)
    });
    assert!(!shown.contains("sesame"), "{shown}");

    let server = serve(Object::new("text"));
    let url = server.url("/a").replace("http://", "http://me:sesame@");
    assert_eq!(read(quick(), &url).expect("readable"), b"text");
    assert_eq!(server.requests()[0].header("authorization"), Some("Basic bWU6c2VzYW1l"));
    let error = read(quick(), &url.replace("/a", "/b")).expect_err("nothing there");
    assert!(!format!("{error:?}").contains("sesame"), "{error:?}");
    assert!(error.to_string().starts_with("http://me:***@"), "{error}");
}

#[test]
fn a_secret_is_read_at_the_first_use() {
    let settings = serde_json::json!({"headers": {"x-key": {"secret": "env:MILLSTREAM_TEST_NO_SUCH"}}});
    let error = read(spec(settings), "http://127.0.0.1:1/a").expect_err("it is not set");
    assert!(error.to_string().contains("MILLSTREAM_TEST_NO_SUCH"), "{error}");
}

#[test]
fn certificates_are_checked() {
    let authority = Authority::new();
    let tree = TempTree::new();
    tree.file("a", noise(2 << 20));
    let ca = tree.file("ca.pem", authority.pem());
    let trusting = || spec(serde_json::json!({"ca": ca.display().to_string()}));
    let server = Nginx::start_secure(tree.root(), &authority.certificate("localhost", Validity::Current));
    assert!(read(trusting(), &server.url("a")).expect("its authority is trusted") == noise(2 << 20));

    let error = read(quick(), &server.url("a")).expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(what(&error), "the encrypted connection cannot be established");
    assert!(error.what().contains("(1 try, "), "{error}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("UnknownIssuer")), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`ca`")), "{error:?}");

    let url = server.url("a").replace("localhost", "127.0.0.1");
    let error = read(trusting(), &url).expect_err("another name");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("another name")), "{error:?}");

    let expired = Nginx::start_secure(tree.root(), &authority.certificate("localhost", Validity::Expired));
    let error = read(trusting(), &expired.url("a")).expect_err("it has run out");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.hint_text().is_some_and(|hint| hint.contains("expired")), "{error:?}");

    let plain = Nginx::start(tree.root());
    let error = read(trusting(), &plain.url("a").replace("http:", "https:")).expect_err("no TLS there");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("http://")), "{error:?}");
}

#[test]
fn many_streams_of_one_encrypted_connection_can_be_read_in_any_order() {
    let authority = Authority::new();
    let tree = TempTree::new();
    (0..8).for_each(|number| drop(tree.file(&number.to_string(), noise((4 << 20) + number))));
    let ca = tree.file("ca.pem", authority.pem());
    let server = Nginx::start_secure(tree.root(), &authority.certificate("localhost", Validity::Current));
    let source = HttpSource::new(spec(serde_json::json!({"ca": ca.display().to_string()})));
    with_context(1 << 20, |context| async move {
        let mut streams = Vec::new();
        for number in 0..8 {
            streams.push(source.open(&context, &Unit::new(server.url(&number.to_string()))).await);
        }
        for (number, stream) in streams.into_iter().enumerate().rev() {
            assert!(read_all(stream).await.expect("readable") == noise((4 << 20) + number));
        }
    });
}

#[test]
fn a_body_that_says_that_it_is_encoded_is_handed_on_as_it_is() {
    let bytes = [0x1f, 0x8b, 8, 0, 1, 2, 3];
    let server = serve(Object::new(bytes).header("content-encoding", "gzip"));
    assert_eq!(read(quick(), &server.url("/a")).expect("readable"), bytes);
}

#[test]
fn a_url_has_no_wildcards() {
    let source = HttpSource::new(quick());
    with_context(1 << 20, |context| async move {
        for (url, good) in [
            ("http://host/a?b=*", true),
            ("https://[::1]:80/a", true),
            ("http://host/%2A", true),
            ("http://host/*.gz", false),
            ("http://host/[ab]", false),
            ("http://", false),
        ] {
            let units: Result<Vec<Unit>> = source.list(&context, url).try_collect().await;
            match units {
                Ok(units) => assert!(good && units == [Unit::new(url)], "{url}"),
                Err(error) => assert!(!good && error.kind() == ErrorKind::Job, "{error}"),
            }
        }
    });
}

#[test]
fn a_list_of_urls_is_read_from_the_web() {
    let list = "# two\na\n/b/{1..2}\nhttps://elsewhere/c\n";
    let server = FaultServer::start(Plan::new().object("/lists/all.txt", Object::new(list)));
    let source: Arc<dyn Source> = Arc::new(HttpSource::new(quick()));
    let (base, location) = (server.url(""), server.url("/lists/all.txt"));
    let listed: Vec<_> = with_context(1 << 20, |context| async move {
        crate::list_file(&source, &context, &location).try_collect().await.expect("a list")
    });
    let patterns: Vec<_> = listed.into_iter().map(|listed| listed.pattern).collect();
    assert_eq!(patterns, [format!("{base}/lists/a"), format!("{base}/b/{{1..2}}"), "https://elsewhere/c".into()]);
}

#[test]
fn settings_are_checked() {
    let check = |settings: serde_json::Value| -> Vec<SpecFault> {
        millstream_core::spec::parse::<HttpSpec>(&settings).err().unwrap_or_default()
    };
    assert_eq!(check(serde_json::json!({})), []);
    for (settings, path) in [
        (serde_json::json!({"headers": {"a b": "x"}}), vec!["headers", "a b"]),
        (serde_json::json!({"headers": {"Range": "bytes=0-"}}), vec!["headers", "Range"]),
        (serde_json::json!({"headers": {"x.y": "a\nb"}}), vec!["headers", "x.y"]),
        (serde_json::json!({"connections": 0}), vec!["connections"]),
        (serde_json::json!({"connections": 257}), vec!["connections"]),
        (serde_json::json!({"timeout": "0s"}), vec!["timeout"]),
        (serde_json::json!({"timeout": "soon"}), vec!["timeout"]),
        (serde_json::json!({"user_agent": "a\n"}), vec!["user_agent"]),
        (
            serde_json::json!({"headers": {"Authorization": "x"}, "auth": {"bearer": {"token": {"secret": "env:A"}}}}),
            vec!["headers", "Authorization"],
        ),
    ] {
        let faults = check(settings.clone());
        assert_eq!(faults.len(), 1, "{settings}");
        assert_eq!(faults[0].path, path, "{settings}");
    }
    assert_eq!(HttpSpec::NAME, "http");
}

/// The environment belongs to the whole process, so this test starts itself again in another one.
#[test]
fn a_proxy_of_the_environment_is_used() {
    const URL: &str = "http://millstream.invalid/a";
    if std::env::var_os("MILLSTREAM_TEST_BEHIND_PROXY").is_some() {
        assert_eq!(read(quick(), URL).expect("the proxy answers"), b"by proxy");
        return;
    }
    let proxy = FaultServer::start(Plan::new().object(URL, Object::new("by proxy")));
    let child = std::process::Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "http::tests::a_proxy_of_the_environment_is_used"])
        .envs([("MILLSTREAM_TEST_BEHIND_PROXY", "1"), ("HTTP_PROXY", &proxy.url(""))])
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .expect("it runs again");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(proxy.requests().len(), 1);
}

#[test]
fn a_server_that_sends_less_than_it_is_asked_for_is_asked_on() {
    let body = noise(95);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("http://{}/a", listener.local_addr().expect("bound"));
    let served = body.clone();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        (0..10).for_each(|_| send_ten(&mut stream, &served));
    });
    with_context(1 << 20, |context| async move {
        let source = HttpSource::new(spec(serde_json::json!({"retries": 0})));
        let read = source.read_range(&context, &Unit::new(url), 0..95).await.expect("no fault");
        assert!(read.expect("ranges") == body);
    });
    serving.join().expect("ten times ten bytes were asked for");
}

/// Answers a request with ten bytes from its offset, or fewer at the end.
fn send_ten(stream: &mut std::net::TcpStream, body: &[u8]) {
    use std::io::{Read, Write};
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.push(char::from(byte[0]));
    }
    let from = request.split_once("bytes=").and_then(|(_, range)| range.split_once('-'));
    let from: usize = from.expect("a range").0.parse().expect("a number");
    let part = &body[from..body.len().min(from + 10)];
    let (last, length, total) = (from + part.len() - 1, part.len(), body.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\ncontent-range: bytes {from}-{last}/{total}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), part].concat()).expect("an answer");
}

//! Buckets of a real S3 server in this process; and faults.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use millstream_core::ErrorKind;
use millstream_core::spec::{Fault as SpecFault, Spec};
use millstream_testkit::{
    Answer, Authority, Fault, FaultServer, KEY, Nginx, Object, Plan, Request, S3Server, SECRET, TempTree, Validity,
};
use serde_json::json;

use super::servers::{ACCOUNT, ACCOUNT_KEY, AzureServer, GcsServer};
use super::*;
use crate::conformance::{TestSource, conformance, noise, read_all, with_context};

/// Keeps alive what a place needs.
struct Alive(#[expect(dead_code, reason = "held for its drop")] (S3Server, TempTree));

/// A server whose bucket `bucket` is the folder `tree`.
fn serve_tree(tree: &TempTree, signed: bool) -> (S3Server, TempTree) {
    let root = TempTree::new();
    std::os::unix::fs::symlink(tree.root(), root.path("bucket")).expect("a link can be made");
    (S3Server::start(root.root(), signed), root)
}

fn s3(settings: serde_json::Value) -> ObjectSource<S3Spec> {
    ObjectSource::new(spec(settings))
}

/// Settings of a job file, with short pauses by default.
fn spec<K: Spec>(settings: serde_json::Value) -> K {
    let mut all = json!({"max_backoff": "20ms", "timeout": "5s", "allow_http": true});
    if let (Some(all), serde_json::Value::Object(settings)) = (all.as_object_mut(), settings) {
        all.extend(settings);
    }
    millstream_core::spec::parse(&all).expect("good settings")
}

/// A source of the server's objects that signs requests.
fn signing(server: &S3Server, secrets: &TempTree) -> ObjectSource<S3Spec> {
    let secret = secrets.file("secret", SECRET);
    s3(json!({
        "endpoint": server.url(),
        "region": "us-east-1",
        "access_key_id": KEY,
        "secret_access_key": {"secret": format!("file:{}", secret.display())},
    }))
}

fn test_source() -> TestSource {
    let tree = TempTree::new();
    let (server, root) = serve_tree(&tree, true);
    let source = Arc::new(signing(&server, &root));
    TestSource {
        source,
        tree,
        base: "s3://bucket/".into(),
        bring: None,
        _server: Some(Box::new(Alive((server, root)))),
    }
}

conformance!(super::test_source());

/// A new bucket of a store that does not read a folder.
fn bucket_of(
    source: Arc<dyn Source>,
    scheme: &str,
    make: impl FnOnce(&str),
    put: impl Fn(&str, &str, &[u8]) + 'static,
) -> TestSource {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let bucket = format!("bucket-{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    make(&bucket);
    let base = format!("{scheme}://{bucket}/");
    let bring: crate::conformance::Bring = Box::new(move |name, content| put(&bucket, name, content));
    TestSource { source, tree: TempTree::new(), base, bring: Some(bring), _server: None }
}

fn gcs(server: &GcsServer) -> ObjectSource<GcsSpec> {
    ObjectSource::new(spec(json!({"endpoint": server.url(), "anonymous": true})))
}

fn azure(server: &AzureServer) -> ObjectSource<AzureSpec> {
    let key = server.folder().join("key");
    fs_err::write(&key, ACCOUNT_KEY).expect("a file can be written");
    let secret = format!("file:{}", key.display());
    ObjectSource::new(spec(json!({"endpoint": server.url(), "account": ACCOUNT, "access_key": {"secret": secret}})))
}

#[test]
fn google_conforms() {
    let server = Rc::new(GcsServer::start());
    conformance!(together {
        let (source, server, putter) = (gcs(&server), &server, Rc::clone(&server));
        bucket_of(Arc::new(source), "gs", |bucket| server.make_bucket(bucket), move |bucket, name, content| {
            putter.put(bucket, name, content);
        })
    });
}

#[test]
fn azure_conforms() {
    let server = Rc::new(AzureServer::start());
    conformance!(together {
        let (source, server, putter) = (azure(&server), &server, Rc::clone(&server));
        bucket_of(Arc::new(source), "az", |bucket| server.make_container(bucket), move |bucket, name, content| {
            putter.put(bucket, name, content);
        })
    });
}

/// The same questions to each store.
fn patterns_work(source: &dyn Source, scheme: &str, put: impl Fn(&str, &[u8])) {
    let names = ["a.csv", "logs/1/a.csv", "logs/1/b c&ü.csv", "logs/2/x/a.csv", "logs/2/.hidden"];
    names.iter().for_each(|name| put(name, b"text"));
    with_context(1 << 20, |context| async move {
        for (pattern, expected) in [
            ("**/*.csv", vec!["a.csv", "logs/1/a.csv", "logs/1/b c&ü.csv", "logs/2/x/a.csv"]),
            ("logs/*/*", vec!["logs/1/a.csv", "logs/1/b c&ü.csv"]),
            ("logs/[2-9]/**", vec!["logs/2/x/a.csv"]),
            ("logs/none*", vec![]),
        ] {
            let base = format!("{scheme}://bucket/");
            let units: Result<Vec<Unit>> = source.list(&context, &format!("{base}{pattern}")).try_collect().await;
            let mut units = units.expect("a listing");
            units.sort_by(|a, b| a.uri.cmp(&b.uri));
            let found: Vec<_> = units.iter().filter_map(|unit| unit.uri.strip_prefix(&base)).collect();
            assert_eq!(found, expected, "{pattern}");
            for unit in &units {
                assert!(unit.size == Some(4) && unit.etag.is_some() && unit.modified.is_some(), "{unit:?}");
                assert_eq!(read_all(source.open(&context, unit).await).await.expect("readable"), b"text");
            }
        }
    });
}

#[test]
fn google_lists() {
    let server = GcsServer::start();
    server.make_bucket("bucket");
    patterns_work(&gcs(&server), "gs", |name, content| server.put("bucket", name, content));
}

#[test]
fn azure_lists_and_tells_what_is_wrong() {
    let server = AzureServer::start();
    server.make_container("bucket");
    patterns_work(&azure(&server), "az", |name, content| server.put("bucket", name, content));
    let other = server.folder().join("other");
    fs_err::write(&other, "d3Jvbmc=").expect("a file can be written");
    let wrong: ObjectSource<AzureSpec> = ObjectSource::new(spec(json!({
        "endpoint": server.url(), "account": ACCOUNT, "access_key": {"secret": format!("file:{}", other.display())},
    })));
    let good = azure(&server);
    with_context(1 << 20, |context| async move {
        for error in [
            good.list(&context, "az://nowhere/*").try_next().await.expect_err("no container"),
            good.open(&context, &Unit::new("az://nowhere/a")).await.map(drop).expect_err("no container"),
        ] {
            assert_eq!((what(&error), error.kind()), ("the server answers 404 Not Found", ErrorKind::Refused));
            assert!(error.cause_text().is_some_and(|cause| cause.starts_with("ContainerNotFound")), "{error:?}");
        }
        let error = wrong.list(&context, "az://bucket/*").try_next().await.expect_err("a wrong key");
        assert_eq!((what(&error), error.kind()), ("the server answers 403 Forbidden", ErrorKind::Refused));
        assert!(error.cause_text().is_some_and(|cause| cause.starts_with("Auth")), "{error:?}");
        assert!(error.hint_text().is_some(), "{error:?}");
        assert!(!format!("{error:?}").contains("d3Jvbmc="), "{error:?}");
    });
}

/// The names that `pattern` lists, without `s3://bucket/`, sorted.
async fn listed(source: &dyn Source, context: &SourceContext, pattern: &str) -> Result<Vec<String>> {
    let units: Vec<Unit> = source.list(context, pattern).try_collect().await?;
    let mut names: Vec<_> =
        units.iter().map(|unit| unit.uri.strip_prefix("s3://bucket/").expect("the bucket's").to_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

/// `what` without the tries and the time.
fn what(error: &Error) -> &str {
    error.what().split(" (").next().unwrap_or_default()
}

/// A server with one object, `s3://bucket/a`, that needs no credentials.
fn serve(object: Object) -> FaultServer {
    FaultServer::start(Plan::new().object("/bucket/a", object))
}

pub(super) fn anonymous(server: &FaultServer, more: serde_json::Value) -> ObjectSource<S3Spec> {
    let mut settings = json!({"endpoint": server.url(""), "anonymous": true});
    if let (Some(all), serde_json::Value::Object(more)) = (settings.as_object_mut(), more) {
        all.extend(more);
    }
    s3(settings)
}

fn read_with(source: &ObjectSource<S3Spec>, unit: Unit) -> Result<Vec<u8>> {
    with_context(16 << 20, |context| async move { read_all(source.open(&context, &unit).await).await })
}

fn read(server: &FaultServer) -> Result<Vec<u8>> {
    read_with(&anonymous(server, json!({})), Unit::new("s3://bucket/a"))
}

#[test]
fn patterns_find_what_they_would_find_in_a_folder() {
    let tree = TempTree::new();
    let names = [
        "a.csv",
        "b.txt",
        ".hidden.csv",
        "logs/2025-01/a.csv",
        "logs/2025-01/b.csv.gz",
        "logs/2025-02/a.csv",
        "logs/2026-01/a.csv",
        "logs/a.csv",
        "logs/.old/a.csv",
        "logs/2025-02/deep/er/a.csv",
        "with space/ü&<.csv",
        "odd/[1].csv",
        "odd/*.csv",
    ];
    names.iter().for_each(|name| drop(tree.file(name, "x")));
    let (server, root) = serve_tree(&tree, true);
    let source = signing(&server, &root);
    with_context(16 << 20, |context| async move {
        for (pattern, expected) in [
            ("*.csv", vec!["a.csv"]),
            (".*", vec![".hidden.csv"]),
            ("logs/2025-*/*.csv", vec!["logs/2025-01/a.csv", "logs/2025-02/a.csv"]),
            ("logs/*/a.csv", vec!["logs/2025-01/a.csv", "logs/2025-02/a.csv", "logs/2026-01/a.csv"]),
            (
                "logs/**/a.csv",
                vec![
                    "logs/2025-01/a.csv",
                    "logs/2025-02/a.csv",
                    "logs/2025-02/deep/er/a.csv",
                    "logs/2026-01/a.csv",
                    "logs/a.csv",
                ],
            ),
            ("logs/2025-02/**", vec!["logs/2025-02/a.csv", "logs/2025-02/deep/er/a.csv"]),
            ("**/er/*", vec!["logs/2025-02/deep/er/a.csv"]),
            ("*/*<.csv", vec!["with space/ü&<.csv"]),
            (r"odd/\[1\].*", vec!["odd/[1].csv"]),
            (r"odd/\**", vec!["odd/*.csv"]),
            ("logs/2025-0[13-9]/*", vec!["logs/2025-01/a.csv", "logs/2025-01/b.csv.gz"]),
            ("none/*", vec![]),
            ("a.csv/*", vec![]),
        ] {
            let found = listed(&source, &context, &format!("s3://bucket/{pattern}")).await.expect("it can be listed");
            assert_eq!(found, expected, "{pattern}");
        }
        let units: Vec<Unit> = source.list(&context, "s3://bucket/logs/**").try_collect().await.expect("a listing");
        for unit in units {
            assert_eq!(unit.size, Some(1), "{unit:?}");
            assert!(unit.modified.is_some_and(|modified| modified > 1_577_836_800_000), "{unit:?}");
            assert_eq!(read_all(source.open(&context, &unit).await).await.expect("readable"), b"x", "{unit:?}");
        }
        let named: Vec<Unit> = source.list(&context, r"s3://bucket/odd/\[1\].csv").try_collect().await.expect("a name");
        assert_eq!(named, [Unit::new("s3://bucket/odd/[1].csv")]);
    });
}

#[test]
fn many_folders_and_pages_are_listed_once_each_with_few_requests() {
    let tree = TempTree::new();
    let mut expected = BTreeSet::new();
    for number in 0..1200 {
        // One folder has more than a page.
        let folder = if number < 1050 { "0/0".to_owned() } else { format!("{}/{}", number % 7, number % 13) };
        let name = format!("{folder}/{number:04}.csv");
        tree.file(&name, "");
        expected.insert(name);
    }
    let (server, root) = serve_tree(&tree, true);
    let source = signing(&server, &root);
    with_context(16 << 20, |context| async move {
        for pattern in ["**", "?/**/[0-9]*.csv"] {
            let found = listed(&source, &context, &format!("s3://bucket/{pattern}")).await.expect("a listing");
            assert_eq!(found.len(), expected.len(), "{pattern}");
            assert!(found.iter().eq(&expected), "{pattern}");
        }
        // There would be more if each folder was requested on its own.
        assert!(server.connections() <= 20, "{} connections", server.connections());
        // A listing that is dropped ends.
        let mut stream = source.list(&context, "s3://bucket/**");
        stream.next().await.expect("a unit").expect("no error");
    });
}

#[test]
fn listing_takes_its_requests_from_the_pattern() {
    let page = |inside: &str| Object::new(format!("<ListBucketResult>{inside}</ListBucketResult>"));
    let folder = |name: &str| format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>");
    let key = |name: &str| format!("<Contents><Key>{name}</Key><Size>1</Size></Contents>");
    let plan = Plan::new()
        .object(
            "/bucket?delimiter=%2F&list-type=2&prefix=logs%2F2025-",
            page(&(folder("logs/2025-1/") + &folder("logs/2025-2/"))),
        )
        .object(
            "/bucket?delimiter=%2F&list-type=2&prefix=logs%2F2025-1%2Fx%2F",
            page(&format!(
                "{}{}<NextContinuationToken>t 1</NextContinuationToken>",
                key("logs/2025-1/x/1.gz"),
                key("logs/2025-1/x/")
            )),
        )
        .object(
            "/bucket?continuation-token=t+1&delimiter=%2F&list-type=2&prefix=logs%2F2025-1%2Fx%2F",
            page(&key("logs/2025-1/x/2.gz")),
        )
        .object("/bucket?delimiter=%2F&list-type=2&prefix=logs%2F2025-2%2Fx%2F", page("").fault(2, Fault::Close));
    let server = FaultServer::start(plan);
    let source = anonymous(&server, json!({}));
    with_context(1 << 20, |context| async move {
        let found = listed(&source, &context, "s3://bucket/logs/2025-*/x/*").await.expect("a listing");
        assert_eq!(found, ["logs/2025-1/x/1.gz", "logs/2025-1/x/2.gz"], "a name that ends with / is a folder's");
        assert_eq!(server.requests().len(), 6, "{:?}", server.requests());
    });
}

#[test]
fn listings_that_go_wrong_are_reported() {
    for (page, what) in [
        ("<html>hello</html>", "the listing cannot be read"),
        ("<ListBucketResult><Contents>", "the listing cannot be read"),
        (
            "<ListBucketResult><Contents><Key>elsewhere</Key></Contents></ListBucketResult>",
            "the store lists objects that were not requested",
        ),
    ] {
        let server =
            FaultServer::start(Plan::new().object("/bucket?delimiter=%2F&list-type=2&prefix=a%2Fb", Object::new(page)));
        let source = anonymous(&server, json!({}));
        with_context(1 << 20, |context| async move {
            let error = listed(&source, &context, "s3://bucket/a/b*").await.expect_err("no listing");
            assert_eq!(error.what().split(" (").next(), Some(what), "{error:?}");
            assert!(error.location().uri.as_deref().is_some_and(|uri| uri.starts_with("s3://bucket/a/")), "{error:?}");
        });
    }
    let endless = "<ListBucketResult><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let server = FaultServer::start(
        Plan::new()
            .object("/bucket?delimiter=%2F&list-type=2", Object::new(endless))
            .object("/bucket?continuation-token=t&delimiter=%2F&list-type=2", Object::new(endless)),
    );
    let source = anonymous(&server, json!({}));
    with_context(1 << 20, |context| async move {
        let error = listed(&source, &context, "s3://bucket/*").await.expect_err("endless");
        assert_eq!(error.what(), "the store's listing makes no progress");
    });
}

#[test]
fn nothing_found_no_bucket_and_no_rights_are_distinguished() {
    let tree = TempTree::new();
    tree.file("a", "x");
    let (server, root) = serve_tree(&tree, true);
    let good = signing(&server, &root);
    let endpoint = server.url();
    with_context(1 << 20, |context| async move {
        assert_eq!(listed(&good, &context, "s3://bucket/*.gz").await.expect("a listing"), [""; 0]);

        let error = listed(&good, &context, "s3://other-bucket/*").await.expect_err("no bucket");
        assert_eq!((what(&error), error.kind()), ("the server answers 404 Not Found", ErrorKind::Refused));
        assert!(error.cause_text().is_some_and(|cause| cause.starts_with("NoSuchBucket")), "{error:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("`other-bucket`")), "{error:?}");
        assert_eq!(error.location().uri.as_deref(), Some("s3://other-bucket/"));

        let nobody = s3(json!({"endpoint": endpoint, "anonymous": true}));
        for error in [
            listed(&nobody, &context, "s3://bucket/*").await.expect_err("no rights"),
            read_all(nobody.open(&context, &Unit::new("s3://bucket/a")).await).await.expect_err("no rights"),
        ] {
            assert_eq!((what(&error), error.kind()), ("the server answers 403 Forbidden", ErrorKind::Refused));
            assert!(error.cause_text().is_some_and(|cause| cause.starts_with("AccessDenied")), "{error:?}");
            assert!(error.hint_text().is_some_and(|hint| hint.contains("may access `bucket`")), "{error:?}");
        }

        let other = root.file("other", "wrong");
        let wrong = s3(json!({"endpoint": endpoint, "access_key_id": KEY,
            "secret_access_key": {"secret": format!("file:{}", other.display())}}));
        let error = listed(&wrong, &context, "s3://bucket/*").await.expect_err("a wrong key");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("credentials")), "{error:?}");
    });
}

#[test]
fn requests_are_signed_and_connections_are_kept() {
    let tree = TempTree::new();
    (0..300).for_each(|number| drop(tree.file(&number.to_string(), noise(number * 10))));
    let (server, root) = serve_tree(&tree, true);
    let source = signing(&server, &root);
    with_context(16 << 20, |context| async move {
        let (source, context) = (&source, &context);
        let reading = (0..300).map(|number| async move {
            let unit = Unit::new(format!("s3://bucket/{number}"));
            read_all(source.open(context, &unit).await).await.map(|read| assert_eq!(read, noise(number * 10)))
        });
        let all: Result<Vec<()>> = futures::stream::iter(reading).buffer_unordered(4).try_collect().await;
        assert_eq!(all.expect("readable").len(), 300);
        assert!(server.connections() <= 6, "300 objects, 4 at once, took {} connections", server.connections());
    });
}

#[test]
fn a_body_that_breaks_resumes_where_it_broke_if_it_is_the_same() {
    let body = noise(1_000_000);
    let server = serve(Object::new(body.clone()).etag("\"1\"").fault(3, Fault::Cut { after: 300_000 }));
    assert!(read(&server).expect("it recovers") == body);
    let ranges: Vec<_> = server.requests().iter().map(|request| request.header("range").map(str::to_owned)).collect();
    let wanted = [None, Some("bytes=300000-999999"), Some("bytes=600000-999999"), Some("bytes=900000-999999")];
    assert_eq!(ranges, wanted.map(|range| range.map(str::to_owned)));
    assert_eq!(server.requests()[0].header("if-match"), None);
    assert_eq!(server.requests()[1].header("if-match"), Some("\"1\""));
    assert_eq!(server.requests()[1].header("accept-encoding"), Some("identity"));
}

#[test]
fn an_object_that_changes_between_two_pieces_is_an_error() {
    let first = || Object::new(noise(5000)).etag("\"1\"").fault(1, Fault::Cut { after: 1000 });
    let refused = Object::new("")
        .always(Fault::Answer(Answer::status(412).body("<Error><Code>PreconditionFailed</Code></Error>")));
    for second in [Object::new(noise(5000)).etag("\"2\""), Object::new(noise(6000)).etag("\"1\""), refused] {
        let server = serve(first().replaced_after(1, second));
        let error = read(&server).expect_err("another object");
        assert_eq!((what(&error), error.kind()), ("the object has changed while it was read", ErrorKind::Refused));
        assert!(error.what().contains("(2 tries, "), "{error}");
    }
    let server = serve(Object::new(noise(5000)).etag("\"2\""));
    let unit = Unit { etag: Some("\"1\"".into()), ..Unit::new("s3://bucket/a") };
    let error = read_with(&anonymous(&server, json!({})), unit).expect_err("another object");
    assert_eq!(what(&error), "the object has changed since it was listed");
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    for (status, code) in [(429, "TooManyRequests"), (503, "SlowDown")] {
        let answer = Answer::status(status)
            .header("retry-after", "1")
            .body(format!("<Error><Code>{code}</Code><Message>Please reduce your request rate.</Message></Error>"));
        let server = serve(Object::new("text").fault(1, Fault::Answer(answer.clone())));
        let start = Instant::now();
        assert_eq!(read(&server).expect("it passes"), b"text");
        assert!(start.elapsed() >= Duration::from_secs(1), "{status}");
        assert_eq!(server.requests().len(), 2);

        let unit = Unit::new("s3://bucket/a");
        let server = serve(Object::new("text").always(Fault::Answer(answer)));
        let error = read_with(&anonymous(&server, json!({"retries": 0})), unit).expect_err("it stays");
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.what().starts_with(&format!("the server answers {status} ")), "{error}");
        assert_eq!(error.cause_text(), Some(format!("{code}: Please reduce your request rate").as_str()));
    }
}

#[test]
fn faults_that_may_pass_are_tried_again_and_others_are_not() {
    let xml =
        |status, code: &str| Fault::Answer(Answer::status(status).body(format!("<Error><Code>{code}</Code></Error>")));
    for fault in [Fault::Close, xml(500, "InternalError"), xml(400, "RequestTimeout"), Fault::Cut { after: 0 }] {
        let server = serve(Object::new("text").etag("\"1\"").fault(2, fault.clone()));
        assert_eq!(read(&server).expect("it passes"), b"text", "{fault:?}");
        assert_eq!(server.requests().len(), 3, "{fault:?}");
    }
    let server = serve(Object::new("").always(xml(400, "InvalidArgument")));
    let error = read(&server).expect_err("it stays");
    assert_eq!((what(&error), error.kind()), ("the server answers 400 Bad Request", ErrorKind::Refused));
    assert_eq!((error.cause_text(), server.requests().len()), (Some("InvalidArgument"), 1));
}

#[test]
fn a_wrong_length_is_an_error() {
    let server = serve(Object::new("short").etag("\"1\"").always(Fault::Length(100)));
    let error = read(&server).expect_err("95 bytes are missing");
    assert_eq!(what(&error), "the object has changed while it was read");
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let body = noise(5000);
    let stall = Fault::Stall { after: 1000, time: Duration::from_secs(100) };
    let server = serve(Object::new(body.clone()).etag("\"1\"").fault(1, stall));
    let source = anonymous(&server, json!({"timeout": "2s", "retries": 1}));
    let start = Instant::now();
    assert!(read_with(&source, Unit::new("s3://bucket/a")).expect("it recovers") == body);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn redirects_end() {
    let server = serve(Object::new("text"));
    let to = |url: String| Object::new("").always(Fault::Answer(Answer::status(307).header("location", url)));
    server.put("/bucket/b", to("/bucket/a".into()));
    server.put("/bucket/left", to("/bucket/right".into()));
    server.put("/bucket/right", to("/bucket/left".into()));
    let source = anonymous(&server, json!({}));
    assert_eq!(read_with(&source, Unit::new("s3://bucket/b")).expect("one redirect"), b"text");
    let error = read_with(&source, Unit::new("s3://bucket/left")).expect_err("a circle");
    assert_eq!((what(&error), error.kind()), ("the server's redirects form a loop", ErrorKind::Refused));
    let moved = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
    server.put("/bucket/moved", Object::new("").always(Fault::Answer(Answer::status(400).body(moved))));
    let error = read_with(&source, Unit::new("s3://bucket/moved")).expect_err("another region");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("eu-west-1")), "{error:?}");
}

#[test]
fn a_signature_does_not_follow_to_another_server() {
    let tree = TempTree::new();
    let other = serve(Object::new("text"));
    let to = other.url("/bucket/a");
    let named = serve(Object::new("").always(Fault::Answer(Answer::status(307).header("location", to))));
    let source = s3(json!({"endpoint": named.url(""), "access_key_id": KEY,
        "secret_access_key": {"secret": format!("file:{}", tree.file("secret", SECRET).display())}}));
    assert_eq!(read_with(&source, Unit::new("s3://bucket/a")).expect("readable"), b"text");
    let signature = named.requests()[0].header("authorization").map(str::to_owned).expect("it is signed");
    assert!(signature.contains(KEY) && !signature.contains(SECRET), "{signature}");
    assert!(other.requests()[0].headers.iter().all(|(name, _)| name != "authorization" && !name.starts_with("x-amz")));
}

#[test]
fn certificates_are_checked() {
    let authority = Authority::new();
    let tree = TempTree::new();
    tree.file("bucket/a", "text");
    let ca = tree.file("ca.pem", authority.pem()).display().to_string();
    let good = Nginx::start_secure(tree.root(), &authority.certificate("localhost", Validity::Current));
    let source = |server: &Nginx, ca: Option<&str>| {
        s3(json!({"endpoint": server.url("").trim_end_matches('/'), "anonymous": true, "ca": ca}))
    };
    let unit = || Unit::new("s3://bucket/a");
    assert_eq!(read_with(&source(&good, Some(&ca)), unit()).expect("it is trusted"), b"text");
    let error = read_with(&source(&good, None), unit()).expect_err("an unknown authority");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`ca` of the source's `s3` block")), "{error:?}");
    let expired = Nginx::start_secure(tree.root(), &authority.certificate("localhost", Validity::Expired));
    let error = read_with(&source(&expired, Some(&ca)), unit()).expect_err("it has run out");
    assert_eq!((what(&error), error.kind()), ("the encrypted connection cannot be established", ErrorKind::Refused));
    assert!(error.hint_text().is_some_and(|hint| hint.contains("expired")), "{error:?}");
}

#[test]
fn what_is_no_object_is_reported() {
    let source = s3(json!({"endpoint": "http://127.0.0.1:1", "anonymous": true}));
    with_context(1 << 20, |context| async move {
        for (uri, what) in [
            ("s3://", "this names no bucket"),
            ("s3:///a", "this names no bucket"),
            ("s3://bucket", "this is a bucket, not an object"),
            ("s3://bucket/", "this is a bucket, not an object"),
            ("s3://bucket/a/", "this is a folder, not an object"),
            ("s3://buck*/a", "`buck*` is not a valid bucket name"),
            ("s3://user:pass@bucket/a", "`user:pass@bucket` is not a valid bucket name"),
            ("s3://bucket/a//b", "an object whose name has such a part cannot be named in a request"),
            ("s3://bucket/a/../b", "an object whose name has such a part cannot be named in a request"),
        ] {
            let error = source.open(&context, &Unit::new(uri)).await.map(drop).expect_err(uri);
            assert_eq!(error.what(), what, "{uri}");
            assert!(error.location().uri.is_some(), "{uri}");
        }
        let error = listed(&source, &context, "s3://bucket/[a").await.expect_err("not closed");
        assert_eq!((error.what(), error.kind()), ("the `[` is not closed", ErrorKind::Job));
    });
}

#[test]
fn patterns_are_linted() {
    for (pattern, what) in [
        ("s3://bucket/{a,b}/**/*.csv", None),
        ("s3://{a,b}-bucket/x", None),
        ("s3://bucket/[a", Some("the `[` is not closed")),
        ("s3://bucket/{a", Some("the `{` at character 13 is not closed")),
        ("s3://bucket", Some("this is a bucket, not an object")),
        ("s3:///a", Some("this names no bucket")),
        ("s3://*/a", Some("`*` is not a valid bucket name")),
    ] {
        assert_eq!((S3.check)(pattern).err().map(|fault| fault.what).as_deref(), what, "{pattern}");
    }
}

#[test]
fn a_port_without_a_listener() {
    let port = millstream_testkit::free_port();
    let source = s3(json!({"endpoint": format!("http://127.0.0.1:{port}"), "anonymous": true, "retries": 1}));
    let error = read_with(&source, Unit::new("s3://bucket/a")).expect_err("nobody");
    assert!(error.to_string().starts_with("s3://bucket/a: the server cannot be reached (2 tries, "), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`s3` block")), "{error:?}");
}

#[test]
fn settings_are_checked() {
    fn faults<K: Spec>(settings: serde_json::Value) -> Vec<SpecFault> {
        millstream_core::spec::parse::<K>(&settings).err().unwrap_or_default()
    }
    let secret = json!({"secret": "env:X"});
    assert_eq!(faults::<S3Spec>(json!({})), []);
    assert_eq!(faults::<GcsSpec>(json!({"service_account": secret})), []);
    assert_eq!(faults::<AzureSpec>(json!({"account": "a", "sas": secret})), []);
    for (found, path) in [
        (faults::<S3Spec>(json!({"endpoint": "minio"})), "endpoint"),
        (faults::<S3Spec>(json!({"endpoint": "ftp://minio"})), "endpoint"),
        (faults::<S3Spec>(json!({"endpoint": "http://minio"})), "endpoint"),
        (faults::<S3Spec>(json!({"connections": 0})), "connections"),
        (faults::<S3Spec>(json!({"timeout": "0s"})), "timeout"),
        (faults::<S3Spec>(json!({"access_key_id": "a"})), "access_key_id"),
        (faults::<S3Spec>(json!({"secret_access_key": secret})), "secret_access_key"),
        (faults::<GcsSpec>(json!({"service_account": secret, "anonymous": true})), "service_account"),
        (faults::<AzureSpec>(json!({"access_key": secret, "sas": secret})), "sas"),
    ] {
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert_eq!(found[0].path, [path], "{found:?}");
    }
}

/// The environment belongs to the whole process, so this test starts itself again in another one.
#[test]
fn settings_of_the_environment_are_used_and_secrets_stay_there() {
    if let Ok(mode) = std::env::var("MILLSTREAM_TEST_S3_ENVIRONMENT") {
        let source = s3(json!({"retries": 0}));
        let result = read_with(&source, Unit::new("s3://bucket/a"));
        match mode.as_str() {
            "good" => assert_eq!(result.expect("readable"), b"text"),
            _ => {
                let error = result.expect_err("no credentials");
                assert_eq!(what(&error), "there are no credentials");
                assert!(error.hint_text().is_some_and(|hint| hint.contains("AWS_ACCESS_KEY_ID")), "{error:?}");
            }
        }
        return;
    }
    let tree = TempTree::new();
    tree.file("a", "text");
    let (server, _root) = serve_tree(&tree, true);
    for mode in ["good", "none"] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program has a path"));
        child.args(["--exact", "object::tests::settings_of_the_environment_are_used_and_secrets_stay_there"]);
        child.envs([("MILLSTREAM_TEST_S3_ENVIRONMENT", mode), ("AWS_ENDPOINT_URL", &server.url())]);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"] {
            child.env_remove(name);
        }
        if mode == "good" {
            child.envs([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
        }
        let output = child.output().expect("it runs again");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&said));
    }
}

/// Writes `pieces` and completes them.
async fn written(store: &dyn Store, context: &SourceContext, uri: &str, pieces: &[&[u8]], finish: bool) -> Result<u64> {
    let mut upload = store.begin(context, uri).await?;
    for piece in pieces {
        upload.write(Bytes::copy_from_slice(piece)).await?;
    }
    if !finish {
        return upload.complete().await;
    }
    let brought = upload.finish().await?;
    if let Err(error) = store.complete(context, &brought).await {
        store.abort(context, &brought).await?;
        return Err(error);
    }
    Ok(brought.bytes)
}

/// A conditional write replaces only the version that was read.
fn conditions_hold<P: Store>(place: &P, uri: &str) {
    with_context(64 << 20, |context| async move {
        let write = async |text: &'static str, before: Option<&Stored>| {
            place.write_if(&context, uri, Bytes::from_static(text.as_bytes()), before).await.expect("it answers")
        };
        let read = async || Store::read(place, &context, uri).await.expect("readable").expect("there");
        let one = write("one", None).await.expect("nothing is there");
        assert_eq!(write("two", None).await, None, "something is there");
        assert_eq!(read().await, one);
        let two = write("two", Some(&one)).await.expect("it is as it was");
        assert_eq!(write("three", Some(&one)).await, None, "it is not any more");
        assert_eq!(
            write("two", Some(&one)).await.as_ref(),
            Some(&two),
            "the answer to an earlier try may have been lost"
        );
        assert_eq!(read().await, two);
        assert_eq!(two.content, &b"two"[..]);
        assert_eq!(place.names(&context, &uri[..uri.len() - 1]).await.expect("names"), [uri]);
        assert_eq!(place.names(&context, &format!("{uri}-")).await.expect("names"), [""; 0]);
        place.remove(&context, uri).await.expect("removable");
        assert_eq!(write("three", Some(&two)).await, None, "it is gone");
        assert_eq!(Store::read(place, &context, uri).await.expect("readable"), None);
    });
}

#[test]
fn an_object_that_has_changed_is_not_written_over() {
    let tree = TempTree::new();
    let (server, root) = serve_tree(&tree, true);
    conditions_hold(&signing(&server, &root), "s3://bucket/list");
    let server = AzureServer::start();
    server.make_container("bucket");
    conditions_hold(&azure(&server), "az://bucket/list");
}

/// Google's emulator does not accept XML requests that write objects, so this checks the requests.
#[test]
fn google_is_asked_for_the_generation() {
    let tree = TempTree::new();
    let account = json!({"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""});
    let secret = format!("file:{}", tree.file("account.json", account.to_string()).display());
    let server = FaultServer::start(
        Plan::new().object("/bucket/list", Object::new("text").header("x-goog-generation", "17").etag("\"e\"")),
    );
    let settings = json!({"endpoint": server.url(""), "service_account": {"secret": secret}, "allow_http": true});
    let place = ObjectSource::<GcsSpec>::new(spec(settings));
    with_context(64 << 20, |context| async move {
        let stored = Store::read(&place, &context, "gs://bucket/list").await.expect("readable").expect("there");
        assert_eq!(stored.version.as_deref(), Some("17"));
        for before in [Some(&stored), None] {
            let _ = place.write_if(&context, "gs://bucket/list", Bytes::from_static(b"new"), before).await;
        }
    });
    let told = |request: &Request| request.header("x-goog-if-generation-match").map(str::to_owned);
    let asked: Vec<String> = server.requests().iter().filter_map(told).collect();
    assert_eq!(asked, ["17", "0"]);
}

/// A store without conditional writes is written to without conditions. Other faults are errors.
#[test]
fn a_store_without_conditions_is_written_to() {
    let xml = |status, code| Answer::status(status).body(format!("<Error><Code>{code}</Code></Error>"));
    for (answer, expected) in [
        (Answer::status(501), &[true, false][..]),
        (xml(400, "NotImplemented"), &[true, false]),
        (xml(400, "RequestTimeout"), &[true, true]),
    ] {
        let object = Object::new("").etag("\"e\"").fault(1, Fault::Answer(answer));
        let server = FaultServer::start(Plan::new().object("/bucket/list", object));
        let source = anonymous(&server, json!({}));
        let written = with_context(64 << 20, |context| async move {
            source.write_if(&context, "s3://bucket/list", Bytes::from_static(b"new"), None).await
        });
        assert!(written.expect("it answers").is_some(), "it is written");
        let conditions: Vec<bool> =
            server.requests().iter().map(|request| request.header("if-none-match").is_some()).collect();
        assert_eq!(conditions, expected);
    }
}

/// Checks of writing, for all stores.
fn writing_conforms<P: Source + Store>(place: &P, other: &P, base: &str) {
    with_context(64 << 20, |context| async move {
        let uri = |name: &str| format!("{base}{name}");
        let read = async |name: &str| read_all(place.open(&context, &Unit::new(uri(name))).await).await;
        // A part and a byte, in pieces that fit nowhere; an empty one; one that fits into a request.
        let large = noise((8 << 20) + 1);
        let pieces: Vec<&[u8]> = large.chunks(1_300_001).collect();
        for (name, pieces, finish) in [
            ("large", &pieces[..], false),
            ("large too", &pieces, true),
            ("empty", &[], false),
            ("empty too", &[], true),
            ("small/ä b", &[b"he", b"", b"llo"], false),
            ("finished", &[b"hello"], true),
        ] {
            let bytes = pieces.concat();
            let count = written(place, &context, &uri(name), pieces, finish).await.expect(name);
            assert_eq!(count, bytes.len() as u64, "{name}");
            assert!(read(name).await.expect(name) == bytes, "{name}");
            assert_eq!(context.budget.used(), 0, "{name}");
        }
        // The old object stays until the new one is complete, or if the upload is aborted.
        for (name, dropped) in [("finished", true), ("finished", false), ("new", true), ("new", false)] {
            let mut upload = place.begin(&context, &uri(name)).await.expect("it begins");
            upload.write(Bytes::from(large.clone())).await.expect("it takes bytes");
            let unchanged = async || match read(name).await {
                Ok(bytes) => assert_eq!((name, bytes.as_slice()), ("finished", b"hello".as_slice())),
                Err(error) => assert_eq!((name, error.kind()), ("new", ErrorKind::Refused)),
            };
            match dropped {
                true => drop(upload),
                false => {
                    let brought = upload.finish().await.expect("it brings them over");
                    unchanged().await;
                    place.abort(&context, &brought).await.expect("it can be given up");
                }
            }
            place.settle().await;
            unchanged().await;
            assert_eq!(context.budget.used(), 0);
        }
        // Another process can complete an upload.
        let mut upload = place.begin(&context, &uri("later")).await.expect("it begins");
        upload.write(Bytes::from_static(b"later")).await.expect("it takes bytes");
        let brought = upload.finish().await.expect("it brings them over");
        assert_eq!((brought.uri.clone(), brought.bytes), (uri("later"), 5));
        assert!(other.complete(&context, &brought).await.expect("the other completes it"));
        assert!(!other.complete(&context, &brought).await.unwrap_or(false), "there is nothing left of it");
        assert_eq!(read("later").await.expect("there"), b"later");
        // Small ones are read, measured and removed; one that is not there is nothing.
        place.probe(&context, &uri("later")).await.expect("it may be written");
        let stored = Store::read(place, &context, &uri("later")).await.expect("readable").expect("there");
        assert_eq!(stored.content, &b"later"[..]);
        assert_eq!(place.length(&context, &uri("later")).await.expect("measurable"), Some(5));
        for _ in 0..2 {
            place.remove(&context, &uri("later")).await.expect("removable, and fine if it is gone");
            assert_eq!(Store::read(place, &context, &uri("later")).await.expect("readable"), None);
            assert_eq!(place.length(&context, &uri("later")).await.expect("measurable"), None);
        }
    });
}

#[test]
fn objects_are_written_to_s3_whole_or_not_at_all() {
    let tree = TempTree::new();
    let (server, root) = serve_tree(&tree, true);
    writing_conforms(&signing(&server, &root), &signing(&server, &root), "s3://bucket/");
    assert!(!has_parts(&root), "parts that were given up are gone");
}

/// Whether the S3 server still has parts of uploads a while after the last one was aborted, which happens in the
/// background.
fn has_parts(root: &TempTree) -> bool {
    let is_part = |entry: fs_err::DirEntry| entry.file_name().to_string_lossy().contains(".part-");
    let holds = || fs_err::read_dir(root.root()).expect("a folder").flatten().any(is_part);
    (0..1_200).all(|_| {
        std::thread::sleep(Duration::from_millis(if holds() { 50 } else { 0 }));
        holds()
    })
}

/// Google's multipart uploads are like those of S3, and its emulator has none, so an S3 server without signatures is
/// used.
#[test]
fn objects_are_written_to_google_whole_or_not_at_all() {
    let tree = TempTree::new();
    let (server, root) = serve_tree(&tree, false);
    let account = json!({"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""});
    let secret = format!("file:{}", tree.file("account.json", account.to_string()).display());
    let store = || {
        let settings = json!({"endpoint": server.url(), "service_account": {"secret": secret}});
        ObjectSource::<GcsSpec>::new(spec(settings))
    };
    writing_conforms(&store(), &store(), "gs://bucket/");
    assert!(!has_parts(&root), "parts that were given up are gone");
}

#[test]
fn objects_are_written_to_azure_whole_or_not_at_all() {
    let server = AzureServer::start();
    server.make_container("bucket");
    writing_conforms(&azure(&server), &azure(&server), "az://bucket/");
}

#[test]
fn names_that_no_object_can_have_are_reported_without_asking() {
    let store = s3(json!({}));
    for (uri, what) in [
        ("s3://bucket", "this names no object"),
        ("s3://bucket/a/", "this names no object"),
        ("s3:///a", "this names no bucket"),
        ("s3://b*/a", "`b*` is not a valid bucket name"),
        ("s3://bucket/a//b", "an object whose name has such a part cannot be named in a request"),
        ("s3://bucket/../b", "an object whose name has such a part cannot be named in a request"),
    ] {
        let error = Store::check(&store, uri).expect_err(uri);
        assert_eq!((error.what(), error.location().uri.as_deref()), (what, Some(uri)));
    }
    Store::check(&store, "s3://bucket/a b/c?.csv").expect("all of these are characters of names");
}

#[test]
fn an_answer_that_was_lost_is_no_loss() {
    let done = "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>";
    let fault =
        |status, code| Fault::Answer(Answer::status(status).body(format!("<Error><Code>{code}</Code></Error>")));
    let gone = || fault(404, "NoSuchUpload");
    for (first, then, there, replaced, fine) in [
        (Fault::Close, gone(), "text", None, true),
        (Fault::Close, gone(), "text", Some(3), true),
        (Fault::Close, fault(400, "InvalidBlockList"), "text", None, true),
        (Fault::Close, gone(), "old", None, false),
        (gone(), gone(), "text", None, false),
        // It may be the old one.
        (Fault::Close, gone(), "text", Some(4), false),
        // This does not show that it was done.
        (Fault::Close, fault(403, "AccessDenied"), "text", None, false),
        (Fault::Close, fault(404, "NoSuchBucket"), "text", None, false),
    ] {
        let case = format!("{first:?}, {then:?}, {there}, {replaced:?}");
        let server = FaultServer::start(
            Plan::new()
                .object("/bucket/a?uploadId=U", Object::new(done).fault(1, first).always(then))
                .object("/bucket/a", Object::new(there)),
        );
        let source = anonymous(&server, json!({}));
        let ticket = Some("[\"U\",\"1\"]".into());
        let brought = Brought { uri: "s3://bucket/a".into(), bytes: 4, ticket, replaced };
        let completed = with_context(64 << 20, |context| async move { source.complete(&context, &brought).await });
        assert_eq!(completed.as_ref().is_ok_and(|done| *done), fine, "{case}: {completed:?}");
    }
}

pub(super) const BEGUN: &str = "<InitiateMultipartUploadResult><UploadId>U</UploadId></InitiateMultipartUploadResult>";

#[test]
fn what_was_given_up_before_is_given_up() {
    let refusal = |code| Fault::Answer(Answer::status(404).body(format!("<Error><Code>{code}</Code></Error>")));
    for (code, fine) in [("NoSuchUpload", true), ("NoSuchBucket", false)] {
        let parts = Object::new("").fault(1, Fault::Close).always(refusal(code));
        let server = FaultServer::start(
            Plan::new().object("/bucket/a?uploads=", Object::new(BEGUN)).object("/bucket/a?uploadId=U", parts),
        );
        let source = anonymous(&server, json!({}));
        let probed = with_context(64 << 20, |context| async move { source.probe(&context, "s3://bucket/a").await });
        assert_eq!(probed.is_ok(), fine, "{probed:?}");
    }
}

#[test]
fn giving_up_is_seen_through_although_nobody_waits() {
    let slow = Object::new("").delayed(Duration::from_millis(100)).fault(1, Fault::Close);
    let server = FaultServer::start(
        Plan::new().object("/bucket/a?uploads=", Object::new(BEGUN)).object("/bucket/a?uploadId=U", slow),
    );
    let source = anonymous(&server, json!({}));
    let asked = || server.requests().iter().filter(|request| request.method == "DELETE").count();
    let asked = &asked;
    with_context(64 << 20, |context| async move {
        tokio::select! {
            _ = source.probe(&context, "s3://bucket/a") => panic!("it was to be left"),
            () = async { while asked() == 0 { tokio::time::sleep(Duration::from_millis(1)).await } } => {}
        }
        source.settle().await;
    });
    assert_eq!(asked(), 2, "the first had no answer");
}

#[test]
fn what_is_written_is_held_within_bounds() {
    let tree = TempTree::new();
    let (server, root) = serve_tree(&tree, true);
    let source = signing(&server, &root);
    let content = noise(1 << 20);
    for (budget, most) in [(64 << 20, 41 << 20), (9 << 20, 25 << 20)] {
        let (source, content) = (&source, &content);
        with_context(budget, |context| async move {
            let pieces: Vec<&[u8]> = std::iter::repeat_n(content.as_slice(), 60).collect();
            let count = written(source, &context, "s3://bucket/a", &pieces, false).await.expect("written");
            assert_eq!(count, 60 << 20);
            assert!(context.budget.peak() <= most, "{} of {budget}", context.budget.peak());
        });
    }
    let length = fs_err::metadata(tree.path("a")).expect("a file").len();
    assert_eq!(length, 60 << 20);
}

#[test]
fn writing_recovers_from_what_passes_and_leaves_nothing_otherwise() {
    const BEGIN: &str = "/bucket/a?uploads=";
    const PART: &str = "/bucket/a?partNumber=1&uploadId=U";
    const END: &str = "/bucket/a?uploadId=U";
    let done = "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>";
    let slow =
        Fault::Answer(Answer::status(503).header("retry-after", "0").body("<Error><Code>SlowDown</Code></Error>"));
    let late =
        Fault::Answer(Answer::status(200).body("<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>"));
    let denied = Fault::Answer(Answer::status(403).body("<Error><Code>AccessDenied</Code></Error>"));
    let write = |server: &FaultServer, requests: usize| {
        let source = anonymous(server, json!({}));
        with_context(64 << 20, |context| async move {
            let result = written(&source, &context, "s3://bucket/a", &[b"text"], true).await;
            // Uploads are aborted in the background.
            while server.requests().len() < requests {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            result
        })
    };
    let server = FaultServer::start(
        Plan::new()
            .object(BEGIN, Object::new(BEGUN).fault(1, slow.clone()))
            .object(PART, Object::new("").etag("\"1\"").fault(1, slow).fault(1, Fault::Close))
            .object(END, Object::new(done).fault(1, late)),
    );
    assert_eq!(write(&server, 7).expect("it passes"), 4);
    let asked: Vec<_> = server.requests().iter().map(|request| request.method.clone()).collect();
    assert_eq!(asked, ["POST", "POST", "PUT", "PUT", "PUT", "POST", "POST"]);

    for (path, requests) in [(BEGIN, 1), (PART, 3), (END, 4)] {
        let plan = [(BEGIN, BEGUN), (PART, ""), (END, done)].into_iter().fold(Plan::new(), |plan, (place, body)| {
            let object = Object::new(body).etag("\"1\"");
            plan.object(place, if place == path { object.fault(1, denied.clone()) } else { object })
        });
        let server = FaultServer::start(plan);
        let error = write(&server, requests).expect_err("it may not be written");
        assert_eq!((what(&error), error.kind()), ("the server answers 403 Forbidden", ErrorKind::Refused), "{path}");
        assert_eq!(error.location().uri.as_deref(), Some("s3://bucket/a"));
        let asked = server.requests();
        assert_eq!(asked.len(), requests, "{asked:?}");
        let final_error =
            asked.last().is_some_and(|last| (last.method.as_str(), last.path.as_str()) == ("DELETE", END));
        assert_eq!(final_error, path != BEGIN, "{asked:?}");
    }
}

//! FTP with a real ProFTPD, with and without MLST, with and without TLS; and faults.

use std::time::{Duration, Instant};

use futures::TryStreamExt;
use millstream_core::source::Source;
use millstream_core::spec::Spec;
use millstream_core::{ErrorKind, Unit};
use millstream_testkit::{Authority, Break, PASSWORD, Proftpd, ProftpdOptions, Proxy, TempTree, USER, Validity};

use super::*;
use crate::conformance::{TestSource, conformance, noise, read_all, with_context};

/// Settings with the user, the password and short pauses, unless they say otherwise; and the folder of the secret.
fn spec(settings: serde_json::Value) -> (FtpSpec, TempTree) {
    let tree = TempTree::new();
    let secret = format!("file:{}", tree.file("password", PASSWORD).display());
    let mut all = serde_json::json!({
        "user": USER, "password": {"secret": secret}, "max_backoff": "20ms", "timeout": "5s",
    });
    if let (Some(all), serde_json::Value::Object(settings)) = (all.as_object_mut(), settings) {
        all.extend(settings);
        all.retain(|_, value| !value.is_null());
    }
    (millstream_core::spec::parse(&all).expect("good settings"), tree)
}

fn test_source_with(options: ProftpdOptions, settings: serde_json::Value) -> TestSource {
    let tree = TempTree::new();
    let server = Proftpd::start_with(tree.root(), options);
    let base = server.url("");
    let (spec, secret) = spec(settings);
    TestSource {
        source: Arc::new(Remote::<Ftp>::new(spec)),
        tree,
        base,
        bring: None,
        _server: Some(Box::new((server, secret))),
    }
}

fn test_source() -> TestSource {
    test_source_with(ProftpdOptions::default(), serde_json::json!({}))
}

conformance!(super::test_source());

mod without_facts {
    use super::*;

    fn test_source() -> TestSource {
        test_source_with(ProftpdOptions { without_facts: true, ..ProftpdOptions::default() }, serde_json::json!({}))
    }

    // The version consists of the size and the time, which are requested one by one.
    conformance!(super::test_source());
}

mod encrypted {
    use super::*;

    fn test_source() -> TestSource {
        let authority = Authority::new();
        let certificate = Some(authority.certificate("localhost", Validity::Current));
        let folder = TempTree::new();
        let ca = folder.file("ca.pem", authority.pem()).display().to_string();
        let mut place = test_source_with(
            ProftpdOptions { certificate, ..ProftpdOptions::default() },
            serde_json::json!({"ca": ca}),
        );
        place._server = Some(Box::new((place._server.take(), folder)));
        place
    }

    conformance!(super::test_source());
}

fn list(source: &Remote<Ftp>, pattern: &str) -> Result<Vec<Unit>> {
    with_context(16 << 20, |context| {
        let listed = source.list(&context, pattern);
        async move {
            let _context = context;
            listed.try_collect().await
        }
    })
}

fn read(spec: &FtpSpec, unit: Unit) -> Result<Vec<u8>> {
    let source = Remote::<Ftp>::new(spec.clone());
    with_context(16 << 20, |context| async move { read_all(source.open(&context, &unit).await).await })
}

/// `what` without the tries and the time.
fn what(error: &Error) -> &str {
    error.what().split(" (").next().unwrap_or_default()
}

/// A tree with names of all kinds.
fn names() -> TempTree {
    let tree = TempTree::new();
    for name in [
        "a.csv",
        "b c.csv",
        "ä.csv",
        "-l.csv",
        "st*r.csv",
        "x.txt",
        ".hidden.csv",
        "one/a.csv",
        "one/two/a.csv",
        ".no/a.csv",
    ] {
        tree.file(name, name);
    }
    tree.file("empty/x", "");
    std::os::unix::fs::symlink(tree.path("x.txt"), tree.path("link.csv")).expect("a link can be made");
    tree
}

#[test]
fn folders_are_listed_by_wildcards() {
    let tree = names();
    for without_facts in [false, true] {
        let server = Proftpd::start_with(tree.root(), ProftpdOptions { without_facts, ..ProftpdOptions::default() });
        let (spec, _secret) = spec(serde_json::json!({}));
        let source = Remote::<Ftp>::new(spec.clone());
        for (pattern, expected) in [
            ("*.csv", vec!["-l.csv", "a.csv", "b%20c.csv", "link.csv", "st%2Ar.csv", "%C3%A4.csv"]),
            ("?.csv", vec!["a.csv", "%C3%A4.csv"]),
            ("**/a.csv", vec!["a.csv", "one/a.csv", "one/two/a.csv"]),
            ("one/**", vec!["one/a.csv", "one/two/a.csv"]),
            ("one/*/a.csv", vec!["one/two/a.csv"]),
            ("st%2Ar.*", vec!["st%2Ar.csv"]),
            ("none/*", vec![]),
            ("*/none/*", vec![]),
            ("*.none", vec![]),
        ] {
            let units = list(&source, &server.url(pattern)).expect("it can be listed");
            let found: Vec<_> = units.iter().map(|unit| unit.uri.clone()).collect();
            let expected: Vec<_> = expected.into_iter().map(|name| server.url(name)).collect();
            assert_eq!(found, expected, "{pattern}, without facts: {without_facts}");
            for unit in units {
                assert!(without_facts || (unit.modified.is_some() && unit.etag.is_some()), "{unit:?}");
                let read = read(&spec, unit.clone()).expect("readable");
                assert_eq!(Some(read.len() as u64), unit.size, "{}", unit.uri);
            }
        }
    }
}

#[test]
fn two_slashes_begin_at_the_root_of_the_server() {
    let tree = names();
    let server = Proftpd::start(tree.root());
    let (spec, _secret) = spec(serde_json::json!({}));
    let source = Remote::<Ftp>::new(spec.clone());
    let units = list(&source, &server.url(&format!("/{}", tree.text("one/*.csv")))).expect("it can be listed");
    assert_eq!(units.len(), 1);
    assert!(units[0].uri.ends_with("/one/a.csv"), "{}", units[0].uri);
    assert_eq!(read(&spec, units[0].clone()).expect("readable"), b"one/a.csv");
}

#[test]
fn connections_are_kept() {
    let tree = TempTree::new();
    (0..40).for_each(|number| drop(tree.file(&format!("{number:02}"), noise(number * 1000))));
    let server = Proftpd::start(tree.root());
    let (spec, _secret) = spec(serde_json::json!({"connections": 3}));
    let source = Remote::<Ftp>::new(spec);
    let (source, server) = (&source, &server);
    with_context(16 << 20, |context| async move {
        let units: Vec<Unit> = source.list(&context, &server.url("*")).try_collect().await.expect("it can be listed");
        assert_eq!(units.len(), 40);
        let context = &context;
        let reading = units.into_iter().enumerate().map(|(number, unit)| async move {
            let read = read_all(source.open(context, &unit).await).await.expect("readable");
            assert_eq!(read, noise(number * 1000));
        });
        futures::StreamExt::collect::<Vec<()>>(futures::StreamExt::buffer_unordered(futures::stream::iter(reading), 3))
            .await;
        assert!(server.logins() <= 4, "{} logins for a listing and 40 files, 3 at once", server.logins());
    });
}

#[test]
fn a_kept_connection_that_died_is_replaced() {
    let tree = TempTree::new();
    tree.file("a", "text");
    let server = Proftpd::start(tree.root());
    let proxy = Proxy::start_ftp(server.port(), &[Break::Nothing]);
    let (spec, _secret) = spec(serde_json::json!({"retries": 0}));
    let source = Remote::<Ftp>::new(spec);
    let unit = Unit::new(format!("ftp://127.0.0.1:{}/a", proxy.port()));
    with_context(1 << 20, |context| async move {
        for round in 1..=3 {
            assert_eq!(read_all(source.open(&context, &unit).await).await.expect("readable"), b"text");
            assert_eq!(proxy.connections(), round);
            proxy.close_all();
        }
    });
}

#[test]
fn a_body_that_breaks_resumes_where_it_broke() {
    let tree = TempTree::new();
    let body = noise(1_000_000);
    tree.file("a", &body);
    let server = Proftpd::start(tree.root());
    let cut = Break::Cut(300_000);
    let proxy = Proxy::start_ftp(server.port(), &[cut, cut, cut, Break::Nothing]);
    let (spec, _secret) = spec(serde_json::json!({}));
    let unit = Unit::new(format!("ftp://127.0.0.1:{}/a", proxy.port()));
    assert!(read(&spec, unit.clone()).expect("it recovers") == body);

    let proxy = Proxy::start_ftp(server.port(), &[cut]);
    let source = Remote::<Ftp>::new(spec);
    let unit = Unit { uri: format!("ftp://127.0.0.1:{}/a", proxy.port()), ..unit };
    let range = with_context(4 << 20, |context| async move { source.read_range(&context, &unit, 10..900_010).await });
    assert!(range.expect("it recovers").expect("ranges") == body[10..900_010]);
}

#[test]
fn a_server_that_never_recovers_is_given_up() {
    let tree = TempTree::new();
    tree.file("a", noise(100_000));
    let server = Proftpd::start(tree.root());
    let proxy = Proxy::start_ftp(server.port(), &[Break::Cut(1000)]);
    let (spec, _secret) = spec(serde_json::json!({"retries": 2}));
    let url = format!("ftp://127.0.0.1:{}/a", proxy.port());
    let error = read(&spec, Unit::new(&url)).expect_err("it never ends");
    assert_eq!((error.kind(), error.location().uri.as_ref()), (ErrorKind::Transient, Some(&url)));
    assert!(error.what().contains("(3 tries, "), "{error}");
    let told = ["the connection broke in the middle of the body", "the body ended at byte "];
    assert!(told.iter().any(|told| error.what().starts_with(told)), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`ftp` block")), "{error:?}");
}

#[test]
fn a_port_without_a_listener() {
    let (spec, _secret) = spec(serde_json::json!({"retries": 1}));
    let url = format!("ftp://127.0.0.1:{}/a", millstream_testkit::free_port());
    let error = read(&spec, Unit::new(&url)).expect_err("nobody");
    assert!(error.to_string().starts_with(&format!("{url}: the server cannot be reached (2 tries, ")), "{error}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("refused")), "{error}");
    let error = read(&spec, Unit::new("ftp://millstream.invalid/a")).expect_err("nobody");
    assert_eq!(what(&error), "the host's address cannot be found");
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let tree = TempTree::new();
    let body = noise(100_000);
    tree.file("a", &body);
    let server = Proftpd::start(tree.root());
    let settings = |timeout: &str| spec(serde_json::json!({"timeout": timeout, "retries": 1}));
    // So long that the second connection is no silent one on a busy machine, too.
    let ((patient, _secret), (hasty, _other)) = (settings("4s"), settings("500ms"));
    let proxy = Proxy::start_ftp(server.port(), &[Break::Stall(10_000), Break::Nothing]);
    let start = Instant::now();
    let unit = |proxy: &Proxy| Unit::new(format!("ftp://127.0.0.1:{}/a", proxy.port()));
    assert!(read(&patient, unit(&proxy)).expect("it recovers") == body);
    assert!(start.elapsed() < Duration::from_secs(100));
    for proxy in
        [Proxy::start_ftp(server.port(), &[Break::Stall(10_000)]), Proxy::start(server.port(), &[Break::Stall(0)])]
    {
        let error = read(&hasty, unit(&proxy)).expect_err("always silent");
        assert_eq!(what(&error), "the server was silent for 0.5 s");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("`timeout`")));
    }
}

#[test]
fn a_slow_server_is_waited_for() {
    let tree = TempTree::new();
    let body = noise(50_000);
    tree.file("a", &body);
    let server = Proftpd::start(tree.root());
    let (spec, _secret) = spec(serde_json::json!({"timeout": "10s", "retries": 0}));
    let proxy = Proxy::start_ftp(server.port(), &[Break::Slow(5000, Duration::from_millis(50))]);
    assert!(read(&spec, Unit::new(format!("ftp://127.0.0.1:{}/a", proxy.port()))).expect("slow, but all") == body);
}

#[test]
fn a_login_that_is_refused_is_not_tried_again() {
    let tree = TempTree::new();
    tree.file("a", "text");
    let server = Proftpd::start(tree.root());
    let wrong = TempTree::new();
    let secret = wrong.file("password", "open barley");
    let (spec, _secret) = spec(serde_json::json!({"password": {"secret": format!("file:{}", secret.display())}}));
    let error = read(&spec, Unit::new(server.url("a"))).expect_err("wrong");
    assert_eq!((what(&error), error.kind()), ("the server answers 530", ErrorKind::Refused));
    assert!(error.what().contains("(1 try, "), "{error}");
    assert_eq!(error.offending_text(), Some("Login incorrect."));
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`password`")), "{error:?}");
    assert!(!format!("{error:?} {:?}", Ftp::new(&spec).expect("settings")).contains("barley"));
    let error = list(&Remote::new(spec.clone()), &server.url("*")).expect_err("wrong");
    assert_eq!(what(&error), "the server answers 530");

    // The URL overrides the settings.
    let url = server.url("a").replacen("://", &format!("://{USER}:{PASSWORD}@"), 1);
    assert_eq!(read(&spec, Unit::new(&url)).expect("readable"), b"text");
    let error = read(&spec, Unit::new(url.replace("/a", "/b"))).expect_err("nothing there");
    assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
}

#[test]
fn what_is_not_there_or_no_file_is_reported() {
    let tree = names();
    for without_facts in [false, true] {
        let server = Proftpd::start_with(tree.root(), ProftpdOptions { without_facts, ..ProftpdOptions::default() });
        let (spec, _secret) = spec(serde_json::json!({}));
        let error = read(&spec, Unit::new(server.url("none"))).expect_err("nothing there");
        assert_eq!((what(&error), error.kind()), ("the server answers 550", ErrorKind::Refused));
        assert!(
            error
                .offending_text()
                .is_some_and(|text| text.contains("No such file") || text.contains("cannot be listed"))
        );
        let error = read(&spec, Unit::new(server.url("one"))).expect_err("a folder");
        assert_eq!(what(&error), "this is a folder, not a file");
        assert!(error.hint_text().is_some_and(|hint| hint.ends_with("/one/**")), "{error:?}");
    }
}

/// Rights do not apply to root, but to the server's user.
#[test]
fn a_folder_without_rights_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let tree = names();
    let rights = |mode| {
        fs_err::set_permissions(tree.path("one"), std::fs::Permissions::from_mode(mode)).expect("rights can be set");
    };
    for without_facts in [false, true] {
        let server = Proftpd::start_with(tree.root(), ProftpdOptions { without_facts, ..ProftpdOptions::default() });
        let (spec, _secret) = spec(serde_json::json!({}));
        for mode in [0o000, 0o311] {
            rights(mode);
            for pattern in ["one/*.csv", "**/a.csv"] {
                let error = list(&Remote::new(spec.clone()), &server.url(pattern)).expect_err("no rights");
                assert_eq!(error.kind(), ErrorKind::Refused, "{pattern} {mode:o} {without_facts}: {error:?}");
                assert_eq!(error.location().uri, Some(server.url("one")), "{error:?}");
                assert!(error.hint_text().is_some_and(|hint| hint.contains("permissions")), "{error:?}");
            }
        }
        rights(0o755);
    }
    let (quick, _secret) = spec(serde_json::json!({}));
    let server = Proftpd::start_with(tree.root(), ProftpdOptions { without_facts: true, ..ProftpdOptions::default() });
    std::os::unix::fs::symlink("/no/such/file", tree.path("dangling.csv")).expect("a link can be made");
    let error = list(&Remote::new(quick), &server.url("*.csv")).expect_err("nothing there");
    assert_eq!((error.what(), error.location().uri.clone()), ("this link is broken", Some(server.url("dangling.csv"))));

    fs_err::set_permissions(tree.path("a.csv"), std::fs::Permissions::from_mode(0o000)).expect("rights can be set");
    let server = Proftpd::start(tree.root());
    let (spec, _secret) = spec(serde_json::json!({}));
    let error = read(&spec, Unit::new(server.url("a.csv"))).expect_err("no rights");
    assert_eq!((what(&error), error.kind()), ("the server answers 550", ErrorKind::Refused));
    assert!(error.offending_text().is_some_and(|text| text.contains("Permission denied")), "{error:?}");
}

#[test]
fn a_file_that_changes_between_two_pieces_is_an_error() {
    for without_facts in [false, true] {
        let tree = TempTree::new();
        tree.file("a", noise(3_000_000));
        let server = Proftpd::start_with(tree.root(), ProftpdOptions { without_facts, ..ProftpdOptions::default() });
        let proxy = Proxy::start_ftp(server.port(), &[Break::Cut(1_500_000), Break::Nothing]);
        let (spec, _secret) = spec(serde_json::json!({"max_backoff": "1s"}));
        let source = Remote::<Ftp>::new(spec);
        let unit = Unit::new(format!("ftp://127.0.0.1:{}/a", proxy.port()));
        let error = with_context(64 << 20, |context| {
            let tree = &tree;
            async move {
                let mut stream = source.open(&context, &unit).await.expect("readable");
                futures::StreamExt::next(&mut stream).await.expect("a chunk").expect("no error");
                tree.file("a", noise(3_000_001));
                let rest: Result<Vec<_>> = stream.try_collect().await;
                rest.expect_err("another file")
            }
        });
        assert_eq!((what(&error), error.kind()), ("the object has changed while it was read", ErrorKind::Refused));
    }
}

#[test]
fn a_file_that_changes_or_goes_after_it_was_listed_is_an_error() {
    let tree = TempTree::new();
    tree.file("a", "first");
    tree.file("b", "first");
    let server = Proftpd::start(tree.root());
    let (spec, _secret) = spec(serde_json::json!({}));
    let units = list(&Remote::new(spec.clone()), &server.url("*")).expect("it can be listed");
    // Another size; and the same size at another time.
    for content in ["second", "again"] {
        tree.file("a", content);
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        let file = fs_err::OpenOptions::new().write(true).open(tree.path("a")).expect("it is there");
        file.file().set_modified(hour_ago).expect("its time can be set");
        let error = read(&spec, units[0].clone()).expect_err("another file");
        assert_eq!((what(&error), error.kind()), ("the object has changed since it was listed", ErrorKind::Refused));
    }
    fs_err::remove_file(tree.path("b")).expect("it is there");
    let error = read(&spec, units[1].clone()).expect_err("it has gone");
    assert_eq!((what(&error), error.location().uri.clone()), ("the server answers 550", Some(server.url("b"))));
}

#[test]
fn certificates_are_checked() {
    let authority = Authority::new();
    let tree = TempTree::new();
    tree.file("a", noise(2 << 20));
    let folder = TempTree::new();
    let ca = folder.file("ca.pem", authority.pem()).display().to_string();
    let start = |validity, implicit| {
        let certificate = Some(authority.certificate("localhost", validity));
        Proftpd::start_with(tree.root(), ProftpdOptions { certificate, implicit, ..ProftpdOptions::default() })
    };
    let (trusting, _secret) = spec(serde_json::json!({"ca": ca}));
    let server = start(Validity::Current, false);
    assert!(read(&trusting, Unit::new(server.url("a"))).expect("its authority is trusted") == noise(2 << 20));

    let (quick, _secret) = spec(serde_json::json!({}));
    let error = read(&quick, Unit::new(server.url("a"))).expect_err("an unknown authority");
    assert_eq!((what(&error), error.kind()), ("the encrypted connection cannot be established", ErrorKind::Refused));
    assert!(error.what().contains("(1 try, "), "{error}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("UnknownIssuer")), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`ftp` block")), "{error:?}");

    let url = server.url("a").replace("localhost", "127.0.0.1");
    let error = read(&trusting, Unit::new(url)).expect_err("another name");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("another name")), "{error:?}");

    let expired = start(Validity::Expired, false);
    let error = read(&trusting, Unit::new(expired.url("a"))).expect_err("it has run out");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.hint_text().is_some_and(|hint| hint.contains("expired")), "{error:?}");

    // A server that requires encryption, and one without it.
    let error = read(&quick, Unit::new(server.url("a").replace("ftps:", "ftp:"))).expect_err("not encrypted");
    assert_eq!(what(&error), "the server answers 550");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("ftps://")), "{error:?}");
    let plain = Proftpd::start(tree.root());
    let error = read(&trusting, Unit::new(plain.url("a").replace("ftp:", "ftps:"))).expect_err("no TLS there");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("scheme")), "{error:?}");

    let implicit = start(Validity::Current, true);
    let (at_once, _secret) = spec(serde_json::json!({"ca": ca, "implicit": true}));
    assert!(read(&at_once, Unit::new(implicit.url("a"))).expect("readable") == noise(2 << 20));
}

#[test]
fn settings_are_checked() {
    let check =
        |settings: serde_json::Value| millstream_core::spec::parse::<FtpSpec>(&settings).err().unwrap_or_default();
    assert_eq!(check(serde_json::json!({})), []);
    for (settings, path) in [
        (serde_json::json!({"connections": 0}), "connections"),
        (serde_json::json!({"connections": 65}), "connections"),
        (serde_json::json!({"timeout": "0s"}), "timeout"),
        (serde_json::json!({"connect_timeout": "0s"}), "connect_timeout"),
        (serde_json::json!({"password": {"secret": "env:A"}}), "password"),
        (serde_json::json!({"user": "a\nb"}), "user"),
    ] {
        let faults = check(settings.clone());
        assert_eq!((faults.len(), faults[0].path.join(".").as_str()), (1, path), "{settings}");
    }
    assert_eq!(FtpSpec::NAME, "ftp");
}

#[test]
fn patterns_are_checked() {
    for good in ["ftp://host/a", "ftps://me@host:990/**/*.gz", "ftp://host/{a,b}/[a-z]?"] {
        assert_eq!((ENTRY.check)(good), Ok(()), "{good}");
    }
    for bad in ["ftp:///a", "ftp://host/[a", "ftp://host/{a", "ftp://host:x/a", "ftp://host/%0d%0aDELE"] {
        assert!((ENTRY.check)(bad).is_err(), "{bad}");
    }
}

//! SFTP with a real OpenSSH, and ProFTPD for passwords; and faults.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use millstream_core::source::Source;
use millstream_core::spec::Spec;
use millstream_core::{Error, ErrorKind, Unit};
use millstream_testkit::{Agent, Break, KeyPair, PASSWORD, Proftpd, ProftpdOptions, Proxy, Sshd, TempTree, USER};

use super::*;
use crate::conformance::{TestSource, conformance, noise, read_all, with_context};

/// Settings with short pauses by default; nulls are removed.
fn settings(settings: serde_json::Value) -> SftpSpec {
    let mut all = serde_json::json!({"max_backoff": "20ms", "timeout": "20s", "agent": false});
    if let (Some(all), serde_json::Value::Object(settings)) = (all.as_object_mut(), settings) {
        all.extend(settings);
        all.retain(|_, value| !value.is_null());
    }
    millstream_core::spec::parse(&all).expect("good settings")
}

/// A reference to a file with this content.
fn secret(tree: &TempTree, name: &str, content: &str) -> serde_json::Value {
    serde_json::json!({"secret": format!("file:{}", tree.file(name, content).display())})
}

/// Settings with the server's user key and its host key's fingerprint, and the folder of the secret.
fn spec(server: &Sshd, more: serde_json::Value) -> (SftpSpec, TempTree) {
    let tree = TempTree::new();
    let mut all = serde_json::json!({
        "key": secret(&tree, "key", &server.user_key.private), "host_key": server.host_key.fingerprint,
    });
    if let (Some(all), serde_json::Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    (settings(all), tree)
}

/// A server, a folder, and the settings.
struct Scene {
    server: Sshd,
    tree: TempTree,
    spec: SftpSpec,
    _secret: TempTree,
}

impl Scene {
    fn new(more: serde_json::Value) -> Self {
        Scene::with(Sshd::start(), more)
    }

    fn with(server: Sshd, more: serde_json::Value) -> Self {
        let (spec, secret) = spec(&server, more);
        Scene { server, tree: TempTree::new(), spec, _secret: secret }
    }

    /// The URL of a name in the folder.
    fn url(&self, name: &str) -> String {
        self.server.url(&self.tree.text(name))
    }

    /// The same through a proxy.
    fn url_by(&self, proxy: &Proxy, name: &str) -> String {
        self.url(name).replace(&format!(":{}/", self.server.port()), &format!(":{}/", proxy.port()))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        read(&self.spec, Unit::new(self.url(name)))
    }

    fn list(&self, pattern: &str) -> Result<Vec<Unit>> {
        list(&Remote::new(self.spec.clone()), &self.url(pattern))
    }
}

fn test_source() -> TestSource {
    let tree = TempTree::new();
    let server = Sshd::start();
    let known = TempTree::new();
    let hosts = known.file("known_hosts", server.known_host()).display().to_string();
    let (spec, secret) = spec(&server, serde_json::json!({"host_key": null, "known_hosts": hosts}));
    let base = server.url(&format!("{}/", tree.root().display()));
    let source = Arc::new(Remote::<Sftp>::new(spec));
    TestSource { source, tree, base, bring: None, _server: Some(Box::new((server, secret, known))) }
}

conformance!(super::test_source());

/// A server that requires a password; further settings may be added.
fn password_server(tree: &TempTree, more: serde_json::Value) -> (Proftpd, SftpSpec, TempTree) {
    let host_key = KeyPair::new("rsa", "");
    let folder = TempTree::new();
    let mut all = serde_json::json!({
        "user": USER, "password": secret(&folder, "password", PASSWORD), "host_key": host_key.fingerprint,
    });
    if let (Some(all), serde_json::Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    let options = ProftpdOptions { host_key: Some(host_key.private), ..ProftpdOptions::default() };
    (Proftpd::start_with(tree.root(), options), settings(all), folder)
}

mod another_server {
    use super::*;

    fn test_source() -> TestSource {
        let tree = TempTree::new();
        let (server, spec, secret) = password_server(&tree, serde_json::json!({}));
        let base = server.url("~/");
        let source = Arc::new(Remote::<Sftp>::new(spec));
        TestSource { source, tree, base, bring: None, _server: Some(Box::new((server, secret))) }
    }

    conformance!(super::test_source());
}

#[test]
fn short_answers_and_answers_in_another_order_are_put_together() {
    let folder = TempTree::new();
    let script = folder.file("unhelpful.py", UNHELPFUL).display().to_string();
    let keys = || KeyPair::new("ed25519", "");
    let server = Sshd::start_with(keys(), keys(), &format!("ForceCommand /usr/bin/python3 {script}"));
    let scene = Scene::with(server, serde_json::json!({}));
    names(&scene.tree);
    let source = Remote::<Sftp>::new(scene.spec.clone());
    let contents = [0, 1, 20_000, 20_001, 100_000, 524_288, 524_289, 3_000_000].map(noise);
    with_context(16 << 20, |context| async move {
        for content in contents {
            scene.tree.file("a", &content);
            let unit = Unit::new(scene.url("a"));
            assert!(
                read_all(source.open(&context, &unit).await).await.expect("readable") == content,
                "{}",
                content.len()
            );
            let range = content.len() / 3..content.len() - content.len() / 4;
            let wanted = range.start as u64..range.end as u64;
            let read = source.read_range(&context, &unit, wanted).await.expect("readable").expect("ranges");
            assert!(read == content[range], "{}", content.len());
        }
        let pattern = scene.url("**/a.csv");
        let units: Vec<Unit> = source.list(&context, &pattern).try_collect().await.expect("it can be listed");
        assert_eq!(units.len(), 3);
    });
}

/// A filter between sshd and sftp-server: reads return at most 20,000 bytes, and answers within a few milliseconds are
/// sent in reverse order.
const UNHELPFUL: &str = r#"
import os, struct, subprocess, sys, threading
server = subprocess.Popen(["/usr/lib/openssh/sftp-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def whole(stream, count):
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            return None
        data += more
    return data

def packet(stream):
    header = whole(stream, 4)
    return header and whole(stream, struct.unpack(">I", header)[0])

def upward():
    while True:
        body = packet(sys.stdin.buffer)
        if body is None:
            server.stdin.close()
            return
        if body[0] == 5:
            body = body[:-4] + struct.pack(">I", min(20000, struct.unpack(">I", body[-4:])[0]))
        server.stdin.write(struct.pack(">I", len(body)) + body)
        server.stdin.flush()

threading.Thread(target=upward, daemon=True).start()
lock, held = threading.Lock(), []

def release():
    with lock:
        for answer in reversed(held):
            sys.stdout.buffer.write(struct.pack(">I", len(answer)) + answer)
        held.clear()
        sys.stdout.buffer.flush()

while True:
    body = packet(server.stdout)
    if body is None:
        os._exit(0)
    with lock:
        held.append(body)
        first = len(held) == 1
    if first:
        # Whatever comes in this time changes places.
        threading.Timer(0.003, release).start()
"#;

fn list(source: &Remote<Sftp>, pattern: &str) -> Result<Vec<Unit>> {
    with_context(16 << 20, |context| {
        let listed = source.list(&context, pattern);
        async move {
            let _context = context;
            listed.try_collect().await
        }
    })
}

fn read(spec: &SftpSpec, unit: Unit) -> Result<Vec<u8>> {
    let source = Remote::<Sftp>::new(spec.clone());
    with_context(16 << 20, |context| async move { read_all(source.open(&context, &unit).await).await })
}

/// `what` without the tries and the time.
fn what(error: &Error) -> &str {
    error.what().split(" (").next().unwrap_or_default()
}

fn cause(error: &Error) -> &str {
    error.cause_text().unwrap_or_default()
}

fn hint(error: &Error) -> &str {
    error.hint_text().unwrap_or_default()
}

/// Names of all kinds.
fn names(tree: &TempTree) {
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
    let odd = tree.path("").join(std::ffi::OsStr::from_bytes(b"\xff.csv"));
    fs_err::write(odd, "odd").expect("a file can be written");
    std::os::unix::fs::symlink(tree.path("x.txt"), tree.path("link.csv")).expect("a link can be made");
    std::os::unix::fs::symlink(tree.path("one"), tree.path("to_one")).expect("a link can be made");
}

#[test]
fn folders_are_listed_by_wildcards() {
    let scene = Scene::new(serde_json::json!({}));
    names(&scene.tree);
    for (pattern, expected) in [
        ("*.csv", vec!["-l.csv", "a.csv", "b%20c.csv", "link.csv", "st%2Ar.csv", "%C3%A4.csv", "%FF.csv"]),
        ("?.csv", vec!["a.csv", "%C3%A4.csv", "%FF.csv"]),
        ("**/a.csv", vec!["a.csv", "one/a.csv", "one/two/a.csv"]),
        ("one/**", vec!["one/a.csv", "one/two/a.csv"]),
        ("one/*/a.csv", vec!["one/two/a.csv"]),
        ("to_*/a.csv", vec!["to_one/a.csv"]),
        ("st%2Ar.*", vec!["st%2Ar.csv"]),
        ("none/*", vec![]),
        ("a.csv/*", vec![]),
        ("*/none/*", vec![]),
        ("*.none", vec![]),
    ] {
        let units = scene.list(pattern).expect("it can be listed");
        let found: Vec<_> = units.iter().map(|unit| unit.uri.clone()).collect();
        let expected: Vec<_> = expected.into_iter().map(|name| scene.url(name)).collect();
        assert_eq!(found, expected, "{pattern}");
        for unit in units {
            assert!(unit.modified.is_some() && unit.etag.is_some(), "{unit:?}");
            let read = read(&scene.spec, unit.clone()).expect("readable");
            assert_eq!(Some(read.len() as u64), unit.size, "{}", unit.uri);
        }
    }
}

#[test]
fn a_large_folder_is_listed_whole() {
    let scene = Scene::new(serde_json::json!({}));
    (0..1234).for_each(|number| drop(scene.tree.file(&format!("{number:04}"), "")));
    let units = scene.list("*").expect("it can be listed");
    let names: BTreeSet<_> = units.into_iter().map(|unit| unit.uri).collect();
    assert_eq!(names, (0..1234).map(|number| scene.url(&format!("{number:04}"))).collect());
}

#[test]
fn a_tilde_is_the_folder_of_the_login() {
    let tree = TempTree::new();
    names(&tree);
    let (server, spec, _secret) = password_server(&tree, serde_json::json!({}));
    let source = Remote::<Sftp>::new(spec.clone());
    for pattern in ["~/one/*.csv", "~/o*/a.csv"] {
        let units = list(&source, &server.url(pattern)).expect("it can be listed");
        assert_eq!(units.iter().map(|unit| unit.uri.clone()).collect::<Vec<_>>(), [server.url("~/one/a.csv")]);
        assert_eq!(read(&spec, units[0].clone()).expect("readable"), b"one/a.csv");
    }
    assert_eq!(list(&source, &server.url("~/?.csv")).expect("it can be listed").len(), 3);
    let root = server.url(tree.text("*/a.csv").trim_start_matches('/'));
    assert_eq!(list(&source, &root).expect("it can be listed").len(), 2);
    assert_eq!(Sftp::path(b"/~"), b".");
    assert_eq!(Sftp::path(b"/~/"), b".");
    assert_eq!(Sftp::path(b"/~etl/a"), b"/~etl/a");
}

#[test]
fn connections_are_kept() {
    let Scene { server, tree, spec, _secret } = Scene::new(serde_json::json!({"connections": 3}));
    (0..40).for_each(|number| drop(tree.file(&format!("{number:02}"), noise(number * 1000))));
    let source = Remote::<Sftp>::new(spec);
    let pattern = server.url(&tree.text("*"));
    let source = &source;
    with_context(16 << 20, |context| async move {
        let units: Vec<Unit> = source.list(&context, &pattern).try_collect().await.expect("it can be listed");
        assert_eq!(units.len(), 40);
        let context = &context;
        let reading = units.into_iter().enumerate().map(|(number, unit)| async move {
            let read = read_all(source.open(context, &unit).await).await.expect("readable");
            assert_eq!(read, noise(number * 1000));
        });
        futures::StreamExt::collect::<Vec<()>>(futures::StreamExt::buffer_unordered(futures::stream::iter(reading), 3))
            .await;
    });
    assert!(server.logins() <= 4, "{} logins for a listing and 40 files, 3 at once", server.logins());
}

#[test]
fn a_connection_that_is_given_up_is_closed() {
    let scene = Scene::new(serde_json::json!({"timeout": "500ms", "retries": 0}));
    scene.tree.file("a", noise(3_000_000));
    // In the handshake, and in the middle of a file.
    for bytes in [0, 100, 300_000] {
        let proxy = Proxy::start(scene.server.port(), &[Break::Stall(bytes)]);
        let error = read(&scene.spec, Unit::new(scene.url_by(&proxy, "a"))).expect_err("silent");
        assert_eq!(what(&error), "the server was silent for 0.5 s");
        let start = Instant::now();
        while proxy.open() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the connection stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_kept_connection_that_died_is_replaced() {
    let scene = Scene::new(serde_json::json!({"retries": 0}));
    scene.tree.file("a", "text");
    let proxy = Proxy::start(scene.server.port(), &[Break::Nothing]);
    let source = Remote::<Sftp>::new(scene.spec.clone());
    let unit = Unit::new(scene.url_by(&proxy, "a"));
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
    let scene = Scene::new(serde_json::json!({}));
    let body = noise(1_000_000);
    scene.tree.file("a", &body);
    let cut = Break::Cut(300_000);
    let proxy = Proxy::start(scene.server.port(), &[cut, cut, cut, Break::Nothing]);
    assert!(read(&scene.spec, Unit::new(scene.url_by(&proxy, "a"))).expect("it recovers") == body);
    assert_eq!(proxy.connections(), 4, "each brought its part");

    let proxy = Proxy::start(scene.server.port(), &[cut]);
    let source = Remote::<Sftp>::new(scene.spec.clone());
    let unit = Unit::new(scene.url_by(&proxy, "a"));
    let range = with_context(4 << 20, |context| async move { source.read_range(&context, &unit, 10..900_010).await });
    assert!(range.expect("it recovers").expect("ranges") == body[10..900_010]);
}

#[test]
fn a_server_that_never_recovers_is_given_up() {
    let scene = Scene::new(serde_json::json!({"retries": 2}));
    scene.tree.file("a", noise(100_000));
    // In the server's first words, in the exchange of keys, in the login, in the file.
    for bytes in [0, 10, 1000, 20_000] {
        let proxy = Proxy::start(scene.server.port(), &[Break::Cut(bytes)]);
        let url = scene.url_by(&proxy, "a");
        let error = read(&scene.spec, Unit::new(&url)).expect_err("it never ends");
        assert_eq!(
            (error.kind(), error.location().uri.as_ref()),
            (ErrorKind::Transient, Some(&url)),
            "{bytes}: {error:?}"
        );
        assert!(error.what().starts_with("the connection broke before the answer (3 tries, "), "{bytes}: {error}");
        assert!(hint(&error).contains("`sftp` block"), "{error:?}");
    }
}

#[test]
fn a_port_without_a_listener() {
    let spec = settings(serde_json::json!({"retries": 1, "user": "me", "host_key": FINGERPRINT}));
    let url = format!("sftp://127.0.0.1:{}/a", millstream_testkit::free_port());
    let error = read(&spec, Unit::new(&url)).expect_err("nobody");
    assert!(error.to_string().starts_with(&format!("{url}: the server cannot be reached (2 tries, ")), "{error}");
    assert!(cause(&error).contains("refused"), "{error}");
}

/// The fingerprint of no key.
const FINGERPRINT: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

#[test]
fn a_server_that_falls_silent_is_left() {
    let scene = Scene::new(serde_json::json!({"timeout": "3s", "retries": 1}));
    let body = noise(100_000);
    scene.tree.file("a", &body);
    let proxy = Proxy::start(scene.server.port(), &[Break::Stall(30_000), Break::Nothing]);
    let start = Instant::now();
    assert!(read(&scene.spec, Unit::new(scene.url_by(&proxy, "a"))).expect("it recovers") == body);
    assert!(start.elapsed() < Duration::from_secs(100));
    let hasty = SftpSpec { timeout: "1s".to_owned().try_into().expect("a time"), retries: 0, ..scene.spec.clone() };
    for bytes in [0, 100, 30_000] {
        let proxy = Proxy::start(scene.server.port(), &[Break::Stall(bytes)]);
        let error = read(&hasty, Unit::new(scene.url_by(&proxy, "a"))).expect_err("always silent");
        assert_eq!(what(&error), "the server was silent for 1 s");
        assert!(hint(&error).contains("`timeout`"));
    }
}

#[test]
fn a_slow_server_is_waited_for() {
    let scene = Scene::new(serde_json::json!({"timeout": "10s", "retries": 0}));
    let body = noise(50_000);
    scene.tree.file("a", &body);
    let proxy = Proxy::start(scene.server.port(), &[Break::Slow(2000, Duration::from_millis(30))]);
    assert!(read(&scene.spec, Unit::new(scene.url_by(&proxy, "a"))).expect("slow, but all") == body);
}

#[test]
fn a_consumer_that_waits_long_finds_the_rest() {
    let scene = Scene::new(serde_json::json!({"timeout": "6s", "retries": 0}));
    let body = noise(8_000_000);
    scene.tree.file("a", &body);
    let source = Remote::<Sftp>::new(scene.spec.clone());
    let unit = Unit::new(scene.url("a"));
    with_context(16 << 20, |context| async move {
        let mut stream = source.open(&context, &unit).await.expect("readable");
        let mut all = futures::StreamExt::next(&mut stream).await.expect("a chunk").expect("no error").to_vec();
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(context.budget.used() <= client::AHEAD, "{}", context.budget.used());
        all.extend_from_slice(&read_all(Ok(stream)).await.expect("the rest"));
        assert!(all == body);
    });
}

#[test]
fn a_login_that_is_refused_is_not_tried_again() {
    let tree = TempTree::new();
    tree.file("a", "text");
    let (server, good, folder) = password_server(&tree, serde_json::json!({}));
    assert_eq!(read(&good, Unit::new(server.url("~/a"))).expect("readable"), b"text");
    let wrong =
        SftpSpec { password: serde_json::from_value(secret(&folder, "wrong", "open barley")).ok(), ..good.clone() };
    let error = read(&wrong, Unit::new(server.url("~/a"))).expect_err("wrong");
    assert_eq!((what(&error), error.kind()), ("the server refuses the login", ErrorKind::Refused));
    assert!(error.what().contains("(1 try, "), "{error}");
    assert_eq!(cause(&error), "as etl with the password; the server takes password");
    assert!(hint(&error).contains("`password`"), "{error:?}");
    assert!(!format!("{error:?} {:?}", Sftp::new(&wrong).expect("settings")).contains("barley"));
    let error = list(&Remote::new(wrong.clone()), &server.url("~/*")).expect_err("wrong");
    assert_eq!(what(&error), "the server refuses the login");
    // The URL overrides the settings.
    let url = server.url("~/a").replacen("://", &format!("://{USER}:{PASSWORD}@"), 1);
    assert_eq!(read(&wrong, Unit::new(&url)).expect("readable"), b"text");
    let error = read(&wrong, Unit::new(url.replace("/a", "/b"))).expect_err("nothing there");
    assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");

    let scene = Scene::new(serde_json::json!({}));
    let other = KeyPair::new("ed25519", "");
    let (spec, _folder) = {
        let folder = TempTree::new();
        let key = serde_json::from_value(secret(&folder, "key", &other.private)).ok();
        (SftpSpec { key, ..scene.spec.clone() }, folder)
    };
    let error = read(&spec, Unit::new(scene.url("a"))).expect_err("not let in");
    assert_eq!(what(&error), "the server refuses the login");
    assert!(cause(&error).contains("with a key; the server takes publickey, password"), "{error:?}");
    let nothing = settings(serde_json::json!({"host_key": scene.server.host_key.fingerprint}));
    let error = login(&nothing, &scene, None).expect_err("nothing");
    assert_eq!(error.what, "there is nothing to log in with");
}

/// Logs in without the own keys of the user who runs the tests.
fn login(spec: &SftpSpec, scene: &Scene, agent: Option<std::path::PathBuf>) -> Result<(), crate::retry::Fault> {
    let mut sftp = Sftp::new(spec).expect("good settings");
    sftp.credentials.agent = agent;
    sftp.credentials.own.clear();
    let target = crate::remote::Target::parse(&scene.url("a"), Sftp::SCHEMES).expect("a URL");
    with_context(1 << 20, |context| async move {
        let work = async move { sftp.connect(&target.address).await.map(drop).map_err(|failure| failure.fault) };
        context.io.spawn(work).await.expect("it ends")
    })
}

#[test]
fn keys_of_all_kinds_log_in() {
    for (kind, passphrase) in [("ed25519", "open sesame"), ("rsa", ""), ("ecdsa", "")] {
        let server = Sshd::start_with(KeyPair::new("ecdsa", ""), KeyPair::new(kind, passphrase), "");
        let folder = TempTree::new();
        let passphrases = secret(&folder, "passphrase", passphrase);
        let passphrase = if passphrase.is_empty() { serde_json::Value::Null } else { passphrases };
        let scene = Scene::with(server, serde_json::json!({"passphrase": passphrase}));
        scene.tree.file("a", "text");
        assert_eq!(scene.read("a").expect(kind), b"text");
        if scene.spec.passphrase.is_none() {
            continue;
        }
        let without = SftpSpec { passphrase: None, ..scene.spec.clone() };
        let wrong = serde_json::from_value(secret(&folder, "wrong", "open barley")).ok();
        let wrong = SftpSpec { passphrase: wrong, ..scene.spec.clone() };
        for (spec, expected) in [(without, "the key is encrypted"), (wrong, "the passphrase is wrong")] {
            let error = read(&spec, Unit::new(scene.url("a"))).expect_err("no passphrase");
            assert_eq!(what(&error), "the key of the source's `sftp` block cannot be used");
            assert_eq!(cause(&error).to_lowercase(), expected);
            assert!(hint(&error).contains("`passphrase`") && !format!("{error:?}").contains("barley"), "{error:?}");
        }
    }
    let folder = TempTree::new();
    for content in ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"] {
        let key = secret(&folder, "key", content);
        let spec = settings(serde_json::json!({"user": "me", "key": key, "host_key": FINGERPRINT}));
        let error = Sftp::new(&spec).expect_err("no key");
        assert_eq!(what(&error), "the key of the source's `sftp` block cannot be used", "{content}");
        assert!(error.cause_text().is_some() && hint(&error).contains("private key"), "{error:?}");
    }
}

#[test]
fn the_agent_logs_in() {
    for kind in ["ed25519", "rsa"] {
        let server = Sshd::start_with(KeyPair::new("ed25519", ""), KeyPair::new(kind, ""), "");
        let scene = Scene::with(server, serde_json::json!({"key": null}));
        let agent = Agent::start(&scene.server.user_key);
        login(&scene.spec, &scene, Some(agent.socket())).expect("its key is let in");
        let stranger = Agent::start(&KeyPair::new(kind, ""));
        let fault = login(&scene.spec, &scene, Some(stranger.socket())).expect_err("another key");
        assert_eq!(fault.what, "the server refuses the login");
        assert!(fault.cause.is_some_and(|cause| cause.contains("with the agent's keys; the server takes publickey")));
        // The agent is only a default here, so its absence is no fault.
        let gone = login(&scene.spec, &scene, Some(scene.tree.path("none"))).expect_err("no agent");
        assert_eq!(gone.what, "there is nothing to log in with");
    }
}

#[test]
fn hosts_that_are_not_known_are_refused() {
    let scene = Scene::new(serde_json::json!({}));
    scene.tree.file("a", "text");
    let folder = TempTree::new();
    let other = KeyPair::new("ed25519", "");
    let port = scene.server.port();
    let known = |name: &str, text: &str| SftpSpec {
        host_key: None,
        known_hosts: Some(folder.file(name, text).display().to_string()),
        ..scene.spec.clone()
    };
    let read = |spec: &SftpSpec| read(spec, Unit::new(scene.url("a")));
    assert_eq!(read(&known("right", &scene.server.known_host())).expect("known"), b"text");
    assert_eq!(
        read(&known("stars", &format!("[127.*]:{port} {}", scene.server.host_key.public))).expect("known"),
        b"text"
    );

    let error =
        read(&known("unknown", &format!("example.com {}\n", scene.server.host_key.public))).expect_err("unknown");
    assert_eq!((what(&error), error.kind()), ("the host is not known", ErrorKind::Refused));
    assert!(error.what().contains("(1 try, "), "{error}");
    assert!(cause(&error).starts_with(&format!("[127.0.0.1]:{port} is not in /")), "{error:?}");
    assert_eq!(error.offending_text(), Some(format!("ssh-ed25519 {}", scene.server.host_key.fingerprint).as_str()));
    assert!(hint(&error).contains(&format!("host_key: {}", scene.server.host_key.fingerprint)), "{error:?}");

    let error = read(&known("changed", &format!("[127.0.0.1]:{port} {}\n", other.public))).expect_err("changed");
    assert_eq!((what(&error), error.kind()), ("the host's key differs from the known one", ErrorKind::Refused));
    assert!(cause(&error).ends_with(&format!("changed, line 1: ssh-ed25519 {}", other.fingerprint)), "{error:?}");
    assert!(hint(&error).contains("may be an attack"), "{error:?}");

    let revoked = format!("{}@revoked * {}\n", scene.server.known_host(), scene.server.host_key.public);
    let error = read(&known("revoked", &revoked)).expect_err("revoked");
    assert_eq!(what(&error), "the host's key is revoked");

    let error =
        read(&SftpSpec { host_key: Some(other.fingerprint.clone()), ..scene.spec.clone() }).expect_err("another");
    assert_eq!(
        (what(&error), error.kind()),
        ("the host's key is not the one that `host_key` names", ErrorKind::Refused)
    );
    assert!(cause(&error).contains(&other.fingerprint), "{error:?}");

    let missing = Some(folder.path("missing").display().to_string());
    let error = read(&SftpSpec { host_key: None, known_hosts: missing, ..scene.spec.clone() }).expect_err("no file");
    assert_eq!(what(&error), "the source's file of known hosts cannot be read");
    // None of these attempts reached the login.
    assert_eq!(scene.server.logins(), 2, "{}", scene.server.log());
}

#[test]
fn of_several_host_keys_the_known_one_is_asked_for() {
    let rsa = KeyPair::new("rsa", "");
    let folder = TempTree::new();
    let path = folder.file("rsa", &rsa.private);
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs_err::set_permissions(&path, only_owner).expect("rights can be set");
    let more = format!("HostKey {}", path.display());
    let server = Sshd::start_with(KeyPair::new("ed25519", ""), KeyPair::new("ed25519", ""), &more);
    let scene = Scene::with(server, serde_json::json!({}));
    scene.tree.file("a", "text");
    let line = format!("[127.0.0.1]:{} {}\n", scene.server.port(), rsa.public);
    let known = folder.file("known", line).display().to_string();
    let by_file = SftpSpec { host_key: None, known_hosts: Some(known), ..scene.spec.clone() };
    let by_fingerprint = SftpSpec { host_key: Some(rsa.fingerprint), ..scene.spec.clone() };
    for spec in [by_file, by_fingerprint, scene.spec.clone()] {
        assert_eq!(read(&spec, Unit::new(scene.url("a"))).expect("known"), b"text", "{spec:?}");
    }
}

#[test]
fn a_server_that_does_something_else_is_reported() {
    let hello = "ForceCommand echo hello, this is no place for files";
    let server = Sshd::start_with(KeyPair::new("ed25519", ""), KeyPair::new("ed25519", ""), hello);
    let error = Scene::with(server, serde_json::json!({})).read("a").expect_err("no SFTP");
    assert_eq!((what(&error), error.kind()), ("the server does not speak SFTP for this user", ErrorKind::Refused));
    assert_eq!(error.offending_text(), Some("hello, this is no place for files"));
    let missing = "ForceCommand /no/such/sftp-server";
    let server = Sshd::start_with(KeyPair::new("ed25519", ""), KeyPair::new("ed25519", ""), missing);
    let error = Scene::with(server, serde_json::json!({})).read("a").expect_err("no SFTP");
    assert_eq!(what(&error), "the server does not speak SFTP for this user");
    assert_eq!(cause(&error), "what it starts for it ends with status 127");
}

#[test]
fn what_is_not_there_or_no_file_is_reported() {
    let scene = Scene::new(serde_json::json!({}));
    names(&scene.tree);
    let error = scene.read("none").expect_err("nothing there");
    assert_eq!((what(&error), error.kind()), ("the server answers: no such file", ErrorKind::Refused));
    assert!(hint(&error).contains("path"), "{error:?}");
    let error = scene.read("one").expect_err("a folder");
    assert_eq!(what(&error), "this is a folder, not a file");
    assert!(hint(&error).ends_with("/one/**"), "{error:?}");
    let made = std::process::Command::new("mkfifo").arg(scene.tree.path("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    let start = Instant::now();
    assert_eq!(what(&scene.read("pipe").expect_err("a pipe")), "this is not a file");
    assert!(start.elapsed() < Duration::from_secs(100), "nobody writes to it, and it is not waited for");
}

/// Rights do not apply to root, but to the server's user.
#[test]
fn what_may_not_be_read_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(serde_json::json!({}));
    names(&scene.tree);
    let rights = |name: &str, mode| {
        fs_err::set_permissions(scene.tree.path(name), std::fs::Permissions::from_mode(mode))
            .expect("rights can be set");
    };
    for mode in [0o000, 0o311] {
        rights("one", mode);
        for pattern in ["one/*.csv", "**/a.csv"] {
            let error = scene.list(pattern).expect_err("no rights");
            assert_eq!(error.kind(), ErrorKind::Refused, "{pattern} {mode:o}: {error:?}");
            assert_eq!(error.location().uri, Some(scene.url("one")), "{error:?}");
            assert!(hint(&error).contains("permissions"), "{error:?}");
        }
    }
    rights("one", 0o755);
    rights("a.csv", 0o000);
    let error = scene.read("a.csv").expect_err("no rights");
    assert_eq!((what(&error), error.kind()), ("the server answers: permission denied", ErrorKind::Refused));
    assert!(hint(&error).contains("permissions"), "{error:?}");
    std::os::unix::fs::symlink("/no/such/file", scene.tree.path("dangling.csv")).expect("a link can be made");
    let error = scene.list("d*.csv").expect_err("nothing there");
    assert_eq!((error.what(), error.location().uri.clone()), ("this link is broken", Some(scene.url("dangling.csv"))));
}

#[test]
fn a_file_that_changes_between_two_pieces_is_an_error() {
    let scene = Scene::new(serde_json::json!({}));
    // Longer, shorter, and as long but later.
    for (length, before) in [(8_000_001, true), (8_000_001, false), (7_000_000, false), (8_000_000, false)] {
        scene.tree.file("a", noise(8_000_000));
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        let file = fs_err::OpenOptions::new().write(true).open(scene.tree.path("a")).expect("it is there");
        file.file().set_modified(hour_ago).expect("its time can be set");
        // With a broken connection, or without any.
        let kind = if before { Break::Cut(3_000_000) } else { Break::Nothing };
        let proxy = Proxy::start(scene.server.port(), &[kind, Break::Nothing]);
        let source = Remote::<Sftp>::new(scene.spec.clone());
        let unit = Unit::new(scene.url_by(&proxy, "a"));
        let error = with_context(64 << 20, |context| {
            let tree = &scene.tree;
            async move {
                let mut stream = source.open(&context, &unit).await.expect("readable");
                futures::StreamExt::next(&mut stream).await.expect("a chunk").expect("no error");
                tree.file("a", noise(length));
                let rest: Result<Vec<_>> = stream.try_collect().await;
                rest.expect_err("another file")
            }
        });
        assert_eq!((what(&error), error.kind()), ("the object has changed while it was read", ErrorKind::Refused));
    }
}

#[test]
fn a_file_that_changes_or_goes_after_it_was_listed_is_an_error() {
    let scene = Scene::new(serde_json::json!({}));
    scene.tree.file("a", "first");
    scene.tree.file("b", "first");
    let units = scene.list("*").expect("it can be listed");
    // Another size; and the same size at another time.
    for content in ["second", "again"] {
        scene.tree.file("a", content);
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        let file = fs_err::OpenOptions::new().write(true).open(scene.tree.path("a")).expect("it is there");
        file.file().set_modified(hour_ago).expect("its time can be set");
        let error = read(&scene.spec, units[0].clone()).expect_err("another file");
        assert_eq!((what(&error), error.kind()), ("the object has changed since it was listed", ErrorKind::Refused));
    }
    fs_err::remove_file(scene.tree.path("b")).expect("it is there");
    let error = read(&scene.spec, units[1].clone()).expect_err("it has gone");
    assert_eq!(
        (what(&error), error.location().uri.clone()),
        ("the server answers: no such file", Some(scene.url("b")))
    );
}

#[test]
fn settings_are_checked() {
    let check =
        |settings: serde_json::Value| millstream_core::spec::parse::<SftpSpec>(&settings).err().unwrap_or_default();
    assert_eq!(check(serde_json::json!({})), []);
    assert_eq!(check(serde_json::json!({"host_key": FINGERPRINT, "user": "a"})), []);
    for (settings, path) in [
        (serde_json::json!({"connections": 0}), "connections"),
        (serde_json::json!({"connections": 65}), "connections"),
        (serde_json::json!({"timeout": "0s"}), "timeout"),
        (serde_json::json!({"connect_timeout": "0s"}), "connect_timeout"),
        (serde_json::json!({"passphrase": {"secret": "env:A"}}), "passphrase"),
        (serde_json::json!({"user": "a\nb"}), "user"),
        (serde_json::json!({"host_key": "16:27:ac"}), "host_key"),
        (serde_json::json!({"host_key": FINGERPRINT, "known_hosts": "a"}), "known_hosts"),
    ] {
        let faults = check(settings.clone());
        assert_eq!((faults.len(), faults[0].path.join(".").as_str()), (1, path), "{settings}");
    }
    assert_eq!(SftpSpec::NAME, "sftp");
}

#[test]
fn patterns_are_checked() {
    for good in ["sftp://host/a", "sftp://me@host:2222/**/*.gz", "sftp://host/~/{a,b}/[a-z]?"] {
        assert_eq!((ENTRY.check)(good), Ok(()), "{good}");
    }
    for bad in ["sftp:///a", "sftp://host/[a", "sftp://host/{a", "sftp://host:x/a", "ftp://host/a"] {
        assert!((ENTRY.check)(bad).is_err(), "{bad}");
    }
}

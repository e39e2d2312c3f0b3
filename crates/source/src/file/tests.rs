//! Files on a real disk, and their faults.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use futures::TryStreamExt;
use millstream_core::ErrorKind;
use millstream_testkit::{TempTree, without_rights};

use super::*;
use crate::conformance::{TestSource, conformance, noise, read_all, with_context};
use crate::pattern::escape;

fn test_source() -> TestSource {
    let tree = TempTree::new();
    let base = format!("{}/", tree.root().display());
    TestSource { source: Arc::new(FileSource), tree, base, bring: None, _server: None }
}

conformance!(super::test_source());

fn list(pattern: &str) -> Result<Vec<String>> {
    let units: Result<Vec<Unit>> =
        with_context(1 << 20, |context| async move { FileSource.list(&context, pattern).try_collect().await });
    Ok(units?.into_iter().map(|unit| unit.uri).collect())
}

#[test]
fn a_file_larger_than_the_budget_is_read_past_the_cache_and_whole() {
    let tree = TempTree::new();
    let expected = noise(3_000_001);
    let path = tree.file("large", &expected);
    let file = fs_err::File::open(&path).expect("the file");
    file.sync_all().expect("on the disk");
    let whole = list(&escape(&path.display().to_string())).expect("listed");
    let whole = Unit { size: Some(3_000_001), ..Unit::new(whole[0].clone()) };
    let evict = || rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    evict();
    assert!(read(&whole).expect("read") == expected);
    // Bytes that were read past the cache are not in it.
    for range in [0..3_000_001, 1..2, 4096..8192, 524_287..1_500_003, 2_999_999..3_000_001] {
        let part = Unit { range: Some(range.clone()), ..whole.clone() };
        assert!(read(&part).expect("read") == expected[range.start as usize..range.end as usize], "{range:?}");
    }
    // Some of it is in the cache.
    fs_err::read(&path).expect("read");
    assert!(read(&whole).expect("read") == expected);
}

fn read(unit: &Unit) -> Result<Vec<u8>> {
    with_context(1 << 20, |context| async move { read_all(FileSource.open(&context, unit).await).await })
}

/// The files that `pattern` matches inside of `tree`, without the tree's own path.
fn found(tree: &TempTree, pattern: &str) -> Vec<String> {
    let root = format!("{}/", tree.root().display());
    let uris = list(&format!("{}{pattern}", escape(&root))).expect("it can be listed");
    uris.into_iter().map(|uri| uri.strip_prefix(&root).expect("inside").to_owned()).collect()
}

fn sample_tree() -> TempTree {
    let tree = TempTree::new();
    for name in [
        "a.gz",
        "b.gz",
        "b.txt",
        ".hidden.gz",
        "ä.gz",
        "x/a.gz",
        "x/y/a.gz",
        "x/y/b.txt",
        "x/.h/a.gz",
        "x-1/a.gz",
        "z[1]/{a}.gz",
    ] {
        tree.file(name, name);
    }
    std::os::unix::fs::symlink(tree.path("x"), tree.path("x/y/up")).expect("a link");
    std::os::unix::fs::symlink(tree.path("x"), tree.path("to-x")).expect("a link");
    std::os::unix::fs::symlink(tree.path("b.txt"), tree.path("link.gz")).expect("a link");
    tree
}

#[test]
fn patterns_find_files_in_order() {
    let tree = sample_tree();
    for (pattern, files) in [
        ("*.gz", vec!["a.gz", "b.gz", "link.gz", "ä.gz"]),
        (".*.gz", vec![".hidden.gz"]),
        ("?.gz", vec!["a.gz", "b.gz", "ä.gz"]),
        ("[!b]*.gz", vec!["a.gz", "link.gz", "ä.gz"]),
        ("**/*.gz", vec!["a.gz", "b.gz", "link.gz", "x/a.gz", "x/y/a.gz", "x-1/a.gz", "z[1]/{a}.gz", "ä.gz"]),
        ("**/a.gz", vec!["a.gz", "x/a.gz", "x/y/a.gz", "x-1/a.gz"]),
        ("x/**", vec!["x/a.gz", "x/y/a.gz", "x/y/b.txt"]),
        ("**/y/**/*.txt", vec!["x/y/b.txt"]),
        ("**/**/b.txt", vec!["b.txt", "x/y/b.txt"]),
        ("*/*.gz", vec!["to-x/a.gz", "x/a.gz", "x-1/a.gz", "z[1]/{a}.gz"]),
        ("to-x/**/*.gz", vec!["to-x/a.gz", "to-x/y/a.gz"]),
        ("x/.h/*", vec!["x/.h/a.gz"]),
        (r"z\[1\]/\{a\}.gz", vec!["z[1]/{a}.gz"]),
        (r"z\[1\]/*", vec!["z[1]/{a}.gz"]),
        ("x/../*.txt", vec!["x/../b.txt"]),
        ("x//y/*.txt", vec!["x/y/b.txt"]),
        ("*.zip", vec![]),
        ("none/*.gz", vec![]),
        ("a.gz/*.gz", vec![]),
        ("a.gz", vec!["a.gz"]),
    ] {
        assert_eq!(found(&tree, pattern), files, "{pattern}");
    }
}

#[test]
fn a_large_folder_is_listed_whole() {
    let tree = TempTree::new();
    (0..1000).for_each(|number| drop(tree.file(&format!("{number:04}"), "")));
    let files = found(&tree, "*");
    assert_eq!(files.len(), 1000);
    assert!(files.is_sorted());
}

#[test]
fn what_is_known_of_a_file_is_filled_in() {
    let tree = TempTree::new();
    let path = tree.file("a", "12345");
    let unit = walk::named(&path).expect("a file");
    assert_eq!(unit.size, Some(5));
    assert!(unit.modified.is_some_and(|time| time > 1_700_000_000_000));
    let first = unit.etag.expect("an etag");
    tree.file("a", "123456");
    assert_ne!(walk::named(&path).expect("a file").etag, Some(first));
}

#[test]
fn a_missing_file_says_what_it_may_have_been() {
    let tree = TempTree::new();
    tree.file("countries/data.csv", "");
    for (name, what, hint) in [
        (
            "countries/dta.csv",
            "there is no such file".to_owned(),
            format!("did you mean {}?", tree.text("countries/data.csv")),
        ),
        (
            "countrys/data.csv",
            format!("there is no folder {}", tree.text("countrys")),
            format!("did you mean {}?", tree.text("countries")),
        ),
    ] {
        for error in [list(&tree.text(name)).map(drop), read(&Unit::new(tree.text(name))).map(drop)] {
            let error = error.expect_err("missing");
            assert_eq!((error.what(), error.hint_text()), (what.as_str(), Some(hint.as_str())));
            assert_eq!(error.location().uri, Some(tree.text(name)));
        }
    }
    tree.file("packed/c7.csv.gz", "");
    for (name, near) in [("nope.csv.gz", false), ("c77.csv.gz", true), ("c7.csv", true)] {
        let error = list(&tree.text(&format!("packed/{name}"))).expect_err("missing");
        let hint = error.hint_text().unwrap_or_default().to_owned();
        assert_eq!(hint.starts_with("did you mean"), near, "{name}: {hint}");
    }
    tree.file("days/2026-01-02.csv", "");
    for (name, near) in [("2026-01-03.csv", false), ("2026-01-02.cvs", true), ("2026-01_02.csv", true)] {
        let error = list(&tree.text(&format!("days/{name}"))).expect_err("missing");
        let hint = error.hint_text().unwrap_or_default().to_owned();
        assert_eq!(hint.starts_with("did you mean"), near, "{name}: {hint}");
        assert!(near || hint.ends_with("there are: 2026-01-02.csv"), "{hint}");
    }
    let error = list("$HOME/no such file").expect_err("missing");
    assert_eq!(error.hint_text(), Some("only a shell expands `$HOME`; write ${HOME}"));
    let error = list("~/no such file").expect_err("missing");
    assert_eq!(error.hint_text(), Some("only a shell expands `~`; write ${HOME}"));
}

#[test]
fn a_folder_is_no_file() {
    let tree = sample_tree();
    for uri in [tree.text("x"), tree.text("x/")] {
        for error in [list(&uri).map(drop), read(&Unit::new(&uri)).map(drop)] {
            let error = error.expect_err("a folder");
            assert_eq!(error.what(), "this is a folder, not a file");
            assert_eq!(
                error.hint_text(),
                Some(format!("to read all files below it, add /**: {}/**", tree.text("x")).as_str())
            );
        }
    }
}

#[test]
fn a_link_that_leads_nowhere_is_reported() {
    let tree = TempTree::new();
    std::os::unix::fs::symlink(tree.path("gone"), tree.path("a.gz")).expect("a link");
    for pattern in ["a.gz", "*.gz"] {
        let error = list(&tree.text(pattern)).expect_err("nowhere");
        assert_eq!(
            (error.what(), error.location().uri.as_deref()),
            ("this link is broken", Some(tree.text("a.gz").as_str()))
        );
    }
}

#[test]
fn missing_rights_are_reported_and_never_skipped() {
    use std::os::unix::fs::PermissionsExt;
    let tree = sample_tree();
    let close = |name: &str| {
        std::fs::set_permissions(tree.path(name), std::fs::Permissions::from_mode(0o000)).expect("rights can be taken");
    };
    close("x/y");
    close("a.gz");
    let (folder, file) = without_rights(|| {
        (
            list(&tree.text("**/*.gz")).expect_err("no rights"),
            read(&Unit::new(tree.text("a.gz"))).expect_err("no rights"),
        )
    });
    std::fs::set_permissions(tree.path("x/y"), std::fs::Permissions::from_mode(0o755)).expect("rights can be given");
    assert_eq!(folder.to_string(), format!("{}: the folder cannot be listed: permission denied", tree.text("x/y")));
    assert_eq!(file.to_string(), format!("{}: the file cannot be opened: permission denied", tree.text("a.gz")));
    for error in [folder, file] {
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.hint_text().is_some_and(|hint| hint.contains("permissions")));
    }
}

#[test]
fn names_that_look_like_something_else_are_opened_again() {
    let tree = TempTree::new();
    tree.file("a:b", "colon");
    tree.file("100%.txt", "percent");
    let odd = tree.root().join(std::ffi::OsStr::from_bytes(b"\xff#.bin"));
    fs_err::write(&odd, "odd").expect("a file");
    let mut contents: Vec<_> =
        list(&tree.text("*")).expect("it can be listed").iter().map(|uri| read(&Unit::new(uri))).collect();
    let last = contents.pop().expect("three files").expect("readable");
    assert_eq!(last, b"odd");
    assert_eq!(contents.len(), 2);
    assert_eq!(uri_of(Path::new("-")), "./-");
    assert_eq!(uri_of(Path::new("http:/x")), "./http:/x");
    assert_eq!(uri_of(&odd), format!("file://{}/%FF%23.bin", tree.root().display()));
    let encoded = format!("file://{}/100%25.t*", tree.root().display());
    assert_eq!(list(&encoded).expect("it can be listed"), [tree.text("100%.txt")]);
    assert_eq!(list(&format!("file:{}", tree.text("100%.txt"))).expect("it can be listed"), [tree.text("100%.txt")]);
    assert_eq!(pattern_path("file:///a%2A/*").expect("UTF-8"), r"/a\*/*");
    assert!(pattern_path("file:///a%FF").is_err());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    for change in ["shorter", "longer", "same size"] {
        let tree = TempTree::new();
        let path = tree.file("large", noise(8 << 20));
        let error = with_context(16 << 20, |context| async move {
            let mut stream = FileSource.open(&context, &Unit::new(path.display().to_string())).await.expect("readable");
            stream.next().await.expect("a chunk").expect("no error");
            let mut file = fs_err::OpenOptions::new().write(true).open(&path).expect("a file");
            match change {
                "shorter" => file.set_len(1 << 20).expect("it can be cut"),
                "longer" => file.set_len(9 << 20).expect("it can grow"),
                _ => file.write_all(b"x").expect("it can be written"),
            }
            let mut rest: Vec<_> = stream.collect().await;
            let last = rest.pop().expect("an item").expect_err("changed");
            assert!(rest.iter().all(Result::is_ok), "{change}: nothing comes behind an error");
            last
        });
        assert_eq!(error.what(), "the file changed while it was read", "{change}");
    }
}

#[test]
fn a_named_pipe_is_read_to_its_end() {
    let tree = TempTree::new();
    let path = tree.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a pipe");
    let unit = walk::named(&path).expect("a pipe");
    assert_eq!((unit.size, &unit.etag), (None, &None));
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        fs_err::OpenOptions::new().write(true).open(path).and_then(|mut pipe| pipe.write_all(&noise(300_000)))
    });
    with_context(1 << 20, |context| async move {
        assert_eq!(FileSource.look(&context, &unit).await.expect("no error").size, None);
        let read = read_all(FileSource.open(&context, &unit).await).await.expect("readable");
        assert!(read == noise(300_000));
    });
    writer.join().expect("no panic").expect("written");
    assert_eq!(found(&tree, "*"), [""; 0], "a wildcard does not find it");
}

#[test]
fn nobody_has_to_wait_for_a_silent_pipe() {
    let tree = TempTree::new();
    let path = tree.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a pipe");
    let start = std::time::Instant::now();
    with_context(1 << 20, |context| async move {
        let mut stream = FileSource.open(&context, &Unit::new(path.display().to_string())).await.expect("it opens");
        let silent = tokio::time::timeout(Duration::from_millis(100), stream.next()).await;
        assert!(silent.is_err(), "nothing was written");
    });
    assert!(start.elapsed() < Duration::from_secs(15), "the runtime ends although the pipe is silent");
}

#[test]
fn descriptors_and_files_of_the_kernel_are_read() {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let uri = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    std::thread::spawn(move || fs_err::File::from_parts(writer.into(), "pipe").write_all(&noise(100_000)));
    assert!(read(&Unit::new(uri)).expect("readable") == noise(100_000));
    let status = read(&Unit::new("/proc/self/status")).expect("readable");
    assert!(status.starts_with(b"Name:"), "it says that it is empty, and is not");
}

#[test]
fn what_is_in_the_page_cache_is_read_at_once() {
    let tree = TempTree::new();
    tree.file("a", noise(100_000));
    let path = tree.path("a").display().to_string();
    let unit = with_context(1 << 20, {
        let path = path.clone();
        |context| async move { FileSource.list(&context, &path).try_collect::<Vec<_>>().await }
    });
    let unit = unit.expect("one file").remove(0);
    assert_eq!(FileSource.read_now(&unit, 99_999), None, "it is larger");
    assert_eq!(FileSource.read_now(&unit, 100_000).expect("it was just written"), noise(100_000));

    let listed = |path: String| Unit { uri: path, ..unit.clone() };
    assert_eq!(FileSource.read_now(&listed(format!("{path}-none")), 100_000), None, "it is not there");
    assert_eq!(FileSource.read_now(&listed(tree.root().display().to_string()), 100_000), None, "a folder");
    assert_eq!(FileSource.read_now(&Unit::new(path), 100_000), None, "nothing is known of it");
    for length in [50_000, 150_000] {
        tree.file("a", noise(length));
        assert_eq!(FileSource.read_now(&unit, 100_000), None, "another file");
        let error = with_context(1 << 20, {
            let unit = unit.clone();
            |context| async move { FileSource.open(&context, &unit).await.map(|_| ()) }
        });
        assert_eq!(error.expect_err("another file").what(), "the file has changed since it was listed");
    }
}

//! Standard input, with a pipe or a file in its place.

use futures::TryStreamExt;
use millstream_testkit::TempTree;

use super::*;
use crate::conformance::{read_all, with_context};

fn context<F: Future>(test: impl FnOnce(SourceContext) -> F) -> F::Output {
    with_context(1 << 20, test)
}

#[test]
fn it_is_one_unit_that_is_read_once() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let descriptor = || {
        let (reader, writer) = rustix::pipe::pipe()?;
        std::thread::spawn(move || rustix::io::write(&writer, b"a\nb\n"));
        Ok(reader)
    };
    let source = StdinSource { taken: &TAKEN, descriptor };
    context(|context| async move {
        let units: Vec<Unit> = source.list(&context, "-").try_collect().await.expect("one unit");
        assert_eq!(units, [Unit::new("-")]);
        assert_eq!(source.look(&context, &units[0]).await.expect("no error").size, None);
        assert_eq!(source.read_range(&context, &units[0], 0..1).await.expect("no error"), None);
        let read = read_all(source.open(&context, &units[0]).await).await.expect("readable");
        assert_eq!(read, b"a\nb\n");
        let again = source.open(&context, &units[0]).await.map(drop).expect_err("a second time");
        assert_eq!(again.to_string(), "standard input: standard input can be read only once");
    });
}

#[test]
fn a_file_may_stand_behind_it() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let descriptor = || {
        let tree = TempTree::new();
        let path = tree.file("input", vec![b'x'; 200_000]);
        fs_err::File::open(path).map(|file| file.into_parts().0.into())
    };
    let source = StdinSource { taken: &TAKEN, descriptor };
    context(|context| async move {
        let read = read_all(source.open(&context, &Unit::new("-")).await).await.expect("readable");
        assert_eq!(read.len(), 200_000);
    });
}

#[test]
fn one_that_is_closed_is_an_error() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let source = StdinSource { taken: &TAKEN, descriptor: || Err(io::Error::from_raw_os_error(9)) };
    context(|context| async move {
        let error = source.open(&context, &Unit::new("-")).await.map(drop).expect_err("closed");
        assert_eq!(error.what(), "standard input cannot be read");
    });
}

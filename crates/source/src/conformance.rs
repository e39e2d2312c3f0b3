//! Tests that every source passes, each against real data: a folder, a real web server.
//!
//! As in a run, the caller polls on one runtime while I/O runs on another.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use millstream_core::source::{Source, SourceContext};
use millstream_core::{Budget, ByteStream, ErrorKind, Result, Unit};
use millstream_testkit::TempTree;

/// A source, and the folder that its objects are in.
pub(crate) struct TestSource {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) tree: TempTree,
    /// The URL before an object's name.
    pub(crate) base: String,
    /// Uploads an object, if the source does not read the folder itself.
    pub(crate) bring: Option<Bring>,
    /// Keeps servers alive.
    pub(crate) _server: Option<Box<dyn std::any::Any>>,
}

/// Puts an object, by its name, with these bytes.
pub(crate) type Bring = Box<dyn Fn(&str, &[u8])>;

impl TestSource {
    /// Puts an object there.
    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        self.tree.file(name, &content);
        if let Some(bring) = &self.bring {
            bring(name, content.as_ref());
        }
    }

    pub(crate) fn unit(&self, name: &str) -> Unit {
        Unit::new(format!("{}{name}", self.base))
    }

    async fn list_one(&self, context: &SourceContext, name: &str) -> Unit {
        let units: Result<Vec<Unit>> = self.source.list(context, &format!("{}{name}", self.base)).try_collect().await;
        let mut units = units.expect("it can be listed");
        assert_eq!(units.len(), 1, "one name is one unit");
        units.remove(0)
    }
}

/// Runs `test` with a runtime for input and output beside its own.
pub(crate) fn with_context<F: Future>(budget: usize, test: impl FnOnce(SourceContext) -> F) -> F::Output {
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let context = SourceContext {
        io: io.handle().clone(),
        budget: Budget::new(budget),
        cache: Arc::default(),
        programs: Arc::default(),
        pace: Arc::default(),
    };
    let result = own.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(200), test(context)).await });
    io.shutdown_timeout(std::time::Duration::from_secs(20));
    result.expect("it ends in time")
}

/// All bytes of a stream; every chunk must hold some.
pub(crate) async fn read_all(stream: Result<ByteStream>) -> Result<Vec<u8>> {
    let mut stream = stream?;
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        assert!(!chunk.is_empty(), "a chunk has bytes");
        all.extend_from_slice(&chunk);
    }
    assert!(stream.next().await.is_none(), "the end stays the end");
    Ok(all)
}

/// Pseudo-random bytes, the same for the same length.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(length as u64);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

const LARGE: usize = 20 << 20;
const BUDGET: usize = 64 << 20;

pub(crate) fn an_object_is_listed_and_read(subject: TestSource) {
    subject.put("a.txt", "hello");
    with_context(BUDGET, |context| async move {
        let unit = subject.list_one(&context, "a.txt").await;
        assert_eq!(unit.uri, subject.unit("a.txt").uri);
        assert_eq!(read_all(subject.source.open(&context, &unit).await).await.expect("readable"), b"hello");
        let known = subject.source.look(&context, &subject.unit("a.txt")).await.expect("it is there");
        assert_eq!(known.size, Some(5));
        assert!(unit.etag.is_none() || known.etag == unit.etag, "{known:?} {unit:?}");
        assert_eq!(context.budget.used(), 0);
    });
}

pub(crate) fn an_empty_object_has_no_bytes(subject: TestSource) {
    subject.put("empty", "");
    with_context(BUDGET, |context| async move {
        let unit = subject.list_one(&context, "empty").await;
        assert_eq!(read_all(subject.source.open(&context, &unit).await).await.expect("readable"), b"");
        assert_eq!(subject.source.look(&context, &unit).await.expect("it is there").size, Some(0));
        assert_eq!(subject.source.read_range(&context, &unit, 0..0).await.expect("a range").unwrap_or_default(), "");
    });
}

pub(crate) fn a_missing_object_is_an_error_that_names_it(subject: TestSource) {
    with_context(BUDGET, |context| async move {
        let unit = subject.unit("none.txt");
        let errors = [
            read_all(subject.source.open(&context, &unit).await).await.expect_err("missing"),
            subject.source.read_range(&context, &unit, 0..1).await.expect_err("missing"),
            subject.source.look(&context, &unit).await.expect_err("missing"),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert_eq!(error.location().uri, Some(unit.uri.clone()), "{error}");
            assert!(error.hint_text().is_some(), "{error}");
        }
    });
}

pub(crate) fn a_large_object_is_the_same_every_time(subject: TestSource) {
    let content = noise(LARGE);
    subject.put("large", &content);
    with_context(BUDGET, |context| async move {
        for _ in 0..3 {
            let unit = subject.list_one(&context, "large").await;
            let read = read_all(subject.source.open(&context, &unit).await).await.expect("readable");
            assert!(read == content, "{} bytes of {LARGE}, or others", read.len());
        }
        assert_eq!(context.budget.used(), 0);
        assert!(context.budget.peak() < 4 << 20, "only a window waits: {}", context.budget.peak());
    });
}

pub(crate) fn any_range_can_be_read(subject: TestSource) {
    let content = noise(LARGE);
    subject.put("large", &content);
    with_context(BUDGET, |context| async move {
        let unit = subject.list_one(&context, "large").await;
        for range in [0..1, 0..0, 7..7, 5..1000, 1_000_000..3_000_001, LARGE - 8..LARGE, 0..LARGE] {
            let wanted = range.start as u64..range.end as u64;
            let read = subject.source.read_range(&context, &unit, wanted.clone()).await.expect("a range");
            let expected = Bytes::copy_from_slice(&content[range.clone()]);
            assert!(read.expect("this subject has ranges") == expected, "{range:?}");
            let part = Unit { range: Some(wanted), ..unit.clone() };
            let read = read_all(subject.source.open(&context, &part).await).await.expect("readable");
            assert!(read == expected, "{range:?}");
        }
        let beyond = LARGE as u64 - 1..LARGE as u64 + 1;
        let error = subject.source.read_range(&context, &unit, beyond.clone()).await.expect_err("not so long");
        assert!(error.what().contains(&LARGE.to_string()), "{error}");
        let part = Unit { range: Some(beyond), ..unit.clone() };
        assert!(read_all(subject.source.open(&context, &part).await).await.is_err());
    });
}

pub(crate) fn a_dropped_stream_leaves_nothing_behind(subject: TestSource) {
    subject.put("large", noise(LARGE));
    with_context(BUDGET, |context| async move {
        for _ in 0..20 {
            let mut stream = subject.source.open(&context, &subject.unit("large")).await.expect("readable");
            stream.next().await.expect("a chunk").expect("no error");
        }
        for _ in 0..6_000 {
            if context.budget.used() == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{} bytes are still charged", context.budget.used());
    });
}

pub(crate) fn many_are_read_at_once_with_little_memory(subject: TestSource) {
    let contents: Vec<_> = (0..64).map(|number| noise(number * 20_011)).collect();
    for (number, content) in contents.iter().enumerate() {
        subject.put(&format!("many/{number:02}"), content);
    }
    // Far less than all of them need: the readers wait for each other and still end.
    with_context(1 << 20, |context| async move {
        let reading = (0..64).map(|number| {
            let (subject, context) = (&subject, &context);
            async move {
                let unit = subject.unit(&format!("many/{number:02}"));
                (number, read_all(subject.source.open(context, &unit).await).await.expect("readable"))
            }
        });
        let read: Vec<_> = futures::stream::iter(reading).buffer_unordered(16).collect().await;
        assert_eq!(read.len(), 64);
        for (number, bytes) in read {
            assert!(bytes == contents[number], "{number}");
        }
        assert_eq!(context.budget.used(), 0);
    });
}

pub(crate) fn streams_can_be_read_in_any_order(subject: TestSource) {
    for number in 0..12 {
        subject.put(&format!("order/{number:02}"), noise(3_000_000 + number));
    }
    with_context(1 << 20, |context| async move {
        let mut streams = Vec::new();
        for number in 0..12 {
            streams.push(subject.source.open(&context, &subject.unit(&format!("order/{number:02}"))).await);
        }
        for (number, stream) in streams.into_iter().enumerate().rev() {
            assert_eq!(read_all(stream).await.expect("readable").len(), 3_000_000 + number);
        }
    });
}

pub(crate) fn a_changed_object_is_not_taken_for_the_listed_one(subject: TestSource) {
    subject.put("a", "old");
    with_context(BUDGET, |context| async move {
        let unit = Unit { etag: Some("\"another\"".into()), ..subject.unit("a") };
        let error = read_all(subject.source.open(&context, &unit).await).await.expect_err("another version");
        assert!(error.what().contains("has changed since it was listed"), "{error}");
        assert!(subject.source.read_range(&context, &unit, 0..1).await.is_err());
    });
}

pub(crate) fn what_opening_tells_is_enough_for_ranges(subject: TestSource) {
    let content = noise(3_000_000);
    subject.put("known", &content);
    let part = with_context(BUDGET, |context| async {
        let context = context;
        let opened = subject.source.open_known(&context, &subject.unit("known")).await.expect("readable");
        assert!(opened.ranges, "{opened:?}");
        assert_eq!(opened.unit.size, Some(content.len() as u64));
        assert!(read_all(Ok(opened.content.into_stream())).await.expect("readable") == content);
        let part = Unit { range: Some(1_000_000..2_500_000), ..opened.unit };
        let read = read_all(subject.source.open(&context, &part).await).await.expect("readable");
        assert!(read == content[1_000_000..2_500_000]);
        part
    });
    subject.put("known", noise(3_000_001));
    with_context(BUDGET, |context| async move {
        let error = read_all(subject.source.open(&context, &part).await).await.expect_err("another version");
        assert!(error.what().contains("has changed since it was listed"), "{error}");
        assert!(subject.source.read_range(&context, &part, 0..1).await.is_err());
    });
}

/// All tests of the suite, with a new value of the expression for each: as separate tests, or `together` in one if a
/// server takes long to start.
macro_rules! conformance {
    (together $subject:expr) => {
        crate::conformance::conformance!(@list (together $subject))
    };
    ($subject:expr) => {
        crate::conformance::conformance!(@list (apart $subject));
    };
    (@list $how:tt) => {
        crate::conformance::conformance! {
            @run $how an_object_is_listed_and_read an_empty_object_has_no_bytes
            a_missing_object_is_an_error_that_names_it a_large_object_is_the_same_every_time any_range_can_be_read
            a_dropped_stream_leaves_nothing_behind many_are_read_at_once_with_little_memory
            streams_can_be_read_in_any_order a_changed_object_is_not_taken_for_the_listed_one
            what_opening_tells_is_enough_for_ranges
        }
    };
    (@run (apart $subject:expr) $($test:ident)+) => {
        mod conformance {
            $(
                #[test]
                fn $test() {
                    crate::conformance::$test($subject);
                }
            )+
        }
    };
    (@run (together $subject:expr) $($test:ident)+) => {{
        $(
            println!("{}", stringify!($test));
            crate::conformance::$test($subject);
        )+
    }};
}
pub(crate) use conformance;

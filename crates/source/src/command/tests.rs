//! A program as a source, without an engine.

use futures::TryStreamExt;
use serde_json::json;

use super::*;
use crate::conformance::{read_all, with_context};

fn source(settings: serde_json::Value) -> Arc<dyn Source> {
    (ENTRY.build)(&settings).expect("sound settings")
}

#[test]
fn it_is_one_unit_with_the_output() {
    let source = source(json!(["sh", "-c", "printf 'a\\nb\\n'; cat"]));
    with_context(1 << 20, |context| async move {
        let units: Vec<Unit> = source.list(&context, "command:sh").try_collect().await.expect("one unit");
        assert_eq!(units, [Unit::new("command:sh")]);
        assert_eq!(source.look(&context, &units[0]).await.expect("no error").size, None);
        assert_eq!(source.read_range(&context, &units[0], 0..1).await.expect("no error"), None);
        assert_eq!(read_all(source.open(&context, &units[0]).await).await.expect("readable"), b"a\nb\n");
    });
}

#[test]
fn its_end_is_that_of_the_program() {
    for (code, message) in [("echo a; exit 4", "the program `sh` failed"), ("kill -9 $$", "the program `sh` failed")] {
        let source = source(json!({"run": ["sh", "-c", code]}));
        with_context(1 << 20, |context| async move {
            let error = read_all(source.open(&context, &Unit::new("command:sh")).await).await.expect_err("it failed");
            assert_eq!(error.what(), message);
        });
    }
}

#[test]
fn one_that_is_only_looked_at_is_not_awaited_for_ever() {
    let source = source(json!(["sh", "-c", "while echo a; do sleep 0.01; done"]));
    with_context(1 << 20, |context| async move {
        let programs = ProgramContext { patience: Some(Duration::from_millis(300)), ..ProgramContext::default() };
        let context = SourceContext { programs: Arc::new(programs), ..context };
        let error = read_all(source.open(&context, &Unit::new("command:sh")).await).await.expect_err("no end");
        assert_eq!(error.what(), "the program `sh` has not written what is looked at within 300ms");
    });
}

#[test]
fn one_that_is_not_there_is_found_without_starting_it() {
    for name in ["./is-not-there", "is-not-there-either", "/"] {
        let source = source(json!([name]));
        with_context(1 << 20, |context| async move {
            let listed: Result<Vec<Unit>> = source.list(&context, "command:x").try_collect().await;
            assert_eq!(listed.expect_err("nothing").what(), format!("the program `{name}` cannot be started"));
        });
    }
}

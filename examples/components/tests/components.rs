//! Runs the components, and checks the messages for mistakes in their settings.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc::Receiver;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use millstream::machine::{Asked, Machine};
use millstream::{Engine, Failure, JobBuilder, RunOptions};
use millstream_example_components::channel::{self, Named};
use millstream_example_components::{digits, mask, numbers, values};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An engine with the components and its run history in `state`, and the receiver of its channel.
fn engine(state: &TempDir) -> (Engine, Receiver<Named>) {
    let mut registry = millstream::component::registry();
    registry.add_source(numbers::ENTRY).unwrap();
    registry.add_transform(mask::ENTRY).unwrap();
    registry.add_transform(values::ENTRY).unwrap();
    let batches = channel::add_to(&mut registry).unwrap();
    let asked = Asked { state: Some(state.path().to_owned()), ..Asked::default() };
    let builder = Engine::builder().machine(Machine::detect(asked).unwrap()).registry(registry);
    (builder.function(digits::digit_sum()).build().unwrap(), batches)
}

fn job(read: &str, query: &str, sink: Value) -> JobBuilder {
    let mut whole = json!({"from": "result"});
    whole.as_object_mut().unwrap().extend(sink.as_object().unwrap().clone());
    let csv = json!({"header": false, "columns": {"n": "int64"}});
    let source = json!({"read": read, "numbers": {"unit": 1000}, "csv": csv});
    JobBuilder::new().source("n", source).sql("result", query).sink("out", whole)
}

async fn run(engine: &Engine, job: JobBuilder) -> Result<u64, Failure> {
    let job = job.build(engine).await?;
    Ok(engine.start(job, RunOptions::default())?.finish().await?.rows_read)
}

#[tokio::test]
async fn a_source_a_sink_and_a_function_from_outside() {
    let state = TempDir::new().unwrap();
    let (engine, batches) = engine(&state);
    let query = "SELECT digit_sum(n) AS digits, count(*) AS numbers FROM n GROUP BY 1 ORDER BY 1";
    let read = run(&engine, job("numbers:1..100000", query, json!({"write": "channel:results"}))).await.unwrap();
    assert_eq!(read, 100_000);
    let mut counted = 0;
    for (name, batch) in batches.try_iter() {
        assert_eq!(name, "results");
        let [sums, counts] = [0, 1].map(|column| batch.column(column).as_primitive::<Int64Type>().clone());
        counted += counts.values().iter().sum::<i64>();
        let sevens = sums.values().iter().position(|sum| *sum == 7).map(|row| counts.value(row));
        // The ways to write 7 as the sum of five digits.
        assert!(sevens.is_none_or(|count| count == 330), "{sevens:?}");
    }
    assert_eq!(counted, 100_000);
}

#[tokio::test]
async fn mistakes_with_them_have_their_lines_and_hints() {
    let state = TempDir::new().unwrap();
    let (engine, batches) = engine(&state);
    let sink = json!({"write": "channel:r"});
    let wrong = [
        (job("numbers:1-9", "SELECT * FROM n", sink.clone()), "this is not a range of numbers"),
        (job("number:1..9", "SELECT * FROM n", sink.clone()), "number:1..9"),
        (job("numbers:1..9", "SELECT digitsum(n) FROM n", sink), "digitsum"),
        (job("numbers:1..9", "SELECT * FROM n", json!({"write": "channel:r", "rows": 1})), "unknown key `rows`"),
        (job("numbers:1..9", "SELECT * FROM n", json!({"write": "channel:"})), "the channel has no name"),
    ];
    for (job, expected) in wrong {
        let failure = run(&engine, job).await.expect_err(expected);
        assert!(failure.to_string().contains(expected), "{expected}: {failure}");
    }
    let most = json!({"write": "channel:r", "most_rows": 10});
    let failure = run(&engine, job("numbers:1..5000", "SELECT * FROM n", most)).await.expect_err("too many");
    assert_eq!(failure.errors[0].hint_text(), Some("raise `most_rows`"), "{failure}");
    assert_eq!(batches.try_iter().count(), 0, "nothing is seen of a load that failed");
}

/// A job that masks columns of `query` over the numbers from 9 to 12.
fn masking(query: &str, settings: Value) -> JobBuilder {
    let source = json!({"read": "numbers:9..12", "csv": {"header": false, "columns": {"n": "int64"}}});
    let job = JobBuilder::new().source("n", source).sql("texts", query).transform("masked", json!({"mask": settings}));
    job.sink("out", json!({"from": "masked", "write": "channel:masked"}))
}

#[tokio::test]
async fn a_transform_from_outside() {
    let state = TempDir::new().unwrap();
    let (engine, batches) = engine(&state);
    let query = "SELECT n, 'number ' || n AS name FROM n";
    let job = masking(query, json!({"from": "texts", "columns": ["name"], "shown": 3}));
    let plan = engine.plan(job.build(&engine).await.unwrap()).await.unwrap();
    assert!(plan.explain().sinks[0].plan.iter().any(|operator| operator.text == "TransformExec: mask"));
    engine.start(&plan, RunOptions::default()).unwrap().finish().await.unwrap();
    let mut names: Vec<String> = Vec::new();
    for (_, batch) in batches.try_iter() {
        names.extend(batch.column(1).as_string::<i32>().iter().flatten().map(str::to_owned));
    }
    names.sort_unstable();
    assert_eq!(names, ["num*****", "num******", "num******", "num******"]);
    // A plan that is written as JSON can be restored.
    engine.restore(&plan.to_json().unwrap()).unwrap();

    let wrong = [
        (masking(query, json!({"from": "texts", "columns": ["nmae"]})), "there is no column `nmae`"),
        (masking(query, json!({"from": "texts", "columns": ["n"]})), "`n` is not a text"),
        (masking(query, json!({"from": "texts", "columns": ["name", "name"]})), "`name` is named twice"),
        (masking(query, json!({"from": "texts"})), "`columns`"),
        (masking(query, json!({"from": "text", "columns": ["name"]})), "there is no source or transform `text`"),
        (masking(query, json!({"from": "texts", "columns": ["name"], "show": 1})), "unknown key `show`"),
    ];
    for (job, expected) in wrong {
        let failure = run(&engine, job).await.expect_err(expected);
        let place = failure.lints.iter().find(|lint| lint.is_error()).map(|lint| lint.line);
        assert!(failure.to_string().contains(expected) && place > Some(0), "{expected}: {failure}");
    }
}

#[tokio::test]
async fn a_transform_that_composes_operations() {
    let state = TempDir::new().unwrap();
    let (engine, batches) = engine(&state);
    let of = |expression: &str| {
        let source = json!({"read": "numbers:1..100", "csv": {"header": false, "columns": {"n": "int64"}}});
        let job = JobBuilder::new().source("n", source);
        let job = job.transform("digits", json!({"values": {"from": "n", "of": expression}}));
        job.sink("out", json!({"from": "digits", "write": "channel:digits"}))
    };
    run(&engine, of("n % 7")).await.unwrap();
    let mut values: Vec<i64> = Vec::new();
    for (_, batch) in batches.try_iter() {
        assert_eq!(batch.schema().field(0).name(), "value");
        values.extend(batch.column(0).as_primitive::<Int64Type>().values());
    }
    values.sort_unstable();
    assert_eq!(values, [0, 1, 2, 3, 4, 5, 6]);
    // All columns that do not exist, each where it stands.
    let failure = run(&engine, of("m + n * unknown")).await.expect_err("two columns that do not exist");
    let mut texts: Vec<&str> = failure.lints.iter().map(|lint| lint.text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["m", "unknown"]);
    // SQL in it may name other entries.
    let failure = run(&engine, of("(SELECT max(x) FROM nowhere)")).await.expect_err("no such entry");
    assert!(failure.to_string().contains("there is no source or transform `nowhere`"), "{failure}");
}

#[test]
fn two_components_cannot_have_one_name() {
    let mut registry = millstream::component::registry();
    registry.add_source(numbers::ENTRY).unwrap();
    assert!(registry.add_source(numbers::ENTRY).unwrap_err().what().contains("`numbers` cannot be added"));
    let _batches = channel::add_to(&mut registry).unwrap();
    assert!(channel::add_to(&mut registry).is_err());
    registry.add_transform(mask::ENTRY).unwrap();
    assert!(registry.add_transform(mask::ENTRY).is_err());
    let sort = millstream::component::SpecInfo { name: "sort", ..mask::ENTRY.spec };
    let sort = millstream::component::TransformEntry { spec: sort, ..mask::ENTRY };
    assert!(registry.add_transform(sort).unwrap_err().cause_text().is_some());
}

//! The test file: small inputs of a job, and the rows that it makes of them.
//!
//! Here is what such a file may say, and what is wrong with one that says something else. How a test runs is the
//! engine's.

use std::collections::BTreeMap;

use millstream_core::columns::Columns;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::lint::{self, Lint};
use crate::text::{JobText, Span};
use crate::tree::{self, Entry, Node};
use crate::walk::Walker;

/// A test file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    /// The job file, beside this one. By default `load.test.yaml` tests `load.yaml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub job: Option<String>,
    /// Variables of the job, for all tests. Those of the environment are not used.
    #[serde(default)]
    pub set: BTreeMap<String, Setting>,
    /// The time that `now()`, `current_date` and their like have, for all tests: `2026-01-31T12:00:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub now: Option<String>,
    /// The tests.
    #[schemars(length(min = 1))]
    pub tests: Vec<JobTest>,
}

/// A value of a variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    /// A text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// True or false.
    Truth(bool),
}

impl Setting {
    /// The value as a variable has it.
    pub fn text(&self) -> String {
        match self {
            Setting::Text(text) => text.clone(),
            Setting::Whole(number) => number.to_string(),
            Setting::Truth(truth) => truth.to_string(),
        }
    }
}

/// One test of a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobTest {
    /// What it shows, in a few words.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Variables of the job. They come before those of the file.
    #[serde(default)]
    pub set: BTreeMap<String, Setting>,
    /// The time that `now()`, `current_date` and their like have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub now: Option<String>,
    /// What the sources of the job give. Each source needs an entry: none is read.
    #[serde(default)]
    pub sources: BTreeMap<String, TestSource>,
    /// The rows that sinks, or other entries, get. No sink is written.
    #[serde(default)]
    pub expect: BTreeMap<String, ExpectedRows>,
    /// What is rejected, in any order. Without it nothing may be.
    #[serde(default)]
    pub rejects: Vec<ExpectedReject>,
    /// A part of the message with which the job fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1))]
    pub error: Option<String>,
}

/// What a source gives: one of `rows`, `text` and `file`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestSource {
    /// Rows, each with its columns. What a row lacks is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub rows: Option<Vec<Map<String, Value>>>,
    /// The columns of `rows` and their types. By default those that the source declares, or else those that the values
    /// have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Columns")]
    pub columns: Option<Columns>,
    /// The text of a file, which is parsed as the source says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub text: Option<String>,
    /// The path of a file, from the folder of the test file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub file: Option<String>,
}

/// Rows that an entry gets.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRows {
    /// The rows. Columns that none of them names are not compared; what a row lacks that another names is null.
    pub rows: Vec<Map<String, Value>>,
    /// Whether their order counts.
    #[serde(default)]
    pub in_order: bool,
    /// How far numbers with a fraction may be from those that are expected.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub within: f64,
}

/// A record or row that is rejected. What it leaves out is not compared.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct ExpectedReject {
    /// The entry that rejects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub entry: Option<String>,
    /// The line on which the record begins, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub line: Option<u64>,
    /// A part of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub message: Option<String>,
    /// A part of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub raw: Option<String>,
}

/// A test file without faults of its own.
#[derive(Debug, Clone)]
pub struct LoadedTests {
    /// What it says.
    pub file: TestFile,
    /// Where each test begins.
    pub spans: Vec<Span>,
    /// The text, for lints that others find.
    pub text: JobText,
}

/// The JSON schema of test files.
pub fn schema() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<TestFile>().to_value()
}

/// What the test file `text`, read from `path`, says.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &str, text: &str) -> Result<LoadedTests, Vec<Lint>> {
    let job_text = JobText::new(path, text);
    let (root, mut lints) = tree::parse(&job_text, text);
    let Some(root) = root.filter(|root| !root.is_null()) else {
        if lints.is_empty() {
            let hint = "a test file has `tests:`; see the guide's page on testing jobs";
            lints.push(job_text.error(Span::default(), "the test file is empty").hint(hint));
        }
        return Err(lints);
    };
    let schema = schema();
    let none = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    let entry = Entry { key: "the test file".to_owned(), key_span: root.span, value: root.clone() };
    lints.extend(Walker { text: &job_text, definitions }.entry(&entry, &schema).lints);
    let tests: Vec<&Node> = match root.get("tests").map(|tests| &tests.kind) {
        Some(tree::Kind::List(tests)) => tests.iter().collect(),
        _ => Vec::new(),
    };
    tests.iter().for_each(|test| lints.extend(test_lints(&job_text, test)));
    lint::tidy(&mut lints);
    if lints.iter().any(Lint::is_error) {
        return Err(lints);
    }
    let spans = tests.iter().map(|test| test.get("name").map_or(test.span, |name| name.span)).collect();
    match serde_json::from_value(root.to_value()) {
        Ok(file) => Ok(LoadedTests { file, spans, text: job_text }),
        Err(cause) => Err(vec![job_text.error(root.span, cause.to_string())]),
    }
}

/// What the schema cannot say of a test.
fn test_lints(text: &JobText, test: &Node) -> Vec<Lint> {
    let mut lints = Vec::new();
    let sources = test.get("sources").map(Node::entries).unwrap_or_default();
    for source in sources.iter().filter(|source| matches!(source.value.kind, tree::Kind::Block(_))) {
        let given: Vec<&str> =
            ["rows", "text", "file"].into_iter().filter(|key| source.value.get(key).is_some()).collect();
        if given.len() != 1 {
            let what = match given.is_empty() {
                true => format!("`{}` says nothing that it gives", source.key),
                false => format!("`{}` has both `{}` and `{}`", source.key, given[0], given[1]),
            };
            lints.push(text.error(source.key_span, what).hint("give one of `rows`, `text` and `file`"));
        }
        if let (Some(columns), None) = (source.value.entry("columns"), source.value.get("rows")) {
            let what = "`columns` are those of `rows`, and there are none";
            lints.push(text.error(columns.key_span, what).hint("a text or a file has the columns that the job says"));
        }
    }
    let is_empty = |key: &str| test.get(key).is_none_or(|node| node.entries().is_empty() && !is_list(node));
    let expects = ["expect", "rejects", "error"].into_iter().any(|key| !is_empty(key) || is_text(test.get(key)));
    if matches!(test.kind, tree::Kind::Block(_)) && !expects {
        let span = test.get("name").map_or(test.span, |name| name.span);
        lints.push(text.error(span, "the test expects nothing").hint("add `expect`, `rejects` or `error`"));
    }
    lints
}

fn is_list(node: &Node) -> bool {
    matches!(&node.kind, tree::Kind::List(items) if !items.is_empty())
}

fn is_text(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.scalar().is_some() && !node.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::shown;

    #[test]
    fn a_file_has_tests_with_inputs_and_rows() {
        let yaml = "set: {DAY: 2026-01-31, N: 3}\ntests:\n  - name: one\n    sources: {a: {rows: [{id: 1, t: null}], \
                    columns: {id: int64}}, b: {text: x}}\n    expect: {out: {rows: [{id: 1}], in_order: true}}\n  - \
                    {name: two, error: no}\n";
        let loaded = load("a.test.yaml", yaml).map_err(|lints| shown(&lints)).expect("a good file");
        assert_eq!(loaded.file.set["DAY"].text(), "2026-01-31");
        assert_eq!(loaded.file.set["N"].text(), "3");
        assert_eq!(loaded.spans.iter().map(|span| span.line).collect::<Vec<_>>(), [3, 6]);
        let [one, two] = &loaded.file.tests[..] else { panic!("{:?}", loaded.file) };
        assert_eq!(one.sources["a"].rows.as_ref().map(Vec::len), Some(1));
        assert!(one.expect["out"].in_order);
        assert_eq!(two.error.as_deref(), Some("no"));
    }

    #[test]
    fn all_faults_come_at_once_with_their_places() {
        let yaml = "tests:\n  - name: one\n    sources: {a: {rows: [], text: x}, b: {}, c: {file: x, columns: {i: \
                    int64}}}\n    expct: {out: {rows: []}}\n  - {expect: {out: {rows: [3]}}}\n  - {name: nothing}\n";
        insta::assert_snapshot!(shown(&load("a.test.yaml", yaml).expect_err("many faults")));
        insta::assert_snapshot!(shown(&load("a.test.yaml", "# nothing\n").expect_err("nothing")));
        insta::assert_snapshot!(shown(&load("a.test.yaml", "tests: []\n").expect_err("no tests")));
    }
}

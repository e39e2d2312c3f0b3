//! A registry of small components: real specs, real faults, and nothing behind them, since loading does no I/O. Its
//! transforms are the real ones, which have nothing behind them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::format::{Format, OnDrift, ParseRequest, Parser, Reading, RowEncoder, Sample, StreamFormat};
use millstream_core::registry::{Built, CodecEntry, FormatEntry, SinkEntry, SinkFormats, SourceEntry, StoreEntry};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts};
use millstream_core::source::{ByteStream, Source, SourceContext};
use millstream_core::spec::{Fault, Secret, Size, Spec, SpecInfo, TextOrSecret, parse};
use millstream_core::store::{Brought, Store, Stored, Upload};
use millstream_core::{Error, Registry, Result, Unit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// All test components.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    Registry::of(
        const {
            &[
                SourceEntry {
                    spec: SpecInfo::of::<FileSpec>(),
                    schemes: &["", "-"],
                    check: &braces,
                    rows: false,
                    build: &|value| place::<FileSpec>(value),
                },
                SourceEntry {
                    spec: SpecInfo::of::<HttpSpec>(),
                    schemes: &["http", "https"],
                    check: &|pattern| {
                        if pattern.contains(' ') { Err(Fault::new("", "a URL has no spaces")) } else { Ok(()) }
                    },
                    rows: false,
                    build: &|value| place::<HttpSpec>(value),
                },
            ]
        },
        const {
            &[
                CodecEntry {
                    name: "gzip",
                    extensions: &[".gz"],
                    build: || Arc::new(Squeeze { name: "gzip", writes: true }),
                },
                CodecEntry {
                    name: "bzip2",
                    extensions: &[".bz2"],
                    build: || Arc::new(Squeeze { name: "bzip2", writes: false }),
                },
            ]
        },
        const {
            &[
                FormatEntry {
                    spec: SpecInfo::of::<CsvSpec>(),
                    extensions: &[".csv", ".tsv"],
                    suggested: &|ending| if ending == ".tsv" { json!({"delimiter": "\t"}) } else { json!({}) },
                    by_content_type: &|_| None,
                    build: &|value| parse::<CsvSpec>(value).map(|spec| Arc::new(Rows("csv", format!("{spec:?}"))) as _),
                },
                FormatEntry {
                    spec: SpecInfo::of::<JsonSpec>(),
                    extensions: &[".jsonl"],
                    suggested: &|_| json!({}),
                    by_content_type: &|_| None,
                    build: &|value| {
                        parse::<JsonSpec>(value).map(|spec| Arc::new(Rows("json", format!("{spec:?}"))) as _)
                    },
                },
            ]
        },
        millstream_transform::TRANSFORMS,
        const {
            &[
                SinkEntry {
                    spec: SpecInfo::of::<FilesSpec>(),
                    schemes: &[""],
                    words: &["-"],
                    stores: true,
                    formats: SinkFormats::ByName,
                    build: &target::<FilesSpec>,
                },
                SinkEntry {
                    spec: SpecInfo::of::<TableSpec>(),
                    schemes: &["sqlite"],
                    words: &[],
                    stores: false,
                    formats: SinkFormats::None,
                    build: &target::<TableSpec>,
                },
            ]
        },
        const {
            &[StoreEntry {
                spec: SpecInfo::of::<VaultSpec>(),
                schemes: &["vault"],
                build: &|value| parse::<VaultSpec>(value).map(|_| Arc::new(Vault) as _),
            }]
        },
    )
});

/// Files have no settings.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileSpec {}

impl Spec for FileSpec {
    const NAME: &'static str = "file";
    const SUMMARY: &'static str = "Files.";
    const EXAMPLE: &'static str = "read: a.csv";
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct HttpSpec {
    /// Headers sent with every request.
    headers: BTreeMap<String, TextOrSecret>,
    /// The password.
    password: Option<Secret>,
    /// How often to try.
    #[schemars(range(min = 1, max = 20))]
    tries: u8,
}

impl Default for HttpSpec {
    fn default() -> Self {
        HttpSpec { headers: BTreeMap::new(), password: None, tries: 5 }
    }
}

impl Spec for HttpSpec {
    const NAME: &'static str = "http";
    const SUMMARY: &'static str = "Objects over HTTP.";
    const EXAMPLE: &'static str = "read: https://host/a.csv\nhttp: {tries: 3}";

    fn check(&self) -> Vec<Fault> {
        let is_bad = |name: &&String| name.contains(' ');
        let bad = self.headers.keys().filter(is_bad);
        bad.map(|name| Fault::new(&format!("headers.{name}"), "a header's name has no spaces").hint("remove them"))
            .collect()
    }
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct CsvSpec {
    /// The character between fields.
    #[schemars(length(min = 1, max = 1))]
    delimiter: String,
    /// Whether the first line names the columns.
    header: bool,
    /// The columns and their types.
    columns: Option<BTreeMap<String, ColumnType>>,
    /// The longest record.
    max_record: Option<Size>,
}

impl Default for CsvSpec {
    fn default() -> Self {
        CsvSpec { delimiter: ",".to_owned(), header: true, columns: None, max_record: None }
    }
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ColumnType {
    /// Whole numbers.
    Int64,
    /// Text.
    Utf8,
}

impl Spec for CsvSpec {
    const NAME: &'static str = "csv";
    const SUMMARY: &'static str = "Lines of fields.";
    const EXAMPLE: &'static str = "read: a.csv\ncsv: {header: false, columns: {a: int64}}";

    fn check(&self) -> Vec<Fault> {
        let missing = !self.header && self.columns.is_none();
        missing.then(|| Fault::new("header", "without a header the columns must be given")).into_iter().collect()
    }
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct JsonSpec {
    /// How records lie in the file.
    layout: Layout,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Layout {
    /// One a line.
    #[default]
    Lines,
    /// One array.
    Array,
}

impl Spec for JsonSpec {
    const NAME: &'static str = "json";
    const SUMMARY: &'static str = "Objects.";
    const EXAMPLE: &'static str = "read: a.jsonl\njson: {layout: lines}";
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct FilesSpec {
    /// How rows are spread over files.
    shards: Option<Shards>,
    /// When a new file begins.
    roll: Option<Size>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Shards {
    /// By a hash.
    Hash(Hash),
    /// One file a value.
    Value(String),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Hash {
    /// Of what.
    of: String,
    /// How many files.
    count: u16,
}

impl Spec for FilesSpec {
    const NAME: &'static str = "file";
    const SUMMARY: &'static str = "Files.";
    const EXAMPLE: &'static str = "from: a\nwrite: out/{shard}.csv.gz\nshards: {hash: {of: a, count: 4}}";
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TableSpec {
    /// The table.
    table: String,
    /// What happens to rows that are there.
    #[serde(default)]
    mode: Mode,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Append,
    Replace,
    Truncate,
}

impl Spec for TableSpec {
    const NAME: &'static str = "sqlite";
    const SUMMARY: &'static str = "A table of a SQLite database.";
    const EXAMPLE: &'static str = "from: a\nwrite: sqlite:out.db\ntable: t\nmode: replace";
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct VaultSpec {
    /// The key.
    key: Option<Secret>,
}

impl Spec for VaultSpec {
    const NAME: &'static str = "vault";
    const SUMMARY: &'static str = "Objects in a vault.";
    const EXAMPLE: &'static str = "read: vault://a.csv";
}

/// What a source says of a pattern.
fn braces(pattern: &str) -> Result<(), Fault> {
    match pattern.matches('{').count() == pattern.matches('}').count() {
        true => Ok(()),
        false => Err(Fault::new("", "the braces do not match").hint("write {a,b} for choices")),
    }
}

fn place<S: Spec>(value: &Value) -> Built<dyn Source> {
    parse::<S>(value).map(|_| Arc::new(Place(S::NAME)) as _)
}

fn target<S: Spec>(value: &Value, parts: SinkParts) -> Built<dyn Sink> {
    parse::<S>(value).map(|_| Arc::new(Target { name: S::NAME, parts }) as _)
}

fn unused<T>() -> Result<T> {
    Err(Error::internal("loading does no I/O"))
}

#[derive(Debug)]
pub(crate) struct Place(pub(crate) &'static str);

#[async_trait]
impl Source for Place {
    fn name(&self) -> &'static str {
        self.0
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, _: &str) -> BoxStream<'static, Result<Unit>> {
        stream::empty().boxed()
    }

    async fn open(&self, _: &SourceContext, _: &Unit) -> Result<ByteStream> {
        unused()
    }

    async fn read_range(&self, _: &SourceContext, _: &Unit, _: Range<u64>) -> Result<Option<Bytes>> {
        unused()
    }

    async fn look(&self, _: &SourceContext, _: &Unit) -> Result<Unit> {
        unused()
    }
}

#[derive(Debug)]
struct Vault;

#[async_trait]
impl Store for Vault {
    fn name(&self) -> &'static str {
        "vault"
    }

    fn check(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn probe(&self, _: &SourceContext, _: &str) -> Result<()> {
        unused()
    }

    async fn begin(&self, _: &SourceContext, _: &str) -> Result<Box<dyn Upload>> {
        unused()
    }

    async fn complete(&self, _: &SourceContext, _: &Brought) -> Result<bool> {
        unused()
    }

    async fn abort(&self, _: &SourceContext, _: &Brought) -> Result<()> {
        unused()
    }

    async fn settle(&self) {}

    async fn read(&self, _: &SourceContext, _: &str) -> Result<Option<Stored>> {
        unused()
    }

    async fn write_if(&self, _: &SourceContext, _: &str, _: Bytes, _: Option<&Stored>) -> Result<Option<Stored>> {
        unused()
    }

    async fn names(&self, _: &SourceContext, _: &str) -> Result<Vec<String>> {
        unused()
    }

    async fn length(&self, _: &SourceContext, _: &str) -> Result<Option<u64>> {
        unused()
    }

    async fn remove(&self, _: &SourceContext, _: &str) -> Result<()> {
        unused()
    }
}

#[derive(Debug)]
struct Squeeze {
    name: &'static str,
    writes: bool,
}

impl Codec for Squeeze {
    fn name(&self) -> &'static str {
        self.name
    }

    fn extension(&self) -> &'static str {
        ""
    }

    fn recognises(&self, _: &[u8]) -> bool {
        false
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        unused()
    }

    fn encoder(&self, _: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        Ok(self.writes.then(|| Box::new(Copy) as _))
    }
}

struct Copy;

impl Encoder for Copy {
    fn encode(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<()> {
        unused()
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<()> {
        unused()
    }
}

/// Its name, and its settings as its `Debug` shows them.
#[derive(Debug)]
struct Rows(&'static str, #[allow(dead_code)] String);

impl Format for Rows {
    fn name(&self) -> &'static str {
        self.0
    }

    fn declared(&self) -> Option<SchemaRef> {
        None
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Stream(self)
    }

    fn splittable(&self) -> bool {
        true
    }

    fn encoder(&self, _: SchemaRef, _: bool) -> Result<Box<dyn RowEncoder>> {
        unused()
    }
}

impl StreamFormat for Rows {
    fn infer(&self, _: &[Sample], _: OnDrift) -> Result<SchemaRef> {
        unused()
    }

    fn parser(&self, _: &ParseRequest) -> Result<Box<dyn Parser>> {
        unused()
    }
}

#[derive(Debug)]
struct Target {
    name: &'static str,
    parts: SinkParts,
}

#[async_trait]
impl Sink for Target {
    fn name(&self) -> &'static str {
        self.name
    }

    fn target(&self) -> String {
        self.parts.target.clone()
    }

    async fn check(&self, _: SchemaRef) -> Result<(), Vec<Error>> {
        Ok(())
    }

    /// What it was made from.
    fn describe(&self, _: SchemaRef) -> String {
        format!("{:?}", self.parts)
    }

    async fn begin(&self, _: LoadContext) -> Result<Arc<dyn Load>> {
        unused()
    }
}

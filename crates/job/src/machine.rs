//! The machine file: what a machine has for jobs to run on.
//!
//! A job says nothing of the machine, so the same job runs on a laptop and on a server. Here is what such a file may
//! say, and what is wrong with one that says something else; what it means is the engine's.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::spec::{Duration, Secret, Size, TextOrSecret};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::around::Hours;
use crate::build::{text as text_of, texts};
use crate::graph::Located;
use crate::lint::{self, Lint};
use crate::text::{JobText, Span};
use crate::tree::{self, Entry, Node};
use crate::variables::{self, Variables};
use crate::walk::Walker;

/// A machine file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineKeys {
    /// Memory for the whole process, such as `512MB` or `2GiB`; a quarter of the machine if left out.
    #[serde(default)]
    #[schemars(with = "Size")]
    pub memory: Option<Size>,
    /// Cores that decode and compute; all if left out.
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1, max = 1024))]
    pub cores: Option<u64>,
    /// Where and how data that does not fit in memory is written.
    #[serde(default)]
    pub scratch: ScratchKeys,
    /// Folder for the run history; below the user's state folder if left out.
    #[serde(default)]
    pub state: Option<String>,
    /// The server that sends the mails of `on_success` and `on_failure`.
    #[serde(default)]
    #[schemars(with = "Smtp")]
    pub smtp: Option<Smtp>,
    /// How many steps of sequences run together that name the same `pool`: names, and numbers from 1.
    #[serde(default)]
    pub pools: BTreeMap<String, PoolSize>,
    /// The cluster that this machine belongs to: whose runs let workers read, and for whom it works itself.
    #[serde(default)]
    #[schemars(with = "ClusterKeys")]
    pub cluster: Option<ClusterKeys>,
    /// Several machines that share the file, by their host names: the settings of one take precedence over those above.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeKeys>,
}

/// One of several machines.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeKeys {
    /// As above.
    #[serde(default)]
    #[schemars(with = "Size")]
    pub memory: Option<Size>,
    /// As above.
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1, max = 1024))]
    pub cores: Option<u64>,
    /// As above; each of its keys by itself.
    #[serde(default)]
    pub scratch: ScratchKeys,
    /// As above.
    #[serde(default)]
    pub state: Option<String>,
    /// As above, as a whole.
    #[serde(default)]
    #[schemars(with = "Smtp")]
    pub smtp: Option<Smtp>,
    /// As above; each pool by itself.
    #[serde(default)]
    pub pools: BTreeMap<String, PoolSize>,
    /// As above, as a whole.
    #[serde(default)]
    #[schemars(with = "ClusterKeys")]
    pub cluster: Option<ClusterKeys>,
}

/// A cluster: machines with a secret in common, of which some read for the runs of others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterKeys {
    /// When runs of this machine let workers read: `auto` if the job allows it, `always` or else they fail, `never`. If
    /// left out, `never` on a machine that works for others (`join`), and `auto` on others.
    #[serde(default)]
    #[schemars(with = "Distribute")]
    pub run: Option<Distribute>,
    /// Where workers join runs of this machine, such as `10.0.0.5:7447`; on all addresses at port 7447 if left out.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub listen: Option<String>,
    /// The path of the file with the secret of the cluster, which `millstream cluster init` makes; `cluster.pem` in the
    /// state folder if left out.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub secret: Option<String>,
    /// Folders that all machines of the cluster see under the same path. Files elsewhere on this machine are read by it
    /// alone.
    #[serde(default)]
    pub shared: Vec<String>,
    /// How long a run waits if there is no worker, before it reads by itself what is left; 30s if left out.
    #[serde(default)]
    #[schemars(with = "Duration")]
    pub wait: Option<Duration>,
    /// For whose runs `millstream worker` works on this machine: `HOST` or `HOST:PORT`.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub join: Option<String>,
    /// The hours in which it works, by its clock, such as `20:00-06:00`; always if left out.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub hours: Option<Hours>,
    /// It works as long as other programs use fewer cores than this, such as `0.5`; always if left out.
    #[serde(default)]
    #[schemars(with = "f64", range(min = 0.01))]
    pub max_load: Option<f64>,
}

impl ClusterKeys {
    /// When runs of this machine let workers read.
    pub fn distributes(&self) -> Distribute {
        self.run.unwrap_or(if self.join.is_some() { Distribute::Never } else { Distribute::Auto })
    }
}

/// When a run is distributed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Distribute {
    /// If the job allows it.
    #[default]
    Auto,
    /// In any case, or the run fails.
    Always,
    /// Not at all: the machine only works for others.
    Never,
}

/// How many steps of a pool run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PoolSize(#[schemars(range(min = 1))] pub u32);

/// A server that takes mails, by SMTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// Its name or address.
    #[schemars(length(min = 1))]
    pub host: String,
    /// Its port: 587 with `starttls`, 465 with `tls`, 25 with `none`, if left out.
    #[serde(default)]
    #[schemars(with = "u16", range(min = 1))]
    pub port: Option<u16>,
    /// The sender of the mails: `millstream@example.com`, or `Millstream <millstream@example.com>`.
    pub from: String,
    /// The user's name, if the server wants a login.
    #[serde(default)]
    #[schemars(with = "TextOrSecret")]
    pub user: Option<TextOrSecret>,
    /// A reference to the password.
    #[serde(default)]
    #[schemars(with = "Secret")]
    pub password: Option<Secret>,
    /// Whether the connection is encrypted.
    #[serde(default)]
    pub tls: SmtpTls,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub ca: Option<String>,
}

/// Whether the connection to a server for mail is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// It becomes encrypted before anything is sent.
    #[default]
    Starttls,
    /// It is encrypted from its beginning.
    Tls,
    /// It is not: for a server on this machine.
    None,
}

/// Where and how data that does not fit in memory is written.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScratchKeys {
    /// Folders, ideally each on its own disk; the system's temporary folder if left out. Writes are spread over them by
    /// their speed, and a full one is no longer used. One in memory (`tmpfs`) comes first, as long as it has room.
    #[serde(default)]
    #[schemars(with = "Vec<DiskKeys>", length(min = 1))]
    pub disks: Option<Vec<DiskKeys>>,
    /// Whether sorted runs are compressed.
    #[serde(default)]
    #[schemars(with = "RunCompression")]
    pub compression: Option<RunCompression>,
    /// Bytes of a block of a sorted run, from `4KiB` to `16MiB`, and of what is read of each run at once while they are
    /// merged. If left out, a block follows the memory and the data, from 16 to 64 KiB, and more is read at once where
    /// there is memory for it.
    #[serde(default)]
    #[schemars(with = "Size")]
    pub block: Option<Size>,
    /// Whether rows wait before a sort while it is busy, as many as it sorts at once, if the budget has room for them:
    /// for sources that come in bursts.
    #[serde(default)]
    #[schemars(with = "bool")]
    pub buffer: Option<bool>,
}

/// A folder for scratch.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum DiskKeys {
    /// A folder for everything.
    Folder(#[schemars(length(min = 1))] String),
    /// A folder for sorts that name one of its pools.
    Pooled(PooledDiskKeys),
}

/// A folder for sorts that name one of its pools.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PooledDiskKeys {
    /// The folder.
    #[schemars(length(min = 1))]
    pub folder: String,
    /// The names of its pools. Of a folder in the pool `default` everything makes use.
    #[schemars(length(min = 1))]
    pub pools: Vec<String>,
}

/// Whether sorted runs are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunCompression {
    /// With lz4, if the beginning of a run becomes smaller by a quarter.
    #[default]
    Auto,
    /// They are written as they are.
    None,
    /// A little smaller, in little time.
    Lz4,
    /// Smaller, in more time.
    Zstd,
}

/// A value and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub span: Span,
}

/// A folder for scratch.
#[derive(Debug, Clone)]
pub struct ScratchDisk {
    /// The folder.
    pub folder: Located<String>,
    /// Its pools; none if it is for everything.
    pub pools: Vec<Located<String>>,
}

/// What the file says of one machine.
#[derive(Debug, Clone)]
pub struct MachineFile {
    /// The file, for lints that others find.
    pub text: JobText,
    /// Bytes of memory.
    pub memory: Option<Placed<u64>>,
    /// Cores.
    pub cores: Option<Placed<usize>>,
    /// Folder for the book of runs.
    pub state: Option<Located<String>>,
    /// Folders for scratch; none if the file names none.
    pub disks: Vec<ScratchDisk>,
    /// How runs are written.
    pub compression: RunCompression,
    /// Bytes of a block of a run.
    pub block: Option<Placed<u64>>,
    /// Whether rows wait before a sort.
    pub buffer: bool,
    /// The server that sends mails.
    pub smtp: Option<Smtp>,
    /// How many steps of sequences run together that name the same pool.
    pub pools: BTreeMap<String, Placed<usize>>,
    /// The cluster that it belongs to.
    pub cluster: Option<ClusterKeys>,
}

/// The pool of which everything makes use that names none.
pub const DEFAULT_POOL: &str = "default";

/// The JSON schema of machine files.
pub fn schema() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<MachineKeys>().to_value()
}

/// What the machine file `text`, read from `path`, says of the machine `node`. `environment` fills in variables.
pub fn load(
    path: &str,
    text: &str,
    node: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<MachineFile, Vec<Lint>> {
    let job_text = JobText::new(path, text);
    let (root, mut lints) = tree::parse(&job_text, text);
    let mut root = root.filter(|root| !root.is_null());
    if let Some(root) = &mut root {
        let variables = Variables { set: &BTreeMap::new(), environment, now: None };
        let filled = variables::fill(root, &job_text, &variables, &BTreeSet::new());
        lints.extend(filled.lints);
        let schema = schema();
        let none = Map::new();
        let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
        let entry = Entry { key: "the machine".to_owned(), key_span: root.span, value: root.clone() };
        lints.extend(Walker { text: &job_text, definitions }.entry(&entry, &schema).lints);
    }
    let nodes = root.as_ref().and_then(|root| root.entry("nodes"));
    let own = nodes.and_then(|nodes| nodes.value.get(node));
    if let (Some(nodes), None) = (nodes, own)
        && !nodes.value.entries().is_empty()
    {
        let names: Vec<&str> = nodes.value.entries().iter().map(|entry| entry.key.as_str()).collect();
        let what = format!("this machine is `{node}`, and no node has this name");
        let hint = format!("nodes: {}; `--node` says which of them this is", names.join(", "));
        lints.push(job_text.error(nodes.key_span, what).hint(hint));
    }
    let parts = [own, root.as_ref()];
    let cluster = match find(parts, &["cluster"]) {
        Some(node) => serde_json::from_value::<ClusterKeys>(node.to_value())
            .map_err(|cause| lints.push(job_text.error(node.span, cause.to_string())))
            .ok(),
        None => None,
    };
    lint::tidy(&mut lints);
    if lints.iter().any(Lint::is_error) {
        return Err(lints);
    }
    Ok(MachineFile {
        memory: number(parts, &["memory"]),
        cores: number(parts, &["cores"]).and_then(|cores| {
            let value = usize::try_from(cores.value).ok()?;
            Some(Placed { value, span: cores.span })
        }),
        state: text_of(find(parts, &["state"])),
        disks: find(parts, &["scratch", "disks"]).map(disks).unwrap_or_default(),
        compression: find(parts, &["scratch", "compression"])
            .and_then(|node| serde_json::from_value(node.to_value()).ok())
            .unwrap_or_default(),
        block: number(parts, &["scratch", "block"]),
        buffer: find(parts, &["scratch", "buffer"]).is_some_and(|node| node.to_value() == Value::Bool(true)),
        smtp: find(parts, &["smtp"]).and_then(|node| serde_json::from_value(node.to_value()).ok()),
        pools: pools(parts),
        cluster,
        text: job_text,
    })
}

/// The value under `path` in the first of `parts` that has it.
fn find<'n>(parts: [Option<&'n Node>; 2], path: &[&str]) -> Option<&'n Node> {
    let under = |node: &'n Node| path.iter().try_fold(node, |node, key| node.get(key));
    parts.into_iter().flatten().find_map(under)
}

fn number(parts: [Option<&Node>; 2], path: &[&str]) -> Option<Placed<u64>> {
    let node = find(parts, path)?;
    let size: Size = serde_json::from_value(node.to_value()).ok()?;
    Some(Placed { value: size.0, span: node.span })
}

/// Of a pool that several parts have, the first counts.
fn pools(parts: [Option<&Node>; 2]) -> BTreeMap<String, Placed<usize>> {
    let all = parts.into_iter().rev().flatten().filter_map(|part| part.get("pools"));
    let pool = |entry: &Entry| {
        let size: PoolSize = serde_json::from_value(entry.value.to_value()).ok()?;
        Some((entry.key.clone(), Placed { value: size.0 as usize, span: entry.value.span }))
    };
    all.flat_map(Node::entries).filter_map(pool).collect()
}

fn disks(node: &Node) -> Vec<ScratchDisk> {
    let tree::Kind::List(items) = &node.kind else { return Vec::new() };
    let disk = |item: &Node| match text_of(Some(item)) {
        Some(folder) => Some(ScratchDisk { folder, pools: Vec::new() }),
        None => Some(ScratchDisk { folder: text_of(item.get("folder"))?, pools: texts(item.get("pools")) }),
    };
    items.iter().filter_map(disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::shown;

    fn load_on(node: &str, yaml: &str) -> Result<MachineFile, String> {
        let environment = |name: &str| (name == "FAST").then(|| "/fast".to_owned());
        load("machine.yaml", yaml, node, &environment).map_err(|lints| shown(&lints))
    }

    #[test]
    fn a_file_says_what_a_machine_has() {
        let file = load_on(
            "here",
            "memory: 2GiB\ncores: 3\nscratch:\n  disks: ['${FAST}/one', {folder: /big, pools: [big, \
             default]}]\n  compression: zstd\n  \
             block: 128KiB\n  buffer: true\n",
        )
        .expect("a good file");
        assert_eq!(file.memory.map(|memory| memory.value), Some(2 << 30));
        assert_eq!(file.cores, Some(Placed { value: 3, span: Span { line: 2, column: 8, length: 1 } }));
        let disks: Vec<(&str, Vec<&str>)> = file
            .disks
            .iter()
            .map(|disk| (disk.folder.value.as_str(), disk.pools.iter().map(|pool| pool.value.as_str()).collect()))
            .collect();
        assert_eq!(disks, [("/fast/one", vec![]), ("/big", vec!["big", "default"])]);
        assert_eq!((file.compression, file.block.map(|block| block.value)), (RunCompression::Zstd, Some(128 << 10)));
        assert!(file.buffer);
        let empty = load_on("here", "# nothing yet\n").expect("nothing is fine");
        assert!(
            empty.memory.is_none()
                && !empty.buffer
                && empty.disks.is_empty()
                && empty.compression == RunCompression::Auto
        );
    }

    #[test]
    fn a_node_comes_before_what_all_have() {
        let yaml = "memory: 1GB\nscratch: {disks: [/a], compression: lz4}\nnodes:\n  big: {memory: 8GB, scratch: \
                    {disks: \
                    [/b, /c]}}\n  small: {cores: 1}\n";
        let big = load_on("big", yaml).expect("a node");
        assert_eq!((big.memory.map(|memory| memory.value), big.disks.len()), (Some(8_000_000_000), 2));
        assert_eq!(big.compression, RunCompression::Lz4);
        let small = load_on("small", yaml).expect("a node");
        assert_eq!((small.memory.map(|memory| memory.value), small.disks.len()), (Some(1_000_000_000), 1));
        assert_eq!(small.cores.map(|cores| cores.value), Some(1));
        insta::assert_snapshot!(load_on("other", yaml).expect_err("no such node"));
    }

    #[test]
    fn pools_of_a_node_come_before_those_of_all() {
        let yaml = "pools: {db: 4, web: 2}\nnodes:\n  big: {pools: {db: 16}}\n  small: {}\n";
        let sizes = |node: &str| -> Vec<(String, usize)> {
            let file = load_on(node, yaml).expect("a node");
            file.pools.into_iter().map(|(name, pool)| (name, pool.value)).collect()
        };
        assert_eq!(sizes("big"), [("db".to_owned(), 16), ("web".to_owned(), 2)]);
        assert_eq!(sizes("small"), [("db".to_owned(), 4), ("web".to_owned(), 2)]);
        insta::assert_snapshot!(load_on("here", "pools: {db: 0, web: many}\n").expect_err("no sizes"));
    }

    #[test]
    fn all_faults_come_at_once_with_their_places() {
        let yaml = "memroy: 1GB\ncores: 0\nscratch:\n  disks: []\n  compression: gzip\n  block: many\nnodes: {here: \
                    {disks: \
                    [/a]}}\n";
        insta::assert_snapshot!(load_on("here", yaml).expect_err("many faults"));
        insta::assert_snapshot!(
            load_on("here", "scratch: {disks: [{folder: /a}, {pools: [x]}, '']}\n").expect_err("half disks")
        );
        insta::assert_snapshot!(load_on("here", "- memory\n").expect_err("a list"));
    }
}

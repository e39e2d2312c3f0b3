//! From the keys of a job file that apply to its runs to what they become: with the faults that the schema cannot say.

use std::time::Duration;

use millstream_core::hint::did_you_mean;
use millstream_core::spec::Duration as Time;
use serde_json::Value;

use crate::around::{
    Allow, Around, AroundKeys, Hook, HookAction, HookKeys, MailKeys, Required, Requirement, RequirementKeys,
    ThrottleKeys,
};
use crate::build::Builder;
use crate::graph::SourceStep;
use crate::lint::Lint;
use crate::text::{JobText, Span};
use crate::tree::{Entry, Kind, Node};
use crate::walk::Walker;

/// The slowest that a throttle may be, in bytes a second.
const LEAST_RATE: u64 = 1000;

/// Gathers what the job file says of its runs.
pub struct Gathering<'b, 'a> {
    /// Lints entries, and builds what reads.
    pub builder: &'b mut Builder<'a>,
    /// The schemas of the keys of a job.
    pub properties: &'a Value,
    /// The entries of `sources`.
    pub entries: &'a [Entry],
    /// Those of them that could be built.
    pub steps: &'b [SourceStep],
    /// The secrets that were found.
    pub secrets: Vec<String>,
}

/// What is wrong with `allow`, which is `entry`.
pub(crate) fn allow_lint(allow: &Allow, entry: &Entry, text: &JobText) -> Option<Lint> {
    let (pattern, why) = allow.broken_pattern()?;
    let what = format!("`{pattern}` in `allow` is no regular expression: {why}");
    Some(text.error(entry.key_span, what).hint("escape what is meant as it stands, or list the values"))
}

impl Gathering<'_, '_> {
    /// What `root` says.
    pub fn around(mut self, root: &Node) -> Around {
        let mut around = Around::default();
        if let Some(entry) = self.sound(root, "until") {
            around.until = self.builder.read(&entry.value);
        }
        if let Some(entry) = self.sound(root, "commit") {
            around.commit = self.builder.read(&entry.value).unwrap_or_default();
        }
        around.keep_rejects = self.kept_for(root);
        self.of_queues(root);
        if let Some(entry) = self.sound(root, "require") {
            around.requirements = self.requirements(entry);
        }
        if let Some(entry) = self.sound(root, "retry_run") {
            around.retry_run = self.builder.read(&entry.value);
            self.is_read_once(entry);
        }
        if let Some(entry) = self.sound(root, "throttle") {
            around.throttle = self.throttle(entry);
        }
        if let Some(entry) = self.sound(root, "hours") {
            around.hours = self.builder.read(&entry.value);
            self.can_be_left(entry);
        }
        if let Some(entry) = self.sound(root, "priority") {
            around.priority = self.builder.read(&entry.value).unwrap_or_default();
        }
        if let Some(entry) = self.sound(root, "allow") {
            around.allow = self.builder.read(&entry.value).unwrap_or_default();
            self.builder.found.lints.extend(allow_lint(&around.allow, entry, self.builder.text));
        }
        if let Some(entry) = self.sound(root, "on_success") {
            around.on_success = self.hooks(entry);
        }
        if let Some(entry) = self.sound(root, "on_failure") {
            around.on_failure = self.hooks(entry);
        }
        around.secrets = self.secrets;
        around
    }

    /// The entry `key`, if the schema finds no fault with it.
    fn sound<'n>(&mut self, root: &'n Node, key: &str) -> Option<&'n Entry> {
        let entry = root.entry(key)?;
        let walker = Walker { text: self.builder.text, definitions: self.builder.definitions };
        let mut found = walker.entry(entry, &self.properties[key]);
        let is_sound = found.lints.is_empty() && !entry.value.has_unknown();
        let all = &mut self.builder.found;
        all.lints.append(&mut found.lints);
        all.exposed.append(&mut found.exposed);
        self.secrets.extend(found.secrets.iter().map(|(secret, _)| secret.clone()));
        all.secrets.append(&mut found.secrets);
        is_sound.then_some(entry)
    }

    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.builder.found.lints.push(self.builder.text.error(span, what).hint(hint));
    }

    /// Whether exactly one of `keys` is in `item`, which is called `name`.
    fn has_one(&mut self, item: &Node, name: &str, keys: &[&str]) -> bool {
        let mut there = item.entries().iter().filter(|entry| keys.contains(&entry.key.as_str()));
        let all = format!("it has one of: {}", keys.join(", "));
        match (there.next(), there.next()) {
            (Some(_), None) => return true,
            (None, _) => self.error(item.span, format!("this {name} says nothing"), all),
            (Some(first), Some(second)) => {
                let what = format!("this {name} has both `{}` and `{}`", first.key, second.key);
                self.error(second.key_span, what, format!("{all}; give each an item of its own"));
            }
        }
        false
    }

    fn requirements(&mut self, entry: &Entry) -> Vec<Requirement> {
        items(&entry.value).iter().filter_map(|item| self.requirement(item)).collect()
    }

    fn requirement(&mut self, item: &Node) -> Option<Requirement> {
        if !self.has_one(item, "requirement", &["exists", "query", "units", "age"]) {
            return None;
        }
        let RequirementKeys { message, otherwise, units, age, .. } = self.builder.read(item)?;
        let what = match (item.entry("exists"), item.get("query"), units, age) {
            (Some(exists), ..) => Required::Exists(Box::new(self.exists(exists)?)),
            (_, Some(query), ..) => Required::Query(Box::new(self.query(query)?)),
            (.., Some(units), _) => self.is_source(item.get("units")?, &units.of).then_some(Required::Units(units))?,
            (.., age) => {
                let age = age?;
                self.is_source(item.get("age")?, &age.of).then_some(Required::Age(age))?
            }
        };
        Some(Requirement { what, message, otherwise })
    }

    /// What reads the files one of which has to exist.
    fn exists(&mut self, exists: &Entry) -> Option<SourceStep> {
        let pattern = exists.value.scalar()?.text.clone();
        if let Some(what) = not_of_files(self.builder, &pattern) {
            self.error(exists.value.span, what, "`exists` is for files, paths and URLs; `query` asks a database");
            return None;
        }
        self.source(exists.key_span, vec![named("read", &exists.value)])
    }

    /// What reads a query.
    fn query(&mut self, query: &Node) -> Option<SourceStep> {
        let (place, sql) = (query.entry("in")?, query.entry("sql")?);
        let url = place.value.scalar()?.text.clone();
        let Some(kind) = self.builder.registry.source_for(&url).filter(|kind| is_database(kind)) else {
            self.error(
                place.value.span,
                "this is no database",
                "write its URL, such as `mysql://`, `postgres://`, `sqlite:`",
            );
            return None;
        };
        let block = query.entry(kind.spec.name);
        let settings = block.map(|block| block.value.entries().to_vec()).unwrap_or_default();
        let settings = settings.into_iter().chain([named("query", &sql.value)]).collect();
        let span = block.map_or(place.key_span, |block| block.key_span);
        let block = Entry { key: kind.spec.name.to_owned(), key_span: span, value: block_of(query.span, settings) };
        self.source(place.key_span, vec![named("read", &place.value), block])
    }

    /// A source that only a requirement reads.
    fn source(&mut self, span: Span, entries: Vec<Entry>) -> Option<SourceStep> {
        let entry = Entry { key: "require".to_owned(), key_span: span, value: block_of(span, entries) };
        self.builder.source(&entry)
    }

    /// Whether `name` is a source of files, as `node` asks of it.
    fn is_source(&mut self, node: &Node, name: &str) -> bool {
        let span = node.get("of").map_or(node.span, |of| of.span);
        if !self.entries.iter().any(|entry| entry.key == name) {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.key.as_str()).collect();
            self.error(span, format!("there is no source `{name}`"), did_you_mean(name, "sources", &names));
            return false;
        }
        let step = self.steps.iter().find(|step| step.name.value == name);
        let mut patterns = step.into_iter().flat_map(|step| &step.read).map(|pattern| pattern.value.clone());
        let what = patterns.find_map(|pattern| not_of_files(self.builder, &pattern));
        if let Some(what) = what {
            self.error(span, format!("`{name}` has no files: {what}"), "name a source of files");
            return false;
        }
        true
    }

    fn throttle(&mut self, entry: &Entry) -> ThrottleKeys {
        let throttle: ThrottleKeys = self.builder.read(&entry.value).unwrap_or_default();
        if throttle.bytes_per_second.is_some_and(|bytes| bytes.0 < LEAST_RATE) {
            let span = entry.value.get("bytes_per_second").map_or(entry.key_span, |bytes| bytes.span);
            self.error(span, "`bytes_per_second` is at least `1kB`", "write how many bytes a second, such as `10MiB`");
        }
        if throttle == ThrottleKeys::default() {
            self.error(entry.key_span, "`throttle` limits nothing", "give it `bytes_per_second` or `connections`");
        }
        throttle
    }

    /// How long rejects are kept, if the job reads a queue.
    fn kept_for(&mut self, root: &Node) -> Option<Duration> {
        let said =
            self.sound(root, "keep_rejects").and_then(|entry| Some((entry, self.builder.read::<Time>(&entry.value)?)));
        if let Some((entry, time)) = said
            && time.0 < Duration::from_secs(1)
        {
            self.error(entry.value.span, "`keep_rejects` is at least `1s`", "write a longer time, such as `30d`");
        }
        let reads_queue = self.steps.iter().any(|step| step.queue().is_some());
        let time = said.map_or(AroundKeys::default().keep_rejects, |(_, time)| time);
        reads_queue.then_some(time.0)
    }

    /// Whether the job says of queues what it has to say, and nothing if it reads none.
    fn of_queues(&mut self, root: &Node) {
        let mut queues = self.steps.iter().filter(|step| step.queue().is_some());
        let (first, second) = (queues.next(), queues.next());
        if let (Some(_), Some(second)) = (first, second) {
            self.error(second.name.span, "a job reads one queue", "write a job of its own for this one");
        }
        if let (Some(queue), None) = (first, root.entry("until")) {
            let what = format!(
                "`{}` is a queue, which has no end, and the job does not say `until` when it runs",
                queue.name.value
            );
            self.error(
                queue.name.span,
                what,
                "write `until: stopped`, `empty`, `now`, `{rows: N}` or `{for: 10m}` beside `sources`",
            );
        }
        // One that could not be built may be a queue.
        if first.is_some() || self.steps.len() < self.entries.len() {
            return;
        }
        for key in ["until", "commit", "keep_rejects"] {
            if let Some(entry) = root.entry(key) {
                self.error(entry.key_span, format!("`{key}` is for jobs that read a queue"), "remove it");
            }
        }
    }

    /// Warns of a run that cannot be retried.
    fn is_read_once(&mut self, entry: &Entry) {
        let once = self.steps.iter().find_map(|step| Some((&step.name.value, step.reads_once()?)));
        if let Some((name, what)) = once {
            let what = format!("`retry_run` has no effect: `{name}` reads {what}, which can be read only once");
            let lint = self.builder.text.warning(entry.key_span, what);
            self.builder.found.lints.push(lint.hint("remove it, or read from a file"));
        }
    }

    /// A run whose hours end is resumed later. What of a queue is not acknowledged comes again.
    fn can_be_left(&mut self, entry: &Entry) {
        let mut others = self.steps.iter().filter(|step| step.queue().is_none());
        let once = others.find_map(|step| Some((&step.name.value, step.reads_once()?)));
        if let Some((name, what)) = once {
            let what = format!("`hours` cannot be kept: `{name}` reads {what}, which can be read only once");
            self.error(entry.key_span, what, "remove it, or read from a file");
        }
    }

    fn hooks(&mut self, entry: &Entry) -> Vec<Hook> {
        items(&entry.value).iter().filter_map(|item| self.hook(item)).collect()
    }

    fn hook(&mut self, item: &Node) -> Option<Hook> {
        if !self.has_one(item, "hook", &["command", "webhook", "mail"]) {
            return None;
        }
        let HookKeys { command, webhook, mail, timeout } = self.builder.read(item)?;
        let span = item.entries().first().map_or(item.span, |entry| entry.key_span);
        let action = match (command, webhook, mail) {
            (Some(command), ..) => HookAction::Command(command),
            (_, Some(webhook), _) => HookAction::Webhook(webhook),
            (.., mail) => HookAction::Mail(mail.filter(|mail| self.has_recipients(mail, span))?),
        };
        Some(Hook { action, timeout: timeout.0.0, span })
    }

    fn has_recipients(&mut self, mail: &MailKeys, span: Span) -> bool {
        let to = mail.to.clone().into_vec();
        let has_all = !to.is_empty() && to.iter().all(|to| to.contains('@'));
        if !has_all {
            self.error(span, "a recipient of the mail has no address", "write `to: ops@example.com`");
        }
        has_all
    }
}

/// Why `pattern` stands for no files.
pub fn not_of_files(builder: &Builder<'_>, pattern: &str) -> Option<String> {
    let kind = builder.registry.source_for(pattern)?;
    let reads = match kind.spec.name {
        "stdin" => "standard input",
        crate::entries::COMMAND => "a program",
        _ if kind.rows => "a database",
        _ => return None,
    };
    Some(format!("it is {reads}"))
}

fn is_database(kind: &millstream_core::registry::SourceEntry) -> bool {
    kind.rows && kind.spec.name != crate::entries::COMMAND
}

fn items(node: &Node) -> &[Node] {
    match &node.kind {
        Kind::List(items) => items,
        _ => &[],
    }
}

fn named(key: &str, value: &Node) -> Entry {
    Entry { key: key.to_owned(), key_span: value.span, value: value.clone() }
}

fn block_of(span: Span, entries: Vec<Entry>) -> Node {
    Node { span, kind: Kind::Block(entries) }
}

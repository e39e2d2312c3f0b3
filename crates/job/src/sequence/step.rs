//! From the entries of `steps` to typed steps, with the faults that the schema cannot say: every step by itself. How
//! steps depend on each other is [`super::links`]'s.

use millstream_core::hint::did_you_mean;
use millstream_core::spec::TextOrSecret;

use super::conditions::Conditions;
use super::model::{
    Action, FileAction, Hidden, LetterAction, QueryAction, RequestAction, Retries, Step, WaitAction, When,
};
use super::schema::STEP;
use super::spec::{LetterKeys, RequestKeys, StepKeys, WaitKeys};
use super::template::Template;
use super::{items, sources};
use crate::build::{Builder, name_of, text};
use crate::lint::{Lint, LintCode};
use crate::text::Span;
use crate::tree::{Entry, Kind, Node};

/// The keys that say what a step does.
pub(crate) const KINDS: [&str; 7] = ["job", "sequence", "command", "query", "wait", "webhook", "mail"];

/// Keys that are for some kinds only.
const FOR_KINDS: [(&str, &[&str]); 4] = [
    ("from", &["query"]),
    ("set", &["job", "sequence"]),
    ("keep_running", &["job"]),
    ("memory", &["job", "sequence", "command"]),
];

/// Builds the steps of one file and collects what is wrong.
pub(crate) struct Steps<'b, 'a> {
    /// Lints entries, and builds what reads queries.
    pub(crate) builder: &'b mut Builder<'a>,
    /// What conditions are checked with.
    pub(crate) conditions: Conditions<'b>,
    /// The pools of the machine file, if there is one.
    pub(crate) pools: Option<&'b [String]>,
    /// The blocks that a query may have beside it.
    pub(crate) databases: Vec<&'static str>,
}

impl Steps<'_, '_> {
    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.builder.found.lints.push(self.builder.text.error(span, what).hint(hint));
    }

    /// An entry of `steps`.
    pub(crate) fn step(&mut self, entry: &Entry) -> Option<Step> {
        let before = self.builder.found.lints.len();
        self.builder.walk(entry, STEP);
        let node = &entry.value;
        explain(entry, &mut self.builder.found.lints[before..]);
        if !matches!(node.kind, Kind::Block(_)) {
            return None;
        }
        let kind = self.one_kind(entry);
        self.misfits(entry, kind);
        self.pool(node);
        let when = text(node.get("when"));
        let when = when.map_or(When::Success, |when| self.conditions.when(&when, &mut self.builder.found.lints));
        let queries = self.queries(entry);
        let for_each = self.for_each(node);
        let is_faulty = self.builder.found.lints[before..].iter().any(Lint::is_error);
        if is_faulty || node.has_unknown() {
            return None;
        }
        let keys: StepKeys = self.builder.read(node)?;
        let action = self.action(node, kind?, &keys, queries)?;
        Some(Step {
            name: name_of(entry),
            action,
            when,
            retries: keys.retries.map(|retries| Retries { count: retries.count, wait: retries.wait.0 }),
            time_limit: keys.time_limit.map(|limit| limit.0),
            pool: text(node.get("pool")),
            for_each,
            keep_running: keys.keep_running,
            memory: keys.memory.map(|memory| memory.0),
        })
    }

    /// The one thing that a step does.
    fn one_kind<'n>(&mut self, entry: &'n Entry) -> Option<&'n str> {
        let keys = entry.value.entries();
        let mut kinds = keys.iter().filter(|key| KINDS.contains(&key.key.as_str()));
        match (kinds.next(), kinds.next()) {
            (Some(kind), None) => return Some(&kind.key),
            (Some(first), Some(second)) => {
                let what = format!("`{}` does two things: `{}` and `{}`", entry.key, first.key, second.key);
                self.error(second.key_span, what, "split it into two steps, one of which needs the other");
            }
            // A key that is none has been reported, and may be meant for what it does.
            (None, _) if keys.iter().any(|key| !self.is_key(&key.key)) => {}
            (None, _) => {
                let hint = format!("give it one of: {}", KINDS.join(", "));
                self.error(entry.key_span, format!("`{}` does nothing", entry.key), hint);
            }
        }
        None
    }

    fn is_key(&self, key: &str) -> bool {
        let step = self.builder.definitions.get(STEP);
        step.and_then(|step| step["properties"].get(key)).is_some()
    }

    /// Keys that are not for a step of this kind.
    fn misfits(&mut self, entry: &Entry, kind: Option<&str>) {
        let node = &entry.value;
        if let Some(kind) = kind {
            let databases = self.databases.iter().map(|name| (*name, &["query"][..]));
            for (key, kinds) in FOR_KINDS.into_iter().chain(databases.collect::<Vec<_>>()) {
                if let (Some(misfit), false) = (node.entry(key), kinds.contains(&kind)) {
                    let what = format!("`{key}` is not for steps with `{kind}`");
                    self.error(misfit.key_span, what, format!("it is for: {}; remove it", kinds.join(", ")));
                }
            }
        }
        if let (Some(parallel), None) = (node.entry("parallel"), node.get("for_each")) {
            let hint = "add `for_each`, or remove it: steps run together if they do not need each other";
            self.error(parallel.key_span, "`parallel` is for steps with `for_each`", hint);
        }
        let is_kept = node.get("keep_running").is_some_and(|kept| kept.to_value() == serde_json::Value::Bool(true));
        if let (Some(retries), true) = (node.entry("retries"), is_kept) {
            let what = "`retries` has no effect: a job that is kept running starts again whenever it ends";
            let lint = self.builder.text.warning(retries.key_span, what).hint("remove it");
            self.builder.found.lints.push(lint);
        }
        for key in [&["time_limit"][..], &["wait", "every"]] {
            let limit = key.iter().try_fold(node, |node, key| node.get(key));
            let is_zero = |node: &&Node| {
                node.scalar().is_some_and(|one| one.text.trim_end_matches(char::is_alphabetic).parse() == Ok(0.0))
            };
            if let Some(limit) = limit.filter(is_zero) {
                let name = key.last().copied().unwrap_or_default();
                self.error(limit.span, format!("`{name}` must be more than 0"), "write a longer time, such as `10s`");
            }
        }
    }

    fn pool(&mut self, node: &Node) {
        let Some(pool) = text(node.get("pool")) else { return };
        let Some(pools) = self.pools else {
            let what = format!("the pool `{}` limits nothing without a machine file", pool.value);
            let hint = format!("write `pools: {{{}: 4}}` into a file, and name it with `--machine`", pool.value);
            self.builder.found.lints.push(self.builder.text.warning(pool.span, what).hint(hint));
            return;
        };
        if pools.contains(&pool.value) {
            return;
        }
        let names: Vec<&str> = pools.iter().map(String::as_str).collect();
        let what = format!("the machine file has no pool `{}`", pool.value);
        let hint = match names.is_empty() {
            true => {
                format!("write into the machine file how many steps of it run together: pools: {{{}: 4}}", pool.value)
            }
            false => did_you_mean(&pool.value, "pools", &names),
        };
        self.error(pool.span, what, hint);
    }

    /// The queries of the step itself and of its wait, which are checked whatever else is wrong.
    fn queries(&mut self, entry: &Entry) -> [Option<QueryAction>; 2] {
        let own = self.query(entry);
        let wait = entry.value.entry("wait").and_then(|wait| {
            self.wait_faults(wait);
            self.query(wait)
        });
        [own, wait]
    }

    /// `query` and `from` of a block, which come together.
    fn query(&mut self, block: &Entry) -> Option<QueryAction> {
        let node = &block.value;
        let query = node.entry("query")?;
        let Some(from) = node.entry("from") else {
            let what = format!("`{}` does not say which database its query is for", block.key);
            self.error(query.key_span, what, "add `from`, such as `from: postgres://etl@db.example/shop`");
            return None;
        };
        let blocks = node.entries().iter().filter(|entry| self.databases.contains(&entry.key.as_str()));
        let blocks: Vec<Entry> = blocks.cloned().collect();
        let action = QueryAction {
            query: Template::of(&query.value)?,
            from: Template::of(&from.value)?,
            block: blocks.first().cloned(),
        };
        if action.from.known().is_some() && !from.value.has_unknown() && text(Some(&from.value)).is_some() {
            // What is read is known once the step starts; here only the settings are looked at.
            sources::query_source(self.builder, from, &query.value, &blocks);
        }
        Some(action)
    }

    /// A pattern of files; one of which a part is known later is looked at then.
    fn files(&mut self, files: Option<&Entry>) {
        let is_known = |entry: &&Entry| {
            text(Some(&entry.value)).is_some_and(|text| !text.value.is_empty())
                && Template::of(&entry.value).is_some_and(|template| template.known().is_some())
        };
        if let Some(files) = files.filter(is_known) {
            sources::files_source(self.builder, files);
        }
    }

    fn wait_faults(&mut self, wait: &Entry) {
        let node = &wait.value;
        if !matches!(node.kind, Kind::Block(_)) {
            return;
        }
        match (node.entry("file"), node.entry("query")) {
            (Some(_), Some(query)) => {
                let hint = "keep one of them, and wait for the other in a step of its own";
                self.error(query.key_span, "this waits for both `file` and `query`", hint);
            }
            (None, None)
                if node.entries().iter().all(|key| ["from", "until", "for", "every"].contains(&key.key.as_str())) =>
            {
                self.error(wait.key_span, "this waits for nothing", "give it one of: file, query");
            }
            (Some(_), None) => {
                for key in ["from", "until"].into_iter().chain(self.databases.clone()) {
                    if let Some(misfit) = node.entry(key) {
                        self.error(misfit.key_span, format!("`{key}` is not for waits for a file"), "remove it");
                    }
                }
            }
            _ => {}
        }
        self.files(node.entry("file"));
        if let Some(until) = text(node.get("until")) {
            self.conditions.sql(&until, "row", &mut self.builder.found.lints);
            if let Some(reference) = super::references::in_sql(&until).first() {
                let what = "`until` knows the columns of the query alone, and no results of steps";
                self.error(reference.span, what, "write `${steps.NAME.RESULT}` into the query itself");
            }
        }
    }

    fn for_each(&mut self, node: &Node) -> Option<super::model::ForEach> {
        let entry = node.get("for_each")?.entries().first()?;
        self.files(entry.value.entry("files"));
        // Without a database the schema has reported it.
        let query = entry.value.get("from").and_then(|_| self.query(entry));
        let parallel = node.get("parallel").and_then(|parallel| parallel.to_value().as_u64()).unwrap_or(1);
        items::read(entry, query, parallel as usize, self.builder.text, &mut self.builder.found.lints)
    }

    /// What a sound step does.
    fn action(
        &mut self,
        node: &Node,
        kind: &str,
        keys: &StepKeys,
        [query, waited]: [Option<QueryAction>; 2],
    ) -> Option<Action> {
        let value = node.get(kind)?;
        Some(match kind {
            "job" => Action::Job(file(node, value)?),
            "sequence" => Action::Sequence(file(node, value)?),
            "command" => {
                let faults = keys.command.as_ref().map(|command| command.faults("")).unwrap_or_default();
                let entry = node.entry(kind)?;
                let lints = super::model::lints_of(faults, entry, self.builder.text);
                if !lints.is_empty() {
                    self.builder.found.lints.extend(lints);
                    return None;
                }
                Action::Command(templates(value))
            }
            "query" => Action::Query(Box::new(query?)),
            "wait" => Action::Wait(wait(value, keys.wait.as_ref()?, waited)?),
            "webhook" => Action::Webhook(Box::new(request(value, keys.webhook.as_ref()?)?)),
            _ => Action::Mail(self.letter(value, keys.mail.as_ref()?)?),
        })
    }

    fn letter(&mut self, node: &Node, keys: &LetterKeys) -> Option<LetterAction> {
        let to = templates(node.get("to")?);
        let bare = to.iter().find(|to| to.known().is_some_and(|to| !to.contains('@')));
        if bare.is_some() || to.is_empty() {
            let span = bare.map_or(node.entry("to")?.key_span, |to| to.text.span);
            self.error(span, "a recipient of the mail has no address", "write `to: ops@example.com`");
            return None;
        }
        let subject = node.get("subject").and_then(Template::of);
        Some(LetterAction { to, subject, attach: keys.attach })
    }
}

/// What other tools call the keys of a step.
const SYNONYMS: [(&[&str], &str); 9] = [
    (&["depends_on", "dependsOn", "depends", "after", "upstream", "requires"], "needs"),
    (&["if", "condition", "trigger_rule"], "when"),
    (&["timeout", "execution_timeout"], "time_limit"),
    (&["retry", "retry_run", "tries"], "retries"),
    (&["vars", "variables", "params", "parameters", "env", "with"], "set"),
    (&["foreach", "loop", "matrix", "with_items"], "for_each"),
    (&["run", "shell", "script", "bash", "exec"], "command"),
    (&["sql"], "query"),
    (&["in", "database", "connection"], "from"),
];

/// What to write in place of a value of which only the type is wrong.
const FORMS: [(&str, &str); 5] = [
    ("retries", "write how often: {count: 3, wait: 1m}"),
    ("for_each", "name the variable that has the item: {NAME: [a, b]}"),
    ("wait", "write {file: PATH}, or {query: SQL, from: DATABASE}"),
    ("webhook", "write {url: URL}"),
    ("mail", "write {to: ops@example.com}"),
];

/// Adds hints to `lints`, which the schema has found in `entry`.
fn explain(entry: &Entry, lints: &mut [Lint]) {
    for key in entry.value.entries() {
        let name = key.key.as_str();
        let unknown = lints.iter_mut().filter(|lint| lint.code == LintCode::UnknownKey && lint.is_at(key.key_span));
        for lint in unknown {
            if let Some((_, ours)) = SYNONYMS.iter().find(|(words, _)| words.contains(&name)) {
                lint.hint = Some(format!("did you mean `{ours}`?"));
            }
            if name == "on_failure" || name == "on_success" {
                let when = name.trim_start_matches("on_");
                lint.hint = Some(format!("write a step of its own with `needs: {}` and `when: {when}`", entry.key));
            }
        }
        let form = FORMS.iter().find(|(form, _)| *form == name && !matches!(key.value.kind, Kind::Block(_)));
        if let Some((_, form)) = form {
            let bare = lints.iter_mut().filter(|lint| lint.hint.is_none() && lint.is_at(key.report_span()));
            bare.for_each(|lint| lint.hint = Some((*form).to_owned()));
        }
    }
}

fn file(node: &Node, path: &Node) -> Option<FileAction> {
    let set = node.get("set").map(Node::entries).unwrap_or_default();
    let set = set.iter().map(|entry| Some((name_of(entry), Template::of(&entry.value)?)));
    Some(FileAction { file: text(Some(path))?, set: set.collect::<Option<Vec<_>>>()? })
}

/// One text or a list of them.
fn templates(node: &Node) -> Vec<Template> {
    match &node.kind {
        Kind::List(items) => items.iter().filter_map(Template::of).collect(),
        _ => Template::of(node).into_iter().collect(),
    }
}

fn wait(node: &Node, keys: &WaitKeys, query: Option<QueryAction>) -> Option<WaitAction> {
    let what = match (node.get("file"), query) {
        (Some(file), _) => super::model::Awaited::File(Template::of(file)?),
        (None, query) => super::model::Awaited::Query { query: Box::new(query?), until: text(node.get("until")) },
    };
    Some(WaitAction { what, limit: keys.r#for.map(|limit| limit.0), every: keys.every.0 })
}

fn request(node: &Node, keys: &RequestKeys) -> Option<RequestAction> {
    let hidden = |value: &TextOrSecret, node: &Node| match value {
        TextOrSecret::Secret(secret) => Some(Hidden::Secret(secret.clone())),
        TextOrSecret::Text(_) => Template::of(node).map(Hidden::Text),
    };
    let header =
        |(name, value): (&String, &TextOrSecret)| Some((name.clone(), hidden(value, node.get("headers")?.get(name)?)?));
    Some(RequestAction {
        url: hidden(&keys.url, node.get("url")?)?,
        method: keys.method,
        body: node.get("body").and_then(Template::of),
        headers: keys.headers.iter().map(header).collect::<Option<Vec<_>>>()?,
        ca: keys.ca.clone(),
    })
}

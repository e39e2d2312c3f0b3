//! Lints a part of the tree against a JSON schema: all faults at once, each with its place.
//!
//! It knows the part of JSON schema that `schemars` writes for plain structs and enums: types, keys, choices, ranges,
//! patterns, references, and alternatives. Of alternatives that all fail it tells the faults of the closest one,
//! since "no alternative matched" helps nobody. What a schema cannot say is left to the components.

use millstream_core::hint::{did_you_mean, nearest};
use millstream_core::program::COMMAND_LINE;
use serde_json::{Map, Value};

use crate::lint::{Lint, LintCode};
use crate::schema::resolve;
use crate::text::{JobText, Span};
use crate::tree::{Entry, Kind, Node, Scalar, Typed};

/// What a walk found.
#[derive(Debug, Default)]
pub struct Found {
    /// The faults.
    pub lints: Vec<Lint>,
    /// Places of secrets that stand in the file, though they should not: they must not be shown.
    pub exposed: Vec<Span>,
    /// References to secrets (`env:NAME`) and their places.
    pub secrets: Vec<(String, Span)>,
}

/// Walks nodes of one file with the definitions of one schema.
#[derive(Clone, Copy)]
pub struct Walker<'a> {
    /// The file.
    pub text: &'a JobText,
    /// What `$ref` refers to.
    pub definitions: &'a Map<String, Value>,
}

/// A node under examination: what it is called, and where its faults are shown.
#[derive(Clone, Copy)]
struct Subject<'a> {
    node: &'a Node,
    name: &'a str,
    at: Span,
}

/// What should stand in the place of a node.
struct Wanted<'a> {
    /// In words.
    expected: &'a str,
    /// What a text has to look like, if not any text does.
    form: Option<String>,
    /// Whether it is a program and its arguments.
    takes_words: bool,
}

impl<'a> Walker<'a> {
    /// Lints the value of `entry` against `schema`.
    pub fn entry(&self, entry: &Entry, schema: &Value) -> Found {
        let mut found = Found::default();
        self.walk(Subject { node: &entry.value, name: &entry.key, at: entry.report_span() }, schema, &mut found);
        found
    }

    fn walk(&self, subject: Subject<'_>, schema: &Value, found: &mut Found) {
        if subject.node.scalar().is_some_and(|scalar| scalar.typed == Typed::Unknown) {
            return;
        }
        let schema = resolve(schema, self.definitions);
        if schema == &Value::Bool(false) {
            return found.lints.push(self.text.error(subject.at, format!("`{}` cannot be given here", subject.name)));
        }
        if is_secret(schema) && self.secret(subject, found) {
            return;
        }
        if let Some(choices) = choices(schema, self.definitions) {
            return self.choice(subject, &choices, found);
        }
        for keyword in ["oneOf", "anyOf"] {
            if let Some(branches) = schema.get(keyword).and_then(Value::as_array) {
                self.alternatives(subject, branches, found);
            }
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            if part.get("not").is_none() && part.get("if").is_none() {
                self.walk(subject, part, found);
            }
        }
        if !self.type_fits(subject, schema) {
            return self.wrong_type(subject, schema, found);
        }
        match &subject.node.kind {
            Kind::Block(entries) => self.block(subject, entries, schema, found),
            Kind::List(items) => self.list(subject, items, schema, found),
            Kind::Scalar(scalar) => self.scalar(subject, scalar, schema, found),
        }
    }

    /// What stands where a reference to a secret must be is itself the secret: its places are kept so that nobody
    /// shows it. Whether that was a text, and all is said.
    fn secret(&self, subject: Subject<'_>, found: &mut Found) -> bool {
        if let Some(reference) = subject.node.get("secret").and_then(Node::scalar) {
            let span = subject.node.get("secret").map_or(subject.at, |node| node.span);
            found.secrets.push((reference.text.clone(), span));
            return false;
        }
        self.expose(subject.node, &mut found.exposed);
        if subject.node.scalar().is_none_or(|scalar| scalar.typed == Typed::Null) {
            return false;
        }
        let mut lint = self.text.error(subject.at, format!("`{}` is a secret and is not allowed here", subject.name));
        lint.text.clear();
        found.lints.push(lint.hint("refer to it: `{secret: env:NAME}` or `{secret: file:PATH}`"));
        true
    }

    /// Every scalar of `node`; one that spans lines takes all of each line.
    fn expose(&self, node: &Node, exposed: &mut Vec<Span>) {
        match &node.kind {
            Kind::Scalar(scalar) => {
                exposed.push(node.span);
                let others = scalar.positions.iter().map(|place| place.line).filter(|line| *line != node.span.line);
                exposed.extend(others.map(|line| Span {
                    line,
                    column: 1,
                    length: self.text.line(line).chars().count(),
                }));
                exposed.dedup();
            }
            Kind::List(items) => items.iter().for_each(|item| self.expose(item, exposed)),
            Kind::Block(entries) => entries.iter().for_each(|entry| self.expose(&entry.value, exposed)),
        }
    }

    fn type_fits(&self, subject: Subject<'_>, schema: &Value) -> bool {
        let types = types(schema);
        types.is_empty() || types.iter().any(|one| has_type(subject.node, one))
    }

    fn wrong_type(&self, subject: Subject<'_>, schema: &Value, found: &mut Found) {
        let expected: Vec<&str> = types(schema).into_iter().filter(|one| *one != "null").map(type_in_words).collect();
        let form = schema.get("pattern").and_then(|_| self.description(schema));
        let wanted = Wanted { expected: &expected.join(" or "), form, takes_words: is_command_line(schema) };
        self.unexpected(subject, wanted, found);
    }

    fn unexpected(&self, subject: Subject<'_>, wanted: Wanted<'_>, found: &mut Found) {
        let Wanted { expected, form, takes_words } = wanted;
        let node = subject.node;
        let what = if node.is_null() {
            format!("`{}` has no value: expected {expected}", subject.name)
        } else {
            format!("expected {expected} for `{}`, found {}", subject.name, in_words(node))
        };
        let mut lint = self.text.error(subject.at, what);
        let command = node.scalar().filter(|scalar| takes_words && scalar.typed == Typed::Text);
        lint.hint = match command {
            Some(command) => {
                Some(format!("write the program and its arguments as a list: {}", as_words(command.shown())))
            }
            None => form.filter(|_| is_number(node)).or_else(|| remedy(node, expected)),
        };
        found.lints.push(lint);
    }

    fn choice(&self, subject: Subject<'_>, choices: &[&str], found: &mut Found) {
        let text = subject.node.scalar().filter(|scalar| scalar.typed == Typed::Text).map(|scalar| &scalar.text);
        if text.is_some_and(|text| choices.contains(&text.as_str())) {
            return;
        }
        let shown = subject.node.scalar().map_or("", Scalar::shown);
        let what = if subject.node.is_null() {
            format!("`{}` has no value", subject.name)
        } else {
            format!("{} is not a choice for `{}`", in_words(subject.node), subject.name)
        };
        found.lints.push(self.text.error(subject.at, what).hint(did_you_mean(shown, "choices", choices)));
    }

    fn alternatives(&self, subject: Subject<'_>, branches: &[Value], found: &mut Found) {
        let mut tried: Vec<(&Value, Found)> = Vec::new();
        for branch in branches {
            let mut inner = Found::default();
            self.walk(subject, branch, &mut inner);
            if inner.lints.is_empty() {
                found.secrets.extend(inner.secrets);
                return;
            }
            tried.push((resolve(branch, self.definitions), inner));
        }
        for (_, inner) in &mut tried {
            found.exposed.append(&mut inner.exposed);
        }
        let fitting: Vec<usize> =
            (0..tried.len()).filter(|&index| self.nearness(subject.node, tried[index].0) > 0).collect();
        let best = fitting.into_iter().max_by_key(|&index| {
            (self.nearness(subject.node, tried[index].0), usize::MAX - tried[index].1.lints.len())
        });
        let takes_text = tried.iter().any(|(branch, _)| types(branch).contains(&"string"));
        match best {
            Some(index) if takes_text && is_secret(tried[index].0) && subject.node.scalar().is_some() => {
                found.lints.push(self.no_text(subject));
            }
            Some(index) => found.lints.append(&mut tried[index].1.lints),
            None => {
                let mut expected: Vec<String> = Vec::new();
                for words in branches.iter().filter_map(|branch| self.expectation(branch)) {
                    if !expected.contains(&words) {
                        expected.push(words);
                    }
                }
                let takes_words = branches.iter().any(|branch| self.wants(branch, is_command_line));
                let wanted = Wanted { expected: &expected.join(" or "), form: None, takes_words };
                self.unexpected(subject, wanted, found);
            }
        }
    }

    /// Where there can be a text or a reference to a secret, there is a number or the like. It may be a secret.
    fn no_text(&self, subject: Subject<'_>) -> Lint {
        let what = format!("`{}` is neither text nor a reference to a secret", subject.name);
        let mut lint = self.text.error(subject.at, what);
        lint.text.clear();
        lint.hint("put it in quotes, or refer to a secret: `{secret: env:NAME}` or `{secret: file:PATH}`")
    }

    /// How near `node` is to what a branch wants: 0 if not even the type is right; then, for blocks, the keys that it
    /// knows count, and what its constant keys say counts most.
    fn nearness(&self, node: &Node, branch: &Value) -> usize {
        let branch = resolve(branch, self.definitions);
        if choices(branch, self.definitions).is_some() {
            return usize::from(has_type(node, "string"));
        }
        if is_secret(branch) && node.scalar().is_some() {
            return 1;
        }
        for keyword in ["oneOf", "anyOf"] {
            if let Some(inner) = branch.get(keyword).and_then(Value::as_array) {
                return inner.iter().map(|one| self.nearness(node, one)).max().unwrap_or(0);
            }
        }
        let types = types(branch);
        if !types.is_empty() && !types.iter().any(|one| has_type(node, one)) {
            return 0;
        }
        let known = branch.get("properties").and_then(Value::as_object);
        let score = |(key, property): (&String, &Value)| match (node.get(key), property.get("const")) {
            (Some(value), Some(constant)) if value.to_value() == *constant => 100,
            (Some(_), None) => 1,
            _ => 0,
        };
        1 + known.map_or(0, |known| known.iter().map(score).sum())
    }

    /// What a branch wants, in words; nothing for `null`.
    fn expectation(&self, branch: &Value) -> Option<String> {
        let branch = resolve(branch, self.definitions);
        if let Some(choices) = choices(branch, self.definitions) {
            return Some(format!("one of {}", choices.join(", ")));
        }
        if is_secret(branch) {
            return Some("a reference to a secret".to_owned());
        }
        for keyword in ["oneOf", "anyOf"] {
            if let Some(inner) = branch.get(keyword).and_then(Value::as_array) {
                let words: Vec<String> = inner.iter().filter_map(|one| self.expectation(one)).collect();
                return (!words.is_empty()).then(|| words.join(" or "));
            }
        }
        let required = branch.get("required").and_then(Value::as_array).and_then(|keys| keys.first());
        if let Some(key) = required.and_then(Value::as_str) {
            return Some(format!("a block with `{key}`"));
        }
        let words: Vec<&str> = types(branch).into_iter().filter(|one| *one != "null").map(type_in_words).collect();
        (!words.is_empty()).then(|| words.join(" or "))
    }

    fn block(&self, subject: Subject<'_>, entries: &[Entry], schema: &Value, found: &mut Found) {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let others = schema.get("additionalProperties");
        let mut cut_off = 0;
        for (index, entry) in entries.iter().enumerate() {
            let inner = Subject { node: &entry.value, name: &entry.key, at: entry.report_span() };
            if cut_off > 0 {
                cut_off -= 1;
                continue;
            }
            match (properties.get(&entry.key), others) {
                (Some(property), _) => self.walk(inner, property, found),
                (None, Some(Value::Bool(false))) if self.is_cut_off(&entries[..=index], properties) => {
                    let is_more = |more: &usize| self.is_cut_off(&entries[..=*more], properties);
                    cut_off = (index + 1..entries.len()).take_while(is_more).count();
                    let (before, rest) = (&entries[index - 1], &entries[index..=index + cut_off]);
                    let mut is_secret = properties.get(&before.key).is_some_and(|one| self.wants(one, is_secret));
                    // A password in a URL that is cut in two looks like none.
                    is_secret |= before.value.scalar().is_some_and(|scalar| scalar.text.contains("://"));
                    if is_secret {
                        found.exposed.push(before.value.span);
                        found.exposed.extend(rest.iter().map(|entry| entry.key_span));
                    }
                    found.lints.push(self.cut_off(before, rest, !is_secret));
                }
                (None, Some(Value::Bool(false))) => found.lints.push(self.unknown_key(entry, subject.name, properties)),
                (None, Some(schema)) => self.walk(inner, schema, found),
                (None, None) => {}
            }
        }
        for key in required(schema, entries) {
            // An unknown key that is this one with a slip of the pen has been told, with this one as its hint.
            let is_slip = |entry: &Entry| {
                !properties.contains_key(&entry.key)
                    && nearest(&entry.key, properties.keys().map(String::as_str)) == Some(key)
            };
            if !entries.iter().any(|entry| entry.key == key || is_slip(entry)) {
                let mut lint = self.text.error(subject.at, format!("the key `{key}` is missing in `{}`", subject.name));
                lint.hint = properties.get(key).and_then(|property| self.description(property));
                found.lints.push(lint);
            }
        }
        self.count(subject, entries.len(), schema, ("minProperties", "maxProperties"), ("key", "keys"), found);
    }

    /// Whether `schema` or one of its choices is what `is_meant` says.
    fn wants(&self, schema: &Value, is_meant: fn(&Value) -> bool) -> bool {
        let schema = resolve(schema, self.definitions);
        let branches = ["oneOf", "anyOf"].iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
        is_meant(schema) || branches.into_iter().any(|branch| self.wants(branch, is_meant))
    }

    /// A comma inside braces has ended the value of `before`, and what stands behind it is read as keys. With `shown`
    /// the value may be repeated.
    fn cut_off(&self, before: &Entry, rest: &[Entry], shown: bool) -> Lint {
        let Some(first) = rest.first().filter(|_| shown) else {
            let mut lint = self.text.error(before.key_span, format!("a comma ends the value of `{}`", before.key));
            lint.text.clear();
            return lint.hint("inside `{ }`, put a value that holds a comma in quotes");
        };
        let parts = rest.iter().map(|entry| entry.key.as_str());
        let whole: Vec<&str> = before.value.scalar().map(Scalar::shown).into_iter().chain(parts).collect();
        let whole = whole.join(", ");
        let quoted = match whole.contains('"') {
            true => format!("'{}'", whole.replace('\'', "''")),
            false => format!("\"{whole}\""),
        };
        let what = format!("the comma before `{}` ends the value of `{}`", first.key, before.key);
        let hint = format!("inside `{{ }}`, put a value that holds a comma in quotes: {}: {quoted}", before.key);
        self.text.error(first.key_span, what).hint(hint)
    }

    /// Whether the last of `entries` is no key but the rest of the text before it: it is unknown, has no value, and
    /// stands behind a comma.
    fn is_cut_off(&self, entries: &[Entry], properties: &Map<String, Value>) -> bool {
        let [.., before, last] = entries else { return false };
        let has_nothing =
            last.value.scalar().is_some_and(|scalar| scalar.typed == Typed::Null && scalar.text.is_empty());
        let follows_text = match properties.contains_key(&before.key) {
            true => before.value.scalar().is_some_and(|scalar| scalar.plain && scalar.typed == Typed::Text),
            false => self.is_cut_off(&entries[..entries.len() - 1], properties),
        };
        let follows_comma = self.text.before(last.key_span.start()) == Some(',');
        !properties.contains_key(&last.key) && has_nothing && follows_comma && follows_text
    }

    fn unknown_key(&self, entry: &Entry, name: &str, properties: &Map<String, Value>) -> Lint {
        let keys: Vec<&str> = properties.keys().map(String::as_str).collect();
        let lint = self.text.error(entry.key_span, format!("unknown key `{}` in `{name}`", entry.key));
        let hint = did_you_mean(&entry.key, "valid keys", &keys);
        let holds = |schema: &Value| self.has_key(schema, &entry.key);
        let blocks: Vec<String> =
            properties.iter().filter(|(_, schema)| holds(schema)).map(|(block, _)| format!("`{block}`")).collect();
        let hint = match blocks.split_last() {
            _ if hint.starts_with("did you mean") => hint,
            None => hint,
            Some((only, [])) => format!("`{}` is a key of the block {only}; {hint}", entry.key),
            Some((last, others)) => {
                format!("`{}` is a key of the blocks {} and {last}; {hint}", entry.key, others.join(", "))
            }
        };
        lint.code(LintCode::UnknownKey).hint(hint)
    }

    /// Whether `schema` or one of its choices is a block with the key `key`.
    fn has_key(&self, schema: &Value, key: &str) -> bool {
        let schema = resolve(schema, self.definitions);
        let branches = ["oneOf", "anyOf"].iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
        let own = schema.get("properties").and_then(Value::as_object);
        own.is_some_and(|own| own.contains_key(key)) || branches.into_iter().any(|branch| self.has_key(branch, key))
    }

    /// The first sentence of what the schema says of a value.
    fn description(&self, schema: &Value) -> Option<String> {
        let text = schema
            .get("description")
            .or_else(|| resolve(schema, self.definitions).get("description"))
            .and_then(Value::as_str)?;
        let line = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        Some(lower_case(line.trim_end_matches('.')))
    }

    fn list(&self, subject: Subject<'_>, items: &[Node], schema: &Value, found: &mut Found) {
        if let Some(item_schema) = schema.get("items") {
            for item in items {
                self.walk(Subject { node: item, name: subject.name, at: item.span }, item_schema, found);
            }
        }
        self.count(subject, items.len(), schema, ("minItems", "maxItems"), ("item", "items"), found);
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            let values: Vec<Value> = items.iter().map(Node::to_value).collect();
            for (index, item) in items.iter().enumerate() {
                if values[..index].contains(&values[index]) {
                    let what = format!("{} is given twice in `{}`", in_words(item), subject.name);
                    found.lints.push(self.text.error(item.span, what).hint("remove one of them"));
                }
            }
        }
    }

    fn count(
        &self,
        subject: Subject<'_>,
        count: usize,
        schema: &Value,
        (least, most): (&str, &str),
        (one, several): (&str, &str),
        found: &mut Found,
    ) {
        let limit = |keyword| schema.get(keyword).and_then(Value::as_u64).map(|limit| limit as usize);
        let wanted = match (limit(least), limit(most)) {
            (Some(limit), _) if count < limit => format!("at least {limit}"),
            (_, Some(limit)) if count > limit => format!("at most {limit}"),
            _ => return,
        };
        let unit = if count == 1 { one } else { several };
        let what = format!("`{}` has {count} {unit}, and needs {wanted}", subject.name);
        found.lints.push(self.text.error(subject.at, what).code(LintCode::Count));
    }

    fn scalar(&self, subject: Subject<'_>, scalar: &Scalar, schema: &Value, found: &mut Found) {
        match scalar.typed {
            Typed::Integer(value) => self.range(subject, value as f64, schema, found),
            Typed::Float(value) => self.range(subject, value, schema, found),
            Typed::Text => self.form(subject, scalar, schema, found),
            _ => {}
        }
    }

    fn range(&self, subject: Subject<'_>, value: f64, schema: &Value, found: &mut Found) {
        let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
        let (least, above) = (limit("minimum"), limit("exclusiveMinimum"));
        let (most, below) = (limit("maximum"), limit("exclusiveMaximum"));
        let wanted = if least.is_some_and(|least| value < least) {
            least.map(|least| format!("at least {least}"))
        } else if above.is_some_and(|above| value <= above) {
            above.map(|above| format!("more than {above}"))
        } else if most.is_some_and(|most| value > most) {
            most.map(|most| format!("at most {most}"))
        } else if below.is_some_and(|below| value >= below) {
            below.map(|below| format!("less than {below}"))
        } else {
            None
        };
        if let Some(wanted) = wanted {
            let what = format!("`{}` must be {wanted}, found {}", subject.name, in_words(subject.node));
            let mut lint = self.text.error(subject.at, what);
            lint.hint = match (least, most) {
                (Some(least), Some(most)) => Some(format!("{least} to {most}")),
                _ => None,
            };
            found.lints.push(lint);
        }
    }

    fn form(&self, subject: Subject<'_>, scalar: &Scalar, schema: &Value, found: &mut Found) {
        let characters = scalar.text.chars().count();
        let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_u64).map(|limit| limit as usize);
        let (least, most) = (limit("minLength").unwrap_or(0), limit("maxLength").unwrap_or(usize::MAX));
        if characters < least || characters > most {
            let what = match (least, most) {
                _ if characters == 0 => format!("`{}` is empty", subject.name),
                (1, 1) => format!("`{}` is one character, found {}", subject.name, in_words(subject.node)),
                (least, _) if characters < least => format!("`{}` has at least {least} characters", subject.name),
                _ => format!("`{}` has at most {most} characters, found {characters}", subject.name),
            };
            let mut lint = self.text.error(subject.at, what);
            lint.hint = self.description(schema);
            return found.lints.push(lint);
        }
        let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else { return };
        // A pattern that this engine cannot read is left to the component's own conversion.
        if regex::Regex::new(pattern).is_ok_and(|regex| !regex.is_match(&scalar.text)) {
            let what = format!("{} does not have the form that `{}` requires", in_words(subject.node), subject.name);
            let mut lint = self.text.error(subject.at, what);
            lint.hint = Some(self.description(schema).unwrap_or_else(|| format!("it must match {pattern}")));
            found.lints.push(lint);
        }
    }
}

/// Descriptions are sentences, hints begin in lower case; abbreviations stay.
fn lower_case(sentence: &str) -> String {
    let mut characters = sentence.chars();
    let (first, second) = (characters.next(), characters.clone().next());
    match first {
        Some(first) if !second.is_some_and(char::is_uppercase) => first.to_lowercase().chain(characters).collect(),
        _ => sentence.to_owned(),
    }
}

/// `null` is a choice of some settings, and YAML reads it as nothing: where `schema` has that choice it becomes text.
pub fn settle(node: &mut Node, schema: &Value, definitions: &Map<String, Value>) {
    let schema = resolve(schema, definitions);
    match &mut node.kind {
        Kind::Scalar(scalar) if scalar.typed == Typed::Null && scalar.text == "null" => {
            let branches = schema.get("anyOf").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
            let has_null = |schema| {
                choices(resolve(schema, definitions), definitions).is_some_and(|choices| choices.contains(&"null"))
            };
            if has_null(schema) || branches.iter().any(has_null) {
                scalar.typed = Typed::Text;
            }
        }
        Kind::Block(entries) => {
            for entry in entries {
                if let Some(property) = schema.get("properties").and_then(|keys| keys.get(&entry.key)) {
                    settle(&mut entry.value, property, definitions);
                }
            }
        }
        _ => {}
    }
}

/// The keys that a block with `entries` must have: those of `required`, and of the `else` of a schema whose `if` asks
/// for keys that are not there.
fn required<'a>(schema: &'a Value, entries: &'a [Entry]) -> impl Iterator<Item = &'a str> {
    let keys = |schema: Option<&'a Value>| {
        let keys = schema.and_then(|schema| schema.get("required")).and_then(Value::as_array);
        keys.into_iter().flatten().filter_map(Value::as_str)
    };
    let is_there = |key: &str| entries.iter().any(|entry| entry.key == key);
    let holds = keys(schema.get("if")).all(is_there);
    keys(Some(schema)).chain(keys(schema.get("else")).filter(move |_| !holds))
}

/// A reference to a secret is a block with the one key `secret`.
fn is_secret(schema: &Value) -> bool {
    let keys = schema.get("properties").and_then(Value::as_object);
    keys.is_some_and(|keys| keys.len() == 1 && keys.contains_key("secret"))
}

/// The choices of an enumeration of texts: `enum`, `const`, or alternatives of these.
fn choices<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> Option<Vec<&'a str>> {
    if let Some(constant) = schema.get("const") {
        return constant.as_str().map(|text| vec![text]);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(Value::as_str).collect();
    }
    let branches = ["oneOf", "anyOf"].iter().find_map(|keyword| schema.get(keyword).and_then(Value::as_array))?;
    let mut all = Vec::new();
    for branch in branches {
        all.extend(choices(resolve(branch, definitions), definitions)?);
    }
    Some(all)
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn has_type(node: &Node, name: &str) -> bool {
    match &node.kind {
        Kind::Block(_) => name == "object",
        Kind::List(_) => name == "array",
        Kind::Scalar(scalar) => match scalar.typed {
            Typed::Null => name == "null",
            Typed::Bool(_) => name == "boolean",
            Typed::Integer(_) => name == "integer" || name == "number",
            Typed::Float(value) => name == "number" && value.is_finite(),
            Typed::Text => name == "string",
            Typed::Unknown => true,
        },
    }
}

fn is_number(node: &Node) -> bool {
    node.scalar().is_some_and(|scalar| matches!(scalar.typed, Typed::Integer(_) | Typed::Float(_)))
}

fn type_in_words(name: &str) -> &str {
    match name {
        "string" => "text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a block of keys",
        other => other,
    }
}

/// What a node is, in words.
pub fn in_words(node: &Node) -> String {
    let scalar = match &node.kind {
        Kind::Block(_) => return "a block of keys".to_owned(),
        Kind::List(_) => return "a list".to_owned(),
        Kind::Scalar(scalar) => scalar,
    };
    let shown = millstream_core::error::printable(scalar.shown().as_bytes());
    match scalar.typed {
        Typed::Null => "nothing".to_owned(),
        Typed::Bool(_) => format!("`{shown}`"),
        Typed::Integer(_) => format!("the whole number {shown}"),
        Typed::Float(_) => format!("the number {shown}"),
        Typed::Text | Typed::Unknown => format!("the text `{shown}`"),
    }
}

/// Whether a schema is that of a program and its arguments.
fn is_command_line(schema: &Value) -> bool {
    schema.get("format").and_then(Value::as_str) == Some(COMMAND_LINE)
}

/// The words of a command line as a list in YAML. What only a shell understands is left to one.
fn as_words(text: &str) -> String {
    const OF_SHELLS: &[char] = &['|', '>', '<', ';', '&', '$', '`', '*', '?', '\'', '"', '\\', '~'];
    // `${NAME}` is a variable of the job.
    let words = match text.replace("${", "").contains(OF_SHELLS) {
        true => vec!["sh", "-c", text],
        false => text.split_whitespace().collect(),
    };
    let word = |word: &&str| {
        let is_plain = word.chars().all(|one| one.is_alphanumeric() || "/._-+=:@%".contains(one))
            && word.trim_start_matches('-').starts_with(|one: char| one.is_alphanumeric() || "/._".contains(one))
            && !word.ends_with(':')
            && matches!(crate::tree::type_of_plain(word), Typed::Text | Typed::Integer(_));
        if is_plain { (*word).to_owned() } else { Value::from(*word).to_string() }
    };
    format!("[{}]", words.iter().map(word).collect::<Vec<_>>().join(", "))
}

/// What to do about a scalar of the wrong type.
fn remedy(node: &Node, expected: &str) -> Option<String> {
    let scalar = node.scalar()?;
    let lower = scalar.text.to_lowercase();
    if expected.starts_with("text") && !matches!(scalar.typed, Typed::Text | Typed::Null) {
        return Some(format!("put it in quotes: \"{}\"", scalar.text));
    }
    if expected == "true or false" && matches!(lower.as_str(), "yes" | "no" | "on" | "off" | "y" | "n") {
        return Some("write `true` or `false`".to_owned());
    }
    if let Some(shown) = Some(scalar.shown()).filter(|shown| !shown.is_empty() && scalar.typed != Typed::Null) {
        if expected == "a list" {
            return Some(format!("write it as a list: [{shown}]"));
        }
        // One key of a block can be meant by its value alone; of several, nobody knows which.
        let key = expected.strip_prefix("a block with `").and_then(|rest| rest.strip_suffix('`'));
        if let Some(key) = key.filter(|key| !key.contains('`')) {
            return Some(format!("write {{{key}: {shown}}}"));
        }
    }
    let retyped = crate::tree::type_of_plain(&scalar.text);
    let would_fit = match expected {
        "a whole number" => matches!(retyped, Typed::Integer(_)),
        "a number" => matches!(retyped, Typed::Integer(_) | Typed::Float(_)),
        "true or false" => matches!(retyped, Typed::Bool(_)),
        _ => false,
    };
    match &scalar.unfilled {
        None => (scalar.typed == Typed::Text && would_fit).then(|| "remove the quotes".to_owned()),
        Some(_) if would_fit && !scalar.plain => Some(
            "write the variable without quotes, outside of `{ }` and `[ ]`: then its value determines its type"
                .to_owned(),
        ),
        Some(unfilled) => Some(format!("the value of `{unfilled}` is not {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::as_words;

    #[test]
    fn a_command_as_text_becomes_a_list() {
        assert_eq!(as_words("cat x"), "[cat, x]");
        assert_eq!(as_words(" ./step  --all -n 5"), "[./step, --all, -n, 5]");
        assert_eq!(as_words("day ${DAY} true 1.5 -"), r#"[day, "${DAY}", "true", "1.5", "-"]"#);
        assert_eq!(as_words("grep -v '#' | ./reduce"), r#"[sh, -c, "grep -v '#' | ./reduce"]"#);
        assert_eq!(as_words(r#"echo "a""#), r#"[sh, -c, "echo \"a\""]"#);
    }
}

//! How the entries of a job depend on each other: unknown names, rings, entries that nothing uses.
//!
//! The settings of transforms say by their schema which texts are names or SQL ([`crate::settings`]). It works on the
//! tree, so that one broken entry does not hide what is wrong with the names of the others.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::hint::did_you_mean;
use millstream_core::transform::{KEYS_BESIDE, TextKind};
use serde_json::{Map, Value};

use crate::build::{all_texts, sort_key, text};
use crate::entries::CHECKS;
use crate::graph::{Located, SqlFault};
use crate::lint::Lint;
use crate::schema::TRANSFORM;
use crate::settings::Settings;
use crate::text::{JobText, Span};
use crate::tree::{Entry, Node};

/// Which tables a SQL query names, or why it is none.
pub type References<'a> = dyn Fn(&str) -> Result<Vec<String>, SqlFault> + 'a;

/// The three sections of a job file, as far as they are there.
pub struct Sections<'a> {
    /// Entries of `sources`.
    pub sources: &'a [Entry],
    /// Entries of `transforms`.
    pub transforms: &'a [Entry],
    /// Entries of `sinks`.
    pub sinks: &'a [Entry],
    /// Entries of `functions`.
    pub functions: &'a [Entry],
}

/// What the links of a job are, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Links {
    /// For each transform the sources and transforms it uses, each once, in the order of their naming.
    pub uses: BTreeMap<String, Vec<String>>,
    /// Transforms that name something unknown, that are part of a ring, or whose SQL is none.
    pub broken: BTreeSet<String>,
    /// The faults.
    pub lints: Vec<Lint>,
}

/// Finds what uses what.
pub fn link(
    sections: &Sections<'_>,
    text: &JobText,
    definitions: &Map<String, Value>,
    references: &References<'_>,
) -> Links {
    let steps = sections.sources.iter().chain(sections.transforms);
    let mut linker = Linker {
        text,
        definitions,
        references,
        steps: steps.map(|entry| entry.key.as_str()).collect(),
        used: BTreeSet::new(),
        complete: true,
        links: Links::default(),
    };
    linker.twice(sections);
    for entry in sections.transforms {
        let before = linker.links.lints.len();
        let uses = linker.transform(entry);
        if linker.links.lints.len() > before {
            linker.links.broken.insert(entry.key.clone());
        }
        linker.links.uses.insert(entry.key.clone(), uses);
    }
    for entry in sections.sinks {
        linker.named(entry.value.get("from"));
    }
    linker.rings(sections.transforms);
    linker.unused(sections);
    linker.unused_functions(sections);
    linker.links
}

struct Linker<'a> {
    text: &'a JobText,
    definitions: &'a Map<String, Value>,
    references: &'a References<'a>,
    steps: Vec<&'a str>,
    used: BTreeSet<String>,
    /// Whether all uses are known: a query that does not parse may use anything.
    complete: bool,
    links: Links,
}

impl Linker<'_> {
    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.links.lints.push(self.text.error(span, what).hint(hint));
    }

    /// A source and a transform share their names.
    fn twice(&mut self, sections: &Sections<'_>) {
        for entry in sections.transforms {
            if let Some(source) = sections.sources.iter().find(|source| source.key == entry.key) {
                let what = format!("`{}` is already the name of a source", entry.key);
                let hint = format!("rename it, or the source in line {}", source.key_span.line);
                self.links.broken.insert(entry.key.clone());
                self.error(entry.key_span, what, hint);
            }
        }
    }

    /// The name of an entry.
    fn named(&mut self, node: Option<&Node>) -> Option<String> {
        match text(node) {
            Some(name) => self.name(name),
            None => {
                self.complete = false;
                None
            }
        }
    }

    fn name(&mut self, name: Located<String>) -> Option<String> {
        if self.steps.contains(&name.value.as_str()) {
            self.used.insert(name.value.clone());
            return Some(name.value);
        }
        self.unknown(&name.value, name.span);
        None
    }

    fn unknown(&mut self, name: &str, span: Span) {
        self.complete = false;
        // Without any the job lacks its sources, and that is said already.
        if !self.steps.is_empty() {
            let hint = did_you_mean(name, "sources and transforms", &self.steps);
            self.error(span, format!("there is no source or transform `{name}`"), hint);
        }
    }

    /// What an entry of `transforms` uses.
    fn transform(&mut self, entry: &Entry) -> Vec<String> {
        let mut uses = Vec::new();
        for kind in entry.value.entries().iter().filter(|kind| !KEYS_BESIDE.contains(&kind.key.as_str())) {
            let schema = self.definitions.get(TRANSFORM).and_then(|one| one.get("properties")?.get(&kind.key));
            match schema {
                Some(schema) => uses.extend(self.settings(&Settings::read(&kind.value, schema, self.definitions))),
                // Whatever it was meant to be, it reads something.
                None => uses.extend(self.named(kind.value.get("from"))),
            }
        }
        if entry.value.entries().is_empty() {
            self.complete = false;
        }
        let mut once = Vec::new();
        for name in uses {
            if !once.contains(&name) {
                once.push(name);
            }
        }
        once
    }

    /// What the texts of a transform's settings name: first in SQL, then as entries.
    fn settings(&mut self, settings: &Settings) -> Vec<String> {
        self.complete &= settings.complete;
        let mut uses = Vec::new();
        for query in settings.of(TextKind::Query) {
            uses.extend(self.query(query));
        }
        let from = settings.of(TextKind::EntryName).next().map_or("", |from| from.value.as_str());
        for expression in settings.of(TextKind::Expression) {
            uses.extend(self.expression(from, expression));
        }
        // A key that is none has been told.
        for key in settings.of(TextKind::SortTerm).filter_map(|term| sort_key(term).ok()) {
            uses.extend(self.expression(from, &key.expression));
        }
        for name in settings.of(TextKind::EntryName) {
            uses.extend(self.name(name.clone()));
        }
        uses
    }

    fn query(&mut self, sql: &Located<String>) -> Vec<String> {
        if sql.value.trim().is_empty() {
            self.complete = false;
            return Vec::new();
        }
        self.tables(sql, &sql.value, 0)
    }

    /// An expression can hold queries. It is asked about as the column of a query, in lines of its own, so that places
    /// stay right.
    fn expression(&mut self, table: &str, expression: &Located<String>) -> Vec<String> {
        let query = format!("SELECT\n{}\nFROM \"{}\"", expression.value, table.replace('"', "\"\""));
        let found = self.tables(expression, &query, 1);
        found.into_iter().filter(|name| name != table).collect()
    }

    /// The tables of `query`, which is `sql` behind `lines_before` other lines.
    fn tables(&mut self, sql: &Located<String>, query: &str, lines_before: usize) -> Vec<String> {
        let names = match (self.references)(query) {
            Ok(names) => names,
            Err(fault) => {
                self.complete = false;
                self.sql_fault(sql, &fault, lines_before);
                return Vec::new();
            }
        };
        let mut known = Vec::new();
        for name in names {
            if self.steps.contains(&name.as_str()) {
                self.used.insert(name.clone());
                known.push(name);
            } else if lines_before == 0 || find_word(&sql.value, &name).is_some() {
                self.unknown_table(sql, &name);
            }
        }
        known
    }

    fn unknown_table(&mut self, sql: &Located<String>, name: &str) {
        let span = find_word(&sql.value, name)
            .map_or(sql.span, |(line, column)| Span::at(sql.locate(line, column), name.chars().count()));
        // SQL folds names without quotes to lower case.
        match self.steps.iter().find(|step| step.eq_ignore_ascii_case(name)).copied() {
            Some(step) => {
                self.complete = false;
                self.error(
                    span,
                    format!("SQL reads this name as `{name}`, and the entry is called `{step}`"),
                    format!("write \"{step}\" in double quotes, or name the entry in lower case"),
                );
            }
            None => self.unknown(name, span),
        }
    }

    fn sql_fault(&mut self, sql: &Located<String>, fault: &SqlFault, lines_before: usize) {
        let mut lint = self.text.error(fault_span(sql, fault, lines_before), fault.what.clone());
        lint.hint = fault.hint.clone();
        self.links.lints.push(lint);
    }

    /// Tells each ring once, where its first entry stands.
    fn rings(&mut self, transforms: &[Entry]) {
        let mut done = BTreeSet::new();
        for entry in transforms {
            let mut way = Vec::new();
            self.follow(&entry.key, transforms, &mut way, &mut done);
        }
    }

    /// Follows all uses of `name` without recursion: a long chain of transforms must not overflow the stack.
    fn follow(
        &mut self,
        name: &str,
        transforms: &[Entry],
        way: &mut Vec<(String, usize)>,
        done: &mut BTreeSet<String>,
    ) {
        if done.contains(name) {
            return;
        }
        way.push((name.to_owned(), 0));
        while let Some((current, next)) = way.last_mut() {
            let current_name = current.clone();
            let used = self.links.uses.get(&current_name).and_then(|uses| uses.get(*next)).cloned();
            *next += 1;
            let Some(used) = used else {
                way.pop();
                done.insert(current_name);
                continue;
            };
            if let Some(start) = way.iter().position(|(step, _)| *step == used) {
                let ring: Vec<String> = way[start..].iter().map(|(step, _)| step.clone()).collect();
                self.ring(&ring, transforms);
            } else if !done.contains(&used) {
                way.push((used, 0));
            }
        }
    }

    fn ring(&mut self, ring: &[String], transforms: &[Entry]) {
        self.links.broken.extend(ring.iter().cloned());
        let first = transforms.iter().find(|entry| ring.contains(&entry.key));
        let Some(first) = first else { return };
        let start = ring.iter().position(|step| *step == first.key).unwrap_or(0);
        let mut shown: Vec<&str> = ring[start..].iter().chain(&ring[..start]).map(String::as_str).collect();
        shown.push(&first.key);
        let what = match ring {
            [one] => format!("`{one}` reads itself"),
            _ => {
                let others = shown[1..].join("`, which reads `");
                format!("`{}` reads itself indirectly: it reads `{others}`", first.key)
            }
        };
        self.error(first.key_span, what, "a step can only read steps that do not need it");
    }

    fn unused(&mut self, sections: &Sections<'_>) {
        if !self.complete {
            return;
        }
        for (entries, kind) in [(sections.sources, "source"), (sections.transforms, "transform")] {
            for entry in entries.iter().filter(|entry| !self.used.contains(&entry.key)) {
                let lint = self.text.warning(entry.key_span, format!("nothing uses the {kind} `{}`", entry.key));
                self.links.lints.push(lint.hint("let a sink or a transform read it, or remove it"));
            }
        }
    }
}

impl Linker<'_> {
    /// A function is used if its name stands in any text where there may be SQL.
    fn unused_functions(&mut self, sections: &Sections<'_>) {
        let mut texts = Vec::new();
        let entries = sections.transforms.iter().chain(sections.sinks);
        entries.for_each(|entry| all_texts(&entry.value, &mut texts));
        // Of a source only the checks take SQL.
        let checks = sections.sources.iter().filter_map(|entry| entry.value.get(CHECKS));
        checks.for_each(|checks| all_texts(checks, &mut texts));
        for entry in sections.functions {
            if !texts.iter().any(|text| find_word(&text.value, &entry.key).is_some()) {
                let lint = self.text.warning(entry.key_span, format!("nothing calls the function `{}`", entry.key));
                self.links.lints.push(lint.hint("call it in the SQL of a transform, or remove it"));
            }
        }
    }
}

/// Where the file has a fault of `sql`, which was parsed behind `lines_before` other lines.
pub fn fault_span(sql: &Located<String>, fault: &SqlFault, lines_before: usize) -> Span {
    let lines = sql.value.split('\n').count();
    match fault.line.checked_sub(lines_before) {
        Some(line) if line > 0 && fault.column > 0 && line <= lines => {
            Span::at(sql.locate(line, fault.column), word_length(&sql.value, line, fault.column))
        }
        // Behind the end: something is missing there.
        Some(line) if line > lines => Span::at(sql.locate(lines, usize::MAX), 1),
        _ => sql.span,
    }
}

/// Line and column (from 1) of `word` in `sql`, as a whole word outside of quotes and comments; failing that, quoted.
fn find_word(sql: &str, word: &str) -> Option<(usize, usize)> {
    let characters: Vec<char> = sql.chars().collect();
    let wanted: Vec<char> = word.chars().collect();
    let is_word = |character: Option<&char>| character.is_some_and(|one| one.is_alphanumeric() || *one == '_');
    let same = |at: usize| {
        characters.len() >= at + wanted.len()
            && characters[at..at + wanted.len()]
                .iter()
                .zip(&wanted)
                .all(|(one, other)| one.to_lowercase().eq(other.to_lowercase()))
    };
    let (mut line, mut column, mut quote, mut comment) = (1, 1, None, false);
    let (mut best, mut previous) = (None, String::new());
    let mut current = String::new();
    for (at, &character) in characters.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|index| characters.get(index));
        let starts = !is_word(before) && same(at) && !is_word(characters.get(at + wanted.len()));
        if starts && !comment && quote != Some('\'') {
            let behind_from = matches!(previous.to_ascii_lowercase().as_str(), "from" | "join");
            if behind_from {
                return Some((line, column));
            }
            best = best.or(Some((line, column)));
        }
        match (comment, quote, character) {
            (true, _, '\n') => comment = false,
            (true, ..) => {}
            (_, Some(open), _) if open == character => quote = None,
            (_, Some(_), _) => {}
            (_, None, '\'' | '"') => quote = Some(character),
            (_, None, '-') if characters.get(at + 1) == Some(&'-') => comment = true,
            _ => {}
        }
        if is_word(Some(&character)) {
            current.push(character);
        } else if !current.is_empty() {
            previous = std::mem::take(&mut current);
        }
        if character == '\n' {
            line += 1;
            column = 1;
        } else {
            column += 1;
        }
    }
    best
}

/// Characters of the word or quoted text at a place; at least 1.
fn word_length(sql: &str, line: usize, column: usize) -> usize {
    let rest: Vec<char> = sql.split('\n').nth(line - 1).unwrap_or_default().chars().skip(column - 1).collect();
    let is_word = |character: &char| character.is_alphanumeric() || *character == '_';
    match rest.first() {
        Some(quote @ ('\'' | '"')) => {
            rest.iter().skip(1).position(|character| character == quote).map_or(1, |end| end + 2)
        }
        Some(first) if is_word(first) => rest.iter().take_while(|character| is_word(character)).count(),
        _ => 1,
    }
}

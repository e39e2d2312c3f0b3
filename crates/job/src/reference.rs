//! The reference of the job file, in Markdown, generated from the specs: every key, its type, its default, what it is
//! for, and an example of each component.

use std::fmt::Write;

use millstream_core::Registry;
use millstream_core::registry::SinkFormats;
use millstream_core::spec::SpecInfo;
use serde_json::{Map, Value};

use crate::schema::{FUNCTION, SOURCE, TRANSFORM, resolve, schema, sink_definition};

/// The reference as one Markdown document.
pub fn reference(registry: &Registry) -> String {
    let schema = schema(registry);
    let none = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    let mut writer = Writer { schema: &schema, definitions, output: String::new() };
    writer.document(registry);
    writer.output
}

/// The reference of the machine file as one Markdown document.
pub fn machine_reference() -> String {
    let schema = crate::machine::schema();
    let none = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    let mut writer = Writer { schema: &schema, definitions, output: String::new() };
    writer.line("# The machine file\n");
    writer.line("<!-- Generated from its specs. Change those, not this file. -->\n");
    writer.line(
        "A YAML file that says what a machine has; a job file does not. It is given with `--machine FILE` or in \
         `MILLSTREAM_MACHINE`. All of it may be left out; the command line takes precedence over the file. `${NAME}` \
         stands for a variable of the environment.\n",
    );
    writer.keys(&schema, &[], 3);
    writer.line(
        "```yaml\nmemory: 4GiB\nscratch:\n  disks:\n    - /fast/scratch\n    - {folder: /large/scratch, pools: \
         [large]}\n  \
         compression: lz4\nnodes:\n  night-server:\n    memory: 64GiB\n```",
    );
    writer.output
}

/// The reference of the files of sequences as one Markdown document. `schedule` is what may stand under that key.
pub fn sequence_reference(registry: &Registry, schedule: &SpecInfo) -> String {
    let schema = crate::sequence::schema(registry);
    let none = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    let mut writer = Writer { schema: &schema, definitions, output: String::new() };
    writer.line("# The sequence file\n");
    writer.line("<!-- Generated from its specs. Change those, not this file. -->\n");
    writer.line(
        "A YAML file with `steps` is a sequence: it runs jobs and other things in order. Paths in it begin at its \
         folder, and its steps run there, however it is started. `${NAME}` stands for a parameter or a variable of the \
         environment; dates are computed as in jobs.\n",
    );
    writer.keys(&schema, &[], 0);
    writer.line(&format!("```yaml\n{}\n```\n", SEQUENCE_EXAMPLE.trim_matches('\n')));
    writer.line("## The schedule\n");
    writer.line(&format!("{} It starts under `millstream schedule`.\n", schedule.summary));
    let mut generator = schemars::SchemaGenerator::default();
    let keys = (schedule.schema)(&mut generator).to_value();
    let of_schedule = generator.take_definitions(true);
    let keys = resolve(&keys, &of_schedule).clone();
    let mut inner = Writer { schema: &keys, definitions: &of_schedule, output: String::new() };
    inner.keys(&keys, &[], 2);
    writer.output.push_str(&inner.output);
    writer.line("## A step\n");
    let description = definitions.get("StepKeys").and_then(|step| step["description"].as_str()).unwrap_or_default();
    writer.line(&format!("{description}\n"));
    let databases = crate::sequence::sources::databases(registry);
    writer.table("StepKeys", &databases, 0);
    for (title, definition) in [
        ("`wait`: a file, or a query", "WaitKeys"),
        ("`webhook`", "RequestKeys"),
        ("`mail`", "LetterKeys"),
        ("`retries`", "RetriesKeys"),
        ("`for_each`, with days as items", "DaysKeys"),
        ("`for_each`, with rows of a query as items", "RowsOfQueryKeys"),
        ("`for_each`, with files as items", "FilesKeys"),
    ] {
        writer.line(&format!("The keys of {title}:\n"));
        writer.table(definition, &databases, 1);
    }
    writer.output
}

/// A sequence with most kinds of steps.
pub(crate) const SEQUENCE_EXAMPLE: &str = "
schedule: {cron: \"0 2 * * *\", timezone: Europe/Berlin}
parameters: {DAY: \"${today - 1 day}\"}
steps:
  load:  {job: load.yaml, set: {DAY: \"${DAY}\"}, retries: {count: 3, wait: 1m}, time_limit: 1h, pool: db}
  rows:
    query: SELECT count(*) AS n FROM orders WHERE day = '${DAY}'
    from: postgres://etl@db.example/shop
    needs: load
  shops: {sequence: shop.yaml, needs: rows, when: steps.rows.n > 0, for_each: {SHOP: [a, b]}}
  done:  {command: [./publish, \"${steps.load.rows_written}\"], needs: shops}
  alarm: {mail: {to: boss@example.com}, needs: done, when: failure}
";

/// A job with everything that applies to its runs, without its parts.
const AROUND_EXAMPLE: &str = "
timezone: Europe/Berlin
require:
  - exists: s3://exports/${today | %Y%m%d}/_SUCCESS
  - query: {in: postgres://etl@db.example/shop, sql: SELECT closed FROM days WHERE day = '${today - 1 day}'}
    otherwise: skip
  - units: {of: orders, min: 24}
  - age: {of: orders, min: 10m}
retry_run: {count: 3, wait: 5m}
throttle: {bytes_per_second: 10MiB, connections: 4}
hours: 20:00-06:00
on_success:
  - webhook: {url: {secret: env:PING_URL}}
on_failure:
  - mail: {to: ops@example.com}
  - command: [./page.sh, orders]
";

struct Writer<'a> {
    schema: &'a Value,
    definitions: &'a Map<String, Value>,
    output: String,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        self.output.push_str(line);
        self.output.push('\n');
    }

    fn document(&mut self, registry: &Registry) {
        self.line("# The job file\n");
        self.line("<!-- Generated from the specs of the components. Change those, not this file. -->\n");
        self.line(
            "A job is a YAML file in three parts: `sources` (where rows come from), `transforms` (what is done with \
             them; may be left out) and `sinks` (where they go). Each entry has a name of letters, digits and `_`; \
             other entries use the name, and SQL sees it as a table. Beside them, `incremental: true` applies to \
             all sources that do not say otherwise, and `functions` are what SQL may call.\n\n\
             `${NAME}` and `${NAME:-default}` in a value stand for a variable, from `--set NAME=value` or from the \
             environment; `$${` stands for `${` itself. `${today}` and `${now}` are the day and the time at which the \
             logical run begins; `${today - 1 day | %Y%m%d}` adds `+` or `-` a number of `second`, `minute`, `hour`, \
             `day`, `week`, `month` or `year` and chooses a format of `strftime`, and so does `${DAY + 1 week}` with a \
             variable that holds a date. `timezone: Europe/Berlin` in the job is their time zone (UTC if left out). A \
             secret is a reference: `{secret: env:NAME}` or \
             `{secret: file:PATH}`.\n",
        );
        let components: Vec<&str> = registry
            .sources
            .iter()
            .map(|entry| entry.spec.name)
            .chain(registry.formats.iter().map(|entry| entry.spec.name))
            .collect();
        self.line("## Sources\n");
        self.table(SOURCE, &components, 3);
        self.line(
            "At most one format block says how the files are read; without one their names or a sample decide.\n",
        );
        for entry in &registry.sources {
            self.component("Source", &entry.spec);
        }
        self.line("## Formats\n");
        self.line("A format block belongs in a source or in a sink that writes files.\n");
        for entry in &registry.formats {
            self.component("Format", &entry.spec);
        }
        self.line("## Transforms\n");
        self.line("Each entry has exactly one of these keys; it may also have `sorted_by` and `max_rejects`.\n");
        self.table(TRANSFORM, &[], 0);
        for entry in &registry.transforms {
            self.heading("Transform", &entry.spec);
            self.transform_keys(entry.spec.name);
            self.example(&entry.spec);
        }
        if let Some(function) = registry.function {
            self.line("## Functions\n");
            self.line("An entry of `functions` is a function that the SQL of the job can call by its name.\n");
            self.table(FUNCTION, &[], 3);
            self.example(&function.spec);
        }
        self.line("## Sinks\n");
        self.line("The beginning of `write` says which kind of sink it is.\n");
        for entry in &registry.sinks {
            let formats = registry.formats.iter().map(|format| format.spec.name);
            let others: Vec<&str> = formats.chain(registry.stores.iter().map(|store| store.spec.name)).collect();
            self.heading("Sink", &entry.spec);
            self.table(&sink_definition(entry), &others, 3);
            match entry.formats {
                SinkFormats::None => {}
                SinkFormats::ByName => {
                    self.line("It takes one format block; without one the ending of the file's name decides.\n");
                }
                SinkFormats::Default(name) => {
                    self.line(&format!("It takes one format block; without one each message is {name}.\n"));
                }
            }
            let stores: Vec<String> =
                registry.stores.iter().filter(|_| entry.stores).map(|store| format!("`{}`", store.spec.name)).collect();
            if let Some((last, others)) = stores.split_last() {
                let blocks = if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) };
                self.line(&format!("What it writes into a bucket takes the block {blocks}, as sources have it.\n"));
            }
            self.example(&entry.spec);
        }
        self.compressions(registry);
        self.around();
    }

    /// The keys that apply to the runs of a job.
    fn around(&mut self) {
        self.line("\n## Around a run\n");
        self.line("These keys stand beside the three parts of a job; all may be left out.\n");
        let properties = self.schema.get("properties").and_then(Value::as_object);
        let keys = ["timezone"].into_iter().chain(crate::around::KEYS);
        let keys = keys.filter_map(|key| Some((key.to_owned(), properties?.get(key)?.clone())));
        let schema = serde_json::json!({"properties": keys.collect::<Map<_, _>>()});
        self.keys(&schema, &[], 3);
        for (title, definition) in [("`require`", "RequirementKeys"), ("`on_success` and `on_failure`", "HookKeys")] {
            self.line(&format!("An item of {title}:\n"));
            self.table(definition, &[], 2);
        }
        self.line(&format!("```yaml\n{}\n```", AROUND_EXAMPLE.trim_matches('\n')));
    }

    fn heading(&mut self, kind: &str, spec: &SpecInfo) {
        self.line(&format!("### {kind} `{}`\n\n{}\n", spec.name, spec.summary));
    }

    fn component(&mut self, kind: &str, spec: &SpecInfo) {
        self.heading(kind, spec);
        let mut generator = schemars::SchemaGenerator::default();
        let schema = (spec.schema)(&mut generator).to_value();
        let definitions = generator.take_definitions(true);
        let schema = resolve(&schema, &definitions).clone();
        let mut inner = Writer { schema: &schema, definitions: &definitions, output: String::new() };
        inner.keys(&schema, &[], 3);
        let output = inner.output;
        self.output.push_str(&output);
        self.example(spec);
    }

    fn example(&mut self, spec: &SpecInfo) {
        self.line(&format!("```yaml\n{}\n```\n", spec.example.trim_matches('\n')));
    }

    fn table(&mut self, definition: &str, without: &[&str], levels: usize) {
        if let Some(schema) = self.definitions.get(definition).cloned() {
            self.keys(&schema, without, levels);
        }
    }

    /// A table of the keys of a block, and of the keys of the blocks in it down to `levels`.
    fn keys(&mut self, schema: &Value, without: &[&str], levels: usize) {
        let mut rows = Vec::new();
        self.rows("", schema, without, levels, &mut rows);
        if rows.is_empty() {
            return self.line("It has no keys.\n");
        }
        self.line("| key | value | default | |\n|---|---|---|---|");
        for row in rows {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            self.line(&format!("| {} |", cells.join(" | ")));
        }
        self.line("");
    }

    /// A row for each key of `schema`; keys of inner blocks follow theirs, with dots between.
    fn rows(&self, prefix: &str, schema: &Value, without: &[&str], levels: usize, rows: &mut Vec<[String; 4]>) {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = schema.get("properties").and_then(Value::as_object);
        for (key, property) in properties.into_iter().flatten().filter(|(key, _)| !without.contains(&key.as_str())) {
            let block = self.inner_block(property);
            let default = match property.get("default") {
                _ if required.contains(&key.as_str()) => "required".to_owned(),
                Some(Value::Null) | None => String::new(),
                Some(_) if block.is_some() => String::new(),
                Some(default) => format!("`{default}`"),
            };
            let name = format!("{prefix}{key}");
            rows.push([format!("`{name}`"), self.value(property), default, self.description(property)]);
            if let (Some(block), true) = (block, levels > 0) {
                self.rows(&format!("{name}."), block, &[], levels - 1, rows);
            }
        }
    }

    /// The one block that a value can be, unless it is a secret.
    fn inner_block<'s>(&'s self, schema: &'s Value) -> Option<&'s Value> {
        let schema = resolve(schema, self.definitions);
        if schema.get("properties").is_some() {
            return (!is_secret(schema)).then_some(schema);
        }
        let branches = ["oneOf", "anyOf"].iter().find_map(|keyword| schema.get(keyword).and_then(Value::as_array))?;
        let mut blocks = branches.iter().filter_map(|branch| self.inner_block(branch));
        let first = blocks.next()?;
        blocks.next().is_none().then_some(first)
    }

    /// What a value is for, and what each of its choices means.
    fn description(&self, schema: &Value) -> String {
        let resolved = resolve(schema, self.definitions);
        let own = schema.get("description").or_else(|| resolved.get("description"));
        let mut text = own.and_then(Value::as_str).unwrap_or_default().to_owned();
        let choices = ["oneOf", "anyOf"].iter().find_map(|keyword| resolved.get(keyword).and_then(Value::as_array));
        let described = choices.into_iter().flatten().filter_map(|choice| {
            let resolved = resolve(choice, self.definitions);
            match resolved.get("const").and_then(Value::as_str) {
                Some(name) => Some(format!("`{name}`: {}", resolved.get("description")?.as_str()?)),
                // A reference to an enumeration, beside `null`.
                None => resolved.get("oneOf").map(|_| self.choices_described(resolved)).filter(|text| !text.is_empty()),
            }
        });
        for sentence in described.collect::<Vec<_>>() {
            text.push(' ');
            text.push_str(&sentence);
        }
        text.trim().to_owned()
    }

    fn choices_described(&self, schema: &Value) -> String {
        let branches = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        let described = branches.filter_map(|choice| {
            Some(format!("`{}`: {}", choice.get("const")?.as_str()?, choice.get("description")?.as_str()?))
        });
        described.collect::<Vec<_>>().join(" ")
    }

    /// The type of a value in words.
    fn value(&self, schema: &Value) -> String {
        let schema = resolve(schema, self.definitions);
        if let Some(constant) = schema.get("const").and_then(Value::as_str) {
            return format!("`{constant}`");
        }
        if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
            let choices: Vec<String> = choices.iter().filter_map(Value::as_str).map(|one| format!("`{one}`")).collect();
            return choices.join(", ");
        }
        for keyword in ["oneOf", "anyOf"] {
            if let Some(branches) = schema.get(keyword).and_then(Value::as_array) {
                let all_constant = branches.iter().all(|one| one.get("const").is_some() || one.get("enum").is_some());
                let mut words: Vec<String> = Vec::new();
                for word in branches.iter().map(|one| self.value(one)).filter(|word| !word.is_empty()) {
                    if !words.contains(&word) {
                        words.push(word);
                    }
                }
                return words.join(if all_constant { ", " } else { " or " });
            }
        }
        if is_secret(schema) {
            return "a secret".to_owned();
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => return String::new(),
        };
        let words: Vec<String> =
            types.into_iter().filter(|one| *one != "null").map(|one| self.type_in_words(one, schema)).collect();
        words.join(" or ")
    }

    fn type_in_words(&self, name: &str, schema: &Value) -> String {
        match name {
            "string" => "text".to_owned(),
            "integer" => "whole number".to_owned(),
            "number" => "number".to_owned(),
            "boolean" => "`true`, `false`".to_owned(),
            "array" => match schema.get("items").map(|items| self.value(items)) {
                Some(items) if !items.is_empty() => format!("list of {items}"),
                _ => "list".to_owned(),
            },
            "object" => self.block_in_words(schema),
            other => other.to_owned(),
        }
    }

    fn block_in_words(&self, schema: &Value) -> String {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let keys: Vec<String> = properties.keys().map(|key| format!("`{key}`")).collect();
            return format!("block of {}", keys.join(", "));
        }
        match schema.get("additionalProperties").filter(|inner| inner.is_object()) {
            Some(inner) => format!("mapping of names to {}", self.value(inner)),
            None => "block".to_owned(),
        }
    }

    /// The keys of a transform's block, if it can be one.
    fn transform_keys(&mut self, name: &str) {
        let definitions = self.definitions;
        let settings = definitions.get(TRANSFORM).and_then(|one| one.get("properties")?.get(name));
        let Some(settings) = settings.map(|settings| resolve(settings, definitions)) else { return };
        let forms = settings.get("anyOf").and_then(Value::as_array);
        let forms: Vec<&Value> = forms.map_or_else(|| vec![settings], |forms| forms.iter().collect());
        let is_block = |form: &&Value| form.get("properties").is_some();
        if let Some(block) = forms.into_iter().map(|form| resolve(form, definitions)).find(is_block) {
            self.keys(block, &[], 3);
        }
    }

    fn compressions(&mut self, registry: &Registry) {
        self.line("## Compression\n");
        self.line("A codec is known by its first bytes when reading, and by the ending of the name when writing.\n");
        self.line("| codec | endings | |\n|---|---|---|");
        let writes = crate::schema::compressions(registry);
        for entry in &registry.codecs {
            let endings: Vec<String> = entry.extensions.iter().map(|ending| format!("`{ending}`")).collect();
            let direction = if writes.contains(&entry.name) { "reads and writes" } else { "reads" };
            let _ = writeln!(self.output, "| `{}` | {} | {direction} |", entry.name, endings.join(", "));
        }
    }
}

/// Whether a block of this schema is a secret: it says where that is, and nothing else.
fn is_secret(schema: &Value) -> bool {
    let keys = schema.get("properties").and_then(Value::as_object);
    keys.is_some_and(|keys| keys.len() == 1 && keys.contains_key("secret"))
}

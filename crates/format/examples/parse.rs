//! How fast csv, json and lines are parsed on one thread, beside arrow-csv and arrow-json, in one run.
//!
//! ```text
//! cargo run --release -p millstream-format --example parse -- [--megabytes 64] [--rounds 7] [--write FOLDER] \
//!     [--only WORD]
//! ```
//! The text is made here (or, for the columns of GeoNames, from its files), lies in memory and is pushed in pieces of
//! 256 KiB. Rounds are interleaved; the best of each is shown. `--write` keeps the texts, for other programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use millstream_core::format::{OnDrift, ParseRequest, Parsed, StreamFormat, TEXT};
use millstream_core::{Error, Result};
use millstream_format::csv::Csv;
use millstream_format::json::JsonFormat;
use millstream_format::lines::Lines;
use serde_json::{Value, json};

/// The size of the pieces, as from a decoder.
const PIECE: usize = 256 << 10;

/// One parser for one text.
struct Case {
    name: &'static str,
    text: Bytes,
    parse: Parse,
}

/// Parses a text, and returns the number of rows.
type Parse = Box<dyn Fn(&Bytes) -> Result<usize>>;

struct Arguments {
    megabytes: usize,
    rounds: usize,
    write: Option<String>,
    only: String,
}

fn arguments() -> Arguments {
    let mut found = Arguments { megabytes: 64, rounds: 7, write: None, only: String::new() };
    let mut words = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name.as_str() {
            "--megabytes" => found.megabytes = value.parse().unwrap_or(found.megabytes),
            "--rounds" => found.rounds = value.parse().unwrap_or(found.rounds),
            "--write" => found.write = Some(value),
            "--only" => found.only = value,
            other => eprintln!("{other} is passed over"),
        }
    }
    found
}

fn main() -> Result<()> {
    let arguments = arguments();
    let size = arguments.megabytes << 20;
    let texts = [
        ("trades.csv", trades(size, false)),
        ("quoted.csv", trades(size, true)),
        ("places.tsv", places(size)),
        ("events.jsonl", events(size)),
    ];
    if let Some(folder) = &arguments.write {
        for (name, text) in &texts {
            fs_err::write(format!("{folder}/{name}"), text)
                .map_err(|cause| Error::io("it cannot be written", &cause))?;
        }
    }
    let [(_, trades), (_, quoted), (_, places), (_, events)] = texts;
    let mut cases = csv_cases("trades", &trades, &trades_columns(), ',', &["symbol", "price", "size"])?;
    cases.extend(csv_cases("quoted", &quoted, &trades_columns(), ',', &["symbol", "price", "size"])?);
    cases.extend(csv_cases("places", &places, &places_columns(), '\t', &["name", "country", "population"])?);
    cases.extend(json_cases(&events)?);
    cases.extend(line_cases(&trades)?);
    cases.retain(|case| case.name.contains(&arguments.only));

    let mut best: BTreeMap<usize, f64> = BTreeMap::new();
    for _ in 0..arguments.rounds {
        for (index, case) in cases.iter().enumerate() {
            let begin = Instant::now();
            let rows = (case.parse)(&case.text)?;
            let seconds = begin.elapsed().as_secs_f64();
            assert!(rows > 0, "{} reads nothing", case.name);
            let least = best.entry(index).or_insert(seconds);
            *least = least.min(seconds);
        }
    }
    for (index, case) in cases.iter().enumerate() {
        println!("{:32} {:8.0} MB/s", case.name, case.text.len() as f64 / best[&index] / 1e6);
    }
    Ok(())
}

/// A generator that is the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

type Columns = Vec<(&'static str, DataType)>;

fn trades_columns() -> Columns {
    vec![
        ("symbol", TEXT),
        ("day", DataType::Date32),
        ("time", TEXT),
        ("market", TEXT),
        ("price", DataType::Float64),
        ("size", DataType::Int64),
        ("kind", TEXT),
        ("volume", DataType::Int64),
    ]
}

fn trades(size: usize, quoted: bool) -> Bytes {
    let mut numbers = Numbers(1);
    let mut text = String::with_capacity(size + 200);
    let q = if quoted { "\"" } else { "" };
    text.push_str("symbol,day,time,market,price,size,kind,volume\n");
    while text.len() < size {
        let letter = |number: u64| char::from(b'A' + (number % 26) as u8);
        let symbol: String = (0..1 + numbers.below(4)).map(|_| letter(numbers.below(26))).collect();
        let (hour, minute, second) = (9 + numbers.below(7), numbers.below(60), numbers.below(60));
        let (whole, cents) = (numbers.below(400), numbers.below(100));
        let (shares, volume) = (100 * (1 + numbers.below(50)), numbers.below(10_000_000));
        let _ = writeln!(
            text,
            "{q}{symbol}{q},2005-{:02}-{:02},{hour:02}:{minute:02}:{second:02},{q}{}{q},{whole}.{cents:02},{shares},\
             {q}{}{q},{volume}",
            1 + numbers.below(12),
            1 + numbers.below(28),
            letter(numbers.below(26)),
            if numbers.below(2) == 0 { "short" } else { "exempt" },
        );
    }
    text.into()
}

fn places_columns() -> Columns {
    let mut columns = vec![("id", DataType::Int64), ("name", TEXT), ("ascii_name", TEXT), ("other_names", TEXT)];
    columns.extend([("latitude", DataType::Float64), ("longitude", DataType::Float64)]);
    columns.extend(["class", "code", "country", "cc2", "a1", "a2", "a3", "a4"].map(|name| (name, TEXT)));
    columns.extend([("population", DataType::Int64), ("elevation", DataType::Int64), ("dem", DataType::Int64)]);
    columns.extend([("timezone", TEXT), ("changed", DataType::Date32)]);
    columns
}

/// Rows like those of GeoNames' main table: 19 columns, 122 bytes, some of the names not in ASCII.
fn places(size: usize) -> Bytes {
    const NAMES: [&str; 8] =
        ["Takht-e Qeyşar", "Springfield", "Sidi Ali", "Bad Tölz", "Río Seco", "Mount Pleasant", "Łódź", "Ban Na"];
    let mut numbers = Numbers(2);
    let mut text = String::with_capacity(size + 300);
    while text.len() < size {
        let name = NAMES[numbers.below(8) as usize];
        let other = if numbers.below(3) == 0 { "Qeysar,Takht-e Qeysar,tkht-e qysr" } else { "" };
        let _ = writeln!(
            text,
            "{}\t{name}\t{name}\t{other}\t{}.{:05}\t-{}.{:05}\tP\tPPL\tIR\t\t{:02}\t{}\t\t\t{}\t\t{}\tAsia/Tehran\t\
             20{:02}-01-18",
            numbers.below(12_000_000),
            numbers.below(90),
            numbers.below(100_000),
            numbers.below(180),
            numbers.below(100_000),
            numbers.below(40),
            numbers.below(9_999_999),
            numbers.below(100_000) * numbers.below(2),
            numbers.below(2_000),
            numbers.below(24),
        );
    }
    text.into()
}

fn events_columns() -> Columns {
    vec![
        ("id", DataType::Int64),
        ("at", TEXT),
        ("kind", TEXT),
        ("user", TEXT),
        ("latitude", DataType::Float64),
        ("amount", DataType::Float64),
        ("note", TEXT),
        ("ok", DataType::Boolean),
    ]
}

fn events(size: usize) -> Bytes {
    const KINDS: [&str; 5] = ["view", "purchase", "refund", "login", "search"];
    let mut numbers = Numbers(3);
    let mut text = String::with_capacity(size + 300);
    let mut id = 0_u64;
    while text.len() < size {
        id += 1;
        let note = if numbers.below(20) == 0 {
            "said \\\"no\\\" twice, then paid"
        } else {
            "paid by card, nothing to say here"
        };
        let _ = writeln!(
            text,
            "{{\"id\": {id}, \"at\": \"2024-{:02}-{:02}T12:{:02}:00Z\", \"kind\": \"{}\", \"user\": \"user-{}\", \
             \"latitude\": {}.{:05}, \"amount\": {}.{:02}, \"note\": \"{note}\", \"ok\": {}}}",
            1 + numbers.below(12),
            1 + numbers.below(28),
            numbers.below(60),
            KINDS[numbers.below(5) as usize],
            numbers.below(100_000),
            numbers.below(90),
            numbers.below(100_000),
            numbers.below(1_000),
            numbers.below(100),
            numbers.below(2) == 0,
        );
    }
    text.into()
}

fn schema(columns: &Columns, data_type: impl Fn(&DataType) -> DataType) -> SchemaRef {
    let field = |(name, column): &(&str, DataType)| Field::new(*name, data_type(column), true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn settings<S: serde::de::DeserializeOwned>(settings: Value) -> Result<S> {
    serde_json::from_value(settings).map_err(|cause| Error::internal("the settings do not fit").cause(cause))
}

/// The number of rows that `format` parses from a text.
fn ours(format: &dyn StreamFormat, request: &ParseRequest, text: &Bytes) -> Result<usize> {
    let mut parser = format.parser(request)?;
    let mut rows = 0;
    let mut text = text.clone();
    while !text.is_empty() {
        let mut parsed = Parsed::default();
        // As from a decoder, each piece is a buffer of its own.
        let piece = text.split_to(text.len().min(PIECE));
        parser.push(piece, &mut parsed)?;
        rows += count(&parsed);
    }
    let mut parsed = Parsed::default();
    parser.finish(&mut parsed)?;
    Ok(rows + count(&parsed))
}

fn count(parsed: &Parsed) -> usize {
    assert!(parsed.rejects.is_empty(), "nothing is refused: {:?}", parsed.rejects.first());
    parsed.rows.iter().map(|rows| rows.batch.num_rows()).sum()
}

fn request(columns: &Columns, used: &[&str]) -> Result<ParseRequest> {
    let schema = schema(columns, DataType::clone);
    let place = |name: &&str| schema.index_of(name);
    let projection = used.iter().map(place).collect::<std::result::Result<_, _>>();
    let projection = projection.map_err(|cause| Error::internal("there is no such column").cause(cause))?;
    Ok(ParseRequest { projection, on_drift: OnDrift::Null, ..ParseRequest::all(schema) })
}

fn csv_cases(name: &'static str, text: &Bytes, columns: &Columns, delimiter: char, used: &[&str]) -> Result<Vec<Case>> {
    let header = delimiter == ',';
    let quote = if header { "\"" } else { "none" };
    let format = json!({"delimiter": delimiter.to_string(), "header": header, "quote": quote});
    let format = Arc::new(Csv::new(&settings(format)?)?);
    let (some, all) =
        (request(columns, used)?, request(columns, &columns.iter().map(|(name, _)| *name).collect::<Vec<_>>())?);
    let none = request(columns, &[])?;
    let label = |what: &str| -> &'static str { Box::leak(format!("csv {name}: {what}").into_boxed_str()) };
    let mut cases = Vec::new();
    for (what, request) in [("ours, 3 columns", some.clone()), ("ours, all columns", all), ("ours, no column", none)] {
        let format = Arc::clone(&format);
        let parse = Box::new(move |text: &Bytes| ours(format.as_ref(), &request, text));
        cases.push(Case { name: label(what), text: text.clone(), parse });
    }
    let schema = schema(columns, |data_type| if *data_type == TEXT { DataType::Utf8View } else { data_type.clone() });
    for (what, projection) in [("arrow-csv, 3 columns", Some(some.projection)), ("arrow-csv, all columns", None)] {
        let schema = Arc::clone(&schema);
        let parse = Box::new(move |text: &Bytes| {
            let mut builder = arrow_csv::ReaderBuilder::new(Arc::clone(&schema))
                .with_header(header)
                .with_delimiter(delimiter as u8)
                .with_batch_size(8192);
            if let Some(projection) = &projection {
                builder = builder.with_projection(projection.clone());
            }
            if quote == "none" {
                builder = builder.with_quote(0);
            }
            let reader = builder.build_buffered(&text[..]).map_err(arrow_error)?;
            reader.map(|batch| Ok(batch.map_err(arrow_error)?.num_rows())).sum()
        });
        cases.push(Case { name: label(what), text: text.clone(), parse });
    }
    Ok(cases)
}

fn arrow_error(cause: arrow::error::ArrowError) -> Error {
    Error::internal("arrow refuses it").cause(cause)
}

fn json_cases(text: &Bytes) -> Result<Vec<Case>> {
    let columns = events_columns();
    let used = ["kind", "amount", "user"];
    let mut cases = Vec::new();
    let all: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    for (name, used) in [("json: ours, 3 columns", &used[..]), ("json: ours, all columns", &all[..])] {
        let format = JsonFormat::new(settings(json!({}))?);
        let format = format.map_err(|_| Error::internal("the settings do not fit"))?;
        let request = request(&columns, used)?;
        cases.push(Case { name, text: text.clone(), parse: Box::new(move |text| ours(&format, &request, text)) });
    }
    for (name, used) in [("json: arrow-json, 3 columns", &used[..]), ("json: arrow-json, all columns", &all[..])] {
        let schema = request(&columns, used)?.output_schema();
        let parse = Box::new(move |text: &Bytes| {
            let builder = arrow_json::ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(8192);
            let reader = builder.build(&text[..]).map_err(arrow_error)?;
            reader.map(|batch| Ok(batch.map_err(arrow_error)?.num_rows())).sum()
        });
        cases.push(Case { name, text: text.clone(), parse });
    }
    Ok(cases)
}

fn line_cases(text: &Bytes) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (name, projection) in [("lines: ours", vec![0]), ("lines: ours, counting", vec![])] {
        let format = Lines::new(&settings(json!({}))?)?;
        let Some(schema) = millstream_core::format::Format::declared(&format) else { continue };
        let request = ParseRequest { projection, ..ParseRequest::all(schema) };
        cases.push(Case { name, text: text.clone(), parse: Box::new(move |text| ours(&format, &request, text)) });
    }
    Ok(cases)
}

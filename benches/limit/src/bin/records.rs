//! Makes records to be sorted, and checks that they are sorted.
//!
//! ```text
//! records make BYTES ORDER      to standard output, 100 bytes each; random, sorted, nearly, reversed, few, equal
//! records make BYTES typed      rows of eight columns, as many as there would be records; `padded`: texts filled up
//! records sum [FILE]            a number that stands for all lines, whatever their order
//! records check [FILE]          the same; fails if they are not in order
//! records check-typed [FILE]    the same; fails if not the first column falls, or is equal and the second rises
//! ```
//! A record is a key of 10 letters, its number and filler, as in the sort benchmarks (sortbenchmark.org), all of them
//! printable. `few` and `equal` have no number: with few keys, or one, whole lines are equal. A row has two keys, a
//! number that is there some times and a text; then its number, a price, a kind, a count, a share and a remark.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::process::ExitCode;

const RECORD: usize = 100;
const KEY: usize = 10;

/// The characters of keys, in the order of their bytes.
const LETTERS: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["make", bytes, order] => match (bytes.parse::<u64>(), order) {
            (Ok(bytes), "random" | "sorted" | "nearly" | "reversed" | "few" | "equal") => make(bytes, order),
            (Ok(bytes), "typed" | "padded") => make_typed(bytes, order == "padded"),
            _ => return usage(),
        },
        [does @ ("sum" | "check" | "check-typed")] => {
            sum(BufReader::with_capacity(1 << 20, io::stdin().lock()), order_of(does))
        }
        [does @ ("sum" | "check" | "check-typed"), path] => {
            fs_err::File::open(path).and_then(|file| sum(BufReader::with_capacity(1 << 20, file), order_of(does)))
        }
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("records: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: records make BYTES random|sorted|nearly|reversed|few|equal|typed|padded\n       records \
         sum|check|check-typed [FILE]"
    );
    ExitCode::FAILURE
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn random(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn make(bytes: u64, order: &str) -> io::Result<()> {
    let rows = bytes / RECORD as u64;
    let mut output = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    for row in 0..rows {
        // A key has 60 bits; those in order are spread over all of them.
        let spread = |row: u64| ((u128::from(row) << 60) / u128::from(rows)) as u64;
        let key = match order {
            "sorted" => spread(row),
            "nearly" if row % 100 != 0 => spread(row),
            "reversed" => spread(rows - 1 - row),
            "few" => spread(random(row) % 8 * (rows / 8)),
            "equal" => 0,
            _ => random(row) >> 4,
        };
        let mut record = [0; RECORD];
        for (place, letter) in record[..KEY].iter_mut().enumerate() {
            *letter = LETTERS[(key >> (6 * (KEY - 1 - place)) & 63) as usize];
        }
        let number = if matches!(order, "few" | "equal") { 0 } else { row };
        write!(&mut record[KEY..KEY + 22], " {number:020} ")?;
        let filler = b'A' + (number % 26) as u8;
        record[KEY + 22..RECORD - 1].fill(filler);
        record[RECORD - 1] = b'\n';
        output.write_all(&record)?;
    }
    output.flush()
}

const KINDS: [&str; 6] = ["book", "garden", "kitchen", "music", "stationery", "toy"];
const WORDS: [&str; 8] = ["as ordered", "broken", "for the boss", "gift", "late", "urgent", "wrapped", "paid"];

fn make_typed(bytes: u64, padded: bool) -> io::Result<()> {
    let rows = bytes / RECORD as u64;
    let mut output = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    for row in 0..rows {
        let (one, other) = (random(row), random(row ^ (1 << 40)));
        // About four rows have the same first key.
        let first = (one % (rows / 4).max(1)) as i64 - (rows / 8) as i64;
        let letters: String =
            (0..8 + other % 9).map(|place| char::from(LETTERS[(other >> (3 * place) & 63) as usize])).collect();
        let kind = KINDS[(one >> 40) as usize % KINDS.len()];
        let remark = format!("{} {}", WORDS[(one >> 48) as usize % 8], WORDS[(one >> 52) as usize % 8]);
        let (letters, kind, remark) = match padded {
            true => (format!("{letters:16}"), format!("{kind:10}"), format!("{remark:25}")),
            false => (letters, kind.to_owned(), remark),
        };
        // All programs print a quarter in the same way.
        let (price, count, share) = (other >> 50, one >> 58, (other >> 44) & 63);
        writeln!(output, "{first},{letters},{row},{price}.25,{kind},{count},0.{share}5,{remark}")?;
    }
    output.flush()
}

/// Whether `line` may not follow the previous one.
type IsWrong = fn(&[u8], &[u8]) -> bool;

fn order_of(does: &str) -> IsWrong {
    match does {
        "check" => |before, line| line < before,
        "check-typed" => |before, line| !before.is_empty() && typed_key(line) < typed_key(before),
        _ => |_, _| false,
    }
}

/// The first column, falling, and the second.
fn typed_key(line: &[u8]) -> (std::cmp::Reverse<i64>, &[u8]) {
    let mut fields = line.split(|byte| *byte == b',');
    let first = fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
    (std::cmp::Reverse(first.unwrap_or(i64::MIN)), fields.next().unwrap_or_default())
}

fn sum(mut input: impl BufRead, is_wrong: IsWrong) -> io::Result<()> {
    let (mut line, mut before) = (Vec::new(), Vec::new());
    let mut sum = 0_u64;
    let mut rows = 0_u64;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if is_wrong(&before, &line) {
            return Err(io::Error::other(format!("line {} comes before the one above it", rows + 1)));
        }
        rows += 1;
        let hash = line.chunks(8).fold(0_u64, |hash, part| {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            random(hash ^ u64::from_le_bytes(bytes))
        });
        sum = sum.wrapping_add(hash);
        std::mem::swap(&mut line, &mut before);
    }
    // Short enough for any reader of numbers.
    println!("{}", random(sum ^ rows) >> 12);
    Ok(())
}

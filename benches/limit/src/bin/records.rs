//! Records of 100 bytes to be sorted, and what checks that they were.
//!
//! ```text
//! records make BYTES ORDER      to standard output; ORDER is random, sorted, nearly, reversed, few or equal
//! records sum [FILE]            a number that stands for all lines, whatever their order
//! records check [FILE]          the same; fails if they are not in order
//! ```
//! A record is a key of 10 letters, its number and filler, as in the sort benchmarks (sortbenchmark.org), all of them
//! printable. `few` and `equal` have no number: with few keys, or one, whole lines are equal.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::process::ExitCode;

const RECORD: usize = 100;
const KEY: usize = 10;

/// In the order of their bytes.
const LETTERS: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["make", bytes, order] => match (bytes.parse::<u64>(), order) {
            (Ok(bytes), "random" | "sorted" | "nearly" | "reversed" | "few" | "equal") => make(bytes, order),
            _ => return usage(),
        },
        [does @ ("sum" | "check")] => sum(BufReader::with_capacity(1 << 20, io::stdin().lock()), does == "check"),
        [does @ ("sum" | "check"), path] => {
            fs_err::File::open(path).and_then(|file| sum(BufReader::with_capacity(1 << 20, file), does == "check"))
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
    eprintln!("usage: records make BYTES random|sorted|nearly|reversed|few|equal\n       records sum|check [FILE]");
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

fn sum(mut input: impl BufRead, in_order: bool) -> io::Result<()> {
    let (mut line, mut before) = (Vec::new(), Vec::new());
    let mut sum = 0_u64;
    let mut rows = 0_u64;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if in_order && line < before {
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

//! A source of numbers: `numbers:1..1000` gives the numbers from 1 to 1000 as text, one per line.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use millstream::component::{ByteStream, Fault, Source, SourceContext, SourceEntry, Spec, SpecInfo, Unit, parse};
use millstream::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the source `numbers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NumbersSpec {
    /// The most numbers in a unit. Several tasks read units at once.
    #[schemars(range(min = 1))]
    pub unit: u64,
}

impl Default for NumbersSpec {
    fn default() -> Self {
        NumbersSpec { unit: 10_000 }
    }
}

impl Spec for NumbersSpec {
    const NAME: &'static str = "numbers";
    const SUMMARY: &'static str = "Numbers, a line each.";
    const EXAMPLE: &'static str = "read: numbers:1..1000\nnumbers: {unit: 100}\nlines: {}\n";

    fn check(&self) -> Vec<Fault> {
        if self.unit > 0 { Vec::new() } else { vec![Fault::new("unit", "a unit has at least one number")] }
    }
}

/// The source `numbers`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<NumbersSpec>(),
    schemes: &["numbers"],
    check: &|pattern| match range_of(pattern) {
        Some(_) => Ok(()),
        None => Err(Fault::new("", "this is not a range of numbers").hint("write two numbers: numbers:1..1000")),
    },
    rows: false,
    build: &|settings| {
        let spec = if settings.is_null() { NumbersSpec::default() } else { parse(settings)? };
        Ok(Arc::new(Numbers(spec)))
    },
};

#[derive(Debug)]
struct Numbers(NumbersSpec);

/// The first and last number of `numbers:1..1000`.
fn range_of(url: &str) -> Option<(u64, u64)> {
    let (first, last) = url.strip_prefix("numbers:")?.split_once("..")?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn numbers(unit: &Unit) -> Result<Bytes> {
    let (first, last) = range_of(&unit.uri).ok_or_else(|| Error::internal("a unit is no range").text(&unit.uri))?;
    let mut text = String::new();
    for number in first..=last {
        let _ = writeln!(text, "{number}");
    }
    Ok(text.into())
}

#[async_trait]
impl Source for Numbers {
    fn name(&self) -> &'static str {
        NumbersSpec::NAME
    }

    fn connections(&self) -> usize {
        8
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let (first, last) = range_of(pattern).unwrap_or((1, 0));
        let size = self.0.unit;
        let ranges = (first..=last).step_by(usize::try_from(size).unwrap_or(usize::MAX));
        let units = ranges.map(move |begin| {
            let end = begin.saturating_add(size - 1).min(last);
            Ok(Unit::new(format!("numbers:{begin}..{end}")))
        });
        stream::iter(units).boxed()
    }

    async fn open(&self, _: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        let text = numbers(unit);
        Ok(stream::once(async { text }).boxed())
    }

    async fn read_range(&self, _: &SourceContext, unit: &Unit, range: Range<u64>) -> Result<Option<Bytes>> {
        let text = numbers(unit)?;
        let [start, end] = [range.start, range.end].map(|place| usize::try_from(place).unwrap_or(usize::MAX));
        Ok((end <= text.len() && start <= end).then(|| text.slice(start..end)))
    }

    async fn look(&self, _: &SourceContext, unit: &Unit) -> Result<Unit> {
        Ok(Unit { size: Some(numbers(unit)?.len() as u64), ..unit.clone() })
    }
}

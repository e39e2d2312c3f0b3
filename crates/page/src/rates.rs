//! Rates over time: what a run did a second, as line charts and as a table.

use chrono::DateTime;
use maud::{Markup, html};
use millstream_core::spec::Size;
use serde_json::Value;

use crate::axis;
use crate::parts::{Cells, cell, figure, heading, table};
use crate::report::{Interval, Point, list};
use crate::words::{seconds, short};

/// Sizes in pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 24.0;

/// The most spans of a line, and the shortest ones, in milliseconds: more of them are noise.
const SPANS: u64 = 60;
const SHORTEST: u64 = 50;

/// A line of a chart: for each span of time what was done a second.
struct Line {
    name: &'static str,
    rates: Vec<f64>,
}

/// The rates of a run.
struct Rates {
    /// The beginnings of the spans and the end of the last one, in seconds since the run began.
    times: Vec<f64>,
    /// Lines of rows, or of messages and rows.
    rows: Vec<Line>,
    bytes: Option<Line>,
}

/// The section of the rates in `report`; nothing if it has none, or too few for a line.
pub fn section(level: u8, report: &Value) -> Markup {
    let Some(rates) = Rates::of(report) else { return html! {} };
    let names: Vec<&str> = rates.rows.iter().map(|line| line.name).collect();
    let label = format!("{} a second over time", names.join(" and "));
    html! {
        (heading(level, "Rates over time"))
        (figure(&rates.chart(&label, &rates.rows, short), &label))
        @if let Some(bytes) = &rates.bytes {
            @let label = "bytes read a second over time";
            (figure(&rates.chart(label, std::slice::from_ref(bytes), size), label))
        }
        details { summary { "The same as a table" } (rates.table()) }
    }
}

fn size(bytes: f64) -> String {
    Size(bytes.round() as u64).to_string()
}

impl Rates {
    fn of(report: &Value) -> Option<Self> {
        let points = list::<Point>(report, "points");
        match points.is_empty() {
            false => Self::of_points(&points),
            true => Self::of_intervals(&list(report, "intervals")),
        }
    }

    fn of_points(all: &[Point]) -> Option<Self> {
        let end = *all.last()?;
        let shortest = (end.elapsed_ms / SPANS).max(SHORTEST);
        let mut points = vec![Point::default()];
        for point in all {
            if points.last().is_some_and(|last| point.elapsed_ms >= last.elapsed_ms + shortest) {
                points.push(*point);
            }
        }
        // The end may come soon after the last one, and a few rows in a short span would seem to be a high rate.
        if points.last().is_some_and(|last| last.elapsed_ms != end.elapsed_ms) {
            points.truncate((points.len() - 1).max(1));
            points.push(end);
        }
        let times: Vec<f64> = points.iter().map(|point| point.elapsed_ms as f64 / 1_000.0).collect();
        let line = |name, of: fn(&Point) -> u64| {
            let grown = points.windows(2).map(|pair| of(&pair[1]).saturating_sub(of(&pair[0])));
            Line { name, rates: a_second(&times, grown) }
        };
        let rows = vec![line("rows read", |point| point.rows_read), line("rows written", |point| point.rows_written)];
        let bytes = Some(line("bytes read", |point| point.bytes_read));
        Rates { times, rows, bytes }.if_enough()
    }

    fn of_intervals(intervals: &[Interval]) -> Option<Self> {
        let at = |text: &str| DateTime::parse_from_rfc3339(text).ok().map(|time| time.timestamp() as f64);
        let begun = at(&intervals.first()?.from)?;
        let ends = intervals.iter().map(|interval| at(&interval.to).map(|end| end - begun));
        let times: Vec<f64> = std::iter::once(Some(0.0)).chain(ends).collect::<Option<_>>()?;
        let line = |name, of: fn(&Interval) -> u64| Line { name, rates: a_second(&times, intervals.iter().map(of)) };
        let rows = vec![
            line("messages", |interval| interval.messages),
            line("rows written", |interval| interval.rows_written),
        ];
        Rates { times, rows, bytes: None }.if_enough()
    }

    /// Two spans make a line, if time goes forward.
    fn if_enough(self) -> Option<Self> {
        let goes_forward = self.times.windows(2).all(|pair| pair[0] <= pair[1]);
        let bytes = self.bytes.filter(|line| line.rates.iter().any(|rate| *rate > 0.0));
        (self.times.len() > 2 && goes_forward && self.times.last() > Some(&0.0)).then_some(Rates { bytes, ..self })
    }

    fn end(&self) -> f64 {
        self.times.last().copied().unwrap_or_default()
    }

    fn chart(&self, label: &str, lines: &[Line], shown: impl Fn(f64) -> String) -> Markup {
        let most = lines.iter().flat_map(|line| &line.rates).copied().fold(0.0, f64::max);
        let scale = axis::numbers(most);
        let top = scale.last().copied().unwrap_or(1.0);
        let x = |time: f64| rounded(LEFT + time / self.end() * (WIDTH - LEFT - RIGHT));
        let y = |rate: f64| rounded(HEIGHT - BOTTOM - rate / top * (HEIGHT - TOP - BOTTOM));
        let average = |line: &Line| {
            let spans = self.times.windows(2).map(|span| span[1] - span[0]);
            line.rates.iter().zip(spans).map(|(rate, length)| rate * length).sum::<f64>() / self.end()
        };
        let describe = |line: &Line| {
            let highest = line.rates.iter().copied().fold(0.0, f64::max);
            format!("{}: {}/s on average, {}/s at most", line.name, shown(average(line)), shown(highest))
        };
        let legend = [LEFT, LEFT + 330.0];
        html! {
            svg role="img" aria-label=(label) width=(WIDTH) height=(HEIGHT) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) }
                xmlns="http://www.w3.org/2000/svg" {
                title { (label) }
                desc { (lines.iter().map(&describe).collect::<Vec<_>>().join("; ")) }
                @for number in &scale {
                    line.grid x1=(LEFT) y1=(y(*number)) x2=(WIDTH - RIGHT) y2=(y(*number)) {}
                    text.small x=(LEFT - 6.0) y=(y(*number) + 4.0) text-anchor="end" { (shown(*number)) }
                }
                @for (time, text) in axis::times(self.end()) {
                    line.axis x1=(x(time)) y1=(HEIGHT - BOTTOM) x2=(x(time)) y2=(HEIGHT - BOTTOM + 4.0) {}
                    text.small x=(x(time)) y=(HEIGHT - 6.0) text-anchor="middle" { (text) }
                }
                @for ((line, class), left) in lines.iter().zip(["line one", "line two"]).zip(legend) {
                    path class=(class) d=(self.path(line, &x, &y)) { title { (describe(line)) } }
                    path class=(class) d={ "M" (left) " 10 h24" } {}
                    text x=(left + 30.0) y="14" { (line.name) ", " (shown(average(line))) "/s on average" }
                }
            }
        }
    }

    /// A line through the middles of the spans, and from the beginning to the end.
    fn path(&self, line: &Line, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> String {
        let middles = self.times.windows(2).map(|span| (span[0] + span[1]) / 2.0);
        let inner: Vec<(f64, f64)> = middles.zip(line.rates.iter().copied()).collect();
        let first = inner.first().map(|(_, rate)| (0.0, *rate));
        let last = inner.last().map(|(_, rate)| (self.end(), *rate));
        let all = first.into_iter().chain(inner).chain(last);
        let text: Vec<String> = all.map(|(time, rate)| format!("{} {}", x(time), y(rate))).collect();
        format!("M{}", text.join(" L"))
    }

    fn table(&self) -> Markup {
        let mut head = vec![("until", Cells::Number)];
        head.extend(self.rows.iter().map(|line| (line.name, Cells::Number)));
        head.extend(self.bytes.iter().map(|line| (line.name, Cells::Number)));
        let row = |(number, end): (usize, &f64)| {
            let time = seconds(*end);
            let rows = self.rows.iter().map(|line| cell(format!("{}/s", short(line.rates[number]))));
            let bytes = self.bytes.iter().map(|line| cell(format!("{}/s", size(line.rates[number]))));
            std::iter::once(cell(time)).chain(rows).chain(bytes).collect()
        };
        let rows: Vec<Vec<Markup>> = self.times[1..].iter().enumerate().map(row).collect();
        table("Rates, by the time since the run began", &head, &rows)
    }
}

/// What grew in each span, for each second of it.
fn a_second(times: &[f64], grown: impl Iterator<Item = u64>) -> Vec<f64> {
    let lengths = times.windows(2).map(|pair| pair[1] - pair[0]);
    grown.zip(lengths).map(|(grown, length)| if length > 0.0 { grown as f64 / length } else { 0.0 }).collect()
}

/// Tenths of a pixel are fine enough.
fn rounded(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn point(elapsed_ms: u64, rows_read: u64) -> Value {
        json!({"elapsed_ms": elapsed_ms, "rows_read": rows_read, "rows_written": 0, "bytes_read": 0})
    }

    #[test]
    fn rates_are_those_between_two_points() {
        let report = json!({"points": [point(1_000, 100), point(2_000, 400), point(3_000, 400), point(3_010, 410)]});
        let rates = Rates::of(&report).expect("some");
        assert_eq!(rates.times, [0.0, 1.0, 2.0, 3.01], "the last span would be too short");
        assert_eq!(rates.rows[0].rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(), [100.0, 300.0, 10.0]);
        assert!(rates.bytes.is_none(), "nothing was read");
        let page = section(2, &report).0;
        assert!(page.contains("rows read: 136/s on average, 300/s at most"), "{page}");
    }

    #[test]
    fn a_line_has_few_spans() {
        let report = json!({"points": (1..=120).map(|number| point(100 * number, 7 * number)).collect::<Vec<_>>()});
        let rates = Rates::of(&report).expect("some");
        assert!((40..=61).contains(&rates.times.len()) && rates.times.last() == Some(&12.0), "{:?}", rates.times);
        assert!(
            rates.rows[0].rates.iter().all(|rate| rate.round() == 70.0),
            "nothing is lost: {:?}",
            rates.rows[0].rates
        );
    }

    #[test]
    fn intervals_of_queues_become_rates() {
        let interval = |from: &str, to: &str, messages: u64| {
            json!({"from": format!("2026-01-01T00:00:{from}Z"), "to": format!("2026-01-01T00:00:{to}Z"),
                   "messages": messages, "rows_written": 2 * messages})
        };
        let report = json!({"intervals": [interval("01", "03", 10), interval("03", "04", 7)]});
        let rates = Rates::of(&report).expect("some");
        assert_eq!((rates.rows[0].rates.as_slice(), rates.rows[1].rates[1]), (&[5.0, 7.0][..], 14.0));
    }

    #[test]
    fn a_run_that_is_too_short_or_a_damaged_report_has_no_chart() {
        for points in [json!([]), json!([point(50, 3)]), json!([point(0, 1), point(0, 2)]), json!("x")] {
            assert!(section(2, &json!({"points": points})).0.is_empty(), "{points}");
        }
        let back = json!([point(3_000, 1), point(2_000, 2), point(1_000, 3)]);
        assert!(section(2, &json!({"points": back})).0.is_empty());
        assert!(section(2, &json!({"intervals": [{"from": "x"}]})).0.is_empty());
    }
}

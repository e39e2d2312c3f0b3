//! The parts of a sequence's steps over time, as bars.

use maud::{Markup, html};

use crate::axis;
use crate::words::{class, took, word};

/// Sizes in pixels.
const WIDTH: f64 = 760.0;
const LABELS: f64 = 170.0;
const RIGHT: f64 = 14.0;
const LANE: f64 = 18.0;
const BAR: f64 = 14.0;
const BOTTOM: f64 = 26.0;

/// The most characters of a label, and the most lanes of one step.
const CHARACTERS: usize = 24;
const LANES: usize = 24;

/// The bars of a step.
pub struct Row<'a> {
    /// The step.
    pub name: &'a str,
    /// Its parts.
    pub bars: Vec<Bar>,
}

/// A bar, in milliseconds since 1970.
pub struct Bar {
    /// When it began.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
    /// How.
    pub outcome: String,
    /// What it is, for people.
    pub what: String,
}

/// The chart of all rows from `began` to `ended`; nothing if there is no bar.
pub fn timeline(label: &str, began: u64, ended: u64, rows: &[Row<'_>]) -> Option<Markup> {
    let bars = || rows.iter().flat_map(|row| &row.bars);
    let first = bars().map(|bar| bar.began).min()?.min(began);
    let last = bars().map(|bar| bar.ended).max()?.max(ended).max(first + 1);
    let lanes: Vec<Vec<usize>> = rows.iter().map(|row| lanes(&row.bars)).collect();
    let counts: Vec<usize> = lanes.iter().map(|lanes| lanes.iter().max().map_or(1, |last| last + 1)).collect();
    let tops = counts.iter().scan(4.0, |top, count| {
        let this = *top;
        *top += *count as f64 * LANE + 4.0;
        Some(this)
    });
    let tops: Vec<f64> = tops.collect();
    let bottom = 4.0 + counts.iter().map(|count| *count as f64 * LANE + 4.0).sum::<f64>();
    let length = (last - first) as f64;
    let x = |moment: u64| {
        let share = moment.saturating_sub(first) as f64 / length;
        ((LABELS + share * (WIDTH - LABELS - RIGHT)) * 10.0).round() / 10.0
    };
    let height = bottom + BOTTOM;
    Some(html! {
        svg role="img" aria-label=(label) width=(WIDTH) height=(height) viewBox={ "0 0 " (WIDTH) " " (height) }
            xmlns="http://www.w3.org/2000/svg" {
            title { (label) }
            @for (time, text) in axis::times(length / 1_000.0) {
                @let place = x(first + (time * 1_000.0) as u64);
                line.grid x1=(place) y1="0" x2=(place) y2=(bottom) {}
                text.small x=(place) y=(bottom + 16.0) text-anchor="middle" { (text) }
            }
            @for ((row, top), lanes) in rows.iter().zip(&tops).zip(&lanes) {
                text x=(LABELS - 8.0) y=(top + 12.0) text-anchor="end" { title { (row.name) } (cut(row.name)) }
                @for (bar, lane) in row.bars.iter().zip(lanes) {
                    @let (left, right) = (x(bar.began), x(bar.ended.max(bar.began)));
                    rect class={ "bar " (class(&bar.outcome)) } x=(left) y=(top + *lane as f64 * LANE)
                        width=((right - left).max(2.0)) height=(BAR) rx="2" {
                        title { (bar.what) ": " (word(&bar.outcome)) ", " (took(bar.ended.saturating_sub(bar.began))) }
                    }
                }
            }
        }
    })
}

/// The lane of each bar: bars of one lane do not overlap. There are at most so many lanes: further bars share the last.
fn lanes(bars: &[Bar]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..bars.len()).collect();
    order.sort_by_key(|number| bars[*number].began);
    let (mut free_from, mut of): (Vec<u64>, Vec<usize>) = (Vec::new(), vec![0; bars.len()]);
    for number in order {
        let bar = &bars[number];
        let free = free_from.iter().position(|from| *from <= bar.began);
        let lane = free.unwrap_or(free_from.len()).min(LANES - 1);
        match free_from.get_mut(lane) {
            Some(from) => *from = (*from).max(bar.ended),
            None => free_from.push(bar.ended),
        }
        of[number] = lane;
    }
    of
}

/// A label that fits.
fn cut(name: &str) -> String {
    match name.chars().nth(CHARACTERS) {
        Some(_) => name.chars().take(CHARACTERS - 1).chain(['…']).collect(),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(began: u64, ended: u64) -> Bar {
        Bar { began, ended, outcome: "success".to_owned(), what: "load".to_owned() }
    }

    #[test]
    fn bars_that_overlap_have_lanes_of_their_own() {
        assert_eq!(lanes(&[bar(0, 10), bar(5, 15), bar(10, 20), bar(16, 18)]), [0, 1, 0, 1]);
        assert_eq!(lanes(&(0..100).map(|_| bar(0, 1)).collect::<Vec<_>>()).into_iter().max(), Some(LANES - 1));
    }

    #[test]
    fn each_part_is_a_bar_and_one_that_took_no_time_is_seen() {
        let rows = [Row { name: "load", bars: vec![bar(1_000, 3_000), bar(3_000, 3_000)] }];
        let svg = timeline("steps", 1_000, 5_000, &rows).expect("a drawing").0;
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("width=\"2\"") && svg.contains("load: success, 2.00 s"), "{svg}");
        assert!(timeline("steps", 0, 1, &[Row { name: "x", bars: vec![] }]).is_none());
    }
}

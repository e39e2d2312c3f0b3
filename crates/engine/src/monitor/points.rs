//! How far a run was at points of its time: as many points as a report can hold, whose distances grow with the run.

use std::time::Duration;

use crate::report::{TimePoint, Totals};

/// The most points of a report, its end included.
const MOST: usize = 120;

/// The distance of the first ones, in milliseconds: about that of two ticks.
const FIRST: u64 = 100;

/// The points of a run that have passed.
#[derive(Debug)]
pub(super) struct Points {
    kept: Vec<TimePoint>,
    /// In milliseconds.
    distance: u64,
}

impl Default for Points {
    fn default() -> Self {
        Points { kept: Vec::new(), distance: FIRST }
    }
}

impl Points {
    /// Keeps how far the run is, if it is time for another point.
    pub(super) fn note(&mut self, elapsed: Duration, totals: &Totals) {
        let point = point(elapsed, totals);
        if point.elapsed_ms < self.next() {
            return;
        }
        // One place stays for the end.
        while self.kept.len() + 1 >= MOST {
            self.distance *= 2;
            let (distance, mut next) = (self.distance, self.distance);
            self.kept.retain(|kept| {
                let stays = kept.elapsed_ms >= next;
                if stays {
                    next = following(kept, distance);
                }
                stays
            });
        }
        if point.elapsed_ms >= self.next() {
            self.kept.push(point);
        }
    }

    /// All points of a run that ends now.
    pub(super) fn up_to(&self, elapsed: Duration, totals: &Totals) -> Vec<TimePoint> {
        let end = point(elapsed, totals);
        let before = self.kept.iter().filter(|kept| kept.elapsed_ms < end.elapsed_ms);
        before.copied().chain([end]).collect()
    }

    /// When the next point is due.
    fn next(&self) -> u64 {
        self.kept.last().map_or(self.distance, |last| following(last, self.distance))
    }
}

/// The first multiple of `distance` behind `point`. A tick comes a little late: the next point does not come later for
/// that.
fn following(point: &TimePoint, distance: u64) -> u64 {
    (point.elapsed_ms / distance + 1) * distance
}

fn point(elapsed: Duration, totals: &Totals) -> TimePoint {
    TimePoint {
        elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        bytes_read: totals.bytes_read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(rows: u64) -> Totals {
        Totals { rows_read: rows, rows_written: rows / 2, bytes_read: 10 * rows, ..Totals::default() }
    }

    /// The points of a run that lasts so many milliseconds, reads a row in each, and ticks every 103 of them.
    fn of_run(milliseconds: u64) -> (Points, Vec<TimePoint>) {
        let mut points = Points::default();
        for tick in (103..milliseconds).step_by(103) {
            points.note(Duration::from_millis(tick), &totals(tick));
        }
        let all = points.up_to(Duration::from_millis(milliseconds), &totals(milliseconds));
        (points, all)
    }

    #[test]
    fn a_long_run_has_points_that_are_further_apart_and_no_more_of_them() {
        for milliseconds in [50, 300, 12_000, 12_700, 60_000, 3_600_000, 400_000_000] {
            let (points, all) = of_run(milliseconds);
            let few = milliseconds < 6_000;
            assert!(all.len() <= MOST && (few || all.len() >= MOST / 2), "{milliseconds}: {}", all.len());
            let apart = all.windows(2).map(|pair| pair[1].elapsed_ms - pair[0].elapsed_ms);
            let (shortest, longest) = (apart.clone().rev().skip(1).min(), apart.max());
            assert!(longest.is_none_or(|longest| longest <= points.distance + 206), "{milliseconds}: {longest:?}");
            assert!(shortest.is_none_or(|shortest| shortest + 103 >= points.distance), "{milliseconds}: {shortest:?}");
            assert!(all.iter().all(|point| point.rows_read == point.elapsed_ms), "{all:?}");
            assert_eq!(all.last().map(|point| point.elapsed_ms), Some(milliseconds));
        }
        assert_eq!(of_run(50).1.len(), 1, "the end of a short run");
    }

    #[test]
    fn points_that_come_late_are_not_made_up_for() {
        let mut points = Points::default();
        for seconds in 1..1_000 {
            points.note(Duration::from_secs(10 * seconds), &totals(seconds));
        }
        let all = points.up_to(Duration::from_secs(10_000), &totals(1_000));
        assert!(all.len() <= MOST && all.len() >= MOST / 2, "{}", all.len());
        assert!(all.windows(2).all(|pair| pair[0].elapsed_ms < pair[1].elapsed_ms), "{all:?}");
    }
}

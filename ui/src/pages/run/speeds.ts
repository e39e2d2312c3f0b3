import type { TimePoint } from "../../api/types";

export interface Speed {
  /** Seconds since the run began, at the end of the interval. */
  at: number;
  read: number;
  written: number;
}

/**
 * Rates between the points, of which each says how much there was since the beginning. Points that are less than
 * `least` seconds apart count as one: rows come in batches, so that short times would show nothing but these.
 */
export function speeds(points: TimePoint[], least = 0): Speed[] {
  const start: TimePoint = { elapsed_ms: 0, rows_read: 0, rows_written: 0, bytes_read: 0 };
  const found: Speed[] = [];
  let before = start;
  for (const [index, point] of points.entries()) {
    const seconds = (point.elapsed_ms - before.elapsed_ms) / 1000;
    // The last point may stand at the same time as the one before it.
    if (seconds <= 0 || (seconds < least && index < points.length - 1)) continue;
    found.push({
      at: point.elapsed_ms / 1000,
      read: Math.max(0, point.rows_read - before.rows_read) / seconds,
      written: Math.max(0, point.rows_written - before.rows_written) / seconds,
    });
    before = point;
  }
  return found;
}

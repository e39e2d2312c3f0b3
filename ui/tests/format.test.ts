import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ago,
  bytes,
  compact,
  count,
  duration,
  localMoment,
  moment,
  percent,
  plural,
  relative,
  wholeDuration,
} from "../src/parts/format";

const table = <T>(of: (value: T) => string, cases: [T, string][]) => {
  for (const [value, text] of cases) assert.equal(of(value), text, String(value));
};

test("counts", () => {
  table(count, [
    [0, "0"],
    [1234567, "1,234,567"],
  ]);
  table(compact, [
    [0, "0"],
    [9999, "9,999"],
    [61204, "61.2k"],
    [999_999, "1M"],
    [1_234_567, "1.23M"],
    [12_500_000_000, "12.5G"],
  ]);
  table(
    (n: number) => plural(n, "row"),
    [
      [0, "0 rows"],
      [1, "1 row"],
      [1000, "1,000 rows"],
    ],
  );
});

test("bytes", () => {
  table(bytes, [
    [0, "0 B"],
    [1023, "1023 B"],
    [1536, "1.5 KiB"],
    [1048575, "1 MiB"],
    [2 ** 31, "2 GiB"],
  ]);
});

test("durations", () => {
  table(duration, [
    [0, "0 ms"],
    [0.042, "42 ms"],
    [0.0999, "0.1 s"],
    [1, "1 s"],
    [9.96, "10 s"],
    [12.44, "12.4 s"],
    [59.96, "1 min 00 s"],
    [75.2, "1 min 15 s"],
    [3599.6, "1 h 00 min"],
    [7500, "2 h 05 min"],
    [90000, "1 d 1 h"],
  ]);
  table(wholeDuration, [
    [-1, "0 s"],
    [0.9, "0 s"],
    [59.9, "59 s"],
    [60.5, "1 min 00 s"],
  ]);
});

test("shares never look finished before they are", () => {
  table(percent, [
    [0, "0 %"],
    [0.001, "<1 %"],
    [0.29, "29 %"],
    [0.999, "99 %"],
    [1, "100 %"],
    [1.2, "100 %"],
  ]);
});

test("times", () => {
  assert.equal(moment(Date.UTC(2026, 0, 31, 2, 0, 1)), "2026-01-31 02:00:01");
  assert.equal(localMoment("2026-01-31T02:00:00+01:00"), "2026-01-31 02:00");
  const now = 1_000_000_000_000;
  table(
    (seconds: number) => relative(now + seconds * 1000, now),
    [
      [0, "now"],
      [-30, "30 s ago"],
      [-200, "3 min ago"],
      [3600, "in 1 h"],
      [5400, "in 1 h 30 min"],
      [-40000, "11 h ago"],
      [-200000, "2 d ago"],
      [39, "in 39 s"],
    ],
  );
  table(
    (seconds: number) => ago(now + seconds * 1000, now),
    [
      [39, "now"],
      [-30, "30 s ago"],
      [3600, "in 1 h"],
    ],
  );
});

// How the made-up runs go: what is so at a moment follows from the moment.
import { live } from "./runs.mjs";

const ENTRIES = [
  { entry: "orders", kind: "source", reads: [] },
  { entry: "customers", kind: "source", reads: [] },
  { entry: "joined", kind: "transform", reads: ["orders", "customers"] },
  { entry: "clean", kind: "transform", reads: ["orders"] },
  { entry: "by_country", kind: "transform", reads: ["joined"] },
  { entry: "orders", kind: "sink", reads: ["clean"] },
  { entry: "report", kind: "sink", reads: ["by_country"] },
];

function wide() {
  const entries = [];
  for (let i = 0; i < 40; i += 1) entries.push({ entry: `feed_${i}`, kind: "source", reads: [] });
  for (let layer = 0; layer < 3; layer += 1) {
    for (let i = 0; i < 40; i += 1) {
      const before = layer === 0 ? `feed_${i}` : `t${layer - 1}_${i}`;
      const also = layer === 0 ? `feed_${(i + 1) % 40}` : `t${layer - 1}_${(i + 3) % 40}`;
      entries.push({ entry: `t${layer}_${i}`, kind: "transform", reads: i % 4 === 0 ? [before, also] : [before] });
    }
  }
  for (let i = 0; i < 40; i += 1) entries.push({ entry: `out_${i}`, kind: "sink", reads: [`t2_${i}`] });
  return entries;
}
const WIDE = wide();

const DETAIL = {
  list: "s3",
  fetch: "s3://feeds/2026/11",
  decode: "gzip",
  parse: "csv",
  transform: "sql",
  load: "postgres, orders",
};

export function steps(entries, seconds, share) {
  const made = [];
  entries.forEach(({ entry, kind }, index) => {
    const kinds = kind === "source" ? ["list", "fetch", "decode", "parse"] : [kind === "sink" ? "load" : "transform"];
    for (const does of kinds) {
      const wobble = 1 + 0.1 * Math.sin(seconds / 3 + index);
      const rows =
        does === "list" || does === "fetch" || does === "decode"
          ? 0
          : Math.round(seconds * (61_200 - 1_700 * (index % 9)) * wobble);
      const busy = seconds * wobble * (does === "parse" ? 0.82 : does === "load" ? 0.35 : 0.2 + 0.05 * (index % 7));
      made.push({
        name: entry,
        kind: does,
        detail: DETAIL[does],
        units: Math.floor(share * 40),
        units_total: kind === "source" ? 40 : 0,
        rows,
        rejected: does === "parse" && index === 0 ? Math.floor(seconds / 3) : 0,
        bytes: does === "fetch" || does === "decode" ? Math.round(seconds * 9_400_000) : 0,
        bytes_total: 0,
        busy,
        waiting: Math.max(0, seconds - busy),
        waiting_input: Math.max(0, seconds - busy) * 0.6,
        waiting_output: Math.max(0, seconds - busy) * 0.3,
        waiting_scratch: 0,
        spilled_bytes: entry === "joined" ? 400_000_000 : 0,
      });
    }
  });
  return made;
}

export function points(seconds, rate = 61_000) {
  const every = Math.max(0.2, seconds / 100);
  const found = [];
  let rows = 0;
  for (let at = every; at <= seconds; at += every) {
    rows += every * rate * (0.85 + 0.2 * Math.sin(at / 4) + 0.1 * Math.sin(at * 1.7));
    found.push({
      elapsed_ms: Math.round(at * 1000),
      rows_read: Math.round(rows),
      rows_written: Math.round(rows * 0.93),
      bytes_read: Math.round(rows * 88),
    });
  }
  return found;
}

/** A run of a job, from its beginning; it takes five minutes, and begins anew. */
export function liveOf(run, now = Date.now()) {
  const seconds = ((now - run.began) / 1000) % 300;
  const share = seconds / 300;
  const entries = run === live.wide ? WIDE : ENTRIES;
  const all = steps(entries, seconds, share);
  return {
    updated: now,
    phase: share > 0.97 ? "finishing" : "reading",
    elapsed_ms: Math.round(seconds * 1000),
    entries,
    steps: all,
    points: points(seconds),
    rate: 61_204 + 2_000 * Math.sin(now / 3000),
    bytes_read: Math.round(seconds * 9_400_000),
    bytes_expected: 2_820_000_000,
    bytes_written: Math.round(seconds * 4_100_000),
    units: Math.floor(share * 40),
    units_expected: 40,
    eta: 300 - seconds,
    verdict: { limit: "cpu", sentence: "limited by: parsing csv (orders), 2 of 2 cores busy 94 %" },
    memory_used: 612_000_000,
    memory_limit: 2_147_483_648,
    resident: 730_000_000,
    queue: null,
  };
}

export function tick(now = Date.now()) {
  for (const run of [live.load, live.wide, live.shop]) {
    const its = liveOf(run, now);
    const last = its.points.at(-1);
    Object.assign(run, {
      rows_read: last?.rows_read ?? 0,
      rows_written: last?.rows_written ?? 0,
      rate: its.rate,
      share: its.elapsed_ms / 300_000,
    });
  }
  live.nightly.share = 0.4;
}

const step = (name, kind, what, needs, outcome, more = {}) => ({
  name,
  kind,
  what,
  needs,
  when: null,
  outcome,
  began: null,
  ended: null,
  message: null,
  results: {},
  parts: [],
  ...more,
});

export function sequence(run, isOver = false) {
  const at = (seconds) => run.began + seconds * 1000;
  const part = (item, outcome, from, to, more = {}) => ({
    item,
    attempts: 1,
    outcome,
    began: at(from),
    ended: to === null ? null : at(to),
    run: null,
    message: null,
    ...more,
  });
  const each = isOver ? "success" : "running";
  return [
    step("load", "job", "load.yaml", [], "success", {
      began: at(0),
      ended: at(41),
      parts: [part(null, "success", 0, 41, { run: "1795334700000-4711", attempts: 2 })],
    }),
    step("rows", "query", "SELECT count(*) AS n FROM sales", ["load"], "success", {
      began: at(41),
      ended: at(42),
      results: { n: 1204331 },
    }),
    step("each", "job", "shop/orders.yaml", ["rows"], each, {
      when: "steps.rows.n > 0",
      began: at(42),
      ended: isOver ? at(88) : null,
      parts: [
        part("north", "success", 42, 66, { run: live.shop.run }),
        part("south", "failed", 42, 58, { message: "the connection was refused", attempts: 3 }),
        part("east", isOver ? "success" : "running", 58, isOver ? 88 : null, { run: live.shop.run }),
        part("west", "success", 66, 81, { run: live.shop.run }),
      ],
    }),
    step("sizes", "query", "SELECT pg_database_size('shop')", ["load"], "success", { began: at(41), ended: at(44) }),
    step(
      "done",
      "command",
      "./publish 1204331",
      ["each", "sizes"],
      isOver ? "success" : "waiting",
      isOver ? { began: at(88), ended: at(91) } : {},
    ),
    step("alarm", "mail", "boss@example.com", ["done"], isOver ? "skipped" : "waiting", { when: "failure" }),
  ];
}

export const entries = ENTRIES;
export const wideEntries = WIDE;

// Made-up runs: the same at every start, but for the time at which they happened.
const MINUTE = 60_000,
  HOUR = 60 * MINUTE,
  DAY = 24 * HOUR;

/** Numbers that look random and are the same each time. */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export const began = Date.now();
const next = random(7);
let process = 4100;

export function summary(file, kind, at, more = {}) {
  const pid = process++;
  const run = `${at}-${pid}`;
  return {
    run,
    logical: run,
    kind,
    job: `/srv/jobs/${file}`,
    file,
    variables: "",
    process: pid,
    began: at,
    ended: null,
    seconds: null,
    outcome: "running",
    message: null,
    rows_read: 0,
    rows_written: 0,
    rows_rejected: 0,
    units: 0,
    rate: null,
    share: null,
    of_step: null,
    is_unfinished: false,
    ...more,
  };
}

const MESSAGES = [
  "table orders of postgres://etl@db.example/shop: the connection was refused: Connection refused (os error 111)",
  "s3://feeds/2026/11/orders-17.csv.gz, line 20411, byte 1204991, column amount: the value is not a decimal: `12,50`",
  "the disk of scratch is full: /var/tmp/millstream has 12 MiB left",
];

function past(file, kind, at, size, variables = "") {
  const luck = next();
  const outcome = luck < 0.07 ? "failed" : luck < 0.09 ? "killed" : luck < 0.11 ? "interrupted" : "done";
  const seconds = size * (0.7 + 0.7 * next()) * (outcome === "done" ? 1 : 0.4);
  const rows = Math.round(seconds * (58_000 + 9_000 * next()));
  const rejected = next() < 0.25 ? Math.round(next() * 40) : 0;
  return summary(file, kind, at, {
    ended: at + seconds * 1000,
    seconds,
    outcome,
    variables,
    message:
      outcome === "failed"
        ? MESSAGES[Math.floor(next() * 3)]
        : outcome === "killed"
          ? "killed by signal 9 (out of memory?)"
          : null,
    rows_read: kind === "job" ? rows : 0,
    rows_written: kind === "job" ? rows - rejected : 0,
    rows_rejected: kind === "job" ? rejected : 0,
    units: 40,
  });
}

const day = (ms) => new Date(ms).toISOString().slice(0, 10);

export const runs = [];
for (let days = 40; days >= 1; days -= 1) {
  const at = Math.floor((began - days * DAY) / DAY) * DAY + 2 * HOUR;
  const nightly = past("nightly.yaml", "sequence", at, 240, `DAY=${day(at - DAY)}`);
  runs.push(nightly);
  runs.push({
    ...past("load.yaml", "job", at + 2000, 95, `DAY=${day(at - DAY)}`),
    of_step: { sequence: nightly.run, step: "load" },
  });
  for (const hour of [8, 14]) runs.push(past("shop/orders.yaml", "job", at + hour * HOUR + 17 * MINUTE, 28));
  if (days % 7 === 0) runs.push(past("shop/customers.yaml", "job", at + 5 * HOUR, 640));
}
runs.push(past("shop/orders.yaml", "job", began - 3 * HOUR, 28));
const lost = runs.findLast((run) => run.file === "shop/customers.yaml");
Object.assign(lost, {
  outcome: "failed",
  message: MESSAGES[0],
  is_unfinished: true,
  seconds: 214.2,
  ended: lost.began + 214_200,
});
const killed = runs.findLast((run) => run.file === "shop/orders.yaml");
Object.assign(killed, {
  outcome: "killed",
  message: "killed by signal 9 (out of memory?)",
  is_unfinished: true,
  rows_rejected: 27,
});

// A chain: it failed, was resumed, and is done.
const [first, second] = [
  past("load.yaml", "job", began - 8 * HOUR, 60),
  past("load.yaml", "job", began - 7.8 * HOUR, 40),
];
Object.assign(first, { outcome: "failed", message: MESSAGES[1], ended: first.began + 41_000, seconds: 41 });
Object.assign(second, { outcome: "done", message: null, logical: first.run, rows_rejected: 27 });
runs.push(first, second);
export const rejecting = second;

// What runs now.
export const live = {
  load: summary("load.yaml", "job", began - 42_000, { variables: "DAY=2026-11-27\nPASSWORD=***", rows_rejected: 12 }),
  nightly: summary("nightly.yaml", "sequence", began - 95_000, { variables: "DAY=2026-11-27" }),
  wide: summary("big/wide.yaml", "job", began - 20_000),
};
live.shop = summary("shop/orders.yaml", "job", began - 50_000, {
  of_step: { sequence: live.nightly.run, step: "each" },
});
runs.push(live.nightly, live.shop, live.load, live.wide);
runs.sort((a, b) => b.began - a.began);

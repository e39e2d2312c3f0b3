// What is known of a made-up run.
import { entries, liveOf, points, sequence, steps } from "./live.mjs";
import { rejecting, runs } from "./runs.mjs";

export const problem = (status, kind, what, hint = null) => ({
  status,
  body: { error: { kind, what, cause: null, hint, text: null } },
});
export const ok = (body) => ({ status: 200, body });

function report(run) {
  if (run.outcome === "running") return null;
  if (run.kind === "sequence") return { steps: sequence(run, true), seconds: run.seconds };
  return {
    rows_read: run.rows_read,
    rows_written: run.rows_written,
    rows_rejected: run.rows_rejected,
    bytes_read: run.rows_read * 88,
    bytes_written: run.rows_written * 41,
    seconds: run.seconds,
    peak_rss_bytes: 740_000_000,
    memory_bytes: 2 ** 31,
    cores: 2,
    cpu_seconds: run.seconds * 1.8,
    units_skipped: 1,
    skipped: [{ source: "orders", uri: "s3://feeds/2026/11/orders-31.csv.gz", what: "the object is empty" }],
    results: [
      {
        sink: "orders",
        target: "shop",
        summary: "1,204,110 rows added to table orders of postgres://etl@db.example/shop",
      },
    ],
    checks: [
      {
        entry: "orders",
        check: "unique",
        severity: "fail",
        holds: true,
        rows: run.rows_written,
        broken: 0,
        what: "id is unique",
      },
      {
        entry: "joined",
        check: "not_null",
        severity: "warn",
        holds: false,
        rows: run.rows_written,
        broken: 41,
        what: "country is not null",
        examples: ["id 4711: null", "id 4790: null"],
      },
    ],
    entries,
    steps: steps(entries, run.seconds, 1),
    points: points(run.seconds),
    verdict: { limit: "cpu", sentence: "limited by: parsing csv (orders), 2 of 2 cores busy 94 %" },
    hooks: [{ hook: "webhook https://hooks.example/etl", error: null }],
  };
}

export function detail(id, beside) {
  const run = runs.find((run) => run.run === id) ?? (id === "1795334700000-4711" ? rejecting : null);
  if (!run) return problem(404, "refused", `there is no run ${id}`, "`millstream runs` lists them");
  const other = runs.find((its) =>
    beside ? its.run === beside : its.job === run.job && its.began < run.began && its.outcome === "done",
  );
  const isLive = run.outcome === "running";
  return ok({
    run,
    report: report(run),
    before: other ? { run: other, report: report(other) } : null,
    compared: other
      ? [
          {
            what: "rows read",
            now: run.rows_read.toLocaleString("en-US"),
            before: other.rows_read.toLocaleString("en-US"),
            change: "+3 %",
            expected: "1,190,000",
          },
          { what: "duration", now: "12.4 s", before: "11.9 s", change: "+4 %", expected: "12 s" },
          { what: "peak memory", now: "706 MiB", before: "698 MiB", change: "+1 %", expected: "" },
        ]
      : [],
    live: isLive && run.kind === "job" ? liveOf(run) : null,
    steps: run.kind === "sequence" ? sequence(run, !isLive) : null,
    step_runs: runs.filter((its) => its.of_step?.sequence === run.run),
    chain: runs.filter((its) => its.logical === run.logical).reverse(),
    errors: [],
    can: { cancel: isLive, resume: run.is_unfinished, start: !isLive, replay: run.rows_rejected > 0 },
    has_log: true,
  });
}

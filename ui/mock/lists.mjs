// What the made-up lists of runs and times are.
import { runs } from "./runs.mjs";

export function scheduled(times) {
  const at = new Date();
  at.setUTCHours(1, 0, 0, 0);
  const next = Array.from({ length: times }, (_, i) =>
    new Date(+at + (i + 1) * 86400e3 + 3600e3).toISOString().replace(".000Z", "+01:00"),
  );
  return {
    scheduler: { state: "here", process: null },
    lints: [],
    sequences: [
      {
        sequence: "/srv/jobs/nightly.yaml",
        file: "nightly.yaml",
        timezone: "Europe/Berlin",
        next,
        triggers: [],
        running: null,
        queued: null,
        missed: {
          first: Date.now() - 3 * 86400e3,
          last: Date.now() - 2 * 86400e3,
          count: 2,
          why: "no scheduler was running",
        },
        last: {
          planned: Date.now() - 86400e3,
          state: "ended",
          cause: null,
          why: null,
          run: runs[0].run,
          outcome: "done",
          message: null,
        },
      },
      {
        sequence: "/srv/jobs/shop/weekly.yaml",
        file: "shop/weekly.yaml",
        timezone: "UTC",
        next: [],
        triggers: ["files in in/*.csv", "after nightly.yaml"],
        running: null,
        queued: null,
        last: null,
        missed: null,
      },
    ],
  };
}

export function overview() {
  const strips = ["nightly.yaml", "load.yaml", "shop/orders.yaml", "shop/customers.yaml"].map((file) => {
    const its = runs
      .filter((run) => run.file === file)
      .slice(0, 30)
      .reverse();
    return {
      job: `/srv/jobs/${file}`,
      file,
      kind: its[0].kind,
      runs: its.map(({ run, outcome, began, seconds }) => ({ run, outcome, began, seconds })),
    };
  });
  return {
    running: runs.filter((run) => run.outcome === "running"),
    unfinished: runs.filter((run) => run.is_unfinished),
    schedule: scheduled(1),
    strips,
    waiting: [
      {
        job: "/srv/jobs/shop/archive.yaml",
        file: "shop/archive.yaml",
        of_step: null,
        hours: "22:00-06:00",
        until: "22:00",
        has_begun: false,
        since: Date.now() - 1_900_000,
      },
    ],
    notices: [
      {
        when: Date.now() - 240_000,
        level: "warning",
        text: "nightly.yaml: its deadline 03:00 will be missed by about 12 min",
      },
      { when: Date.now() - 9_000_000, level: "error", text: "shop/weekly.yaml, line 3: `crn` is no key of a schedule" },
      {
        when: Date.now() - 9_900_000,
        level: "info",
        text: "nightly.yaml: starts next at 2026-11-29 02:00 Europe/Berlin",
      },
    ],
  };
}

export function list(query) {
  const get = (name) => query.get(name) ?? "";
  const found = runs.filter(
    (run) =>
      (!get("file") || run.file === get("file")) &&
      (!get("job") || run.job === get("job")) &&
      (!get("kind") || run.kind === get("kind")) &&
      (!get("outcome") || run.outcome === get("outcome")) &&
      (get("steps") || !run.of_step) &&
      (!get("unfinished") || run.is_unfinished) &&
      (!get("q") || `${run.file} ${run.variables} ${run.message}`.includes(get("q"))) &&
      (!get("from") || run.began >= +get("from")) &&
      (!get("to") || run.began <= +get("to")) &&
      (!get("before") || run.began < +get("before").split("-")[0]),
  );
  const limit = +(get("limit") || 50);
  const shown = found.slice(0, limit);
  return { runs: shown, next: found.length > limit ? shown.at(-1).run : null };
}

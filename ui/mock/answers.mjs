// What the endpoints answer, and what changes by it.
import { detail, ok, problem } from "./detail.mjs";
import { AUDIT, COLUMNS, LINTS, LOAD, NIGHTLY } from "./files.mjs";
import { list, overview, scheduled } from "./lists.mjs";
import { entries, sequence, wideEntries } from "./live.mjs";
import { live, runs } from "./runs.mjs";

export const clients = new Set();
const actions = [];
const files = new Map([
  ["load.yaml", LOAD],
  ["nightly.yaml", NIGHTLY],
  ["big/wide.yaml", "sources: {}\n"],
  ["shop/orders.yaml", LOAD],
  ["shop/customers.yaml", LOAD],
  ["shop/orders.test.yaml", "test: shop/orders.yaml\n"],
  ["machine.yaml", "pools: {db: 2}\n"],
]);
const kindOf = (file) =>
  file === "nightly.yaml" ? "sequence" : file.includes(".test.") ? "test" : file === "machine.yaml" ? "other" : "job";
const etag = (text) => String(text.length);
export const session = (role) => ({
  user: role,
  role,
  expires: Date.now() + 8 * 3600e3,
  version: "0.9.0",
  folder: "/srv/jobs",
  host: "etl-1",
  state: "/var/lib/millstream",
});
export const RANK = { look: 0, operate: 1, edit: 2 };

function act(what, file, run, user) {
  const action = {
    id: String(actions.length + 1),
    what,
    file,
    run: what === "replay" ? run : null,
    user,
    began: Date.now(),
    ended: null,
    state: "running",
    exit_code: null,
    output: "",
  };
  actions.unshift(action);
  setTimeout(() => {
    action.run ??= live.load.run;
    emit("action", action);
  }, 800);
  setTimeout(() => {
    Object.assign(action, {
      state: what === "restart" ? "failed" : "done",
      exit_code: 0,
      ended: Date.now(),
      output:
        what === "replay"
          ? "26 rejects loaded, 1 failed again and was kept\n"
          : "done in 12.4 s: 1,204,112 rows read\n",
    });
    emit("action", action);
  }, 2500);
  return ok(action);
}

export function answer(method, path, query, body, role) {
  const may = (needed) => RANK[role] >= RANK[needed];
  const parts = path.split("/").slice(1);
  const file = query.get("file") ?? body?.file;
  if (path === "/overview") return ok(overview());
  if (path === "/runs") return ok(list(query));
  if (path === "/schedule") return ok(scheduled(+(query.get("times") ?? 5)));
  if (path === "/actions") return ok({ actions });
  if (parts[0] === "actions") return ok(actions.find((its) => its.id === parts[1]));
  if (path === "/history") {
    const since = Date.now() - +(query.get("days") ?? 30) * 86400e3;
    const names = [...new Set(runs.map((run) => run.file))];
    return ok({
      runs: runs
        .filter((run) => run.began > since && (!file || run.file === file))
        .reverse()
        .map((run) => ({ ...run, bytes_read: run.rows_read * 88 })),
      is_cut: false,
      jobs: names.map((name) => ({
        job: `/srv/jobs/${name}`,
        file: name,
        kind: kindOf(name),
        runs: runs.filter((run) => run.file === name).length,
      })),
    });
  }
  if (path === "/files")
    return ok({
      is_cut: false,
      files: [...files].map(([name, text]) => ({
        file: name,
        kind: kindOf(name),
        modified: Date.now() - 1e7,
        size: text.length,
        last: runs.find((run) => run.file === name) ?? null,
      })),
    });
  const isNew = method === "PUT" && body.etag === null;
  if (path === "/file" && !files.has(file) && !isNew) return problem(404, "io", `there is no file ${file}`);
  if (path === "/file" && method === "PUT") {
    if (!may("edit")) return problem(403, "refused", "this needs the role `edit`");
    const there = files.has(file) ? etag(files.get(file)) : null;
    if (body.etag !== there) return problem(412, "refused", "the file has changed meanwhile");
    files.set(file, body.text);
    emit("files", { files: [file] });
  }
  if (path === "/file")
    return ok({
      file,
      kind: kindOf(file),
      text: files.get(file),
      etag: etag(files.get(file)),
      modified: Date.now(),
      is_redacted: false,
    });
  if (path === "/check")
    return ok({
      lints: kindOf(file) === "job" && file === "load.yaml" ? LINTS : [],
      errors: [],
      unknown: ["orders"],
      can_run: true,
    });
  if (path === "/explain") {
    const isSequence = kindOf(file) === "sequence";
    return ok({
      kind: isSequence ? "sequence" : "job",
      entries: isSequence ? [] : file === "big/wide.yaml" ? wideEntries : entries,
      allow: ["DAY"],
      lints: [],
      errors: [],
      steps: isSequence
        ? sequence(live.nightly).map((its) => ({
            name: its.name,
            does: `${its.kind} ${its.what}`,
            needs: its.needs,
            when: its.when,
            took_ms: 41_000,
          }))
        : [],
      sources: ["orders", "customers"].map((name) => ({
        name,
        read: [`s3://feeds/2026/11/${name}-*.csv.gz`],
        format: "csv",
        columns: COLUMNS,
      })),
      transforms: ["clean", "joined", "by_country"].map((name) => ({ name, columns: COLUMNS.slice(0, 3) })),
      sinks: [
        {
          name: "orders",
          kind: "postgres",
          target: "shop, table orders",
          details: ["loads chunk by chunk: its rows keep their origin"],
        },
        {
          name: "report",
          kind: "parquet",
          target: "out/2026-11-27.parquet",
          details: ["written aside, and published at once"],
        },
      ],
    });
  }
  if (path === "/preview")
    return ok({
      columns: COLUMNS.map(({ name, type }) => ({ name, kind: type })),
      lints: [],
      errors: [],
      left_out: [{ entry: "orders", count: 2, first: ["line 7: the value is not an int64: `many`"] }],
      rows: Array.from({ length: 20 }, (_, i) => [
        4711 + i,
        17 * i,
        (i * 13.37).toFixed(2),
        "2026-11-27T08:00:00",
        i % 3 ? `a note about order ${i}, which may be quite long, and then some more` : null,
      ]),
    });
  if (path === "/machine")
    return ok({
      host: "etl-1",
      cores: 8,
      memory: 32 * 2 ** 30,
      memory_available: 19.2 * 2 ** 30,
      load: [2.41 + Math.random() / 10, 1.9, 1.22],
      scratch: [{ path: "/var/tmp/millstream", size: 400e9, used: 379e9, free: 21e9 }],
      state: { path: "/var/lib/millstream", size: 100e9, used: 29e9, free: 71e9 },
      pools: [{ name: "db", size: 4, used: 3 }],
      run_memory: 24 * 2 ** 30,
      run_memory_shared: 6 * 2 ** 30,
      server: { process: 811, resident: 31e6, cpu_seconds: 12.5 },
      runs: runs
        .filter((run) => run.outcome === "running")
        .map((run) => ({ ...run, resident: 700e6, cpu_seconds: 84.2, threads: 18 })),
    });
  if (path === "/audit")
    return ok({
      entries: AUDIT.map(([user, did, what], i) => ({
        when: Date.now() - i * 3.1e6,
        user,
        from: "127.0.0.1",
        did,
        what,
        ok: i !== 2,
      })),
    });
  if (path === "/start") return act(body.restart ? "restart" : "start", body.file, null, role);
  if (parts[0] === "runs") {
    const [, id, what] = parts;
    if (!what) return detail(id, query.get("beside"));
    if (what === "log") {
      const text = Array.from(
        { length: 30 + Math.floor((Date.now() / 1000) % 60) },
        (_, i) => `unit s3://feeds/2026/11/orders-${i}.csv.gz: 61,204 rows\n`,
      ).join("");
      return ok({ text: text.slice(+(query.get("from") ?? 0)), next: text.length, is_cut: false });
    }
    if (what === "rejects")
      return ok({
        run: id,
        waiting: 27,
        replayed: 3,
        can_be_replayed: true,
        reasons: [
          {
            step: "orders",
            kind: "value",
            column: "amount",
            count: 26,
            examples: [
              {
                what: "s3://feeds/2026/11/orders-17.csv.gz, line 20411: the value is not a decimal: `12,50`",
                record: '4711,17,"12,50",2026-11-27T08:00:00',
              },
              {
                what: "s3://feeds/2026/11/orders-18.csv.gz, line 3: the value is not a decimal: `n/a`",
                record: "4790,18,n/a,2026-11-27T08:00:00",
              },
            ],
          },
          {
            step: "orders",
            kind: "constraint",
            column: null,
            count: 1,
            examples: [
              {
                what: 'duplicate key value violates unique constraint "orders_pkey"',
                record: "4712,17,1.00,2026-11-27T08:00:00",
              },
            ],
          },
        ],
      });
    if (what === "cancel") return ok({});
    return act(what, "load.yaml", id, role);
  }
  return problem(404, "refused", `there is no ${path}`);
}

export function emit(event, data, to = clients) {
  for (const client of to) client.response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}

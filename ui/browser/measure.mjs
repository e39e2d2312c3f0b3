// Measures against a server with real runs: how long the overview takes, and what the live graph of 200 entries costs.
// `node browser/measure.mjs`; the variables are those of `run.mjs`.
import { launch } from "./lib/browser.mjs";
import { demo } from "./lib/demo.mjs";
import { shown, there, until } from "./lib/wait.mjs";
import { Workspace } from "./lib/workspace.mjs";

const SECONDS = 12;
/** Of five entries each. */
const CHAINS = 40;
const FRAME = 12;

function wide() {
  const files = {};
  for (let file = 0; file < 60; file += 1) {
    const rows = Array.from({ length: 400 }, (_, row) => `${file * 400 + row},${row % 100}`);
    files[`data/wide/${String(file).padStart(2, "0")}.csv`] = `id,n\n${rows.join("\n")}\n`;
  }
  const chains = Array.from({ length: CHAINS }, (_, index) => String(index).padStart(2, "0"));
  files["wide.yaml"] = [
    "throttle: {bytes_per_second: 4kB}",
    "sources:",
    "  rows: {read: 'data/wide/*.csv'}",
    "transforms:",
    ...chains.flatMap((n) =>
      [1, 2, 3, 4].map((at) => {
        const from = at === 1 ? "rows" : `part_${n}_${at - 1}`;
        return `  part_${n}_${at}: {filter: {from: ${from}, where: n >= ${Number(n) + at}}}`;
      }),
    ),
    "sinks:",
    ...chains.map((n) => `  file_${n}: {from: part_${n}_4, write: 'out/${n}.csv'}`),
    "",
  ].join("\n");
  return files;
}

const workspace = await Workspace.make({ ...demo(), ...wide() });
const browser = await launch();
const sessions = browser.sessions(workspace);
try {
  for (const file of ["orders.yaml", "shares.yaml", "prices.yaml"]) await workspace.run("run", file);
  const page = await sessions.tools.open("/");
  const times = [];
  for (let round = 0; round < 5; round += 1) {
    const start = performance.now();
    await page.reload({ waitUntil: "commit" });
    await shown(page.getByRole("region", { name: "Last runs" }));
    times.push(Math.round(performance.now() - start));
  }
  console.log(`overview: shown after ${times.sort((a, b) => a - b)[2]} ms (median of 5: ${times.join(", ")})`);

  const run = await workspace.begin("wide.yaml");
  await page.goto(`${workspace.url}/runs/${run}`);
  await there(page.locator(".react-flow__node"));
  // All nodes in view: the most that there can be to do.
  await page.getByRole("button", { name: "Fit View" }).click();
  await until("all nodes", async () => (await page.locator(".react-flow__node").count()) > 200);
  await until("rows", async () => (await workspace.api(`/runs/${run}`)).run.rows_read > 0);
  await trace(page, "the whole graph in view");
  await page.getByRole("button", { name: "Zoom In" }).click({ clickCount: 6 });
  await page.waitForTimeout(1000);
  await trace(page, "a part of the graph in view");
  if (sessions.noises.length > 0) console.log(sessions.noises);
} finally {
  await sessions.close();
  await browser.close();
  await workspace.remove();
}

async function trace(page, what) {
  const devtools = await page.context().newCDPSession(page);
  const events = [];
  devtools.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const over = new Promise((resolve) => devtools.once("Tracing.tracingComplete", resolve));
  await devtools.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: ["toplevel", "devtools.timeline", "v8"] },
  });
  await page.waitForTimeout(SECONDS * 1000);
  await devtools.send("Tracing.end");
  await over;
  const main = events.find(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const on = events.filter(({ ph, pid, tid }) => ph === "X" && pid === main.pid && tid === main.tid);
  // Processor time of the thread, so that what else the machine does does not count.
  const time = ({ dur = 0, tdur = dur }) => tdur / 1000;
  const tasks = on
    .filter(({ name }) => name === "ThreadControllerImpl::RunTask" || name === "RunTask")
    .map(time)
    .sort((a, b) => b - a);
  const sum = tasks.reduce((total, ms) => total + ms, 0) / SECONDS;
  const longest = tasks.slice(0, 6).map((ms) => ms.toFixed(1));
  const over12 = tasks.filter((ms) => ms > FRAME).length / SECONDS;
  console.log(`${what}: the longest tasks ${longest.join(", ")} ms`);
  console.log(`  tasks of more than ${FRAME} ms: ${over12.toFixed(1)} a second`);
  console.log(`  main thread ${sum.toFixed(0)} ms a second in all`);
  for (const name of ["FunctionCall", "RunMicrotasks", "UpdateLayoutTree", "Layout", "PrePaint", "Paint", "Layerize"]) {
    const these = on.filter((event) => event.name === name).map(time);
    if (these.length === 0) continue;
    const all = these.reduce((total, ms) => total + ms, 0) / SECONDS;
    console.log(`  ${name}: ${all.toFixed(1)} ms a second, at most ${Math.max(...these).toFixed(1)}`);
  }
}

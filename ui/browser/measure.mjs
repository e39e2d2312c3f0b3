// Measures against a server with real runs: how long the overview takes, and what the live graph of 200 entries costs.
// `node browser/measure.mjs`; the variables are those of `run.mjs`, and SECONDS for how long each of the parts goes on.
import { launch } from "./lib/browser.mjs";
import { demo } from "./lib/demo.mjs";
import { measureGraph, measureLoad } from "./lib/trace.mjs";
import { shown, until } from "./lib/wait.mjs";
import { Workspace } from "./lib/workspace.mjs";

const seconds = Number(process.env.SECONDS ?? 30);
/** Of five entries each. */
const CHAINS = 40;

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
  await until("rows", async () => (await workspace.api(`/runs/${run}`)).run.rows_read > 0);
  await measureLoad(page, `${workspace.url}/runs/${run}`);
  await measureGraph(page, seconds);
  if (sessions.noises.length > 0) console.log(sessions.noises);
} finally {
  await sessions.close();
  await browser.close();
  await workspace.remove();
}

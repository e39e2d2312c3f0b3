// Opens every page against the mock server in both themes and two widths: writes pictures to `shots/`, runs axe, and
// reports what the console says. `node mock/look.mjs [ADDRESS] [PART OF A PAGE'S NAME]`; CHROMIUM names the browser.
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [address = "http://127.0.0.1:8321", only = ""] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = new URL("../shots/", import.meta.url).pathname;
mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
const get = async (path) =>
  (await fetch(`${address}/api/v1${path}`, { headers: { Authorization: "Bearer edit" } })).json();
const { runs } = await get("/runs?steps=true&limit=500");
const find = (test) => `/runs/${runs.find(test).run}`;
const is = (file, outcome) => (run) => run.file === file && run.outcome === outcome;

const PAGES = {
  overview: "/",
  "run-live": find(is("load.yaml", "running")),
  "run-wide": find(is("big/wide.yaml", "running")),
  "run-sequence": find(is("nightly.yaml", "running")),
  "run-sequence-done": find(is("nightly.yaml", "done")),
  "run-done": find((run) => is("load.yaml", "done")(run) && run.rows_rejected > 0),
  "run-failed": find(is("shop/customers.yaml", "failed")),
  rejects: `${find((run) => is("load.yaml", "done")(run) && run.rows_rejected > 0)}/rejects`,
  runs: "/runs",
  "runs-none": "/runs?q=nothing-like-this",
  history: "/history?file=shop%2Forders.yaml&days=30",
  jobs: "/jobs",
  "job-graph": "/jobs/load.yaml",
  "job-text": "/jobs/load.yaml?view=text",
  "job-data": "/jobs/load.yaml?view=data",
  "job-runs": "/jobs/load.yaml?view=runs",
  "job-sequence": "/jobs/nightly.yaml",
  "job-schedule": "/jobs/nightly.yaml?view=schedule",
  machine: "/machine",
  audit: "/audit",
  "not-found": "/nowhere",
};

/** What is done on a page before it is looked at. */
const DO = {
  "job-data": (page) => page.getByRole("button", { name: "Show the first" }).click(),
  start: (page) => page.getByRole("button", { name: "Start…" }).click(),
  editor: (page) => page.getByRole("button", { name: "Edit" }).click(),
  replay: (page) => page.getByRole("button", { name: "Replay…" }).click(),
  help: (page) => page.keyboard.press("?"),
  toast: async (page) => {
    await page.getByRole("button", { name: "Start…" }).click();
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.waitForTimeout(1500);
  },
};
Object.assign(PAGES, {
  start: PAGES["job-graph"],
  editor: PAGES["job-text"],
  replay: PAGES.rejects,
  help: "/",
  toast: PAGES["job-graph"],
  "sign-in": "/",
});

let problems = 0;
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    const context = await browser.newContext({ colorScheme, viewport: { width, height: 800 }, bypassCSP: false });
    const page = await context.newPage();
    let name = "";
    const say = (text) => {
      problems += 1;
      console.log(`${name} ${colorScheme} ${width}: ${text}`);
    };
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && say(message.text()));
    page.on("pageerror", (error) => say(String(error)));
    for (const [its, path] of Object.entries(PAGES)) {
      if (!its.includes(only)) continue;
      name = its;
      await page.goto("about:blank");
      await page.goto(its === "sign-in" ? `${address}/` : `${address}${path}#token=edit`);
      if (its === "sign-in") {
        await page.evaluate(() => sessionStorage.clear());
        await page.reload();
      }
      await page.waitForSelector("h1");
      await page.waitForTimeout(its.startsWith("run-") ? 2200 : 500);
      await DO[its]?.(page);
      await page.waitForTimeout(300);
      const over = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      if (over > 0) say(`is ${over} px too wide`);
      await page.screenshot({
        path: `${shots}${its}-${colorScheme}-${width}.png`,
        fullPage: !DO[its] || its === "job-data",
      });
      const { violations } = await page.evaluate(`${axe}; axe.run()`);
      for (const { id, impact, nodes } of violations) {
        say(
          `axe: ${impact} ${id}: ${nodes
            .slice(0, 3)
            .map((node) => `${node.target} ${node.failureSummary.split("\n")[1] ?? ""}`)
            .join("; ")}`,
        );
      }
    }
    await context.close();
  }
}
await browser.close();
console.log(problems === 0 ? "nothing to report" : `${problems} problems`);

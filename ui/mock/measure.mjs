// Measures against the mock server: what the first page loads, and what the live graph of 200 nodes costs.
// `node mock/measure.mjs [ADDRESS]`; CHROMIUM names the browser.
import { chromium } from "playwright-core";

const [address = "http://127.0.0.1:8321"] = process.argv.slice(2);
const SECONDS = 12;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
const devtools = await page.context().newCDPSession(page);
await devtools.send("Network.enable");
let loaded = 0;
devtools.on("Network.loadingFinished", ({ encodedDataLength }) => {
  loaded += encodedDataLength;
});

const start = Date.now();
await page.goto(`${address}/#token=edit`);
await page.getByRole("heading", { name: "Running" }).waitFor();
console.log(`overview: usable after ${Date.now() - start} ms, ${(loaded / 1000).toFixed(0)} kB with its data`);

const { runs } = await (await fetch(`${address}/api/v1/runs`, { headers: { Authorization: "Bearer edit" } })).json();
const wide = runs.find((run) => run.file === "big/wide.yaml" && run.outcome === "running");
await page.goto("about:blank");
await page.goto(`${address}/runs/${wide.run}#token=edit`);
await page.locator(".react-flow__node").first().waitFor();
// All nodes in view: the most that there can be to do.
await page.getByRole("button", { name: "Fit View" }).click();
await page.locator(".react-flow__node").nth(199).waitFor({ state: "attached" });
await page.waitForTimeout(3000);

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
await browser.close();

const main = events.find((event) => event.name === "thread_name" && event.args.name === "CrRendererMain");
const on = events.filter((event) => event.ph === "X" && event.pid === main.pid && event.tid === main.tid);
// Processor time of the thread, so that what else the machine does does not count.
const time = ({ dur = 0, tdur = dur }) => tdur / 1000;
const tasks = on.filter(({ name }) => name === "ThreadControllerImpl::RunTask" || name === "RunTask");
const sum = (of) => of.reduce((total, event) => total + time(event), 0);
const longest = (of) => Math.max(...of.map(time));
const lasting = tasks.map(time).sort((a, b) => b - a);
console.log(
  `wide graph, ${SECONDS} updates: longest tasks ${lasting
    .slice(0, 8)
    .map((ms) => ms.toFixed(1))
    .join(", ")} ms`,
);
console.log(`tasks of more than 12 ms: ${(lasting.filter((ms) => ms > 12).length / SECONDS).toFixed(1)} a second`);
console.log(`main thread: ${(sum(tasks) / SECONDS).toFixed(1)} ms a second in all`);
for (const name of [
  "FunctionCall",
  "EvaluateScript",
  "RunMicrotasks",
  "v8.callFunction",
  "UpdateLayoutTree",
  "Layout",
  "PrePaint",
  "Paint",
  "Layerize",
  "Commit",
  "MinorGC",
  "V8.GC_SCAVENGER",
  "MajorGC",
]) {
  const these = on.filter((event) => event.name === name);
  if (these.length > 0)
    console.log(`  ${name}: ${(sum(these) / SECONDS).toFixed(1)} ms a second, at most ${longest(these).toFixed(1)}`);
}

// Measures against the mock server: what the first page loads, and what the live graph of 200 nodes costs.
// `node mock/measure.mjs [ADDRESS]`; CHROMIUM names the browser, SECONDS says for how long each of the parts goes on.
import { chromium } from "playwright-core";
import { measureGraph, measureLoad } from "../browser/lib/trace.mjs";

const [address = "http://127.0.0.1:8321"] = process.argv.slice(2);
const seconds = Number(process.env.SECONDS ?? 30);

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
await devtools.detach();

const { runs } = await (await fetch(`${address}/api/v1/runs`, { headers: { Authorization: "Bearer edit" } })).json();
const wide = runs.find((run) => run.file === "big/wide.yaml" && run.outcome === "running");
await measureLoad(page, `${address}/runs/${wide.run}#token=edit`);
await page.waitForTimeout(2000);
await measureGraph(page, seconds);
await browser.close();

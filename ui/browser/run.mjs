// Tests the pages in a browser against a server with real runs: `node browser/run.mjs [PART OF A TEST'S NAME]`.
//
// MILLSTREAM names the binary, CHROMIUM the browser. With DIST=1 the pages are those of `dist/` instead of those in the
// binary. With PICTURES=1 the tests also write the pictures of the documentation.
import { existsSync, readdirSync } from "node:fs";
import { launch } from "./lib/browser.mjs";
import { demo } from "./lib/demo.mjs";
import { Workspace } from "./lib/workspace.mjs";

const only = process.argv[2] ?? "";
const LONGEST = 180_000;

if (!process.env.MILLSTREAM || !existsSync(process.env.MILLSTREAM)) {
  console.error("MILLSTREAM must be the path of the binary");
  process.exit(2);
}

const groups = [];
for (const name of readdirSync(new URL("./tests", import.meta.url)).sort()) {
  if (name.endsWith(".mjs")) groups.push((await import(`./tests/${name}`)).default);
}

const browser = await launch();
const began = Date.now();
const failures = [];
let count = 0;
for (const { name, files, tests, folder } of groups) {
  const chosen = Object.entries(tests).filter(([test]) => `${name}: ${test}`.includes(only));
  if (chosen.length === 0) continue;
  let workspace = null;
  try {
    workspace = await Workspace.make({ ...demo(), ...files }, folder);
    for (const [test, run] of chosen) {
      count += 1;
      await runTest(`${name}: ${test}`, run, workspace);
    }
  } catch (error) {
    failed(name, error);
  } finally {
    await workspace?.remove();
  }
}
await browser.close();
const seconds = ((Date.now() - began) / 1000).toFixed(1);
console.log(`${count} tests in ${seconds} s, ${failures.length} failed`);
for (const name of failures) console.log(`  ${name}`);
process.exit(failures.length > 0 ? 1 : 0);

async function runTest(name, run, workspace) {
  const start = Date.now();
  const sessions = browser.sessions(workspace);
  let timer;
  try {
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not over after ${LONGEST / 1000} s`)), LONGEST);
    });
    await Promise.race([run({ workspace, ...sessions.tools }), late]);
    sessions.assertQuiet();
    console.log(`ok      ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed(name, error);
    for (const text of sessions.noises) console.log(`        the browser said: ${text}`);
    await sessions.show(name);
  } finally {
    clearTimeout(timer);
    await sessions.close();
  }
}

function failed(name, error) {
  failures.push(name);
  const text = String(error?.stack ?? error).replace(/\n/g, "\n        ");
  console.log(`FAILED  ${name}\n        ${text}`);
}

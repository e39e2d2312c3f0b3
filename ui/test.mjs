// Bundles the tests, since they import TypeScript, and runs them with Node's test runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const tests = readdirSync(join(here, "tests"))
  .filter((name) => name.endsWith(".test.ts"))
  .sort();
const out = join(here, ".test");

await build({
  absWorkingDir: here,
  entryPoints: tests.map((name) => `tests/${name}`),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
  target: ["node18"],
  logLevel: "warning",
});
const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...files], {
  stdio: "inherit",
  env: { ...process.env, TZ: "UTC" },
});
rmSync(out, { recursive: true, force: true });
process.exit(status ?? 1);

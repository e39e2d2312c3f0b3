// Builds the pages into `dist/`, or into the folder that OUT names. The same sources give the same bytes on every
// machine and in every folder: names come from the contents, and nothing of the machine or the time goes into a file.
import { build } from "esbuild";
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, isAbsolute, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const dist = process.env.OUT ?? join(here, "dist");
if (!isAbsolute(dist)) throw new Error("OUT must be an absolute path");
rmSync(dist, { recursive: true, force: true });

// Not written by esbuild: the names of its outputs begin with `dist` whatever OUT is, and so all else is the same, too.
const { metafile, outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", style: "src/style/app.css", theme: "src/theme-early.ts" },
  outdir: "dist",
  entryNames: "assets/[name]-[hash]",
  chunkNames: "assets/[name]-[hash]",
  bundle: true,
  splitting: true,
  format: "esm",
  minify: true,
  target: ["es2022"],
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  legalComments: "none",
  metafile: true,
  write: false,
  logLevel: "warning",
});

for (const { path, contents } of outputFiles) {
  const file = join(dist, relative(join(here, "dist"), path));
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, contents);
}

const outputs = Object.entries(metafile.outputs);
const outputOf = (source) => outputs.find(([, output]) => output.entryPoint === source)[0];
const url = (output) => output.replace(/^dist/, "");

/** What the browser needs before the first page: the script and all that it imports statically. */
function needed(output, found = new Set()) {
  if (found.has(output)) return found;
  found.add(output);
  for (const { path, kind } of metafile.outputs[output].imports) {
    if (kind === "import-statement") needed(path, found);
  }
  return found;
}

const app = outputOf("src/main.tsx");
const style = outputOf("src/style/app.css");
const theme = outputOf("src/theme-early.ts");
const preloads = [...needed(app)].filter((output) => output !== app).sort();

const page = readFileSync(join(here, "src/index.html"), "utf8")
  .replace("<!-- preload -->", preloads.map((output) => `<link rel="modulepreload" href="${url(output)}">`).join("\n"))
  .replace("{theme}", url(theme))
  .replace("{style}", url(style))
  .replace("{app}", url(app));
writeFileSync(join(dist, "index.html"), page.replace(/\n\s*\n/g, "\n"));
copyFileSync(join(here, "src/icon.svg"), join(dist, "assets/icon.svg"));
writeFileSync(join(dist, "licences.txt"), licences());

report();

/** The licences of all packages that are in the bundle. */
function licences() {
  const names = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const name = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1];
    if (name) names.add(name);
  }
  const texts = [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder)
      .sort()
      .find((file) => /^licen[cs]e/i.test(file));
    const text = file && existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8").trim() : license;
    return `${name} ${version} (${license})\n\n${text.replace(/\r\n/g, "\n")}\n`;
  });
  return `The web pages of Millstream contain these packages.\n\n${texts.join(`\n${"-".repeat(80)}\n\n`)}`;
}

function report() {
  const first = new Set([...needed(app), style, theme]);
  let total = gzipSync(page).length;
  for (const [output] of outputs.sort()) {
    const size = gzipSync(readFileSync(join(dist, url(output)))).length;
    if (first.has(output)) total += size;
    console.log(`${(size / 1000).toFixed(1).padStart(7)} kB  ${output}${first.has(output) ? "" : "  (when needed)"}`);
  }
  console.log(`${(total / 1000).toFixed(1).padStart(7)} kB  for the first page, compressed`);
}

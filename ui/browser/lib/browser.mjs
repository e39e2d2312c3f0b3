// A browser, and the pages of a test in it. Whatever a page says on the console fails the test.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { shown, until } from "./wait.mjs";

const here = fileURLToPath(new URL("../..", import.meta.url));
const DIST = process.env.DIST ? join(here, "dist") : null;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 60_000;
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".txt": "text/plain; charset=utf-8",
};

export async function launch() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox"],
  });
  return { sessions: (workspace) => new Sessions(browser, workspace), close: () => browser.close() };
}

class Sessions {
  #contexts = [];
  #tolerated = [];

  constructor(browser, workspace) {
    this.browser = browser;
    this.workspace = workspace;
    this.noises = [];
    this.tools = {
      open: (path, options) => this.open(path, options),
      tolerate: (pattern) => this.#tolerated.push(pattern),
      accessible,
    };
  }

  /** Opens a page in a context of its own; signed in with a link, unless `link` says otherwise. */
  async open(path = "/", { link, before, theme = "light", width = 1280, height = 900 } = {}) {
    const context = await this.browser.newContext({
      colorScheme: theme,
      viewport: { width, height },
      timezoneId: "UTC",
      locale: "en-US",
    });
    context.setDefaultTimeout(PATIENCE);
    this.#contexts.push(context);
    const page = await context.newPage();
    page.on("console", (message) => {
      const { type, text } = { type: message.type(), text: message.text() };
      if (type === "error" || type === "warning") this.#noise(`${type}: ${text} (${message.location().url})`);
    });
    page.on("pageerror", (error) => this.#noise(String(error?.stack ?? error)));
    if (DIST) await fromDisk(context);
    await before?.(page);
    const token = link === null ? "" : (link ?? (await this.workspace.link())).replace(/^[^#]*/, "");
    await page.goto(`${this.workspace.url}${path}${token}`);
    await shown(page.locator("h1"));
    if (token) await until("the token to leave the address", () => !page.url().includes("token"));
    return page;
  }

  #noise(text) {
    if (!this.#tolerated.some((pattern) => pattern.test(text))) this.noises.push(text);
  }

  assertQuiet() {
    assert.deepEqual(this.noises, [], "the console says nothing");
  }

  /** Where the pages of a failed test stand, and pictures of them if SHOTS names a folder. */
  async show(name) {
    for (const [index, context] of this.#contexts.entries()) {
      for (const page of context.pages()) {
        console.log(`        page ${page.url()}`);
        if (!process.env.SHOTS) continue;
        mkdirSync(process.env.SHOTS, { recursive: true });
        const file = `${name.replace(/[^\w]+/g, "-")}-${index}.png`;
        await page.screenshot({ path: join(process.env.SHOTS, file), fullPage: true }).catch(() => {});
      }
    }
  }

  async close() {
    for (const context of this.#contexts) await context.close().catch(() => {});
  }
}

/** Takes the pages from `dist/`, with the headers of the server. */
async function fromDisk(context) {
  const isPage = (url) => !/^\/(api|metrics|healthz)(\/|$)/.test(url.pathname);
  await context.route(isPage, async (route) => {
    const { pathname, origin } = new URL(route.request().url());
    const file = /^\/assets\/|^\/licences\.txt$/.test(pathname) ? pathname : "/index.html";
    const response = await route.fetch({ url: `${origin}/` }).catch(() => null);
    if (!response) return route.abort("connectionrefused");
    const headers = { ...response.headers(), "content-type": TYPES[extname(file)], "cache-control": "no-store" };
    for (const name of ["content-length", "content-encoding", "etag"]) delete headers[name];
    await route.fulfill({ status: 200, headers, body: readFileSync(join(DIST, file)) });
  });
}

/** What axe finds that is serious, in both themes. */
async function accessible(page, name) {
  for (const theme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: theme });
    const { violations } = await page.evaluate(`${AXE}; axe.run({resultTypes: ["violations"]})`);
    const bad = violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.map(({ target, html }) => `${target} ${html}`).slice(0, 3)}`);
    assert.deepEqual(bad, [], `axe on ${name}, ${theme}`);
  }
  await page.emulateMedia({ colorScheme: "light" });
}

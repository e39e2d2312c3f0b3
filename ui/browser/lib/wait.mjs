import assert from "node:assert/strict";
import { createServer } from "node:net";

const PATIENCE = 60_000;

/** Waits until `condition` gives something that is true, and gives it. */
export async function until(what, condition, patience = PATIENCE) {
  const end = Date.now() + patience;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) assert.fail(`waited ${patience / 1000} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Waits until the element is there. */
export const shown = (locator) => locator.first().waitFor({ timeout: PATIENCE });

/** Waits until the element is in the page; a line of no height is not visible. */
export const there = (locator) => locator.first().waitFor({ state: "attached", timeout: PATIENCE });

export const gone = (locator) => locator.first().waitFor({ state: "detached", timeout: PATIENCE });

/** Waits until the element has the text. */
export async function says(locator, text, patience = PATIENCE) {
  let last = "";
  const matches = (its) => (text instanceof RegExp ? text.test(its) : its.includes(text));
  const end = Date.now() + patience;
  while (Date.now() < end) {
    last = await locator
      .first()
      .innerText({ timeout: 1_000 })
      .catch(() => "(not there)");
    if (matches(last.replace(/\s+/g, " "))) return last;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.fail(`waited for ${text}, but there is ${JSON.stringify(last)}`);
}

/** A port that was free a moment ago. */
export function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

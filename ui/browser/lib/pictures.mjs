// Pictures of the documentation, of real pages.
import { mkdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("../../../docs/pictures", import.meta.url));

/** The pages say this as their host, so that no picture shows the name of the machine that made it. */
const HOST = "etl";

export const isAsked = Boolean(process.env.PICTURES);

export async function neutral(page) {
  await page.route(/\/api\/v1\/(session|machine)$/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), host: HOST } });
  });
}

/** Writes what is in view. */
export async function picture(page, name, height) {
  mkdirSync(folder, { recursive: true });
  await page.setViewportSize({ width: 1280, height });
  await page.mouse.move(0, 0);
  // The graph fits itself into its frame once that has its size.
  await page.waitForTimeout(800);
  const path = join(folder, `${name}.png`);
  await page.screenshot({ path, animations: "disabled" });
  console.log(`        ${path}: ${(statSync(path).size / 1000).toFixed(0)} kB`);
}

// The main tasks from beginning to end, by mouse and by keyboard.
import assert from "node:assert/strict";
import { ARCHIVE, ARCHIVE_ROWS, PRICES, SHARES } from "../lib/demo.mjs";
import { gone, says, shown, until } from "../lib/wait.mjs";

const outcome = (page) => page.locator("h1 ~ .row");
const fact = (page, name) => page.locator(".fact", { has: page.getByText(name, { exact: true }) }).locator("dd");
const views = (page) => page.getByRole("navigation", { name: "Views of the file" });

/** Starts the file of the page that is shown, and waits for the page of its run. */
async function start(page) {
  await page.getByRole("button", { name: "Start…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Start", exact: true }).click();
  await gone(dialog);
  await page.waitForURL(/\/runs\/[^/]+$/);
  return decodeURIComponent(new URL(page.url()).pathname.split("/")[2]);
}

/** Presses Tab until the element has the focus. */
async function tabTo(page, locator) {
  await shown(locator);
  for (let presses = 0; presses < 80; presses += 1) {
    if (await locator.first().evaluate((element) => element === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab does not reach ${locator}`);
}

export default {
  name: "stories",
  tests: {
    "a failing job is mended, and resumed until it is green": async ({ workspace, open }) => {
      await workspace.run("run", "prices.yaml");
      const page = await open("/");
      const failed = page.getByRole("region", { name: "Failed or unfinished" });
      await failed.getByRole("link", { name: "prices.yaml" }).click();
      await says(page.locator(".note-error"), "the value is not an int64");
      await page.locator("h1").getByRole("link", { name: "prices.yaml" }).click();
      await views(page).getByRole("link", { name: "Text" }).click();
      await says(page.locator(".code"), "price: int64");

      workspace.write("prices.yaml", PRICES.replace("csv:", "cvs:"));
      await says(page.locator(".lints"), "cvs");
      await says(page.locator(".is-error"), "cvs:");
      assert.ok(await page.getByRole("button", { name: "Start…" }).isDisabled());

      workspace.write("prices.yaml", PRICES.replace("csv:", "max_rejects: 1\n    csv:"));
      await gone(page.locator(".lints"));
      await says(page.locator(".code"), "max_rejects: 1");
      await page.goBack();
      await page.goBack();
      await page.getByRole("button", { name: "Resume" }).click();
      await says(outcome(page), "done");
      await says(page.getByRole("navigation", { name: "Attempts" }), /1 failed 2 done/);
      await says(fact(page, "Rows written"), "2");
      await page.getByRole("link", { name: "Overview" }).click();
      await gone(failed);
    },

    "a failed job starts a second time from the overview": async ({ workspace, open }) => {
      workspace.write("again.yaml", PRICES.replaceAll("prices", "again"));
      workspace.write("data/again.csv", "product,price\ntea,many\n");
      await workspace.run("run", "again.yaml");
      const page = await open("/");
      const failed = page.getByRole("region", { name: "Failed or unfinished" });
      await says(failed, "again.yaml");
      const strip = page.getByRole("group", { name: "Last runs of again.yaml" });
      await failed.getByRole("button", { name: "Resume" }).click();
      await says(page.locator(".toast"), /again\.yaml: failed .*the value is not an int64/);
      assert.doesNotMatch(await page.locator(".toast").innerText(), /hint|error:/);
      await page.getByRole("button", { name: "Close this message" }).click();
      await until("the failed run", async () => (await strip.locator(".bar-failed").count()) === 2);
      workspace.write("data/again.csv", "product,price\ntea,12\n");
      await failed.getByRole("button", { name: "Resume" }).click();
      await gone(failed);
      await until("the third run", async () => (await strip.locator(".bar-done").count()) === 1);
      await says(page.locator(".toast"), "again.yaml: done");
      assert.equal(await page.locator(".toast p").count(), 1);
      await page.getByRole("button", { name: "Close this message" }).click();
      await gone(page.locator(".toast"));
    },

    "rejects are loaded once the job is mended": async ({ workspace, open }) => {
      const page = await open("/jobs/shares.yaml");
      const run = await start(page);
      await says(outcome(page), "done");
      await says(fact(page, "Rejected"), "5");
      await says(fact(page, "Rows written"), "4,995");
      await page.getByRole("link", { name: "5 records were rejected" }).click();
      await says(page.locator(".lead"), "5 records rejected");

      workspace.write("shares.yaml", SHARES.replace("amount / items", "amount * items"));
      await page.getByRole("button", { name: "Replay…" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Replay", exact: true }).click();
      await says(page.locator(".lead"), "5 more were loaded since");
      await says(page.locator("main"), "5 rejects of run");
      assert.deepEqual(
        await workspace.api(`/runs/${run}/rejects`).then(({ waiting, replayed }) => [waiting, replayed]),
        [0, 5],
      );
      await gone(page.getByRole("button", { name: "Replay…" }));
    },

    "a slow run is cancelled, and resumed": async ({ workspace, open }) => {
      const page = await open("/jobs/archive.yaml");
      await start(page);
      await says(outcome(page), "running");
      await page.getByRole("button", { name: "Cancel" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByRole("button", { name: "Back" }).click();
      await gone(dialog);
      await page.getByRole("button", { name: "Cancel" }).click();
      await dialog.getByRole("button", { name: "Cancel the run" }).click();
      await says(outcome(page), "interrupted");
      await gone(page.getByRole("button", { name: /Cancel/ }));
      await page.getByRole("link", { name: "Overview" }).click();
      await says(page.locator(".toast"), "archive.yaml: cancelled");
      await page.goBack();

      workspace.write("archive.yaml", ARCHIVE.replace(/^throttle.*\n/, ""));
      await page.getByRole("button", { name: "Resume" }).click();
      await says(outcome(page), "done");
      await says(page.getByRole("navigation", { name: "Attempts" }), /1 interrupted 2 done/);
      const run = await workspace.last("archive.yaml");
      assert.equal(run.rows_written, ARCHIVE_ROWS);
      await says(fact(page, "Rows written"), new Intl.NumberFormat("en-US").format(ARCHIVE_ROWS));
      workspace.write("archive.yaml", ARCHIVE);
    },

    "a run whose process is killed says how far it came, and is resumed": async ({ workspace, open }) => {
      const page = await open("/jobs/archive.yaml");
      await start(page);
      await says(outcome(page), "running");
      await says(fact(page, "Rows read"), /[1-9]/);
      // So that its last view has rows, too.
      await new Promise((resolve) => setTimeout(resolve, 2_500));
      process.kill((await workspace.last("archive.yaml", "running")).process, "SIGKILL");
      await says(outcome(page), "killed");
      await says(page.locator(".run-message"), "What it had committed stays");
      await says(fact(page, "Rows read"), /[1-9]/);
      await shown(page.locator(".react-flow__node"));

      workspace.write("archive.yaml", ARCHIVE.replace(/^throttle.*\n/, ""));
      await page.getByRole("button", { name: "Resume" }).click();
      await says(outcome(page), "done");
      await says(page.getByRole("navigation", { name: "Attempts" }), /1 killed 2 done/);
      assert.equal((await workspace.last("archive.yaml")).rows_written, ARCHIVE_ROWS);
      workspace.write("archive.yaml", ARCHIVE);
    },

    "a job that needs a variable": async ({ workspace, open }) => {
      const page = await open("/jobs/city.yaml");
      await says(page.locator("main"), "variables that have no default");
      await shown(page.locator(".react-flow__node", { hasText: "here" }));
      await page.getByRole("button", { name: "Start…" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("CITY").fill("Oslo");
      await dialog.getByRole("button", { name: "Start", exact: true }).click();
      await page.waitForURL(/\/runs\//);
      await says(outcome(page), "done");
      await says(fact(page, "Variables"), "CITY=Oslo");
      assert.equal(workspace.read("out/Oslo.csv").trim().split("\n").length, 9);
    },

    "all of it by keyboard": async ({ workspace, open }) => {
      workspace.write("failing.yaml", PRICES.replaceAll("prices", "failing"));
      workspace.write("data/failing.csv", "product,price\ntea,many\n");
      await workspace.run("run", "failing.yaml");
      const page = await open("/");
      await page.keyboard.press("?");
      await shown(page.getByRole("dialog", { name: "Keyboard shortcuts" }));
      await page.keyboard.press("Escape");
      await gone(page.getByRole("dialog"));

      const failed = page.getByRole("region", { name: "Failed or unfinished" });
      await tabTo(page, failed.getByRole("link", { name: "failing.yaml" }));
      await page.keyboard.press("Enter");
      await says(page.locator(".note-error"), "the value is not an int64");

      await page.keyboard.press("g");
      await page.keyboard.press("j");
      await says(page.locator("h1"), "Jobs");
      await page.keyboard.press("/");
      await page.keyboard.type("archi");
      await until("the filter", async () => (await page.locator("tbody tr").count()) === 1);
      await tabTo(page, page.getByRole("link", { name: "archive.yaml" }));
      await page.keyboard.press("Enter");
      await says(page.locator("h1"), "archive.yaml");
      await until("the button", () => page.getByRole("button", { name: "Start…" }).isEnabled());
      await tabTo(page, page.getByRole("button", { name: "Start…" }));
      await page.keyboard.press("Enter");
      await tabTo(page, page.getByRole("dialog").getByRole("button", { name: "Start", exact: true }));
      await page.keyboard.press("Enter");
      await page.waitForURL(/\/runs\//);
      await says(outcome(page), "running");

      await tabTo(page, page.getByRole("button", { name: "Cancel" }));
      await page.keyboard.press("Enter");
      await tabTo(page, page.getByRole("dialog").getByRole("button", { name: "Cancel the run" }));
      await page.keyboard.press("Enter");
      await says(outcome(page), "interrupted");

      const theme = page.getByRole("button", { name: /^Theme/ });
      for (const name of ["light", "dark"]) {
        await tabTo(page, theme);
        await page.keyboard.press("Enter");
        await until(name, () => page.evaluate((its) => document.documentElement.dataset.theme === its, name));
      }
      await page.reload();
      await shown(page.locator("h1"));
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
      await page.keyboard.press("Tab");
      assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    },
  },
};

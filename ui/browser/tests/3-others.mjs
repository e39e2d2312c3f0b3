// Several users, files that change, and a server that goes away.
import assert from "node:assert/strict";
import { ARCHIVE } from "../lib/demo.mjs";
import { freePort, gone, says, shown, until } from "../lib/wait.mjs";

const outcome = (page) => page.locator("h1 ~ .row");
const section = (page, name) => page.getByRole("region", { name, exact: true });
const card = (page, file) => section(page, "Running").locator(".card", { hasText: file });

/** Each row takes a millisecond. */
const WIDE = `sources:
  rows: {read: 'wide/in/*.csv', csv: {columns: {id: int64}}}
transforms:
  slow: {map: {from: rows, python: 'wide.py:slow', columns: {id: int64}, deterministic: true, workers: 1}}
sinks:
  out: {from: slow, write: wide/out.csv, roll: {bytes: 10MB}}
`;
const SLOW = "import time\n\ndef slow(row):\n    time.sleep(0.001)\n    return row\n";
const RECORDS = `id\n${Array.from({ length: 100 }, (_, id) => id).join("\n")}\n`;

const SHORT = ARCHIVE.replace("20kB", "600kB").replaceAll("orders", "rows").replace("out.db", "short.db");

export default {
  name: "others",
  files: { "short.yaml": SHORT, "wide.yaml": WIDE, "wide.py": SLOW },
  tests: {
    "one browser starts a job, and another sees it": async ({ workspace, open }) => {
      const one = await open("/jobs/short.yaml");
      const other = await open("/");
      await says(section(other, "Running"), /Nothing is running|No runs yet/);
      await one.getByRole("button", { name: "Start…" }).click();
      await one.getByRole("dialog").getByRole("button", { name: "Start", exact: true }).click();
      await shown(card(other, "short.yaml"));
      await shown(other.getByRole("group", { name: "Last runs of short.yaml" }).locator(".bar-running"));
      await gone(card(other, "short.yaml"));
      await shown(other.getByRole("group", { name: "Last runs of short.yaml" }).locator(".bar-done"));
      await says(outcome(one), "done");
      assert.equal(await other.locator(".toast").count(), 0);
      const link = await workspace.link();
      await open("/", { link });
      const late = await open("/", { link: null });
      await says(late.locator("h1"), "Sign in");
    },

    "who reads for a run that is distributed": async ({ workspace, open }) => {
      for (let file = 0; file < 12; file += 1) workspace.write(`wide/in/${file}.csv`, RECORDS);
      await workspace.run("cluster", "init", "cluster.pem");
      const address = `127.0.0.1:${await freePort()}`;
      const shared = ["--cluster=always", "--listen", address, "--secret", "cluster.pem", "--shared", "wide"];
      const running = workspace.run("run", "wide.yaml", ...shared);
      let worker = null;
      try {
        const run = await until("the run", async () => (await workspace.last("wide.yaml", "running"))?.run);
        const page = await open(`/runs/${run}`);
        await says(section(page, "Workers"), "No worker has joined yet");
        worker = workspace.worker(address, "cluster.pem");
        await says(section(page, "Workers"), /1 worker now, \d+ bundles? being read, \d+ of 12 files done/);
        assert.equal((await running).code, 0);
        await says(section(page, "Workers"), "12 of 12 files done");
        const table = section(page, "Workers").getByRole("table");
        await says(table.getByRole("row").nth(1), new RegExp(`:${worker.pid}\\s+1\\s+12\\s+1,200\\s.*bundle`));
      } finally {
        worker?.kill();
      }
    },

    "a link works once": async ({ workspace, open, tolerate }) => {
      tolerate(/status of 401/);
      const link = await workspace.link();
      await open("/", { link });
      const late = await open("/", { link });
      await says(late.locator("h1"), "Sign in");
      await says(late.getByRole("status"), "This link is not valid");
    },

    "who may only look has nothing to press": async ({ workspace, open }) => {
      const run = await workspace.begin("archive.yaml");
      await workspace.run("run", "prices.yaml");
      await workspace.run("run", "shares.yaml");
      const page = await open("/", { link: await workspace.link("look") });
      const names = /Resume|Start|Cancel|Run again|Replay|Edit|New file|Show the first/;
      const does = page.getByRole("button", { name: names });
      const rejected = (await workspace.last("shares.yaml")).run;
      for (const [path, text] of [
        ["/", "prices.yaml"],
        [`/runs/${run}`, "running"],
        [`/runs/${(await workspace.last("prices.yaml")).run}`, "failed"],
        [`/runs/${rejected}/rejects`, "division by zero"],
        ["/jobs", "orders.yaml"],
        ["/jobs?new=own.yaml", "orders.yaml"],
        ["/jobs/orders.yaml?view=text", "JOIN customers"],
        ["/jobs/orders.yaml?view=data", "needs the role operate"],
      ]) {
        await page.goto(workspace.url + path);
        await says(page.locator("main"), text);
        assert.equal(await does.count(), 0, path);
      }
      assert.equal(await page.getByRole("link", { name: "Audit" }).count(), 0);
      await page.goto(`${workspace.url}/audit`);
      await says(page.locator("main"), "needs the role edit");
      await workspace.run("cancel", run);
    },

    "who may operate sets allowed variables only": async ({ workspace, open, tolerate }) => {
      tolerate(/status of 40[013]/);
      await workspace.runWith("correct horse battery\n", "access", "add-user", "ada", "--role", "operate");
      const page = await open("/jobs/city.yaml", { link: null });
      await page.getByRole("button", { name: "Use a user name and password" }).click();
      await page.getByLabel("User").fill("ada");
      await page.getByLabel("Password").fill("wrong");
      await page.getByRole("button", { name: "Sign in" }).click();
      await says(page.getByRole("alert"), "do not match");
      await page.getByLabel("Password").fill("correct horse battery");
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("button", { name: "Start…" }).click();
      const dialog = page.getByRole("dialog");
      assert.ok(await dialog.getByLabel("CITY").isDisabled());
      assert.equal(await dialog.getByRole("button", { name: "Add" }).count(), 0);
      await page.keyboard.press("Escape");
      await gone(dialog);
      await page.goto(`${workspace.url}/jobs/orders.yaml?view=text`);
      await says(page.locator(".code"), "DAY");
      assert.equal(await page.getByRole("button", { name: "Edit" }).count(), 0);
      await page.getByRole("button", { name: "Start…" }).click();
      const day = dialog.getByLabel("DAY");
      await until("the field", () => day.isEnabled());
      await day.fill("yesterday");
      await dialog.getByRole("button", { name: "Start", exact: true }).click();
      await says(dialog.getByRole("alert"), "this variable may not be set");
      await day.fill("2026-01-31");
      await dialog.getByRole("button", { name: "Start", exact: true }).click();
      await page.waitForURL(/\/runs\//);
      await says(outcome(page), "done");
      await says(page.locator(".facts"), "DAY=2026-01-31");
      assert.equal((await workspace.last("orders.yaml")).rows_written, 1672);
    },

    "files that change while they are shown": async ({ workspace, open, tolerate }) => {
      tolerate(/status of 404/);
      const list = await open("/jobs");
      const page = await open("/jobs/customers.yaml");
      await shown(page.locator(".react-flow__node", { hasText: "known" }));
      const text = workspace.read("customers.yaml");
      workspace.write("customers.yaml", text.replaceAll("known", "with_city"));
      await shown(page.locator(".react-flow__node", { hasText: "with_city" }));
      workspace.write("customers.yaml", "sources: [\n");
      await says(page.locator("main"), "The file has mistakes");
      await shown(page.getByRole("link", { name: "1 mistake" }));
      workspace.write("customers.yaml", text);
      await shown(page.locator(".react-flow__node", { hasText: "known" }));

      workspace.write("later/new.yaml", text);
      await shown(list.getByRole("link", { name: "new.yaml" }));
      workspace.delete("later/new.yaml");
      await gone(list.getByRole("link", { name: "new.yaml" }));

      await page.getByRole("link", { name: "Text", exact: true }).click();
      workspace.delete("customers.yaml");
      await says(page.getByRole("alert"), "not there any more");
      assert.ok(await page.getByRole("button", { name: "Start…" }).isDisabled());
      assert.ok(await page.getByRole("button", { name: "Edit" }).isDisabled());
      workspace.write("customers.yaml", text);
      await gone(page.getByRole("alert"));
    },

    "a file is saved, unless it has changed on disk": async ({ workspace, open, tolerate }) => {
      tolerate(/status of 412/);
      const page = await open("/jobs/shares.yaml?view=text");
      await page.getByRole("button", { name: "Edit" }).click();
      const area = page.getByRole("textbox", { name: "Text of shares.yaml" });
      const text = workspace.read("shares.yaml");
      await area.fill(`# first\n${text}`);
      await page.getByRole("button", { name: "Save" }).click();
      await gone(area);
      await says(page.locator(".code"), "# first");
      assert.equal(workspace.read("shares.yaml"), `# first\n${text}`);

      await page.getByRole("button", { name: "Edit" }).click();
      // The event of the change is held back, so that only the answer of the server says that there is one.
      await page.route("**/api/v1/file?**", (route) =>
        route.request().method() === "GET" ? route.abort() : route.continue(),
      );
      tolerate(/net::ERR_FAILED/);
      workspace.write("shares.yaml", `# theirs\n${text}`);
      await area.fill(`# mine\n${text}`);
      await page.keyboard.press("Control+s");
      await says(page.getByRole("alert"), "has changed on disk");
      await page.unroute("**/api/v1/file?**");
      assert.equal(workspace.read("shares.yaml"), `# theirs\n${text}`);
      assert.ok(await page.getByRole("button", { name: "Save" }).isDisabled());
      page.once("dialog", (dialog) => dialog.dismiss());
      await page.getByRole("link", { name: "Overview" }).click();
      assert.match(page.url(), /shares\.yaml/);
      await page.getByRole("button", { name: "Load the new text" }).click();
      await until("their text", async () => (await area.inputValue()).startsWith("# theirs"));
      await area.fill(text);
      await page.keyboard.press("Control+s");
      await gone(area);
      assert.equal(workspace.read("shares.yaml"), text);
    },

    "changes that are not saved are not lost silently": async ({ workspace, open, accessible }) => {
      const page = await open("/jobs/city.yaml");
      const views = page.getByRole("navigation", { name: "Views of the file" });
      await views.getByRole("link", { name: "Text" }).click();
      await page.getByRole("button", { name: "Edit" }).click();
      const area = page.getByRole("textbox", { name: "Text of city.yaml" });
      await says(page.getByRole("region", { name: "Mistakes of the saved file" }), "CITY");
      await accessible(page, "the editor");
      await area.fill("# mine\n");
      let asked = 0;
      let answer = "dismiss";
      page.on("dialog", (dialog) => {
        asked += 1;
        return dialog[answer]();
      });
      await views.getByRole("link", { name: "Graph" }).click();
      assert.equal(asked, 1);
      await views.getByRole("link", { name: "Text" }).click();
      assert.equal(asked, 1);
      // The second one is of the entry that the first one has come back to.
      for (const times of [2, 3]) {
        await page.evaluate(() => history.back());
        await until("the question", () => asked === times);
        await until("the address", () => page.url().endsWith("view=text"));
        assert.equal(await area.inputValue(), "# mine\n");
      }
      answer = "accept";
      await page.evaluate(() => history.back());
      await gone(area);
      await shown(page.locator(".react-flow__node"));
      assert.equal(asked, 4);
      assert.doesNotMatch(page.url(), /view=/);
      assert.match(workspace.read("city.yaml"), /CITY/);
    },

    "a new file": async ({ workspace, open, accessible, tolerate }) => {
      tolerate(/status of 412/);
      const page = await open("/jobs");
      const dialog = page.getByRole("dialog");
      await shown(page.getByRole("link", { name: "prices.yaml" }));
      await page.getByRole("button", { name: "New file…" }).click();
      for (const [name, wrong] of [
        ["../own.yaml", "must be in the folder"],
        ["own.txt", "must end with .yaml"],
        ["prices.yaml", "There is a file prices.yaml already"],
      ]) {
        await dialog.getByLabel("Name").fill(name);
        await page.keyboard.press("Enter");
        await says(dialog.getByRole("alert"), wrong);
      }
      await accessible(page, "the dialog for a new file");
      await dialog.getByLabel("Name").fill("own/new.yaml");
      await page.keyboard.press("Enter");
      const area = page.getByRole("textbox", { name: "Text of own/new.yaml" });
      const text = workspace.read("prices.yaml");
      await area.fill(text);
      workspace.write("own/new.yaml", "steps: {}\n");
      await page.getByRole("button", { name: "Save" }).click();
      await says(page.getByRole("alert"), "There is a file with this name already");
      assert.equal(workspace.read("own/new.yaml"), "steps: {}\n");
      page.once("dialog", (asked) => asked.accept());
      await page.getByRole("button", { name: "Discard" }).click();
      await page.getByRole("button", { name: "New file…" }).click();
      await dialog.getByLabel("Name").fill("own/other.yaml");
      await page.keyboard.press("Enter");
      await page.getByRole("textbox", { name: "Text of own/other.yaml" }).fill(text);
      await page.keyboard.press("Tab");
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await says(page.locator(".code"), "price: int64");
      assert.equal(workspace.read("own/other.yaml"), text);
      workspace.delete("own/other.yaml");
      workspace.delete("own/new.yaml");
    },

    "the server is killed, and starts again": async ({ workspace, open, tolerate }) => {
      tolerate(/ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|ERR_FAILED|status of 502/);
      const page = await open("/");
      await shown(section(page, "Running"));
      await workspace.stop("SIGKILL");
      await says(page.locator(".connection"), "The connection to the server is lost");
      await workspace.run("run", "customers.yaml");
      await workspace.start();
      await gone(page.locator(".connection"));
      await shown(page.getByRole("group", { name: "Last runs of customers.yaml" }).locator(".bar-done"));
      await page.getByRole("link", { name: "Machine" }).click();
      await says(page.locator("main"), "This server");
    },

    "a hidden tab holds no connection": async ({ workspace, open }) => {
      const page = await open("/");
      await shown(section(page, "Running"));
      const streams = [];
      page.on("request", (request) => request.url().includes("/events") && streams.push(request));
      const turn = (state) =>
        page.evaluate((its) => {
          Object.defineProperty(document, "visibilityState", { configurable: true, get: () => its });
          document.dispatchEvent(new Event("visibilitychange"));
        }, state);
      const closed = page.waitForEvent("requestfailed", (request) => request.url().includes("/events"));
      await turn("hidden");
      await closed;
      await workspace.run("run", "customers.yaml");
      assert.equal(streams.length, 0);
      assert.equal(await page.locator(".connection").count(), 0);
      const bars = page.getByRole("group", { name: "Last runs of customers.yaml" }).locator("a");
      const before = await bars.count();
      await turn("visible");
      await until("what has happened", async () => (await bars.count()) === before + 1);
      assert.equal(streams.length, 1);
    },
  },
};

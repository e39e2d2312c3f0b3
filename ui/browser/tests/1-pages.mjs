// Each page shows the true numbers, in both themes without serious findings of axe.
import assert from "node:assert/strict";
import { firstLoad } from "../lib/first-load.mjs";
import { gone, says, shown, there, until } from "../lib/wait.mjs";

const count = (n) => new Intl.NumberFormat("en-US").format(n);
const LIMIT = 300_000;

/** The runs that the tests look at: of each outcome one, and two that go on. */
async function prepare(workspace) {
  for (const file of ["orders.yaml", "shares.yaml", "prices.yaml", "nightly.yaml"]) await workspace.run("run", file);
  workspace.write("hold", "");
  return { job: await workspace.begin("archive.yaml"), sequence: await workspace.begin("nightly.yaml") };
}

let live;
const ready = async (workspace) => (live ??= await prepare(workspace));
const section = (page, name) => page.getByRole("region", { name, exact: true });
const fact = (page, name) => page.locator(".fact", { has: page.getByText(name, { exact: true }) }).locator("dd");

/** The cells of each row of a table that has a column for each name. */
async function rowsOf(table) {
  await shown(table.locator("tbody tr"));
  const texts = (rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText));
  return table.locator("tbody tr").evaluateAll(texts);
}

export default {
  name: "pages",
  tests: {
    "the overview": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/");
      const overview = await workspace.api("/overview");
      await says(section(page, "Running"), "archive.yaml");
      await says(section(page, "Running"), "nightly.yaml");
      assert.equal(await section(page, "Running").locator(".card").count(), overview.running.length);
      const failed = section(page, "Failed or unfinished");
      assert.equal(await failed.locator("li").count(), overview.unfinished.length);
      await says(failed, overview.unfinished[0].message);
      const [next] = overview.schedule.sequences;
      await says(section(page, "Next"), next.next[0].slice(0, 16).replace("T", " "));
      for (const { file, runs } of overview.strips) {
        const strip = page.getByRole("group", { name: `Last runs of ${file}` });
        assert.equal(await strip.locator("a").count(), runs.length, file);
      }
      await accessible(page, "overview");
    },

    "a live run of a job": async ({ workspace, open, accessible }) => {
      const { job } = await ready(workspace);
      const page = await open(`/runs/${job}`);
      await there(page.locator(".edge"));
      assert.equal(await page.locator(".react-flow__node").count(), 2);
      const read = () => fact(page, "Bytes read").innerText();
      const before = await read();
      await until("the bytes to go on", async () => (await read()) !== before);
      const share = page.getByRole("progressbar", { name: "Progress of the run" });
      const { share: known } = (await workspace.api(`/runs/${job}`)).run;
      const shownShare = Number(await share.getAttribute("aria-valuenow")) / 100;
      assert.ok(Math.abs(shownShare - known) < 0.1, `${shownShare} is about ${known}`);
      await says(page.locator(".verdict"), "throttle");
      await accessible(page, "a live run");
    },

    "a live run of a sequence": async ({ workspace, open, accessible }) => {
      const { sequence } = await ready(workspace);
      const page = await open(`/runs/${sequence}`);
      const node = (name) => page.locator(".react-flow__node", { hasText: name });
      await says(node("publish"), "running");
      await says(node("cities"), /done 3\/3/);
      await says(page.locator(".timeline"), "alarm");
      await accessible(page, "a live sequence");
      workspace.delete("hold");
      await says(page.locator("h1 ~ .row"), "done");
      await says(node("publish"), "done");
      await says(node("alarm"), /skipped|not run/);
      const outputs = page.getByRole("region", { name: "Output of the steps" });
      await outputs.getByText("publish", { exact: true }).click();
      await says(outputs, "all is published");
      await accessible(page, "a sequence that has ended");
      await page.getByRole("link", { name: "CITY=Ulm" }).last().click();
      await says(page.locator("h1"), "city.yaml");
      await says(fact(page, "Variables"), "CITY=Ulm");
      await page.getByRole("link", { name: "its sequence" }).click();
      await says(page.locator("h1"), "nightly.yaml");
    },

    "a run of a job that has ended": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const { run } = (await workspace.api("/runs?file=orders.yaml&steps=true")).runs.at(-1);
      const { run: its, report } = await workspace.api(`/runs/${run}`);
      const page = await open(`/runs/${run}`);
      await says(fact(page, "Rows read"), count(its.rows_read));
      await says(fact(page, "Rows written"), count(its.rows_written));
      const node = (name) => page.locator(".react-flow__node", { hasText: name });
      for (const { name, rows } of report.steps.filter(({ kind }) => kind === "load")) {
        await says(node(name), count(rows));
      }
      await says(node("recent"), "computed within with_city");
      for (const { summary } of report.results) await says(section(page, "Results"), summary);
      const checks = await rowsOf(section(page, "Checks").locator("table"));
      assert.deepEqual(
        checks.map(([, , , rows, broken]) => [rows, broken]),
        report.checks
          .sort((a, b) => Number(a.holds) - Number(b.holds))
          .map(({ rows, broken }) => [count(rows), count(broken)]),
      );
      await accessible(page, "a run");
    },

    "a run that has failed": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const { run, message } = await workspace.last("prices.yaml", "failed");
      const page = await open(`/runs/${run}`);
      await says(page.locator("h1 ~ .row"), "failed");
      // With its place, and what to do.
      const error = page.locator(".note-error");
      await says(error, message.split(":")[0]);
      await says(error, "prices.csv, line");
      await says(error, "hint");
      await shown(page.getByRole("button", { name: "Resume" }));
      await accessible(page, "a failed run");
    },

    "the runs": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/runs?steps=true");
      const { stdout } = await workspace.run("runs", "--json");
      const { runs } = JSON.parse(stdout);
      const table = page.getByRole("table", { name: "Runs, the newest first" });
      const lines = await rowsOf(table);
      const ended = (text) => !text.startsWith("running");
      assert.deepEqual(
        lines.filter(([outcome]) => ended(outcome)).map(([outcome, file, , , read, written]) => {
          return [outcome.trim(), file.split(/[\s]/)[0], read, written];
        }),
        runs
          .filter(({ outcome }) => ended(outcome))
          .map((run) => [run.outcome, run.job.split("/").at(-1), count(run.rows_read), count(run.rows_written)]),
      );
      await accessible(page, "runs");
      await page.getByLabel("Text", { exact: true }).fill("int64");
      await until("the filter", async () => (await table.locator("tbody tr").count()) === 1);
      assert.match(page.url(), /q=int64/);
      await page.reload();
      await until("the filter after a reload", async () => (await table.locator("tbody tr").count()) === 1);
      await page.getByRole("link", { name: "Clear" }).click();
      await page.getByLabel("Outcome").selectOption("failed");
      await until("the other filter", async () => (await table.locator("tbody tr").count()) === 1);
      await says(table, "prices.yaml");
    },

    "the history": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/history");
      const { runs } = await workspace.api("/history?days=30");
      const over = runs.filter(({ outcome }) => outcome !== "running").length;
      await says(page.locator(".lead"), `${over} runs, 1 failed`);
      await until("the charts", async () => (await page.locator(".uplot").count()) === 4);
      await page.getByText("The numbers as a table").click();
      assert.equal((await rowsOf(page.getByRole("table"))).length, over);
      await accessible(page, "history");
    },

    "the rejects": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const { run } = await workspace.last("shares.yaml");
      const page = await open(`/runs/${run}/rejects`);
      await says(page.locator(".lead"), "5 records rejected");
      await says(page.locator("main"), "data/orders.csv, line 1001: division by zero");
      await says(page.locator("main pre"), /^1000,.*,0$/);
      await accessible(page, "rejects");
    },

    "the jobs": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/jobs");
      const { files } = await workspace.api("/files");
      const lines = await rowsOf(page.getByRole("table"));
      assert.deepEqual(
        lines.map(([file, kind]) => [file, kind]),
        files.map(({ file, kind }) => [file, kind]),
      );
      await accessible(page, "jobs");
      await page.getByLabel("Kind").selectOption("sequence");
      await page.getByRole("link", { name: "nightly.yaml" }).click();
      await shown(page.locator(".react-flow__node"));
      assert.equal(await page.locator(".react-flow__node").count(), 6);
      await accessible(page, "a sequence");
      await page.getByRole("link", { name: "Schedule" }).click();
      await says(page.locator("main"), "Europe/Berlin");
    },

    "a job": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/jobs/orders.yaml");
      await there(page.locator(".edge"));
      assert.equal(await page.locator(".react-flow__node").count(), 7);
      await accessible(page, "a job");
      await page.getByRole("link", { name: "Text", exact: true }).click();
      await says(page.locator(".code"), "JOIN customers");
      await accessible(page, "the text of a job");
      await page.getByRole("link", { name: "Columns and rows" }).click();
      await page.getByLabel("Entry").selectOption("with_city");
      const columns = await rowsOf(page.getByRole("table", { name: "Columns of with_city" }));
      const { transforms } = await workspace.api("/explain?file=orders.yaml");
      assert.deepEqual(
        columns,
        transforms.find(({ name }) => name === "with_city").columns.map(({ name, type }) => [name, type]),
      );
      await page.getByRole("button", { name: "Show the first 20 rows" }).click();
      assert.equal((await rowsOf(page.getByRole("table", { name: "First rows of with_city" }))).length, 20);
      await accessible(page, "the rows of a job");
      await page.getByRole("navigation", { name: "Views of the file" }).getByRole("link", { name: "Runs" }).click();
      await says(page.locator("main"), "3,339");
    },

    "the machine": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/machine");
      const machine = await workspace.api("/machine");
      await says(fact(page, "Cores"), String(machine.cores));
      await says(section(page, "Usage"), machine.state.path);
      await says(section(page, "Usage by run"), "archive.yaml");
      const { process } = machine.runs.find(({ file }) => file === "archive.yaml");
      await says(section(page, "Usage by run"), String(process));
      await accessible(page, "machine");
    },

    "the audit log": async ({ workspace, open, accessible }) => {
      await ready(workspace);
      const page = await open("/audit");
      const { entries } = await workspace.api("/audit");
      const lines = await rowsOf(page.getByRole("table"));
      assert.deepEqual(
        lines.map(([, user, , did, what]) => [user, did, what]),
        entries.map(({ user, did, what }) => [user, did, what]),
      );
      await accessible(page, "audit");
    },

    "signing in and out": async ({ workspace, open, accessible, tolerate }) => {
      tolerate(/status of 401/);
      const page = await open("/machine", { link: null });
      await says(page.locator("h1"), "Sign in to Millstream");
      await accessible(page, "sign in");
      await page.getByLabel(/^Link/).fill("wrong");
      await page.getByRole("button", { name: "Sign in" }).click();
      await says(page.getByRole("alert"), "This link is not valid");
      await page.getByLabel(/^Link/).fill(await workspace.link());
      await page.getByRole("button", { name: "Sign in" }).click();
      await says(page.locator("h1"), "Machine");
      await page.reload();
      await says(page.locator("h1"), "Machine");
      await page.getByRole("button", { name: "Sign out" }).click();
      await says(page.locator("h1"), "Sign in to Millstream");
      await page.reload();
      await gone(page.getByRole("navigation", { name: "Main" }));
    },

    "the first page is small": async ({ workspace, open }) => {
      const page = await open("/", { link: null });
      const { total, files } = await firstLoad(page, workspace.url);
      assert.ok(total <= LIMIT, `${total} bytes: ${JSON.stringify(files)}`);
      console.log(`        ${(total / 1000).toFixed(0)} kB in ${files.length} files`);
    },
  },
};

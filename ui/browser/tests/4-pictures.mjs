// With PICTURES=1: the pictures of the documentation, of runs as they may look after some days.
import { isAsked, neutral, picture } from "../lib/pictures.mjs";
import { says, shown, there, until } from "../lib/wait.mjs";

const FILES = 40;
const ROWS = 4000;

/** A job that takes a while: its files come at the pace of its throttle. */
const SALES = `throttle: {bytes_per_second: 250kB}
sources:
  sales: {read: 'data/sales/*.csv', max_rejects: 1%}
  customers: {read: data/customers.csv}
transforms:
  known:
    lookup: {from: sales, in: customers, on: {customer: id}, take: [city]}
  large: {filter: {from: known, where: amount > 400}}
  priced: {sql: 'SELECT id, day, city, amount * 1.19 AS gross FROM known'}
sinks:
  sales_table: {from: priced, write: 'sqlite:sales.db', table: sales}
  large_sales: {from: large, write: out/large.parquet}
`;

function files() {
  const found = { "sales.yaml": SALES };
  for (let file = 0; file < FILES; file += 1) {
    const rows = Array.from({ length: ROWS }, (_, row) => {
      const id = file * ROWS + row;
      return `${id},${(id % 40) + 1},2026-01-${String((file % 28) + 1).padStart(2, "0")},${(id * 37) % 900}`;
    });
    found[`data/sales/part-${String(file + 1).padStart(2, "0")}.csv`] = `id,customer,day,amount\n${rows.join("\n")}\n`;
  }
  return found;
}

const tests = {
  pictures: async ({ workspace, open }) => {
    for (let round = 0; round < 6; round += 1) {
      for (const file of ["customers.yaml", "orders.yaml", "shares.yaml"]) await workspace.run("run", file);
      if (round % 2 === 0) await workspace.run("run", "nightly.yaml");
    }
    await workspace.run("run", "prices.yaml");
    await workspace.run("run", "orders.yaml", "--set", "DAY=2026-01-29");
    workspace.write("hold", "");
    const sequence = await workspace.begin("nightly.yaml");
    const sales = await workspace.begin("sales.yaml");
    const page = await open("/", { before: neutral });
    const go = (path) => page.goto(`${workspace.url}${path}`);

    await go(`/runs/${sales}`);
    await until("some of its time", async () => (await workspace.api(`/runs/${sales}`)).live?.elapsed_ms > 7000);
    const rates = page.locator(".edge-label");
    await until("rates", async () => (await rates.allTextContents()).some((its) => /^[1-9].* rows/.test(its)));
    await picture(page, "run", 1000);
    await go("/");
    await says(page.locator("main"), "written");
    await picture(page, "overview", 860);
    await go("/machine");
    await says(page.locator("main"), "sales.yaml");
    await picture(page, "machine", 600);
    await go(`/runs/${sequence}`);
    await says(page.locator(".react-flow__node", { hasText: "cities" }), "done");
    await there(page.locator(".edge"));
    await picture(page, "sequence", 900);
    workspace.delete("hold");
    await go(`/runs/${(await workspace.last("shares.yaml")).run}/rejects`);
    await says(page.locator(".lead"), "5 records");
    await picture(page, "rejects", 620);
    await go("/jobs/orders.yaml");
    await there(page.locator(".edge"));
    await shown(page.locator(".strip"));
    await picture(page, "job", 760);
  },
};

export default { name: "pictures", folder: "/tmp/demo", files: files(), tests: isAsked ? tests : {} };

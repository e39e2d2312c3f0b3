// A folder of jobs, as small as it can be and still show all that the pages show.

const CITIES = ["Ulm", "Rom", "Graz", "Lyon", "Oslo"];
const DAYS = ["2026-01-29", "2026-01-30", "2026-01-31"];

const table = (head, rows) => `${head}\n${rows.map((row) => row.join(",")).join("\n")}\n`;
const range = (n, of) => Array.from({ length: n }, (_, index) => of(index + 1));

/** The rows of the slow job: about 90 s at its throttle. */
export const ARCHIVE_ROWS = 100_000;

const orders = () =>
  table(
    "id,customer,day,amount,items",
    range(5000, (id) => [id, (id % 40) + 1, DAYS[id % 3], (id * 37) % 900, id % 1000 === 0 ? 0 : (id % 4) + 1]),
  );

const ORDERS = `# Paid orders with the city of their customer.
allow:
  DAY: '[0-9]{4}-[0-9]{2}-[0-9]{2}'
sources:
  orders:
    read: data/orders.csv
    checks:
    - {rows: {min: 1000}}
    - {unique: id}
    - {range: {amount: {min: 1}}, severity: warn}
  customers: {read: data/customers.csv}
transforms:
  recent: {filter: {from: orders, where: "day >= '\${DAY:-2026-01-30}'"}}
  with_city:
    sql: SELECT o.id, o.day, o.amount, c.city FROM recent o JOIN customers c ON o.customer = c.id
  per_city:
    sql: SELECT city, count(*) AS orders, sum(amount) AS amount FROM with_city GROUP BY city
sinks:
  orders_table: {from: with_city, write: 'sqlite:shop.db', table: orders, mode: replace}
  city_table: {from: per_city, write: 'sqlite:shop.db', table: per_city, mode: replace}
`;

const CUSTOMERS = `sources:
  customers: {read: data/customers.csv}
transforms:
  known: {filter: {from: customers, where: city <> ''}}
sinks:
  table: {from: known, write: 'sqlite:customers.db', table: customers, mode: replace}
`;

/** The number of items is 0 in five orders. */
export const SHARES = `sources:
  orders: {read: data/orders.csv}
transforms:
  per_item:
    sql: SELECT id, amount / items AS per_item FROM orders
    max_rejects: 10
sinks:
  table: {from: per_item, write: 'sqlite:shares.db', table: per_item}
`;

/** One of its rows has no number where a number is declared. */
export const PRICES = `sources:
  prices:
    read: data/prices.csv
    csv: {columns: {product: utf8, price: int64}}
sinks:
  table: {from: prices, write: 'sqlite:prices.db', table: prices}
`;

export const ARCHIVE = `throttle: {bytes_per_second: 20kB}
sources:
  orders: {read: data/archive.csv}
sinks:
  table: {from: orders, write: 'sqlite:out.db', table: orders}
`;

const NIGHTLY = `schedule: {cron: "0 2 * * *", timezone: Europe/Berlin}
steps:
  customers: {job: customers.yaml}
  orders: {job: orders.yaml, set: {DAY: "\${DAY}"}, needs: [customers]}
  rows: {query: "SELECT count(*) AS n FROM orders", from: 'sqlite:shop.db', needs: [orders]}
  cities: {job: city.yaml, needs: [rows], when: steps.rows.n > 0, for_each: {CITY: [Ulm, Rom, Graz]}, parallel: 2}
  publish: {command: [sh, publish.sh], needs: [customers]}
  alarm: {command: [echo, it failed], needs: [cities, publish], when: failure}
parameters: {DAY: 2026-01-30}
`;

const CITY = `sources:
  customers: {read: data/customers.csv}
transforms:
  here: {filter: {from: customers, where: "city = '\${CITY}'"}}
sinks:
  file: {from: here, write: 'out/\${CITY}.csv'}
`;

export function demo() {
  return {
    "data/orders.csv": orders(),
    "data/customers.csv": table(
      "id,name,city",
      range(40, (id) => [id, `customer ${id}`, CITIES[id % 5]]),
    ),
    "data/prices.csv": table("product,price", [
      ["tea", 12],
      ["coffee", "many"],
      ["milk", 3],
    ]),
    "data/archive.csv": table(
      "id,customer,day",
      range(ARCHIVE_ROWS, (id) => [id, id % 40, DAYS[id % 3]]),
    ),
    "orders.yaml": ORDERS,
    "customers.yaml": CUSTOMERS,
    "shares.yaml": SHARES,
    "prices.yaml": PRICES,
    "archive.yaml": ARCHIVE,
    "nightly.yaml": NIGHTLY,
    "city.yaml": CITY,
    // The step goes on as long as there is this file.
    "publish.sh": "while [ -e hold ]; do sleep 0.1; done\necho all is published\n",
  };
}

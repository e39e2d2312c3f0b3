export const LOAD = `# Loads the orders of a day, and a report by country.
timezone: Europe/Berlin
sources:
  orders:
    read: s3://feeds/\${DAY}/orders-*.csv.gz
    max_rejects: 1%
    csv: {columns: {id: int64, customer: int64, amount: "decimal(12, 2)", placed: timestamp}}
  customers:
    read: \${CUSTOMERS:-data/customers}/*.parquet

transforms:
  clean:
    from: orders
    where: "amount > 0"
  joined:
    sql: |
      SELECT o.*, c.country
      FROM orders o JOIN customers c ON o.customer = c.id
  by_country:
    sql: SELECT country, count(*) AS orders, sum(amount) AS amount FROM joined GROUP BY country
  unused:
    sql: SELECT 1

sinks:
  orders:
    from: clean
    write: postgres://etl:\${PASSWORD}@db.example/shop
    table: orders
    modee: append
  report:
    from: by_country
    write: out/\${DAY}.parquet   # one file a day
`;

export const NIGHTLY = `schedule: {cron: "0 2 * * *", timezone: Europe/Berlin, deadline: "03:00"}
parameters: {DAY: "\${today - 1 day}"}
steps:
  load:  {job: load.yaml, set: {DAY: "\${DAY}"}, retries: {count: 3, wait: 1m}}
  rows:  {query: "SELECT count(*) AS n FROM sales", from: 'postgres://etl@db.example/shop', needs: [load]}
  each:  {job: shop/orders.yaml, needs: [rows], when: steps.rows.n > 0, for_each: {SHOP: [north, south, east, west]}}
  sizes: {query: "SELECT pg_database_size('shop')", from: 'postgres://etl@db.example/shop', needs: [load]}
  done:  {command: [./publish, "\${steps.load.rows_written}"], needs: [each, sizes]}
  alarm: {mail: {to: [boss@example.com]}, needs: [done], when: failure}
`;

const line = (what, line, severity, hint, text) => ({
  severity,
  path: "",
  line,
  column: 5,
  length: 4,
  what,
  text,
  source_line: "",
  hint,
});

export const LINTS = [
  line("`modee` is no key of a sink", 28, "error", "did you mean `mode`?", "modee"),
  line("nothing reads `unused`", 21, "warning", "remove it, or read it in a sink", "unused"),
];

export const COLUMNS = [
  { name: "id", type: "int64" },
  { name: "customer", type: "int64" },
  { name: "amount", type: "decimal(12, 2)" },
  { name: "placed", type: "timestamp" },
  { name: "note", type: "utf8" },
];

export const AUDIT = [
  ["edit", "wrote", "load.yaml"],
  ["operate", "started", "shop/orders.yaml with SHOP=north"],
  ["look", "tried to cancel", "1795334700000-4711"],
  ["edit", "resumed", "1795334700000-4711"],
  ["operate", "signed in", ""],
];

import assert from "node:assert/strict";
import { test } from "node:test";
import type { SequenceStep } from "../src/api/types";
import { variablesOf, wrongName } from "../src/pages/job/names";
import { tokens } from "../src/pages/job/yaml";
import { lanes, ticks } from "../src/pages/run/lanes";
import { speeds } from "../src/pages/run/speeds";
import { failure, isCancelled } from "../src/parts/failure";
import { readFilter, runsUrl, writeFilter } from "../src/pages/runs-filter";

test("a filter survives the address", () => {
  const text =
    "file=shop%2Fload.yaml&q=a+%26+b&kind=job&outcome=failed&from=2026-01-01&to=2026-01-31&unfinished=true&steps=true";
  const filter = readFilter(new URLSearchParams(text));
  const written = Object.entries(writeFilter(filter)).filter((entry): entry is [string, string] => entry[1] !== null);
  assert.equal(new URLSearchParams(written).toString(), new URLSearchParams(text).toString());
});

test("what an address must not say is left out", () => {
  const filter = readFilter(new URLSearchParams("kind=x&outcome=y&from=yesterday&unfinished=1"));
  assert.ok(Object.values(writeFilter(filter)).every((value) => value === null));
  assert.equal(runsUrl(filter, null, 50), "/api/v1/runs?limit=50");
});

test("both days of a filter are whole", () => {
  const url = runsUrl(readFilter(new URLSearchParams("from=2026-01-31&to=2026-01-31")), "7", 50);
  const query = new URLSearchParams(url.split("?")[1]);
  assert.equal(Number(query.get("to")) - Number(query.get("from")), 86_400_000 - 1);
  assert.equal(query.get("before"), "7");
});

test("variables of a file", () => {
  const text =
    "read: ${DAY}/${OUT:-out}/${DAY:-x}\n# ${COMMENT}\nsql: $${literal} ${today - 1 day} ${today} ${steps.load.run}\n";
  assert.deepEqual(variablesOf(text), [
    { name: "DAY", fallback: "x" },
    { name: "OUT", fallback: "out" },
  ]);
});

test("names of new files", () => {
  for (const name of ["load.yaml", "shop/load.yaml", "a..b.yaml"]) assert.equal(wrongName(name), null, name);
  for (const name of ["", "load", "load.yml", "/load.yaml", "../load.yaml", "a/../b.yaml", "a//b.yaml", ".yaml"]) {
    assert.ok(wrongName(name), name);
  }
});

test("why an action has failed", () => {
  const error = "error: unknown key `x`\n --> load.yaml:2:25\n  |\n2 |   x\n";
  assert.deepEqual(failure(`reading\r50 %\r\u001b[31m${error}\nerror: another\n`), {
    what: "unknown key `x`",
    place: "load.yaml:2:25",
  });
  assert.deepEqual(failure("error: it is full\n= hint: remove something\n"), { what: "it is full", place: null });
  assert.deepEqual(failure("one\n  two\n\n"), { what: "two", place: null });
  assert.deepEqual(failure(""), { what: "", place: null });
  assert.ok(isCancelled({ state: "failed", exit_code: 130 }));
  assert.ok(!isCancelled({ state: "failed", exit_code: 1 }));
});

test("colours of YAML lose nothing", () => {
  for (const line of ["", "  a: 'it''s' # why", "# all", "url: http://a#b", 'x: ${A} "q" {b: 1}']) {
    assert.equal(
      tokens(line)
        .map(({ text }) => text)
        .join(""),
      line,
    );
  }
  assert.deepEqual(
    tokens("a: 1 # b").map(({ kind }) => kind),
    ["key", null, "comment"],
  );
});

const part = (item: string, began: number | null, ended: number | null) => ({
  item,
  attempts: 1,
  outcome: "success" as const,
  began,
  ended,
  run: null,
  message: null,
});

test("parts that overlap stand in lanes of their own", () => {
  const step = {
    name: "each",
    began: 0,
    ended: null,
    outcome: "running",
    parts: [part("c", 50, null), part("a", 0, 50), part("b", 10, 60), part("d", null, null)],
  };
  const [row] = lanes([step as unknown as SequenceStep], 0, 100);
  assert.deepEqual(
    row!.bars.map(({ part, lane, left, width }) => [part.item, lane, left, width]),
    [
      ["a", 0, 0, 0.5],
      ["b", 1, 0.1, 0.5],
      ["c", 0, 0.5, 0.5],
    ],
  );
  assert.equal(row!.lanes, 2);
});

test("ticks are few and round", () => {
  assert.deepEqual(ticks(142), [0, 30, 60, 90, 120]);
  for (const span of [0.5, 3, 59, 4000, 1e6, 1e7])
    assert.ok(ticks(span).length >= 1 && ticks(span).length <= 6, String(span));
});

test("speeds are those between points", () => {
  const at = (elapsed_ms: number, rows_read: number) => ({
    elapsed_ms,
    rows_read,
    rows_written: rows_read / 2,
    bytes_read: 0,
  });
  assert.deepEqual(speeds([at(1000, 100), at(3000, 500), at(3000, 500)]), [
    { at: 1, read: 100, written: 50 },
    { at: 3, read: 200, written: 100 },
  ]);
  assert.deepEqual(speeds([at(400, 0), at(800, 100), at(1000, 100), at(1200, 150)], 1), [
    { at: 1, read: 100, written: 50 },
    { at: 1.2, read: 250, written: 125 },
  ]);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobEntry, Live, StepSnapshot } from "../src/api/types";
import { place, shapeKey } from "../src/graph/layout";
import { entryShape, numbersOf, ratesOf, stepShape, withinOf } from "../src/graph/model";
import { same, Values } from "../src/graph/values";

const ENTRIES: JobEntry[] = [
  { entry: "orders", kind: "source", reads: [] },
  { entry: "clean", kind: "transform", reads: ["orders", "orders"] },
  { entry: "orders", kind: "sink", reads: ["clean"] },
];

const step = (name: string, kind: StepSnapshot["kind"], more: Partial<StepSnapshot> = {}): StepSnapshot => ({
  name,
  kind,
  detail: "",
  units: 0,
  units_total: 0,
  rows: 0,
  rejected: 0,
  bytes: 0,
  bytes_total: 0,
  busy: 0,
  waiting: 0,
  waiting_input: 0,
  waiting_output: 0,
  waiting_scratch: 0,
  spilled_bytes: 0,
  ...more,
});

test("a sink with the name of a source is a node of its own", () => {
  const shape = entryShape(ENTRIES);
  assert.deepEqual(shape.nodes, ["source:orders", "transform:clean", "sink:orders"]);
  assert.deepEqual(
    shape.edges.map(({ id }) => id),
    ["source:orders>transform:clean", "transform:clean>sink:orders"],
  );
});

test("needs of steps that are not there give no edges", () => {
  assert.deepEqual(
    stepShape([
      { name: "a", needs: [] },
      { name: "b", needs: ["a", "gone"] },
    ]).edges,
    [{ id: "a>b", source: "a", target: "b" }],
  );
});

test("the numbers of an entry are those of all its steps", () => {
  const numbers = numbersOf([
    step("orders", "fetch", { busy: 1, waiting: 1, waiting_input: 1, detail: "s3" }),
    step("orders", "parse", { rows: 10, rejected: 2, busy: 1, waiting: 1, waiting_output: 1, detail: "csv" }),
    step("orders", "load", { rows: 8 }),
  ], ENTRIES);
  const source = numbers.get("source:orders")!;
  assert.deepEqual(
    [source.rows, source.rejected, source.busy, source.waitingInput, source.waitingOutput],
    [10, 2, 0.5, 0.25, 0.25],
  );
  assert.deepEqual(source.details, ["s3", "csv"]);
  assert.equal(numbers.get("sink:orders")!.rows, 8);
});

test("a transform without steps of its own has those of its sink, or is within the next one", () => {
  const entries: JobEntry[] = [
    { entry: "in", kind: "source", reads: [] },
    { entry: "first", kind: "transform", reads: ["in"] },
    { entry: "second", kind: "transform", reads: ["first"] },
    { entry: "out", kind: "sink", reads: ["second"] },
  ];
  const steps = [
    step("in", "fetch", { units: 1, units_total: 2 }),
    step("in", "parse", { rows: 9 }),
    step("out", "transform", { rows: 7 }),
    step("out", "load", { rows: 6 }),
  ];
  const numbers = numbersOf(steps, entries);
  assert.deepEqual([numbers.get("transform:second")!.rows, numbers.get("sink:out")!.rows], [7, 6]);
  assert.deepEqual([numbers.get("source:in")!.units, numbers.get("source:in")!.unitsTotal], [1, 2]);
  assert.deepEqual([...withinOf(entries, numbers)], [["transform:first", "second"]]);
  const own = numbersOf([...steps, step("second", "transform", { rows: 8 })], entries);
  assert.deepEqual([own.get("transform:second")!.rows, own.get("sink:out")!.rows], [8, 6]);
});

test("rates are differences, and none without an earlier moment", () => {
  const at = (elapsed_ms: number, rows: number) =>
    ({ elapsed_ms, entries: ENTRIES, steps: [step("orders", "parse", { rows })] }) as unknown as Live;
  assert.equal(ratesOf(at(3000, 500), at(1000, 100)).get("source:orders"), 200);
  assert.equal(ratesOf(at(3000, 500), null).size, 0);
  assert.equal(ratesOf(at(1000, 500), at(1000, 100)).size, 0);
});

test("the layout goes from sources to sinks, and the same shape has the same key", () => {
  const shape = entryShape(ENTRIES);
  const { positions } = place(shape, { width: 200, height: 80 }, "LR");
  const x = shape.nodes.map((id) => positions.get(id)!.x);
  assert.ok(x[0]! + 200 < x[1]! && x[1]! + 200 < x[2]!);
  assert.equal(shapeKey(shape), shapeKey(entryShape(structuredClone(ENTRIES))));
});

test("a graph with a cycle, as of a file with a mistake, has a layout, too", () => {
  const cycle: JobEntry[] = [
    { entry: "a", kind: "transform", reads: ["b"] },
    { entry: "b", kind: "transform", reads: ["a"] },
  ];
  assert.equal(place(entryShape(cycle), { width: 200, height: 80 }, "TB").positions.size, 2);
});

test("only what shows a changed value is woken", () => {
  const frames: (() => void)[] = [];
  const values = new Values((run) => frames.push(run));
  const woken: string[] = [];
  values.replace(
    new Map([
      ["a", { rows: 1 }],
      ["b", { rows: 1 }],
    ]),
  );
  values.subscribe("a", () => woken.push("a"));
  values.subscribe("b", () => woken.push("b"));
  values.replace(
    new Map([
      ["a", { rows: 1 }],
      ["b", { rows: 2 }],
    ]),
  );
  assert.deepEqual(woken, []);
  frames.shift()!();
  assert.deepEqual(woken, ["b"]);
  values.replace(
    new Map([
      ["a", { rows: 3 }],
      ["b", { rows: 3 }],
    ]),
  );
  values.replace(
    new Map([
      ["a", { rows: 4 }],
      ["b", { rows: 4 }],
    ]),
  );
  assert.equal(frames.length, 1);
  frames.shift()!();
  assert.deepEqual(woken, ["b", "a", "b"]);
  assert.ok(same({ a: 1 }, { a: 1 }) && !same({ a: 1 }, { a: 1, b: 2 }) && !same(null, {}));
});

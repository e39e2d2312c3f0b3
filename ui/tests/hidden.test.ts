import assert from "node:assert/strict";
import { test } from "node:test";
import { followHidden, PATIENCE } from "../src/api/hidden";

function page() {
  let isHidden = false;
  let listener: (() => void) | null = null;
  let timer: { run: () => void; milliseconds: number } | null = null;
  const said: boolean[] = [];
  const stop = followHidden((isAway) => said.push(isAway), {
    isHidden: () => isHidden,
    listen: (changed) => {
      listener = changed;
      return () => (listener = null);
    },
    later: (run, milliseconds) => {
      timer = { run, milliseconds };
      return () => (timer = null);
    },
  });
  return {
    said,
    stop,
    turn: (hidden: boolean) => {
      isHidden = hidden;
      listener?.();
    },
    wait: () => {
      const { run, milliseconds } = timer!;
      timer = null;
      assert.equal(milliseconds, PATIENCE);
      run();
    },
    isWaiting: () => timer !== null,
    isListening: () => listener !== null,
  };
}

test("a tab is away once it was hidden for a while, and back as soon as it is seen", () => {
  const tab = page();
  tab.turn(true);
  assert.deepEqual(tab.said, []);
  tab.wait();
  assert.deepEqual(tab.said, [true]);
  tab.turn(false);
  tab.turn(false);
  assert.deepEqual(tab.said, [true, false]);
});

test("a tab that is seen again soon was not away", () => {
  const tab = page();
  tab.turn(true);
  tab.turn(true);
  tab.turn(false);
  assert.equal(tab.isWaiting(), false);
  assert.deepEqual(tab.said, []);
});

test("nothing is said after the end", () => {
  const tab = page();
  tab.turn(true);
  tab.stop();
  assert.equal(tab.isWaiting(), false);
  assert.equal(tab.isListening(), false);
  assert.deepEqual(tab.said, []);
});

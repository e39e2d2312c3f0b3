import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../src/api/sse";

const WHOLE = 'event: hello\ndata: {}\n\n: comment\n\nevent: runs\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:plain\n\n';
const EVENTS = [
  { event: "hello", data: "{}" },
  { event: "runs", data: '{"a":\n1}' },
  { event: "message", data: "plain" },
];

test("events are read from one piece", () => {
  assert.deepEqual(new SseParser().push(WHOLE), EVENTS);
});

test("events are the same wherever the stream is cut", () => {
  for (let cut = 1; cut < WHOLE.length; cut += 1) {
    const parser = new SseParser();
    assert.deepEqual([...parser.push(WHOLE.slice(0, cut)), ...parser.push(WHOLE.slice(cut))], EVENTS, `cut at ${cut}`);
  }
  const parser = new SseParser();
  assert.deepEqual(
    [...WHOLE].flatMap((letter) => parser.push(letter)),
    EVENTS,
  );
});

test("an event without its empty line is not given", () => {
  assert.deepEqual(new SseParser().push("event: runs\ndata: {}\n"), []);
});

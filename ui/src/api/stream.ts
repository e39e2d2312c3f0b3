import { authorization, endpoint, getToken, refused } from "./client";
import { followHidden } from "./hidden";
import { SseParser } from "./sse";
import { createStore } from "./store";
import type { EventName } from "./types";

/** How the connection to the server is; `lost` only after a moment, so that a short break shows nothing. */
export const connection = createStore<"connecting" | "open" | "lost">("connecting");

type Listener = (name: EventName, data: unknown) => void;

const PATIENCE = 2_000;
/** A stream that says nothing for so long may be dead without either side knowing: after a sleep, for instance. */
const SILENCE = 60_000;
const LONGEST_WAIT = 5_000;

let watched: string | null = null;
let attempt: AbortController | null = null;
let listener: Listener = () => {};

/** Whether the tab has been hidden for so long that it needs no events. */
const isAway = createStore(false);

/** Follows the events until the signal ends it. */
export async function follow(onEvent: Listener, signal: AbortSignal): Promise<void> {
  listener = onEvent;
  isAway.set(false);
  const stop = followHidden((now) => {
    isAway.set(now);
    if (now) attempt?.abort("again");
  });
  await connect(signal);
  stop();
  lost.end();
}

async function connect(signal: AbortSignal): Promise<void> {
  let failures = 0;
  const opened = () => {
    failures = 0;
    lost.end();
    connection.set("open");
  };
  while (!signal.aborted && getToken()) {
    if (isAway.get()) lost.end();
    await whileAway(signal);
    if (signal.aborted) return;
    lost.begin();
    const current = new AbortController();
    attempt = current;
    const stop = () => current.abort();
    signal.addEventListener("abort", stop, { once: true });
    try {
      await read(current, opened);
    } catch {
      // Whatever ended the stream, the answer is the same: connect again.
    }
    signal.removeEventListener("abort", stop);
    if (signal.aborted) return;
    if (current.signal.reason === "again") continue;
    failures += 1;
    lost.begin();
    await pause(Math.min(LONGEST_WAIT, 250 * 2 ** failures), signal);
  }
}

/** Shows that the connection is lost, unless it is there again soon. */
const lost = {
  timer: 0,
  begin() {
    if (connection.get() !== "lost") this.timer ||= window.setTimeout(() => connection.set("lost"), PATIENCE);
  },
  end() {
    window.clearTimeout(this.timer);
    this.timer = 0;
  },
};

/** Asks for the events of a run, too; at most of one at a time. */
export function watch(run: string | null): void {
  if (watched === run) return;
  watched = run;
  attempt?.abort("again");
}

async function read(current: AbortController, opened: () => void): Promise<void> {
  const used = getToken();
  const response = await fetch(endpoint("/events", { run: watched }), {
    headers: { Accept: "text/event-stream", ...authorization() },
    signal: current.signal,
    cache: "no-store",
  });
  if (response.status === 401) refused(used);
  if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
  opened();
  const reader = response.body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array<ArrayBuffer>>)
    .getReader();
  const parser = new SseParser();
  for (;;) {
    const silent = window.setTimeout(() => current.abort("again"), SILENCE);
    const { done, value } = await reader.read().finally(() => window.clearTimeout(silent));
    if (done) return;
    for (const { event, data } of parser.push(value)) dispatch(event as EventName, data);
  }
}

function dispatch(name: EventName, data: string): void {
  let value: unknown;
  try {
    value = data ? JSON.parse(data) : {};
  } catch {
    // One unreadable event is no reason to lose the others; asking for all anew makes up for it.
    listener("resync", {});
    return;
  }
  listener(name, value);
}

function whileAway(signal: AbortSignal): Promise<void> {
  if (!isAway.get()) return Promise.resolve();
  return new Promise((resolve) => {
    const ended = isAway.subscribe(() => now());
    const now = () => {
      ended();
      signal.removeEventListener("abort", now);
      resolve();
    };
    signal.addEventListener("abort", now, { once: true });
  });
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = window.setTimeout(resolve, milliseconds);
    const now = () => {
      window.clearTimeout(timer);
      resolve();
    };
    signal.addEventListener("abort", now, { once: true });
    window.addEventListener("online", now, { once: true });
  });
}

/** Times that go on by themselves: each element renders alone, and the page around it does not. */
import { useSyncExternalStore } from "react";
import { ago, duration, moment, relative, wholeDuration } from "./format";

const listeners = new Set<() => void>();
let now = Date.now();
let timer: number | null = null;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  // It stood still while nobody looked, and goes slowly in a hidden tab.
  now = Date.now();
  timer ??= window.setInterval(() => {
    now = Date.now();
    listeners.forEach((listener) => listener());
  }, 1_000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0 && timer !== null) {
      window.clearInterval(timer);
      timer = null;
    }
  };
}

/** The text that `of` makes of the time. The component only renders again when the text changes. */
function useTimed(of: (now: number) => string): string {
  return useSyncExternalStore(subscribe, () => of(timer === null ? Date.now() : now));
}

/** `3 min ago`, with the exact time as its title. */
export function Ago({ at }: { at: number }) {
  return <Relative at={at} of={ago} />;
}

/** `in 3 min`: for a time that is planned. */
export function Until({ at }: { at: number }) {
  return <Relative at={at} of={relative} />;
}

function Relative({ at, of }: { at: number; of: (at: number, now: number) => string }) {
  const text = useTimed((now) => of(at, now));
  return (
    <time dateTime={new Date(at).toISOString()} title={moment(at)}>
      {text}
    </time>
  );
}

/** How long it has taken, or takes. */
export function Took({ began, seconds, isRunning }: { began: number; seconds: number | null; isRunning: boolean }) {
  const text = useTimed((now) => (isRunning ? wholeDuration((now - began) / 1000) : ""));
  if (isRunning) return <span>{text}</span>;
  return <span>{seconds === null ? "–" : duration(seconds)}</span>;
}

/** `2026-01-31 02:00:01 · 3 min ago` */
export function When({ at }: { at: number }) {
  return (
    <span className="when">
      {moment(at)}{" "}
      <span className="muted">
        · <Ago at={at} />
      </span>
    </span>
  );
}

/** What the server has said, by the address it was asked at. Old data stays until new data is there. */
import { useCallback, useEffect, useRef, useSyncExternalStore } from "react";
import { api } from "./client";

interface Snapshot {
  data: unknown;
  error: unknown;
  isLoading: boolean;
}

interface Entry {
  snapshot: Snapshot;
  listeners: Set<() => void>;
  /** When it was last asked for. */
  asked: number;
  isStale: boolean;
  timer: number | null;
}

const NOTHING: Snapshot = { data: undefined, error: null, isLoading: false };
/** The same thing is asked for at most once in this time, however many events say that it has changed. */
const PAUSE = 1_000;
/** Not everything that changes has an event: what is older is asked for again when a page shows it. */
const FRESH = 10_000;
const KEPT = 80;

const entries = new Map<string, Entry>();
let generation = 0;

function entryOf(url: string): Entry {
  let entry = entries.get(url);
  if (!entry) {
    entry = { snapshot: NOTHING, listeners: new Set(), asked: 0, isStale: true, timer: null };
    entries.set(url, entry);
    for (const [old, { listeners }] of entries) {
      if (entries.size <= KEPT) break;
      if (listeners.size === 0 && old !== url) entries.delete(old);
    }
  }
  return entry;
}

function change(entry: Entry, snapshot: Partial<Snapshot>): void {
  entry.snapshot = { ...entry.snapshot, ...snapshot };
  for (const listener of [...entry.listeners]) listener();
}

async function load(url: string, entry: Entry): Promise<void> {
  entry.asked = Date.now();
  entry.isStale = false;
  const now = generation;
  change(entry, { isLoading: true });
  try {
    const data = await api.get(url);
    if (now === generation) change(entry, { data, error: null, isLoading: false });
  } catch (error) {
    if (now === generation) change(entry, { error, isLoading: false });
  }
  if (entry.isStale && entry.listeners.size > 0) schedule(url, entry);
}

function schedule(url: string, entry: Entry): void {
  entry.isStale = true;
  if (entry.timer !== null || entry.snapshot.isLoading) return;
  entry.timer = window.setTimeout(
    () => {
      entry.timer = null;
      if (entry.isStale && entry.listeners.size > 0) void load(url, entry);
    },
    Math.max(0, entry.asked + PAUSE - Date.now()),
  );
}

/** Asks again for what is shown of these; the others are asked for when they are shown next. */
export function refresh(matches: (url: string) => boolean): void {
  for (const [url, entry] of entries) {
    if (!matches(url)) continue;
    entry.isStale = true;
    if (entry.listeners.size > 0) schedule(url, entry);
  }
}

/** Changes what is known already. `change` gives the same object if there is nothing to change. */
export function patch<T>(matches: (url: string) => boolean, by: (data: T, url: string) => T): void {
  for (const [url, entry] of entries) {
    if (!matches(url) || entry.snapshot.data === undefined) continue;
    const data = by(entry.snapshot.data as T, url);
    if (data !== entry.snapshot.data) change(entry, { data });
  }
}

/** Forgets everything: another user may see other things. */
export function forget(): void {
  generation += 1;
  entries.clear();
}

export interface Loaded<T> {
  data: T | undefined;
  error: unknown;
  isLoading: boolean;
  reload: () => void;
}

/**
 * What the server says at `url`. While an address is new, the data of the one before stays (`keep`), so that changing
 * a filter does not empty the page.
 */
export function useData<T>(url: string | null, { keep = false }: { keep?: boolean } = {}): Loaded<T> {
  const subscribe = useCallback(
    (listener: () => void) => {
      if (url === null) return () => {};
      const entry = entryOf(url);
      entry.listeners.add(listener);
      return () => entry.listeners.delete(listener);
    },
    [url],
  );
  const snapshot = useSyncExternalStore(subscribe, () =>
    url === null ? NOTHING : (entries.get(url)?.snapshot ?? NOTHING),
  );
  useEffect(() => {
    if (url === null) return;
    const entry = entryOf(url);
    if ((entry.isStale || Date.now() - entry.asked > FRESH) && !entry.snapshot.isLoading) void load(url, entry);
  }, [url]);
  const last = useRef<unknown>(undefined);
  if (snapshot.data !== undefined) last.current = snapshot.data;
  const data = snapshot.data ?? (keep && snapshot.error === null ? last.current : undefined);
  const reload = useCallback(() => refresh((other) => other === url), [url]);
  return { data: data as T | undefined, error: snapshot.error, isLoading: snapshot.isLoading, reload };
}

/**
 * What stands in the nodes and on the edges of a graph, apart from the graph: a new number renders the one node that
 * shows it, and neither the layout nor the other nodes.
 */
import { createContext, useContext, useSyncExternalStore } from "react";

/** So many nodes and edges are drawn anew in a frame: the others follow in the next ones, so that none takes long. */
const PER_FRAME = 20;

export class Values {
  private readonly waiting = new Set<string>();
  private readonly values = new Map<string, unknown>();
  private readonly listeners = new Map<string, Set<() => void>>();

  constructor(private readonly nextFrame: (run: () => void) => void = (run) => requestAnimationFrame(run)) {}

  get(id: string): unknown {
    return this.values.get(id);
  }

  subscribe(id: string, listener: () => void): () => void {
    const listeners = this.listeners.get(id) ?? new Set();
    this.listeners.set(id, listeners.add(listener));
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0) this.listeners.delete(id);
    };
  }

  /** Takes the new values, and wakes those that show one which has changed. */
  replace(next: Map<string, unknown>): void {
    for (const id of [...this.values.keys()]) if (!next.has(id)) this.set(id, undefined);
    for (const [id, value] of next) this.set(id, value);
  }

  private set(id: string, value: unknown): void {
    if (same(this.values.get(id), value)) return;
    if (value === undefined) this.values.delete(id);
    else this.values.set(id, value);
    if (!this.listeners.has(id)) return;
    if (this.waiting.size === 0) this.nextFrame(this.wake);
    this.waiting.add(id);
  }

  private readonly wake = (): void => {
    for (const id of [...this.waiting].slice(0, PER_FRAME)) {
      this.waiting.delete(id);
      this.listeners.get(id)?.forEach((listener) => listener());
    }
    if (this.waiting.size > 0) this.nextFrame(this.wake);
  };
}

/** Equal, or objects whose fields are equal. */
export function same(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  const keys = Object.keys(a);
  return (
    keys.length === Object.keys(b).length &&
    keys.every((key) => Object.is((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]))
  );
}

export const ValuesContext = createContext(new Values());

export function useValue<T>(id: string): T | undefined {
  const values = useContext(ValuesContext);
  return useSyncExternalStore(
    (listener) => values.subscribe(id, listener),
    () => values.get(id),
  ) as T | undefined;
}

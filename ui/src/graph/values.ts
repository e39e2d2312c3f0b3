/**
 * What stands in the nodes and on the edges of a graph, apart from the graph: a new number changes the one node that
 * shows it, and neither the layout nor the other nodes.
 */
import { createContext, useContext, useLayoutEffect, useRef, useSyncExternalStore } from "react";

/** So many nodes and edges change in a frame: the others follow in the next ones, so that none takes long. */
const PER_FRAME = 12;

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

/** The value of a node or an edge. The component only renders again when `isSame` tells two values apart. */
export function useValue<T>(id: string, isSame: (a: T, b: T) => boolean = Object.is): T | undefined {
  const values = useContext(ValuesContext);
  const shown = useRef<{ id: string; value: T | undefined }>({ id, value: undefined });
  return useSyncExternalStore(
    (listener) => values.subscribe(id, listener),
    () => {
      const next = values.get(id) as T | undefined;
      const { id: of, value } = shown.current;
      const isKept = of === id && value !== undefined && next !== undefined && isSame(value, next);
      if (!isKept) shown.current = { id, value: next };
      return shown.current.value;
    },
  );
}

/** Has `write` put each new value into the elements of the component: without rendering, many change in a frame. */
export function useWritten<T>(id: string, write: (value: T | undefined) => void): void {
  const values = useContext(ValuesContext);
  const latest = useRef(write);
  useLayoutEffect(() => {
    latest.current = write;
  });
  useLayoutEffect(() => {
    const show = () => latest.current(values.get(id) as T | undefined);
    show();
    return values.subscribe(id, show);
  }, [values, id]);
}

/** Changes the text of an element, which React leaves empty, where it is another one. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

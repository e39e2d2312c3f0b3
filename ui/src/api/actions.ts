/** What this tab has asked the server to do, until it is over and put aside. */
import { api, endpoint } from "./client";
import { createStore } from "./store";
import type { Action } from "./types";

export const actions = createStore<Action[]>([]);

/** The actions that this tab follows: those of others are not shown. */
const own = new Set<string>();

/** What is done once their runs have begun. */
const whenBegun = new Map<string, (run: string) => void>();

/** Asks for an action, and follows it. */
export async function act(url: string, body: unknown = {}, begun?: (run: string) => void): Promise<Action> {
  const action = await api.post<Action>(url, body);
  own.add(action.id);
  if (begun) whenBegun.set(action.id, begun);
  noteAction(action);
  if (action.state === "running") void poll(action.id);
  return action;
}

export function noteAction(action: Action): void {
  if (!own.has(action.id)) return;
  actions.update((all) => {
    const old = all.find(({ id }) => id === action.id);
    // An answer that was on its way may be older than an event.
    if (old && old.state !== "running" && action.state === "running") return all;
    return [...all.filter(({ id }) => id !== action.id), action];
  });
  const begun = whenBegun.get(action.id);
  if (action.run) begun?.(action.run);
  if (action.run || action.state !== "running") whenBegun.delete(action.id);
}

export function dismiss(id: string): void {
  own.delete(id);
  whenBegun.delete(id);
  actions.update((all) => all.filter((action) => action.id !== id));
}

/** How long until an action is asked for again: soon, as long as a page waits for its run. */
const SOON = 300;
const LATER = 2_000;

/** Events tell how it goes on; this is for its run, and for events that were lost. */
async function poll(id: string): Promise<void> {
  await new Promise((resolve) => window.setTimeout(resolve, whenBegun.has(id) ? SOON : LATER));
  if (!own.has(id) || actions.get().find((action) => action.id === id)?.state !== "running") return;
  await api.get<Action>(endpoint(`/actions/${id}`)).then(noteAction, () => {});
  void poll(id);
}

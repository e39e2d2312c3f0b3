/** What to say of an action that has failed, from what it has printed and how it ended. */
import type { Action } from "../api/types";

/** The sentence of the first error, and its place if it has one; else the last line. */
export function failure(output: string): { what: string; place: string | null } {
  // Colours and other sequences of the terminal are no text.
  const lines = output.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").split(/\r?\n|\r/);
  const at = lines.findIndex((line) => line.startsWith("error: "));
  if (at < 0) return { what: lines.filter((line) => line.trim()).at(-1)?.trim() ?? "", place: null };
  return { what: lines[at]!.slice("error: ".length), place: /^ *--> (.+)$/.exec(lines[at + 1] ?? "")?.[1] ?? null };
}

/** Whether it was asked to stop: it says so with its exit code, or a signal does. */
export const isCancelled = ({ state, exit_code }: Pick<Action, "state" | "exit_code">): boolean =>
  state === "failed" && (exit_code === 130 || exit_code === 143);

import type { Lint } from "../../api/types";

/** Whether it says that a variable has no value: it gets one when the file is started. */
export const isUnset = ({ what }: Lint): boolean => /^the variable \w+ is not set$/.test(what);

/** Whether nothing else is wrong with a file. */
export function isOnlyUnset(lints: Lint[]): boolean {
  const errors = lints.filter(({ severity }) => severity === "error");
  return errors.length > 0 && errors.every(isUnset);
}

/** A variable that a file uses. */
export interface Variable {
  name: string;
  /** The default in the file; null if there is none, so that it must be set or come from the environment. */
  fallback: string | null;
}

/** What looks like a variable and is none: dates, and results of steps. */
const BUILT_IN = new Set(["today", "now"]);

/** The variables of a job or a sequence, in the order in which they appear: `${NAME}` and `${NAME:-default}`. */
export function variablesOf(text: string): Variable[] {
  const found = new Map<string, Variable>();
  const code = text.replace(/^\s*#.*$/gm, "");
  for (const [, name, fallback] of code.matchAll(/(?<!\$)\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}/g)) {
    if (!name || BUILT_IN.has(name)) continue;
    const known = found.get(name);
    if (!known) found.set(name, { name, fallback: fallback ?? null });
    else known.fallback ??= fallback ?? null;
  }
  return [...found.values()];
}

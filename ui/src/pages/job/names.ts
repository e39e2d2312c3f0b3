import type { Lint } from "../../api/types";

/** Whether it says that a variable has no value: it gets one when the file is started. */
export const isUnset = ({ what }: Lint): boolean => /^the variable \w+ is not set$/.test(what);

/** Whether nothing else is wrong with a file. */
export function isOnlyUnset(lints: Lint[]): boolean {
  const errors = lints.filter(({ severity }) => severity === "error");
  return errors.length > 0 && errors.every(isUnset);
}

/** What is wrong with the name of a new file. */
export function wrongName(name: string): string | null {
  if (name.startsWith("/")) return "The name begins at the folder that is served: no slash at its beginning.";
  const parts = name.split("/");
  if (parts.includes("..")) return "The file must be in the folder that is served: no `..` in its name.";
  if (parts.some((part) => part === "" || part.startsWith("."))) {
    return "Each part of the name needs a text that does not begin with a dot.";
  }
  return name.endsWith(".yaml") ? null : "The name must end with `.yaml`.";
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

/** What the list of runs shows, as its address says it. */
import { endpoint } from "../api/client";
import type { Outcome, RunKind } from "../api/types";

export interface RunsFilter {
  file: string;
  q: string;
  kind: RunKind | "";
  outcome: Outcome | "";
  /** Days, `2026-01-31`; both belong to the time that is shown. */
  from: string;
  to: string;
  unfinished: boolean;
  /** Whether the runs of the steps of sequences are shown, too. */
  steps: boolean;
}

export const OUTCOMES: Outcome[] = ["running", "done", "failed", "interrupted", "killed", "skipped"];

const one = <T extends string>(value: string | null, of: readonly T[]): T | "" =>
  of.includes(value as T) ? (value as T) : "";

const dayOr = (value: string | null) => (/^\d{4}-\d\d-\d\d$/.test(value ?? "") ? value! : "");

export function readFilter(query: URLSearchParams): RunsFilter {
  return {
    file: query.get("file") ?? "",
    q: query.get("q") ?? "",
    kind: one(query.get("kind"), ["job", "sequence"] as const),
    outcome: one(query.get("outcome"), OUTCOMES),
    from: dayOr(query.get("from")),
    to: dayOr(query.get("to")),
    unfinished: query.get("unfinished") === "true",
    steps: query.get("steps") === "true",
  };
}

/** The parts of the query that differ from what is shown without one. */
export function writeFilter(filter: RunsFilter): Record<string, string | null> {
  const { unfinished, steps, ...texts } = filter;
  const entries = Object.entries(texts).map(([name, value]) => [name, value || null] as const);
  return { ...Object.fromEntries(entries), unfinished: unfinished ? "true" : null, steps: steps ? "true" : null };
}

/** Midnight at the beginning of a day, in the time zone of the browser. */
function midnight(day: string, daysLater = 0): number {
  const [year, month, date] = day.split("-").map(Number) as [number, number, number];
  return new Date(year, month - 1, date + daysLater).getTime();
}

export function runsUrl(filter: RunsFilter, before: string | null, limit: number): string {
  return endpoint("/runs", {
    file: filter.file,
    q: filter.q,
    kind: filter.kind,
    outcome: filter.outcome,
    from: filter.from && midnight(filter.from),
    to: filter.to && midnight(filter.to, 1) - 1,
    unfinished: filter.unfinished || null,
    steps: filter.steps || null,
    before,
    limit,
  });
}

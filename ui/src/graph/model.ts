/** What a graph shows, made of what the server says. Pure functions. */
import type { JobEntry, Live, SequenceStep, StepKind, StepSnapshot } from "../api/types";

export interface GraphEdge {
  id: string;
  source: string;
  target: string;
}

export interface Shape {
  /** In the order in which they are drawn and reached by Tab. */
  nodes: string[];
  edges: GraphEdge[];
}

export const entryId = (kind: JobEntry["kind"], entry: string): string => `${kind}:${entry}`;

/** The graph of a job. A sink may have the name of a source, and nothing reads a sink. */
export function entryShape(entries: JobEntry[]): Shape {
  const producers = new Map<string, string>();
  for (const { kind, entry } of entries) if (kind !== "sink") producers.set(entry, entryId(kind, entry));
  const edges = entries.flatMap(({ kind, entry, reads }) => {
    const target = entryId(kind, entry);
    return [...new Set(reads)].flatMap((name) => {
      const source = producers.get(name);
      return source && source !== target ? [{ id: `${source}>${target}`, source, target }] : [];
    });
  });
  return { nodes: entries.map(({ kind, entry }) => entryId(kind, entry)), edges };
}

/** The graph of a sequence. */
export function stepShape(steps: { name: string; needs: string[] }[]): Shape {
  const names = new Set(steps.map(({ name }) => name));
  const edges = steps.flatMap(({ name, needs }) =>
    [...new Set(needs)]
      .filter((need) => names.has(need))
      .map((need) => ({ id: `${need}>${name}`, source: need, target: name })),
  );
  return { nodes: [...names], edges };
}

/** The numbers of an entry, of all its steps. */
export interface EntryNumbers {
  rows: number;
  rejected: number;
  bytes: number;
  units: number;
  unitsTotal: number;
  /** Shares of the time of its steps: at work, waiting for rows, waiting for the next step. */
  busy: number;
  waitingInput: number;
  waitingOutput: number;
  spilled: number;
  details: string[];
}

const SIDE: Record<StepKind, JobEntry["kind"]> = {
  list: "source",
  fetch: "source",
  decode: "source",
  parse: "source",
  transform: "transform",
  load: "sink",
};

/**
 * The entry that a step belongs to. What transforms for a sink has the name of the sink: it belongs to the transform
 * that the sink reads, unless that has steps of its own.
 */
function ownerOf(entries: JobEntry[], steps: StepSnapshot[]): (step: StepSnapshot) => string {
  const transforms = new Set(entries.filter(({ kind }) => kind === "transform").map(({ entry }) => entry));
  const sinks = new Map(entries.filter(({ kind }) => kind === "sink").map(({ entry, reads }) => [entry, reads]));
  const withSteps = new Set(steps.filter(({ kind }) => kind === "transform").map(({ name }) => name));
  return ({ kind, name }) => {
    const reads = kind === "transform" && !transforms.has(name) ? sinks.get(name) : undefined;
    if (!reads) return entryId(SIDE[kind], name);
    const [only, ...others] = reads;
    const isFree = only !== undefined && others.length === 0 && transforms.has(only) && !withSteps.has(only);
    return isFree ? entryId("transform", only) : entryId("sink", name);
  };
}

const computed = new WeakMap<StepSnapshot[], { entries: JobEntry[]; numbers: Map<string, EntryNumbers> }>();

/** The numbers of each entry by its id. Those of a live run are asked for again, for its rates: they are kept. */
export function numbersOf(steps: StepSnapshot[], entries: JobEntry[]): Map<string, EntryNumbers> {
  const kept = computed.get(steps);
  if (kept?.entries === entries) return kept.numbers;
  const numbers = computeNumbers(steps, entries);
  computed.set(steps, { entries, numbers });
  return numbers;
}

/** Rows are those that came out of the last step of an entry. */
function computeNumbers(steps: StepSnapshot[], entries: JobEntry[]): Map<string, EntryNumbers> {
  const groups = new Map<string, StepSnapshot[]>();
  const owner = ownerOf(entries, steps);
  for (const step of steps) {
    const id = owner(step);
    const group = groups.get(id);
    if (group) group.push(step);
    else groups.set(id, [step]);
  }
  const numbers = new Map<string, EntryNumbers>();
  for (const [id, group] of groups) {
    const sum = (of: (step: StepSnapshot) => number) => group.reduce((total, step) => total + of(step), 0);
    const last = group[group.length - 1]!;
    const counted = group.reduce((most, step) => (step.units_total > most.units_total ? step : most), last);
    const total = sum((step) => step.busy + step.waiting) || 1;
    numbers.set(id, {
      rows: last.rows,
      rejected: sum((step) => step.rejected),
      bytes: last.bytes,
      units: counted.units,
      unitsTotal: counted.units_total,
      busy: sum((step) => step.busy) / total,
      waitingInput: sum((step) => step.waiting_input) / total,
      waitingOutput: sum((step) => step.waiting_output) / total,
      spilled: sum((step) => step.spilled_bytes),
      details: [...new Set(group.map((step) => step.detail).filter(Boolean))],
    });
  }
  return numbers;
}

/** The entry within whose steps each one is computed that has none of its own: the next one that has. */
export function withinOf(entries: JobEntry[], numbers: Map<string, EntryNumbers>): Map<string, string> {
  const readers = new Map<string, JobEntry[]>();
  for (const its of entries) for (const read of its.reads) readers.set(read, [...(readers.get(read) ?? []), its]);
  const within = new Map<string, string>();
  for (const { entry, kind } of entries) {
    if (kind === "sink" || numbers.has(entryId(kind, entry))) continue;
    const queue = [entry];
    const seen = new Set(queue);
    for (let name = queue.shift(); name !== undefined; name = queue.shift()) {
      const next = readers.get(name) ?? [];
      const found = next.find((its) => numbers.has(entryId(its.kind, its.entry)));
      if (found) {
        within.set(entryId(kind, entry), found.entry);
        break;
      }
      for (const its of next) {
        if (its.kind !== "sink" && !seen.has(its.entry)) queue.push(its.entry);
        seen.add(its.entry);
      }
    }
  }
  return within;
}

/** Rows a second that come out of each entry, between two moments of a run. */
export function ratesOf(now: Live, before: Live | null): Map<string, number> {
  const seconds = before ? (now.elapsed_ms - before.elapsed_ms) / 1000 : 0;
  const rates = new Map<string, number>();
  if (!before || seconds <= 0) return rates;
  const old = numbersOf(before.steps, before.entries);
  for (const [id, { rows }] of numbersOf(now.steps, now.entries)) {
    rates.set(id, Math.max(0, rows - (old.get(id)?.rows ?? 0)) / seconds);
  }
  return rates;
}

/** The steps of a report: those of a job have a kind of work, those of a sequence have needs. */
export function isSequenceSteps(steps: StepSnapshot[] | SequenceStep[]): steps is SequenceStep[] {
  return steps.length > 0 && "needs" in steps[0]!;
}

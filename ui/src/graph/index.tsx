/** The graphs of jobs and sequences. The drawing comes as a file of its own, once a page needs it. */
import { lazy, memo, Suspense, useMemo } from "react";
import type { JobEntry, Live, SequenceStep, StepSnapshot } from "../api/types";
import { compact, rate } from "../parts/format";
import type { EdgeValue } from "./Graph";
import { entryId, entryShape, numbersOf, ratesOf, stepShape, withinOf } from "./model";
import { ENTRY_SIZE, EntryNode, PLAN_SIZE, STEP_SIZE, StepNode, type EntryValue, type StepValue } from "./nodes";

const Graph = lazy(() => import("./Graph"));

const Waiting = () => <div className="graph graph-waiting" aria-hidden="true" />;

/** A job: with its numbers, if it has run or runs. */
export const JobGraph = memo(function JobGraph({
  entries,
  steps,
  live,
  previous,
  details,
  onOpen,
}: {
  entries: JobEntry[];
  steps: StepSnapshot[] | null;
  live?: Live | null;
  previous?: Live | null;
  /** What stands below the name, where the steps say nothing. */
  details?: Map<string, string>;
  onOpen?: (entry: string) => void;
}) {
  const shape = useMemo(() => entryShape(entries), [entries]);
  const { nodeValues, edgeValues } = useMemo(() => {
    const numbers = steps && numbersOf(steps, entries);
    const within = numbers && withinOf(entries, numbers);
    const rates = live ? ratesOf(live, previous ?? null) : null;
    const nodeValues = new Map<string, EntryValue>();
    for (const { kind, entry } of entries) {
      const id = entryId(kind, entry);
      const its = numbers?.get(id);
      nodeValues.set(id, {
        name: entry,
        kind,
        detail: its?.details.join(" · ").replaceAll("`", "") || details?.get(id) || "",
        isPlan: !its,
        within: within?.get(id) ?? "",
        rows: its?.rows ?? 0,
        rejected: its?.rejected ?? 0,
        busy: its?.busy ?? 0,
        waitingInput: its?.waitingInput ?? 0,
        waitingOutput: its?.waitingOutput ?? 0,
        units: its?.units ?? 0,
        unitsTotal: its?.unitsTotal ?? 0,
        spilled: its?.spilled ?? 0,
      });
    }
    const edgeValues = new Map<string, EdgeValue>();
    for (const { id, source } of shape.edges) {
      const its = numbers?.get(source);
      if (!its) continue;
      const speed = rates?.get(source);
      edgeValues.set(
        id,
        live
          ? { label: speed === undefined ? "" : rate(speed), isFlowing: (speed ?? 0) > 0 }
          : { label: compact(its.rows), isFlowing: false },
      );
    }
    return { nodeValues, edgeValues };
  }, [entries, steps, live, previous, details, shape]);
  if (entries.length === 0) return null;
  return (
    <Suspense fallback={<Waiting />}>
      <Graph
        shape={shape}
        size={steps ? ENTRY_SIZE : PLAN_SIZE}
        nodeValues={nodeValues}
        edgeValues={edgeValues}
        Node={EntryNode}
        nodeLabel={(id) => {
          const value = nodeValues.get(id);
          return value ? `${value.kind} ${value.name}` : id;
        }}
        label="Graph of the job"
        onOpen={onOpen && ((id) => onOpen(id.slice(id.indexOf(":") + 1)))}
      />
    </Suspense>
  );
});

export interface PlanStep {
  name: string;
  kind: string;
  what: string;
  needs: string[];
  seconds: number | null;
}

/** A sequence: its steps, with how they ended or stand if it has run or runs. */
export function SequenceGraph({
  steps,
  onOpen,
}: {
  steps: (SequenceStep | PlanStep)[];
  onOpen?: (step: string) => void;
}) {
  const shape = useMemo(() => stepShape(steps), [steps]);
  const nodeValues = useMemo(() => new Map(steps.map((step) => [step.name, stepValue(step)])), [steps]);
  if (steps.length === 0) return null;
  return (
    <Suspense fallback={<Waiting />}>
      <Graph
        shape={shape}
        size={STEP_SIZE}
        nodeValues={nodeValues}
        Node={StepNode}
        nodeLabel={(id) => {
          const value = nodeValues.get(id);
          return value ? `step ${value.name}: ${value.what}` : id;
        }}
        label="Graph of the sequence"
        onOpen={onOpen}
      />
    </Suspense>
  );
}

function stepValue(step: SequenceStep | PlanStep): StepValue {
  const { name, kind, what } = step;
  if (!("outcome" in step)) return { name, kind, what, outcome: null, began: null, seconds: step.seconds, parts: "" };
  const items = step.parts.filter(({ item }) => item !== null);
  const over = items.filter(({ outcome }) => outcome === "success").length;
  return {
    name,
    kind,
    what,
    outcome: step.outcome,
    began: step.began,
    seconds: step.began !== null && step.ended !== null ? (step.ended - step.began) / 1000 : null,
    parts: items.length > 0 ? `${over}/${items.length}` : "",
  };
}

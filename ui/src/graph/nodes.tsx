/** What the nodes of jobs and of sequences show. */
import { bytes, compact, count, percent } from "../parts/format";
import { OutcomeBadge } from "../parts/outcome";
import { Took } from "../parts/clock";
import type { SequenceStep } from "../api/types";
import { useValue } from "./values";

export interface EntryValue {
  name: string;
  kind: "source" | "transform" | "sink";
  detail: string;
  /** It has no numbers: the graph shows a job, not a run, or others compute it. */
  isPlan: boolean;
  /** The entry within which it is computed. */
  within: string;
  rows: number;
  rejected: number;
  busy: number;
  waitingInput: number;
  waitingOutput: number;
  units: number;
  unitsTotal: number;
  spilled: number;
}

export const ENTRY_SIZE = { width: 204, height: 92 };
export const PLAN_SIZE = { width: 204, height: 58 };

export function EntryNode({ id }: { id: string }) {
  const value = useValue<EntryValue>(id);
  if (!value) return null;
  return (
    <div className={`node node-${value.kind}`} title={value.detail || undefined}>
      <div className="node-head">
        <span className="node-name">{value.name}</span>
        <span className="node-kind">{value.kind}</span>
      </div>
      <div className="node-detail">{value.detail || "\u00a0"}</div>
      {!value.isPlan && <Work value={value} />}
      {value.within && <div className="node-numbers muted">computed within {value.within}</div>}
    </div>
  );
}

function Work({ value }: { value: EntryValue }) {
  const { busy, waitingInput, waitingOutput, rejected, units, unitsTotal, spilled } = value;
  const waits = `waiting for rows ${percent(waitingInput)}, waiting for the next ${percent(waitingOutput)}`;
  const title = `busy ${percent(busy)}, ${waits}`;
  return (
    <>
      <div className="node-numbers">
        <strong>{count(value.rows)}</strong>
        {rejected === 0 && spilled === 0 && <span className="muted"> rows</span>}
        <span className="node-aside">
          {rejected > 0 ? (
            <span className="bad">{compact(rejected)} rejected</span>
          ) : spilled > 0 ? (
            `${bytes(spilled)} spilled`
          ) : unitsTotal > 0 ? (
            `${compact(units)}/${compact(unitsTotal)}`
          ) : (
            ""
          )}
        </span>
      </div>
      <div className="work" title={title}>
        <span className="work-busy" style={{ flexGrow: busy }} />
        <span className="work-in" style={{ flexGrow: waitingInput }} />
        <span className="work-out" style={{ flexGrow: waitingOutput }} />
        <span style={{ flexGrow: Math.max(0, 1 - busy - waitingInput - waitingOutput) }} />
      </div>
    </>
  );
}

export interface StepValue {
  name: string;
  kind: string;
  what: string;
  outcome: SequenceStep["outcome"] | null;
  began: number | null;
  seconds: number | null;
  parts: string;
}

export const STEP_SIZE = { width: 204, height: 78 };

export function StepNode({ id }: { id: string }) {
  const value = useValue<StepValue>(id);
  if (!value) return null;
  const { outcome, began, seconds } = value;
  return (
    <div className={`node node-step ${outcome ? `node-${outcome}` : ""}`} title={value.what}>
      <div className="node-head">
        <span className="node-name">{value.name}</span>
        <span className="node-kind">{value.kind}</span>
      </div>
      <div className="node-detail">{value.what}</div>
      <div className="node-numbers">
        {outcome && <OutcomeBadge outcome={outcome} />}
        <span className="node-aside">
          {value.parts && `${value.parts} · `}
          {began !== null ? (
            <Took began={began} seconds={seconds} isRunning={outcome === "running"} />
          ) : (
            seconds !== null && <Took began={0} seconds={seconds} isRunning={false} />
          )}
        </span>
      </div>
    </div>
  );
}

/** What the nodes of jobs and of sequences show. */
import { useRef } from "react";
import { bytes, compact, count, percent } from "../parts/format";
import { OutcomeBadge } from "../parts/outcome";
import { Took } from "../parts/clock";
import type { SequenceStep } from "../api/types";
import { setText, useValue, useWritten } from "./values";

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

/** Whether two values differ in numbers only. */
const sameFace = (a: EntryValue, b: EntryValue): boolean =>
  a.name === b.name && a.kind === b.kind && a.detail === b.detail && a.isPlan === b.isPlan && a.within === b.within;

export function EntryNode({ id }: { id: string }) {
  const value = useValue(id, sameFace);
  if (!value) return null;
  return (
    <div className={`node node-${value.kind}`} title={value.detail || undefined}>
      <div className="node-head">
        <span className="node-name">{value.name}</span>
        <span className="node-kind">{value.kind}</span>
      </div>
      <div className="node-detail">{value.detail || "\u00a0"}</div>
      {!value.isPlan && <Work id={id} />}
      {value.within && <div className="node-detail">computed within {value.within}</div>}
    </div>
  );
}

/** What changes all the time: its elements stay, and have a fixed size, so that nothing else has a new layout. */
function Work({ id }: { id: string }) {
  const rows = useRef<HTMLElement>(null);
  const unit = useRef<HTMLSpanElement>(null);
  const aside = useRef<HTMLSpanElement>(null);
  const work = useRef<HTMLDivElement>(null);
  useWritten<EntryValue>(id, (value) => {
    if (!value) return;
    const { busy, waitingInput, waitingOutput, rejected, spilled } = value;
    setText(rows.current!, count(value.rows));
    setText(unit.current!, rejected === 0 && spilled === 0 ? "rows" : "");
    setText(aside.current!, besideRows(value));
    aside.current!.classList.toggle("bad", rejected > 0);
    const { style } = work.current!;
    style.setProperty("--busy", ends(busy));
    style.setProperty("--in", ends(busy + waitingInput));
    style.setProperty("--out", ends(busy + waitingInput + waitingOutput));
    const waits = `waiting for rows ${percent(waitingInput)}, waiting for the next ${percent(waitingOutput)}`;
    work.current!.title = `busy ${percent(busy)}, ${waits}`;
  });
  return (
    <>
      <div className="node-numbers">
        <strong ref={rows} />
        <span className="muted" ref={unit} />
        <span className="node-aside" ref={aside} />
      </div>
      <div className="work" ref={work} />
    </>
  );
}

/** Where a part of the bar ends. */
const ends = (share: number): string => `${Math.round(share * 100)}%`;

function besideRows({ rejected, spilled, units, unitsTotal }: EntryValue): string {
  if (rejected > 0) return `${compact(rejected)} rejected`;
  if (spilled > 0) return `${bytes(spilled)} spilled`;
  return unitsTotal > 0 ? `${compact(units)}/${compact(unitsTotal)}` : "";
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

import { memo, useDeferredValue, useState } from "react";
import type { StepSnapshot } from "../../api/types";
import { Folded, Section } from "../../parts/basics";
import { bytes, count, duration, percent, plural } from "../../parts/format";
import { useWhileSeen } from "../../parts/seen";
import { Table } from "../../parts/table";

/** A long table that changes each second could not be read, and takes longer than a frame: it is closed at first. */
const LONG = 60;

export function StepTable({ steps: latest, isLive }: { steps: StepSnapshot[]; isLive: boolean }) {
  // It stays as it is when the run ends while somebody looks.
  const [wasLive] = useState(isLive);
  const isLong = wasLive && latest.length > LONG;
  const [element, seen] = useWhileSeen(latest, isLong ? 5_000 : 0);
  // Rendered between frames.
  const steps = useDeferredValue(seen);
  const table = <Steps steps={steps} />;
  return (
    <div ref={element}>
      <Section title="Steps in detail">
        {isLong ? <Folded summary={plural(latest.length, "step")}>{table}</Folded> : table}
      </Section>
    </div>
  );
}

const Steps = memo(function Steps({ steps }: { steps: StepSnapshot[] }) {
  const hasSpilled = steps.some((step) => step.spilled_bytes > 0);
  const hasRejected = steps.some((step) => step.rejected > 0);
  return (
    <Table
      caption="Rows, bytes and times of each step"
      rows={steps}
      isBoxed
      rowKey={(step, index) => `${step.kind} ${step.name} ${index}`}
      columns={[
        { name: "Step", isHead: true, cell: (step) => step.name },
        {
          name: "Does",
          cell: (step) => (
            <>
              {step.kind} <span className="muted">{step.detail}</span>
            </>
          ),
        },
        { name: "Units", isNumber: true, isMinor: true, cell: units },
        { name: "Rows", isNumber: true, cell: (step) => (HAS_ROWS.has(step.kind) ? count(step.rows) : "–") },
        ...(hasRejected
          ? [{ name: "Rejected", isNumber: true, cell: (step: StepSnapshot) => count(step.rejected) }]
          : []),
        { name: "Bytes", isNumber: true, isMinor: true, cell: (step) => (step.bytes > 0 ? bytes(step.bytes) : "–") },
        { name: "Busy", isNumber: true, cell: (step) => <Share of={step.busy} step={step} /> },
        {
          name: "Waiting for input",
          isNumber: true,
          isMinor: true,
          cell: (step) => <Share of={step.waiting_input} step={step} />,
        },
        {
          name: "Waiting for output",
          isNumber: true,
          isMinor: true,
          cell: (step) => <Share of={step.waiting_output} step={step} />,
        },
        ...(hasSpilled
          ? [
              {
                name: "Spilled",
                isNumber: true,
                cell: (step: StepSnapshot) => (step.spilled_bytes > 0 ? bytes(step.spilled_bytes) : "–"),
              },
            ]
          : []),
      ]}
    />
  );
});

/** The others list, fetch and unpack: they know no rows. */
const HAS_ROWS = new Set<StepSnapshot["kind"]>(["parse", "transform", "load"]);

const units = ({ units, units_total }: StepSnapshot) =>
  units_total > 0 ? `${count(units)} / ${count(units_total)}` : units > 0 ? count(units) : "–";

function Share({ of, step }: { of: number; step: StepSnapshot }) {
  const total = step.busy + step.waiting;
  if (total <= 0) return <>–</>;
  return (
    <>
      {duration(of)} <span className="muted share">{percent(of / total)}</span>
    </>
  );
}

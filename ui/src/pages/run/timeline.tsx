import type { RunSummary, SequenceStep } from "../../api/types";
import { Section, Text } from "../../parts/basics";
import { Took } from "../../parts/clock";
import { clock, duration, plural } from "../../parts/format";
import { OutcomeBadge } from "../../parts/outcome";
import { Link, to } from "../../parts/route";
import { Table } from "../../parts/table";
import { lanes, ticks, type Bar } from "./lanes";

/** The steps of a sequence over time, and the same as a table with what they said. */
export function Timeline({ steps, run, runs }: { steps: SequenceStep[]; run: RunSummary; runs: RunSummary[] }) {
  const now = run.ended ?? Math.max(Date.now(), run.began + 1000);
  const rows = lanes(steps, run.began, now);
  const known = new Map(runs.map((its) => [its.run, its]));
  const span = (now - run.began) / 1000;
  return (
    <Section title="Over time">
      <div className="timeline">
        <div className="timeline-axis" aria-hidden="true">
          {ticks(span).map((tick) => (
            <span key={tick} style={{ left: `${(tick / span) * 100}%` }}>
              {tick === 0 ? clock(run.began, false) : `+${duration(tick)}`}
            </span>
          ))}
        </div>
        <ul>
          {rows.map(({ step, bars, lanes }) => (
            <li key={step.name}>
              <span className="timeline-name">{step.name}</span>
              <div className="timeline-lanes" style={{ height: `${Math.max(1, lanes) * 20 + 4}px` }}>
                {bars.map((bar) => (
                  <TimeBar key={bar.key} bar={bar} step={step.name} />
                ))}
                {bars.length === 0 && <span className="timeline-none muted">{step.outcome.replace("_", " ")}</span>}
              </div>
            </li>
          ))}
        </ul>
      </div>
      <Table
        caption="Steps of the sequence"
        rows={steps}
        isBoxed
        rowKey={(step) => step.name}
        columns={[
          { name: "Step", isHead: true, cell: (step) => step.name },
          { name: "Outcome", cell: (step) => <OutcomeBadge outcome={step.outcome} /> },
          {
            name: "Does",
            isText: true,
            cell: (step) => (
              <>
                <span className="muted">{step.kind}</span> {step.what}
                {step.message && (
                  <span className="message">
                    <Text>{step.message}</Text>
                  </span>
                )}
              </>
            ),
          },
          {
            name: "Needs",
            isMinor: true,
            cell: (step) => (
              <>
                {step.needs.join(", ")}
                {step.when && step.when !== "success" && <span className="muted"> when {step.when}</span>}
              </>
            ),
          },
          {
            name: "Took",
            isNumber: true,
            cell: (step) =>
              step.began !== null && (
                <Took
                  began={step.began}
                  seconds={step.ended === null ? null : (step.ended - step.began) / 1000}
                  isRunning={step.outcome === "running"}
                />
              ),
          },
          { name: "Runs", isText: true, cell: (step) => <Parts step={step} known={known} /> },
        ]}
      />
    </Section>
  );
}

function TimeBar({ bar, step }: { bar: Bar; step: string }) {
  const { part, left, width, lane } = bar;
  const what = [part.item ?? step, part.outcome, part.attempts > 1 && plural(part.attempts, "attempt"), part.message];
  const text = what.filter(Boolean).join(", ");
  const style = { left: `${left * 100}%`, width: `max(4px, ${width * 100}%)`, top: `${lane * 20 + 2}px` };
  const className = `time-bar time-${part.outcome}`;
  const inner = part.item && width > 0.06 ? <span>{part.item}</span> : null;
  if (!part.run)
    return (
      <span className={className} style={style} title={text}>
        {inner}
      </span>
    );
  return (
    <Link href={to.run(part.run)} className={className} style={style} title={text} aria-label={text}>
      {inner}
    </Link>
  );
}

const SHOWN = 12;

function Parts({ step, known }: { step: SequenceStep; known: Map<string, RunSummary> }) {
  const parts = step.parts.filter((part) => part.run);
  return (
    <>
      {parts.slice(0, SHOWN).map((part, index) => (
        <span key={part.run} className="nowrap">
          {index > 0 && ", "}
          <Link href={to.run(part.run!)} title={known.get(part.run!)?.message ?? undefined}>
            {part.item ?? "run"}
          </Link>
          {part.outcome === "failed" && <span className="bad"> failed</span>}
          {part.attempts > 1 && <span className="muted"> ×{part.attempts}</span>}
        </span>
      ))}
      {parts.length > SHOWN && <span className="muted"> and {parts.length - SHOWN} more</span>}
    </>
  );
}

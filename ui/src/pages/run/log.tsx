import { useCallback, useEffect, useRef, useState } from "react";
import { api, endpoint, errorJson } from "../../api/client";
import type { Log, RunSummary, SequenceStep } from "../../api/types";
import { Folded, Section } from "../../parts/basics";

const EVERY = 1_500;
/** Longer logs are cut at their beginning, so that the page stays quick. */
const KEPT = 400_000;

/** A part of a step of a sequence, whose output is shown in place of that of the sequence. */
interface PartOf {
  step: string;
  part: number;
}

/** What the run has printed. While it runs, new lines are added, and the view stays at the end if it was there. */
export function LogView({ run, isRunning }: { run: string; isRunning: boolean }) {
  return (
    <Section title="Log" tools={isRunning && <span className="muted">new lines appear as they come</span>}>
      <Lines run={run} isRunning={isRunning} label="Log of the run" />
    </Section>
  );
}

/** More parts of a loop are not listed. */
const MOST_PARTS = 50;

/** What the steps of a sequence have printed that are no runs of their own. */
export function StepOutputs({ run, steps }: { run: RunSummary; steps: SequenceStep[] }) {
  const isRunning = run.outcome === "running";
  const printed = steps.flatMap(({ name, parts }) =>
    parts
      .map((part, index) => ({ step: name, part: index, ...part }))
      .filter(({ began, run: own }) => began !== null && own === null)
      .slice(0, MOST_PARTS),
  );
  if (printed.length === 0) return null;
  return (
    <Section title="Output of the steps">
      {printed.map(({ step, part, item, ended }) => (
        <Folded key={`${step} ${part}`} summary={item ? `${step} (${item})` : step}>
          <Lines run={run.run} of={{ step, part }} isRunning={isRunning && ended === null} label={`Output of ${step}`} />
        </Folded>
      ))}
    </Section>
  );
}

function Lines({ run, of, isRunning, label }: { run: string; of?: PartOf; isRunning: boolean; label: string }) {
  const [text, setText] = useState("");
  const [isCut, setCut] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const next = useRef(0);
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  const { step, part } = of ?? {};

  const read = useCallback(async () => {
    const from = next.current;
    try {
      const log = await api.get<Log>(endpoint(`/runs/${encodeURIComponent(run)}/log`, { from, step, part }));
      // Another request may have brought the same lines.
      if (next.current !== from) return;
      const isFirst = from === 0;
      next.current = log.next;
      if (isFirst) setCut(log.is_cut);
      if (log.text) setText((old) => ((isFirst ? "" : old) + log.text).slice(-KEPT));
      setError(null);
    } catch (failure) {
      setError(errorJson(failure).what);
    }
  }, [run, step, part]);

  // It is also read when the run has ended: the last lines come then.
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const go = async () => {
      await read();
      if (!isOver && isRunning) timer = window.setTimeout(() => void go(), EVERY);
    };
    void go();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [read, isRunning]);

  // With the next frame, which has a new layout anyway: to ask for the height now would make one more.
  useEffect(() => {
    const frame = requestAnimationFrame(() => {
      if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    });
    return () => cancelAnimationFrame(frame);
  }, [text]);

  return (
    <>
      {isCut && <p className="muted">The beginning is left out.</p>}
      {error && <p className="form-error">{error}</p>}
      <pre
        className="log"
        ref={box}
        tabIndex={0}
        aria-label={label}
        role="region"
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          isAtEnd.current = scrollTop + clientHeight >= scrollHeight - 8;
        }}
      >
        {text || (isRunning ? "Nothing was printed yet." : "Nothing was printed.")}
      </pre>
    </>
  );
}

import { useCallback, useEffect, useRef, useState } from "react";
import { api, endpoint, errorJson } from "../../api/client";
import type { Log } from "../../api/types";
import { Section } from "../../parts/basics";

const EVERY = 1_500;
/** Longer logs are cut at their beginning, so that the page stays quick. */
const KEPT = 400_000;

/** What the run has printed. While it runs, new lines are added, and the view stays at the end if it was there. */
export function LogView({ run, isRunning }: { run: string; isRunning: boolean }) {
  const [text, setText] = useState("");
  const [isCut, setCut] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const next = useRef(0);
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);

  const read = useCallback(async () => {
    const from = next.current;
    try {
      const log = await api.get<Log>(endpoint(`/runs/${encodeURIComponent(run)}/log`, { from }));
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
  }, [run]);

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
    <Section title="Log" tools={isRunning && <span className="muted">follows</span>}>
      {isCut && <p className="muted">The beginning is left out.</p>}
      {error && <p className="form-error">{error}</p>}
      <pre
        className="log"
        ref={box}
        tabIndex={0}
        aria-label="Log of the run"
        role="region"
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          isAtEnd.current = scrollTop + clientHeight >= scrollHeight - 8;
        }}
      >
        {text || "Nothing was printed."}
      </pre>
    </Section>
  );
}

import { memo, useRef, type KeyboardEvent } from "react";
import type { Strip as StripData } from "../api/types";
import { duration, moment } from "./format";
import { Link, to } from "./route";

/**
 * The last runs of a job as bars: the height is how long they took, colour and pattern are how they ended. It is one
 * stop of the Tab key; the arrow keys go from run to run.
 */
export const Strip = memo(function Strip({ runs, label }: { runs: StripData["runs"]; label: string }) {
  const list = useRef<HTMLDivElement>(null);
  const longest = Math.max(1e-9, ...runs.map((run) => run.seconds ?? 0));
  const move = (event: KeyboardEvent) => {
    const links = [...(list.current?.querySelectorAll("a") ?? [])];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: links.length - 1 }[event.key];
    if (target === undefined || at < 0) return;
    event.preventDefault();
    links[Math.max(0, Math.min(links.length - 1, target))]?.focus();
  };
  return (
    <div className="strip" role="group" aria-label={label} ref={list} onKeyDown={move}>
      {runs.map((run, index) => {
        const took = run.seconds === null ? "" : `, ${duration(run.seconds)}`;
        const text = `${run.outcome}, ${moment(run.began, false)}${took}`;
        // The root keeps short runs visible beside long ones.
        const height = run.seconds === null ? 1 : Math.sqrt(run.seconds / longest);
        return (
          <Link
            key={run.run}
            href={to.run(run.run)}
            className={`bar bar-${run.outcome}`}
            title={text}
            aria-label={text}
            tabIndex={index === runs.length - 1 ? 0 : -1}
          >
            <span style={{ height: `${4 + Math.round(height * 20)}px` }} />
          </Link>
        );
      })}
    </div>
  );
});

/** Charts over time. The drawing (uPlot) comes as a file of its own, once a page needs it. */
import { lazy, Suspense, type ReactNode } from "react";
import { Folded } from "./basics";
import type { PlotProps } from "./plot";

const Plot = lazy(() => import("./plot"));

/**
 * A chart with a summary in words and, below, its numbers as a table: a picture alone says nothing to a screen reader.
 */
export function Chart({
  title,
  summary,
  table,
  ...plot
}: PlotProps & {
  title: string;
  summary: string;
  table?: ReactNode;
}) {
  return (
    <figure className="chart">
      <figcaption>
        <span className="chart-title">{title}</span>
        <span className="legend">
          {plot.series.map((series) => (
            <span key={series.name} className={`key key-${series.colour}`}>
              {series.name}
            </span>
          ))}
          {plot.marks && plot.marks.length > 0 && <span className="key key-failed">failed</span>}
        </span>
      </figcaption>
      <div className="plot" role="img" aria-label={`${title}: ${summary}`}>
        <Suspense fallback={null}>
          <Plot {...plot} />
        </Suspense>
      </div>
      {table && <Folded summary="As a table">{table}</Folded>}
    </figure>
  );
}

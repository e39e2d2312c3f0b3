import { memo, useMemo } from "react";
import type { TimePoint } from "../../api/types";
import { Section } from "../../parts/basics";
import { Chart } from "../../parts/chart";
import { compact, count, duration } from "../../parts/format";
import { useWhileSeen } from "../../parts/seen";
import { Table } from "../../parts/table";
import { speeds } from "./speeds";

export function Throughput({ points: latest }: { points: TimePoint[] }) {
  const [element, points] = useWhileSeen(latest);
  return (
    <div ref={element}>
      <Speeds points={points} />
    </div>
  );
}

/** Seconds between the points of the chart. */
const LEAST = 1;

const Speeds = memo(function Speeds({ points }: { points: TimePoint[] }) {
  const prepared = useMemo(() => {
    const speed = speeds(points, LEAST);
    return {
      speed,
      x: speed.map(({ at }) => at),
      series: [
        { name: "rows read /s", colour: "first" as const, values: speed.map(({ read }) => read) },
        { name: "rows written /s", colour: "second" as const, values: speed.map(({ written }) => written) },
      ],
    };
  }, [points]);
  const last = points[points.length - 1]!;
  const seconds = last.elapsed_ms / 1000;
  const best = Math.max(0, ...prepared.speed.map(({ read }) => read));
  return (
    <Section title="Throughput">
      <Chart
        title="Rows a second"
        x={prepared.x}
        time="elapsed"
        series={prepared.series}
        format={compact}
        summary={`${count(last.rows_read)} rows in ${duration(seconds)}, at most ${count(Math.round(best))} a second`}
        table={
          <Table
            caption="Rows a second over the time of the run"
            rows={prepared.speed}
            rowKey={({ at }) => String(at)}
            columns={[
              { name: "At", isHead: true, isNumber: true, cell: ({ at }) => duration(at) },
              { name: "Rows read /s", isNumber: true, cell: ({ read }) => count(Math.round(read)) },
              { name: "Rows written /s", isNumber: true, cell: ({ written }) => count(Math.round(written)) },
            ]}
          />
        }
      />
    </Section>
  );
});

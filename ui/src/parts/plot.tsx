import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { clock, day } from "./format";
import { useIsDark } from "./theme";

export interface Series {
  name: string;
  colour: "first" | "second" | "third";
  values: (number | null)[];
}

export interface PlotProps {
  /** Seconds since 1970 (`date`) or since the beginning (`elapsed`). */
  x: number[];
  time: "date" | "elapsed";
  series: Series[];
  format: (value: number) => string;
  /** Points by themselves instead of lines. */
  isDots?: boolean;
  /** The places in `x` that are marked with a cross: what failed. */
  marks?: number[];
  onOpen?: (index: number) => void;
}

const HEIGHT = 190;
/** New data is drawn a little later, apart from what else changes with it, so that no frame takes long. */
const PAUSE = 300;

export default function Plot(props: PlotProps) {
  const box = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const isDark = useIsDark();
  const { x, series, time, isDots = false } = props;
  const names = series.map(({ name, colour }) => `${name} ${colour}`).join("\n");

  useEffect(() => {
    const element = box.current!;
    const made = new uPlot(options(element, latest, tip.current!), data(latest.current), element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, time, isDots, isDark]);

  useEffect(() => {
    const timer = window.setTimeout(() => plot.current?.setData(data(latest.current)), PAUSE);
    return () => window.clearTimeout(timer);
  }, [x, series]);

  return (
    <div className="plot-box" ref={box}>
      <div className="plot-tip" ref={tip} hidden />
    </div>
  );
}

const data = ({ x, series }: PlotProps): uPlot.AlignedData => [x, ...series.map(({ values }) => values)];

function options(element: HTMLElement, latest: { current: PlotProps }, tip: HTMLElement): uPlot.Options {
  const { time, isDots, series } = latest.current;
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const font = `11px ${style.fontFamily}`;
  const axis = { stroke: colour("muted"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: {
      x: { time: time === "date", ...(time === "date" ? { range: atLeastAnHour } : {}) },
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        space: 70,
        ...(time === "elapsed" ? { incrs: STEPS, values: (_, ticks) => ticks.map(elapsed) } : { values: DATES }),
      },
      {
        ...axis,
        size: 66,
        space: 34,
        ...(isWhole(latest.current) ? { incrs: WHOLE } : {}),
        values: (_, ticks) => ticks.map((tick) => latest.current.format(tick)),
      },
    ],
    series: [
      {},
      ...series.map((its, index) => ({
        label: its.name,
        stroke: colour(`chart-${its.colour}`),
        width: 1.6,
        ...(isDots
          ? { paths: () => null, points: dots(colour(`chart-${its.colour}`), index === 0 && series.length > 1) }
          : { points: { show: false } }),
      })),
    ],
    hooks: {
      draw: [(plot) => drawMarks(plot, latest.current.marks ?? [], colour("bad"))],
      setCursor: [(plot) => showTip(plot, tip, latest.current)],
      ready: [
        (plot) =>
          plot.over.addEventListener("click", () => {
            if (plot.cursor.idx != null) latest.current.onOpen?.(plot.cursor.idx);
          }),
      ],
    },
  };
}

/** The first of several series has rings, since its values are often those of the next one. */
function dots(colour: string, isRing: boolean): uPlot.Series.Points {
  return {
    show: true,
    size: isRing ? 10 : 6,
    width: isRing ? 1.5 : 0,
    stroke: colour,
    fill: isRing ? "transparent" : colour,
  };
}

const MINUTE = 60;
const HOUR = 3600;
/** The distances of the times on an axis of what a run does. */
const STEPS = [
  ...[1, 2, 5, 10, 20, 30],
  ...[1, 2, 5, 10, 20, 30].map((n) => n * MINUTE),
  ...[1, 2, 4, 8, 12, 24, 48, 96, 240].map((n) => n * HOUR),
];
/** The distances of numbers of rows: they have no fractions. */
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();

const isWhole = ({ series }: PlotProps) =>
  series.every(({ values }) => values.every((value) => value === null || Number.isInteger(value)));

/** Runs within seconds of each other do not fill the chart with seconds. */
const atLeastAnHour = (_: uPlot, min: number | null, max: number | null): [number, number] => {
  const [from, to] = [min ?? 0, max ?? 0];
  const more = Math.max(HOUR - (to - from), (to - from) * 0.04) / 2;
  return [from - more, to + more];
};

/** What the axis says: the day, and below it the time if the points are close together. */
const DATES: uPlot.Axis.DynamicValues = (_, ticks, __, ___, step) =>
  ticks.map((tick) => (step >= 86400 ? day(tick * 1000).slice(5) : clock(tick * 1000, step < 60)));

function elapsed(seconds: number): string {
  if (seconds < 120) return `${+seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${+(seconds / 60).toFixed(1)} min` : `${+(seconds / 3600).toFixed(1)} h`;
}

function drawMarks(plot: uPlot, marks: number[], colour: string): void {
  const { ctx } = plot;
  const size = 4 * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const index of marks) {
    const at = plot.data[0][index];
    if (at === undefined) continue;
    const x = plot.valToPos(at, "x", true);
    const y = plot.valToPos(plot.data[1]?.[index] ?? 0, "y", true);
    ctx.beginPath();
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.moveTo(x + size, y - size);
    ctx.lineTo(x - size, y + size);
    ctx.stroke();
  }
  ctx.restore();
}

function showTip(plot: uPlot, tip: HTMLElement, { x, series, time, format }: PlotProps): void {
  const { idx, left = -1 } = plot.cursor;
  const at = idx == null ? undefined : x[idx];
  tip.hidden = at === undefined || left < 0;
  if (at === undefined || idx == null) return;
  const when = time === "date" ? `${day(at * 1000)} ${clock(at * 1000, false)}` : elapsed(at);
  const values = series.map(({ name, values }) => `${name}: ${values[idx] == null ? "–" : format(values[idx])}`);
  tip.textContent = [when, ...values].join("\n");
  const isRight = left > plot.over.clientWidth / 2;
  tip.style.transform = `translateX(${isRight ? `calc(${left + 66}px - 100% - 12px)` : `${left + 78}px`})`;
}

import type { SequencePart, SequenceStep } from "../../api/types";

export interface Bar {
  key: string;
  part: SequencePart;
  /** From 0 to 1 of the time that is shown. */
  left: number;
  width: number;
  lane: number;
}

export interface Row {
  step: SequenceStep;
  bars: Bar[];
  lanes: number;
}

/** The parts of each step as bars. Those that ran at the same time stand in lanes of their own. */
export function lanes(steps: SequenceStep[], from: number, to: number): Row[] {
  const span = Math.max(1, to - from);
  return steps.map((step) => {
    const whole: SequencePart = { ...step, item: null, attempts: 1, run: null };
    const parts = (step.parts.length > 0 ? step.parts : [whole]).filter((part) => part.began !== null);
    const free: number[] = [];
    const bars = [...parts]
      .sort((a, b) => a.began! - b.began!)
      .map((part, index) => {
        const began = Math.max(from, part.began!);
        const ended = Math.min(to, part.ended ?? to);
        const found = free.findIndex((until) => until <= began);
        const lane = found < 0 ? free.length : found;
        free[lane] = Math.max(ended, began + 1);
        const key = `${part.item ?? ""} ${part.run ?? ""} ${index}`;
        return { key, part, lane, left: (began - from) / span, width: Math.max(0, ended - began) / span };
      });
    return { step, bars, lanes: free.length };
  });
}

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** About five round times, in seconds. */
export function ticks(span: number): number[] {
  const step = STEPS.find((step) => span / step <= 5) ?? Math.ceil(span / 5 / 86400) * 86400;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, index) => index * step).filter(
    (at) => at <= span * 0.95,
  );
}

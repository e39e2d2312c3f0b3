import { Icon, type IconName } from "./icons";
import type { Outcome, SequenceStep } from "../api/types";

type Any = Outcome | SequenceStep["outcome"];

interface Look {
  icon: IconName;
  text: string;
  tone: "ok" | "bad" | "warn" | "live" | "idle";
}

const LOOKS: Record<Any, Look> = {
  running: { icon: "running", text: "running", tone: "live" },
  done: { icon: "done", text: "done", tone: "ok" },
  success: { icon: "done", text: "done", tone: "ok" },
  failed: { icon: "failed", text: "failed", tone: "bad" },
  killed: { icon: "killed", text: "killed", tone: "bad" },
  interrupted: { icon: "interrupted", text: "interrupted", tone: "warn" },
  skipped: { icon: "skipped", text: "skipped", tone: "idle" },
  not_run: { icon: "skipped", text: "not run", tone: "idle" },
  waiting: { icon: "waiting", text: "waiting", tone: "idle" },
};

/** How it ended: colour, sign and word say the same. */
export function OutcomeBadge({ outcome }: { outcome: Any }) {
  const look = LOOKS[outcome] ?? { icon: "info", text: outcome, tone: "idle" };
  return (
    <span className={`outcome tone-${look.tone}`}>
      <Icon name={look.icon} />
      {look.text}
    </span>
  );
}

import { actions, dismiss } from "../api/actions";
import { useStore } from "../api/store";
import type { Action } from "../api/types";
import { Text } from "./basics";
import { failure, isCancelled } from "./failure";
import { baseName } from "./format";
import { Icon } from "./icons";
import { Link, to, usePath } from "./route";

const DOES: Record<Action["what"], [string, string]> = {
  start: ["Starting", "Started"],
  restart: ["Starting anew", "Started anew"],
  resume: ["Resuming", "Resumed"],
  replay: ["Replaying the rejects of", "Replayed the rejects of"],
};

function sentence(action: Action): string {
  const [now, past] = DOES[action.what];
  const file = baseName(action.file);
  if (isCancelled(action)) return `${now} ${file}: cancelled`;
  if (action.state === "failed") return `${now} ${file}: failed`;
  if (action.state === "lost") return `${now} ${file}: the server ended before it was known how this ended`;
  if (action.state === "running" && !(action.run && action.what !== "replay")) return `${now} ${file}…`;
  if (action.state === "running") return `${past} ${file}`;
  return action.what === "replay" ? `${past} ${file}` : `${file}: done`;
}

const iconOf = (action: Action) => {
  if (isCancelled(action)) return "interrupted";
  return action.state === "running" || action.state === "done" ? action.state : "error";
};

/** The page that shows how it goes. */
const pageOf = ({ what, run }: Action) => run && (what === "replay" ? to.rejects(run) : to.run(run));

/** What was asked of the server in this tab, until it is put aside. The page of the run says it better. */
export function Toasts() {
  const path = usePath();
  const all = useStore(actions).filter((action) => pageOf(action) !== path);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {all.map((action) => (
        <div key={action.id} className={`toast is-${isCancelled(action) ? "cancelled" : action.state}`}>
          <Icon name={iconOf(action)} />
          <div className="toast-text">
            <p>{sentence(action)}</p>
            {hasFailed(action) && <Why output={action.output} />}
            {action.run && <Link href={to.run(action.run)}>Show the run</Link>}
          </div>
          <button type="button" className="quiet" onClick={() => dismiss(action.id)} aria-label="Close this message">
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

const hasFailed = (action: Action) => (action.state === "failed" && !isCancelled(action)) || action.state === "lost";

function Why({ output }: { output: string }) {
  const { what, place } = failure(output);
  return (
    <>
      {what && (
        <p className="muted">
          <Text>{what}</Text>
        </p>
      )}
      {place && <p className="muted">at {place}</p>}
    </>
  );
}

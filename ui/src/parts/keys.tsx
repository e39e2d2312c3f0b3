import { useEffect } from "react";
import { useSession } from "../api/session";
import { Dialog } from "./dialog";
import { navigate } from "./route";

const PLACES: Record<string, string> = { o: "/", r: "/runs", j: "/jobs", m: "/machine" };

/** How long the second key may take. */
const PATIENCE = 1_500;

/** Single keys, unless a field has the focus or a dialog is open. */
export function useShortcuts(showHelp: () => void): void {
  useEffect(() => {
    let wentAt = 0;
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const place = Date.now() - wentAt < PATIENCE ? PLACES[event.key] : undefined;
      wentAt = 0;
      if (place) navigate(place);
      else if (event.key === "g") wentAt = Date.now();
      else if (event.key === "?") showHelp();
      else if (event.key === "/") document.querySelector<HTMLElement>("[data-filter]")?.focus();
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

const KEYS: [string[], string][] = [
  [["g", "o"], "Overview"],
  [["g", "r"], "Runs"],
  [["g", "j"], "Jobs"],
  [["g", "m"], "Machine"],
  [["/"], "Go to the filter"],
  [["?"], "Show these shortcuts"],
  [["←", "→"], "Go from run to run in a strip"],
  [["Esc"], "Close a dialog"],
  [["Ctrl", "S"], "Save the text that is edited"],
];

export function ShortcutHelp({ onClose }: { onClose: () => void }) {
  const session = useSession();
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl className="keys">
        {KEYS.map(([keys, does]) => (
          <div key={does}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <p className="muted">
        Millstream {session?.version}.{" "}
        <a href="/licences.txt" target="_blank" rel="noreferrer">
          Licences of the packages in these pages
        </a>
      </p>
      <div className="dialog-buttons">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

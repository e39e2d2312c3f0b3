import type { Lint } from "../../api/types";
import { Text } from "../../parts/basics";
import { Icon } from "../../parts/icons";

/** The mistakes and warnings of a file; `onJump` goes to a line. */
export function LintList({ lints, onJump }: { lints: Lint[]; onJump: (line: number) => void }) {
  return (
    <ul className="lints" aria-label="Mistakes and warnings">
      {lints.map((lint, index) => (
        <li key={index} className={`tone-${lint.severity === "error" ? "bad" : "warn"}`}>
          <Icon name={lint.severity} />
          <div>
            {lint.line > 0 && (
              <button type="button" className="link" onClick={() => onJump(lint.line)}>
                line {lint.line}
              </button>
            )}{" "}
            <span className="visually-hidden">{lint.severity}: </span>
            <Text>{lint.what}</Text>
            {lint.hint && (
              <span className="muted">
                {" "}
                hint: <Text>{lint.hint}</Text>
              </span>
            )}
          </div>
        </li>
      ))}
    </ul>
  );
}

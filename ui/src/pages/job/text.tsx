import { useState } from "react";
import { useMay } from "../../api/session";
import type { Check, FileText, Lint } from "../../api/types";
import { ErrorNote, Text } from "../../parts/basics";
import { Editor } from "./editor";
import { LintList } from "./lints";
import { tokens } from "./yaml";

/** The file with line numbers, and what is wrong at the lines where it is. */
export function JobText({ text, check, isGone }: { text: FileText; check: Check | undefined; isGone: boolean }) {
  const mayEdit = useMay("edit");
  const [isEditing, setEditing] = useState(false);
  if (isEditing) return <Editor text={text} check={check} isGone={isGone} onClose={() => setEditing(false)} />;
  const lints = check?.lints ?? [];
  return (
    <>
      {check?.errors.map((error, index) => (
        <ErrorNote key={index} error={error} />
      ))}
      {lints.length > 0 && <LintList lints={lints} onJump={jump} />}
      {check && check.unknown.length > 0 && (
        <p className="muted">Not checked, since that reads from elsewhere: {check.unknown.join(", ")}</p>
      )}
      <div className="section-head">
        <h2>Text</h2>
        {text.is_redacted && <span className="muted">passwords are shown as ***</span>}
        {mayEdit && !text.is_redacted && (
          <button type="button" disabled={isGone} onClick={() => setEditing(true)}>
            Edit
          </button>
        )}
      </div>
      <Code text={text.text} lints={lints} />
    </>
  );
}

function jump(line: number): void {
  const element = document.getElementById(`line-${line}`);
  element?.scrollIntoView({ block: "center" });
  element?.focus({ preventScroll: true });
}

function Code({ text, lints }: { text: string; lints: Lint[] }) {
  const lines = text.replace(/\n$/, "").split("\n");
  const at = (line: number) => lints.filter((lint) => lint.line === line);
  return (
    <div className="code" role="region" aria-label="Text of the file" tabIndex={0}>
      <ol>
        {lines.map((line, index) => {
          const found = at(index + 1);
          const worst = found.some(({ severity }) => severity === "error")
            ? "error"
            : found.length > 0
              ? "warning"
              : null;
          return (
            <li key={index} id={`line-${index + 1}`} tabIndex={-1} className={worst ? `is-${worst}` : undefined}>
              <span className="line-number" aria-hidden="true">
                {index + 1}
              </span>
              <code>
                {tokens(line).map(({ kind, text }, place) =>
                  kind ? (
                    <span key={place} className={`y-${kind}`}>
                      {text}
                    </span>
                  ) : (
                    text
                  ),
                )}
              </code>
              {found.map((lint, place) => (
                <p key={place} className={`lint-line tone-${lint.severity === "error" ? "bad" : "warn"}`}>
                  <Text>{lint.what}</Text>
                </p>
              ))}
            </li>
          );
        })}
      </ol>
    </div>
  );
}

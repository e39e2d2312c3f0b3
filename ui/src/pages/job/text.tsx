import { useState } from "react";
import { useMay } from "../../api/session";
import type { Check, FileText, Lint } from "../../api/types";
import { ErrorNote, Text } from "../../parts/basics";
import { Icon } from "../../parts/icons";
import { Editor } from "./editor";
import { tokens } from "./yaml";

/** The file with line numbers, and what is wrong at the lines where it is. */
export function JobText({ text, check }: { text: FileText; check: Check | undefined }) {
  const mayEdit = useMay("edit");
  const [isEditing, setEditing] = useState(false);
  if (isEditing) return <Editor text={text} onClose={() => setEditing(false)} />;
  const lints = check?.lints ?? [];
  return (
    <>
      {check?.errors.map((error, index) => (
        <ErrorNote key={index} error={error} />
      ))}
      {lints.length > 0 && <LintList lints={lints} />}
      {check && check.unknown.length > 0 && (
        <p className="muted">Not checked, since that reads from elsewhere: {check.unknown.join(", ")}</p>
      )}
      <div className="section-head">
        <h2>Text</h2>
        {text.is_redacted && <span className="muted">passwords are shown as ***</span>}
        {mayEdit && !text.is_redacted && (
          <button type="button" onClick={() => setEditing(true)}>
            Edit
          </button>
        )}
      </div>
      <Code text={text.text} lints={lints} />
    </>
  );
}

function LintList({ lints }: { lints: Lint[] }) {
  const jump = (line: number) => {
    const element = document.getElementById(`line-${line}`);
    element?.scrollIntoView({ block: "center" });
    element?.focus({ preventScroll: true });
  };
  return (
    <ul className="lints" aria-label="Mistakes and warnings">
      {lints.map((lint, index) => (
        <li key={index} className={`tone-${lint.severity === "error" ? "bad" : "warn"}`}>
          <Icon name={lint.severity} />
          <div>
            {lint.line > 0 && (
              <button type="button" className="link" onClick={() => jump(lint.line)}>
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

import { useEffect, useRef, useState } from "react";
import { api, ApiError, endpoint, errorJson } from "../../api/client";
import { patch, refresh } from "../../api/data";
import type { Check, ErrorJson, FileText } from "../../api/types";
import { ErrorNote } from "../../parts/basics";
import { Link, setGuard, to } from "../../parts/route";
import { LintList } from "./lints";

/** What is edited; without an `etag` the file is new. */
type Edited = Pick<FileText, "file" | "text"> & { etag: string | null };

/** A plain editor. It only saves if the file has not changed on disk meanwhile. */
export function Editor({
  text,
  check,
  isGone = false,
  onClose,
  onSaved = onClose,
}: {
  text: Edited;
  /** What was found in the file as it is saved. */
  check?: Check | undefined;
  /** Whether the file was deleted meanwhile: saving makes it again. */
  isGone?: boolean;
  onClose: () => void;
  onSaved?: () => void;
}) {
  // The version that is edited: the one on the disk may go on.
  const [base, setBase] = useState<Edited>(text);
  const [draft, setDraft] = useState(text.text);
  const [error, setError] = useState<ErrorJson | null>(null);
  const [isOther, setOther] = useState(false);
  const [isSaving, setSaving] = useState(false);
  const isChanged = draft !== base.text;
  const hasMoved = !isGone && (isOther || text.etag !== base.etag);
  const canSave = (isChanged || isGone) && !isSaving && !hasMoved;
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  useEffect(() => {
    setGuard(isChanged ? () => "Your changes are not saved. Leave, and discard them?" : null);
    return () => setGuard(null);
  }, [isChanged]);

  const url = endpoint("/file", { file: base.file });
  const save = async () => {
    setSaving(true);
    setError(null);
    try {
      await api.put(endpoint("/file"), { file: base.file, text: draft, etag: isGone ? null : base.etag });
      const saved = await api.get<FileText>(url);
      patch<FileText>(
        (its) => its === url,
        () => saved,
      );
      // What was known of the file may be that it is not there.
      refresh((its) => its === url || /\/(check|explain|files|schedule)(\?|$)/.test(its));
      setGuard(null);
      onSaved();
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 412) {
        setOther(true);
        refresh((its) => its === url && base.etag !== null);
      } else {
        setError(errorJson(failure));
      }
      setSaving(false);
    }
  };
  const takeTheirs = async () => {
    const theirs = await api.get<FileText>(url);
    patch<FileText>(
      (its) => its === url,
      () => theirs,
    );
    setBase(theirs);
    setDraft(theirs.text);
    setOther(false);
  };
  const close = () => {
    if (isChanged && !window.confirm("Discard your changes?")) return;
    setGuard(null);
    onClose();
  };
  const jump = (line: number) => {
    const element = area.current;
    if (!element) return;
    const lines = draft.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    element.focus();
    element.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    element.scrollTop = (element.scrollHeight / lines.length) * (line - 1) - element.clientHeight / 2;
  };
  const lints = check?.lints ?? [];
  const hasFound = check !== undefined && (lints.length > 0 || check.errors.length > 0);
  return (
    <div className="editor">
      <div className="section-head">
        <h2>{base.etag === null ? "Text of the new file" : "Edit the text"}</h2>
      </div>
      {isGone && <p className="muted">Saving writes the file again.</p>}
      {hasFound && (
        <section aria-label="Mistakes of the saved file">
          <p className="muted">Mistakes of the saved file</p>
          {check.errors.map((its, index) => (
            <ErrorNote key={index} error={its} isOld />
          ))}
          {lints.length > 0 && <LintList lints={lints} onJump={jump} />}
        </section>
      )}
      {hasMoved && base.etag === null && (
        <div className="note note-warning" role="alert">
          <p>
            There is a file with this name already: <Link href={to.job(base.file)}>{base.file}</Link>. Your text is not
            saved.
          </p>
        </div>
      )}
      {hasMoved && base.etag !== null && (
        <div className="note note-warning" role="alert">
          <div>
            <p>The file has changed on disk since you opened it. Your changes are not saved.</p>
            <p>
              <button type="button" onClick={() => void takeTheirs()}>
                Load the new text, and discard mine
              </button>
            </p>
          </div>
        </div>
      )}
      {error && <ErrorNote error={error} />}
      <textarea
        ref={area}
        aria-label={`Text of ${base.file}`}
        value={draft}
        spellCheck={false}
        wrap="off"
        rows={Math.min(40, Math.max(14, draft.split("\n").length + 2))}
        onChange={({ target }) => setDraft(target.value)}
        onKeyDown={(event) => {
          if (event.key === "s" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            if (canSave) void save();
          }
        }}
      />
      <div className="editor-buttons">
        <button type="button" onClick={close}>
          {isChanged ? "Discard" : "Close"}
        </button>
        <button type="button" className="primary" disabled={!canSave} onClick={() => void save()}>
          Save
        </button>
      </div>
    </div>
  );
}

import { useEffect, useRef, useState } from "react";
import { api, ApiError, endpoint, errorJson } from "../../api/client";
import { patch, refresh } from "../../api/data";
import type { ErrorJson, FileText } from "../../api/types";
import { ErrorNote } from "../../parts/basics";
import { setGuard } from "../../parts/route";

/** A plain editor. It only saves if the file has not changed on disk meanwhile. */
export function Editor({ text, onClose }: { text: FileText; onClose: () => void }) {
  // The version that is edited: the one on the disk may go on.
  const [base, setBase] = useState(text);
  const [draft, setDraft] = useState(text.text);
  const [error, setError] = useState<ErrorJson | null>(null);
  const [isOther, setOther] = useState(false);
  const [isSaving, setSaving] = useState(false);
  const isChanged = draft !== base.text;
  const hasMoved = isOther || text.etag !== base.etag;
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  useEffect(() => {
    setGuard(isChanged ? () => "Your changes are not saved. Leave this page?" : null);
    return () => setGuard(null);
  }, [isChanged]);

  const url = endpoint("/file", { file: base.file });
  const save = async () => {
    setSaving(true);
    setError(null);
    try {
      await api.put(endpoint("/file"), { file: base.file, text: draft, etag: base.etag });
      const saved = await api.get<FileText>(url);
      patch<FileText>(
        (its) => its === url,
        () => saved,
      );
      refresh((its) => /\/(check|explain|files|schedule)(\?|$)/.test(its));
      setGuard(null);
      onClose();
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 412) {
        setOther(true);
        refresh((its) => its === url);
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
    if (!isChanged || window.confirm("Discard your changes?")) onClose();
  };
  return (
    <div className="editor">
      <div className="section-head">
        <h2>Edit the text</h2>
        <div className="tools">
          <button type="button" onClick={close}>
            {isChanged ? "Discard" : "Close"}
          </button>
          <button
            type="button"
            className="primary"
            disabled={!isChanged || isSaving || hasMoved}
            onClick={() => void save()}
          >
            Save
          </button>
        </div>
      </div>
      {hasMoved && (
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
            if (isChanged && !hasMoved) void save();
          }
        }}
      />
    </div>
  );
}

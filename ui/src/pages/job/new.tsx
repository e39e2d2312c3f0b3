import { useState, type FormEvent } from "react";
import { useData } from "../../api/data";
import { endpoint } from "../../api/client";
import type { Files } from "../../api/types";
import { PageHead, Text, useTitle } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { Link, navigate, to } from "../../parts/route";
import { Editor } from "./editor";
import { wrongName } from "./names";

/** Asks for the name of a new file, and opens the editor for it. */
export function NewFileDialog({ onClose }: { onClose: () => void }) {
  const files = useData<Files>(endpoint("/files")).data?.files ?? [];
  const [name, setName] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const open = (event: FormEvent) => {
    event.preventDefault();
    const file = name.trim();
    const isThere = files.some((its) => its.file === file);
    const found = isThere ? `There is a file \`${file}\` already.` : wrongName(file);
    setWrong(found);
    if (found) return;
    onClose();
    navigate(to.newFile(file));
  };
  return (
    <Dialog title="New file" onClose={onClose}>
      <form onSubmit={open}>
        <label>
          Name
          <input
            value={name}
            placeholder="load.yaml, or shop/load.yaml"
            onChange={({ target }) => setName(target.value)}
            spellCheck={false}
            required
          />
        </label>
        {wrong && (
          <p className="form-error" role="alert">
            <Text>{wrong}</Text>
          </p>
        )}
        <div className="dialog-buttons">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" className="primary">
            Open the editor
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** The editor of a file that is not there before it is saved. */
export function NewFile({ file }: { file: string }) {
  useTitle(file);
  const wrong = wrongName(file);
  return (
    <>
      <PageHead over={<Link href="/jobs">Jobs</Link>} title={file} />
      {wrong ? (
        <p className="form-error" role="alert">
          <Text>{wrong}</Text>
        </p>
      ) : (
        <Editor
          text={{ file, text: "", etag: null }}
          onClose={() => navigate("/jobs")}
          onSaved={() => navigate(`${to.job(file)}?view=text`, { replace: true })}
        />
      )}
    </>
  );
}

import { useState, type FormEvent } from "react";
import { act } from "../../api/actions";
import { endpoint, errorJson } from "../../api/client";
import type { ErrorJson } from "../../api/types";
import { ErrorNote } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { navigateLater, to } from "../../parts/route";
import { VariableFields } from "./variables";

/** Asks for the variables, starts the job, and goes to its run. */
export function StartDialog({
  file,
  values,
  onClose,
}: {
  file: string;
  values: Record<string, string>;
  onClose: () => void;
}) {
  const [set, setSet] = useState<Record<string, string>>({});
  const [restart, setRestart] = useState(false);
  const [error, setError] = useState<ErrorJson | null>(null);
  const [isBusy, setBusy] = useState(false);
  // Secrets are not known here: their stars must not be set as values.
  const known = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "***"));
  const start = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const go = navigateLater();
      await act(endpoint("/start"), { file, set, restart }, (run) => go(to.run(run)));
      onClose();
    } catch (failure) {
      setError(errorJson(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Start ${file}`} onClose={onClose}>
      <form onSubmit={(event) => void start(event)}>
        <VariableFields file={file} values={known} onChange={setSet} />
        <label className="check">
          <input type="checkbox" checked={restart} onChange={({ target }) => setRestart(target.checked)} />
          <span>
            Start from the beginning. Rows that an unfinished run has loaded stay where they are, and may then be there
            twice.
          </span>
        </label>
        {error && <ErrorNote error={error} />}
        <div className="dialog-buttons">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" className="primary" disabled={isBusy}>
            Start
          </button>
        </div>
      </form>
    </Dialog>
  );
}

import { useState } from "react";
import { act } from "../api/actions";
import { api, endpoint, errorJson } from "../api/client";
import type { ErrorJson, RunSummary } from "../api/types";
import { useMay } from "../api/session";
import { ErrorNote } from "./basics";
import { Confirm, Dialog } from "./dialog";

/** A button that asks the server for something, and shows what it says against it. */
export function ActButton({
  children,
  run,
  isPrimary,
  title,
}: {
  children: string;
  run: () => Promise<unknown>;
  isPrimary?: boolean;
  title?: string;
}) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ErrorJson | null>(null);
  const go = async () => {
    setBusy(true);
    try {
      await run();
    } catch (failure) {
      setError(errorJson(failure));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button
        type="button"
        className={isPrimary ? "primary" : undefined}
        disabled={isBusy}
        title={title}
        onClick={() => void go()}
      >
        {children}
      </button>
      {error && (
        <Dialog title="This did not work" onClose={() => setError(null)}>
          <ErrorNote error={error} />
          <div className="dialog-buttons">
            <button type="button" onClick={() => setError(null)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

export const resume = (run: string, begun?: (run: string) => void) =>
  act(endpoint(`/runs/${encodeURIComponent(run)}/resume`), {}, begun);

/** Only for those who may: for others there is nothing. */
export function ResumeButton({ run, isPrimary }: { run: RunSummary; isPrimary?: boolean }) {
  if (!useMay("operate") || !run.is_unfinished) return null;
  return (
    <ActButton
      run={() => resume(run.run)}
      isPrimary={isPrimary}
      title="Continue where it stopped: what is loaded stays loaded"
    >
      Resume
    </ActButton>
  );
}

export function CancelButton({ run }: { run: RunSummary }) {
  const [isAsking, setAsking] = useState(false);
  const [hasAsked, setHasAsked] = useState(false);
  const cancel = async () => {
    setAsking(false);
    setHasAsked(true);
    await api.post(endpoint(`/runs/${encodeURIComponent(run.run)}/cancel`)).catch((error: unknown) => {
      setHasAsked(false);
      throw error;
    });
  };
  const [error, setError] = useState<ErrorJson | null>(null);
  return (
    <>
      <button type="button" disabled={hasAsked} onClick={() => setAsking(true)}>
        {hasAsked ? "Cancelling…" : "Cancel"}
      </button>
      {isAsking && (
        <Confirm
          title="Cancel this run?"
          yes="Cancel the run"
          onYes={() => void cancel().catch((failure: unknown) => setError(errorJson(failure)))}
          onClose={() => setAsking(false)}
        >
          <p>
            It stops at the next safe point, within 20 seconds. You can resume it later. Rows that a table has taken stay;
            files appear only once a run is done.
          </p>
        </Confirm>
      )}
      {error && (
        <Dialog title="This did not work" onClose={() => setError(null)}>
          <ErrorNote error={error} />
          <div className="dialog-buttons">
            <button type="button" onClick={() => setError(null)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

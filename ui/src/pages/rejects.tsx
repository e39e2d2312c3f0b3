import { useState } from "react";
import { act, actions } from "../api/actions";
import { endpoint, errorJson } from "../api/client";
import { refresh, useData } from "../api/data";
import { useMay } from "../api/session";
import { useStore } from "../api/store";
import type { ErrorJson, Rejects, RunDetail } from "../api/types";
import { Empty, ErrorNote, PageHead, Ready, Section, Text, useTitle } from "../parts/basics";
import { Dialog } from "../parts/dialog";
import { isCancelled } from "../parts/failure";
import { count, plural } from "../parts/format";
import { Link, to } from "../parts/route";
import { VariableFields } from "./job/variables";

export function RejectsPage({ run }: { run: string }) {
  useTitle("Rejects");
  const path = `/runs/${encodeURIComponent(run)}`;
  const rejects = useData<Rejects>(endpoint(`${path}/rejects`));
  const detail = useData<RunDetail>(endpoint(path)).data;
  const [isAsking, setAsking] = useState(false);
  const mayReplay = useMay("operate") && rejects.data?.can_be_replayed && detail?.can.replay !== false;
  return (
    <>
      <PageHead
        over={<Link href={to.run(run)}>{detail ? `Run of ${detail.run.file ?? detail.run.job}` : "Run"}</Link>}
        title="Rejects"
        tools={
          mayReplay && (
            <button type="button" className="primary" onClick={() => setAsking(true)}>
              Replay…
            </button>
          )
        }
      />
      <Ready of={rejects}>{(data) => <Reasons data={data} />}</Ready>
      <Replays run={run} />
      {isAsking && (
        <ReplayDialog
          run={run}
          file={detail?.run.file ?? null}
          waiting={rejects.data?.waiting ?? 0}
          onClose={() => {
            setAsking(false);
            refresh((url) => url.startsWith(endpoint(path)));
          }}
        />
      )}
    </>
  );
}

function Reasons({ data }: { data: Rejects }) {
  if (data.reasons.length === 0 && data.waiting === 0 && data.replayed === 0) {
    return <Empty>No rejects of this run were kept.</Empty>;
  }
  return (
    <>
      <p className="lead">
        {plural(data.waiting, "record")} rejected
        {data.replayed > 0 && `; ${count(data.replayed)} more were loaded since`}.
        {!data.can_be_replayed && data.waiting > 0 && " None of them can be replayed: their text was not kept."}
      </p>
      {data.reasons.map((reason) => {
        const column = reason.column ? `, column ${reason.column}` : "";
        const title = `${count(reason.count)} × ${reason.kind}, by ${reason.step}${column}`;
        return (
          <Section key={title} title={title}>
            <ul className="rejects">
              {reason.examples.map((example, index) => (
                <li key={index}>
                  <p>
                    <Text>{example.what}</Text>
                  </p>
                  {example.record !== null && (
                    <pre tabIndex={0} aria-label="Record">
                      {example.record}
                    </pre>
                  )}
                </li>
              ))}
            </ul>
            {reason.count > reason.examples.length && (
              <p className="muted">and {count(reason.count - reason.examples.length)} more</p>
            )}
          </Section>
        );
      })}
    </>
  );
}

/** The replays that were asked for in this tab, with what they printed. */
function Replays({ run }: { run: string }) {
  const all = useStore(actions).filter((action) => action.what === "replay" && action.run === run);
  if (all.length === 0) return null;
  return (
    <Section title="Replays">
      {all.map((action) => (
        <div key={action.id} className={`note ${action.state === "failed" ? "note-error" : "note-info"}`} role="status">
          <div>
            <p>
              {action.state === "running"
                ? "The replay is running…"
                : `The replay has ended: ${isCancelled(action) ? "cancelled" : action.state}`}
            </p>
            {action.output && <pre>{action.output.trimEnd()}</pre>}
          </div>
        </div>
      ))}
    </Section>
  );
}

function ReplayDialog({
  run,
  file,
  waiting,
  onClose,
}: {
  run: string;
  file: string | null;
  waiting: number;
  onClose: () => void;
}) {
  const [set, setSet] = useState<Record<string, string>>({});
  const [error, setError] = useState<ErrorJson | null>(null);
  const [isBusy, setBusy] = useState(false);
  const go = async () => {
    setBusy(true);
    try {
      await act(endpoint(`/runs/${encodeURIComponent(run)}/replay`), { set });
      onClose();
    } catch (failure) {
      setError(errorJson(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Replay the rejects" onClose={onClose}>
      <p>
        {plural(waiting, "record")}, as read by this run, {waiting === 1 ? "is" : "are"} loaded again with the job as it
        is now. A mended data file is not read again. Records that fail again stay rejected.
      </p>
      {file && <VariableFields file={file} values={{}} onChange={setSet} />}
      {error && <ErrorNote error={error} />}
      <div className="dialog-buttons">
        <button type="button" onClick={onClose}>
          Back
        </button>
        <button type="button" className="primary" disabled={isBusy} onClick={() => void go()}>
          Replay
        </button>
      </div>
    </Dialog>
  );
}

import { useState, type ReactNode } from "react";
import { ApiError, endpoint } from "../../api/client";
import { useData } from "../../api/data";
import { useMay } from "../../api/session";
import type { Check, Explain, Files, FileText, Overview } from "../../api/types";
import { PageHead, Ready, useTitle } from "../../parts/basics";
import { Ago } from "../../parts/clock";
import { baseName } from "../../parts/format";
import { Icon } from "../../parts/icons";
import { OutcomeBadge } from "../../parts/outcome";
import { Link, to, useQuery } from "../../parts/route";
import { Strip } from "../../parts/strip";
import { Columns } from "./columns";
import { isUnset } from "./names";
import { JobRuns } from "./runs";
import { JobSchedule } from "./schedule";
import { StartDialog } from "./start";
import { JobText } from "./text";
import { JobGraphView } from "./view";

const VIEWS = ["graph", "text", "data", "schedule", "runs"] as const;
type View = (typeof VIEWS)[number];
const NAMES: Record<View, string> = {
  graph: "Graph",
  text: "Text",
  data: "Columns and rows",
  schedule: "Schedule",
  runs: "Runs",
};

export function JobPage({ file }: { file: string }) {
  useTitle(file);
  const text = useData<FileText>(endpoint("/file", { file }));
  const check = useData<Check>(endpoint("/check", { file, offline: true })).data;
  const explain = useData<Explain>(endpoint("/explain", { file }));
  const last = useData<Files>(endpoint("/files")).data?.files.find((its) => its.file === file)?.last;
  const strip = useData<Overview>(endpoint("/overview")).data?.strips.find((its) => its.file === file);
  const chosen = useQuery().get("view") as View | null;
  const [isStarting, setStarting] = useState(false);
  const mayOperate = useMay("operate");

  const isGone = text.data !== undefined && text.error instanceof ApiError && text.error.status === 404;
  const kind = text.data?.kind;
  const isRunnable = kind === "job" || kind === "sequence";
  const views = VIEWS.filter(
    (view) =>
      view === "text" ||
      (isRunnable && (view === "data" ? kind === "job" : view === "schedule" ? kind === "sequence" : true)),
  );
  const view: View = chosen && views.includes(chosen) ? chosen : views[0]!;
  const mistakes = check?.lints.filter((lint) => lint.severity === "error" && !isUnset(lint)) ?? [];
  const wrong = (check?.errors.length ?? 0) + mistakes.length;
  const canStart = !check || check.can_run || wrong === 0;
  const warnings = check?.lints.filter(({ severity }) => severity === "warning").length ?? 0;

  return (
    <>
      <PageHead
        over={
          <>
            <Link href="/jobs">Jobs</Link>
            {file.includes("/") && <> · {file.slice(0, file.lastIndexOf("/"))}/</>}
          </>
        }
        title={baseName(file)}
        tools={
          mayOperate &&
          isRunnable && (
            <button
              type="button"
              className="primary"
              onClick={() => setStarting(true)}
              disabled={!canStart || isGone}
              title={!isGone && !canStart ? "The file has mistakes: see Text" : undefined}
            >
              Start…
            </button>
          )
        }
      >
        <div className="row">
          {kind && <span className="badge">{kind}</span>}
          {last && (
            <Link href={to.run(last.run)} className="last">
              <OutcomeBadge outcome={last.outcome} />{" "}
              <span className="muted">
                <Ago at={last.ended ?? last.began} />
              </span>
            </Link>
          )}
          {wrong > 0 && <Found view="text" tone="bad">{`${wrong} ${wrong === 1 ? "mistake" : "mistakes"}`}</Found>}
          {warnings > 0 && (
            <Found view="text" tone="warn">{`${warnings} ${warnings === 1 ? "warning" : "warnings"}`}</Found>
          )}
        </div>
        {strip && <Strip runs={strip.runs} label={`Last runs of ${file}`} />}
      </PageHead>
      <nav className="views" aria-label="Views of the file">
        {views.map((its) => (
          <Link key={its} href={`${to.job(file)}?view=${its}`} aria-current={its === view ? "page" : undefined}>
            {NAMES[its]}
          </Link>
        ))}
      </nav>
      {isGone && (
        <div className="note note-warning" role="alert">
          <Icon name="warning" />
          <p>This file is not there any more. What is shown is how it was.</p>
        </div>
      )}
      <Ready of={text}>
        {(data) => {
          if (view === "text") return <JobText text={data} check={check} isGone={isGone} />;
          if (view === "runs") return <JobRuns file={file} />;
          if (view === "schedule") return <JobSchedule file={file} />;
          return (
            <Ready of={explain}>
              {(explained) =>
                view === "data" ? (
                  <Columns file={file} explain={explained} />
                ) : (
                  <JobGraphView file={file} explain={explained} />
                )
              }
            </Ready>
          );
        }}
      </Ready>
      {isStarting && <StartDialog file={file} values={{}} onClose={() => setStarting(false)} />}
    </>
  );
}

function Found({ view, tone, children }: { view: View; tone: "bad" | "warn"; children: ReactNode }) {
  return (
    <Link href={`?view=${view}`} className={`badge tone-${tone}`}>
      {children}
    </Link>
  );
}

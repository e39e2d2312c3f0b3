import { useEffect, useMemo } from "react";
import { useData } from "../../api/data";
import { endpoint } from "../../api/client";
import { useStore } from "../../api/store";
import { watch } from "../../api/stream";
import { liveRun } from "../../api/sync";
import type { RunDetail, SequenceStep, StepSnapshot, TimePoint } from "../../api/types";
import { JobGraph, SequenceGraph } from "../../graph";
import { isSequenceSteps } from "../../graph/model";
import { ErrorNote, Ready, Section, Text, useTitle } from "../../parts/basics";
import { errorJson } from "../../api/client";
import { navigate, to, useQuery } from "../../parts/route";
import { Beside } from "./beside";
import { Checks, RejectsNote, Results, Skipped } from "./extras";
import { RunHead, RunFacts } from "./head";
import { LogView, StepOutputs } from "./log";
import { StepTable } from "./steps";
import { Throughput } from "./throughput";
import { Timeline } from "./timeline";
import { Workers } from "./workers";

export function RunPage({ run }: { run: string }) {
  const beside = useQuery().get("beside");
  const detail = useData<RunDetail>(endpoint(`/runs/${encodeURIComponent(run)}`, { beside }), { keep: true });
  useTitle(detail.data ? `${detail.data.run.file ?? detail.data.run.job}, ${detail.data.run.outcome}` : "Run");
  return <Ready of={detail}>{(data) => <Content detail={data} error={detail.error} />}</Ready>;
}

/** Of a live run what the stream said last, else what was there when the page was asked for. */
function useLive(detail: RunDetail) {
  const { run, outcome } = detail.run;
  const isRunning = outcome === "running";
  useEffect(() => {
    if (!isRunning) return;
    watch(run);
    return () => watch(null);
  }, [run, isRunning]);
  const streamed = useStore(liveRun, (now) => (now?.run === run ? now : null));
  // Of a run that was killed, it says how the run went last.
  const live = isRunning ? (streamed?.live ?? detail.live) : detail.live;
  return {
    live,
    previous: isRunning ? (streamed?.previous ?? null) : null,
    streamedSteps: isRunning ? streamed?.steps : null,
  };
}

function Content({ detail, error }: { detail: RunDetail; error: unknown }) {
  const { report } = detail;
  const { live, previous, streamedSteps } = useLive(detail);
  const sequenceSteps = streamedSteps ?? detail.steps ?? sequenceStepsOf(report?.steps);
  const steps = live?.steps ?? stepsOf(report?.steps);
  // Each live report brings its own copy of the entries, which rarely differ.
  const allEntries = live?.entries ?? report?.entries;
  const entriesKey = useMemo(() => JSON.stringify(allEntries ?? []), [allEntries]);
  const entries = useMemo(() => allEntries ?? [], [entriesKey]);
  const points = live?.points ?? report?.points;
  const verdict = live?.verdict ?? report?.verdict;
  const cluster = live?.cluster ?? report?.cluster;
  const runOfStep = useMemo(() => {
    const runs = new Map<string, string>();
    for (const step of sequenceSteps ?? []) {
      const first = step.parts.find((part) => part.run)?.run;
      if (first) runs.set(step.name, first);
    }
    return runs;
  }, [sequenceSteps]);
  // Of a run that failed, what it printed says where and why: it comes first.
  const hasFailed = detail.run.outcome === "failed";
  const log = detail.has_log && <LogView run={detail.run.run} isRunning={detail.run.outcome === "running"} />;
  return (
    <div className="run">
      <RunHead detail={detail} live={live} />
      {Boolean(error) && <ErrorNote error={errorJson(error)} />}
      <RunFacts detail={detail} live={live} />
      {verdict && (
        <p className="verdict">
          <span className="muted">Limited by</span> <Text>{verdict.sentence.replace(/^limited by:? /, "")}</Text>
        </p>
      )}
      {hasFailed && log}
      {detail.run.rows_rejected > 0 && <RejectsNote run={detail.run} />}
      {entries.length > 0 && (
        <Section title="Graph">
          <JobGraph entries={entries} steps={steps} live={live} previous={previous} />
          {steps && <Legend />}
        </Section>
      )}
      {sequenceSteps && sequenceSteps.length > 0 && (
        <>
          <Section title="Steps">
            <SequenceGraph
              steps={sequenceSteps}
              onOpen={(step) => {
                const part = runOfStep.get(step);
                if (part) navigate(to.run(part));
              }}
            />
          </Section>
          <Timeline steps={sequenceSteps} run={detail.run} runs={detail.step_runs} />
        </>
      )}
      {points && isLongEnough(points) && <Throughput points={points} />}
      {steps && steps.length > 0 && <StepTable steps={steps} isLive={live !== null} />}
      {cluster && <Workers cluster={cluster} isLive={live !== null && detail.run.outcome === "running"} />}
      <Beside detail={detail} />
      {report?.checks && report.checks.length > 0 && <Checks checks={report.checks} />}
      {report && <Skipped report={report} />}
      {report && <Results report={report} />}
      {sequenceSteps && <StepOutputs run={detail.run} steps={sequenceSteps} />}
      {!hasFailed && log}
    </div>
  );
}

function Legend() {
  return (
    <p className="work-legend muted">
      <span className="key key-busy">busy</span>
      <span className="key key-in">waiting for rows</span>
      <span className="key key-out">waiting for the next step</span>
    </p>
  );
}

/** A chart of a moment says nothing. */
const isLongEnough = (points: TimePoint[]) => points.length > 1 && points[points.length - 1]!.elapsed_ms >= 2000;

type Steps = StepSnapshot[] | SequenceStep[] | undefined;

const stepsOf = (steps: Steps): StepSnapshot[] | null => (!steps || isSequenceSteps(steps) ? null : steps);
const sequenceStepsOf = (steps: Steps): SequenceStep[] | null => (steps && isSequenceSteps(steps) ? steps : null);

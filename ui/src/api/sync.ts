/** Brings events into what is shown: small changes at once, the rest by asking again. */
import { endpoint } from "./client";
import { patch, refresh } from "./data";
import { createStore } from "./store";
import { follow } from "./stream";
import { noteAction } from "./actions";
import type { Action, EventName, Live, Overview, RunDetail, RunList, RunSummary, SequenceStep } from "./types";

export interface LiveRun {
  run: string;
  live: Live | null;
  /** What `live` was before: rates are differences. */
  previous: Live | null;
  steps: SequenceStep[] | null;
}

/** How the run goes that is watched. */
export const liveRun = createStore<LiveRun | null>(null);

/** A sentence for screen readers when a run has ended. */
export const announcement = createStore("");

const under = (path: string) => (url: string) =>
  url === endpoint(path) || url.startsWith(`${endpoint(path)}?`) || url.startsWith(`${endpoint(path)}/`);

/** What is shown, but for previews: these read the sources, so they are only asked for by hand. */
const all = (url: string) => !under("/preview")(url);

const isList = (url: string) => url === endpoint("/runs") || url.startsWith(`${endpoint("/runs")}?`);
const isDetail = (run: string) => {
  const address = endpoint(`/runs/${encodeURIComponent(run)}`);
  return (url: string) => url === address || url.startsWith(`${address}?`);
};

let isFirst = true;

export function begin(signal: AbortSignal): void {
  isFirst = true;
  void follow(onEvent, signal);
}

function onEvent(name: EventName, data: unknown): void {
  switch (name) {
    case "hello":
      // What was shown while the stream was away may be old.
      if (!isFirst) refresh(all);
      isFirst = false;
      break;
    case "resync":
      refresh(all);
      break;
    case "runs":
      onRuns((data as { runs: RunSummary[] }).runs);
      break;
    case "live":
      onLive(data as { run: string; live: Live | null; steps: SequenceStep[] | null });
      break;
    case "schedule":
      refresh(under("/schedule"));
      refresh(under("/overview"));
      break;
    case "files":
      onFiles((data as { files: string[] }).files);
      break;
    case "action":
      onAction(data as Action);
      break;
    case "notice":
      onNotice(data as Overview["notices"][0]);
      break;
  }
}

/** The outcomes that were last heard of, to see what is new or has ended. */
const outcomes = new Map<string, RunSummary["outcome"]>();

function onRuns(runs: RunSummary[]): void {
  const changed = runs.filter((run) => outcomes.get(run.run) !== run.outcome);
  for (const run of changed) {
    outcomes.set(run.run, run.outcome);
    if (run.outcome !== "running") announcement.set(`${run.file ?? run.job}: ${run.outcome}`);
  }
  const news = new Map(runs.map((run) => [run.run, run]));
  const renew = (old: RunSummary[]) =>
    old.some(({ run }) => news.has(run)) ? old.map((run) => news.get(run.run) ?? run) : old;
  patch<Overview>(under("/overview"), (data) => {
    const running = renew(data.running);
    return running === data.running ? data : { ...data, running };
  });
  patch<RunList>(isList, (data) => {
    const list = renew(data.runs);
    return list === data.runs ? data : { ...data, runs: list };
  });
  for (const run of runs) {
    patch<RunDetail>(isDetail(run.run), (data) => ({ ...data, run }));
    if (run.of_step) {
      patch<RunDetail>(isDetail(run.of_step.sequence), (data) => ({ ...data, step_runs: renew(data.step_runs) }));
    }
  }
  if (changed.length === 0) return;
  for (const path of ["/overview", "/history", "/files", "/machine"]) refresh(under(path));
  refresh(isList);
  for (const run of changed) {
    refresh(isDetail(run.run));
    if (run.of_step) refresh(isDetail(run.of_step.sequence));
  }
}

function onLive({ run, live, steps }: { run: string; live: Live | null; steps: SequenceStep[] | null }): void {
  liveRun.update((old) => {
    if (old?.run !== run) return { run, live, steps, previous: null };
    // The same moment again says nothing of how fast it goes.
    const isSame = live !== null && old.live?.elapsed_ms === live.elapsed_ms;
    return { run, live, steps, previous: isSame ? old.previous : old.live };
  });
}

function onFiles(files: string[]): void {
  refresh(under("/files"));
  const names = new Set(files);
  refresh((url) => {
    const { pathname, searchParams } = new URL(url, location.origin);
    return /\/(file|check|explain)$/.test(pathname) && names.has(searchParams.get("file") ?? "");
  });
}

function onAction(action: Action): void {
  noteAction(action);
  refresh(under("/actions"));
  // A replay changes the rejects of a run that is long over.
  if (action.run && action.state !== "running") refresh(under(`/runs/${encodeURIComponent(action.run)}`));
}

function onNotice(notice: Overview["notices"][0]): void {
  patch<Overview>(under("/overview"), (data) => ({ ...data, notices: [notice, ...data.notices] }));
}

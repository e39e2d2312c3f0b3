/**
 * What the server's API takes and gives. Times are in milliseconds since 1970 unless a name says otherwise, durations
 * in seconds. Names of files begin at the folder that is served; `job` is a path from the root.
 *
 * Every request but those to `/api/v1/session` (POST) and `/healthz` has an `Authorization: Bearer TOKEN` header.
 * An answer that is no success is a `Problem`.
 */

/** `look` sees; `operate` starts, cancels, resumes and replays; `edit` also writes files. */
export type Role = "look" | "operate" | "edit";

/** GET /api/v1/session; POST of `{token}` or `{user, password}` gives it with a `token`. DELETE ends it. */
export interface Session {
  token?: string;
  user: string;
  role: Role;
  /** When the session ends. */
  expires: number;
  /** The version of Millstream. */
  version: string;
  /** The folder that is served, and the host. */
  folder: string;
  host: string;
  /** The state folder. */
  state: string;
}

/** What is wrong. `kind`: `job`, `refused`, `io`, `internal`, ... */
export interface Problem {
  error: ErrorJson;
}

export interface ErrorJson {
  kind: string;
  what: string;
  cause: string | null;
  hint: string | null;
  text: string | null;
  step?: string | null;
  uri?: string | null;
  member?: string | null;
  line?: number | null;
  byte?: number | null;
  column?: string | null;
}

export interface Lint {
  severity: "error" | "warning";
  path: string;
  /** From 1; 0 if it is about the file as a whole. */
  line: number;
  column: number;
  length: number;
  what: string;
  text: string;
  source_line: string;
  hint: string | null;
}

export type Outcome = "running" | "done" | "failed" | "interrupted" | "killed" | "skipped";
export type RunKind = "job" | "sequence";

/** A run, as lists have it. */
export interface RunSummary {
  run: string;
  /** The first run of its resume chain. */
  logical: string;
  kind: RunKind;
  /** The path of the job or sequence from the root. */
  job: string;
  /** The same from the folder, if it is in it. */
  file: string | null;
  /** `NAME=VALUE`, a line each; secrets are `***`. */
  variables: string;
  process: number;
  began: number;
  ended: number | null;
  seconds: number | null;
  outcome: Outcome;
  message: string | null;
  rows_read: number;
  rows_written: number;
  rows_rejected: number;
  units: number;
  /** Rows or messages a second, while it runs. */
  rate: number | null;
  /** How far it is, from 0 to 1, while it runs, if that is known. */
  share: number | null;
  /** If it is a step of a sequence: the first run of the sequence, and the name of the step. */
  of_step: { sequence: string; step: string } | null;
  /** Whether it left something that can be resumed: it is the last of its chain, and nothing later is done. */
  is_unfinished: boolean;
}

/** GET /api/v1/runs?job=&file=&kind=&outcome=&q=&from=&to=&steps=&unfinished=&before=&limit= (newest first). */
export interface RunList {
  runs: RunSummary[];
  /** What `before` says to get the next ones; none if these are the last. */
  next: string | null;
}

/** A job that waits for its hours. */
export interface WaitingRun {
  job: string;
  file: string | null;
  of_step: { sequence: string; step: string } | null;
  hours: string;
  until: string;
  has_begun: boolean;
  since: number;
}

export type StepKind = "list" | "fetch" | "decode" | "parse" | "transform" | "load";

/** The counters of a step, as reports have them. Several steps may be of one entry (`name`). */
export interface StepSnapshot {
  name: string;
  kind: StepKind;
  detail: string;
  units: number;
  units_total: number;
  rows: number;
  rejected: number;
  bytes: number;
  bytes_total: number;
  busy: number;
  waiting: number;
  waiting_input: number;
  waiting_output: number;
  waiting_scratch: number;
  spilled_bytes: number;
}

/** An entry of a job: a node of its graph. A sink may have the name of a source. */
export interface JobEntry {
  entry: string;
  kind: "source" | "transform" | "sink";
  reads: string[];
}

export interface TimePoint {
  elapsed_ms: number;
  rows_read: number;
  rows_written: number;
  bytes_read: number;
}

/** How a live run goes: about once a second a new one. */
export interface Live {
  /** When this was so. */
  updated: number;
  phase: "reading" | "finishing" | "committing";
  elapsed_ms: number;
  entries: JobEntry[];
  steps: StepSnapshot[];
  /** Throughput so far, at most 120 points. */
  points: TimePoint[];
  /** Rows a second over the last seconds. */
  rate: number;
  bytes_read: number;
  bytes_expected: number;
  bytes_written: number;
  units: number;
  units_expected: number;
  /** Seconds until its end, as far as that is known. */
  eta: number | null;
  verdict: { limit: string; sentence: string } | null;
  memory_used: number;
  memory_limit: number;
  resident: number;
  queue: { lag: number | null; oldest_seconds: number | null; epochs: number } | null;
  /** What workers do, if the run has some. */
  cluster?: ClusterReport;
}

/** What the workers of a cluster do for a run. */
export interface ClusterReport {
  /** How many there are now. */
  now: number;
  bundles: number;
  reading: number;
  /** Those that are done, and those that were listed. */
  units: [number, number];
  bytes: [number, number];
  workers: WorkerReport[];
}

export interface WorkerReport {
  worker: string;
  cores: number;
  bundles: number;
  units: number;
  rows: number;
  bytes: number;
  seconds: number;
  cpu_seconds: number;
  peak_rss_bytes: number;
  /** Why it was lost, if it was. */
  lost?: string;
}

/** A step of a sequence. */
export interface SequenceStep {
  name: string;
  kind: string;
  what: string;
  needs: string[];
  when: string | null;
  outcome: "waiting" | "running" | "success" | "failed" | "skipped" | "not_run";
  began: number | null;
  ended: number | null;
  message: string | null;
  results: Record<string, unknown>;
  parts: SequencePart[];
}

export interface SequencePart {
  item: string | null;
  attempts: number;
  outcome: SequenceStep["outcome"];
  began: number | null;
  ended: number | null;
  run: string | null;
  message: string | null;
}

/** The report of a run: what it has, and more that is shown as it is. */
export interface Report {
  rows_read?: number;
  rows_written?: number;
  rows_rejected?: number;
  bytes_read?: number;
  bytes_written?: number;
  seconds?: number;
  peak_rss_bytes?: number;
  memory_bytes?: number;
  cores?: number;
  cpu_seconds?: number;
  units_skipped?: number;
  skipped?: { source: string; uri: string | null; what: string }[];
  results?: { sink: string; target: string; summary: string }[];
  checks?: {
    entry: string;
    check: string;
    severity: string;
    holds: boolean;
    rows: number;
    broken: number;
    what: string;
    examples?: string[];
  }[];
  entries?: JobEntry[];
  steps?: StepSnapshot[] | SequenceStep[];
  points?: TimePoint[];
  verdict?: { limit: string; sentence: string };
  hooks?: { hook: string; error: string | null }[];
  cluster?: ClusterReport;
}

/** A number of a run beside that of the run before it, in words. */
export interface Compared {
  what: string;
  now: string;
  before: string;
  change: string;
  expected: string;
}

/** GET /api/v1/runs/{run}?beside=RUN: `beside` compares with another run than the one before. */
export interface RunDetail {
  run: RunSummary;
  /** Why it has failed; empty if only the message of the run is known. */
  errors: ErrorJson[];
  report: Report | null;
  /** The last run of the same job before it that is done, or the one that was asked for. */
  before: { run: RunSummary; report: Report | null } | null;
  compared: Compared[];
  /** Of a live job. */
  live: Live | null;
  /** Of a sequence. */
  steps: SequenceStep[] | null;
  /** The runs of the steps of a sequence. */
  step_runs: RunSummary[];
  /** All runs of its resume chain, the first one first. */
  chain: RunSummary[];
  /** What the role allows and the state of the run makes sense of. */
  can: { cancel: boolean; resume: boolean; start: boolean; replay: boolean };
  /** Whether GET /api/v1/runs/{run}/log has something. Runs of a terminal have printed there. */
  has_log: boolean;
}

/** GET /api/v1/runs/{run}/log?from=BYTE: what it has printed. */
export interface Log {
  text: string;
  /** The byte at which the next request begins. */
  next: number;
  /** Whether the beginning was left out. */
  is_cut: boolean;
}

/** GET /api/v1/runs/{run}/rejects. */
export interface Rejects {
  run: string;
  waiting: number;
  replayed: number;
  reasons: {
    step: string;
    kind: string;
    column: string | null;
    count: number;
    examples: { what: string; record: string | null }[];
  }[];
  /** Whether any of them can be loaded again. */
  can_be_replayed: boolean;
}

/**
 * What somebody asked the server to do. POST /api/v1/start `{file, set, restart}`, POST /api/v1/runs/{run}/resume,
 * POST /api/v1/runs/{run}/replay `{set}` give one. POST /api/v1/runs/{run}/cancel gives `{}`.
 */
export interface Action {
  id: string;
  what: "start" | "resume" | "restart" | "replay";
  file: string;
  /** The run that it has begun, or whose rejects it replays, once that is known. */
  run: string | null;
  user: string;
  began: number;
  ended: number | null;
  /** `running`; `done`; `failed`; `lost` if the server ended before it was known how it ended. */
  state: "running" | "done" | "failed" | "lost";
  exit_code: number | null;
  /** The end of what it has printed. */
  output: string;
}

/** GET /api/v1/actions (the last 50), GET /api/v1/actions/{id}. */
export interface Actions {
  actions: Action[];
}

export interface Occurrence {
  planned: number;
  state: "queued" | "started" | "ended" | "skipped";
  cause: string | null;
  why: string | null;
  run: string | null;
  outcome: Outcome | null;
  message: string | null;
}

/** A sequence with a schedule. */
export interface Scheduled {
  sequence: string;
  file: string | null;
  timezone: string;
  /** The next times, ISO 8601 with the offset of the time zone. */
  next: string[];
  /** What starts it beside the time, in words. */
  triggers: string[];
  running: Occurrence | null;
  queued: Occurrence | null;
  last: Occurrence | null;
  missed: { first: number; last: number; count: number; why: string } | null;
}

/** GET /api/v1/schedule?times=N. */
export interface Schedule {
  scheduler: { state: "here" | "elsewhere" | "stopped"; process: string | null };
  sequences: Scheduled[];
  lints: Lint[];
}

/** A strip of the last runs of a job, the oldest first. */
export interface Strip {
  job: string;
  file: string | null;
  kind: RunKind;
  runs: { run: string; outcome: Outcome; began: number; seconds: number | null }[];
}

/** GET /api/v1/overview. */
export interface Overview {
  running: RunSummary[];
  waiting: WaitingRun[];
  /** What failed or was killed, and nobody has done since. */
  unfinished: RunSummary[];
  schedule: Schedule;
  strips: Strip[];
  /** What the scheduler and the server have noticed, the last first. */
  notices: { when: number; level: "info" | "warning" | "error"; text: string }[];
}

/** GET /api/v1/history?file=&job=&days=N: the runs of one job, or of all, the oldest first; at most 2,000. */
export interface History {
  runs: {
    run: string;
    job: string;
    file: string | null;
    kind: RunKind;
    began: number;
    seconds: number | null;
    outcome: Outcome;
    rows_read: number;
    rows_written: number;
    rows_rejected: number;
    bytes_read: number | null;
  }[];
  /** All jobs with runs, for a filter. */
  jobs: { job: string; file: string | null; kind: RunKind; runs: number }[];
  /** Whether there are more than these. */
  is_cut: boolean;
}

export type FileKind = "job" | "sequence" | "test" | "other";

/** GET /api/v1/files: the YAML files in the folder and below. */
export interface Files {
  files: { file: string; kind: FileKind; modified: number; size: number; last: RunSummary | null }[];
  is_cut: boolean;
}

/**
 * GET /api/v1/file?file=NAME. PUT /api/v1/file of `{file, text, etag}` writes it (role `edit`), and gives its new
 * `etag`: 412 if it is another one meanwhile, and with `etag: null` if there is one.
 */
export interface FileText {
  file: string;
  kind: FileKind;
  text: string;
  etag: string;
  modified: number;
  /** Whether passwords were replaced by `***`, since the role may not see them. */
  is_redacted: boolean;
}

/** GET /api/v1/check?file=NAME&offline=BOOL. */
export interface Check {
  lints: Lint[];
  errors: ErrorJson[];
  /** Entries that could not be checked offline. */
  unknown: string[];
  can_run: boolean;
}

/** GET /api/v1/explain?file=NAME: how a job or a sequence would run. */
export interface Explain {
  kind: RunKind;
  /** The graph; of a file with mistakes there may be none. */
  entries: JobEntry[];
  steps: { name: string; does: string; needs: string[]; when: string | null; took_ms: number | null }[];
  sources: {
    name: string;
    read: string[];
    format: string;
    columns: { name: string; type: string }[];
  }[];
  transforms: { name: string; columns: { name: string; type: string }[] }[];
  sinks: { name: string; kind: string; target: string; details: string[] }[];
  /** The names of variables that may be set by `operate`. */
  allow: string[];
  lints: Lint[];
  errors: ErrorJson[];
}

/** GET /api/v1/preview?file=NAME&step=NAME&rows=N (role `operate`: it reads the sources). */
export interface Preview {
  columns: { name: string; type: string }[];
  rows: unknown[][];
  left_out: { entry: string; count: number; first: string[] }[];
  lints: Lint[];
  errors: ErrorJson[];
}

/** GET /api/v1/machine. */
export interface Machine {
  host: string;
  cores: number;
  memory: number;
  memory_available: number;
  /** Load averages over 1, 5 and 15 minutes. */
  load: [number, number, number];
  scratch: { path: string; size: number; used: number; free: number }[];
  state: { path: string; size: number; used: number; free: number };
  pools: { name: string; size: number; used: number }[];
  /** What runs may take together; `shared` is taken. */
  run_memory: number;
  run_memory_shared: number;
  runs: {
    run: string;
    file: string | null;
    job: string;
    process: number;
    resident: number;
    cpu_seconds: number;
    threads: number;
  }[];
  server: { process: number; resident: number; cpu_seconds: number };
}

/** GET /api/v1/audit (role `edit`): who did what, the last first; at most 500. */
export interface Audit {
  entries: { when: number; user: string; from: string; did: string; what: string; ok: boolean }[];
}

/**
 * GET /api/v1/events?run=RUN: a stream of server-sent events. `run` also sends how that run goes. Each has a `data`
 * line with JSON. A client that has lost the stream asks for everything anew.
 *
 * | event      | data                                    | when                                             |
 * |------------|-----------------------------------------|--------------------------------------------------|
 * | `hello`    | `{}`                                    | at the beginning                                 |
 * | `runs`     | `{runs: RunSummary[]}`                  | runs have begun, gone on or ended                |
 * | `live`     | `{run, live: Live \| null, steps}`      | how the run that is watched goes, once a second  |
 * | `schedule` | `{}`                                    | ask for the schedule again                       |
 * | `files`    | `{files: string[]}`                     | these have changed, come or gone                 |
 * | `action`   | `Action`                                | an action has begun or ended                     |
 * | `notice`   | `Overview["notices"][0]`                | the scheduler has something to say               |
 * | `resync`   | `{}`                                    | the client was too slow: ask for all again       |
 */
export type EventName = "hello" | "runs" | "live" | "schedule" | "files" | "action" | "notice" | "resync";

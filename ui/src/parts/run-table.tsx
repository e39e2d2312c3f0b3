import type { RunSummary } from "../api/types";
import { Ago, Took } from "./clock";
import { count, moment } from "./format";
import { Progress, Text } from "./basics";
import { OutcomeBadge } from "./outcome";
import { Link, to } from "./route";
import { Table, type Column } from "./table";

/** A sequence has no rows of its own. */
const rows = (run: RunSummary, n: number) =>
  run.kind === "sequence" && n === 0 ? <span className="muted">–</span> : count(n);

const COLUMNS: Column<RunSummary>[] = [
  {
    name: "Outcome",
    cell: (run) => <OutcomeBadge outcome={run.outcome} />,
  },
  {
    name: "File",
    isHead: true,
    isText: true,
    cell: (run) => (
      <>
        <Link href={to.run(run.run)}>{run.file ?? run.job}</Link>
        {run.of_step && <span className="step-of muted">step {run.of_step.step}</span>}
        {run.variables && <span className="variables">{run.variables.split("\n").join(", ")}</span>}
        {run.message && run.outcome !== "done" && (
          <span className="message">
            <Text>{run.message}</Text>
          </span>
        )}
      </>
    ),
  },
  {
    name: "Began",
    cell: (run) => (
      <>
        <span className="nowrap">{moment(run.began)}</span>{" "}
        <span className="muted minor">
          <Ago at={run.began} />
        </span>
      </>
    ),
  },
  {
    name: "Took",
    isNumber: true,
    cell: (run) => (
      <>
        <Took began={run.began} seconds={run.seconds} isRunning={run.outcome === "running"} />
        {run.outcome === "running" && <Progress share={run.share} label={`Progress of ${run.file ?? run.job}`} />}
      </>
    ),
  },
  { name: "Read", isNumber: true, isMinor: true, cell: (run) => rows(run, run.rows_read) },
  { name: "Written", isNumber: true, cell: (run) => rows(run, run.rows_written) },
  {
    name: "Rejected",
    isNumber: true,
    isMinor: true,
    cell: (run) =>
      run.rows_rejected > 0 ? <Link href={to.rejects(run.run)}>{count(run.rows_rejected)}</Link> : rows(run, 0),
  },
];

export function RunTable({ runs, caption, without = [] }: { runs: RunSummary[]; caption: string; without?: string[] }) {
  const columns = COLUMNS.filter(({ name }) => !without.includes(name));
  return <Table caption={caption} columns={columns} rows={runs} rowKey={(run) => run.run} />;
}

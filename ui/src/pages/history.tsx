import { useMemo } from "react";
import { useData } from "../api/data";
import { endpoint } from "../api/client";
import type { History } from "../api/types";
import { Chart } from "../parts/chart";
import { Empty, PageHead, Ready, useTitle } from "../parts/basics";
import { bytes, compact, count, duration, moment, plural, rate } from "../parts/format";
import { OutcomeBadge } from "../parts/outcome";
import { Link, navigate, setQuery, to, useQuery } from "../parts/route";
import { Table } from "../parts/table";

const SPANS = [7, 14, 30, 90, 365];

export function HistoryPage() {
  const query = useQuery();
  const file = query.get("file") ?? "";
  const job = query.get("job") ?? "";
  const days = Number(query.get("days")) || 30;
  const history = useData<History>(endpoint("/history", { file, job, days }), { keep: true });
  useTitle(file ? `History of ${file}` : "History");
  const jobs = history.data?.jobs ?? [];
  return (
    <>
      <PageHead
        over={<Link href={file ? to.runsOf(file) : "/runs"}>Runs</Link>}
        title="Runs over time"
        tools={
          file && (
            <Link className="button" href={to.job(file)}>
              The job
            </Link>
          )
        }
      />
      <form className="filters" aria-label="What is shown" onSubmit={(event) => event.preventDefault()}>
        <label>
          File
          <select
            data-filter
            value={file || job}
            onChange={({ target }) => {
              const chosen = jobs.find((its) => (its.file ?? its.job) === target.value);
              setQuery({ file: chosen?.file ?? null, job: chosen?.file ? null : (chosen?.job ?? null) });
            }}
          >
            <option value="">all</option>
            {jobs.map((its) => (
              <option key={its.job} value={its.file ?? its.job}>
                {its.file ?? its.job} ({count(its.runs)})
              </option>
            ))}
          </select>
        </label>
        <label>
          Time
          <select value={days} onChange={({ target }) => setQuery({ days: target.value })}>
            {[...new Set([...SPANS, days])]
              .sort((a, b) => a - b)
              .map((span) => (
                <option key={span} value={span}>
                  the last {span} days
                </option>
              ))}
          </select>
        </label>
      </form>
      <Ready of={history}>{(data) => <Charts data={data} days={days} isOne={Boolean(file || job)} />}</Ready>
    </>
  );
}

type Past = History["runs"][0];

function Charts({ data, days, isOne }: { data: History; days: number; isOne: boolean }) {
  const runs = useMemo(() => data.runs.filter((run) => run.outcome !== "running"), [data]);
  const prepared = useMemo(() => {
    const of = (value: (run: Past) => number | null) => runs.map(value);
    return {
      x: runs.map((run) => run.began / 1000),
      marks: runs.flatMap((run, index) => (run.outcome === "failed" || run.outcome === "killed" ? [index] : [])),
      seconds: [{ name: "duration", colour: "first" as const, values: of((run) => run.seconds) }],
      rows: [
        { name: "read", colour: "first" as const, values: of((run) => run.rows_read) },
        { name: "written", colour: "second" as const, values: of((run) => run.rows_written) },
      ],
      speed: [
        {
          name: "rows read a second",
          colour: "first" as const,
          values: of((run) => (run.seconds ? run.rows_read / run.seconds : null)),
        },
      ],
      rejected: [{ name: "rejected", colour: "third" as const, values: of((run) => run.rows_rejected) }],
    };
  }, [runs]);
  if (runs.length === 0) return <Empty>No run has ended in the last {days} days.</Empty>;
  const open = (index: number) => {
    const run = runs[index];
    if (run) navigate(to.run(run.run));
  };
  const chart = { x: prepared.x, time: "date" as const, isDots: true, marks: prepared.marks, onOpen: open };
  const failed = prepared.marks.length;
  return (
    <>
      <p className="lead">
        {plural(runs.length, "run")}, {failed === 0 ? "none failed" : `${count(failed)} failed`}
        {data.is_cut && ". Only the latest are shown"}. Click a point to open its run.
      </p>
      <div className="charts">
        <Chart
          {...chart}
          title="Duration"
          series={prepared.seconds}
          format={duration}
          summary={spread(
            runs.map((run) => run.seconds ?? 0),
            duration,
          )}
        />
        <Chart
          {...chart}
          title="Rows"
          series={prepared.rows}
          format={compact}
          summary={spread(
            runs.map((run) => run.rows_written),
            count,
          )}
        />
        <Chart
          {...chart}
          title="Throughput"
          series={prepared.speed}
          format={compact}
          summary={spread(
            runs.filter((run) => run.seconds).map((run) => run.rows_read / run.seconds!),
            rate,
          )}
        />
        <Chart
          {...chart}
          title="Rejected rows"
          series={prepared.rejected}
          format={compact}
          summary={spread(
            runs.map((run) => run.rows_rejected),
            count,
          )}
        />
      </div>
      <PastTable runs={runs} isOne={isOne} />
    </>
  );
}

/** What a chart shows, in words. */
function spread(values: number[], format: (value: number) => string): string {
  if (values.length === 0) return "nothing";
  const sorted = [...values].sort((a, b) => a - b);
  const [least, middle, most] = [sorted[0]!, sorted[sorted.length >> 1]!, sorted[sorted.length - 1]!];
  return `${plural(values.length, "run")}, from ${format(least)} to ${format(most)}, typically ${format(middle)}`;
}

const LISTED = 100;

function PastTable({ runs, isOne }: { runs: Past[]; isOne: boolean }) {
  const latest = runs.slice(-LISTED).reverse();
  return (
    <details className="section">
      <summary>The numbers as a table{runs.length > LISTED && ` (the last ${LISTED})`}</summary>
      <Table
        caption="The runs of the charts, the newest first"
        rows={latest}
        rowKey={(run) => run.run}
        columns={[
          { name: "Began", isHead: true, cell: (run) => <Link href={to.run(run.run)}>{moment(run.began)}</Link> },
          ...(isOne ? [] : [{ name: "File", cell: (run: Past) => run.file ?? run.job }]),
          { name: "Outcome", cell: (run) => <OutcomeBadge outcome={run.outcome} /> },
          { name: "Took", isNumber: true, cell: (run) => (run.seconds === null ? "–" : duration(run.seconds)) },
          { name: "Read", isNumber: true, cell: (run) => count(run.rows_read) },
          {
            name: "Bytes",
            isNumber: true,
            isMinor: true,
            cell: (run) => (run.bytes_read === null ? "–" : bytes(run.bytes_read)),
          },
          { name: "Written", isNumber: true, cell: (run) => count(run.rows_written) },
          { name: "Rejected", isNumber: true, cell: (run) => count(run.rows_rejected) },
        ]}
      />
    </details>
  );
}

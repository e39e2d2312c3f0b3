import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import type { RunDetail, RunList } from "../../api/types";
import { Empty, Section } from "../../parts/basics";
import { moment } from "../../parts/format";
import { Link, setQuery, to, useQuery } from "../../parts/route";
import { Table } from "../../parts/table";

/** The numbers beside those of another run. */
export function Beside({ detail }: { detail: RunDetail }) {
  const { run, before, compared } = detail;
  const beside = useQuery().get("beside") ?? "";
  const earlier = useData<RunList>(
    endpoint("/runs", { job: run.job, before: run.run, steps: run.of_step ? true : null, limit: 30 }),
  );
  const others = (earlier.data?.runs ?? []).filter((other) => other.run !== run.run && other.began < run.began);
  // A run that goes on has not come to the numbers of one that has ended.
  if (run.outcome === "running" || (others.length === 0 && !before)) return null;
  const hasExpected = compared.some(({ expected }) => expected !== "");
  return (
    <Section
      title="Compared with an earlier run"
      tools={
        <label className="inline">
          <span>Compare with</span>
          <select value={beside} onChange={({ target }) => setQuery({ beside: target.value || null })}>
            <option value="">the last successful run</option>
            {beside && !others.some((other) => other.run === beside) && <option>{beside}</option>}
            {others.map((other) => (
              <option key={other.run} value={other.run}>
                {moment(other.began, false)} ({other.outcome})
              </option>
            ))}
          </select>
        </label>
      }
    >
      {before && (
        <p className="muted">
          Before: <Link href={to.run(before.run.run)}>the run of {moment(before.run.began)}</Link>
          {before.run.variables && (
            <>
              , with <code>{before.run.variables.split("\n").join("  ")}</code>
            </>
          )}
        </p>
      )}
      {before && compared.length > 0 ? (
        <Table
          caption="Numbers of this run and of an earlier one"
          rows={compared}
          rowKey={(row) => row.what}
          columns={[
            { name: "What", isHead: true, cell: (row) => row.what },
            { name: "This run", isNumber: true, cell: (row) => row.now },
            { name: "Before", isNumber: true, cell: (row) => row.before },
            { name: "Change", isNumber: true, cell: (row) => row.change },
            ...(hasExpected
              ? [{ name: "Expected", isNumber: true, cell: (row: (typeof compared)[0]) => row.expected }]
              : []),
          ]}
        />
      ) : (
        <Empty>There is no earlier successful run to compare with.</Empty>
      )}
    </Section>
  );
}

import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import type { Rejects, Report, RunSummary } from "../../api/types";
import { Section } from "../../parts/basics";
import { count, plural } from "../../parts/format";
import { Icon } from "../../parts/icons";
import { Link, to } from "../../parts/route";
import { Table } from "../../parts/table";

/** The main reasons, with the way to the rest. */
export function RejectsNote({ run }: { run: RunSummary }) {
  const isOver = run.outcome !== "running";
  const rejects = useData<Rejects>(isOver ? endpoint(`/runs/${encodeURIComponent(run.run)}/rejects`) : null).data;
  // The record at which a run fails is counted, but not kept as a reject.
  if (rejects && rejects.waiting + rejects.replayed === 0) return null;
  return (
    <div className="note note-warning">
      <Icon name="warning" />
      <div>
        <p>
          <Link href={to.rejects(run.run)}>{plural(run.rows_rejected, "record was", "records were")} rejected</Link>
        </p>
        {rejects && (
          <ul className="reasons">
            {rejects.reasons.slice(0, 3).map((reason) => (
              <li key={`${reason.step} ${reason.kind} ${reason.column}`}>
                {count(reason.count)} × {reason.kind}, by {reason.step}
                {reason.column && `, column ${reason.column}`}
              </li>
            ))}
          </ul>
        )}
      </div>
    </div>
  );
}

type Check = NonNullable<Report["checks"]>[0];

export function Checks({ checks }: { checks: Check[] }) {
  const sorted = [...checks].sort((a, b) => Number(a.holds) - Number(b.holds));
  return (
    <Section title="Checks">
      <Table
        caption="Checks, those that do not hold first"
        rows={sorted}
        rowKey={(check, index) => `${check.entry} ${check.check} ${index}`}
        columns={[
          {
            name: "Holds",
            cell: (check) => <Verdict check={check} />,
          },
          { name: "Entry", cell: (check) => check.entry },
          {
            name: "Check",
            isHead: true,
            isText: true,
            cell: (check) => (
              <>
                {check.what || check.check}
                {!check.holds && check.examples && check.examples.length > 0 && (
                  <span className="examples">
                    {check.examples.slice(0, 3).map((example, index) => (
                      <code key={index}>{example}</code>
                    ))}
                  </span>
                )}
              </>
            ),
          },
          { name: "Rows", isNumber: true, isMinor: true, cell: (check) => count(check.rows) },
          { name: "Broken", isNumber: true, cell: (check) => count(check.broken) },
        ]}
      />
    </Section>
  );
}

function Verdict({ check: { holds, severity } }: { check: Check }) {
  if (holds)
    return (
      <span className="outcome tone-ok">
        <Icon name="done" />
        holds
      </span>
    );
  if (severity === "fail")
    return (
      <span className="outcome tone-bad">
        <Icon name="failed" />
        broken
      </span>
    );
  const does = severity === "reject" ? "rejects" : "warning";
  return (
    <span className="outcome tone-warn">
      <Icon name="warning" />
      {does}
    </span>
  );
}

export function Skipped({ report }: { report: Report }) {
  const skipped = report.skipped ?? [];
  if (skipped.length === 0) return null;
  const all = report.units_skipped ?? skipped.length;
  return (
    <Section title="Skipped units">
      {all > skipped.length && <p className="muted">{count(all)} in all; these are the first.</p>}
      <Table
        caption="Units that the run skipped"
        rows={skipped}
        rowKey={(_, index) => String(index)}
        columns={[
          { name: "Source", isHead: true, cell: (unit) => unit.source },
          { name: "Unit", isText: true, cell: (unit) => unit.uri ?? "–" },
          { name: "Why", isText: true, cell: (unit) => unit.what },
        ]}
      />
    </Section>
  );
}

/** What the sinks and the hooks of the job say. */
export function Results({ report }: { report: Report }) {
  const results = report.results ?? [];
  const hooks = report.hooks ?? [];
  if (results.length === 0 && hooks.length === 0) return null;
  return (
    <Section title="Results">
      <ul className="list">
        {results.map((result) => (
          <li key={`${result.sink} ${result.target}`}>
            <div className="list-main">
              <strong>{result.sink}</strong> {result.summary}
            </div>
          </li>
        ))}
        {hooks.map((hook, index) => (
          <li key={`${hook.hook} ${index}`}>
            <div className="list-main">
              <span className="muted">hook</span> {hook.hook}{" "}
              {hook.error ? <span className="bad">failed: {hook.error}</span> : "done"}
            </div>
          </li>
        ))}
      </ul>
    </Section>
  );
}

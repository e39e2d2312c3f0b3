import { useMemo } from "react";
import type { Explain } from "../../api/types";
import { JobGraph, SequenceGraph } from "../../graph";
import { entryId } from "../../graph/model";
import { Empty, ErrorNote, Section } from "../../parts/basics";
import { duration } from "../../parts/format";
import { Link, navigate, to } from "../../parts/route";
import { Table } from "../../parts/table";
import { isOnlyUnset } from "./names";

/** How the file would run: its graph, and the same in words. */
export function JobGraphView({ file, explain }: { file: string; explain: Explain }) {
  return explain.kind === "sequence" ? <SequenceView explain={explain} /> : <JobView file={file} explain={explain} />;
}

function Errors({ explain }: { explain: Explain }) {
  return (
    <>
      {explain.errors.map((error, index) => (
        <ErrorNote key={index} error={error} />
      ))}
    </>
  );
}

const hasMistakes = ({ lints, errors }: Explain): boolean =>
  errors.length > 0 || lints.some(({ severity }) => severity === "error");

function JobView({ file, explain }: { file: string; explain: Explain }) {
  const details = useMemo(() => {
    const found = new Map<string, string>();
    for (const { name, format, read } of explain.sources)
      found.set(entryId("source", name), [format, read[0]].filter(Boolean).join(" · "));
    for (const { name, kind, target } of explain.sinks)
      found.set(entryId("sink", name), [kind, target].filter(Boolean).join(" · "));
    for (const { name, columns } of explain.transforms) {
      found.set(entryId("transform", name), columns.map((column) => column.name).join(", "));
    }
    return found;
  }, [explain]);
  const data = (entry: string) => `${to.job(file)}?view=data&step=${encodeURIComponent(entry)}`;
  return (
    <>
      <Errors explain={explain} />
      {isOnlyUnset(explain.lints) && (
        <p className="muted">It uses variables that have no default: columns and targets are known once it runs.</p>
      )}
      {explain.entries.length === 0 ? (
        <Empty>
          {hasMistakes(explain) ? "The file has mistakes, so there is no graph." : "The file has no entries."}{" "}
          <Link href="?view=text">See its text</Link>
        </Empty>
      ) : (
        <div className="section">
          <JobGraph
            entries={explain.entries}
            steps={null}
            details={details}
            onOpen={(entry) => navigate(data(entry))}
          />
        </div>
      )}
      {explain.entries.length > 0 && (
        <Section title="Entries">
          <Table
            caption="Entries of the job"
            rows={explain.entries}
            rowKey={(entry) => `${entry.kind} ${entry.entry}`}
            columns={[
              {
                name: "Entry",
                isHead: true,
                cell: ({ entry, kind }) => (kind === "sink" ? entry : <Link href={data(entry)}>{entry}</Link>),
              },
              { name: "Kind", cell: ({ kind }) => kind },
              { name: "Reads", cell: ({ reads }) => reads.join(", ") || "–" },
              { name: "What", isText: true, cell: ({ entry, kind }) => details.get(entryId(kind, entry)) },
            ]}
          />
        </Section>
      )}
      {explain.sinks.some(({ details }) => details.length > 0) && (
        <Section title="How it loads">
          <ul className="list">
            {explain.sinks.map(({ name, details }) => (
              <li key={name}>
                <div className="list-main">
                  <strong>{name}</strong>
                  <pre className="muted">{details.join("\n")}</pre>
                </div>
              </li>
            ))}
          </ul>
        </Section>
      )}
    </>
  );
}

/** `load job load.yaml`: the first word is the kind of the step. */
const kindOf = (does: string): [string, string] => {
  const at = does.indexOf(" ");
  return at < 0 ? [does, ""] : [does.slice(0, at), does.slice(at + 1)];
};

function SequenceView({ explain }: { explain: Explain }) {
  const steps = useMemo(
    () =>
      explain.steps.map(({ name, does, needs, took_ms }) => {
        const [kind, what] = kindOf(does);
        return { name, kind, what, needs, seconds: took_ms === null ? null : took_ms / 1000 };
      }),
    [explain],
  );
  return (
    <>
      <Errors explain={explain} />
      <div className="section">
        <SequenceGraph steps={steps} />
      </div>
      <Section title="Steps">
        <Table
          caption="Steps of the sequence"
          rows={explain.steps}
          rowKey={(step) => step.name}
          columns={[
            { name: "Step", isHead: true, cell: (step) => step.name },
            { name: "Does", isText: true, cell: (step) => step.does },
            { name: "Needs", cell: (step) => step.needs.join(", ") || "–" },
            { name: "When", cell: (step) => step.when ?? "success" },
            {
              name: "Took",
              isNumber: true,
              cell: (step) => (step.took_ms === null ? "–" : duration(step.took_ms / 1000)),
            },
          ]}
        />
      </Section>
    </>
  );
}

import { useState } from "react";
import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import { useMay } from "../../api/session";
import type { Explain, Preview } from "../../api/types";
import { Empty, ErrorNote, Ready, Section } from "../../parts/basics";
import { count, plural } from "../../parts/format";
import { setQuery, useQuery } from "../../parts/route";
import { Table } from "../../parts/table";

const ROWS = 20;

/** The columns of each source and transform, and the first rows of one of them. */
export function Columns({ file, explain }: { file: string; explain: Explain }) {
  const entries = [...explain.sources, ...explain.transforms];
  const step = useQuery().get("step");
  const chosen = entries.find(({ name }) => name === step) ?? entries[0];
  const source = explain.sources.find((its) => its === chosen);
  if (!chosen) return <Empty>The columns are known once the file has no mistakes.</Empty>;
  return (
    <>
      {explain.errors.map((error, index) => (
        <ErrorNote key={index} error={error} />
      ))}
      <div className="filters">
        <label>
          Entry
          <select data-filter value={chosen.name} onChange={({ target }) => setQuery({ step: target.value })}>
            {entries.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      <div className="beside">
        <Section title={`Columns of ${chosen.name}`}>
          {source && (
            <p className="muted">
              {source.format} · {source.read.join(", ")}
            </p>
          )}
          <Table
            caption={`Columns of ${chosen.name}`}
            rows={chosen.columns}
            rowKey={(column) => column.name}
            columns={[
              { name: "Column", isHead: true, cell: (column) => column.name },
              { name: "Type", cell: (column) => <code>{column.type}</code> },
            ]}
          />
        </Section>
        <PreviewPanel key={chosen.name} file={file} step={chosen.name} />
      </div>
    </>
  );
}

/** Reads the sources only when it is asked to. */
function PreviewPanel({ file, step }: { file: string; step: string }) {
  const [isAsked, setAsked] = useState(false);
  const mayRead = useMay("operate");
  const preview = useData<Preview>(isAsked ? endpoint("/preview", { file, step, rows: ROWS }) : null);
  return (
    <Section
      title="First rows"
      tools={
        isAsked && (
          <button type="button" disabled={preview.isLoading} onClick={preview.reload}>
            Read again
          </button>
        )
      }
    >
      {!isAsked &&
        (mayRead ? (
          <>
            <p className="muted">This reads the beginning of the sources. Nothing is written.</p>
            <p>
              <button type="button" onClick={() => setAsked(true)}>
                Show the first {ROWS} rows
              </button>
            </p>
          </>
        ) : (
          <p className="muted">
            This reads the sources, which needs the role <code>operate</code>.
          </p>
        ))}
      {isAsked && <Ready of={preview}>{(data) => <Rows data={data} step={step} />}</Ready>}
    </Section>
  );
}

function Rows({ data, step }: { data: Preview; step: string }) {
  return (
    <>
      {data.errors.map((error, index) => (
        <ErrorNote key={index} error={error} />
      ))}
      {data.rows.length > 0 ? (
        <Table
          caption={`First rows of ${step}`}
          rows={data.rows}
          rowKey={(_, index) => String(index)}
          columns={data.columns.map((column, index) => ({
            name: column.name,
            isNumber: /^(u?int|float|decimal)/.test(column.type),
            cell: (row: unknown[]) => <Cell value={row[index]} />,
          }))}
        />
      ) : (
        data.errors.length === 0 && <Empty>There are no rows.</Empty>
      )}
      {data.left_out.map((left) => (
        <p key={left.entry} className="muted">
          {plural(left.count, "record")} of {left.entry} {left.count === 1 ? "was" : "were"} left out:{" "}
          {left.first.join("; ")}
          {left.count > left.first.length && ` and ${count(left.count - left.first.length)} more`}
        </p>
      ))}
    </>
  );
}

function Cell({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span className="null">null</span>;
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return (
    <span className="cell" title={text.length > 60 ? text : undefined}>
      {text}
    </span>
  );
}

import { useEffect, useState } from "react";
import { useData } from "../api/data";
import { endpoint } from "../api/client";
import type { Files, RunList } from "../api/types";
import { Empty, PageHead, Ready, useTitle } from "../parts/basics";
import { Link, setQuery, to, useQuery } from "../parts/route";
import { RunTable } from "../parts/run-table";
import { OUTCOMES, readFilter, runsUrl, writeFilter, type RunsFilter } from "./runs-filter";

const PAGE = 50;

export function RunsPage() {
  useTitle("Runs");
  const query = useQuery();
  const filter = readFilter(query);
  return (
    <>
      <PageHead
        title="Runs"
        tools={
          <Link className="button" href={filter.file ? to.history(filter.file) : "/history"}>
            Charts over time
          </Link>
        }
      />
      <FilterForm filter={filter} />
      <Pages filter={filter} before={null} />
    </>
  );
}

/** A page of runs, and the next one below it after a click on "Load more". */
function Pages({ filter, before }: { filter: RunsFilter; before: string | null }) {
  const url = runsUrl(filter, before, PAGE);
  const list = useData<RunList>(url, { keep: true });
  const [moreOf, setMoreOf] = useState<string | null>(null);
  const hasMore = moreOf === url;
  return (
    <Ready of={list}>
      {({ runs, next }) => (
        <>
          {runs.length > 0 ? (
            <RunTable runs={runs} caption={before ? "Earlier runs" : "Runs, the newest first"} />
          ) : (
            <Nothing filter={filter} />
          )}
          {next && !hasMore && (
            <div className="more">
              <button type="button" onClick={() => setMoreOf(url)}>
                Load more
              </button>
            </div>
          )}
          {next && hasMore && <Pages key={next} filter={filter} before={next} />}
        </>
      )}
    </Ready>
  );
}

function Nothing({ filter }: { filter: RunsFilter }) {
  if (Object.values(writeFilter(filter)).some(Boolean)) {
    return (
      <Empty>
        No run matches this filter. <Link href="/runs">Show all runs</Link>
      </Empty>
    );
  }
  return (
    <Empty>
      No runs yet: start one from <Link href="/jobs">Jobs</Link>, or <code>millstream run JOB</code> in a terminal.
    </Empty>
  );
}

function FilterForm({ filter }: { filter: RunsFilter }) {
  const files =
    useData<Files>(endpoint("/files")).data?.files.filter(({ kind }) => kind === "job" || kind === "sequence") ?? [];
  const change = (changes: Partial<RunsFilter>) => setQuery(writeFilter({ ...filter, ...changes }));
  const isFiltered = Object.values(writeFilter(filter)).some(Boolean);
  return (
    <form className="filters" role="search" aria-label="Filter the runs" onSubmit={(event) => event.preventDefault()}>
      <SearchField value={filter.q} onChange={(q) => change({ q })} />
      <label>
        File
        <select value={filter.file} onChange={(event) => change({ file: event.target.value })}>
          <option value="">all</option>
          {filter.file && !files.some(({ file }) => file === filter.file) && <option>{filter.file}</option>}
          {files.map(({ file }) => (
            <option key={file}>{file}</option>
          ))}
        </select>
      </label>
      <label>
        Kind
        <select value={filter.kind} onChange={(event) => change({ kind: event.target.value as RunsFilter["kind"] })}>
          <option value="">all</option>
          <option value="job">jobs</option>
          <option value="sequence">sequences</option>
        </select>
      </label>
      <label>
        Outcome
        <select
          value={filter.outcome}
          onChange={(event) => change({ outcome: event.target.value as RunsFilter["outcome"] })}
        >
          <option value="">all</option>
          {OUTCOMES.map((outcome) => (
            <option key={outcome}>{outcome}</option>
          ))}
        </select>
      </label>
      <label>
        From
        <input type="date" value={filter.from} onChange={(event) => change({ from: event.target.value })} />
      </label>
      <label>
        To
        <input type="date" value={filter.to} onChange={(event) => change({ to: event.target.value })} />
      </label>
      <label className="check">
        <input
          type="checkbox"
          checked={filter.unfinished}
          onChange={(event) => change({ unfinished: event.target.checked })}
        />
        Unfinished
      </label>
      <label className="check">
        <input type="checkbox" checked={filter.steps} onChange={(event) => change({ steps: event.target.checked })} />
        Steps of sequences
      </label>
      {isFiltered && (
        <Link className="button quiet" href="/runs">
          Clear
        </Link>
      )}
    </form>
  );
}

/** The address changes once the typing has stopped for a moment. */
function SearchField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = window.setTimeout(() => onChange(text), 250);
    return () => window.clearTimeout(timer);
  }, [text]);
  return (
    <label className="search">
      Text
      <input
        type="search"
        data-filter
        placeholder="file, variables, message"
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
    </label>
  );
}

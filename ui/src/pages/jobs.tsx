import { useMemo, useState } from "react";
import { endpoint } from "../api/client";
import { useData } from "../api/data";
import { useMay, useSession } from "../api/session";
import type { Files, Schedule } from "../api/types";
import { Empty, PageHead, Ready, useTitle } from "../parts/basics";
import { Ago, Took, Until } from "../parts/clock";
import { baseName, localMoment } from "../parts/format";
import { Icon } from "../parts/icons";
import { OutcomeBadge } from "../parts/outcome";
import { Link, setQuery, to, useQuery } from "../parts/route";
import { Table } from "../parts/table";
import { NewFile, NewFileDialog } from "./job/new";

type File = Files["files"][0];

export function JobsPage() {
  const fresh = useQuery().get("new");
  const mayEdit = useMay("edit");
  return fresh && mayEdit ? <NewFile key={fresh} file={fresh} /> : <FileList mayEdit={mayEdit} />;
}

function FileList({ mayEdit }: { mayEdit: boolean }) {
  useTitle("Jobs");
  const [isAsking, setAsking] = useState(false);
  const session = useSession();
  const files = useData<Files>(endpoint("/files"));
  const schedule = useData<Schedule>(endpoint("/schedule", { times: 1 })).data;
  const query = useQuery();
  const text = query.get("q") ?? "";
  const kind = query.get("kind") ?? "";
  const next = useMemo(() => new Map(schedule?.sequences.map((its) => [its.file, its.next[0]]) ?? []), [schedule]);
  return (
    <>
      <PageHead
        title="Jobs"
        tools={
          mayEdit && (
            <button type="button" onClick={() => setAsking(true)}>
              New file…
            </button>
          )
        }
      >
        <p className="muted">
          Files in <code>{session?.folder}</code>
        </p>
      </PageHead>
      <form
        className="filters"
        role="search"
        aria-label="Filter the files"
        onSubmit={(event) => event.preventDefault()}
      >
        <label className="search">
          Name
          <input
            type="search"
            data-filter
            value={text}
            placeholder="part of a name"
            onChange={({ target }) => setQuery({ q: target.value })}
          />
        </label>
        <label>
          Kind
          <select value={kind} onChange={({ target }) => setQuery({ kind: target.value })}>
            <option value="">all</option>
            <option value="job">jobs</option>
            <option value="sequence">sequences</option>
            <option value="test">tests</option>
            <option value="other">others</option>
          </select>
        </label>
      </form>
      <Ready of={files}>
        {(data) => (
          <Folders
            data={data}
            next={next}
            matches={(file) => file.file.includes(text) && (!kind || file.kind === kind)}
          />
        )}
      </Ready>
      {isAsking && <NewFileDialog onClose={() => setAsking(false)} />}
    </>
  );
}

/** The files by their folders, those of the root first. */
function byFolder(files: File[]): [string, File[]][] {
  const folders = new Map<string, File[]>();
  for (const file of files) {
    const folder = file.file.slice(0, Math.max(0, file.file.lastIndexOf("/")));
    folders.set(folder, [...(folders.get(folder) ?? []), file]);
  }
  return [...folders].sort(([a], [b]) => (a < b ? -1 : 1));
}

function Folders({
  data,
  next,
  matches,
}: {
  data: Files;
  next: Map<string | null, string | undefined>;
  matches: (file: File) => boolean;
}) {
  if (data.files.length === 0) {
    return (
      <Empty>
        This folder has no job yet: a YAML file with <code>sources:</code> and <code>sinks:</code> is one.
      </Empty>
    );
  }
  const shown = data.files.filter(matches);
  if (shown.length === 0)
    return (
      <Empty>
        No file matches this filter. <Link href="/jobs">Show all files</Link>
      </Empty>
    );
  return (
    <>
      {byFolder(shown).map(([folder, files]) => (
        <section key={folder} className="folder" aria-label={folder ? `Folder ${folder}` : "Files"}>
          {folder && <h2 className="folder-name">{folder}/</h2>}
          <Table
            caption={folder ? `Files of ${folder}` : "Files"}
            rows={files}
            rowKey={(file) => file.file}
            columns={[
              {
                name: "File",
                isHead: true,
                cell: (file) => (
                  <Link href={to.job(file.file)} className="file-name">
                    <Icon name={file.kind} />
                    {baseName(file.file)}
                  </Link>
                ),
              },
              { name: "Kind", isMinor: true, cell: (file) => file.kind },
              { name: "Last run", cell: (file) => <Last file={file} /> },
              {
                name: "Took",
                isNumber: true,
                isMinor: true,
                cell: (file) =>
                  file.last && (
                    <Took
                      began={file.last.began}
                      seconds={file.last.seconds}
                      isRunning={file.last.outcome === "running"}
                    />
                  ),
              },
              {
                name: "Next",
                cell: (file) => {
                  const time = next.get(file.file);
                  return (
                    time && (
                      <span className="nowrap" title={localMoment(time)}>
                        <Until at={Date.parse(time)} />
                      </span>
                    )
                  );
                },
              },
            ]}
          />
        </section>
      ))}
      {data.is_cut && <p className="muted">The folder has more files than are listed here.</p>}
    </>
  );
}

function Last({ file: { last, kind } }: { file: File }) {
  if (!last) return <span className="muted">{kind === "job" || kind === "sequence" ? "never" : ""}</span>;
  return (
    <Link href={to.run(last.run)} className="last">
      <OutcomeBadge outcome={last.outcome} />{" "}
      <span className="muted">
        <Ago at={last.ended ?? last.began} />
      </span>
    </Link>
  );
}

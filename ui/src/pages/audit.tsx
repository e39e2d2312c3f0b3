import { endpoint } from "../api/client";
import { useData } from "../api/data";
import { useMay } from "../api/session";
import type { Audit } from "../api/types";
import { Empty, PageHead, Ready, useTitle } from "../parts/basics";
import { moment } from "../parts/format";
import { Icon } from "../parts/icons";
import { setQuery, useQuery } from "../parts/route";
import { Table } from "../parts/table";

export function AuditPage() {
  useTitle("Audit");
  const may = useMay("edit");
  const audit = useData<Audit>(may ? endpoint("/audit") : null);
  const text = useQuery().get("q") ?? "";
  return (
    <>
      <PageHead title="Audit" />
      {!may && (
        <Empty>
          The audit log needs the role <code>edit</code>.
        </Empty>
      )}
      {may && (
        <>
          <form
            className="filters"
            role="search"
            aria-label="Filter the audit log"
            onSubmit={(event) => event.preventDefault()}
          >
            <label className="search">
              Text
              <input
                type="search"
                data-filter
                value={text}
                placeholder="user, action, file"
                onChange={({ target }) => setQuery({ q: target.value })}
              />
            </label>
          </form>
          <Ready of={audit}>{(data) => <Entries data={data} text={text} />}</Ready>
        </>
      )}
    </>
  );
}

function Entries({ data, text }: { data: Audit; text: string }) {
  const entries = data.entries.filter(({ user, from, did, what }) => `${user} ${from} ${did} ${what}`.includes(text));
  if (entries.length === 0) return <Empty>{text ? "Nothing matches this filter." : "The log is empty."}</Empty>;
  return (
    <Table
      caption="Who did what, newest first"
      rows={entries}
      rowKey={(entry, index) => `${entry.when} ${index}`}
      columns={[
        { name: "When", cell: (entry) => <span className="nowrap">{moment(entry.when)}</span> },
        { name: "User", isHead: true, cell: (entry) => entry.user },
        { name: "From", isMinor: true, cell: (entry) => entry.from },
        { name: "Did", cell: (entry) => entry.did },
        { name: "What", isText: true, cell: (entry) => entry.what },
        {
          name: "Result",
          cell: (entry) =>
            entry.ok ? (
              <span className="outcome tone-ok">
                <Icon name="done" />
                done
              </span>
            ) : (
              <span className="outcome tone-bad">
                <Icon name="failed" />
                refused
              </span>
            ),
        },
      ]}
    />
  );
}

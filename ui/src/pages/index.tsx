/** Which page an address shows. */
import { PageHead, useTitle } from "../parts/basics";
import { Link, usePath } from "../parts/route";
import { AuditPage } from "./audit";
import { HistoryPage } from "./history";
import { JobPage } from "./job";
import { JobsPage } from "./jobs";
import { MachinePage } from "./machine";
import { OverviewPage } from "./overview";
import { RejectsPage } from "./rejects";
import { RunPage } from "./run";
import { RunsPage } from "./runs";

export function Page() {
  const path = usePath();
  let parts: string[];
  try {
    parts = path.split("/").slice(1).map(decodeURIComponent);
  } catch {
    return <NotFound />;
  }
  const [place, ...rest] = parts;
  const name = rest.join("/");
  if (path === "/") return <OverviewPage />;
  if (path === "/runs") return <RunsPage />;
  if (path === "/history") return <HistoryPage />;
  if (path === "/jobs") return <JobsPage />;
  if (path === "/machine") return <MachinePage />;
  if (path === "/audit") return <AuditPage />;
  if (place === "jobs" && name) return <JobPage key={name} file={name} />;
  if (place === "runs" && rest.length === 1) return <RunPage key={name} run={name} />;
  if (place === "runs" && rest.length === 2 && rest[1] === "rejects") return <RejectsPage run={rest[0]!} />;
  return <NotFound />;
}

function NotFound() {
  useTitle("Not found");
  return (
    <PageHead title="Nothing is here">
      <p>
        This address names no page. <Link href="/">Go to the overview</Link>
      </p>
    </PageHead>
  );
}

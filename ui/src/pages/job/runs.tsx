import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import type { RunList } from "../../api/types";
import { Empty, Ready, Section } from "../../parts/basics";
import { Link, to } from "../../parts/route";
import { RunTable } from "../../parts/run-table";

export function JobRuns({ file }: { file: string }) {
  const list = useData<RunList>(endpoint("/runs", { file, steps: true, limit: 20 }));
  return (
    <Section
      title="Last runs"
      tools={
        <span className="row">
          <Link href={to.runsOf(file)}>All runs</Link>
          <Link href={to.history(file)}>Charts over time</Link>
        </span>
      }
    >
      <Ready of={list}>
        {({ runs }) =>
          runs.length > 0 ? (
            <RunTable runs={runs} caption={`Last runs of ${file}`} />
          ) : (
            <Empty>
              It has not run yet: start it above, or with <code>millstream run {file}</code> in a terminal.
            </Empty>
          )
        }
      </Ready>
    </Section>
  );
}

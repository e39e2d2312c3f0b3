import { useEffect } from "react";
import { endpoint } from "../api/client";
import { useData } from "../api/data";
import type { Machine } from "../api/types";
import { Empty, Fact, Meter, PageHead, Ready, Section, useTitle } from "../parts/basics";
import { bytes, count, duration, percent } from "../parts/format";
import { Link, to } from "../parts/route";
import { Table } from "../parts/table";

const EVERY = 3_000;

export function MachinePage() {
  useTitle("Machine");
  const machine = useData<Machine>(endpoint("/machine"));
  const { reload } = machine;
  useEffect(() => {
    const timer = window.setInterval(() => {
      if (!document.hidden) reload();
    }, EVERY);
    return () => window.clearInterval(timer);
  }, [reload]);
  return (
    <>
      <PageHead title="Machine" />
      <Ready of={machine}>{(data) => <Content data={data} />}</Ready>
    </>
  );
}

function Content({ data }: { data: Machine }) {
  const used = data.memory - data.memory_available;
  return (
    <>
      <dl className="facts">
        <Fact name="Host">{data.host}</Fact>
        <Fact name="Cores">{count(data.cores)}</Fact>
        <Fact name="Load">
          {data.load.map((load) => load.toFixed(2)).join("  ")} <span className="muted">over 1, 5 and 15 min</span>
        </Fact>
        <Fact name="This server">
          {bytes(data.server.resident)}{" "}
          <span className="muted">
            process {data.server.process}, {duration(data.server.cpu_seconds)} of CPU time
          </span>
        </Fact>
      </dl>
      <Section title="Usage">
        <ul className="uses">
          <Use name="Memory of the machine" used={used} size={data.memory} />
          <Use name="Memory that runs may take" isLimit used={data.run_memory_shared} size={data.run_memory} />
          {data.scratch.map((disk) => (
            <Use key={disk.path} name="Scratch" path={disk.path} used={disk.used} size={disk.used + disk.free} />
          ))}
          <Use name="State" path={data.state.path} used={data.state.used} size={data.state.used + data.state.free} />
          {data.pools.map((pool) => (
            <li key={pool.name}>
              <span>
                Pool <code>{pool.name}</code>
              </span>
              <Meter share={pool.size > 0 ? pool.used / pool.size : 0} label={`Pool ${pool.name}`} />
              <span className="numeric">
                {pool.used} of {pool.size}
              </span>
            </li>
          ))}
        </ul>
      </Section>
      <Section title="Usage by run">
        {data.runs.length > 0 ? (
          <Table
            caption="Processes of the runs"
            rows={data.runs}
            rowKey={(run) => run.run}
            columns={[
              { name: "File", isHead: true, cell: (run) => <Link href={to.run(run.run)}>{run.file ?? run.job}</Link> },
              { name: "Process", isNumber: true, isMinor: true, cell: (run) => run.process },
              { name: "Memory", isNumber: true, cell: (run) => bytes(run.resident) },
              { name: "CPU time", isNumber: true, cell: (run) => duration(run.cpu_seconds) },
              { name: "Threads", isNumber: true, isMinor: true, cell: (run) => count(run.threads) },
            ]}
          />
        ) : (
          <Empty>Nothing is running.</Empty>
        )}
      </Section>
    </>
  );
}

function Use({
  name,
  path,
  used,
  size,
  isLimit,
}: {
  name: string;
  path?: string;
  used: number;
  size: number;
  /** It may be taken as a whole. */
  isLimit?: boolean;
}) {
  const share = size > 0 ? used / size : 0;
  return (
    <li>
      <span>
        {name} {path && <code>{path}</code>}
      </span>
      <Meter share={share} label={path ? `${name} ${path}` : name} isLimit={isLimit} />
      <span className="numeric">
        {bytes(used)} of {bytes(size)} <span className="muted">{percent(share)}</span>
      </span>
    </li>
  );
}

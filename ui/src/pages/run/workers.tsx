import { memo } from "react";
import type { ClusterReport, WorkerReport } from "../../api/types";
import { Section } from "../../parts/basics";
import { bytes, count, duration, percent, plural } from "../../parts/format";
import { Table } from "../../parts/table";

/** What the workers of a cluster do, or have done: who, how much, and who was lost. */
export const Workers = memo(function Workers({ cluster, isLive }: { cluster: ClusterReport; isLive: boolean }) {
  if (cluster.workers.length === 0) return isLive ? <NoWorker /> : null;
  const all = cluster.workers.reduce((sum, worker) => sum + worker.bytes, 0);
  const sorted = [...cluster.workers].sort((a, b) => b.bytes - a.bytes);
  const [done, listed] = cluster.units;
  return (
    <Section title="Workers">
      <p className="muted">
        {isLive && `${plural(cluster.now, "worker")} now, ${plural(cluster.reading, "bundle")} being read, `}
        {count(done)} of {plural(listed, "file")} done
      </p>
      <Table
        caption="Workers, those that have read most first"
        rows={sorted}
        isBoxed
        rowKey={(worker, index) => `${worker.worker} ${index}`}
        columns={[
          { name: "Worker", isHead: true, cell: (worker) => worker.worker },
          { name: "Cores", isNumber: true, isMinor: true, cell: (worker) => count(worker.cores) },
          { name: "Files", isNumber: true, cell: (worker) => count(worker.units) },
          { name: "Rows", isNumber: true, cell: (worker) => count(worker.rows) },
          { name: "Bytes", isNumber: true, cell: (worker) => bytes(worker.bytes) },
          { name: "Share", isNumber: true, isMinor: true, cell: (worker) => (all > 0 ? percent(worker.bytes / all) : "–") },
          { name: "Processor", isNumber: true, isMinor: true, cell: (worker) => duration(worker.cpu_seconds) },
          { name: "Memory", isNumber: true, isMinor: true, cell: (worker) => bytes(worker.peak_rss_bytes) },
          { name: "State", isText: true, cell: (worker) => <State worker={worker} /> },
        ]}
      />
    </Section>
  );
});

function State({ worker }: { worker: WorkerReport }) {
  if (worker.lost) return <span className="bad">lost: {worker.lost}</span>;
  return <span className="muted">{worker.bundles > 0 ? plural(worker.bundles, "bundle") : "joined"}</span>;
}

const NoWorker = () => (
  <Section title="Workers">
    <p className="muted">No worker has joined yet.</p>
  </Section>
);

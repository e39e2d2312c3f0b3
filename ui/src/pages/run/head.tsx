import { useState } from "react";
import type { Live, RunDetail } from "../../api/types";
import { useMay } from "../../api/session";
import { ErrorNote, Fact, PageHead, Progress, Text } from "../../parts/basics";
import { Ago, Took, When } from "../../parts/clock";
import { bytes, count, duration, percent, rate, wholeDuration } from "../../parts/format";
import { OutcomeBadge } from "../../parts/outcome";
import { Link, navigateLater, to } from "../../parts/route";
import { ActButton, CancelButton, resume } from "../../parts/run-buttons";
import { StartDialog } from "../job/start";

export function RunHead({ detail, live }: { detail: RunDetail; live: Live | null }) {
  const { run, can, chain } = detail;
  const [isStarting, setStarting] = useState(false);
  const mayOperate = useMay("operate");
  const goOn = () => {
    const go = navigateLater();
    return resume(run.run, (next) => go(to.run(next)));
  };
  const values = Object.fromEntries(
    run.variables
      .split("\n")
      .filter(Boolean)
      .map((line) => {
        const at = line.indexOf("=");
        return [line.slice(0, at), line.slice(at + 1)];
      }),
  );
  return (
    <>
      <PageHead
        over={
          <>
            <Link href={run.file ? to.runsOf(run.file) : "/runs"}>Runs</Link>
            {run.of_step && (
              <>
                {" "}
                · step {run.of_step.step} of <Link href={to.run(run.of_step.sequence)}>its sequence</Link>
              </>
            )}
          </>
        }
        title={run.file ? <Link href={to.job(run.file)}>{run.file}</Link> : run.job}
        tools={
          <>
            {can.cancel && <CancelButton run={run} />}
            {can.resume && (
              <ActButton isPrimary run={goOn}>
                Resume
              </ActButton>
            )}
            {can.start && mayOperate && run.file && (
              <button type="button" onClick={() => setStarting(true)}>
                Run again
              </button>
            )}
          </>
        }
      >
        <p className="row">
          <OutcomeBadge outcome={run.outcome} />
          {live && run.outcome === "running" && live.phase !== "reading" && <span className="badge">{live.phase}</span>}
          <Took began={run.began} seconds={run.seconds} isRunning={run.outcome === "running"} />
          <span className="muted">
            {run.ended ? (
              <>
                ended <Ago at={run.ended} />
              </>
            ) : (
              <>
                began <Ago at={run.began} />
              </>
            )}
          </span>
        </p>
      </PageHead>
      {detail.errors.map((error, index) => (
        <ErrorNote key={index} error={error} isOld />
      ))}
      {run.message && detail.errors.length === 0 && (
        <p className={`run-message is-${run.outcome}`}>
          <Text>{run.message}</Text>
        </p>
      )}
      {run.outcome === "killed" && (
        <p className="run-message is-killed">
          Its process was killed, or the machine went down. What it had committed stays.
          {can.resume && " Resume loads the rest, and nothing twice."}
        </p>
      )}
      {run.outcome === "running" && <RunProgress detail={detail} live={live} />}
      {chain.length > 1 && <Chain detail={detail} />}
      {isStarting && run.file && <StartDialog file={run.file} values={values} onClose={() => setStarting(false)} />}
    </>
  );
}

function RunProgress({ detail: { run }, live }: { detail: RunDetail; live: Live | null }) {
  const units = live && live.units_expected > 0 ? `${count(live.units)} of ${count(live.units_expected)} units` : null;
  const read = live && live.bytes_expected > 0 ? `${bytes(live.bytes_read)} of ${bytes(live.bytes_expected)}` : null;
  return (
    <div className="run-progress">
      <Progress share={run.share} label="Progress of the run" />
      <p className="row muted">
        {run.share !== null && <strong>{percent(run.share)}</strong>}
        {live && run.kind === "job" && <span>{rate(live.rate)}</span>}
        {units && <span>{units}</span>}
        {read && <span>{read}</span>}
        {live?.eta != null && <span>about {wholeDuration(live.eta)} left</span>}
      </p>
    </div>
  );
}

function Chain({ detail: { chain, run } }: { detail: RunDetail }) {
  return (
    <nav className="chain" aria-label="Attempts">
      <span className="muted">Attempts</span>
      {chain.map((its, index) => (
        <Link key={its.run} href={to.run(its.run)} aria-current={its.run === run.run ? "page" : undefined}>
          {index + 1} <OutcomeBadge outcome={its.outcome} />
        </Link>
      ))}
    </nav>
  );
}

export function RunFacts({ detail: { run, report }, live }: { detail: RunDetail; live: Live | null }) {
  const written = live?.bytes_written ?? report?.bytes_written;
  const read = live?.bytes_read ?? report?.bytes_read;
  // One that was killed has stored nothing at its end.
  const last = run.outcome === "killed" ? live?.points.at(-1) : undefined;
  return (
    <dl className="facts">
      {run.kind === "job" && (
        <>
          <Fact name="Rows read">{count(last?.rows_read ?? run.rows_read)}</Fact>
          <Fact name="Rows written">{count(last?.rows_written ?? run.rows_written)}</Fact>
          <Fact name="Rejected">
            {run.rows_rejected > 0 ? <Link href={to.rejects(run.run)}>{count(run.rows_rejected)}</Link> : "0"}
          </Fact>
          {read !== undefined && <Fact name="Bytes read">{bytes(read)}</Fact>}
          {written !== undefined && written > 0 && <Fact name="Bytes written">{bytes(written)}</Fact>}
        </>
      )}
      {live && live.memory_limit > 0 && (
        <Fact name="Memory">
          {bytes(live.memory_used)} <span className="muted">of {bytes(live.memory_limit)}</span>
        </Fact>
      )}
      {!live && report?.peak_rss_bytes !== undefined && <Fact name="Peak memory">{bytes(report.peak_rss_bytes)}</Fact>}
      {!live && report?.cpu_seconds !== undefined && <Fact name="CPU time">{duration(report.cpu_seconds)}</Fact>}
      {live?.queue && <QueueFacts queue={live.queue} />}
      <Fact name="Began">
        <When at={run.began} />
      </Fact>
      {run.variables && (
        <Fact name="Variables">
          <code>{run.variables.split("\n").join("  ")}</code>
        </Fact>
      )}
      <Fact name="Run">
        <code>{run.run}</code>
      </Fact>
    </dl>
  );
}

function QueueFacts({ queue }: { queue: NonNullable<Live["queue"]> }) {
  return (
    <>
      {queue.lag !== null && <Fact name="Lag">{count(queue.lag)} messages</Fact>}
      {queue.oldest_seconds !== null && <Fact name="Oldest">{duration(queue.oldest_seconds)}</Fact>}
      <Fact name="Commits">{count(queue.epochs)}</Fact>
    </>
  );
}

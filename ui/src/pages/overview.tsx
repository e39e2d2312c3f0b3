import { useData } from "../api/data";
import { endpoint } from "../api/client";
import type { Overview, RunSummary, Scheduled } from "../api/types";
import { Empty, PageHead, Progress, Ready, Section, Text, useTitle } from "../parts/basics";
import { Ago, Took, Until } from "../parts/clock";
import { compact, localMoment, moment, percent, rate } from "../parts/format";
import { Icon } from "../parts/icons";
import { OutcomeBadge } from "../parts/outcome";
import { Link, to } from "../parts/route";
import { ResumeButton } from "../parts/run-buttons";
import { Strip } from "../parts/strip";
import { Table } from "../parts/table";

export function OverviewPage() {
  useTitle("Overview");
  const overview = useData<Overview>(endpoint("/overview"));
  return (
    <>
      <PageHead title="Overview" />
      <Ready of={overview}>{(data) => <Content data={data} />}</Ready>
    </>
  );
}

function Content({ data }: { data: Overview }) {
  const hasRuns = data.strips.length > 0 || data.running.length > 0;
  return (
    <div className="overview">
      <Section title="Running">
        {data.running.length > 0 ? (
          <ul className="cards">
            {data.running.map((run) => (
              <RunningCard key={run.run} run={run} />
            ))}
          </ul>
        ) : hasRuns ? (
          <Empty>
            Nothing is running. Start a job from <Link href="/jobs">Jobs</Link>.
          </Empty>
        ) : (
          <Empty>
            No runs yet: start one from <Link href="/jobs">Jobs</Link>, or <code>millstream run JOB</code> in a
            terminal.
          </Empty>
        )}
      </Section>
      {data.waiting.length > 0 && <Waiting data={data.waiting} />}
      {data.unfinished.length > 0 && (
        <Section title="Failed or unfinished">
          <ul className="list">
            {data.unfinished.map((run) => (
              <Unfinished key={run.run} run={run} />
            ))}
          </ul>
        </Section>
      )}
      <Section title="Next" tools={<SchedulerState state={data.schedule.scheduler.state} />}>
        <Next sequences={data.schedule.sequences} />
      </Section>
      {data.strips.length > 0 && (
        <Section title="Last runs" tools={<Link href="/runs">All runs</Link>}>
          <ul className="strips">
            {data.strips.map((strip) => (
              <li key={strip.job}>
                {strip.file ? <Link href={to.job(strip.file)}>{strip.file}</Link> : <span>{strip.job}</span>}
                <Strip runs={strip.runs} label={`Last runs of ${strip.file ?? strip.job}`} />
              </li>
            ))}
          </ul>
        </Section>
      )}
      {data.notices.length > 0 && <Notices notices={data.notices} />}
    </div>
  );
}

function RunningCard({ run }: { run: RunSummary }) {
  const name = run.file ?? run.job;
  return (
    <li className="card">
      <div className="card-head">
        <Link href={to.run(run.run)}>{name}</Link>
        {run.outcome !== "running" && <OutcomeBadge outcome={run.outcome} />}
        <span className="muted">{run.of_step && `step ${run.of_step.step}`}</span>
      </div>
      <Progress share={run.outcome === "running" ? run.share : 1} label={`Progress of ${name}`} />
      <div className="card-numbers">
        <span>{run.share !== null ? percent(run.share) : run.kind}</span>
        <span>
          {run.kind === "job" && `${compact(run.rows_written)} written`}
          {run.kind === "job" && run.rate !== null && `, ${rate(run.rate)}`}
        </span>
        <Took began={run.began} seconds={run.seconds} isRunning={run.outcome === "running"} />
      </div>
    </li>
  );
}

function Waiting({ data }: { data: Overview["waiting"] }) {
  return (
    <Section title="Waiting for their hours">
      <ul className="list">
        {data.map((run) => (
          <li key={`${run.job} ${run.since}`}>
            <div className="list-main">
              {run.file ? <Link href={to.job(run.file)}>{run.file}</Link> : run.job}
              {run.of_step && <span className="muted"> step {run.of_step.step}</span>}
              <p className="muted">
                {run.has_begun ? "Pauses" : "Waits"} until {run.until}; its hours are {run.hours}
              </p>
            </div>
            <span className="muted">
              started waiting <Ago at={run.since} />
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}

function Unfinished({ run }: { run: RunSummary }) {
  return (
    <li>
      <div className="list-main">
        <div className="row">
          <OutcomeBadge outcome={run.outcome} />
          <Link href={to.run(run.run)}>{run.file ?? run.job}</Link>
          <span className="muted">
            <Ago at={run.ended ?? run.began} />
          </span>
        </div>
        {run.message && (
          <p className="message">
            <Text>{run.message}</Text>
          </p>
        )}
      </div>
      <ResumeButton run={run} />
    </li>
  );
}

function SchedulerState({ state }: { state: "here" | "elsewhere" | "stopped" }) {
  if (state === "stopped") {
    return (
      <span className="badge tone-warn">
        <Icon name="warning" /> no scheduler runs
      </span>
    );
  }
  return (
    <span className="muted">{state === "here" ? "scheduled by this server" : "scheduled by another process"}</span>
  );
}

function Next({ sequences }: { sequences: Scheduled[] }) {
  if (sequences.length === 0) {
    return (
      <Empty>
        No sequence has a schedule. Add <code>schedule:</code> to one, and its times appear here.
      </Empty>
    );
  }
  const sorted = [...sequences].sort(
    (a, b) => (a.next[0] ? Date.parse(a.next[0]) : Infinity) - (b.next[0] ? Date.parse(b.next[0]) : Infinity),
  );
  return (
    <Table
      caption="Scheduled sequences, by their next time"
      rows={sorted}
      rowKey={(row) => row.sequence}
      columns={[
        {
          name: "Sequence",
          isHead: true,
          cell: (row) => (row.file ? <Link href={to.job(row.file)}>{row.file}</Link> : row.sequence),
        },
        {
          name: "Next",
          cell: (row) =>
            row.next[0] ? (
              <>
                <span className="nowrap">
                  {localMoment(row.next[0])} <span className="muted">{row.timezone}</span>
                </span>{" "}
                <span className="muted nowrap">
                  <Until at={Date.parse(row.next[0])} />
                </span>
              </>
            ) : (
              <span className="muted">{row.triggers.join("; ") || "no time"}</span>
            ),
        },
        { name: "Now", isMinor: true, cell: (row) => (row.running ? "running" : row.queued ? "queued" : "") },
        {
          name: "Last",
          cell: (row) =>
            row.last?.outcome ? <OutcomeBadge outcome={row.last.outcome} /> : <span className="muted">never</span>,
        },
        {
          name: "Missed",
          isMinor: true,
          cell: (row) =>
            row.missed && (
              <span className="warn" title={row.missed.why}>
                {row.missed.count} since {moment(row.missed.first, false)}
              </span>
            ),
        },
      ]}
    />
  );
}

function Notices({ notices }: { notices: Overview["notices"] }) {
  return (
    <Section title="Notices">
      <ul className="notices">
        {notices.slice(0, 20).map((notice, index) => (
          <li key={`${notice.when} ${index}`} className={`notice-${notice.level}`}>
            <Icon name={notice.level} />
            <span>
              <span className="visually-hidden">{notice.level}: </span>
              <Text>{notice.text}</Text>
            </span>
            <span className="muted nowrap">
              <Ago at={notice.when} />
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}

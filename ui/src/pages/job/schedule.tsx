import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import type { Occurrence, Schedule, Scheduled } from "../../api/types";
import { Empty, Fact, Ready, Section } from "../../parts/basics";
import { Until } from "../../parts/clock";
import { localMoment, moment, plural } from "../../parts/format";
import { OutcomeBadge } from "../../parts/outcome";
import { Link, to } from "../../parts/route";
import { Table } from "../../parts/table";

const TIMES = 10;

export function JobSchedule({ file }: { file: string }) {
  const schedule = useData<Schedule>(endpoint("/schedule", { times: TIMES }));
  return (
    <Ready of={schedule}>
      {(data) => {
        const its = data.sequences.find((sequence) => sequence.file === file);
        if (!its) {
          return (
            <Empty>
              It has no schedule. Add{" "}
              <code>
                schedule: {"{"}cron: "0 2 * * *"{"}"}
              </code>{" "}
              to the file, and it starts by itself.
            </Empty>
          );
        }
        return <Times schedule={data} its={its} />;
      }}
    </Ready>
  );
}

function Times({ schedule, its }: { schedule: Schedule; its: Scheduled }) {
  return (
    <>
      {schedule.scheduler.state === "stopped" && (
        <p className="note note-warning">No scheduler runs, so nothing starts by itself.</p>
      )}
      {its.missed && (
        <p className="note note-warning">
          {plural(its.missed.count, "time")} missed between {moment(its.missed.first, false)} and{" "}
          {moment(its.missed.last, false)}: {its.missed.why}
        </p>
      )}
      <dl className="facts">
        <Fact name="Time zone">{its.timezone}</Fact>
        {its.triggers.length > 0 && <Fact name="Also starts">{its.triggers.join("; ")}</Fact>}
        {its.running && (
          <Fact name="Running">
            <OccurrenceText of={its.running} />
          </Fact>
        )}
        {its.queued && (
          <Fact name="Queued">
            <OccurrenceText of={its.queued} />
          </Fact>
        )}
        <Fact name="Last">{its.last ? <OccurrenceText of={its.last} /> : "never"}</Fact>
      </dl>
      <Section title="Next times">
        {its.next.length > 0 ? (
          <Table
            caption="The next times at which it starts"
            rows={its.next}
            rowKey={(time) => time}
            columns={[
              { name: `In ${its.timezone}`, isHead: true, cell: (time) => localMoment(time) },
              { name: "Here", cell: (time) => moment(Date.parse(time), false) },
              { name: "From now", cell: (time) => <Until at={Date.parse(time)} /> },
            ]}
          />
        ) : (
          <Empty>It starts at no fixed time.</Empty>
        )}
      </Section>
    </>
  );
}

function OccurrenceText({ of }: { of: Occurrence }) {
  const planned = `planned for ${moment(of.planned, false)}`;
  return (
    <>
      {of.outcome && <OutcomeBadge outcome={of.outcome} />}{" "}
      {of.run ? <Link href={to.run(of.run)}>{planned}</Link> : planned}
      {of.why && <span className="muted"> ({of.why})</span>}
    </>
  );
}

"""What a run has done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class _Record:
    """Values by their names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class Tally(_Record):
    """What has become of the records on their way to a sink. `read` is the sum of the others; where steps answer rows
    in batches, `read` and what these have `given` are that sum and what they have `answered`."""

    read: int
    written: int
    filtered: int
    rejected: int
    ignored: int
    before: int
    answered: int = 0
    given: int = 0


class Removed(_Record):
    """Files of earlier runs that a run has removed."""

    files: int
    first: list[str]


class Changes(_Record):
    """What has changed in a target whose rows were compared with those that came."""

    inserted: int
    updated: int
    unchanged: int
    deleted: int


class ReloadedFiles(_Record):
    """Files whose rows a sink has replaced."""

    files: int
    rows_deleted: int
    rows_inserted: int
    without_rows: list[str]


class SinkResult(_Record):
    """What a sink now holds."""

    sink: str
    target: str
    summary: str
    removed: Removed | None
    reloaded: ReloadedFiles | None = None
    changes: Changes | None
    tally: Tally | None


class LeftFiles(_Record):
    """Files of a source that a run has left alone."""

    source: str
    files: int
    first: list[str]


class UnmatchedPatterns(_Record):
    """The patterns of a source that match no file."""

    source: str
    patterns: list[str]


class LeftFile(_Record):
    """A file that stays where it is, though it is loaded."""

    uri: str
    what: str


class DisposedFiles(_Record):
    """What has become of the files of a source once they were loaded."""

    source: str
    moved: int
    deleted: int
    left: int
    first_left: list[LeftFile]


class WindowRead(_Record):
    """The rows that a run has read of a source with ``incremental: {by: COLUMN}``."""

    source: str
    by: str
    #: The first time that was read.
    from_: str | None
    until: str | None
    mark: str


class CheckResult(_Record):
    """What a check of an entry's rows has come to."""

    entry: str
    check: str
    severity: str
    holds: bool
    rows: int
    broken: int
    at_most: str | None = None
    what: str
    examples: Sequence[str] = ()


class HookResult(_Record):
    """What has become of something that was done after a run."""

    hook: str
    error: str | None


class Skipped(_Record):
    """A file that could not be opened and was left out."""

    source: str
    uri: str | None
    what: str


class MissingColumn(_Record):
    """A column that files lacked."""

    source: str
    column: str
    files: int
    first: list[str]


class Step(_Record):
    """The counters of one step. Times are in seconds, summed over all threads."""

    name: str
    kind: str
    detail: str
    units: int
    units_total: int
    rows: int
    rejected: int
    bytes: int
    bytes_total: int
    busy: float
    waiting: float
    waiting_input: float
    waiting_output: float
    waiting_scratch: float
    spilled_bytes: int
    spilled_for_want: int
    #: Records that lack the text of `contains`, and were not parsed.
    passed_over: int = 0


class JobEntry(_Record):
    """An entry of a job: a ``source``, ``transform`` or ``sink``, and the entries whose rows it reads."""

    entry: str
    kind: str
    reads: list[str]


class TimePoint(_Record):
    """How far a run was at a point of its time; all counts are since its beginning."""

    elapsed_ms: int
    rows_read: int
    rows_written: int
    bytes_read: int


class Interval(_Record):
    """What a run that reads a queue did in an interval of its time. Times are in UTC."""

    #: When it began: ``2026-11-26T00:31:28Z``.
    from_: str
    to: str
    messages: int
    rows_written: int
    rejected: int
    epochs: int
    lag: int | None
    oldest_seconds: float | None


class Verdict(_Record):
    """What limited the run; if it has read a queue for more than a minute, in the last minute."""

    limit: str
    sentence: str


class WorkerReport(_Record):
    """What a worker of a cluster has done for a run. Times are in seconds."""

    #: Its machine and process.
    worker: str
    cores: int
    memory_bytes: int
    bundles: int
    units: int
    rows: int
    bytes: int
    seconds: float
    cpu_seconds: float
    delayed_seconds: float
    peak_rss_bytes: int
    #: Why it was lost, if it was.
    lost: str | None = None


class ClusterReport(_Record):
    """What the workers of a cluster have done for a run."""

    bundles: int
    #: Files that they have read, and those that there were.
    units: list[int]
    bytes: list[int]
    workers: Sequence[WorkerReport] = ()


class Report(_Record):
    """What a run has done. As text it is the report that the command prints; a notebook shows it as tables.

    >>> report = millstream.run("job.yaml")
    >>> report.rows_read, report.rows_written, report.results[0].target
    (4, 2, 'out/countries.csv')
    >>> print(report)  # doctest: +ELLIPSIS
    done in ...: 4 rows read, 2 written, 0 rejected
    ...
    """

    job: str
    run: str
    resumes: str | None
    began: str
    earlier_day: str | None = None
    skipped_run: str | None = None
    attempts: int
    nothing_new: bool
    units_loaded_before: int
    caught_up: bool
    seconds: float
    rows_read: int
    rows_written: int
    rows_rejected: int
    rejects: str | None
    units_skipped: int
    skipped: list[Skipped]
    not_ready: list[LeftFiles]
    changed: list[LeftFiles]
    disposed: list[DisposedFiles]
    missing_columns: list[MissingColumn]
    checks: list[CheckResult]
    bytes_read: int
    bytes_from_cache: int
    bytes_from_disk: int
    bytes_written: int
    peak_rss_bytes: int
    peak_memory_bytes: int
    peak_workers_bytes: int
    memory_bytes: int
    cores: int
    cpu_seconds: float
    results: list[SinkResult]
    steps: list[Step]
    verdict: Verdict
    hooks: Sequence[HookResult] = ()
    windows: Sequence[WindowRead] = ()
    unmatched: Sequence[UnmatchedPatterns] = ()
    intervals: Sequence[Interval] = ()
    entries: Sequence[JobEntry] = ()
    points: Sequence[TimePoint] = ()
    catch_up_runs: Sequence[str] = ()
    cluster: ClusterReport | None = None

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self._values = dict(values)
        self._text = text
        self.skipped = [Skipped(one) for one in values["skipped"]]
        self.not_ready = [LeftFiles(one) for one in values["not_ready"]]
        self.changed = [LeftFiles(one) for one in values["changed"]]
        self.disposed = [_disposed(one) for one in values["disposed"]]
        self.checks = [CheckResult(one) for one in values["checks"]]
        self.hooks = [HookResult(one) for one in values.get("hooks", ())]
        self.windows = [WindowRead(_named(one)) for one in values.get("windows", ())]
        self.intervals = [Interval(_named(one)) for one in values.get("intervals", ())]
        self.entries = [JobEntry(one) for one in values.get("entries", ())]
        self.points = [TimePoint(one) for one in values.get("points", ())]
        self.cluster = _cluster(values["cluster"]) if values.get("cluster") else None
        self.unmatched = [UnmatchedPatterns(one) for one in values.get("unmatched", ())]
        self.missing_columns = [MissingColumn(one) for one in values["missing_columns"]]
        self.results = [_result(one) for one in values["results"]]
        self.steps = [Step(one) for one in values["steps"]]
        self.verdict = Verdict(values["verdict"])

    def to_dict(self) -> dict[str, Any]:
        """The report as `millstream run --json` prints it.

        >>> millstream.run("job.yaml").to_dict()["rows_written"]
        2
        """
        return dict(self._values)

    def __str__(self) -> str:
        return self._text.rstrip()

    def __repr__(self) -> str:
        return f"<millstream.Report of run {self.run}: {self.rows_read} rows read, {self.rows_written} written>"

    def _repr_html_(self) -> str:
        from millstream._html import report

        return report(self)


def _result(values: Mapping[str, Any]) -> SinkResult:
    kinds = {"removed": Removed, "reloaded": ReloadedFiles, "changes": Changes, "tally": Tally}
    found = {name: kind(values[name]) for name, kind in kinds.items() if values.get(name) is not None}
    return SinkResult({**values, **found})


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"from_" if name == "from" else name: value for name, value in values.items()}


def _cluster(values: Mapping[str, Any]) -> ClusterReport:
    return ClusterReport({**values, "workers": [WorkerReport(one) for one in values["workers"]]})


def _disposed(values: Mapping[str, Any]) -> DisposedFiles:
    return DisposedFiles({**values, "first_left": [LeftFile(one) for one in values["first_left"]]})

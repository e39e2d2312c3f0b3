"""Runs batch jobs: reads compressed files from anywhere, transforms them with SQL and Python, and loads them.

>>> import millstream
>>> places = millstream.read("places/*.csv.gz", columns=["name", "population"])
>>> places.schema
{'name': 'utf8', 'population': 'int64'}

- `run` runs a job file, `Job` builds one;
- `read` and `sql` give rows that pandas, Polars, DuckDB and pyarrow take as they are;
- `write` loads the rows of any of these into a file or a database.
"""

from millstream._errors import Error, JobWarning, Problem, RejectWarning
from millstream._job import Job
from millstream._millstream import Batch, __version__
from millstream._report import (
    Changes,
    CheckResult,
    ClusterReport,
    DisposedFiles,
    HookResult,
    Interval,
    JobEntry,
    LeftFile,
    LeftFiles,
    MissingColumn,
    ReloadedFiles,
    Removed,
    Report,
    SinkResult,
    Skipped,
    Step,
    Tally,
    TimePoint,
    UnmatchedPatterns,
    Verdict,
    WindowRead,
    WorkerReport,
)
from millstream._rows import Rows, read, sql
from millstream._run import run
from millstream._write import write

__all__ = [
    "Batch",
    "Changes",
    "CheckResult",
    "ClusterReport",
    "DisposedFiles",
    "Error",
    "HookResult",
    "Interval",
    "Job",
    "JobEntry",
    "JobWarning",
    "LeftFile",
    "LeftFiles",
    "MissingColumn",
    "Problem",
    "RejectWarning",
    "ReloadedFiles",
    "Removed",
    "Report",
    "Rows",
    "SinkResult",
    "Skipped",
    "Step",
    "Tally",
    "TimePoint",
    "UnmatchedPatterns",
    "Verdict",
    "WindowRead",
    "WorkerReport",
    "__version__",
    "read",
    "run",
    "sql",
    "write",
]

"""Runs of jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream import _millstream
from millstream._report import Report
from millstream._show import Show
from millstream._values import as_texts, limits

if TYPE_CHECKING:
    from millstream._job import Job
    from millstream._values import Path


def run(
    job: Path | Job,
    *,
    variables: Mapping[str, object] | None = None,
    resume: bool = False,
    restart: bool = False,
    accept_changed: bool = False,
    machine: Path | None = None,
    memory: int | str | None = None,
    cores: int | None = None,
    progress: bool | None = None,
) -> Report:
    """Runs a job to its end, and returns its report.

    >>> report = millstream.run("job.yaml", variables={"LEAST": 100_000}, memory="512MB")
    >>> report.rows_written
    2

    `job` is the path of a job file, or a `Job`. `variables` are the values of variables such as `${DAY}` in it. With
    `resume` the last run of the job is continued where it stopped, with `restart` started again; `accept_changed` loads
    files that have changed meanwhile as they are now. `memory`, `cores` and `machine` (a machine file) say what
    Millstream may use. The progress is shown on a terminal and in a notebook; `progress=False` shows none.

    Ctrl-C cancels the run: what is not complete is rolled back, then `KeyboardInterrupt` is raised. A second Ctrl-C
    does not wait for that.

    Raises `Error` with everything that is wrong.
    """
    from millstream._job import Job

    if isinstance(job, Job):
        return job.run(
            variables=variables,
            resume=resume,
            restart=restart,
            accept_changed=accept_changed,
            machine=machine,
            memory=memory,
            cores=cores,
            progress=progress,
        )
    options = as_options(resume, restart, accept_changed)
    return start(os.fspath(job), None, variables, options, limits(machine, memory, cores), progress)


def as_options(resume: bool, restart: bool, accept_changed: bool) -> _millstream.Options:
    """How a run goes on from earlier ones."""
    if resume and restart:
        raise ValueError("resume and restart: a run is continued or started again, so give one of them")
    return {"resume": resume, "restart": restart, "accept_changed": accept_changed}


def start(
    path: str,
    job: str | None,
    variables: Mapping[str, object] | None,
    options: _millstream.Options,
    limits: _millstream.Limits,
    progress: bool | None,
) -> Report:
    """Runs the job file at `path`, or `job`, which is JSON, under that path."""
    show = Show(progress)
    try:
        json, text = _millstream.run(
            path, job, as_texts(variables), options, limits, show, show.in_notebook, show.on_terminal
        )
    finally:
        show.end()
    return as_report(json, text)


def as_report(values: str, text: str) -> Report:
    """The report of a run, which is JSON, and its text."""
    import json

    return Report(json.loads(values), text)

"""Reports and progress for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream._report import Report


def report(of: Report) -> str:
    """The report: what the sinks hold, the steps, and the verdict."""
    rejected = f", <b>{of.rows_rejected:,} rejected</b>" if of.rows_rejected else ""
    nothing_new = "<p>Nothing new: everything was loaded before.</p>" if of.nothing_new else ""
    results = ((result.sink, result.target, result.summary) for result in of.results)
    steps = (
        (step.name, step.kind, f"{step.rows:,}", _size(step.bytes), f"{step.busy:.2f} s", f"{step.waiting:.2f} s")
        for step in of.steps
        if step.rows or step.bytes
    )
    return "".join((
        f"<div><p>{escape(of.job)}: {of.rows_read:,} rows read, {of.rows_written:,} written{rejected} in ",
        f"{of.seconds:.2f} s, peak memory {_size(of.peak_rss_bytes)}</p>{nothing_new}",
        _table(("sink", "target", "result"), results),
        "<details><summary>Steps</summary>",
        _table(("step", "kind", "rows", "bytes", "busy", "waiting"), steps),
        f"</details><p>{escape(of.verdict.sentence)}</p></div>",
    ))


def progress(text: str, share: float | None) -> str:
    """A bar, if the share is known, and the text."""
    bar = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
    return f"<div>{bar}{escape(text)}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"

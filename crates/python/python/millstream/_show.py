"""What is shown while a run lasts: on a terminal, in a notebook, or nothing."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

from millstream._errors import JobWarning, RejectWarning


class Show:
    """Shows how a run goes. What programs of the run say, and what is strange about it, is shown in any case."""

    def __init__(self, progress: bool | None) -> None:
        wanted = progress is not False
        self.in_notebook = wanted and _in_notebook()
        """Whether the progress comes to this object."""
        self.on_terminal = wanted and not self.in_notebook and _on_terminal()
        """Whether a bar is drawn on the terminal, by the engine."""
        self._handle: Any = None

    def __call__(self, kind: str, text: str, share: float | None) -> None:
        if kind == "warning":
            warnings.warn(text, JobWarning, stacklevel=_levels_above())
        elif kind == "line":
            print(text, file=sys.stderr, flush=True)
        else:
            self._progress(text, share)

    def _progress(self, text: str, share: float | None) -> None:
        from millstream._html import progress

        form = {"text/plain": text, "text/html": progress(text, share)}
        if self._handle is None:
            from importlib import import_module

            notebook: Any = import_module("IPython.display")
            self._handle = notebook.display(form, raw=True, display_id=True)
        elif self._handle is not False:
            self._handle.update(form, raw=True)

    def end(self) -> None:
        """Removes what was shown of the progress."""
        if self._handle:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


def warn(texts: Sequence[str]) -> None:
    """Warns the caller of the package of what is strange."""
    for text in texts:
        warnings.warn(text, JobWarning, stacklevel=_levels_above())


def left_out(count: int, first: str | None, begun: tuple[str, int] | None) -> None:
    """Warns the caller of the package, or of the library that reads, of records that a read has left out. `first` is
    the place and the reason of one of them, `begun` the line that has begun the read. The extension calls this, on any
    thread."""
    records = "1 record was" if count == 1 else f"{count:,} records were"
    text = f"{records} left out, as `max_rejects` allows"
    if first is not None:
        text += f"; {'it is' if count == 1 else 'the first one'}: {first}"
    warning, (file, line) = RejectWarning(text, count), place() or begun or ("<read>", 1)
    warnings.warn_explicit(warning, None, file, line, registry=_TOLD.setdefault(file, {}))


_TOLD: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}
"""What was told, by the file of the caller, for filters that tell things once."""


def place() -> tuple[str, int] | None:
    """The file and the line of the caller of these packages, if there is one on this thread."""
    frame: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_reader(frame):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


_READERS = ("duckdb", "millstream", "pandas", "polars", "pyarrow")
"""Packages whose own lines tell nobody where rows are read."""


def _levels_above() -> int:
    """How many calls there are from the caller of these packages to the caller of this function, both included."""
    levels, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_reader(frame):
        frame, levels = frame.f_back, levels + 1
    return levels


def _is_reader(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _READERS


def _in_notebook() -> bool:
    """Whether this is a kernel, which shows more than text."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _on_terminal() -> bool:
    """Whether standard error is a terminal, and not redirected by somebody in this process."""
    return sys.stderr is not None and sys.stderr is sys.__stderr__ and sys.stderr.isatty()

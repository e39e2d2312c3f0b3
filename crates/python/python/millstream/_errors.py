"""What can go wrong: one exception with everything that was found."""

from __future__ import annotations


class Problem:
    """One thing that is wrong. What is not known is `None`."""

    __slots__ = (
        "byte", "cause", "column", "field", "file", "hint", "kind", "line", "member", "step", "text", "what"
    )

    def __init__(
        self,
        *,
        kind: str,
        what: str,
        file: str | None = None,
        member: str | None = None,
        line: int | None = None,
        column: int | None = None,
        byte: int | None = None,
        field: str | None = None,
        step: str | None = None,
        text: str | None = None,
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.kind = kind
        """What kind of fault it is: `job` (the job or the arguments are wrong), `data`, `refused` (a missing file, no
        rights), `transient` (trying again may help), `memory`, `rejects`, `interrupted` or `internal`."""
        self.what = what
        """What went wrong."""
        self.file = file
        """The job file, or the file or URL of the data."""
        self.member = member
        """The member of an archive."""
        self.line = line
        """The line in that file, from 1."""
        self.column = column
        """Where in the line of a job file, in characters from 1."""
        self.byte = byte
        """The byte, from 0."""
        self.field = field
        """The column of the data."""
        self.step = step
        """The entry of the job."""
        self.text = text
        """The offending text."""
        self.cause = cause
        """The cause, in the words of the system or of another library."""
        self.hint = hint
        """What to do about it."""

    @property
    def place(self) -> str:
        """Where it is, as text: `job.yaml:3:5`, or `data/a.csv, line 7`; empty if it is nowhere."""
        if self.column is not None:
            return f"{self.file}:{self.line}:{self.column}"
        byte = self.byte if self.line is None else None
        named = (("member", self.member), ("line", self.line), ("byte", byte), ("column", self.field))
        parts = [self.file] if self.file is not None else []
        return ", ".join(parts + [f"{name} {value}" for name, value in named if value is not None])

    def values(self) -> dict[str, object]:
        """All of it, by name."""
        return {name: getattr(self, name) for name in Problem.__slots__}

    def __repr__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        return f"<millstream.Problem {place}{self.what}>"


class Error(Exception):
    """Something does not run. Its text says all there is to say; `problems` has it in parts.

    >>> import millstream
    >>> try:
    ...     millstream.read("places/nowhere.csv")
    ... except millstream.Error as error:
    ...     problem = error.problems[0]
    >>> problem.file, problem.what
    ('places/nowhere.csv', 'there is no such file')

    `kind`, `what`, `place`, `text`, `cause` and `hint` are those of the first problem.
    """

    def __init__(self, text: str, problems: list[dict[str, object]] | None = None) -> None:
        super().__init__(text)
        self.problems: list[Problem] = [Problem(**problem) for problem in problems or []]  # type: ignore[arg-type]
        """Everything that is wrong."""

    def __reduce__(self) -> tuple[object, ...]:
        return Error, (str(self), [problem.values() for problem in self.problems])

    @property
    def kind(self) -> str:
        """The kind of the first problem."""
        return self.problems[0].kind if self.problems else "internal"

    @property
    def what(self) -> str:
        """What went wrong first."""
        return self.problems[0].what if self.problems else str(self)

    @property
    def place(self) -> str:
        """Where the first problem is."""
        return self.problems[0].place if self.problems else ""

    @property
    def text(self) -> str | None:
        """The offending text of the first problem."""
        return self.problems[0].text if self.problems else None

    @property
    def cause(self) -> str | None:
        """The cause of the first problem."""
        return self.problems[0].cause if self.problems else None

    @property
    def hint(self) -> str | None:
        """What to do about the first problem."""
        return self.problems[0].hint if self.problems else None


class JobWarning(UserWarning):
    """Something is strange about a job and no error."""


class RejectWarning(UserWarning):
    """A read has left out records that are wrong, as its `max_rejects` allows.

    >>> import millstream, polars, warnings
    >>> types = {"name": "utf8", "population": "int64"}
    >>> with open("odd.csv", "w") as file:
    ...     _ = file.write("name,population\\nUlm,126329\\nOslo,many\\n")
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", millstream.RejectWarning)
    ...     frame = polars.DataFrame(millstream.read("odd.csv", csv={"columns": types}, max_rejects=10))
    >>> frame.height, caught[0].message.count
    (1, 1)

    It comes when the read ends, or is left before its end, in whatever way the rows were read. To make it an error:
    `warnings.simplefilter("error", millstream.RejectWarning)`.
    """

    def __init__(self, text: str, count: int = 1) -> None:
        super().__init__(text, count)
        self.count = count
        """How many records were left out."""

    def __str__(self) -> str:
        return str(self.args[0])


def of_caller(what: str, *, text: str | None = None, hint: str | None = None) -> Error:
    """The error for a call that is wrong."""
    shown = f"error: {what}"
    if text is not None:
        shown += f"\n  text `{text}`"
    if hint is not None:
        shown += f"\nhint: {hint}"
    return Error(shown, [{"kind": "job", "what": what, "text": text, "hint": hint}])

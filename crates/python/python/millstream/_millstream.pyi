from collections.abc import Callable, Iterator
from typing import TypedDict, final

__version__: str

class Limits(TypedDict):
    machine: str | None
    memory: str | None
    cores: int | None

class Options(TypedDict):
    resume: bool
    restart: bool
    accept_changed: bool

# The file and the line of a program.
Place = tuple[str, int]

# What happens, as text, and the share of the work that is done.
Notify = Callable[[str, str, float | None], None]

@final
class Batch:
    """Some rows, by the Arrow PyCapsule interface: `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)`."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
    @property
    def num_columns(self) -> int:
        """How many columns there are."""
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class Batches(Iterator[Batch]):
    def __iter__(self) -> Batches: ...
    def __next__(self) -> Batch: ...
    def close(self) -> None: ...

@final
class Frame:
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

@final
class Frames(Iterator[Frame]):
    def __iter__(self) -> Frames: ...
    def __next__(self) -> Frame: ...

@final
class Rows:
    def __new__(cls, job: str, entry: str, limits: Limits) -> Rows: ...
    @staticmethod
    def of_query(query: str, limits: Limits) -> tuple[Rows, str, str]: ...
    @property
    def columns(self) -> list[tuple[str, str]]: ...
    @property
    def warnings(self) -> list[str]: ...
    def empty(self) -> Batch: ...
    def schema_capsule(self) -> object: ...
    def stream_capsule(self, place: Place | None) -> object: ...
    def batches(self, place: Place | None) -> Batches: ...
    def frames(self, place: Place | None) -> Frames: ...

def command(arguments: list[str]) -> int: ...
def job_text(job: str) -> str: ...
def run(
    path: str,
    job: str | None,
    variables: dict[str, str],
    options: Options,
    limits: Limits,
    notify: Notify,
    progress: bool,
    terminal: bool,
) -> tuple[str, str]: ...
def write(
    data: object, sink: str, limits: Limits, notify: Notify, progress: bool, terminal: bool
) -> tuple[str, str]: ...

"""The rows that are loaded into databases: posts of a forum, as JSON lines and as the same rows ready for a bulk load.

Like the records of seed 3 in number and size: 5,275,521 lines of about 210 bytes, nine columns, `id` the primary key.
They are invented from the real names in `data.py`, and the same on every machine. What stands for all rows, to check
what a table holds after a load, is computed here as they are made.
"""

import concurrent.futures
import dataclasses
import functools
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from harness.data import real_places
from harness.store import Made, Store, scaled

POSTS = 5_275_521
SAMPLE = 100_000  # rows for those who would take hours
CHANGED = 10  # one row in so many is changed by a merge
DIFFERENT = 100  # one row in so many differs in a version of all posts
PARTS = 2
VERSION = 1  # to be raised when the rows change

# Name, type in the job file.
COLUMNS = {
    "id": "int64", "author": "utf8", "forum": "utf8", "created": "timestamp", "score": "int32", "ratio": "float64",
    "locked": "bool", "title": "utf8", "body": "utf8",
}  # fmt: skip
WORDS = (
    "the a of and to in is it for on with as was that be at by not are this have from or had but all were when there "
    "can an which you one we her she do how their if will up other about out many then them these so some would make "
    "like him into time has two more write go see number no way could people my than first water been call who oil its "
    "now find long down day did get come made may part naïve café Zürich “quoted”"
).split()


@dataclass(frozen=True)
class Sums:
    """What stands for the rows of a table: it differs if one is missing, there twice, or changed."""

    rows: int = 0
    ids: int = 0
    scores: int = 0
    locked: int = 0
    characters: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        """Both together."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Sums(*(one + two for one, two in zip(mine, theirs, strict=True)))

    def __sub__(self, other: "Sums") -> "Sums":
        """These without the others, which are among them."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Sums(*(one - two for one, two in zip(mine, theirs, strict=True)))


# The same of a table, in SQL that all databases understand.
SUMS_SQL = (
    "SELECT count(*), sum(id), sum(score), sum(CASE WHEN {locked} THEN 1 ELSE 0 END), "
    "sum({length}(author) + {length}(forum) + {length}(title) + {length}(body)) FROM {table}"
)


@functools.cache
def place_names() -> list[str]:
    """The names that authors and forums have."""
    return [place[0] for place in real_places()]


def posts(first: int, end: int, version: int = 0) -> Iterator[tuple]:
    """The posts with these numbers; another version of a post differs in its score and body."""
    names = place_names()
    for number in range(first, end):
        source = random.Random(number)
        chance, bits = source.random, source.getrandbits
        author = f"{names[bits(15) % len(names)]} {bits(8)}"
        forum = names[int(chance() ** 3 * 900)]
        seconds = number * 7
        day, second = divmod(seconds, 86_400)
        created = f"20{10 + day // 336 % 20:02}-{1 + day // 28 % 12:02}-{1 + day % 28:02} " \
                  f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"  # fmt: skip
        title = " ".join(WORDS[bits(7) % len(WORDS)] for _ in range(5))
        body = " ".join(WORDS[bits(7) % len(WORDS)] for _ in range(3 + bits(3)))
        if bits(4) == 0:
            body += '\n"again"\t\\'
        score = bits(12) - 200 + version * 5_000
        yield (number, author, forum, created, score, bits(10) / 1024, bits(3) == 0, title, body + "!" * version)


def json_line(post: tuple) -> str:
    """A post as a line of JSON."""
    return json.dumps(dict(zip(COLUMNS, post, strict=True)), ensure_ascii=False, separators=(",", ":")) + "\n"


def tsv_line(post: tuple) -> str:
    """A post as a line that `LOAD DATA` and `COPY` read by default."""
    return "\t".join(map(tsv_value, post)) + "\n"


def tsv_value(value: object) -> str:
    """A value with what would end it escaped."""
    if isinstance(value, bool):
        return "01"[value]
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def csv_line(post: tuple) -> str:
    """A post as a line of CSV, which is what the command `sqlite3` imports."""
    cells = ("01"[cell] if isinstance(cell, bool) else str(cell) for cell in post)
    return ",".join('"' + cell.replace('"', '""') + '"' if any(sign in cell for sign in '",\n') else cell
                    for cell in cells) + "\n"  # fmt: skip


def sums(post: tuple) -> Sums:
    """What one row adds."""
    number, author, forum, _, score, _, locked, title, body = post
    return Sums(1, number, score, int(locked), sum(map(len, (author, forum, title, body))))


FORMS = {"jsonl": json_line, "tsv": tsv_line, "csv": csv_line}


@dataclass(frozen=True)
class Posts:
    """The files of all posts, of a sample, and of those that change."""

    folder: Path
    made: Made
    all: Sums
    sample: Sums
    changed: list[Sums]

    def files(self) -> list[Path]:
        """What all load, in JSON."""
        return [self.folder / "posts.jsonl"]

    def parts(self, form: str) -> list[Path]:
        """The posts in another form, in as many files as there are connections."""
        return [self.folder / f"part-{part}.{form}" for part in range(PARTS)]

    def sample_file(self) -> Path:
        """The first posts alone."""
        return self.folder / "sample.jsonl"

    def changes(self, version: int, form: str) -> Path:
        """One post in ten, changed, in one of two versions."""
        return self.folder / f"changes-{version}.{form}"


def sample_rows(scale: float) -> int:
    """How many rows the slowest ways load."""
    return scaled(SAMPLE, scale, 200)


def write_pieces(folder: Path, piece: int, first: int, end: int) -> tuple[Sums, int]:
    """Writes the posts of a range in all forms; the sums and the bytes of JSON."""
    total, size = Sums(), 0
    files = {form: (folder / f"piece-{piece}.{form}").open("w", encoding="utf-8") for form in FORMS}
    for post in posts(first, end):
        total += sums(post)
        for form, line in FORMS.items():
            text = line(post)
            size += len(text.encode()) if form == "jsonl" else 0
            files[form].write(text)
    for file in files.values():
        file.close()
    return total, size


def write_changes(folder: Path, rows: int, version: int) -> Sums:
    """Writes the changed posts; the sums of the whole table afterwards need those of the others as well."""
    total = Sums()
    with (
        (folder / f"changes-{version}.jsonl").open("w", encoding="utf-8") as lines,
        (folder / f"changes-{version}.tsv").open("w", encoding="utf-8") as table,
    ):
        for first in range(1, rows + 1, CHANGED):
            for post in posts(first, first + 1, version):
                total += sums(post)
                lines.write(json_line(post))
                table.write(tsv_line(post))
    return total


def originals(rows: int) -> Sums:
    """The sums of the posts that merges change, as they were before."""
    total = Sums()
    for first in range(1, rows + 1, CHANGED):
        for post in posts(first, first + 1):
            total += sums(post)
    return total


@dataclass(frozen=True)
class Version:
    """All posts, some of which differ: as JSON lines, as two halves for a bulk load, and the sums of them."""

    lines: Path
    halves: list[Path]
    sums: Sums


def version(of: Posts, number: int, folder: Path) -> Version:
    """Writes a version of all posts into `folder`."""
    halves = [folder / f"version-{number}-{path.name}" for path in of.parts("tsv")]
    lines = folder / f"version-{number}.jsonl"
    with lines.open("w", encoding="utf-8", newline="") as file:
        different(file, of.files(), number, json_line)
    first = 1
    for half, path in zip(halves, of.parts("tsv"), strict=True):
        with half.open("w", encoding="utf-8", newline="") as file:
            first = different(file, [path], number, tsv_line, first)
    total = of.all
    for post in range(1, of.made.lines + 1, DIFFERENT):
        before, after = (sums(*posts(post, post + 1, version)) for version in (0, number))
        total = total - before + after
    return Version(lines, halves, total)


def different(
    into: TextIO, paths: Sequence[Path], number: int, line_of: Callable[[tuple], str], first: int = 1
) -> int:
    """Copies posts from number `first` on, of which some are of another version. The number behind the last."""
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for post, line in enumerate(lines, first):
                is_other = post % DIFFERENT == 1
                into.write("".join(map(line_of, posts(post, post + 1, number))) if is_other else line)
            first = post + 1
    return first


def get(store: Store) -> Posts:
    """The posts at the store's scale, made once."""
    folder = store.cache / "data" / f"posts-{store.scale:g}-v{VERSION}"
    stamp = folder / "set.json"
    if not stamp.exists():
        print(f"making data: posts at scale {store.scale:g}", flush=True)
        for old in (store.cache / "data").glob(f"posts-{store.scale:g}-*"):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        stamp.write_text(json.dumps(dataclasses.asdict(make(folder, store.scale)), default=str))
    told = json.loads(stamp.read_text())
    changed = [Sums(**one) for one in told["changed"]]
    return Posts(folder, Made(**told["made"]), Sums(**told["all"]), Sums(**told["sample"]), changed)


def make(folder: Path, scale: float) -> Posts:
    """Makes all files, on all cores."""
    rows = scaled(POSTS, scale, 1_000)
    middle = rows // 2
    with concurrent.futures.ProcessPoolExecutor() as pool:
        halves = [pool.submit(write_pieces, folder, 0, 1, middle + 1),
                  pool.submit(write_pieces, folder, 1, middle + 1, rows + 1)]  # fmt: skip
        versions = [pool.submit(write_changes, folder, rows, version) for version in (1, 2)]
        before = pool.submit(originals, rows)
        (one, first_size), (two, second_size) = (half.result() for half in halves)
        changed, same = [version.result() for version in versions], before.result()
    total = one + two
    for form in ("tsv", "csv"):
        for part in range(PARTS):
            (folder / f"piece-{part}.{form}").rename(folder / f"part-{part}.{form}")
    joined(folder)
    sample = sampled(folder, sample_rows(scale))
    size = first_size + second_size
    return Posts(folder, Made(1, size, size, rows), total, sample, [total - same + after for after in changed])


def joined(folder: Path) -> None:
    """Both halves of the JSON as one file."""
    with (folder / "posts.jsonl").open("wb") as whole:
        for part in range(PARTS):
            piece = folder / f"piece-{part}.jsonl"
            with piece.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)
            piece.unlink()


def sampled(folder: Path, rows: int) -> Sums:
    """Writes the first rows as a file of their own."""
    total = Sums()
    with (folder / "sample.jsonl").open("w", encoding="utf-8") as file:
        for post in posts(1, rows + 1):
            total += sums(post)
            file.write(json_line(post))
    return total

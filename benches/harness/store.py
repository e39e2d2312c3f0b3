"""The files of the benchmarks: which there are at a scale, made once, kept in the cache folder, found again.

A data set is complete when its `set.json` is there, and it is made anew when `data.py` or this file has changed. What
is in the rows is `data.py`'s.
"""

import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import data

GZIP = 16 + zlib.MAX_WBITS
LEVEL = 6
TOGETHER = 500  # small units that one task makes


@dataclass(frozen=True)
class Made:
    """What was made: files, their bytes, the bytes of the text in them, its lines."""

    files: int = 0
    stored: int = 0
    text: int = 0
    lines: int = 0

    def __add__(self, other: "Made") -> "Made":
        """Both together."""
        sums = (self.files + other.files, self.stored + other.stored, self.text + other.text, self.lines + other.lines)
        return Made(*sums)


@dataclass(frozen=True)
class DataSet:
    """A finished data set: where it lies and what it holds."""

    folder: Path
    made: Made

    def files(self) -> list[Path]:
        """All its files, in order."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != "set.json")

    def list(self, prefix: str = "") -> Path:
        """A file that names all files, one a line: their paths, or what follows `prefix` for a server."""
        name = hashlib.sha256(prefix.encode()).hexdigest()[:12]
        path = self.folder.parent / "lists" / f"{self.folder.name}-{name}.txt"
        path.parent.mkdir(exist_ok=True)
        files = self.files()
        lines = (f"{prefix}{file.relative_to(self.folder)}" if prefix else str(file) for file in files)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path


Task = tuple[Callable[..., Made], tuple]


def written_gzip(path: Path, text: Iterable[str]) -> Made:
    """Writes one file of one gzip member."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    size = lines = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in text:
            encoded = piece.encode()
            size += len(encoded)
            lines += encoded.count(b"\n")
            file.write(packer.compress(encoded))
        file.write(packer.flush())
    return Made(1, path.stat().st_size, size, lines)


def trades_gzip(path: Path, day: int, rows: int) -> Made:
    """A day of trades."""
    return written_gzip(path, data.trades_csv(day, rows))


def trades_zip(path: Path, days: list[int], rows: int) -> Made:
    """A month of trades, a member a day."""
    total = Made()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        for day in days:
            text = "".join(data.trades_csv(day, rows)).encode()
            date = data.trading_days()[day]
            member = zipfile.ZipInfo(f"NASDAQsh{date:%Y%m%d}.txt", (date.year, date.month, date.day, 18, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, text)
            total += Made(0, 0, len(text), text.count(b"\n"))
    return total + Made(1, path.stat().st_size)


def trades_json(path: Path, rows: int) -> Made:
    """Trades as one plain file of JSON lines."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for piece in data.trades_json(rows):
            file.write(piece)
    size = path.stat().st_size
    return Made(1, size, size, rows)


def places_gzip(folder: Path, first: int, end: int) -> Made:
    """Units of places, one small file each, a thousand in a folder."""
    total = Made()
    for unit in range(first, end):
        path = folder / f"{unit // 1000:03}" / f"{unit:06}.tsv.gz"
        total += written_gzip(path, ["".join(data.places(unit, data.PLACES_A_UNIT))])
    return total


def places_units(folder: Path, first: int, end: int, together: int) -> Made:
    """Units of some thousand places: each the text of as many small ones."""
    total = Made()
    for unit in range(first, end):
        small = range(unit * together, (unit + 1) * together)
        text = ("".join(data.places(number, data.PLACES_A_UNIT)) for number in small)
        total += written_gzip(folder / f"{unit:04}.tsv.gz", text)
    return total


def places_tiny(folder: Path, first: int, end: int) -> Made:
    """Units of 5 kB."""
    total = Made()
    for unit in range(first, end):
        total += written_gzip(folder / f"{unit:04}.tsv.gz", ["".join(data.places(unit, data.PLACES_A_TINY_UNIT))])
    return total


def trades_json_gzip(path: Path, day: int, rows: int) -> Made:
    """A day of trades as JSON lines."""
    return written_gzip(path, data.day_json(day, rows))


def places_whole(path: Path, units: int) -> Made:
    """The text of all units in one file."""
    return written_gzip(path, ("".join(data.places(unit, data.PLACES_A_UNIT)) for unit in range(units)))


def places_text(path: Path, first: int, end: int) -> Made:
    """The text of some units in one plain file."""
    size = lines = 0
    with path.open("wb") as file:
        for unit in range(first, end):
            text = "".join(data.places(unit, data.PLACES_A_UNIT)).encode()
            size += len(text)
            lines += text.count(b"\n")
            file.write(text)
    # The halves together are one text, and count as one file.
    return Made(int(first == 0), size, size, lines)


def places_zstd(folder: Path, first: int, rows: list[int]) -> Made:
    """Files of different sizes, packed by the command `zstd`: Python 3.11 has none."""
    total = Made()
    folder.mkdir(parents=True, exist_ok=True)
    for number, many in enumerate(rows, first):
        path = folder / f"{number:05}.tsv.zst"
        text = "".join(data.places(1_000_000 + number, many)).encode()
        with path.open("wb") as file:
            subprocess.run(["zstd", "-q", "-3", "-c"], input=text, stdout=file, check=True)
        total += Made(1, path.stat().st_size, len(text), text.count(b"\n"))
    return total


def linked(source: Path, target: Path, sample: Made) -> Made:
    """One more name for a file: as good as a copy for those who read it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)
    return sample


def chosen_days(scale: float) -> list[int]:
    """The days that there are at a scale: at least one a month, spread over the year."""
    many = min(data.DAYS, max(12, round(data.DAYS * scale)))
    return [number * data.DAYS // many for number in range(many)]


def scaled(full: int, scale: float, least: int) -> int:
    """How many there are of something at a scale."""
    return max(least, round(full * scale))


def day_rows(scale: float) -> int:
    """The rows of a day, fewer only where the scale is below one day a month."""
    return max(100, round(data.TRADES_A_DAY * min(1.0, scale * data.DAYS / 12)))


def tasks_trades(folder: Path, scale: float) -> list[Task]:
    """One gzip file of trades a day."""
    rows = day_rows(scale)
    return [(trades_gzip, (folder / f"{day:03}.csv.gz", day, rows)) for day in chosen_days(scale)]


def tasks_zips(folder: Path, scale: float) -> list[Task]:
    """The same trades in twelve zips."""
    dates = data.trading_days()
    months = [[day for day in chosen_days(scale) if dates[day].month == month] for month in range(1, 13)]
    rows = day_rows(scale)
    return [(trades_zip, (folder / f"{month:02}.zip", days, rows)) for month, days in enumerate(months, 1)]


def tasks_json(folder: Path, scale: float) -> list[Task]:
    """Trades as JSON lines."""
    return [(trades_json, (folder / "trades.jsonl", scaled(data.JSON_TRADES, scale, 1_000)))]


def tasks_places(folder: Path, scale: float) -> list[Task]:
    """Very many small gzip files of places."""
    units = scaled(data.PLACE_UNITS, scale, 50)
    firsts = range(0, units, TOGETHER)
    return [(places_gzip, (folder, first, min(first + TOGETHER, units))) for first in firsts]


def tasks_units(folder: Path, scale: float) -> list[Task]:
    """Two thousand gzip files of places, each of about 150 kB."""
    units = scaled(2_000, scale, 40)
    firsts = range(0, units, 20)
    return [(places_units, (folder, first, min(first + 20, units), 30)) for first in firsts]


def tasks_tiny(folder: Path, scale: float) -> list[Task]:
    """Ten thousand gzip files of 5 kB."""
    units = scaled(10_000, scale, 50)
    firsts = range(0, units, TOGETHER)
    return [(places_tiny, (folder, first, min(first + TOGETHER, units))) for first in firsts]


def tasks_both(folder: Path, scale: float) -> list[Task]:
    """Trades as gzip files: those of each second day as JSON lines, the others as CSV."""
    rows, days = day_rows(scale), chosen_days(scale / 2)
    csv = [(trades_gzip, (folder / "csv" / f"{day:03}.csv.gz", day, rows)) for day in days]
    return csv + [(trades_json_gzip, (folder / "json" / f"{day:03}.jsonl.gz", day + 1, rows)) for day in days]


def tasks_whole(folder: Path, scale: float) -> list[Task]:
    """All places in one gzip file."""
    return [(places_whole, (folder / "places.tsv.gz", scaled(data.PLACE_UNITS, scale, 50)))]


def tasks_text(folder: Path, scale: float) -> list[Task]:
    """All places as plain text, in two halves; both follow each other in a third file."""
    units = scaled(data.PLACE_UNITS, scale, 50)
    middle = units // 2
    return [
        (places_text, (folder / "half-0.tsv", 0, middle)),
        (places_text, (folder / "half-1.tsv", middle, units)),
    ]


def finish_text(folder: Path) -> None:
    """The whole text."""
    with (folder / "whole.tsv").open("wb") as whole:
        for part in range(2):
            with (folder / f"half-{part}.tsv").open("rb") as half:
                shutil.copyfileobj(half, whole, 1 << 20)


def tasks_zstd(folder: Path, scale: float) -> list[Task]:
    """Zstd files of very different sizes."""
    rows = data.zstd_rows(scaled(data.ZSTD_UNITS, scale, 20))
    return [(places_zstd, (folder, first, rows[first : first + 50])) for first in range(0, len(rows), 50)]


def tasks_objects(folder: Path, scale: float) -> list[Task]:
    """The bucket of the S3 server: small gzip files of places."""
    units = scaled(10_000, scale, 20)
    bucket = folder / "bench" / "places"
    firsts = range(0, units, TOGETHER)
    return [(places_gzip, (bucket, first, min(first + TOGETHER, units))) for first in firsts]


def tasks_memory(folder: Path, scale: float) -> list[Task]:
    """Three sets of trades: some units, ten times as many, as many ten times as large."""
    units, rows = scaled(25, scale, 4), day_rows(scale * 5)
    base = [(trades_gzip, (folder / "base" / f"{day:03}.csv.gz", day, rows)) for day in range(units)]
    large = [(trades_gzip, (folder / "large" / f"{day:03}.csv.gz", day, rows * 10)) for day in range(units)]
    return base + large


def finish_memory(folder: Path) -> None:
    """Ten times as many units are ten names for each."""
    for path in sorted((folder / "base").iterdir()):
        for copy in range(10):
            linked(path, folder / "many" / f"{copy}-{path.name}", Made())


SETS: dict[str, Callable[[Path, float], list[Task]]] = {
    "trades": tasks_trades,
    "zips": tasks_zips,
    "json": tasks_json,
    "places": tasks_places,
    "units": tasks_units,
    "tiny": tasks_tiny,
    "both": tasks_both,
    "whole": tasks_whole,
    "text": tasks_text,
    "zstd": tasks_zstd,
    "objects": tasks_objects,
    "memory": tasks_memory,
}

# What is made of the files of a set once they are there.
FINISH: dict[str, Callable[[Path], None]] = {"memory": finish_memory, "text": finish_text}


def recipe() -> str:
    """Changes whenever what makes the data does."""
    text = b"".join(Path(source).read_bytes() for source in (data.__file__, __file__))
    return hashlib.sha256(text).hexdigest()[:8]


@dataclass(frozen=True)
class Store:
    """The cache folder at one scale."""

    cache: Path
    scale: float

    def get(self, name: str) -> DataSet:
        """A data set, made if it is not there."""

        def make(folder: Path) -> Made:
            made = run_tasks(SETS[name](folder, self.scale))
            FINISH.get(name, lambda _: None)(folder)
            return made

        return kept(self, name, recipe(), make)

    def forget(self, name: str) -> None:
        """Removes what is left of the data set: broken off, or from another recipe."""
        for old in (self.cache / "data").glob(f"{name}-{self.scale:g}-*"):
            shutil.rmtree(old)


def kept(store: Store, name: str, version: str, make: Callable[[Path], Made]) -> DataSet:
    """A data set in a folder of its own, made if it is not there in this version."""
    folder = store.cache / "data" / f"{name}-{store.scale:g}-{version}"
    stamp = folder / "set.json"
    if not stamp.exists():
        print(f"making data: {name} at scale {store.scale:g}", flush=True)
        store.forget(name)
        folder.mkdir(parents=True)
        stamp.write_text(json.dumps(asdict(make(folder))))
    return DataSet(folder, Made(**json.loads(stamp.read_text())))


def run_tasks(tasks: list[Task]) -> Made:
    """Runs tasks on all cores and adds up what they made."""
    with concurrent.futures.ProcessPoolExecutor() as pool:
        waiting = [pool.submit(function, *arguments) for function, arguments in tasks]
        return sum((task.result() for task in waiting), Made())


def warm(files: Iterable[Path]) -> None:
    """Reads files, so that they are in the page cache."""
    buffer = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(files: Iterable[Path]) -> None:
    """Puts these files, and only these, out of the page cache."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

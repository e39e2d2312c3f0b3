"""What each technique gains: published tables, measured again on this machine.

To disk or streamed, cold or warm, serial or parallel, a connection for each file or kept alive. These are single runs
that show orders of magnitude; targets are in `workloads.py`. Writing includes the sync to the disk, and cold means that
these files are not in the page cache.
"""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import servers, workloads
from harness.measure import Contender, Outcome, Watch, number, shell
from harness.store import DataSet, evict, warm

SERIAL = 100  # files that the slowest techniques fetch; their time for all files is extrapolated
CONNECT = 40  # milliseconds to connect: two round trips, as for TLS


@dataclasses.dataclass(frozen=True)
class Techniques:
    """A table of techniques: what was done, seconds, a note; and a drawing (SVG), if there is one."""

    title: str
    source: str
    rows: list[tuple[str, float, str]]
    drawing: str = ""


@dataclasses.dataclass
class Table:
    """A table that fills row by row."""

    watch: Watch
    title: str
    source: str
    lines: int | None = None
    rows: list[tuple[str, float, str]] = dataclasses.field(default_factory=list)

    def seconds(self, name: str, command: list[str], expected: int | None) -> float:
        """The seconds that a command takes. Fails if it counts wrongly."""
        sample, outcome = self.watch.run(Contender(name, "technique", command, answer))
        if expected is not None and outcome.answer != expected:
            raise RuntimeError(f"{name}: counted {outcome.answer} lines instead of {expected}")
        return sample.wall

    def add(self, name: str, *steps: "Step", times: float = 1.0, note: str = "") -> None:
        """Adds a row: the total time of some steps, of which only the last one counts lines."""
        total = 0.0
        for step in steps:
            step.before()
            total += self.seconds(name, step.command, step.lines)
        print(f"  {name:60} {total * times:9.3f} s", flush=True)
        self.rows.append((name, total * times, note))

    def done(self) -> Techniques:
        """The finished table."""
        return Techniques(self.title, self.source, self.rows)


@dataclasses.dataclass(frozen=True)
class Step:
    """A command, what to do before it, and how many lines it must count."""

    command: list[str]
    before: Callable[[], object] = lambda: None
    lines: int | None = None


def answer(output: str) -> Outcome:
    """A number of lines, if one was printed."""
    return number(output) if output.strip() else Outcome(None)


@contextlib.contextmanager
def folder(context: workloads.Context) -> Iterator[Path]:
    """An empty folder beside the data, so on the same disk."""
    path = Path(tempfile.mkdtemp(dir=context.scratch))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def emptied(path: Path) -> None:
    """Removes what is in a folder."""
    shutil.rmtree(path)
    path.mkdir()


def cold(path: Path) -> Callable[[], None]:
    """Puts what is in a folder out of the page cache."""
    return lambda: evict(file for file in path.rglob("*") if file.is_file())


def cached(files: DataSet) -> Callable[[], None]:
    """Puts a data set into the page cache."""
    return lambda: warm(files.files())


def disk(context: workloads.Context, watch: Watch) -> list[Techniques]:
    """The page cache: twelve zips of trades, and the same as gzip files."""
    zips, gzips = context.store.get("zips"), context.store.get("trades")
    return [reading(watch, zips), unpacking(context, watch, zips), counting(context, watch, zips, gzips)]


def reading(watch: Watch, zips: DataSet) -> Techniques:
    """Reading cold or warm."""
    table = Table(watch, "Reading 12 zips", "Published: cold 6.6 s, warm 0.24 s (28 times) on a spinning disk.")
    read = shell(f"cat {zips.folder}/*.zip > /dev/null")
    table.add("cold", Step(read, cold(zips.folder)))
    table.add("warm", Step(read))
    return table.done()


def unpacking(context: workloads.Context, watch: Watch, zips: DataSet) -> Techniques:
    """Unpacking serially or in parallel."""
    table = Table(
        watch, "Unpacking them to disk", "Published: serially 53.2 s, in parallel 50.1 s: the disk is the limit."
    )
    with folder(context) as out:
        table.add("one after another, from the cache", Step(serially(zips, out), cached(zips)))
        emptied(out)
        table.add("in parallel, from the disk", Step(in_parallel(zips, out), cold(zips.folder)))
        emptied(out)
        table.add("in parallel, from the cache", Step(in_parallel(zips, out), cached(zips)))
    return table.done()


def serially(zips: DataSet, out: Path) -> list[str]:
    """Unpacks one zip after another, to the disk."""
    return shell(f"for zip in {zips.folder}/*.zip; do unzip -q -o -d {out} $zip; done && sync -f {out}")


def in_parallel(zips: DataSet, out: Path) -> list[str]:
    """Unpacks as many zips at once as there are cores, to the disk."""
    return shell(f"parallel --will-cite unzip -q -o -d {out} ::: {zips.folder}/*.zip && sync -f {out}")


def counting(context: workloads.Context, watch: Watch, zips: DataSet, gzips: DataSet) -> Techniques:
    """Counting through the disk or streamed, cold or warm."""
    table = Table(
        watch,
        "Counting their lines",
        "Published: to disk and counted, both cold 152.0 s; in parallel and counted while cached 40.7 s (3.7 times); "
        "streamed from `.gz` in parallel 13.4 s (11.3 times).",
    )
    lines = zips.made.lines
    with folder(context) as out:
        count = shell(f"cat {out}/*.txt | wc -l")
        unpack = Step(serially(zips, out), cold(zips.folder))
        table.add("unzip to disk, then count, both cold", unpack, Step(count, cold(out), lines))
        emptied(out)
        unpack = Step(in_parallel(zips, out), cached(zips))
        table.add("unzip in parallel from the cache, count while cached", unpack, Step(count, lines=lines))
    stream = shell(f"parallel --will-cite -a {gzips.list()} zcat | wc -l")
    table.add("stream the .gz in parallel, cold", Step(stream, cold(gzips.folder), lines))
    table.add("stream the .gz in parallel, warm", Step(stream, cached(gzips), lines))
    for name, data, pattern in (("zips", zips, "*.zip"), (".gz", gzips, "*.gz")):
        command = list(context.count(f"{data.folder}/{pattern}").command)
        table.add(f"**Millstream on the {name}, cold**", Step(command, cold(data.folder), lines))
        table.add(f"**Millstream on the {name}, warm**", Step(command, cached(data), lines))
    return table.done()


def network(context: workloads.Context, watch: Watch) -> list[Techniques]:
    """The full workflow: many small files from a server that is far away."""
    small, whole = context.store.get("places"), context.store.get("whole")
    with workloads.slow(context, small, CONNECT) as server, workloads.slow(context, whole, CONNECT) as beside:
        return [
            connections(context, watch, small, server),
            small_from_disk(context, watch, small),
            one_or_many(context, watch, small, server, beside),
        ]


def connections(context: workloads.Context, watch: Watch, small: DataSet, server: servers.Server) -> Techniques:
    """A connection for each file, or kept alive; one or many."""
    table = Table(
        watch,
        "Fetching and counting the small files",
        f"From a server that answers after {workloads.DELAY} ms and connects in {CONNECT} ms. Published: one `wget` "
        "per file 297 min 35 s; one connection 68 min 9 s (4.4 times); 100 jobs that keep theirs 3 min 3 s (98 times).",
    )
    urls = small.list(f"{server.url}/")
    first = context.scratch / "first.txt"
    some = urls.read_text().splitlines()[:SERIAL]
    first.write_text("".join(f"{url}\n" for url in some))
    share, note = small.made.files / len(some), f"measured on {len(some)} files"
    each = shell(f"xargs -a {first} -n1 wget -q -O - | zcat | wc -l")
    table.add("one wget per file, one after another", Step(each), times=share, note=note)
    kept = shell(f"wget -q -O - -i {first} | zcat | wc -l")
    table.add("one connection kept alive", Step(kept), times=share, note=note)
    jobs = shell(f"parallel --will-cite -a {urls} -j100 -m wget -q -O - | zcat | wc -l")
    table.add("100 jobs, each keeping its connection alive", Step(jobs, lines=small.made.lines))
    server.connections()
    ours = Step(list(context.count(f"@{urls}").command), lines=small.made.lines)
    table.add("**Millstream**", ours)
    what, seconds, _ = table.rows.pop()
    table.rows.append((what, seconds, server.connections()))
    return table.done()


def small_from_disk(context: workloads.Context, watch: Watch, small: DataSet) -> Techniques:
    """Counting small files through the disk or streamed."""
    table = Table(
        watch,
        "Counting the small files once they are here",
        "Published: unpacked to disk cold, then counted cold 20 min 43 s; streamed from the cache 13.9 s (90 times).",
    )
    lines = small.made.lines
    with folder(context) as out:
        # Hard links: gunzip replaces the links and leaves the files.
        copied = shell(f"cp -al {small.folder}/. {out} && rm {out}/set.json && gunzip -rf {out} && sync -f {out}")
        count = shell(f"find {out} -type f -print0 | xargs -0 cat | wc -l")
        table.add(
            "gunzip to disk, then count, both cold", Step(copied, cold(small.folder)), Step(count, cold(out), lines)
        )
    stream = shell(f"xargs -a {small.list()} zcat | wc -l")
    table.add("stream them from the cache", Step(stream, cached(small), lines))
    ours = list(context.count(f"{small.folder}/**/*.gz").command)
    table.add("**Millstream, cold**", Step(ours, cold(small.folder), lines))
    table.add("**Millstream, from the cache**", Step(ours, cached(small), lines))
    return table.done()


def one_or_many(
    context: workloads.Context, watch: Watch, small: DataSet, server: servers.Server, beside: servers.Server
) -> Techniques:
    """One large file or many small ones, never on disk."""
    table = Table(
        watch,
        "Fetching and counting without a disk",
        "Published: one big `.gz` 2 min 45 s, the small files by 100 jobs 2 min 40 s; only one core works on the big "
        "one.",
    )
    lines, urls = small.made.lines, small.list(f"{server.url}/")
    big = f"{beside.url}/places.tsv.gz"
    table.add("one big .gz: wget | zcat | wc -l", Step(shell(f"wget -q -O - {big} | zcat | wc -l"), lines=lines))
    jobs = shell(f"parallel --will-cite -a {urls} -j100 -m wget -q -O - | zcat | wc -l")
    table.add("the small files, 100 jobs", Step(jobs, lines=lines))
    table.add("**Millstream on the big .gz**", Step(list(context.count(big).command), lines=lines))
    table.add("**Millstream on the small files**", Step(list(context.count(f"@{urls}").command), lines=lines))
    return table.done()


TECHNIQUES: dict[str, Callable[[workloads.Context, Watch], list[Techniques]]] = {
    "techniques-disk": disk,
    "techniques-network": network,
}

"""The curve of loading speed: rows a second over rows in a statement and over connections, as a table and as a
drawing, with a mark where larger batches stop helping.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import databases, loading, posts
from harness.databases import Database
from harness.measure import Contender, Outcome, Watch, shell
from harness.techniques import Techniques
from harness.workloads import Context

BATCHES = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]
CONNECTIONS = [1, 2, 4]
ENOUGH = 0.9  # share of the highest rate from which the curve counts as flat
STATEMENTS = 2_000  # enough of them to measure small batches
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 80, 50, 20, 60
COLOURS = ["#1b6ca8", "#c8553d", "#4f772d"]


@dataclass(frozen=True)
class Line:
    """Rows a second over the batch size, for one number of connections."""

    connections: int
    rates: Sequence[float]

    def flat(self) -> int:
        """The index of the first batch size from which the curve is flat."""
        return next(index for index, rate in enumerate(self.rates) if rate >= ENOUGH * max(self.rates))


def curves(context: Context, watch: Watch) -> list[Techniques]:
    """Measures one table of rates for each server."""
    found = []
    for product, server, table, length in (
        ("MariaDB", databases.mariadb, loading.MARIADB, "char_length"),
        ("PostgreSQL", databases.postgres, loading.POSTGRES, "length"),
    ):
        with server() as database:
            lines = [line(context, watch, database, table, length, count) for count in CONNECTIONS]
        found.append(presented(product, lines))
    return found


def line(context: Context, watch: Watch, database: Database, table: str, length: str, connections: int) -> Line:
    """Measures the rates of one number of connections."""
    target = loading.served(context, database, table, "locked", length)
    rates = []
    for batch in BATCHES:
        path, rows = prefix(context, target.data, batch)
        job = context.scratch / "curve.yaml"
        job.write_text(json.dumps({
            "sources": {"posts": {"read": str(path), "json": {"columns": posts.COLUMNS}}},
            "sinks": {"posts": {
                "from": "posts", "write": database.url, "table": "posts", "mode": "replace", "key": ["id"],
                "connections": connections, "batch_rows": batch, "batch_bytes": "100MB",
            }},
        }))  # fmt: skip
        target.empty()
        command = shell(f"{context.tools.millstream} run --quiet {job}")
        sample, _ = watch.run(Contender("curve", "ours", command, lambda _: Outcome(None)), database.pids)
        if target.sums().rows != rows:
            raise RuntimeError(f"{target.sums().rows} rows instead of {rows}")
        rates.append(rows / sample.wall)
        print(f"  {connections} connections, {batch:>7,} rows a statement: {rates[-1]:>10,.0f} rows/s", flush=True)
    return Line(connections, rates)


def prefix(context: Context, data: posts.Posts, batch: int) -> tuple[Path, int]:
    """A file of the first posts, as many as such batches need, and their number."""
    rows = max(1, min(data.made.lines // 10, max(batch, 3) * STATEMENTS))
    path = context.scratch / f"posts-{rows}.jsonl"
    if not path.exists():
        with data.files()[0].open("rb") as whole, path.open("wb") as part:
            for _ in range(rows):
                part.write(whole.readline())
    return path, rows


def presented(product: str, lines: Sequence[Line]) -> Techniques:
    """The table of rates, and the drawing."""
    rows = []
    for index, batch in enumerate(BATCHES):
        for one in lines:
            mark = f"flat from here: {ENOUGH:.0%} of the most" if one.flat() == index else ""
            what = f"{batch:,} rows a statement, {counted(one.connections)}"
            rows.append((what, 1_000_000 / one.rates[index], f"{one.rates[index]:,.0f} rows/s. {mark}".strip(" .")))
    source = (
        "Published: speed over batch size rises and flattens, with 4 workers from about 10 rows, with 2 from about 17. "
        "Seconds are for a million rows."
    )
    return Techniques(f"Rows a second into {product}", source, rows, drawn(product, lines))


def counted(connections: int) -> str:
    """The number of connections as text."""
    return f"{connections} connection" + "s" * (connections != 1)


def drawn(product: str, lines: Sequence[Line]) -> str:
    """The curve as SVG: batches on a logarithmic axis, rows a second on a linear one."""
    most = max(max(line.rates) for line in lines)
    step = 10 ** math.floor(math.log10(most))
    top = math.ceil(most / step) * step
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(batch: int, rate: float) -> tuple[float, float]:
        share = math.log(batch) / math.log(BATCHES[-1])
        return LEFT + across * share, TOP + up * (1 - rate / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 22, f"Rows a second into {product}", size=16),
        text(LEFT + across / 2, HEIGHT - 14, "rows in a statement"),
    ]
    for number in range(6):
        x, y = place(1, top * number / 5)
        parts.append(f'<path d="M{x:.0f} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(text(x - 8, y + 4, f"{top * number / 5:,.0f}", anchor="end"))
    for batch in BATCHES[::2]:
        parts.append(text(place(batch, 0)[0], TOP + up + 20, f"{batch:,}"))
    for line, colour in zip(lines, COLOURS, strict=True):
        points = [place(batch, rate) for batch, rate in zip(BATCHES, line.rates, strict=True)]
        drawn_points = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[line.flat()]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        label = f"{counted(line.connections)}: flat from {BATCHES[line.flat()]:,} rows"
        parts.append(text(LEFT + 14, TOP + 16 + 18 * lines.index(line), label, anchor="start", colour=colour))
    return "\n".join([*parts, "</svg>\n"])


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "middle", colour: str = "#222222") -> str:
    """A label of the drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

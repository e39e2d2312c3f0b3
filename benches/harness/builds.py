"""Compares two builds of Millstream: the same contenders with both binaries, in turn."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.measure import Contender, Results, Sample

BASE = " (base)"
# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

FIGURES: Sequence[Callable[[Sample], float]] = (
    lambda run: run.wall,
    lambda run: run.cpu,
    lambda run: float(run.peak_rss),
)


@dataclass(frozen=True)
class Interval:
    """A ratio, and the interval that it lies in with a probability of 95 %."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f} .. {self.high:.3f}]"


def both(contenders: Sequence[Contender], ours: Path, base: Path) -> list[Contender]:
    """Our contenders, each followed by the same one with the binary `base`."""
    pairs = []
    for contender in contenders:
        if contender.role == "ours":
            command = [part.replace(str(ours), str(base)) for part in contender.command]
            pairs += [contender, dataclasses.replace(contender, name=contender.name + BASE, command=command)]
    return pairs


def mirrored(contenders: list[Contender], repetition: int) -> list[Contender]:
    """The contenders forwards and backwards in turn: pairs stay together, and each of a pair is first equally often."""
    return contenders[::-1] if repetition % 2 else contenders[:]


def compared(results: Results) -> list[tuple[str, Interval | None, Interval | None, Interval | None]]:
    """For each of our contenders the ratios to its base: of time, processor time and peak memory."""
    rows = []
    for name, samples in results.samples.items():
        if base := results.samples.get(name + BASE):
            pairs = list(zip(samples, base, strict=False))
            wall, cpu, peak = (interval([(of(one), of(other)) for one, other in pairs]) for of in FIGURES)
            rows.append((name, wall, cpu, peak))
    return rows


def interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """The mean ratio of pairs that were measured one after the other; `None` if there are fewer than two."""
    ratios = [math.log(one / other) for one, other in pairs if one > 0 and other > 0]
    if len(ratios) < 2:
        return None
    mean = statistics.fmean(ratios)
    t = STUDENT[min(len(ratios) - 2, len(STUDENT) - 1)]
    reach = t * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))

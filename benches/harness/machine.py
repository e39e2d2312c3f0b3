"""Describes the machine by what matters for the figures, without identifying it."""

import os
import platform
from pathlib import Path


def describe() -> dict[str, str | int]:
    """Cores, processor, memory, kernel."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor(),
        "memory": f"{round(memory_bytes() / 2**30)} GiB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
    }


def slug() -> str:
    """The machine as a part of a file name."""
    return f"{len(os.sched_getaffinity(0))}cores-{round(memory_bytes() / 2**30)}GiB"


def memory_bytes() -> int:
    """All memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def processor() -> str:
    """The model name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

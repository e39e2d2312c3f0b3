"""The command `millstream`, in the process of this Python."""

import sys

from millstream import _millstream


def main() -> int:
    """Runs the command with the arguments of this process. Returns the exit code."""
    return _millstream.command(["millstream", *sys.argv[1:]])

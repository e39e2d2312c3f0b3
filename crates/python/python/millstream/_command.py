"""The command `millstream`, in the process of this Python."""

import signal
import sys

from millstream import _millstream


def main() -> int:
    """Runs the command with the arguments of this process. Returns the exit code."""
    # A run handles signals itself, and nothing else of Python is to be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _millstream.command(["millstream", *sys.argv[1:]])

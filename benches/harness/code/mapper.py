"""The mapper of the word count, as a Unix filter: places, a line each, to the words of their names."""

import sys


def words(lines):
    """The words, in lower case."""
    for line in lines:
        yield from line.split("\t", 2)[1].lower().split()


if __name__ == "__main__":
    sys.stdout.writelines(f"{word}\n" for word in words(sys.stdin))

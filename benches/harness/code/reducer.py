"""The reducer of the word count, as a Unix filter: words, equal ones one after the other, to a word and its number.

An empty line ends a group, as Millstream has it: what is known is then printed, with an empty line behind it.
"""

import sys


def main() -> None:
    """Reads standard input to its end."""
    word, count = "", 0
    for line in sys.stdin:
        if line == word:
            count += 1
        elif line == "\n":
            print(f"{word[:-1]}\t{count}", end="\n\n", flush=True)
            word, count = "", 0
        else:
            if count:
                print(f"{word[:-1]}\t{count}")
            word, count = line, 1
    if count:
        print(f"{word[:-1]}\t{count}")


if __name__ == "__main__":
    main()

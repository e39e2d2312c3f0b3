"""No line of the sources and the documentation is longer than 120 characters.

Tables and blocks of output in Markdown keep their lines. What is generated, recorded or data is left out.
"""

import pathlib
import subprocess
import sys

MOST = 120
KINDS = {".md", ".py", ".rs", ".sh", ".toml"}
LEFT_OUT = ("benches/results/", "crates/format/tests/sniff/", "docs/reference/", "fixtures/", "snapshots/")


def long_lines(path: pathlib.Path) -> list[int]:
    """The numbers of the lines that are too long."""
    found, fenced = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        markdown = path.suffix == ".md"
        fenced ^= markdown and line.lstrip().startswith("```")
        if len(line) > MOST and not (markdown and (fenced or line.lstrip().startswith("|"))):
            found.append(number)
    return found


listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
paths = [pathlib.Path(name) for name in listed if name and not any(part in name for part in LEFT_OUT)]
checked = [path for path in paths if path.suffix in KINDS or path.name == "Makefile"]
wrong = [f"{path}:{number}" for path in checked for number in long_lines(path)]
if wrong:
    sys.exit(f"longer than {MOST} characters:\n" + "\n".join(wrong))

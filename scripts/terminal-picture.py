#!/usr/bin/env python3
"""Draws the text on standard input as a terminal, as SVG: the picture in the README.

    (echo '$ millstream run examples/geonames/job.yaml'; millstream run examples/geonames/job.yaml 2>&1) \
        | scripts/terminal-picture.py > docs/run.svg

Nothing but the standard library is used. Every line has its length in the picture fixed, so that columns stay
columns whichever font the reader has.
"""

import html
import sys

ADVANCE, LINE, SIZE, MARGIN, TITLE = 7.8, 19, 13, 18, 30
STYLES = {"$ ": "command", "done ": "strong", "limited by": "strong", "step ": "faint", "peak ": "faint"}


def style(line):
    """The class of a line, known by what it begins with."""
    return next((name for start, name in STYLES.items() if line.startswith(start)), "plain")


def main():
    lines = sys.stdin.read().rstrip("\n").split("\n")
    width = round(max(map(len, lines)) * ADVANCE + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN + TITLE - 6
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">')
    print("<title>A run of Millstream in a terminal</title>")
    print("<style>")
    print(f"text {{ font: {SIZE}px 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre; fill: #d5d9e0 }}")
    print(".command { fill: #7fd1b9 } .strong { font-weight: bold; fill: #ffffff } .faint { fill: #8b94a3 }")
    print("</style>")
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#1b1f27"/>')
    for index, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{MARGIN + 6 + index * 18}" cy="17" r="5.5" fill="{color}"/>')
    for index, line in enumerate(lines):
        text = line.lstrip(" ")
        if text:
            x = MARGIN + (len(line) - len(text)) * ADVANCE
            y = MARGIN + TITLE + index * LINE + 4
            print(
                f'<text class="{style(line)}" x="{x:.1f}" y="{y}" textLength="{len(text) * ADVANCE:.1f}" '
                f'xml:space="preserve">{html.escape(text)}</text>'
            )
    print("</svg>")


main()

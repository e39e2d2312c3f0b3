"""What the tests share: a folder with some files, which is the working directory of each test."""

import gzip
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

PLACES = {
    "a": "name,country,population\nUlm,DE,126329\nOslo,NO,717710\n",
    "b": "name,country,population\nBergen,NO,291940\nTrondheim,NO,\n",
}

JOB = """\
sources:
  places:
    read: places/*.csv.gz

transforms:
  countries:
    sql: SELECT country, sum(population) AS people FROM places GROUP BY country HAVING sum(population) > ${LEAST:-0}

sinks:
  result: {from: countries, write: out/countries.csv}
"""


def fill(folder):
    """The files of the doctests."""
    (folder / "places").mkdir()
    for name, text in PLACES.items():
        (folder / f"places/{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "job.yaml").write_text(JOB)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of its own for each test, in which it works."""
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def python(folder):
    """Starts a Python program in the folder: its text becomes a file, as one of a user is."""

    started = []

    def start(text, *arguments, **options):
        path = folder / "program.py"
        path.write_text(textwrap.dedent(text))
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        started.append(subprocess.Popen([sys.executable, path, *arguments], **given))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def output(python):
    """What a Python program prints. It has to end well."""

    def run(text, *arguments):
        process = python(text, *arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out

    return run


def command():
    """The command of this environment."""
    return shutil.which("millstream", path=os.path.dirname(sys.executable))

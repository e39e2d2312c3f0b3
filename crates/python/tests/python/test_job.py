"""Jobs that a program builds, and functions as their steps."""

import pathlib
import subprocess
import sys
import threading

import polars
import pytest
from conftest import command

import millstream

FACTOR = 3


def scaled(row):
    return {"scaled": FACTOR * len(row["name"])}


def places():
    return millstream.Job().source("places", "places/*.csv.gz")


def test_a_job_is_a_job_file():
    job = (
        places()
        .filter("known", "population IS NOT NULL")
        .select("short", {"name": "name", "k": "population / 1000"})
        .dedupe("once", "name")
        .sort("sorted", "k desc", limit=2)
        .sink("first", "out/first.csv")
        .sink("all", "out/all.csv", from_="places")
    )
    report = job.run()
    assert [result.sink for result in report.results] == ["first", "all"]
    assert pathlib.Path("out/first.csv").read_text() == "name,k\nOslo,717\nBergen,291\n"
    job.save("saved.yaml")
    assert pathlib.Path("saved.yaml").read_text() == f"{job}\n"
    ran = subprocess.run([command(), "run", "saved.yaml", "--json"], capture_output=True, text=True, check=True)
    assert '"rows_written":6' in ran.stdout
    assert millstream.run(job).rows_written == 6


def test_texts_are_taken_as_they_are():
    job = places().sql("one", "SELECT '${HOME}' AS text FROM places LIMIT 1").sink("o", "out/o.csv")
    job.run()
    assert pathlib.Path("out/o.csv").read_text() == "text\n${HOME}\n"


def test_a_second_entry_of_a_name_is_refused():
    types = {"arguments": ["utf8"], "returns": "utf8"}
    job = places().sql("t", "SELECT * FROM places").function("f", "f.py:f", **types).sink("o", "out/o.csv")
    before = str(job)
    for kind, again in {
        "source": lambda: job.source("places", "places/a.csv.gz"),
        "transform": lambda: job.filter("t", "true"),
        "function": lambda: job.function("f", scaled, **types),
        "sink": lambda: job.sink("o", "out/other.csv"),
    }.items():
        with pytest.raises(millstream.Error, match=f"the job has a {kind} `.*` already") as raised:
            again()
        assert "another name" in raised.value.hint
    assert str(job) == before, "nothing is lost"


def test_rows_may_be_left_out_by_each_transform():
    job = places().sql("a", "SELECT CAST(name AS int) AS n FROM places", max_rejects="100%")
    job.select("b", {"n": "CAST(name AS int)"}, from_="places", max_rejects=4)
    job.filter("c", "CAST(name AS int) > 0", from_="places", max_rejects=4)
    for name in "abc":
        job.sink(f"of_{name}", f"out/{name}.csv", from_=name)
    report = job.run()
    assert (report.rows_written, report.rows_rejected) == (0, 12)


def test_a_function_that_nothing_calls_is_a_warning():
    job = places().function("f", scaled, arguments=["utf8"], returns="utf8").sink("o", "out/o.csv")
    with pytest.warns(millstream.JobWarning, match="`f`") as warned:
        job.run()
    assert warned[0].filename == __file__


def test_what_reads_nothing_is_refused():
    with pytest.raises(ValueError, match="add a source first"):
        millstream.Job().sort("s", "a")
    with pytest.raises(millstream.Error, match="the job has no sinks"):
        places().run()


def test_a_function_of_a_module_is_called_from_its_file():
    """This file is one: its constant need not be written anywhere."""
    job = places().map("scaled", scaled, columns={"scaled": "int64"}, keep=["name"]).sink("o", "out/o.csv")
    assert job.run().rows_written == 4
    assert set(polars.read_csv("out/o.csv").rows()) == {(9, "Ulm"), (12, "Oslo"), (18, "Bergen"), (27, "Trondheim")}
    job.save("saved.yaml")
    assert "test_job.py:scaled" in pathlib.Path("saved.yaml").read_text()


def test_each_of_the_forms_of_calls():
    def batch(rows):
        return [{"n": len(list(rows))}]

    def group(rows):
        rows = list(rows)
        yield {"country": rows[0]["country"], "n": len(rows)}

    job = places().map("g", group, per="group", by=["country"], columns={"country": "utf8", "n": "int64"})
    job.map("b", batch, per="batch", columns={"n": "int64"}, from_="places").sink("o", "out/b.csv").sink(
        "g", "out/g.csv", from_="g"
    )
    job.run()
    assert set(polars.read_csv("out/g.csv").rows()) == {("DE", 1), ("NO", 3)}
    assert polars.read_csv("out/b.csv")["n"].sum() == 4


def test_a_named_function_and_a_program():
    """The function runs with the Python of the program, which has Polars."""
    features = "import polars\ndef up(row):\n    return {'name': row['name'].upper()}\n"
    pathlib.Path("features.py").write_text(features)
    job = places().map("up", "features.py:up", columns={"name": "utf8"}).sink("o", "out/o.csv")
    job.map("cat", command=["cat"], exchange="csv", per="stream", columns={"name": "utf8"}).sink("c", "out/c.csv")
    job.run()
    assert "OSLO" in pathlib.Path("out/o.csv").read_text() and "OSLO" in pathlib.Path("out/c.csv").read_text()


def test_functions_for_sql():
    suffix = "!"

    def loud(name, times):
        return None if name is None else name.upper() + "!" * times

    def closed(name):
        return name + suffix

    job = places().function("loud", loud, arguments=["utf8", "int64"], returns="utf8", deterministic=True)
    job.sql("t", "SELECT loud(name, 2) AS l FROM places ORDER BY 1 LIMIT 1").sink("o", "out/o.csv")
    job.run()
    assert pathlib.Path("out/o.csv").read_text() == "l\nBERGEN!!\n"
    job.save("saved.yaml")
    assert "saved_functions.py:loud" in pathlib.Path("saved.yaml").read_text()
    pathlib.Path("out/o.csv").unlink()
    millstream.run("saved.yaml")
    assert pathlib.Path("out/o.csv").read_text() == "l\nBERGEN!!\n"
    with pytest.raises(millstream.Error, match="suffix"):
        places().function("closed", closed, arguments=["utf8"], returns="utf8")


def test_programs_at_both_ends():
    job = millstream.Job().source("n", command=["seq", "3"], lines={})
    job.sink("o", command=["sh", "-c", "cat > got"], exchange="lines").run()
    assert pathlib.Path("got").read_text() == "1\n2\n3\n"


PROGRAM = """
    import math, re
    import collections.abc as abc
    from statistics import median as middle
    import millstream

    WORD = re.compile("u", re.IGNORECASE)
    LIMITS = {"low": [1, 2.5, None], "names": ("a", b"b")}

    class Scale:
        factor: int = LIMITS["low"][0]

        def of(self, value):
            return rounded(value) * self.factor

    def rounded(value):
        return math.ceil(value) + LIMITS["low"][0]

    def score(row: "abc.Mapping[str, object]") -> "dict[str, object]":
        if WORD.search(row["name"]):
            return None
        found = sorted(len(part) for part in row["name"].split("n"))
        return {"score": Scale().of(middle(found))}

    job = millstream.Job().source("places", "places/*.csv.gz")
    job.map("scored", score, columns={"score": "int64"}, keep=["name"], deterministic=True).sink("o", "out/o.csv")
    print(job.run().rows_written)
    job.save("saved.yaml")
"""


def test_a_function_of_the_main_program_is_written_with_what_it_refers_to(output):
    assert output(PROGRAM) == "3\n"
    first = sorted(pathlib.Path("out/o.csv").read_text().splitlines())
    assert "python: \"saved_functions.py:score\"" in pathlib.Path("saved.yaml").read_text()
    module = pathlib.Path("saved_functions.py").read_text()
    assert "import math\n" in module and "from statistics import median as middle\n" in module
    assert "millstream" not in module and "place" not in module, "nothing else is written"
    # It stands on its own.
    subprocess.run([command(), "run", "saved.yaml"], check=True, capture_output=True)
    assert sorted(pathlib.Path("out/o.csv").read_text().splitlines()) == first


REFUSED = {
    "frame": ("import polars\nframe = polars.DataFrame()\ndef f(row):\n    return {'x': frame.height}",
              "`f` refers to `frame`, a DataFrame, which cannot be written into a module"),
    "closure": ("def around():\n    k = 1\n    def f(row):\n        return {'x': k}\n    return f\nf = around()",
                "`f` refers to `k` of the function around it"),
    "lambda": ("f = lambda row: row", "a lambda has no name that another process could find"),
    "builtin": ("f = len", "`len` is a builtin_function_or_method, and no function that was defined with `def`"),
    "undefined": ("def f(row):\n    return {'x': later}", "`f` refers to `later`, which is not defined"),
    "partial": ("import functools\ndef g(a, row):\n    return row\nf = functools.partial(g, 1)",
                "`partial` is a partial, and no function"),
    "deep": ("lock = open('/dev/null')\ndef g():\n    return lock\ndef f(row):\n    return {'x': g()}",
             "`g` refers to `lock`, a TextIOWrapper"),
    "default": ("t = 1\ndef f(row, k=t):\n    return {'x': k}\nt = 9",
                "`f(k=…)` is 1 here, and its source gives 9 in another process"),
    "deep default": ("t = [1]\ndef g(*, k=t):\n    return k[0]\ndef f(row):\n    return {'x': g()}\nt = [9]",
                     "`g(k=…)` is [1] here, and its source gives [9]"),
    "used default": ("def f(row, seen=[]):\n    return {'x': seen}\nf({})['x'].append(1)",
                     "`f(seen=…)` is [1] here, and its source gives []"),
    "changed class": ("class K:\n    X = 1\nK.X = 5\ndef f(row):\n    return {'x': K.X}",
                      "`K.X` is 5 here, and its source gives 1 in another process"),
    "added attribute": ("class K:\n    pass\nK.X = 5\ndef f(row):\n    return {'x': K.X}",
                        "`K.X` is 5 here, and its source gives nothing"),
    "other method": ("class K:\n    def m(self):\n        return 1\ndef n(self):\n    return 2\nK.m = n\n"
                     "def f(row):\n    return {'x': K().m()}", "`K.m` is <function n> here"),
    "default of a method": ("t = 1\nclass K:\n    def m(self, k=t):\n        return k\nt = 2\n"
                            "def f(row):\n    return {'x': K().m()}", "`K.m(k=…)` is 1 here, and its source gives 2"),
    "lock": ("import threading\nclass K:\n    lock = threading.Lock()\ndef f(row):\n    return {'x': K}",
             "`K.lock`, <unlocked _thread.lock object>, cannot be compared"),
    "array": ("import numpy\nclass K:\n    a = numpy.arange(3)\nK.a[1] = 9\ndef f(row):\n    return {'x': K}",
              "`K.a` is array([0, 9, 2]) here, and its source gives array([0, 1, 2])"),
    "no equality": ("class K:\n    __slots__ = ()\ndef f(row, k=K()):\n    return {'x': 1}",
                    "`f(k=…)`, <K object>, cannot be compared"),
    "source": ("exec('def f(row): return row')", "the source of `f` is not known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused_where_it_is_named(output, name):
    text, message = REFUSED[name]
    program = (
        f"import millstream\n{text}\n"
        "try:\n    millstream.Job().source('s', 'a.csv').map('m', f, columns={'x': 'int64'})\n"
        "except millstream.Error as error:\n    assert error.hint\n    print(error.what)\n"
    )
    assert message in output(program)


SAME = """
    import dataclasses, datetime, decimal, enum, functools, random, re, typing
    import numpy
    import millstream

    class Colour(enum.Enum):
        RED = 1
        GREEN = (2, 3)

    @dataclasses.dataclass
    class Point:
        x: int = 1
        y: list = dataclasses.field(default_factory=list)

    class Pair(typing.NamedTuple):
        a: int
        b: str = "b"

    class Base:
        LIMITS = {"a": [1, 2.5], "nan": float("nan")}
        WHEN = datetime.date(2024, 1, 1)
        WORD = re.compile("a")
        ARRAY = numpy.arange(5)
        RANDOM = random.Random(7)
        TYPE = Point

        class Inner:
            Z = 1

        def __init__(self, k=decimal.Decimal("1.5")):
            self.k = k

        @property
        def double(self):
            return self.k * 2

        @classmethod
        def made(cls, k=3):
            return cls(k)

        @functools.cached_property
        def once(self):
            return 1

    class Own(Base):
        __slots__ = ("s",)

    def cached(n, by=len):
        return n

    def f(row, p=Point(3), b=Base(), c=Colour.RED, *, of=cached, t=Pair(1), kind=Own, many=(Colour.GREEN, [Point()])):
        cached(1)
        return {"x": int(p.x + b.double + of(1) + t.a + (c is Colour.RED) + kind.made().double)}

    job = millstream.Job().source("s", "places/*.csv.gz").map("m", f, columns={"x": "int64"})
    print(job.sink("o", "out/o.csv").run().rows_written, open("out/o.csv").read().split()[1], f({})["x"])
"""


def test_what_is_the_same_in_another_process_is_not_refused(output):
    assert output(SAME) == "4 15 15\n"


TEXTS = '''\
import json, millstream

def around():
    def at_the_margin(row):
        return {"x": """a
b"""}

    def indented(row):
        return {"x": """a
        b"""}

    def plain(row):
        return {"x": "a b"}

    return at_the_margin, indented, plain

for f in around():
    job = millstream.Job().source("s", "places/a.csv.gz").map("m", f, columns={"x": "utf8"}).sink("o", "out/o.jsonl")
    job.run()
    job.save("saved.yaml")
    same = json.loads(open("out/o.jsonl").readline()) == f({})
    print(same, "if True" in open("saved_functions.py").read())
'''


def test_texts_of_several_lines_stay_as_they_are(output):
    """Also in a function that is defined in another one."""
    assert output(TEXTS) == "True True\nTrue True\nTrue False\n"


def test_a_default_is_compared_with_the_module_of_the_run(output):
    assert output("""
        import millstream
        t = 1
        def f(row, k=t):
            return {"x": k}
        job = millstream.Job().source("s", "places/*.csv.gz").map("m", f, columns={"x": "int64"}).sink("o", "out/o.csv")
        t = 9
        for end in (job.run, lambda: job.save("saved.yaml")):
            try:
                end()
            except millstream.Error as error:
                print(error.what)
    """) == "`f(k=…)` is 1 here, and its source gives 9 in another process\n" * 2


def test_a_fault_in_a_function_has_its_traceback():
    def fails(row):
        return {"x": 1 / 0}

    with pytest.raises(millstream.Error) as raised:
        places().map("m", fails, columns={"x": "int64"}).sink("o", "out/o.csv").run()
    (problem,) = raised.value.problems
    assert (problem.what, problem.step) == ("ZeroDivisionError: division by zero", "m")
    assert "in fails" in (problem.cause or "") and "1 / 0" in (problem.cause or "")


def test_a_module_with_dependencies_on_its_package_is_imported(folder, output):
    package = folder / "own"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("FACTOR = 7\n")
    (package / "steps.py").write_text("from .names import FACTOR\ndef f(row):\n    return {'x': FACTOR}\n")
    program = """
        import millstream
        from own.steps import f
        job = millstream.Job().source("s", "places/*.csv.gz").map("m", f, columns={"x": "int64"}).sink("o", "out/o.csv")
        job.run()
        print(open("out/o.csv").read().split())
    """
    assert output(program) == "['x', '7', '7', '7', '7']\n"


def test_jobs_with_functions_in_several_threads():
    written = []

    def run(number):
        job = places().map("m", scaled, columns={"scaled": "int64"}).sink("o", f"out/{number}.csv")
        written.append(job.run().rows_written)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert written == [4, 4, 4]


def test_a_job_of_a_notebook(folder):
    """Cells are known by their source only."""
    code = (
        "import linecache, millstream\n"
        "def cell(number, text):\n"
        "    name = f'<ipython-input-{number}>'\n"
        "    linecache.cache[name] = (len(text), None, text.splitlines(True), name)\n"
        "    exec(compile(text, name, 'exec'), globals())\n"
        "cell(1, 'STEP = 2\\ndef f(row):\\n    return {\"x\": STEP}\\n')\n"
        "cell(2, 'job = millstream.Job().source(\"s\", \"places/*.csv.gz\")\\n"
        "job.map(\"m\", f, columns={\"x\": \"int64\"}).sink(\"o\", \"out/o.csv\")\\n"
        "print(job.run().rows_written)\\n')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "4\n", ran.stderr

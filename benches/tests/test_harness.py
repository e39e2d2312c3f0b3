"""Holds that the data is the same everywhere, that answers are checked, and that the smallest scale runs.

`make test` runs it after the programs are built; PROGRAMS is the folder where they are.
"""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import (  # noqa: E402
    builds,
    costs,
    curve,
    data,
    loading,
    main,
    measure,
    own_code,
    posts,
    queues,
    reading,
    report,
    sequences,
    starts,
    store,
    tools,
    workloads,
)

SMALLEST = "0.0005"


def digest(text: str) -> str:
    """A few digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Data(unittest.TestCase):
    """The rows."""

    def test_the_same_rows_on_every_machine(self) -> None:
        self.assertEqual(digest("".join(data.trades_csv(7, 500))), "fd7e992ff6807208")
        self.assertEqual(digest("".join(data.trades_json(500))), "7d4562c09c75ce33")
        self.assertEqual(digest("".join(data.places(7, 122))), "8d3ca9556252d22a")
        self.assertEqual(digest(str(data.zstd_rows(2_600))), "993cd4ad21897cf9")
        self.assertEqual(digest("".join(map(posts.json_line, posts.posts(1, 500)))), "5e83f1b5c071ed20")

    def test_the_shape_of_full_scale(self) -> None:
        self.assertEqual(len(data.trading_days()), data.DAYS)
        self.assertEqual(store.chosen_days(1.0), list(range(data.DAYS)))
        firsts = [task[1][1] for task in store.tasks_places(Path(), 1.0)]
        ends = [task[1][2] for task in store.tasks_places(Path(), 1.0)]
        self.assertEqual((firsts[0], ends[-1], firsts[1:]), (0, data.PLACE_UNITS, ends[:-1]))
        bytes_a_row = [len(line.encode()) for unit in range(50) for line in data.places(unit * 99, 122)]
        self.assertAlmostEqual(sum(bytes_a_row) / len(bytes_a_row), 122, delta=4)

    def test_every_month_has_trades_at_every_scale(self) -> None:
        for scale in (0.0005, 0.05, 0.1, 0.5, 1.0):
            months = [len(task[1][1]) for task in store.tasks_zips(Path(), scale)]
            self.assertEqual(len(months), 12)
            self.assertGreater(min(months), 0)


class Posts(unittest.TestCase):
    """What is loaded into databases."""

    def test_sums_tell_a_row_that_is_changed(self) -> None:
        (before,), (after,) = posts.posts(7, 8), posts.posts(7, 8, 1)
        self.assertNotEqual(posts.sums(before), posts.sums(after))
        self.assertEqual(posts.sums(before).ids, 7)
        self.assertEqual(posts.sums(before) + posts.sums(after), posts.sums(after) + posts.sums(before))

    def test_values_are_escaped_for_whom_reads_them(self) -> None:
        self.assertEqual(posts.tsv_value('a"\t\n\\'), 'a"\\t\\n\\\\')
        self.assertEqual(posts.csv_line((1, True, 'a "b"', "c,d", "e")), '1,1,"a ""b""","c,d",e\n')

    def test_a_curve_is_flat_where_more_brings_little(self) -> None:
        line = curve.Line(1, [10.0, 50.0, 91.0, 100.0, 95.0])
        self.assertEqual(line.flat(), 2)
        drawing = curve.drawn("X", [curve.Line(count, [float(10 + step) for step in range(len(curve.BATCHES))])
                                    for count in curve.CONNECTIONS])  # fmt: skip
        self.assertEqual(drawing.count("<circle"), len(curve.CONNECTIONS))


class Answers(unittest.TestCase):
    """What counts as right."""

    def faults(self, answers: dict[str, measure.Answer], expected: measure.Answer) -> list[str]:
        contenders = [measure.Contender(name, "peer", []) for name in answers]
        results = measure.Results(answers=answers)
        measure.check(contenders, results, expected)
        return results.faults

    def test_a_wrong_count_is_a_fault(self) -> None:
        self.assertEqual(self.faults({"a": 5, "b": 5, "c": None}, 5), [])
        self.assertEqual(self.faults({"a": 4, "b": 5}, 5), ["a: wrong answer: 4 instead of 5"])

    def test_sums_may_differ_in_their_last_digits_only(self) -> None:
        self.assertEqual(self.faults({"a": {"x": 1e9}, "b": {"x": 1e9 + 1e-3}}, None), [])
        self.assertEqual(len(self.faults({"a": {"x": 1e9}, "b": {"x": 1e9 + 9}}, None)), 1)
        self.assertEqual(len(self.faults({"a": {"x": 1.0}, "b": {"x": 1.0, "y": 0.0}}, None)), 1)

    def test_a_target_is_missed_or_met_by_the_best_of_the_others(self) -> None:
        def sample(wall: float) -> measure.Sample:
            return measure.Sample(wall, wall, 0, 0, 0, 0.0, 0.0)

        results = measure.Results({workloads.OURS: [sample(3.0), sample(2.0)], "a": [sample(4.0)], "b": [sample(9.0)]})
        target = workloads.within(0.45, "a", "b", "absent")
        self.assertEqual(target.value(results), 0.5)
        self.assertFalse(target.met(0.5))
        self.assertTrue(workloads.within(0.5, "a").met(0.5))
        self.assertIsNone(workloads.within(0.5, "absent").value(results))
        self.assertEqual(report.verdict(None, target), "")


class Queues(unittest.TestCase):
    """What a load from a queue is compared with."""

    def test_the_limit_is_the_least_work_on_all_cores(self) -> None:
        def sample(wall: float, cpu: float, server: float) -> measure.Sample:
            return measure.Sample(wall, cpu, 0, 0, 0, server, 0.0)

        ours = [sample(7.0, 9.0, 9.0), sample(6.0, 9.0, 9.0)]
        others = {"read": [sample(9.0, 2.0, 2.0), sample(9.0, 1.0, 2.0)], "load": [sample(9.0, 1.0, 4.0)]}
        results = measure.Results({workloads.OURS: ours, **others})
        self.assertAlmostEqual(queues.within_work(1.25, 2, "read", "load").value(results), 6.0 / 4.0)
        self.assertIsNone(queues.within_work(1.25, 2, "read", "absent").value(results))


class Starts(unittest.TestCase):
    """What a start of a sequence takes."""

    def test_a_run_waits_for_the_slot_that_is_free_first(self) -> None:
        # Began, ended, and when the job began.
        rows = [(1_010, 1_100, 1_020), (1_015, 1_400, 1_030), (1_105, 1_410, 1_120), (1_404, 1_450, 1_408)]
        self.assertEqual(starts.waits(rows, 1_000, 2), ([10, 15, 5, 4], [20, 30, 20, 8]))

    def test_the_summary_has_the_slowest(self) -> None:
        found = starts.summary("run", list(range(1_000, 0, -1)))
        self.assertEqual(found, {"run median": 501, "run p99": 991, "run most": 1_000})


class Costs(unittest.TestCase):
    """What one variant of Millstream costs against another one."""

    def test_a_cost_is_the_time_with_to_the_time_without(self) -> None:
        def samples(*walls: float) -> list[measure.Sample]:
            return [measure.Sample(wall, wall, 0, 0, 0, 0.0, 0.0) for wall in walls]

        results = measure.Results({"with": samples(5.2, 5.1), "without": samples(5.0, 6.0)})
        target = costs.against(1.02, "with", "without", "the ledger")
        self.assertAlmostEqual(target.value(results), 1.02)
        self.assertIsNone(costs.against(1.02, "with", "absent", "").value(results))

    def test_a_file_that_is_read_is_counted(self) -> None:
        rows = list(posts.posts(1, 300))
        with tempfile.TemporaryDirectory() as folder:
            table, text = Path(folder, "out.tsv"), Path(folder, "out.csv")
            table.write_text("id\tauthor\n" + "".join(map(posts.tsv_line, rows)), encoding="utf-8")
            text.write_text("id,author\n" + "".join(map(posts.csv_line, rows)), encoding="utf-8")
            wanted = (299, sum(range(1, 300)))
            self.assertEqual(reading.counted_lines(table), wanted)
            self.assertEqual(reading.counted_csv(text), wanted)


class OwnCode(unittest.TestCase):
    """What all contenders call, and how their results are compared."""

    def run_script(self, name: str, text: str) -> str:
        script = [sys.executable, str(own_code.CODE / name)]
        return subprocess.run(script, input=text, capture_output=True, text=True, check=True).stdout

    def test_the_mapper_and_the_reducer_are_filters(self) -> None:
        places = "".join(f"{number}\t{name}\tx\n" for number, name in enumerate(["Bad Ems", "Ems", "bad\u00a0x"]))
        words = self.run_script("mapper.py", places)
        self.assertEqual(words, "bad\nems\nems\nbad\nx\n")
        in_order = "".join(sorted(words.splitlines(keepends=True)))
        self.assertEqual(self.run_script("reducer.py", in_order), "bad\t2\nems\t2\nx\t1\n")
        self.assertEqual(self.run_script("reducer.py", "bad\nbad\n\nx\n\n"), "bad\t2\n\nx\t1\n\n")
        self.assertEqual(self.run_script("reducer.py", ""), "")

    def test_a_record_that_is_changed_missing_or_twice_is_seen(self) -> None:
        sys.path.insert(0, str(own_code.CODE))
        self.addCleanup(sys.path.remove, str(own_code.CODE))
        from repackage import repackage

        lines = [json.loads(posts.json_line(post)) for post in posts.posts(1, 200)]
        made = [record for record in map(repackage, lines) if record]
        self.assertEqual(len(made), sum(not post["locked"] for post in lines))
        with tempfile.TemporaryDirectory() as folder:

            def found(rows: list[dict]) -> measure.Answer:
                path = Path(folder, "rows.jsonl")
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                return own_code.records([path])

            whole = found(made)
            self.assertEqual(found(made[::-1]), whole)
            changed = [*made[:-1], {**made[-1], "document": made[-1]["document"].replace("1", "2")}]
            for other in (made[1:], [*made, made[0]], [*made[1:], made[1]], changed):
                self.assertFalse(measure.same(found(other), whole))

    def test_a_missing_package_is_said(self) -> None:
        kit = tools.Tools(Path("millstream"), Path("own"), None)
        with tempfile.TemporaryDirectory() as folder:
            context = workloads.Context(store.Store(Path(folder), 0.0005), kit, Path(folder))
            for open_workload in (own_code.python_group, own_code.python_import):
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    self.assertRaisesRegex(RuntimeError, "--wheel"),
                    open_workload(context),
                ):
                    self.fail("there is no package")


class Builds(unittest.TestCase):
    """Two builds against each other."""

    def test_the_interval_is_that_of_student(self) -> None:
        found = builds.interval([(1.0, 1.0), (1.1, 1.0), (2.0, 2.0), (2.2, 2.0)])
        self.assertAlmostEqual(found.ratio, 1.1**0.5)
        # The logarithms 0, l, 0, l have the standard deviation l / √3, and t is 3.182 for three degrees of freedom.
        self.assertAlmostEqual(found.high / found.ratio, 1.1 ** (3.182 / 3**0.5 / 2))
        self.assertAlmostEqual(found.low * found.high, found.ratio**2)
        self.assertIsNone(builds.interval([(1.0, 1.0)]))

    def test_only_ours_runs_with_both(self) -> None:
        ours = measure.Contender(workloads.OURS, "ours", measure.shell("/new/millstream cat x | wc -l"))
        both = builds.both([ours, measure.Contender("zcat", "peer", [])], Path("/new/millstream"), Path("/old/m"))
        self.assertEqual([contender.name for contender in both], ["millstream", "millstream (base)"])
        self.assertEqual(both[1].command, measure.shell("/old/m cat x | wc -l"))

    def test_it_runs_both_and_no_peers(self) -> None:
        millstream = Path(os.environ["PROGRAMS"], "millstream")
        with tempfile.TemporaryDirectory() as folder:
            line = ["benches/run", "count-gzip", "--scale", SMALLEST, "--repetitions", "2"]
            line += ["--millstream", str(millstream), "--base", str(millstream)]
            line += ["--programs", str(millstream.parent), "--cache", f"{folder}/cache"]
            line += ["--results", f"{folder}/results"]
            printed = io.StringIO()
            with mock.patch.object(sys, "argv", line), contextlib.redirect_stdout(printed):
                self.assertEqual(main.main(), 0, printed.getvalue())
        self.assertRegex(printed.getvalue(), r"\| count-gzip +\| millstream +\| [0-9.]+ \[[0-9.]+ \.\. [0-9.]+\]")
        self.assertNotIn("zcat", printed.getvalue())


class SmallestScale(unittest.TestCase):
    """Everything that needs nothing but our own programs and what the other tests need as well."""

    def test_it_runs_and_all_answers_are_right(self) -> None:
        programs = Path(os.environ["PROGRAMS"])
        chosen = [name for name in workloads.WORKLOADS if name not in ("memory",)]
        chosen += [*loading.LOADS, *costs.COSTS, *reading.TABLES_READ, *own_code.OWN_CODE]
        # Kafka and kcat are not needed by other tests.
        chosen += [name for name in queues.QUEUES if not name.startswith("kafka")]
        # The scheduler would wait for the next minute.
        chosen += [name for name in sequences.SEQUENCES if name != "schedule-starts"]
        chosen += ["serve-watched"]
        with tempfile.TemporaryDirectory() as folder:
            line = ["benches/run", *chosen, "--scale", SMALLEST, "--repetitions", "1", "--without-peers"]
            line += ["--millstream", str(programs / "millstream"), "--programs", str(programs)]
            line += ["--cache", f"{folder}/cache", "--results", f"{folder}/results"]
            printed = io.StringIO()
            with mock.patch.object(sys, "argv", line), contextlib.redirect_stdout(printed):
                code = main.main()
            self.assertEqual(code, 0, printed.getvalue())
            (kept,) = Path(folder, "results").glob("*.json")
            done = json.loads(kept.read_text())["works"]
        self.assertEqual([workload["name"] for workload in done], chosen)
        for workload in done:
            self.assertTrue(any(name.startswith(workloads.OURS) for name in workload["runs"]), workload["name"])
        self.assertIn("| count gzip files ", printed.getvalue())


if __name__ == "__main__":
    unittest.main()

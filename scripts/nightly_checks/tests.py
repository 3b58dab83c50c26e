"""Tests of the pure parts of scripts/nightly: `python3 -B scripts/nightly_checks/tests.py`. The workspace's tests run them."""

import unittest
from types import SimpleNamespace

import report
import steps

AMOUNTS = SimpleNamespace(tests="", bugs="", parsers="", faults=160, orders=260, seconds=60, examples=100, seed=None)


def result(name, outcome, **more):
    return {"step": name, "outcome": outcome, "why": "", "seconds": 90, "figures": {}, "left_out": [], "tail": [], "log": f"{name}.log",
            "commit": "c", "key": "k", "commands": [f"run {name}"], **more}


class Commands(unittest.TestCase):
    def test_ignored_tests_run_only_if_they_are_marked_as_nightly(self):
        text = '''
            #[ignore = "a measurement, not a test"]
            #[tokio::test]
            async fn overhead() {}
            #[ignore = "nightly: uploads 200 MB"]
            fn long_upload() {}'''
        ignored = steps.ignored_in(text)
        self.assertEqual(ignored, [("overhead", "a measurement, not a test"), ("long_upload", "nightly: uploads 200 MB")])
        suite = steps.steps(AMOUNTS, "t", {}, ignored, nextest=True)[0].commands[1]
        self.assertEqual(suite[-2:], ["-E", "not test(/(^|::)(overhead)$/)"])
        without_nextest = steps.steps(AMOUNTS, "t", {}, ignored, nextest=False)[0].commands[1]
        self.assertEqual(without_nextest[-4:], ["--", "--include-ignored", "--skip", "overhead"])

    def test_each_feature_is_checked_alone_and_none_at_all(self):
        metadata = {"packages": [{"name": "pcfarm-worker", "features": {"default": ["wasm"], "wasm": [], "faults": []}}]}
        commands = steps.slim(steps.features_of(metadata))
        worker = [command[5:] for command in commands if "check" in command and "pcfarm-worker" in command]
        package = ["--package", "pcfarm-worker"]
        self.assertEqual(worker, [package, [*package, "--features", "faults"], [*package, "--features", "wasm"]])
        self.assertEqual(len(commands), 3 + 3 + 2)  # the other programs without features, and two runs of tests

    def test_a_given_seed_is_part_of_the_command(self):
        faults = {step.name: step for step in steps.steps(SimpleNamespace(**{**vars(AMOUNTS), "seed": 7}), "t", {}, [], True)}["faults"]
        self.assertEqual(faults.commands[0][-4:], ["--faults", "160", "--seed", "7"])


class Figures(unittest.TestCase):
    def test_tests_of_both_runners(self):
        nextest = "     Summary [ 612.3s] 1012 tests run: 1009 passed (7 slow), 2 failed, 1 timed out, 5 skipped\n"
        self.assertEqual(steps.test_figures(nextest, {}), {"tests run": 1012, "passed": 1009, "failed": 2, "timed out": 1, "skipped": 5})
        cargo = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out\n" * 2
        self.assertEqual(steps.test_figures(cargo, {}), {"tests run": 6, "passed": 6, "failed": 0, "ignored": 2})

    def test_a_run_of_no_tests_is_a_problem(self):
        self.assertEqual(steps.test_figures("     Summary [   0.1s] 0 tests run: 0 passed, 90 skipped\n", {})["problem"], "no test was run")

    def test_other_steps(self):
        chaos = {"seed": 5, "faults": 40, "kinds": {"kill-agent": 3}, "lost": 0, "applied_from_revoked": 1, "skipped": []}
        self.assertEqual(steps.chaos_figures("", chaos), {"kinds": 1, "faults": 40, "seed": 5, "lost": 0, "applied from revoked": 1})
        runs = [{"planted": name, "seed": 9, "found": found} for name, found in [("a", 0), ("b", 2), (None, 0), (None, 1)]]
        score = {"caught": 1, "planted": 2, "false_alarms": 1, "clean": 2, "runs": runs}
        figures = {"caught": 1, "of planted": 2, "false alarms": 1, "in clean runs": 2, "missed": "a", "seeds of false alarms": "9"}
        self.assertEqual(steps.planted_figures("", score), figures)
        desk = "ok     begins (12 s)\nnot within 60 s: the agent works\nFAILED sleeps (60 s)\n"
        self.assertEqual(steps.desk_figures(desk, {}), {"checks": 2, "failed": 1, "names": "sleeps"})
        self.assertEqual(steps.desk_figures("", {})["problem"], "no check was run")
        self.assertEqual(steps.fuzz_figures("== a::fuzz::b\n12 inputs\n== c\n3 inputs\n", {}), {"targets": 2, "inputs": 15})
        api = "API Operations:\n  Selected: 79/80\n  Tested: 78\n\nTest cases:\n  1,234 generated, 9 skipped\n"
        self.assertEqual(steps.api_figures(api, {}), {"operations": 80, "tested by round": "78", "requests": 1234})
        self.assertEqual(steps.slim_figures("$ cargo check a\n[exit 0]\n$ cargo check b\n[exit 101]\n", {}), {"checked": 2, "failed": 1})
        total = "TOTAL   9 1 88.89%   900 63 93.00%   200 44 78.00%\n     Summary [  1s] 2 tests run: 2 passed, 0 skipped\n"
        figures = {"functions": "88.89%", "lines": "93.00%", "branches": "78.00%", "tests run": 2, "passed": 2, "skipped": 0}
        self.assertEqual(steps.coverage_figures(total, {}), figures)

    def test_a_step_that_wrote_nothing_has_no_figures_of_its_report(self):
        self.assertEqual((steps.chaos_figures("", {}), steps.planted_figures("", {})), ({}, {}))


class Decisions(unittest.TestCase):
    def test_only_a_pass_of_the_same_commit_and_amounts_spares_a_run(self):
        for outcome, key, commit, spared in [
            ("passed", "k", "c", True), ("failed", "k", "c", False), ("passed", "other", "c", False),
            ("passed", "k", "d", False), ("passed", "k", "", False),
        ]:
            self.assertEqual(report.still_holds(result("tests", outcome), key, commit), spared, (outcome, key, commit))
        self.assertFalse(report.still_holds(None, "k", "c"))

    def test_the_nearer_limit_ends_a_step(self):
        step = SimpleNamespace(name="fuzz", minutes=10)
        self.assertEqual(report.limit(step, {}, 9000.0)[0], 600)
        self.assertEqual(report.limit(step, {"fuzz": 1.0}, 9000.0)[0], 60)
        self.assertEqual(report.limit(step, {}, 30.0), (30.0, ("not run", "time ran out (--hours)")))


class Report(unittest.TestCase):
    def test_everything_left_out_is_listed_once(self):
        noted = report.left_out_of_step("a::b: for want of sway\na::b: for want of sway\n", {"skipped": [{"what": "fill-disk", "times": 2, "why": "not root"}]})
        self.assertEqual(noted, [["a::b", "for want of sway"], ["fault fill-disk", "not root (2 times)"]])
        results = [result("tests", "passed", left_out=noted), result("coverage", "passed", left_out=noted), result("api", "not run", why="late")]
        self.assertEqual(report.left_out(results, [("slow", "a measurement"), ("long", "nightly: long")]), [
            ["api", "the step", "late"], ["tests", "slow", "ignored: a measurement"],
            ["tests", "a::b", "for want of sway"], ["tests", "fault fill-disk", "not root (2 times)"],
        ])

    def test_markdown_names_each_outcome_and_ends_of_logs(self):
        results = [result("tests", "failed", why="a | b", tail=["FAIL x"]), result("api", "passed", figures={"operations": 80}, earlier=True)]
        text = report.markdown({"machine": {"cores": 2}, "steps": results, "left_out": []})
        for line in ["| cores | 2 |", "| tests | failed | 1.5 |  | a \\| b |", "| api | passed (earlier run) | 1.5 | operations: 80 |  |",
                     "## End of the log of tests", "FAIL x", "Nothing.", "| api | `run api` | api.log |"]:
            self.assertIn(line, text.splitlines())


if __name__ == "__main__":
    unittest.main()

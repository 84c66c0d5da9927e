"""Tests of scripts/*.py: what ends a build or a demonstration well or badly.

usage: scripts_test.py ROOT [unittest arguments]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "scripts"))

import compare_runs  # noqa: E402
import count_tests  # noqa: E402

PASSED = '<testcase name="a" status="run"/>'
FAILED = '<testcase name="b" status="fail"><failure message=""/></testcase>'
SKIPPED = '<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'
MISSING = '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>'
DISABLED = '<testcase name="e" status="disabled"/>'


class Counting(unittest.TestCase):
    """Counts are those of the report, and trouble is never counted as success."""

    def count(self, *cases, status=0):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(f"<testsuite>{''.join(cases)}</testsuite>")
            file.flush()
            return count_tests.count(file.name, status)

    def test_each_outcome_is_counted_as_what_it_is(self):
        self.assertEqual(self.count(PASSED, PASSED, FAILED, SKIPPED, DISABLED, status=8), (2, 1, 2))

    def test_a_test_that_cannot_be_started_has_failed(self):
        self.assertEqual(self.count(PASSED, MISSING, status=8), (1, 1, 0))

    def test_a_bad_exit_status_is_a_failure_even_without_a_failed_test(self):
        self.assertEqual(self.count(PASSED, status=8), (1, 1, 0))

    def test_no_tests_and_no_report_are_failures(self):
        self.assertEqual(self.count(), (0, 1, 0))
        self.assertEqual(count_tests.count("/nonexistent/report.xml", 0), (0, 1, 0))


class Comparing(unittest.TestCase):
    """A demonstration fails for each thing that it promises."""

    def setUp(self):
        self.dense = {"compressor": "none", "ranks": 4, "test_accuracy": 98.0, "sent_bytes_per_step": 1000.0,
                      "dense_bytes_per_step": 1000.0, "exposed_ms_per_step": 1.0, "seconds": 10.0,
                      "replicas_identical": True}
        self.sparse = dict(self.dense, compressor="topk", test_accuracy=97.8, sent_bytes_per_step=30.0)

    def faults(self):
        return list(compare_runs.faults(self.dense, self.sparse))

    def test_good_runs_have_no_faults(self):
        self.assertEqual(self.faults(), [])

    def test_low_accuracy_of_either_run_is_a_fault(self):
        self.dense["test_accuracy"] = self.sparse["test_accuracy"] = 97.4
        self.assertEqual(len(self.faults()), 2)

    def test_too_large_a_difference_is_a_fault(self):
        self.dense["test_accuracy"] = 98.5
        self.assertEqual(len(self.faults()), 1)

    def test_too_many_bytes_are_a_fault(self):
        self.sparse["sent_bytes_per_step"] = 51.0
        self.assertEqual(len(self.faults()), 1)

    def test_ranks_that_did_not_meet_are_a_fault(self):
        self.dense["sent_bytes_per_step"] = self.dense["dense_bytes_per_step"] = 0
        self.assertEqual(len(self.faults()), 1)
        self.assertIn("did not form one job", self.faults()[0])

    def test_different_replicas_are_a_fault(self):
        self.sparse["replicas_identical"] = False
        self.assertEqual(len(self.faults()), 1)


class Shell(unittest.TestCase):
    """The shell scripts are well-formed and refuse what they do not know."""

    def test_scripts_parse(self):
        for script in [*ROOT.glob("scripts/*.sh"), ROOT / ".ci/run"]:
            with self.subTest(script=script.name):
                self.assertEqual(subprocess.run(["bash", "-n", script], check=False).returncode, 0)
                self.assertTrue(script.stat().st_mode & 0o100, "not executable")

    def test_an_unknown_preset_is_named(self):
        result = subprocess.run([ROOT / "scripts/test.sh", "relaese"], check=False, capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown preset relaese", result.stderr)

    def gpu_script(self, *arguments, **environment):
        """scripts/gpu.sh on a machine without GPUs, with programs that are not there."""
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run([ROOT / "scripts/gpu.sh", *arguments, folder], check=False, capture_output=True,
                                  text=True, env={"PATH": os.environ["PATH"], "TERSUM_GPU_BUILD": folder, **environment})

    def test_gpu_script_refuses_what_it_does_not_know(self):
        for arguments in (["--only", "builds"], ["--only"], ["--nobuild"]):
            with self.subTest(arguments=arguments):
                result = self.gpu_script(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn("gpu.sh: ", result.stderr)

    def test_gpu_script_counts_programs_that_are_not_there_as_failures(self):
        result = self.gpu_script("--no-build", "--only", "tests")
        self.assertEqual(result.returncode, 1)
        self.assertIn("peer_tests: FAILED", result.stderr)
        failed = result.stderr.count(": FAILED")
        self.assertGreater(failed, len(list((ROOT / "tests/src").glob("device*_test.cpp"))))
        self.assertRegex(result.stdout, rf"(?m)^0 passed, {failed} failed$")

    def test_gpu_script_does_not_pass_over_sanitizers_that_are_not_there(self):
        result = self.gpu_script("--no-build", "--only", "sanitizers")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "compute-sanitizer is neither|memcheck_peer_tests: FAILED")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc"), "needs root and iproute2")
    def test_emulated_hosts_end_as_their_ranks_do(self):
        probe = f"tersum-probe-{os.getpid()}"
        if subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode != 0:
            self.skipTest("network namespaces are not allowed here")
        subprocess.run(["ip", "netns", "del", probe], check=True)
        ranks = 'echo "rank $TERSUM_RANK of $TERSUM_SIZE on $TERSUM_HOST_ID"; exit $((TERSUM_RANK == 1 ? $0 : 0))'
        for code in (0, 3):
            with self.subTest(code=code):
                result = subprocess.run([ROOT / "scripts/emulated_hosts.sh", "-n", "1", "--", "bash", "-c", ranks, str(code)],
                                        check=False, capture_output=True, text=True)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn("rank 0 of 2 on emulated-0", result.stdout)
                self.assertRegex(result.stdout, r"(?m)^# host 1 sent \d+ bytes$")


if __name__ == "__main__":
    unittest.main()

"""The command line of tersum-perf: errors are one clear line, -n starts ranks, a launcher's job is joined.

usage: command_line_test.py TERSUM_RUN TERSUM_PERF
"""

import subprocess
import sys
import unittest

from perf_run import environment

TERSUM_RUN, TERSUM_PERF = sys.argv[1], sys.argv[2]
QUICK = ["--max", "64", "--iterations", "1", "--warmup", "0"]


def run(*command, **more):
    """A finished process."""
    return subprocess.run(command, env={**environment("shm"), **more}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


class CommandLine(unittest.TestCase):
    """What users see."""

    def refused(self, *arguments, says, code=2, **more):
        """The command line is refused with one line on stderr that says this."""
        process = run(TERSUM_PERF, *arguments, **more)
        self.assertEqual(process.returncode, code, process.stderr)
        self.assertEqual(process.stdout, "")
        self.assertEqual(process.stderr.count("\n"), 1, process.stderr)
        for text in says:
            self.assertIn(text, process.stderr)

    def test_unknown_collective_lists_all(self):
        self.refused("allreduced", says=["allreduced", "allreduce", "barrier"])

    def test_missing_collective(self):
        self.refused(says=["collective"])

    def test_bad_sizes(self):
        self.refused("allreduce", "--min", "four", says=["--min four"])
        self.refused("allreduce", "--min", "2M", "--max", "1M", says=["--min 2M", "--max 1M"])
        self.refused("allreduce", "--max", "9999G", says=["--max 9999G", "1024G"])
        self.refused("allreduce", "--factor", "1", says=["--factor", "1"])

    def test_bad_names(self):
        self.refused("allreduce", "--dtype", "fp8", says=["--dtype fp8", "bf16"])
        self.refused("allreduce", "--op", "xor", says=["--op xor", "product"])
        self.refused("allreduce", "--transport", "pigeon", says=["pigeon"])
        self.refused("allreduce", "--algorithm", "tree", says=["tree", "ring"])
        self.refused("allreduce", "--speed", "9", says=["--speed"])

    def test_options_that_do_not_go_together(self):
        self.refused("allreduce", "--dtype", "bool", "--op", "average", says=["bool"])
        self.refused("alltoall", "--in-place", says=["all_to_all is never in place"])
        self.refused("broadcast", "--out-of-place", says=["broadcast is always in place"])
        self.refused("broadcast", "--algorithm", "ring", says=["--algorithm belongs to allreduce"])
        self.refused("broadcast", "--compressor", "none", says=["--compressor belongs to allreduce"])
        self.refused("allreduce", "--compressor", "topq", says=["topq", "topk"])
        self.refused("allreduce", "--compressor", "none", "--dtype", "int32", says=["--compressor", "int32"])
        self.refused("allreduce", "--compressor", "none", "--op", "max", says=["--compressor", "max"])

    def test_comparisons_with_nccl(self):
        compare = ["--device", "cuda", "--compare", "nccl"]
        self.refused("allreduce", "--compare", "nccl", says=["--compare nccl needs --device cuda"])
        self.refused("allreduce", "--device", "cuda", "--compare", "mpi", says=["--compare", "nccl"])
        self.refused("allreduce", "--device", "cuda", "--nccl-library", "x", says=["--nccl-library needs --compare"])
        for dtype in ("int16", "bool"):
            self.refused("allreduce", *compare, "--dtype", dtype, says=["NCCL has no --dtype", dtype])
        for collective, name in (("allgatherv", "all_gather_v"), ("alltoallv", "all_to_all_v"), ("barrier", "barrier")):
            self.refused(collective, *compare, says=["NCCL has no " + name])
        self.refused("allreduce", *compare, "--compressor", "none", says=["--compare", "--compressor"])

    def test_compressors_work_on_what_they_are_made_for(self):
        for dtype in ("fp64", "double"):
            self.refused("allreduce", "-n", "2", "--compressor", "topk", "--dtype", dtype,
                         says=["--compressor topk", "fp32, fp16 and bf16", dtype])
        process = run(TERSUM_PERF, "allreduce", "--compressor", "none", "--dtype", "fp64", *QUICK)
        self.assertEqual(process.returncode, 0, process.stderr)

    def test_output_that_cannot_be_written(self):
        for arguments in (["allreduce", *QUICK], ["allreduce", "-n", "2", *QUICK], ["--help"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w", encoding="utf-8") as full:
                process = subprocess.run([TERSUM_PERF, *arguments], env=environment("shm"), stdin=subprocess.DEVNULL,
                                         stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("cannot write the standard output", process.stderr)

    def test_runs_without_standard_descriptors(self):
        for closed in ("<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"):
            with self.subTest(closed=closed):
                script = f'exec "$0" "$@" {closed}'
                process = run("sh", "-c", script, TERSUM_PERF, "allreduce", "-n", "2", *QUICK)
                self.assertEqual(process.returncode, 0, process.stderr)

    def test_ranks_that_do_not_fit(self):
        self.refused("sendrecv", says=["at least 2 ranks"])
        self.refused("reduce", "--root", "1", says=["--root 1", "0"])
        process = run(TERSUM_RUN, "-n", "2", "--", TERSUM_PERF, "allreduce", "-n", "3")
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertIn("-n 3: the launcher has started 2 already", process.stderr)

    def test_one_rank_complains_for_all(self):
        process = run(TERSUM_PERF, "reduce", "-n", "3", "--root", "3")
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertEqual(process.stderr.count("--root 3"), 1, process.stderr)

    def test_bad_environment(self):
        self.refused("allreduce", says=["TERSUM_TIMEOUT_M"], code=1, TERSUM_TIMEOUT_M="1")

    def test_json_file_that_cannot_be(self):
        self.assertEqual(run(TERSUM_PERF, "allreduce", *QUICK, "--json", "/nowhere/x").returncode, 1)

    def test_n_starts_ranks(self):
        process = run(TERSUM_PERF, "allreduce", "-n", "2", *QUICK)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("all_reduce: 2 ranks", process.stdout)
        self.assertIn("# Out of bounds values : 0 OK", process.stdout)

    def test_joins_the_launchers_job(self):
        process = run(TERSUM_RUN, "-n", "2", "--no-prefix", "--", TERSUM_PERF, "all_reduce", *QUICK)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual(process.stdout.count("all_reduce: 2 ranks"), 1, process.stdout)

    def test_forms_and_checks_can_be_left_out(self):
        process = run(TERSUM_PERF, "allreduce", "--max", "4", "--iterations", "1", "--in-place", "--no-check")
        self.assertEqual(process.returncode, 0, process.stderr)
        row = next(line for line in process.stdout.splitlines() if line.lstrip().startswith("4 "))
        self.assertEqual(row.split()[5:9], ["N/A"] * 4)
        self.assertEqual(row.split()[12], "N/A")

    def test_help_and_version(self):
        for option, text in (("--help", "busbw"), ("--version", "tersum-perf 0.")):
            process = run(TERSUM_PERF, option)
            self.assertEqual(process.returncode, 0)
            self.assertIn(text, process.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

"""tersum-info as a command: what it does where its output cannot go.

usage: tersum_info_test.py TERSUM_INFO
"""

import json
import os
import subprocess
import sys
import unittest

TERSUM_INFO = sys.argv[1]


class Output(unittest.TestCase):
    """Its standard streams."""

    def test_output_that_cannot_be_written_is_an_error(self):
        for option in ([], ["--json"], ["--markdown"], ["--help"]):
            with self.subTest(option=option), open("/dev/full", "w", encoding="utf-8") as full:
                process = subprocess.run([TERSUM_INFO, *option], stdout=full, stderr=subprocess.PIPE, text=True,
                                         timeout=60, check=False)
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("tersum-info: cannot write the standard output", process.stderr)

    def test_lanes_follow_the_settings(self):
        def ucx(**settings):
            process = subprocess.run([TERSUM_INFO, "--json"], env={**os.environ, **settings}, capture_output=True,
                                     text=True, timeout=60, check=True)
            return json.loads(process.stdout)

        lanes = ucx(TERSUM_INTERFACE="lo", TERSUM_TRANSPORT="tcp")
        self.assertEqual((lanes["ucx"]["inside_host"], lanes["ucx"]["between_hosts"]), ("tcp/lo", "tcp/lo"))
        self.assertEqual(lanes["devices"]["routes"]["between_hosts"], "through pinned memory, over tcp/lo")
        lanes = ucx(TERSUM_TRANSPORT="shm", TERSUM_DEVICE_STAGING="ucx")
        self.assertIn("posix/memory", lanes["ucx"]["inside_host"])
        self.assertEqual(lanes["ucx"]["between_hosts"], "")
        if not lanes["ucx"]["device_memory"]:
            self.assertIn("without CUDA", lanes["devices"]["routes"]["between_hosts"])
        note = ucx(TERSUM_TRANSPORT="tcp", TERSUM_INTERFACE="no_such_if0")["ucx"]["note"]
        self.assertIn("does not start with transports 'tcp' and interface 'no_such_if0'", note)

    def test_runs_without_standard_descriptors(self):
        process = subprocess.run(["sh", "-c", 'exec "$0" <&- >&- 2>&-', TERSUM_INFO], timeout=60, check=False)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

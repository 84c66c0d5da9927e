"""tersum-info as a command: what it does where its output cannot go.

usage: tersum_info_test.py TERSUM_INFO
"""

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

    def test_runs_without_standard_descriptors(self):
        process = subprocess.run(["sh", "-c", 'exec "$0" <&- >&- 2>&-', TERSUM_INFO], timeout=60, check=False)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

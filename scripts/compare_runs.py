"""Compares two results of train_mnist --json: a dense run and a compressed one.

usage: compare_runs.py DENSE.json COMPRESSED.json

Prints both side by side. Exit status 1, with the reasons, if a run is less accurate than it must be,
if both differ too much, if compression sends too many bytes, or if replicas differ.
"""

import json
import sys

LEAST_ACCURACY = 97.5     # percent
LARGEST_DIFFERENCE = 0.6  # points
LARGEST_RATIO = 0.05      # bytes sent, compressed over dense

ROWS = (
    ("test accuracy", lambda r: f"{r['test_accuracy']:.2f} %"),
    ("bytes per step and rank", lambda r: f"{r['sent_bytes_per_step']:,.0f}"),
    ("of dense fp32", lambda r: f"{100 * r['sent_bytes_per_step'] / max(r['dense_bytes_per_step'], 1):.2f} %"),
    ("exposed communication", lambda r: f"{r['exposed_ms_per_step']:.2f} ms per step"),
    ("time", lambda r: f"{r['seconds']:.1f} s"),
    ("replicas identical", lambda r: "yes" if r["replicas_identical"] else "NO"),
)


def faults(dense, compressed):
    """What is not as it must be."""
    for run in (dense, compressed):
        if run["ranks"] < 2 or run["sent_bytes_per_step"] <= 0:
            yield f"{run['compressor']}: nothing was sent; the ranks did not form one job"
            return
        if run["test_accuracy"] < LEAST_ACCURACY:
            yield f"{run['compressor']}: accuracy {run['test_accuracy']:.2f} % is below {LEAST_ACCURACY} %"
        if not run["replicas_identical"]:
            yield f"{run['compressor']}: the ranks' parameters differ"
    difference = abs(dense["test_accuracy"] - compressed["test_accuracy"])
    if difference > LARGEST_DIFFERENCE:
        yield f"accuracies differ by {difference:.2f} points, more than {LARGEST_DIFFERENCE}"
    ratio = compressed["sent_bytes_per_step"] / dense["sent_bytes_per_step"]
    if ratio > LARGEST_RATIO:
        yield f"compression sends {100 * ratio:.1f} % of the dense bytes, more than {100 * LARGEST_RATIO:.0f} %"


def main():
    runs = []
    for path in sys.argv[1:3]:
        try:
            with open(path, encoding="utf-8") as file:
                runs.append(json.load(file))
        except (OSError, ValueError) as error:
            sys.exit(f"{path} is not one result of train_mnist --json: {error}")
    print(f"{'':26}" + "".join(f"{run['compressor']:>26}" for run in runs))
    for title, text in ROWS:
        print(f"{title:26}" + "".join(f"{text(run):>26}" for run in runs))
    found = list(faults(*runs))
    for fault in found:
        print("not as it must be:", fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

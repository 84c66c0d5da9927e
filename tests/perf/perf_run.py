"""Runs tersum-perf as a job and reads what it has printed and written.

usage: perf_run.py TERSUM_RUN TERSUM_PERF RANKS TRANSPORT ARGUMENTS...

ARGUMENTS are those of tersum-perf. "--each-op OP... --" in them makes one run for each operator. Fails unless every
run ends with 0, has looked at every size, and counts nothing wrong.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
    "all_gather_v": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n,
    "all_to_all_v": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1, "reduce": lambda n: 1, "send_recv": lambda n: 1, "barrier": lambda n: 1,
}
NEVER_OUT_OF_PLACE = {"broadcast"}
NEVER_IN_PLACE = {"all_to_all", "all_to_all_v", "send_recv", "barrier"}


def fail(what, output=""):
    """Ends the test."""
    sys.exit(f"{what}\n{output}")


def expect(condition, what, output=""):
    """Ends the test unless the condition holds."""
    if not condition:
        fail(what, output)


def environment(transport):
    """This process's environment without the variables of a launcher, and with the transport."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TERSUM_", "OMPI_", "PMI_", "SLURM_"))
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, "TERSUM_TRANSPORT": transport, "TERSUM_TIMEOUT_MS": "120000"}


def option(arguments, name, default):
    """Value of an option in a command line."""
    return arguments[arguments.index(name) + 1] if name in arguments else default


def sizes(arguments):
    """The sizes that this command line asks for."""
    def size(text):
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)
    least, most = size(option(arguments, "--min", "4")), size(option(arguments, "--max", "64M"))
    result = []
    while least <= most:
        result.append(least)
        least *= int(option(arguments, "--factor", "2"))
    return result


def check_form(result, form, document):
    """One size, out of place or in place."""
    measured = result[form]
    collective, ranks = document["collective"], document["ranks"]
    if collective in (NEVER_IN_PLACE if form == "in_place" else NEVER_OUT_OF_PLACE):
        expect(measured is None, f"{collective} has no form {form}: {result}")
        return
    expect(measured["wrong"] == 0, f"{form}: {result}")
    expect(0 < measured["min_us"] <= measured["time_us"] <= measured["p99_us"], f"{form}: times: {result}")
    algbw = result["size_bytes"] / measured["time_us"] / 1e3
    busbw = algbw * BUS_FACTORS[collective](ranks)
    expect(abs(measured["algbw_gb_per_s"] - algbw) <= 1e-9 * algbw, f"{form}: algbw is not {algbw}: {result}")
    expect(abs(measured["busbw_gb_per_s"] - busbw) <= 1e-9 * busbw, f"{form}: busbw is not {busbw}: {result}")
    if collective == "all_reduce" and result["count"] >= ranks > 1:
        expect(measured["wire_bytes_per_rank"] > 0, f"{form}: nothing was sent: {result}")


def check_compressed(result, document):
    """One size through a compressor."""
    expect(result["wrong"] == 0, f"{result}")
    expect(result["wire_bytes_per_rank"] > 0, f"nothing was sent: {result}")
    if document["compressor"] == "none":
        expect(result["relative_l2_error"] < 1e-6, f"dense, but not exact: {result}")
    elif result["count"] >= 4096:
        expect(result["ratio"] > 4, f"not compressed: {result}")
        expect(0 < result["relative_l2_error"] < 1, f"no error that makes sense: {result}")


def run(tersum_run, tersum_perf, ranks, transport, arguments):
    """One job."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        process = subprocess.run(
            [tersum_run, "-n", str(ranks), "--no-prefix", "--", tersum_perf, *arguments, "--json", str(report)],
            env=environment(transport), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)
        output = process.stdout + process.stderr
        expect(process.returncode == 0, f"exit code {process.returncode}: {arguments}", output)
        expect("# Out of bounds values : 0 OK\n" in output, "no verdict", output)
        expect(re.search(r"^# Avg (equivalent )?bus bandwidth : ", output, re.M), "no average", output)
        expect(f"# transport {transport}," in output, f"not over {transport}", output)
        document = json.loads(report.read_text(encoding="utf-8"))
    rows = [line for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    expected = [0] if document["collective"] == "barrier" else sizes(arguments)
    if document["compressor"]:
        expected = [size for size in expected if size >= 4]
    expect(len(rows) == len(expected) == len(document["results"]), f"{len(expected)} sizes were asked for", output)
    expect(document["ranks"] == ranks and document["transport"] == transport, "another job", output)
    expect(document["out_of_bounds_values"] == 0, "wrong values", output)
    for result, asked in zip(document["results"], expected):
        expect(result["size_bytes"] <= asked, f"more than {asked} bytes: {result}")
        if document["compressor"]:
            check_compressed(result, document)
        else:
            check_form(result, "out_of_place", document)
            check_form(result, "in_place", document)


def main():
    tersum_run, tersum_perf, ranks, transport, *arguments = sys.argv[1:]
    runs = [arguments]
    if "--each-op" in arguments:
        start, end = arguments.index("--each-op"), arguments.index("--")
        runs = [arguments[:start] + ["--op", op] + arguments[end + 1:] for op in arguments[start + 1:end]]
    for each in runs:
        run(tersum_run, tersum_perf, int(ranks), transport, each)


if __name__ == "__main__":
    main()

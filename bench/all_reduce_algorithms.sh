#!/usr/bin/env bash
# Times every all-reduce algorithm on this machine: a table of microseconds for each transport and number
# of ranks, one row a size. From such tables come the thresholds in src/collectives/all_reduce.cpp.
#
#   bench/all_reduce_algorithms.sh [BUILD_DIR] [RANKS ...]     default: build/release, 2 and 4 ranks
set -euo pipefail
build=$(realpath "${1:-build/release}")
shift || true
ranks=("${@:-2}")
[ $# -gt 0 ] || ranks=(2 4)
algorithms=(oneshot twoshot ring halving doubling)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo "# all-reduce, fp32, out of place, median of 3 runs in us; $(nproc) cores, $(date -u +%F), $("$build/src/tools/tersum-info" | awk '$1 == "transports" {print; exit}' | xargs)"
for transport in shm tcp; do
  for n in "${ranks[@]}"; do
    for round in 1 2 3; do  # interleaved, so that a slow moment of the machine meets all of them
      for algorithm in "${algorithms[@]}"; do
        TERSUM_TRANSPORT=$transport "$build/bench/perf/tersum-perf" allreduce -n "$n" --algorithm "$algorithm" \
          --min 1K --max 16M --factor 4 --iterations 100 --out-of-place --no-check --json "$out/$algorithm.$round.json" > /dev/null
      done
    done
    python3 - "$out" "$transport, $n ranks" "${algorithms[@]}" << 'PYTHON'
import json, statistics, sys
out, title, *names = sys.argv[1:]
times = {}
for name in names:
    for repeat in (1, 2, 3):
        for row in json.load(open(f"{out}/{name}.{repeat}.json"))["results"]:
            times.setdefault(row["size_bytes"], {}).setdefault(name, []).append(row["out_of_place"]["time_us"])
print(f"\n{title}\n{'bytes':>10}" + "".join(f"{name:>12}" for name in names))
for size, row in times.items():
    medians = {name: statistics.median(row[name]) for name in names}
    best = min(medians.values())
    print(f"{size:>10}" + "".join(f"{medians[n]:>11.1f}{'*' if medians[n] == best else ' '}" for n in names))
PYTHON
  done
done

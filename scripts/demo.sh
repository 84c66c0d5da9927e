#!/usr/bin/env bash
# Trains a small network on MNIST with four ranks on this machine, once with dense gradients and once
# with 1 % of them (top-k with error feedback), and compares. Exit status 0 if accuracy holds, the
# bytes fall, and all replicas stay identical. `scripts/demo.sh 2` trains for 2 epochs instead of 8
# (a look; the accuracy that is asked for takes 8).
set -euo pipefail
cd "$(dirname "$0")/.."
epochs=${1:-8}

scripts/setup.sh
echo "Building (release)"
mkdir -p build/release
if ! { cmake --preset release && cmake --build --preset release -j "$(nproc)" --target tersum-run train_mnist; } \
  > build/release/demo-build.log 2>&1; then
  grep -E 'error|FAILED|CMake Error' build/release/demo-build.log | head -n 40
  echo "demo.sh: does not build; all of it is in build/release/demo-build.log" >&2
  exit 1
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
run() {  # run NAME COMPRESSOR
  echo
  echo "== $2 on 4 ranks"
  build/release/src/tools/tersum-run -n 4 -- build/release/examples/train_mnist \
    --compressor "$2" --epochs "$epochs" --json "$results/$1.json"
}
run dense none
run sparse topk:ratio=0.01+ef
echo
python3 scripts/compare_runs.py "$results/dense.json" "$results/sparse.json"

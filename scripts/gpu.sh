#!/usr/bin/env bash
# Builds the GPU room, runs all GPU tests and benchmarks, and leaves what they said in a directory:
#
#   scripts/gpu.sh [directory]          (default: build/gpu-results)
#
# Environment: TERSUM_GPU_BUILD (build directory, default build/gpu), NCCL_LIBRARY (path of libnccl.so.2; found in
# Python's nvidia-nccl package if not set; without it nothing is compared with NCCL), TERSUM_TRACES (CSV files for
# exchange_replay, separated by spaces).
# The last line says how many steps passed and failed. Exit status 0 only if none failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=${1:-build/gpu-results}
build=${TERSUM_GPU_BUILD:-build/gpu}
mkdir -p "$results"
results=$(cd "$results" && pwd)
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # plain NVLink on both sides
passed=0 failed=0

step() {  # step <name> <seconds> <command...>
  local name=$1 limit=$2
  shift 2
  if timeout "$limit" "$@" > "$results/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "$name: passed"
  else
    failed=$((failed + 1))
    echo "$name: FAILED, see $results/$name.log" >&2
  fi
}

step configure 300 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTERSUM_CUDA=ON -DTERSUM_BENCH=ON
step build 3600 cmake --build "$build" --target \
  cuda_test src_device_test src_device_gradients_test src_device_hierarchy_test src_device_hosts_test src_device_loss_test src_device_processes_test \
  src_device_context_test src_device_pieces_test collectives_cuda compressed_cuda compressors_cuda \
  exchange_replay tersum-perf tersum-run
if [ "$failed" -gt 0 ]; then
  echo "$passed passed, $failed failed"
  exit 1
fi

{
  date -u +%Y-%m-%d
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || echo "no GPU"
} > "$results/machine.txt"

step tests 900 "$build/tests/cuda/cuda_test" --gtest_output="json:$results/tests.json"
for name in device device_pieces device_gradients device_hierarchy device_hosts device_loss device_processes device_context; do
  step "${name}_tests" 300 "$build/tests/src/src_${name}_test" --gtest_output="json:$results/${name}_tests.json"
done

nccl=${NCCL_LIBRARY:-$(python3 -c "import nvidia.nccl, os
print(os.path.join(list(nvidia.nccl.__path__)[0], 'lib', 'libnccl.so.2'))" 2> /dev/null)}
compare=()
[ -n "$nccl" ] && compare=(--compare nccl --nccl-library "$nccl")
count=$(nvidia-smi -L 2> /dev/null | wc -l)
for ranks in 2 4 8; do
  [ "$count" -ge "$ranks" ] || continue
  run=("$build/bench/collectives_cuda" --ranks "$ranks" "${compare[@]}")
  for dtype in fp32 bf16; do
    step "all_reduce_${dtype}_x$ranks" 300 "${run[@]}" --eager --dtype "$dtype" \
      --variant tersum --variant early:early=1 --json "$results/all_reduce_${dtype}_x$ranks.json"
  done
  step "compressed_x$ranks" 300 "$build/bench/compressed_cuda" --ranks "$ranks" ${nccl:+--nccl-library "$nccl"} \
    --json "$results/compressed_x$ranks.json"
  step "others_x$ranks" 300 "${run[@]}" --json "$results/others_x$ranks.json" \
    --collectives reduce_scatter,all_gather,broadcast,reduce,all_to_all,send_receive
done
for ranks in 2 4; do
  [ "$count" -ge "$ranks" ] || continue
  step "communicators_x$ranks" 300 "$build/bench/perf/tersum-perf" allreduce -n "$ranks" --device cuda --graph \
    --min 1K --max 256M --factor 4 --json "$results/communicators_x$ranks.json"
done
if [ "$(id -u)" -eq 0 ] && command -v ip > /dev/null && command -v tc > /dev/null; then
  for ranks in 1 2; do
    step "emulated_hosts_x$ranks" 120 scripts/emulated_hosts.sh -n "$ranks" -- "$build/bench/perf/tersum-perf" allreduce \
      --device cuda --min 256M --max 256M --iterations 2 --json "$results/emulated_hosts_x$ranks.json"
  done
fi
for trace in ${TERSUM_TRACES:-}; do
  [ "$count" -ge 2 ] || continue
  step "replay_$(basename "$trace" .csv)" 300 "$build/src/tools/tersum-run" -n 2 -- "$build/bench/exchange/exchange_replay" \
    "$trace" --json "$results/replay_$(basename "$trace" .csv).json"
done
step compressors 600 "$build/bench/compressors_cuda"

cat "$results/machine.txt" "$results"/all_reduce_*.log "$results"/compressed_*.log "$results"/others_*.log \
  "$results"/compressors.log \
  2> /dev/null | tee "$results/table.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

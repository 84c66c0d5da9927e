#!/usr/bin/env bash
# Builds the GPU room, runs all GPU tests and benchmarks, and leaves what they said in a directory, with a table and
# plots of it (summary.md and *.svg, by plot_results.py):
#
#   scripts/gpu.sh [--no-build] [--only tests|benches|sanitizers] [directory]   (default: bench/results/gpu-<date>)
#
#   --no-build   takes the programs in TERSUM_GPU_BUILD as they are: no compilers are needed, and of the sources only
#                the names in tests/src, which say what tests there are
#   --only       tests or benches alone; or sanitizers, which no other run includes: the tests under compute-sanitizer,
#                memcheck and racecheck, without those that measure times or kill ranks
#
# Environment: TERSUM_GPU_BUILD (build directory, default build/gpu), NCCL_LIBRARY (path of libnccl.so.2; found in
# Python's nvidia-nccl package if not set; without it nothing is compared with NCCL), TERSUM_TRACES (CSV files for
# exchange_replay, separated by spaces).
# The last line says how many steps passed and failed. Exit status 0 only if none failed.
set -uo pipefail
results=$(dirname "$0")/../bench/results/gpu-$(date -u +%Y-%m-%d) only= build_it=yes
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build_it= ;;
    --only)
      only=${2:-}
      shift
      case $only in
        tests | benches | sanitizers) ;;
        *) echo "gpu.sh: --only tests, --only benches or --only sanitizers" >&2 && exit 2 ;;
      esac
      ;;
    -*) echo "gpu.sh: unknown option $1; there are --no-build and --only tests|benches|sanitizers" >&2 && exit 2 ;;
    *) results=$1 ;;
  esac
  shift
done
mkdir -p "$results" || exit 2
results=$(cd "$results" && pwd)
build=$(realpath -m "${TERSUM_GPU_BUILD:-$(dirname "$0")/../build/gpu}")
traces=${TERSUM_TRACES:-}
export -n TERSUM_GPU_BUILD TERSUM_TRACES  # programs refuse TERSUM_* names that are no settings
cd "$(dirname "$0")/.." || exit 2
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}  # plain NVLink on both sides
passed=0 failed=0

count_step() {  # count_step <name> <status of its command> <seconds>
  if [ "$2" -eq 0 ]; then
    passed=$((passed + 1))
    echo "$1: passed ($3 s)"
  else
    failed=$((failed + 1))
    echo "$1: FAILED ($3 s), see $results/$1.log" >&2
  fi
}

step() {  # step <name> <seconds> <command...>
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" > "$results/$name.log" 2>&1
  count_step "$name" $? $((SECONDS - start))
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

device_tests=()
for name in tests/src/device*_test.cpp; do
  [ -e "$name" ] || { echo "gpu.sh: $PWD/tests/src has no device*_test.cpp, which name the tests" >&2 && exit 2; }
  name=${name##*/}
  device_tests+=("${name%.cpp}")
done

if [ -n "$build_it" ]; then
  step configure 300 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTERSUM_CUDA=ON -DTERSUM_BENCH=ON
  step build 3600 cmake --build "$build" --target cuda_test transport_ucx_test "${device_tests[@]/#/src_}" \
    collectives_cuda compressed_cuda compressors_cuda queues_cuda exchange_replay tersum-perf tersum-run
  [ "$failed" -eq 0 ] || finish
fi
{
  date -u +%Y-%m-%d
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | sed 's/, /, driver /' || echo "no GPU"
} > "$results/machine.txt"
cards=$(nvidia-smi -L 2> /dev/null | wc -l)

# What one GPU is enough for.
single='All/TwinBytes*:BufferPool*:Foundation*:Gather*:GpuError*:Layouts/*:NcclLoader*:TopKTwin*:TwinCalls*'
single+=':TwinRegistry*:CollectivePlan*:CompressedPlan*:Random.Twins*'

single_steps() {  # single_steps <name> <seconds> <command...>: those tests in parts side by side
  local name=$1 limit=$2 parts=6 part pids=() start=$SECONDS
  shift 2
  for ((part = 0; part < parts; ++part)); do
    CUDA_VISIBLE_DEVICES=$((part % (cards > 0 ? cards : 1))) GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part \
      timeout -k 5 "$limit" "$@" --gtest_filter="$single" --gtest_output="json:$results/${name}_$part.json" \
      > "$results/${name}_$part.log" 2>&1 &
    pids+=($!)
  done
  for ((part = 0; part < parts; ++part)); do
    wait "${pids[part]}"
    count_step "${name}_$part" $? $((SECONDS - start))
  done
}

tests() {
  single_steps single_tests 300 "$build/tests/cuda/cuda_test"
  # What measures how fast failures are noticed, alone.
  step peer_tests 300 "$build/tests/cuda/cuda_test" --gtest_filter="-$single" --gtest_output="json:$results/peer_tests.json"
  step ucx_tests 60 "$build/tests/transport/transport_ucx_test" --gtest_output="json:$results/ucx_tests.json"
  for name in "${device_tests[@]}"; do
    step "${name}s" 300 "$build/tests/src/src_$name" --gtest_output="json:$results/${name}s.json"
  done
}

sanitizers() {
  local sanitizer name
  if ! sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer); then
    echo "gpu.sh: compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin: it comes with CUDA" >&2
    failed=$((failed + 1))
    return
  fi
  local skipped='*Silent*:*Stopped*:*Killed*:*Late*:*Abort*:*NeverSubmitted*:Forms/*:PeerTest.AHundred*'
  # Nor ranks that share a GPU: a kernel that waits for another one there is not run beside it under a sanitizer.
  [ "$cards" -ge 5 ] || skipped+=':Random.Co*'
  [ "$cards" -ge 4 ] || skipped+=':Ranks/*/4:Hosts/BetweenHosts.*/3'
  [ "$cards" -ge 3 ] || skipped+=':Ranks/*/3:Hosts/BetweenHosts.*/1:Hosts/BetweenHosts.*/2'
  [ "$cards" -ge 2 ] || skipped+=':Ranks/*/2:CollectiveTest.*:CompressedTest.*'
  # Of all ranks; calls that fail because a test asks for too much are no finding.
  local run=("$sanitizer" --target-processes all --report-api-errors no --error-exitcode 99 --tool)
  single_steps memcheck_single_tests 300 "${run[@]}" memcheck "$build/tests/cuda/cuda_test"
  step memcheck_peer_tests 600 "${run[@]}" memcheck "$build/tests/cuda/cuda_test" --gtest_filter="-$single:$skipped"
  for name in "${device_tests[@]}"; do
    case $name in device_loss_test | device_queues_test | device_turns_test) continue ;; esac  # the last has no kernels
    step "memcheck_${name}s" 300 "${run[@]}" memcheck "$build/tests/src/src_$name" --gtest_filter="-$skipped"
  done
  # Takes ten times as long as the tests alone: every kernel, but not so much of it.
  skipped+=':*AThousandTimes*:*MergesWhatIsSparse*:*Large*:*CopyEnginesGiveTheHostsBits*'
  single_steps racecheck_single_tests 600 "${run[@]}" racecheck "$build/tests/cuda/cuda_test"
  step racecheck_peer_tests 900 "${run[@]}" racecheck "$build/tests/cuda/cuda_test" --gtest_filter="-$single:$skipped"
}

benches() {
  local nccl ranks dtype trace name count
  nccl=${NCCL_LIBRARY:-$(python3 -c "import nvidia.nccl, os
print(os.path.join(list(nvidia.nccl.__path__)[0], 'lib', 'libnccl.so.2'))" 2> /dev/null)}
  local compare=()
  [ -n "$nccl" ] && compare=(--compare nccl --nccl-library "$nccl")
  for ranks in 2 4 8; do
    [ "$cards" -ge "$ranks" ] || continue
    local run=("$build/bench/collectives_cuda" --ranks "$ranks" "${compare[@]}")
    for dtype in fp32 bf16; do
      step "all_reduce_${dtype}_x$ranks" 120 "${run[@]}" --eager --dtype "$dtype" \
        --variant tersum --variant early:early=1 --json "$results/all_reduce_${dtype}_x$ranks.json"
    done
    step "others_x$ranks" 120 "${run[@]}" --json "$results/others_x$ranks.json" \
      --collectives reduce_scatter,all_gather,broadcast,reduce,all_to_all,send_receive
    step "compressed_x$ranks" 120 "$build/bench/compressed_cuda" --ranks "$ranks" "${compare[@]}" \
      --json "$results/compressed_x$ranks.json"
    local perf=("$build/bench/perf/tersum-perf" allreduce -n "$ranks" --device cuda "${compare[@]}"
      --min 1K --max 64M --factor 16)
    step "communicators_graph_x$ranks" 120 "${perf[@]}" --graph --iterations 50 \
      --json "$results/communicators_graph_x$ranks.json"
    step "communicators_eager_x$ranks" 120 "${perf[@]}" --iterations 300 --json "$results/communicators_eager_x$ranks.json"
  done
  if [ "$(id -u)" -eq 0 ] && command -v ip > /dev/null && command -v tc > /dev/null && [ "$cards" -ge 1 ]; then
    for ranks in 1 2; do
      step "emulated_hosts_x$ranks" 120 scripts/emulated_hosts.sh -n "$ranks" -- "$build/bench/perf/tersum-perf" allreduce \
        --device cuda --min 256M --max 256M --iterations 2 --warmup 1 --in-place --no-check \
        --json "$results/emulated_hosts_x$ranks.json"
      for spec in none qint:bits=4 topk:ratio=0.01; do
        name=emulated_hosts_x${ranks}_${spec%%:*}
        step "$name" 120 scripts/emulated_hosts.sh -n "$ranks" -- "$build/bench/perf/tersum-perf" allreduce \
          --device cuda --min 256M --max 256M --iterations 5 --warmup 2 --compressor "$spec" --json "$results/$name.json"
      done
    done
  fi
  for trace in $traces; do
    [ "$cards" -ge 2 ] || continue
    name=replay_$(basename "$trace" .csv)
    step "$name" 120 "$build/src/tools/tersum-run" -n 2 -- "$build/bench/exchange/exchange_replay" "$trace" \
      --json "$results/$name.json"
  done
  if [ "$cards" -ge 1 ]; then
    step queues 120 "$build/bench/queues_cuda"
    for count in 1 2 3 4 16 32; do
      step "queues_$count" 60 "$build/bench/queues_cuda" --connections "$count"
    done
    step compressors 120 "$build/bench/compressors_cuda" --json "$results/compressors.json"
    step compressors_shift 120 "$build/bench/compressors_cuda" --shift --count 268435456 --spec topk --spec topk+ef \
      --json "$results/compressors_shift.json"
    if python3 -c "import torch; assert torch.cuda.is_available()" 2> /dev/null; then
      step compressors_torch 240 python3 bench/compressors_torch.py "$build/bench/compressors_cuda" \
        --json "$results/compressors_torch.json"
    fi
  fi
  step plots 60 python3 -B scripts/plot_results.py "$results"
}

case $only in
  tests) tests ;;
  benches) benches ;;
  sanitizers) sanitizers ;;
  *)
    tests
    benches
    ;;
esac
finish

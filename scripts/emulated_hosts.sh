#!/usr/bin/env bash
# Runs a job on two emulated hosts of this machine: two network namespaces joined by a veth pair with a bounded rate
# each way. Needs root and iproute2.
#
#   scripts/emulated_hosts.sh [options] -- command [arguments]
#
#   -n ranks    ranks on each host (default 1)
#   -r rate     of the link each way, in tc's words (default 10gbit; "none": as fast as veth is)
#   -m mtu      of the link (default 9000)
#
# The command runs once for each rank, with the TERSUM_* variables that a launcher sets and one TERSUM_HOST_ID for each
# host; both hosts see all GPUs. With more ranks than GPUs, CUDA's multi-process service (MPS), if it is here, lets kernels
# of several ranks run on one GPU side by side, as they would on GPUs of their own. Rank 0's output goes to this script's; of the others what goes to stderr. Prints the
# link's settings, then what the link carried from each host. Exit status: that of the first rank that failed.
set -euo pipefail
ranks=1 rate=10gbit mtu=9000
while getopts n:r:m: option; do
  case $option in
    n) ranks=$OPTARG ;;
    r) rate=$OPTARG ;;
    m) mtu=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }

id=$$
spaces=("tersum-$id-a" "tersum-$id-b") links=("ve${id}a" "ve${id}b") addresses=(10.201.77.1 10.201.77.2)
pids=() service=
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  for space in "${spaces[@]}"; do ip netns del "$space" 2> /dev/null || true; done
  [ -z "$service" ] || { echo quit | nvidia-cuda-mps-control; rm -rf "$service"; } > /dev/null 2>&1
}
trap cleanup EXIT

for space in "${spaces[@]}"; do ip netns add "$space"; done
ip link add "${links[0]}" netns "${spaces[0]}" type veth peer name "${links[1]}" netns "${spaces[1]}"
for host in 0 1; do
  inside=(ip netns exec "${spaces[$host]}")
  "${inside[@]}" ip link set lo up
  "${inside[@]}" ip address add "${addresses[$host]}/24" dev "${links[$host]}"
  "${inside[@]}" ip link set "${links[$host]}" mtu "$mtu" up
  # A burst of 1 MiB lets segments of 64 KiB through at the full rate; the queue holds a window.
  [ "$rate" = none ] ||
    "${inside[@]}" tc qdisc add dev "${links[$host]}" root tbf rate "$rate" burst 1mb latency 20ms
  # BBR mistakes the emulated link for a slow one.
  "${inside[@]}" sysctl -qw net.ipv4.tcp_congestion_control=reno 2> /dev/null || true
done
for host in 0 1; do
  until ip netns exec "${spaces[$host]}" ip link show "${links[$host]}" | grep -q "state UP"; do sleep 0.05; done
done
control=$(ip netns exec "${spaces[0]}" sysctl -n net.ipv4.tcp_congestion_control)
echo "# 2 emulated hosts x $ranks ranks, veth $rate each way, mtu $mtu, $control"

size=$((2 * ranks))
gpus=$({ nvidia-smi -L 2> /dev/null || true; } | wc -l)
if [ "$gpus" -gt 0 ] && [ "$gpus" -lt "$size" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  service=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY=$service CUDA_MPS_LOG_DIRECTORY=$service
  if nvidia-cuda-mps-control -d; then
    echo "# $size ranks share $gpus GPUs through MPS"
  else
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
fi
for ((rank = 0; rank < size; ++rank)); do
  host=$((rank / ranks))
  variables=(TERSUM_RANK="$rank" TERSUM_SIZE="$size" TERSUM_LOCAL_RANK=$((rank % ranks)) TERSUM_LOCAL_SIZE="$ranks"
    TERSUM_ROOT="${addresses[0]}:29517" TERSUM_HOST_ID="emulated-$host" TERSUM_INTERFACE="${links[$host]}")
  if [ "$rank" -eq 0 ]; then exec 3>&1; else exec 3> /dev/null; fi
  ip netns exec "${spaces[$host]}" env "${variables[@]}" "$@" >&3 3>&- &
  pids+=($!)
done
exec 3>&-
status=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  [ "$status" -ne 0 ] || status=$code
done
pids=()
for host in 0 1; do
  bytes=$(ip netns exec "${spaces[$host]}" cat "/sys/class/net/${links[$host]}/statistics/tx_bytes" 2> /dev/null ||
    ip netns exec "${spaces[$host]}" ip -s link show "${links[$host]}" | awk '/TX:/ {getline; print $1}')
  echo "# host $host sent $bytes bytes"
done
exit "$status"

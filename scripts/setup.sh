#!/usr/bin/env bash
# Installs what building and testing Tersum needs, on Debian 12, Ubuntu 24.04 and newer ones.
# Does nothing, quickly, when everything is there.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config python3
          libucx-dev libboost-dev libssl-dev libhwy-dev librandom123-dev
          libspdlog-dev nlohmann-json3-dev libcli11-dev libeigen3-dev zlib1g-dev
          libgtest-dev libgmock-dev libbenchmark-dev)

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "setup.sh: this is no Debian or Ubuntu; install what these packages hold: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "setup.sh: not root and no sudo; ask for: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null

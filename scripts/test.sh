#!/usr/bin/env bash
# Builds and runs the tests:
#
#   scripts/test.sh                     release, then the quick ones under ASan and UBSan and under TSan
#   scripts/test.sh release tsan        only these presets (release, debug, asan-ubsan, tsan)
#
# The last line counts: "N passed, N failed", with ", N skipped" if there are any. Exit status 0 only
# if everything was built and nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."
presets=("$@")
[ ${#presets[@]} -gt 0 ] || presets=(release asan-ubsan tsan)
jobs=$(nproc)
passed=0 failed=0 skipped=0

finish() {
  local line="$passed passed, $failed failed"
  [ "$skipped" -gt 0 ] && line+=", $skipped skipped"
  echo "$line"
  [ "$failed" -eq 0 ]
  exit
}

for preset in "${presets[@]}"; do
  case $preset in
    release | debug | asan-ubsan | tsan) ;;
    *)
      echo "test.sh: unknown preset $preset; there are release, debug, asan-ubsan, tsan" >&2
      exit 2
      ;;
  esac
done

if ! scripts/setup.sh; then
  failed=1
  finish
fi

for preset in "${presets[@]}"; do
  started=$SECONDS
  echo "== $preset: build"
  mkdir -p "build/$preset"
  log=build/$preset/build.log
  if ! { cmake --preset "$preset" -DTERSUM_TESTS=ON && cmake --build --preset "$preset" -j "$jobs"; } > "$log" 2>&1; then
    grep -E 'error|FAILED|CMake Error' "$log" | head -n 40
    echo "== $preset: does not build; all of it is in $log"
    failed=$((failed + 1))
    continue
  fi
  built=$SECONDS

  select=() wrapper=()
  case $preset in
    asan-ubsan) select=(-LE slow -E '^(architecture|install|scripts)\.') ;;
    # Without what only repeats the same threads on more data or on both transports at once.
    tsan) select=(-LE slow -E 'LargeCounts|/ucx_auto') ;;
  esac
  # Thread sanitizer of older compilers cannot live with much randomised addresses.
  if [ "$preset" = tsan ] && setarch -R true 2> /dev/null; then wrapper=(setarch -R); fi

  echo "== $preset: test ($((built - started)) s to build)"
  report=$PWD/build/$preset/tests.xml
  rm -f "$report"
  # A shared machine stalls for seconds now and then: what fails runs once more, and is named.
  "${wrapper[@]}" ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error \
    --repeat until-pass:2 \
    --output-junit "$report" "${select[@]}" > "build/$preset/test.log" 2>&1
  status=$?
  counts=$(python3 scripts/count_tests.py "$report" "$status")
  read -r p f s <<< "$counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  if [ "$f" -gt 0 ]; then
    grep -vE '^ *([0-9]+/[0-9]+ Test|Start) .*( Passed|: )' "build/$preset/test.log" | head -n 200
    echo "== $preset: all of it is in build/$preset/test.log"
  fi
  sed -nE "s/^ +[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+).*\*\*\*(Failed|Timeout|Exception).*/== $preset: had to run again: \1/p" "build/$preset/test.log" |
    sort -u
  echo "== $preset: $p passed, $f failed, $s skipped ($((SECONDS - built)) s)"
done
finish

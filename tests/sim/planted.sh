#!/usr/bin/env bash
# Shows that the simulation can fail: plants bugs (base/plant.h), one at a time, and says how soon each is found.
set -euo pipefail

usage() {
  cat <<'T'
usage: tests/sim/planted.sh [--sim=PROGRAM] [--donors=PROGRAM] [--versions=PROGRAM] [--seconds=N] [BUG...]

Builds the simulations with bugs that can be planted (bazel build --config=plant), or takes those
programs, and runs one with each bug, or those named, from seed 1 on until it fails: donors_test
for bugs that begin with "donors_", versions_store_test for those that base/plant.h says it finds,
sim for all others, with --publish for those that begin with "publish_". Prints after how many operations, with
which seed, and how. Fails if a bug was not found within N seconds (default 120).
`grep PLANT base/plant.h` lists the bugs.

example: tests/sim/planted.sh loss_is_zeros retry_overtakes
T
}

cd "$(dirname "$0")/../.."
sim=
donors=
versions=
seconds=120
bugs=()
for word in "$@"; do
  case "$word" in
    -h | --help) usage; exit 0 ;;
    --sim=*) sim=${word#--sim=} ;;
    --donors=*) donors=${word#--donors=} ;;
    --versions=*) versions=${word#--versions=} ;;
    --seconds=*) seconds=${word#--seconds=} ;;
    -*) echo "tests/sim/planted.sh: there is no flag \"$word\"" >&2; usage >&2; exit 2 ;;
    *) bugs+=("$word") ;;
  esac
done
if [ ${#bugs[@]} -eq 0 ]; then
  mapfile -t bugs < <(grep -oE '^ *(/\*.*\*/ *)?PLANT\([a-z_]+\)' base/plant.h | grep -oE '\([a-z_]+\)' | tr -d '()')
fi
if [ -z "$sim" ] || [ -z "$donors" ] || [ -z "$versions" ]; then
  bazel build --config=plant //tests/sim:sim //tests/sim:donors_test //memserver:versions_store_test
  sim=${sim:-bazel-bin/tests/sim/sim}
  donors=${donors:-bazel-bin/tests/sim/donors_test}
  versions=${versions:-bazel-bin/memserver/versions_store_test}
fi

found=0
for bug in "${bugs[@]}"; do
  run=("$sim" --episodes=1000000 --plant="$bug" --seed=1)
  case "$bug" in
    publish_*) run=("$sim" --publish --episodes=1000000 --plant="$bug" --seed=1) ;;
    donors_*) run=("$donors" --rounds=1000000 --plant="$bug" --seed=1) ;;
    displaced_in_place | born_not_set | compactor_skips_deltas | trim_counts_kept_frame)
      run=(env NRAM_PLANT="$bug" "$versions") ;;
  esac
  output=$(timeout "$seconds" "${run[@]}" 2>&1) && status=0 || status=$?
  where=$(grep -o -m1 'FAILED with.*' <<< "$output" || true)
  if [ "$status" -eq 0 ] || [ "$status" -eq 124 ]; then
    echo "$bug: NOT FOUND in $seconds s"
  elif [ -n "$where" ]; then
    found=$((found + 1))
    echo "$bug: ${where#FAILED } $(grep -A1 -m1 'FAILED with' <<< "$output" | tail -n 1 | cut -c1-160)"
  else
    found=$((found + 1))
    echo "$bug: $(grep -m1 -E 'Check failed|: Failure' <<< "$output" | cut -c1-200)"
  fi
done
echo "$found passed, $((${#bugs[@]} - found)) failed"
[ "$found" -eq ${#bugs[@]} ]

#!/usr/bin/env bash
# Programs written for Rambrain, one that forks, one whose objects are destroyed last, and the examples of managed
# memory, on a pool of this machine.
#   rambrain_test.sh NRAM RAMBRAIN_PROGRAM TRANSPOSE CYCLIC_SCAN FORK_PROGRAM RAMBRAIN_WORK EXIT_PROGRAM
set -euo pipefail
nram=$(readlink -f "$1")
program=$(readlink -f "$2")
transpose=$(readlink -f "$3")
cyclic_scan=$(readlink -f "$4")
fork_program=$(readlink -f "$5")
rambrain_work=$(readlink -f "$6")
exit_program=$(readlink -f "$7")

directory=$(mktemp -d)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL NRAM_BUDGET
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

"$nram" up --servers=2 --donate=256M > /dev/null
nothing_is_left() { "$nram" regions | grep -q '^No regions' || fail "$* has left $("$nram" regions)"; }
timeout 60 "$program" || fail "the program ended with $?"
nothing_is_left "a program for Rambrain"
timeout 60 "$exit_program" || fail "the program that ends late ended with $?"
nothing_is_left "a program with late objects"
timeout 60 "$exit_program" none || fail "the program without late objects ended with $?"
nothing_is_left "a program without late objects"
timeout 60 "$transpose" --n=1024 --budget-mib=2 || fail "transpose ended with $?"
timeout 60 "$cyclic_scan" --mib=16 --budget-mib=4 --rounds=3 > "$directory/said" || fail "cyclic_scan ended with $?"
cat "$directory/said"
grep -q '^round 3: .* 0.0 MiB written' "$directory/said" || fail "a round of reading has written"
"$transpose" --n=0 > /dev/null 2>&1 && fail "a matrix of nothing"
timeout 200 "$fork_program" || fail "the program that forks ended with $?"
for work in sequential random transpose; do
  for how in CONST WRITE; do
    timeout 60 "$rambrain_work" "$work" "$how" 8 2 64 1 || fail "$work $how ended with $?"
  done
done
echo PASSED

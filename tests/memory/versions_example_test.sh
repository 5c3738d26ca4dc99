#!/usr/bin/env bash
# The solver of heat and its observers, in C++ and in Fortran, each with both, a plot and a checkpoint. Arguments: the
# program nram, the program heat, libnram-core.so.0, the folder bindings/fortran, arrays.f90.
set -euo pipefail

nram=$(readlink -f "$1")
heat=$(readlink -f "$2")
library=$(readlink -f "$3")
fortran=$(cd "$4" && pwd)
arrays=$(readlink -f "$5")
directory=$(mktemp -d -p /tmp --suffix=-nram-heat)
export NRAM_STATE_DIR=$directory/state LD_LIBRARY_PATH=$directory${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*" >&2
  cat "$directory"/*.out >&2 || true
  exit 1
}

ln -s "$library" "$directory/libnram-core.so.0"
ln -s "$library" "$directory/libnram-core.so"
gfortran -std=f2018 -Wall -Wextra -Werror -O2 -J "$directory" "$fortran/nram.f90" "$fortran/heat.f90" \
  -o "$directory/heat" -L "$directory" -lnram-core
gfortran -std=f2018 -Wall -Wextra -Werror -O2 -J "$directory" "$fortran/nram.f90" "$arrays" \
  -o "$directory/arrays" -L "$directory" -lnram-core

"$nram" up --servers=2 --donate=256M > /dev/null
"$directory/arrays" || fail "arrays.f90"
cpp() { "$heat" "$1" --n=300 --steps=60 --every=5 --budget-mib=4; }
f90() { "$directory/heat" "$1" 300 60 5 4; }
# A wrong word is answered without a backtrace.
for word in turn "solve none"; do
  code=0
  "$directory/heat" $word > "$directory/wrong.out" 2>&1 || code=$?
  [ "$code" -eq 2 ] || fail "heat $word: exit $code"
  ! grep -qiE 'backtrace|error termination' "$directory/wrong.out" || fail "heat $word: a backtrace"
done
for solver in cpp f90; do
  "cpp" watch > "$directory/cpp.out" 2>&1 &
  first=$!
  "f90" watch > "$directory/f90.out" 2>&1 &
  second=$!
  "$solver" plot > "$directory/plot.out" 2>&1 &
  plot=$!
  # Without a solver, an observer says that it waits.
  for observer in cpp f90 plot; do
    for ((tries = 0; tries < 3000; ++tries)); do
      ! grep -qsx 'waiting for a solver to publish "heat"' "$directory/$observer.out" || continue 2
      sleep 0.01
    done
    fail "$observer does not say that it waits for the solver in $solver"
  done
  # It goes on until the observers have seen the last state and its standard input ends.
  mkfifo "$directory/input"
  "$solver" solve < "$directory/input" > "$directory/solver.out" 2>&1 &
  third=$!
  exec 9> "$directory/input"
  wait $first || fail "the observer in C++ of the solver in $solver"
  wait $second || fail "the observer in Fortran of the solver in $solver"
  wait $plot || fail "the plot of the solver in $solver"
  # The newest is the last one, which remains with the solver. The commands need no knowledge of its contents.
  "$nram" versions heat > "$directory/versions.out" || fail "the versions of the solver in $solver"
  grep -q " temperature  float64\[300, 300\].* in heat at 0$" "$directory/versions.out" || fail "the plate of $solver"
  grep -q " steps  int64\[\]  in heat at " "$directory/versions.out" || fail "the steps of $solver"
  checkpoint=$("$nram" checkpoint heat "$directory/checkpoints" --once) || fail "a checkpoint of the solver in $solver"
  exec 9>&-
  wait $third || fail "the solver in $solver"
  rm "$directory/input"
  for observer in cpp f90; do
    tail -1 "$directory/$observer.out" | grep -q "step 60 of 60, .*, as the solver says" || fail "$observer's last line"
  done
  tail -1 "$directory/plot.out" | grep -q "step 60 of 60" || fail "the plot's last line"
  test "$(tail -25 "$directory/plot.out" | head -1 | tr -d -c @ | wc -c)" = 64 || fail "the hot edge of the plot"
  "$nram" restore "$checkpoint" --as="from-$solver" | grep -q "^from-$solver  " || fail "restoring $checkpoint"
  "$nram" versions "from-$solver" > "$directory/versions.out" || fail "the versions of what was restored"
  grep -q " temperature  float64\[300, 300\].* in from-$solver at 0$" "$directory/versions.out" || fail "its plate"
  rm -r "$directory/checkpoints"
done
"$nram" down > /dev/null
echo PASSED

#!/usr/bin/env bash
# An MPI program on the memory API, built and started as users do, by Debian's Open MPI. Arguments: the program nram,
# libnram.so.0, the folder of the headers, the program's source.
set -euo pipefail

nram=$(readlink -f "$1")
library=$(readlink -f "$2")
directory=$(mktemp -d -p /tmp --suffix=-nram-mpi)
export NRAM_STATE_DIR=$directory/state LD_LIBRARY_PATH=$directory
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES
# Permits root, in this test, and more ranks than processors. Open MPI's files are removed with the directory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=$directory
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

ln -s "$library" "$directory/libnram.so.0"
ln -s "$library" "$directory/libnram.so"
mpicc -std=c11 -O1 -Wall -Wextra -Werror -I "$3" -o "$directory/program" "$4" -L "$directory" -lnram
"$nram" up --servers=2 --donate=384M > /dev/null
run() { # budget, further words of mpirun
  timeout 200 mpirun -x NRAM_BUDGET="$1" -x LD_LIBRARY_PATH -x NRAM_STATE_DIR "${@:2}" "$directory/program" 16 16 2>&1
}
# 16 MiB of the node are 4 MiB for each of four ranks, whose arrays have 16 MiB.
said=$(run 16M/node -n 4 --mca btl vader,self --mca btl_vader_single_copy_mechanism cma) || fail "$said"
[[ $said == *"4 ranks"* ]] || fail "it says: $said"
# TCP reads and writes nram memory by system calls of its own process.
said=$(run 16M/node -n 3 --mca btl tcp,self --mca btl_tcp_if_include lo) || fail "over TCP: $said"
[ "$("$nram" regions --json | jq length)" = 0 ] || fail "regions are left: $("$nram" regions)"
# Without "/node" each rank would have all of the budget.
! said=$(run 16M -n 4) || fail "budgets of ranks are not looked at"
[[ $said == *"fits into the budget"* || $said == *"a larger budget than the node"* ]] || fail "it says: $said"
! said=$(run 1M/node -n 2) || fail "a share of half a MiB is taken"
[[ $said == *"NRAM_BUDGET"* || $said == *"budget"* ]] || fail "a share that is too small: $said"
echo PASSED

#!/usr/bin/env bash
# nram run in an environment that forbids tracing: a library makes the helper. The same exercises, and the refusals
# there.
set -euo pipefail

nram=$(readlink -f "$1")
workout=$(readlink -f "$2")
static=$(readlink -f "$3")
untraced=$(readlink -f "$4")
early=$(readlink -f "$5")
directory=$(mktemp -d -p /tmp --suffix=-nram-untraced)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL LD_PRELOAD
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/../cli/expect.sh"
. "$(dirname "$0")/deaths.sh"

"$nram" up --servers=2 --donate=512M > /dev/null
run() { timeout -k 10 100 "$untraced" "$nram" run --budget=24M "$@"; }

# The command reports whether it traces.
expect 0 "will be traced" "$nram" run --dry -- "$workout" exit 0
expect 0 "may not be traced here (pidfd_getfd(2)" run --dry -- "$workout" exit 0
expect 0 "a library is loaded first" run -- "$workout" exit 0
# Some programs are refused before they begin.
expect 126 "a static program" run -- "$static" exit 0
printf '#!%s\n' "$static" > "$directory/script"
chmod +x "$directory/script"
expect 126 "a static program" run -- "$directory/script"
printf '#!/bin/sh\nexit 7\n' > "$directory/script"
expect 7 "" run -- "$directory/script"
cp "$nram" "$directory/alone"
expect 125 "libnram-run.so is not beside" "$untraced" "$directory/alone" run -- "$workout" exit 0
# The loader leaves out a file that is no library.
NRAM_RUN_LIBRARY=$workout expect 4 "ended before its start-up library started" run -- "$workout" exit 4

# The program's own end, its streams, its environment.
for code in 3 255; do expect "$code" "" run -- "$workout" exit "$code"; done
expect 143 "" run -- "$workout" signal 15
[ "$(echo hello | run -- cat 2> /dev/null)" = hello ] || fail "the standard streams"
environment() { run -- env 2> "$directory/err" | grep -E '^(LD_PRELOAD|NRAM_RUN_START)=' || true; }
[ -z "$(environment)" ] || fail "variables are left: $(environment)"
other=$(ldd /bin/ls | awk '$3 ~ /libc.so/ {print $3}')
[ "$(LD_PRELOAD=$other environment)" = "LD_PRELOAD=$other" ] ||
  fail "the user's own: $(LD_PRELOAD=$other environment)"
descriptors() { "$@" ls /proc/self/fd 2> /dev/null | wc -l; }
[ "$(descriptors run --)" -eq "$(descriptors env)" ] || fail "descriptors are left: $(descriptors run --)"

# stats PROGRAM ARGUMENT...: the program's output is in out, and the command's figures are in stats.
stats() {
  run --json -- "$@" 2> "$directory/stats" > "$directory/out" || fail "$*: exit $?: $(tail "$directory"/{out,stats})"
}
expect_stats() { grep '^{' "$directory/stats" | jq -e "$1" > /dev/null || fail "$2: $(cat "$directory/stats")"; }
verify() {
  stats "$@"
  grep -qx ok "$directory/out" || fail "$*: $(cat "$directory/out")"
  expect_stats '.outgrew_budget and .peak_bytes <= 25165824' "$*"
}
stats "$workout" fill 8
expect_stats '.outgrew_budget == false and .faults == 0' "a small program"
for exercise in fill threads calls realloc maps mapthreads brk vfork; do verify "$workout" "$exercise" 32; done
verify "$workout" exits 300
verify "$workout" refused 32
code=0
(ulimit -f 8 && run -- "$workout" fill 32) > "$directory/out" 2>&1 || code=$?
[ "$code" -eq 125 ] && grep -q "memfd_create" "$directory/out" || fail "small files: $code $(cat "$directory/out")"
(ulimit -S -f 8 && verify "$workout" fill 32)
stats "$workout" fill 48
expect_stats '.fetched_pages > 1000 and .written_pages > 1000' "fill"
stats perl -e 'my @a = map {[$_, "x$_"]} 1 .. 110000; my $sum = 0; $sum += $_->[0] for @a; print "sum $sum\n"'
grep -qx "sum 6050055000" "$directory/out" || fail "perl: $(cat "$directory/out")"
expect_stats '.outgrew_budget' perl

# Other libraries' constructors run first: their programs do not take the program's place.
LD_PRELOAD=$early stats "$workout" fill 32
grep -qx ok "$directory/out" || fail "after a constructor: $(cat "$directory/out")"
expect_stats '.outgrew_budget and .peak_bytes <= 25165824' "after a constructor"
[ "$(LD_PRELOAD=$early environment)" = "LD_PRELOAD=$early" ] ||
  fail "variables after a constructor: $(LD_PRELOAD=$early environment)"
[ -z "$(NRAM_RUN_START=1 environment)" ] || fail "another command's: $(NRAM_RUN_START=1 environment)"
# Where kcmp is allowed.
code=0
timeout -k 10 100 "$untraced" --kcmp "$nram" run --budget=24M --json -- "$workout" "exec" 32 > "$directory/out" \
  2> "$directory/stats" || code=$?
[ "$code" -eq 0 ] && grep -qx ok "$directory/out" || fail "with kcmp: $code $(cat "$directory/stats")"
expect_stats '.outgrew_budget and .local_programs == 1' "with kcmp"

# An executed program is local, and a message says so.
stats "$workout" "exec" 32
grep -qx ok "$directory/out" && grep -q "executed another one, which is local" "$directory/stats" ||
  fail "exec: $(cat "$directory/stats")"
expect_stats '.local_programs == 1' "exec"
# fork: freely while all fits, and not later.
stats "$workout" fork 4
grep -qx ok "$directory/out" || fail "fork of a small program: $(cat "$directory/out")"
expect_stats '.children > 0 and .refused_forks == 0' "fork of a small program"
expect 134 "cannot have children" run -- "$workout" fork 24
verify "$workout" forkgrow 32

# No program sees zeros: the supervisor dies, the helper dies.
begin() {
  "$untraced" "$nram" run --budget=24M -- "$workout" fill 128 > "$directory/out" 2> "$directory/err" &
  runner=$!
  for _ in $(seq 2000); do
    if grep -qs '^nram-fault' "/proc/$runner/task/"*/comm; then
      program=$(pgrep -P "$runner" -x workout) && helper=$(pgrep -P "$runner" -x nram-helper) && return
    fi
    sleep 0.01
  done
  fail "the program does not begin: $(cat "$directory/err")"
}
kill_each
echo "all as expected"

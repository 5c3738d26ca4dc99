#!/usr/bin/env bash
# nram run: programs verify their own memory, which is a multiple of the budget; and all kinds of ends.
set -euo pipefail

nram=$(readlink -f "$1")
workout=$(readlink -f "$2")
static=$(readlink -f "$3")
directory=$(mktemp -d -p /tmp --suffix=-nram-run)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/../cli/expect.sh"
. "$(dirname "$0")/deaths.sh"

# Cases that need no pool.
expect 2 "expected flags, then --" "$nram" run true
expect 2 ", or auto" "$nram" run --budget=4M -- true
expect 127 "no such program" "$nram" run -- "$directory/none"
expect 127 "no such program in \$PATH" "$nram" run -- no-such-program-anywhere
expect 126 "not an executable file" "$nram" run -- "$directory"
cp "$workout" "$directory/setuid"
chown 1234 "$directory/setuid" && chmod 4755 "$directory/setuid"
expect 126 "setuid" "$nram" run -- "$directory/setuid" exit 0
expect 125 "start a local one with \`nram up\`" "$nram" run -- "$workout" exit 0
"$nram" up --servers=2 --donate=512M > /dev/null

run() { timeout -k 10 100 "$nram" run --budget=24M "$@"; }
"$nram" run --dry --json -- "$workout" | jq -e '.budget_bytes == 2147483648 and .pool_free_bytes > 0' > /dev/null ||
  fail "run --dry --json: $("$nram" run --dry --json -- "$workout")"
# Files that the kernel does not execute.
printf 'exit 7\n' > "$directory/script"
chmod +x "$directory/script"
expect 126 "a script needs a first line" run -- "$directory/script"
printf '#!%s/none\nexit 7\n' "$directory" > "$directory/script"
expect 126 "the program of its #! line, or its loader, does not exist" run -- "$directory/script"
printf '#!/bin/sh\nexit 127\n' > "$directory/script"
expect 127 "" run -- "$directory/script"
# stats PROGRAM ARGUMENT...: the program's output is in out, and the command's figures are in stats.
stats() {
  run --json -- "$@" 2> "$directory/stats" > "$directory/out" || fail "$*: exit $?: $(tail "$directory"/{out,stats})"
}
# The command may print other lines, too.
expect_stats() { grep '^{' "$directory/stats" | jq -e "$1" > /dev/null || fail "$2: $(cat "$directory/stats")"; }

# The program's own end.
for code in 0 3 255; do expect "$code" "" run -- "$workout" exit "$code"; done
expect 143 "" run -- "$workout" signal 15
expect 134 "" run -- "$workout" signal 6
[ "$(echo hello | run -- cat)" = hello ] || fail "the standard streams"
expect 0 "can be run" run --dry -- "$workout" exit 3
# Both servers are on one host. The program does not begin.
expect 125 "--copies=2: each copy needs its own host, and the pool has 1 host" \
  run --copies=2 -- touch "$directory/begun"
[ ! -e "$directory/begun" ] || fail "a program without hosts for its copies has begun"
expect 125 "--copies=2: each copy needs its own host" run --copies=2 --dry -- "$workout" exit 3
expect 125 "the two cannot be nested" run -- "$nram" run -- "$workout" exit 0
expect 0 "not outgrown" "$nram" run --budget=auto --stats -- "$workout" fill 8

# A program that fits is never armed.
stats "$workout" fill 8
expect_stats '.outgrew_budget == false and .faults == 0' "a small program"
# Larger ones, dynamic and static.
verify() {
  stats "$@"
  grep -qx ok "$directory/out" || fail "$*: $(cat "$directory/out")"
  expect_stats '.outgrew_budget and .peak_bytes <= 25165824' "$*"
}
for exercise in fill threads calls realloc maps mapthreads brk vfork "exec"; do verify "$workout" "$exercise" 32; done
verify "$workout" exits 1000
# A static one has other memory at its start, a heap for its threads' words, and the same calls.
for exercise in calls brk vfork fork "exec"; do verify "$static" "$exercise" 24; done
verify "$static" exits 300
verify "$static" bss
expect 125 "keeps pages during eviction" "$nram" run --budget=24M -- "$workout" touchall 32
verify "$workout" refused 32  # at first it has as much as fits; the static one has its bss
stats "$workout" fill 48
expect_stats '.fetched_pages > 1000 and .written_pages > 1000' "fill"

# A process that shares the memory dies with the processes that serve its faults; otherwise it would read zeros.
for sharer in sharer orphan; do
  code=0
  out=$(run -- "$workout" "$sharer" 32 2>&1) || code=$?  # until the sharer has ended, too
  [ "$code" -eq 137 ] && [[ $out != *wrong* ]] || fail "$sharer: exit $code: $out"
done

# fork: freely while all fits; later children have remote memory, too.
stats "$workout" fork 4
[ "$(cat "$directory/out")" = ok ] || fail "fork of a small program: $(cat "$directory/out")"
expect_stats '.armed_children == 0 and .children > 0' "fork of a small program"
for exercise in fork forks forkexec forkgrow orphans; do
  verify "$workout" "$exercise" 24
  expect_stats '.armed_children > 0 and .refused_forks == 0' "$exercise"
done
expect 0 "must not inherit" run -- "$workout" advised 24
expect 0 "call of a 32-bit program" run -- "$workout" foreign 24
stats perl -e 'my @a = map {[$_, "x$_"]} 1 .. 110000; print `echo backquotes`; system("echo system; true");
  print "sum ", eval {my $sum = 0; $sum += $_->[0] for @a; $sum}, "\n"'
[ "$(cat "$directory/out")" = "$(printf 'backquotes\nsystem\nsum 6050055000')" ] ||
  fail "perl: $(cat "$directory/out")"
expect_stats '.armed_children > 0' perl

# A program that may not be inspected: only a process that may read all memory can serve its faults.
stats "$workout" hidden 32
[ "$(cat "$directory/out")" = "hidden ok" ] || fail "not dumpable: $(cat "$directory/out")"
if [ -e /dev/userfaultfd ] && command -v setpriv > /dev/null; then
  out=$(timeout -k 10 100 setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace "$nram" run --budget=24M -- \
    "$workout" hidden 32 2> "$directory/err") || fail "without the right to trace: $? $out $(cat "$directory/err")"
  [ "$out" = "refused ok" ] && grep -q "PR_SET_DUMPABLE" "$directory/err" || fail "may not be dumpable: $out"
else
  not_tested "a program that gives up being dumpable: no /dev/userfaultfd or setpriv"
fi

# A program executes another one. The former one's room is free when the new one begins.
mkfifo "$directory/fifo"
former=$("$nram" regions --json | jq -c '[.[].id]') # regions of killed supervisors, until their leases end
run -- "$workout" before 96 cat < "$directory/fifo" > "$directory/out" &
runner=$!
exec 8> "$directory/fifo"
echo there >&8
until grep -qs there "$directory/out"; do
  kill -0 "$runner" || fail "before another program: it has ended"
  sleep 0.01
done
"$nram" regions --json | jq -e --argjson former "$former" \
  '[.[] | select(.id as $id | $former | index($id) == null).stored_bytes] | add // 0 | . < 1048576' > /dev/null ||
  fail "room of the program that was there before: $("$nram" regions)"
exec 8>&-
wait "$runner" || fail "before another program: exit $?"

# Everyday programs.
stats python3 -c '
import random
d = {i: {"k": i, "s": str(i) * 3} for i in range(45000)}
keys = list(range(45000))
random.Random(1).shuffle(keys)
assert all(d[k]["k"] == k and d[k]["s"] == str(k) * 3 for k in keys)
print("ok")'
[ "$(cat "$directory/out")" = ok ] || fail "python3: $(cat "$directory/out")"
expect_stats '.outgrew_budget and .fetched_pages > 0' python3
seq -f '%.0f some words that make the line longer' 1000000 1 1300000 | shuf --random-source=<(yes) > "$directory/in"
LC_ALL=C sort "$directory/in" > "$directory/expected"
LC_ALL=C run -- sort -S 200M --parallel=2 "$directory/in" | cmp - "$directory/expected" || fail "sort"

# A signal reaches the program once, whether it is for the command alone or for its whole group (schedulers).
cat > "$directory/signals.py" << 'T'
import os
import signal

memory = bytearray(64 << 20)  # more than the budget
for at in range(0, len(memory), 4096):
    memory[at] = 1
reads, writes = os.pipe()
os.set_blocking(writes, False)
signal.set_wakeup_fd(writes)  # a byte for each call of a handler
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda *_: None)
print("ready", flush=True)
while True:
    number = os.read(reads, 1)[0]
    print(number, flush=True)
    if number == signal.SIGUSR2:
        break
T
mkfifo "$directory/signals"
exec 9<> "$directory/signals"
setsid "$nram" run --budget=24M -- python3 "$directory/signals.py" > "$directory/signals" 2> "$directory/err" 9>&- &
runner=$!  # and its group
told() {
  local line=
  read -rt 60 line <&9 || true
  [ "$line" = "$1" ] || fail "$2: \"$line\", expected $1: $(cat "$directory/err")"
}
# The kernel makes one of two signals with the same number while the first is pending, so the next one waits until
# `nram run` has taken it. The program, which has its own copy of the group's signals, may be faster.
expect_taken() {
  local pending=
  for _ in $(seq 6000); do
    pending=$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$runner/status")
    [ -n "$pending" ] || fail "nram run has ended: $(cat "$directory/err")"
    ((0x$pending & 1 << 9)) || return 0  # SIGUSR1
    sleep 0.01
  done
  fail "nram run does not take a signal"
}
told ready "a program for signals"
for round in 1 2 3 4 5 6 7 8; do
  kill -USR1 -- "-$runner"
  told 10 "a signal for the group, round $round"
  expect_taken
  kill -USR1 "$runner"
  told 10 "a signal for the command, round $round"
done
kill -USR2 "$runner"
told 12 "signals came more than once"
wait "$runner" || fail "after signals: exit $?: $(cat "$directory/err")"
exec 9>&-

# No program sees zeros: the supervisor dies, the helper dies, the pool dies.
# begin [EXERCISE MIB]
begin() {
  "$nram" run --budget=24M -- "$workout" "${1:-fill}" "${2:-128}" > "$directory/out" 2> "$directory/err" &
  runner=$!
  for _ in $(seq 2000); do
    # It has outgrown its budget when there are threads for its faults.
    if grep -qs '^nram-fault' "/proc/$runner/task/"*/comm; then
      program=$(pgrep -P "$runner" -x workout) && helper=$(pgrep -P "$runner" -x nram-helper) && return
    fi
    sleep 0.01
  done
  fail "the program does not begin: $(cat "$directory/err")"
}
# The program is stopped and continued alone, and its faults are answered.
begin
kill -STOP "$program"
freezes=0
while ! grep -q '^State:.T' "/proc/$program/status"; do
  freezes=$((freezes + 1))
  [ "$freezes" -lt 2000 ] || fail "the program does not stop"
  sleep 0.01
done
kill -CONT "$program"
wait "$runner" || fail "stopped and continued: $? $(cat "$directory/err")"
grep -qx ok "$directory/out" || fail "stopped and continued: $(cat "$directory/out")"

kill_each
begin shared 64
while ! grep -qs shared "$directory/out"; do
  kill -0 "$runner" || fail "no sharer: $(cat "$directory/err")"
  sleep 0.01
done
kill -KILL "$helper"
code=0
wait "$runner" || code=$?  # until the sharer has ended, too
[ "$code" -eq 125 ] && ! grep wrong "$directory/out" || fail "a sharer without a helper: exit $code"
begin
"$nram" down > /dev/null
code=0
wait "$runner" || code=$?
[ "$code" -eq 125 ] && grep -q "the program was killed" "$directory/err" ||
  fail "the pool went: $code $(cat "$directory/err")"
[ ! -s "$directory/out" ] || fail "the pool went: $(cat "$directory/out")"
echo "all as expected"

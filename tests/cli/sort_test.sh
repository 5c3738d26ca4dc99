#!/usr/bin/env bash
# nram sort with its scratch in a real pool, and its failures.
set -euo pipefail

nram=$(readlink -f "$1")
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
sorter=
cleanup() {
  [ -z "$sorter" ] || kill -KILL "$sorter" 2> /dev/null || true
  umount -l "$directory/small" 2> /dev/null || true
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/expect.sh"
# Fails if anything is left in the pool or beside the output.
expect_clean() {
  local regions
  regions=$("$nram" regions --json | jq '[.. | objects | select(has("pages"))] | length')
  [ "$regions" -eq 0 ] || fail "$1: $regions regions are left in the pool"
  [ -z "$(ls "$directory" | grep '^out\.' || true)" ] || fail "$1: a temporary file is left"
}

input=$directory/in
seq -f '%.0f some words that make the line longer' 1000000 1 2500000 | sort -R --random-source=<(yes) > "$input"
sum=$(sha256sum < "$input")
LC_ALL=C sort "$input" > "$directory/expected"
bytes=$(stat -c %s "$input")

expect 1 "start a local one with \`nram up\`" "$nram" sort --memory=64M -o "$directory/out" "$input"
"$nram" up --servers=2 --donate=128M > /dev/null

# The output is the same as sort's, within the stated memory.
report=$("$nram" sort --memory=64M --json -o "$directory/out" "$input" 2>&1)
cmp "$directory/out" "$directory/expected" || fail "not what sort makes of it"
jq -e ".runs > 1 and .input_bytes == $bytes and
       .memory_peak_bytes < 1.1 * .memory_limit_bytes" <<< "$report" > /dev/null ||
  fail "the report: $report"
expect_clean "a sort"
# The memory of the process before it became the sort does not count.
peak=$(python3 -c 'import os, sys; x = bytearray(300 << 20); os.execv(sys.argv[1], sys.argv[1:])' \
  "$nram" sort --memory=64M --json -o "$directory/out" "$input" 2>&1 | jq .memory_peak_bytes)
[ "$peak" -lt 80000000 ] || fail "the peak before exec was counted: $peak"
"$nram" sort --memory=64M --scratch="$directory" < "$input" | cmp - "$directory/expected" ||
  fail "through pipes and a file"
"$nram" sort --expendable -nrS 64M -k1,1 -o "$directory/out" "$input"
LC_ALL=C sort -nr -k1,1 "$input" | cmp - "$directory/out" || fail "sort's letters"
expect 2 "--copies: \"5\" is not accepted: expected a whole number from 1 to 4" "$nram" sort --copies=5 "$input"
expect 2 "--copies needs --scratch=pool" "$nram" sort --copies=2 --scratch="$directory" "$input"
expect 2 "--expendable needs --scratch=pool" "$nram" sort --expendable --scratch="$directory" "$input"
# Both servers are on this host.
expect 1 "--copies=2: each copy needs its own host, and the pool has 1 host" \
  "$nram" sort --copies=2 --memory=64M -o "$directory/out" "$input"
expect_clean "a sort that cannot have its copies"
# -h is human numbers, not help, and a flag may come twice.
printf '%s\n' 2K 1G 30 1.5M 999K > "$directory/sizes"
for flags in -h -rh "-h -h" "-n -r -r -n" -g -M -V -d -i "-k1,1h" "-S 64M -S 80M" -m; do
  "$nram" sort $flags "$directory/sizes" | cmp - <(LC_ALL=C sort ${flags/-m/} "$directory/sizes") || fail "sort $flags"
done
expect 2 "two different separators" "$nram" sort -t, -t: "$input"
expect 2 "at most one of n, g, h, M, V" "$nram" sort -n -g "$input"
# A link to a file that does not exist yet is followed.
ln -s "$directory/target" "$directory/link"
"$nram" sort -o "$directory/link" "$directory/sizes"
[ -L "$directory/link" ] && cmp "$directory/target" <(LC_ALL=C sort "$directory/sizes") || fail "a dangling link"
# sort needs an open output.
expect 1 "the standard output is closed" bash -c "'$nram' sort '$input' >&-"
rm "$directory/out"

# Many short runs are merged twice. That works with a scratch of just that size.
"$nram" down > /dev/null
"$nram" up --servers=1 --donate=160M > /dev/null
free=$("$nram" df --json | jq .total.free_bytes)
"$nram" down > /dev/null
"$nram" up --servers=1 --donate=$(((160 << 20) - free + bytes * 112 / 100)) > /dev/null
report=$("$nram" sort --memory=48M --threads=256 --json -o "$directory/out" "$input" 2>&1) || fail "two passes: $report"
jq -e .passes==2 <<< "$report" > /dev/null || fail "two passes: $report"
cmp "$directory/out" "$directory/expected" || fail "two passes: not what sort makes of it"
rm "$directory/out"

# If the pool is too small, sort reports it before it reads anything, with the numbers.
"$nram" down > /dev/null
"$nram" up --servers=1 --donate=64M > /dev/null
free_mib=$("$nram" df --json | jq '.total.free_bytes / 1048576 | floor')
expect 1 "the pool is too small: the scratch takes" \
  "$nram" sort --memory=50M -o "$directory/out" "$input" "$input" "$input"
message=$("$nram" sort --memory=50M -o "$directory/out" "$input" "$input" "$input" 2>&1) || true
told_mib=$(sed -n 's/.* and \([0-9]*\)[.0-9]* MiB are free$/\1/p' <<< "$message")
[ -n "$told_mib" ] && [ "$told_mib" -ge $((free_mib * 9 / 10)) ] && [ "$told_mib" -le "$free_mib" ] ||
  fail "$free_mib MiB were free, not: $message"
expect_clean "a pool that is too small"
# The size of a pipe is not known: sort reports a full pool when it is full.
expect 1 "full" bash -c "cat '$input' '$input' '$input' | '$nram' sort --memory=50M -o '$directory/out'"
expect_clean "a full pool"
[ ! -e "$directory/out" ] || fail "an output after a failure"

# If the directory may not be written to, sort writes over the file at the end; then the file may be no input.
mkdir -m 755 "$directory/theirs"
head -c 100000 "$input" > "$directory/theirs/file"
chmod 666 "$directory/theirs/file"
chmod 755 "$directory"
as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups "$@"; }
expect 1 "is also an input" as_user "$nram" sort -o "$directory/theirs/file" "$directory/theirs/file"
cmp -n 100000 "$directory/theirs/file" "$input" || fail "an input was written over"
as_user "$nram" sort -o "$directory/theirs/file" /etc/passwd
LC_ALL=C sort /etc/passwd | cmp - "$directory/theirs/file" || fail "written over in place"
# The same holds where all users may create files, but replace only their own.
mkdir -m 1777 "$directory/everybodys"
cp "$directory/theirs/file" "$directory/everybodys/file"
chmod 666 "$directory/everybodys/file"
as_user "$nram" sort -r -o "$directory/everybodys/file" /etc/passwd
LC_ALL=C sort -r /etc/passwd | cmp - "$directory/everybodys/file" || fail "written over in a sticky directory"
expect 1 "is also an input" as_user "$nram" sort -o "$directory/everybodys/file" "$directory/everybodys/file"
# A file that may not be written to is not replaced. Bits that were for another owner or group are not handed on.
chmod 644 "$directory/everybodys/file"
chmod 777 "$directory/everybodys"
expect 1 "Permission denied" as_user "$nram" sort -o "$directory/everybodys/file" /etc/passwd
chmod 4676 "$directory/everybodys/file"
as_user "$nram" sort -o "$directory/everybodys/file" /etc/passwd
[ "$(stat -c '%u %a' "$directory/everybodys/file")" = "1000 606" ] ||
  fail "owner and mode: $(stat -c '%u %a' "$directory/everybodys/file")"
# If the output cannot be put in its place after all, the sorted output remains.
echo old > "$directory/fixed"
mount --bind "$directory/fixed" "$directory/fixed"
message=$("$nram" sort -o "$directory/fixed" /etc/passwd 2>&1) && fail "replaced what is mounted"
umount "$directory/fixed"
kept=$(sed -n 's/.*the sorted output is in \([^;]*\);.*/\1/p' <<< "$message")
LC_ALL=C sort /etc/passwd | cmp - "$kept" || fail "a finished output is gone: $message"

# More files than may be open; fewer threads than asked for, or none.
chmod 755 "$directory" # the next commands run as another user
seq 1 3000 | sha256sum > "$directory/words"
for i in $(seq 400); do echo "$((i * 7919 % 1009))-udp  port $i"; done >> "$directory/words"
mkdir "$directory/many"
split -n l/100 "$directory/words" "$directory/many/x"
(ulimit -n 40 && exec "$nram" sort "$directory/many/"*) | cmp - <(LC_ALL=C sort "$directory/words") || fail "many files"
for threads in 1 2 3; do
  code=0
  prlimit --nproc="$threads" setpriv --reuid=47111 --regid=47111 --clear-groups "$nram" sort --threads=8 \
    "$directory/words" > "$directory/out" 2> "$directory/messages" || code=$?
  if [ "$threads" = 1 ]; then
    [ "$code" -eq 1 ] && grep -q "cannot start a thread" "$directory/messages" || fail "no threads: exit $code"
  else
    LC_ALL=C sort "$directory/words" | cmp - "$directory/out" || fail "$threads threads: $(cat "$directory/messages")"
  fi
done
rm "$directory/out"

# Bad input.
expect 1 "open $directory/none" "$nram" sort "$directory/none"
expect 2 "unknown flag -x: of sort(1)'s letters" "$nram" sort -x "$input"
expect 2 "key \"2q\": expected FIELD" "$nram" sort -k2q "$input"
expect 2 "bytes are no whole record of 7" "$nram" sort --record=7 -o "$directory/out" "$input"
expect 2 "48.0 MiB" "$nram" sort --memory=1M "$input"
expect 1 "No space left" bash -c "'$nram' sort --scratch='$directory' --memory=64M '$input' > /dev/full"

# The output's disk is full: the old file remains.
mkdir "$directory/small"
mount -t tmpfs -o size=20m nram-test "$directory/small"
echo old > "$directory/small/out"
expect 1 "No space left" "$nram" sort --scratch="$directory" --memory=64M -o "$directory/small/out" "$input"
[ "$(cat "$directory/small/out")" = old ] || fail "the output was lost"
[ "$(ls "$directory/small")" = out ] || fail "something was left beside the output"

# Ctrl-C while sort waits for more input. (A script's background processes have SIGINT and SIGQUIT ignored.)
"$nram" down > /dev/null
"$nram" up --servers=2 --donate=128M > /dev/null
mkfifo "$directory/fifo"
await_interrupted() {
  local code=0
  wait "$sorter" || code=$?
  sorter=
  [ "$code" -eq 130 ] || fail "$1: exit $code: $(cat "$directory/messages")"
  grep -q "interrupted" "$directory/messages" || fail "$1, and it said: $(cat "$directory/messages")"
  [ ! -e "$directory/out" ] || fail "an output after $1"
  expect_clean "$1"
}
for signal in INT QUIT; do
  env --default-signal=INT,QUIT "$nram" sort --memory=50M -o "$directory/out" "$directory/fifo" \
    2> "$directory/messages" &
  sorter=$!
  exec 7> "$directory/fifo"
  cat "$input" >&7
  kill -"$signal" "$sorter"
  await_interrupted "SIG$signal"
  exec 7>&-
done
# Ctrl-C while sort waits for a writer of the second file.
: > "$directory/empty"
env --default-signal=INT "$nram" sort -o "$directory/out" "$directory/empty" "$directory/fifo" \
  2> "$directory/messages" &
sorter=$!
until ls "$directory" | grep -q '^out\.' && ! ls -l "/proc/$sorter/fd" | grep -q 'empty$' &&
  grep -q '^State:.*sleeping' "/proc/$sorter/status"; do
  sleep 0.01
  kill -0 "$sorter" || fail "it did not wait: $(cat "$directory/messages")"
done
kill -INT "$sorter"
await_interrupted "SIGINT in open"
# nohup: ignored signals remain ignored.
(trap '' HUP && exec "$nram" sort -o "$directory/out" "$directory/fifo") &
sorter=$!
exec 7> "$directory/fifo"
cat "$input" >&7
kill -HUP "$sorter"
cat "$input" >&7
exec 7>&-
wait "$sorter" || fail "hung up although that was to be ignored"
sorter=
rm "$directory/out"

# A server dies in the middle: one message, no output.
"$nram" sort --memory=50M -o "$directory/out" "$directory/fifo" 2> "$directory/messages" &
sorter=$!
exec 7> "$directory/fifo"
cat "$input" >&7
kill -KILL "$(jq .pid "$NRAM_STATE_DIR/1.pid")"
cat "$input" >&7 2> /dev/null || true
exec 7>&-
code=0
wait "$sorter" || code=$?
sorter=
[ "$code" -eq 1 ] || fail "a dead server: exit $code: $(cat "$directory/messages")"
[ "$(wc -l < "$directory/messages")" -eq 1 ] || fail "a dead server: $(cat "$directory/messages")"
[ ! -e "$directory/out" ] || fail "an output after a dead server"

[ "$(sha256sum < "$input")" = "$sum" ] || fail "the input was changed"
echo PASSED

#!/usr/bin/env bash
# nram sort with its scratch in a real pool, and what goes wrong.
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
# Nothing may be left in the pool, nor beside the output.
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

# The same bytes, within the memory that was stated.
report=$("$nram" sort --memory=64M --json -o "$directory/out" "$input" 2>&1)
cmp "$directory/out" "$directory/expected" || fail "not what sort makes of it"
jq -e ".runs > 1 and .input_bytes == $bytes and
       .memory_peak_bytes < 1.1 * .memory_limit_bytes" <<< "$report" > /dev/null ||
  fail "the report: $report"
expect_clean "a sort"
"$nram" sort --memory=64M --scratch="$directory" < "$input" | cmp - "$directory/expected" ||
  fail "through pipes and a file"
"$nram" sort -nrS 64M -k1,1 -o "$directory/out" "$input"
LC_ALL=C sort -nr -k1,1 "$input" | cmp - "$directory/out" || fail "sort's letters"
rm "$directory/out"

# A pool that is too small is told before anything is read, with the numbers.
"$nram" down > /dev/null
"$nram" up --servers=1 --donate=64M > /dev/null
expect 1 "the pool is too small: the scratch takes" \
  "$nram" sort --memory=50M -o "$directory/out" "$input" "$input" "$input"
expect_clean "a pool that is too small"
# Of a pipe the size is not known: told when it is full.
expect 1 "full" bash -c "cat '$input' '$input' '$input' | '$nram' sort --memory=50M -o '$directory/out'"
expect_clean "a full pool"
[ ! -e "$directory/out" ] || fail "an output after a failure"

# A directory that may not be written to: written over at the end, but then it may be no input.
mkdir -m 755 "$directory/theirs"
head -c 100000 "$input" > "$directory/theirs/file"
chmod 666 "$directory/theirs/file"
chmod 755 "$directory"
as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups "$@"; }
expect 1 "is an input too" as_user "$nram" sort -o "$directory/theirs/file" "$directory/theirs/file"
cmp -n 100000 "$directory/theirs/file" "$input" || fail "an input was written over"
as_user "$nram" sort -o "$directory/theirs/file" /etc/passwd
LC_ALL=C sort /etc/passwd | cmp - "$directory/theirs/file" || fail "written over in place"

# Bad input.
expect 1 "open $directory/none" "$nram" sort "$directory/none"
expect 2 "unknown flag" "$nram" sort -x "$input"
expect 2 "key \"2q\": expected FIELD" "$nram" sort -k2q "$input"
expect 2 "bytes that make no record of 7" "$nram" sort --record=7 -o "$directory/out" "$input"
expect 2 "48.0 MiB" "$nram" sort --memory=1M "$input"
expect 1 "No space left" bash -c "'$nram' sort --scratch='$directory' --memory=64M '$input' > /dev/full"

# An output's disk that is full: the old file stays.
mkdir "$directory/small"
mount -t tmpfs -o size=20m nram-test "$directory/small"
echo old > "$directory/small/out"
expect 1 "No space left" "$nram" sort --scratch="$directory" --memory=64M -o "$directory/small/out" "$input"
[ "$(cat "$directory/small/out")" = old ] || fail "the output was lost"
[ "$(ls "$directory/small")" = out ] || fail "something was left beside the output"

# Ctrl-C, while it waits for more input.
"$nram" down > /dev/null
"$nram" up --servers=2 --donate=128M > /dev/null
mkfifo "$directory/fifo"
"$nram" sort --memory=50M -o "$directory/out" "$directory/fifo" 2> "$directory/messages" &
sorter=$!
exec 7> "$directory/fifo"
cat "$input" >&7
kill -INT "$sorter"
code=0
wait "$sorter" || code=$?
exec 7>&-
sorter=
[ "$code" -eq 130 ] || fail "interrupted: exit $code: $(cat "$directory/messages")"
grep -q "interrupted" "$directory/messages" || fail "interrupted, and it said: $(cat "$directory/messages")"
[ ! -e "$directory/out" ] || fail "an output after an interruption"
expect_clean "an interruption"

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

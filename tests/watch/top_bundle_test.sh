#!/usr/bin/env bash
# nram top and nram bundle as an operator types them.
set -euo pipefail

nram=$(readlink -f "$1")
directory=$(mktemp -d -p /tmp --suffix=-nram-watch)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
cleanup() {
  tmux -L "nram-$$" kill-server 2> /dev/null || true
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/../cli/expect.sh"

# Without a pool, and with wrong words.
expect 1 "start a local one" "$nram" top --once
expect 2 "the screen needs a terminal" "$nram" top < /dev/null
expect 1 "has no screen" script -qec "TERM=dumb '$nram' top --pool=127.0.0.1:9" /dev/null
expect 2 "1 to 3600" "$nram" top --once --interval=0
expect 2 "unexpected word" "$nram" top now
expect 2 "unexpected word" "$nram" bundle a b

expect 0 "The pool is up" "$nram" up --servers=2 --donate=128M
"$nram" top --once --json > "$directory/line"
[ "$(wc -l < "$directory/line")" = 1 ] || fail "not one line: $(cat "$directory/line")"
jq -e '(.donors | length) == 2 and all(.donors[]; .state == "up" and .donated_bytes == 134217728 and .answer_ms > 0)
  and .total.donated_bytes == 268435456 and .silent == 0 and .seconds >= 0.9 and .clients == []' \
  < "$directory/line" > /dev/null || fail "top says $(cat "$directory/line")"
expect 0 "DONOR" "$nram" top --once
# Lines until their reader ends.
{ timeout 60 "$nram" top --json || true; } | head -2 | jq -es 'length == 2 and .[0].time <= .[1].time' > /dev/null ||
  fail "top ends after one line"

# The screen, in a terminal.
if command -v tmux > /dev/null; then
  tmux -L "nram-$$" new-session -d -x 150 -y 24 "'$nram' top; echo code \$?; sleep 60"
  deadline=$((SECONDS + 30))
  until tmux -L "nram-$$" capture-pane -p | grep -q 'DONOR.*STATE'; do
    [ "$SECONDS" -lt "$deadline" ] || fail "no screen: $(tmux -L "nram-$$" capture-pane -p)"
    sleep 0.1
  done
  tmux -L "nram-$$" capture-pane -p | grep -q ' up ' || fail "no donor on the screen"
  tmux -L "nram-$$" send-keys q
  until tmux -L "nram-$$" capture-pane -p | grep -q 'code 0'; do
    [ "$SECONDS" -lt "$deadline" ] || fail "q does not end it: $(tmux -L "nram-$$" capture-pane -p)"
    sleep 0.1
  done
else
  not_tested "the screen of nram top: tmux is not here"
fi

# One server is dead: top reports it, and goes on.
kill -KILL "$(jq -r .pid "$NRAM_STATE_DIR/1.pid")"
code=0
"$nram" top --once --json > "$directory/line" || code=$?
[ "$code" = 1 ] || fail "top ends with $code though a server is gone"
jq -e '.silent == 1 and any(.donors[]; .state == "away" and has("error"))' < "$directory/line" > /dev/null ||
  fail "top says $(cat "$directory/line")"

# The bundle has its announced parts, and no secret.
canary=c4n4ry0123456789abcdef0123456789abcdef0123456789abcdef
{
  echo "a line before"
  echo "-----BEGIN PRIVATE KEY-----"
  echo "$canary"
  echo "-----END PRIVATE KEY-----"
  echo "the key $canary"
} >> "$NRAM_STATE_DIR/0.log"
bundle=$directory/bundle.tar.gz
NRAM_TEST_TOKEN=hunter2 NRAM_KEY_FILE=/a/key/of/mine expect 0 "look through it" "$nram" bundle "$bundle"
[ "$(stat -c %a "$bundle")" = 600 ] || fail "others may read the bundle"
expect 1 "File exists" "$nram" bundle "$bundle"
mkdir "$directory/out"
tar -xzf "$bundle" -C "$directory/out"
for file in version.txt commands/{status,df,doctor,swaps}.json options/{processes,environment}.txt logs/0.log \
  kernel/{version,settings,mounts,proc-meminfo}.txt; do
  [ -s "$directory/out/nram-bundle/$file" ] || [ "$file" = kernel/mounts.txt ] || fail "the bundle has no $file"
done
for file in status df doctor swaps; do
  jq -e . "$directory/out/nram-bundle/commands/$file.json" > /dev/null || fail "$file.json is no JSON"
done
# A command that failed says so beside its JSON.
grep -q "exit code 1" "$directory/out/nram-bundle/commands/df.errors.txt" || fail "the bundle hides that df failed"
grep -q '"silent"\|does not answer\|"answers": false' "$directory/out/nram-bundle/commands/status.json" ||
  fail "the bundle does not say that a server is gone"
grep -q -- "--donate" "$directory/out/nram-bundle/options/processes.txt" || fail "the servers' flags are missing"
grep -q "a line before" "$directory/out/nram-bundle/logs/0.log" || fail "the log is missing"
grep -q "NRAM_KEY_FILE=/a/key/of/mine" "$directory/out/nram-bundle/options/environment.txt" || fail "no environment"
if grep -rq -e "$canary" -e hunter2 "$directory/out"; then fail "a secret is in the bundle"; fi
left=$(find /tmp -maxdepth 1 -name 'nram-bundle.*' -newer "$bundle" 2> /dev/null || true)
[ -z "$left" ] || fail "the bundle leaves $left"

# Without a pool there is a bundle all the same.
expect 0 "Ended" "$nram" down
expect 0 "look through it" "$nram" bundle "$directory/other.tar.gz"

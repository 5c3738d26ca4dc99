#!/usr/bin/env bash
# A mount with two copies while servers of its pool are killed, stopped and emptied.
set -euo pipefail
# A mount namespace of its own: a namespace that another test makes meanwhile would keep a copy of the mount.
if [ -z "${NRAM_OWN_NAMESPACE:-}" ]; then
  NRAM_OWN_NAMESPACE=1 exec unshare --mount --propagation=private "$0" "$@"
fi
# Other tests' mounts would stay mounted here.
awk '$3 == "fuse.nram" { print $2 }' /proc/mounts | xargs -r umount -l

nram=$(readlink -f "$1")
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL NRAM_COPIES
stopped=  # the pid of a frozen server
cleanup() {
  [ -z "$stopped" ] || kill -CONT "$stopped" 2> /dev/null || true
  umount -l "$directory/m" 2> /dev/null || true
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/expect.sh"

# The pool's own status. A dead server makes the command fail, and is in its output all the same.
status() { "$nram" status --json 2> /dev/null || true; }
# holds FILTER: jq's FILTER is true of the status.
holds() { [ "$(status | jq "$1")" = true ]; }
# await SECONDS WHAT COMMAND...: until COMMAND succeeds.
await() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || fail "$what did not come: $(status | jq -c '.copies, (.servers[] | {name, pages})')"
    sleep 0.1
  done
}
# The pool has spans, and all have all their copies.
whole=".copies | .in_sync > 0 and .degraded + .repairing + .lost + .moving == 0"
made() { status | jq .copies.made; }
# made_whole COPIES: the spans are whole again, after copies beyond the former COPIES were made.
made_whole() { await 60 "a whole pool" holds "($whole) and .copies.made > $1"; }
# The name or the pid of the server with the most pages, of those that answer.
fullest() { status | jq -r "[.servers[] | select(.answers)] | max_by(.pages).$1"; }

# Each file is here as it should be in the mount.
truth=$directory/truth
mkdir "$truth" "$directory/m"
# put NAME BYTES: a new file, or another content of an old one.
put() {
  head -c "$2" /dev/urandom > "$truth/$1"
  timeout 30 dd if="$truth/$1" of="$directory/m/$1" bs=1M conv=fsync status=none || fail "cannot write $1"
}
# patch NAME PAGE: other bytes in place, so that an old copy has the wrong ones.
patch() {
  head -c 4096 /dev/urandom > "$directory/patch"
  for file in "$truth/$1" "$directory/m/$1"; do
    timeout 30 dd if="$directory/patch" of="$file" bs=4096 seek="$2" conv=notrunc,fsync status=none ||
      fail "cannot write into $file"
  done
}
reads() { status | jq '[.servers[].reads // 0] | add'; }
# Every file has the right bytes, from the servers: the kernel drops its cache of them.
check_all() {
  local file before
  before=$(reads)
  for file in "$truth"/*; do
    dd if="$directory/m/${file##*/}" iflag=nocache count=0 status=none || fail "cannot open ${file##*/} $1"
  done
  timeout 60 diff -r "$truth" "$directory/m" || fail "wrong bytes $1"
  [ "$(reads)" -gt "$before" ] || fail "nothing was read from the servers $1"
}
# down SERVERS: the pool ends, with this number of live servers, and nothing is left but logs.
down() {
  local left
  expect 0 "Ended $1 memory server" "$nram" down
  left=$(find "$NRAM_STATE_DIR" -mindepth 1 ! -name "*.log" 2> /dev/null || true)
  [ -z "$left" ] || fail "nram down leaves $left"
  left=$(pgrep -f -- "$NRAM_STATE_DIR/|$directory/m" || true)
  [ -z "$left" ] || fail "processes are left: $left"
}
# The mount ends, and its files' pages are freed.
unmount() {
  expect 0 "" "$nram" umount "$directory/m"
  ! grep -q " $directory/m " /proc/self/mounts || fail "it is mounted still"
  [ "$(status | jq "[.servers[].pages // 0] | add")" = 0 ] || fail "umount leaves pages: $(status)"
}
pages_of() { status | jq --arg name "$1" '.servers[] | select(.name == $name).pages'; }
fill() {
  local i
  put big1 3M
  put big2 3500123
  mkdir -p "$directory/small"
  for i in $(seq 200); do
    head -c $((i * 37 + 1)) /dev/urandom > "$truth/small$i"
    echo "$directory/m/small$i"
  done > "$directory/small/names"
  cp "$truth"/small* "$directory/m"
  xargs sync < "$directory/small/names" || fail "sync of small files"
}

# interrupt SIGNAL CODE: it ends a stuck move but not the server's leaving, and the command says so.
interrupt() {
  local victim drain code=0
  victim=$(fullest name)
  # A script's background processes have SIGINT ignored.
  env --default-signal="$1" "$nram" drain "$victim" --move 2> "$directory/messages" &
  drain=$!
  await 20 "a server that leaves" holds ".servers[] | select(.name == \"$victim\").leaving"
  kill -"$1" "$drain"
  wait "$drain" || code=$?
  [ "$code" -eq "$2" ] || fail "drain ended by SIG$1: exit $code: $(cat "$directory/messages")"
  grep -q "$victim is still being emptied, and nram drain $victim --undo ends that" "$directory/messages" ||
    fail "drain ended by SIG$1 said: $(cat "$directory/messages")"
  holds ".servers[] | select(.name == \"$victim\").leaving" || fail "a signal has ended more than the command"
  expect 0 "accepts new spans again" "$nram" drain "$victim" --undo
  holds ".servers | all(.leaving or .draining | not)" || fail "--undo has not ended it: $(status)"
}

expect 2 "from 1 to 4" "$nram" mount "$directory/m" --copies=9

# Three servers of one machine are no three hosts.
"$nram" up --servers=3 --donate=128M > /dev/null
expect 1 "each copy needs its own host, and the pool has 1 host" "$nram" mount "$directory/m" --copies=2
down 3

# Two hosts have room for two copies, not for three, and a move has no target.
"$nram" up --servers=2 --donate=128M --pretend-hosts > /dev/null
expect 1 "--copies=3: each copy needs its own host, and the pool has 2 hosts" \
  "$nram" mount "$directory/m" --copies=3
expect 0 "with 2 copies" "$nram" mount "$directory/m" --copies=2
put one 1M
interrupt INT 130
interrupt TERM 143
rm "$truth/one"
unmount
down 2

# --- A server is killed, then another is frozen.
"$nram" up --servers=3 --donate=128M --pretend-hosts > /dev/null
expect 0 "with 2 copies" "$nram" mount "$directory/m" --copies=2 --repair-rate=max
fill
await 20 "a report of whole spans" holds "$whole"
"$nram" df --json | jq -e '.copies | .wanted == 2 and .in_sync > 0 and .left + .done + .left_ms == 0' > /dev/null ||
  fail "df tells of copies: $("$nram" df --json | jq -c .copies)"
expect 0 "copies wanted, at least        2" "$nram" status
check_all "in a whole pool"

before=$(made)
kill -KILL "$(fullest pid)"
check_all "after a server was killed"
put new1 2M
patch big1 100
put small7 999
rm "$truth/small8" "$directory/m/small8"
check_all "after writes beside a killed server"
made_whole "$before"
check_all "after repair"

victim=$(fullest name)
stopped=$(fullest pid)
before=$(made)
freeze "$stopped"
end=$((SECONDS + 3))
round=0
while [ "$SECONDS" -lt "$end" ]; do
  patch big2 $((round * 31 % 800))
  put "while$((round % 5))" $((4096 * (round % 9) + 17))
  [ $((round % 5)) != 0 ] || check_all "beside a server that stands still, round $round"
  round=$((round + 1))
done
kill -CONT "$stopped"
stopped=
patch big2 3
check_all "after the server goes on"
made_whole "$before"
check_all "after the repair of the one that stood still"
# Alone, it has everything right: also the writes that it had missed.
other=$(status | jq --arg victim "$victim" '.servers[] | select(.answers and .name != $victim).pid')
kill -KILL "$other"
check_all "on the server alone that stood still"
put new2 1M
check_all "after a write to the last server"
unmount
down 1

# --- A server is emptied, then killed.
rm "$truth"/*
"$nram" up --servers=3 --donate=128M --pretend-hosts > /dev/null
expect 0 "with 2 copies" "$nram" mount "$directory/m" --copies=2 --repair-rate=max
fill
await 20 "a report of whole spans" holds "$whole"
victim=$(fullest name)
pid=$(fullest pid)
expect 2 "contradict each other" "$nram" drain "$victim" --move --undo
holds ".servers | all(.draining == false)" || fail "a refused drain has drained: $(status)"
expect 0 "holds no pages any more" timeout 60 "$nram" drain "$victim" --move
[ "$(pages_of "$victim")" = 0 ] || fail "pages are left on a server that was emptied: $(status)"
holds "$whole" || fail "the move has cost copies: $(status | jq -c .copies)"
check_all "after the move"
put new1 2M
patch big1 7
[ "$(pages_of "$victim")" = 0 ] || fail "a drained server has got new pages: $(status)"
kill -KILL "$pid"
check_all "after the emptied server was killed"
put new2 1M
check_all "after a write beside it"
await 20 "a whole pool without the emptied server" holds "$whole"

unmount
down 2

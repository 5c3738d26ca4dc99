#!/usr/bin/env bash
# The commands as a person types them, on a pool of their own.
set -euo pipefail

nram=$1
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/expect.sh"

expect 1 "start a local one with \`nram up\`" "$nram" df
expect 2 "from 1 to 64" "$nram" up --servers=0
expect 2 "64M or more" "$nram" up --donate=1M
expect 2 "--give-back: \"always\" is not accepted: expected off, idle or pressure" "$nram" up --give-back=always
expect 2 "there is no command" "$nram" mount-all
expect 1 "did not start" "$nram" up --servers=1 --donate=900000G
# Servers that fit one by one, and not together.
memory_kib=$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)
expect 1 "--servers=3 with --donate=$((memory_kib / 2))K is more than this machine's memory" \
  "$nram" up --servers=3 --donate=$((memory_kib / 2))K
[ ! -e "$NRAM_STATE_DIR/pool" ] || fail "a pool is left of one that did not start"

expect 0 "The pool is up" "$nram" up --servers=3 --donate=128M
expect 1 "is already running" "$nram" up
expect 0 "COULD LEND" "$nram" df
[ "$("$nram" df --json | jq '.donors | length')" = 3 ] || fail "df does not show three donors"
[ "$("$nram" df --json | jq '.total.donated_bytes')" = $((3 * 128 * 1024 * 1024)) ] || fail "df adds up wrong"
[ "$("$nram" df --json | jq '.total.used_bytes < 100000')" = true ] || fail "an empty pool is in use"
[ "$("$nram" status --json | jq '[.servers[].regions] | add')" = 0 ] || fail "status shows regions"
# No program needs memory here: a fixed donation asks for none by itself.
"$nram" status --json | jq -e 'all(.servers[]; .asked_back_bytes == 0 and .pressed == false and
  .asked_back_ms == 0 and .given_back_bytes == 0 and .regions_given_up == 0 and .resident_bytes > 0)' > /dev/null ||
  fail "status tells of giving back: $("$nram" status --json)"
"$nram" df --json | jq -e 'all(.donors[]; .asked_back_bytes == 0 and .pressed == false)' > /dev/null ||
  fail "df tells of giving back: $("$nram" df --json)"
expect 0 "asked_back_bytes" "$nram" status
expect 0 "No regions." "$nram" regions
expect 0 "No orphans." "$nram" regions --orphans
# A list has half a minute, so that one server after the other would be too late.
asks_at_once "$nram" regions
expect 1 "no region 0x0000000000000001" "$nram" regions --destroy=0x0000000000000001
expect 2 "--force needs --destroy" "$nram" regions --force

server=$("$nram" df --json | jq -r '.donors[0].address')
expect 0 "accepts no new spans" "$nram" drain "$server"
[ "$("$nram" df --json | jq '.donors[0].draining')" = true ] || fail "the drained server does not say so"
expect 0 "accepts new spans again" "$nram" drain --undo "$server"
expect 2 "expected a server" "$nram" drain
# The second server fails: JSON has the first one, and the error.
"$nram" drain --undo "$server" 127.0.0.1:9 --json 2> /dev/null > "$directory/drained" &&
  fail "drain of a server that is not there"
jq -e --arg at "$server" '.[0].address == $at and (.[1].error | length) > 0' "$directory/drained" > /dev/null ||
  fail "drain --json of two servers: $(cat "$directory/drained")"
[ "$("$nram" df --json | jq '.total.reserved_bytes')" = 0 ] || fail "df --json has another word than its table"
expect 2 "is not a server" "$nram" drain 'a b'

[ "$("$nram" df --json | jq '.total.usable_bytes["2"]')" = 0 ] || fail "one host has room for two copies"
[ "$("$nram" df --json | jq '[.donors[] | has("pretended_host")] | any')" = false ] || fail "a server pretends its host"

# What cannot be written is an error, whichever command prints it.
full() { "$@" > /dev/full; }
for command in up down df status regions mount umount top snapshot drain swapon swapoff swaps sort run versions \
  checkpoint restore keygen doctor bundle bench completion; do
  expect 1 "could not be written" full "$nram" help "$command"
done
for words in "--help" "--version" "df" "df --json" "status" "status --json" "regions" "regions --json" "top --once" \
  "mount" "mount --json" "swaps" "swaps --json" "completion bash" "drain --undo $server"; do
  expect 1 "could not be written" full "$nram" $words
done
# The scripts of nram bench as well, without a traceback.
for words in "bench --help" "bench report --help"; do
  expect 1 "could not be written" full "$nram" $words
  [[ $(full "$nram" $words 2>&1) != *Traceback* ]] || fail "$words to a full disk has a traceback"
done
# Doctor may find other things, too.
[[ $(full "$nram" doctor 2>&1 || true) == *"could not be written"* ]] || fail "doctor's output is lost in silence"
expect 2 "did you mean drain?" "$nram" darin
expect 2 "did you mean --servers?" "$nram" up --server=2
expect 0 "nram " "$nram" -V

# Where --json was asked for, a command that fails early says so in JSON as well: on standard output, or, where that is
# for data, as the last line on standard error. The message and the exit code are as ever.
fails_in_json() { # STATUS COMMAND...
  local status=$1 command=$2 code=0
  shift
  env NRAM_POOL=/does/not/exist "$nram" "$@" > "$directory/said" 2> "$directory/errors" < /dev/null || code=$?
  [ "$code" = "$status" ] || fail "$*: exit $code, expected $status: $(cat "$directory/errors")"
  grep -q "^nram $command: " "$directory/errors" || fail "$*: its message is missing: $(cat "$directory/errors")"
  case "$*" in
    *--dry*) ;;
    sort* | run*)
      [ ! -s "$directory/said" ] || fail "$*: its standard output is for data: $(cat "$directory/said")"
      tail -1 "$directory/errors" > "$directory/said" ;;
  esac
  # A list of results may be empty; drain's has the error.
  jq -e 'type == "array" or (.error | length > 0)' "$directory/said" > /dev/null || fail "$*: $(cat "$directory/said")"
}
declare -A early=([up]=--servers=65 [mount]="$directory/somewhere" [drain]=127.0.0.1:9 [swapon]=64M [swaps]=none
  [sort]=/does/not/exist [run]=--dry [versions]=none [doctor]=surprise [bench]=surprise [top]=--once)
with_json=0
for command in $("$nram" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
  grep -q "^  --json" <<< "$("$nram" help "$command")" || continue
  with_json=$((with_json + 1))
  sub=
  [ "$command" != bench ] || sub=pool
  fails_in_json 2 "$command" $sub --json --surprise
  code=1
  case "$command" in up | doctor | bench | run) code=2 ;; esac
  # shellcheck disable=SC2086
  fails_in_json $code "$command" $sub --json ${early[$command]:-}
done
[ "$with_json" -ge 13 ] || fail "$with_json commands have --json"
fails_in_json 2 regions --json --force
fails_in_json 127 run --json --dry -- /does/not/exist
fails_in_json 2 sort --json -R
for word in "" --no-json; do
  [ -z "$("$nram" df --pool=/does/not/exist $word 2> /dev/null || true)" ] || fail "df $word prints JSON"
done
rm -f "$NRAM_STATE_DIR"/mount* # of the mount that failed

# A host file, the environment, and a server that does not answer.
sed 1d "$NRAM_STATE_DIR/pool" > "$directory/hosts"
echo "127.0.0.1:9 # nobody" >> "$directory/hosts"
expect 1 " does not answer: " "$nram" df --pool="$directory/hosts"
expect 2 "\"hosts\" is a file here: write ./hosts" env -C "$directory" "$(readlink -f "$nram")" df --pool=hosts
NRAM_POOL=$(sed 1d "$NRAM_STATE_DIR/pool" | paste -sd,) expect 0 "total" "$nram" df
expect 1 "No such file" "$nram" df --pool=/does/not/exist

# One server is killed: commands tell it from the rest, and down cleans up all the same.
kill -KILL "$(jq -r .pid "$NRAM_STATE_DIR/1.pid")"
expect 1 "does not answer" "$nram" df
expect 0 "Ended 2 memory servers" "$nram" down
expect 0 "No local pool" "$nram" down
[ ! -e "$NRAM_STATE_DIR" ] || fail "nram down leaves $(ls "$NRAM_STATE_DIR")"

# Servers that count as machines of their own, though they share this one's memory.
expect 0 "The pool is up" "$nram" up --servers=3 --donate=128M --pretend-hosts --give-back=idle
for command in df status; do
  hosts=$("$nram" "$command" --json | jq '[.. | objects | .pretended_host // empty] | unique | length')
  [ "$hosts" = 3 ] || fail "$command shows $hosts pretended hosts"
  expect 0 "pretended-1" "$nram" "$command"
done
expect 0 "usable with two copies on different hosts" "$nram" df
"$nram" df --json | jq -e '.copies.lost == 0 and .total.usable_bytes["1"] == .total.free_bytes and
  .total.usable_bytes["2"] * 2 <= .total.free_bytes and .total.usable_bytes["2"] > 0 and
  .total.usable_bytes["4"] == 0' > /dev/null || fail "df tells wrong usable room: $("$nram" df --json)"
expect 0 "Ended 3 memory servers" "$nram" down

# Flags of giving back that a server does not accept.
memserver=$(dirname "$nram")/../../memserver/nram-memserver
expect 2 "--give-back: \"always\" is not accepted: expected off, idle or pressure" \
  "$memserver" --donate=64M --give-back=always
expect 2 "--orphans: \"sell\" is not accepted: expected keep or drop" "$memserver" --donate=64M --orphans=sell
expect 2 "--spill: \"disk\" is not accepted: expected off or swap" "$memserver" --donate=64M --spill=disk
for range in auto: auto:1G auto:2G-1G auto:-63M; do
  expect 2 "--donate: \"$range\" is not accepted: expected auto:FLOOR-CEILING" "$memserver" --donate="$range"
done
expect 2 "\"lots\"" "$memserver" --donate=auto:lots-1G
expect 2 "from 0 to 86400000" "$memserver" --donate=64M --leave-within-ms=-1

# up is interrupted while its servers start: nothing is left.
mkfifo "$directory/go"
printf '#!/bin/sh\nread go < "%s"\n' "$directory/go" > "$directory/slow-memserver"
chmod 755 "$directory/slow-memserver"
set -m  # otherwise a background job would ignore the interrupt
NRAM_MEMSERVER=$directory/slow-memserver "$nram" up --servers=3 > /dev/null 2>&1 &
starting=$!
set +m
for _ in $(seq 500); do
  [ ! -e "$NRAM_STATE_DIR/2.pid" ] || break
  sleep 0.01
done
kill -INT "$starting"
code=0
wait "$starting" 2> /dev/null || code=$?
[ "$code" -eq 130 ] || fail "an interrupted nram up: exit $code"
[ ! -e "$NRAM_STATE_DIR" ] || fail "an interrupted nram up leaves $(ls "$NRAM_STATE_DIR")"
left=$(pgrep -f -- "--ready-file=$NRAM_STATE_DIR/" || true)
[ -z "$left" ] || { kill -KILL $left; fail "an interrupted nram up leaves servers: $left"; }

# Completion, as bash calls it: the last of the words is being typed.
bash -n <("$nram" completion bash)
. <("$nram" completion bash)
offers() { # WORD... : the words that are offered
  COMP_WORDS=("$nram" "$@")
  COMP_CWORD=$#
  _nram || true
  echo " ${COMPREPLY[*]} "
}
expect 0 " drain " offers dr
expect 0 " --servers= " offers up --s
expect 0 " --no-json " offers df --no
expect 0 " auto on off " offers sort --fast-wake =
expect 0 " on off " offers mount --fast-wake = o
expect 0 " --give-back=idle " offers up --give-back=i # zsh does not take it apart
expect 0 " off idle pressure " offers up --give-back ""
expect 0 " bash zsh " offers completion ""
expect 0 " swap " offers doctor ""
expect 0 " restore " offers help rest
expect 0 " bash " offers run -- bas
[ "$(offers run -- bash "")" = "  " ] || fail "words of another program are offered"
[ "$(offers sort "")" = "  " ] || fail "an empty word of sort leaves no room for files: $(offers sort "")"
expect 0 " --json " offers df ""
expect 0 " --spin-us= " offers bench pool --sp
expect 0 " pool load tls report " offers bench ""
# A bench of directories has flags of a script.
for flag in $("$nram" bench --help | grep -oE '^  --[a-z-]+'); do
  [[ $(offers bench --) == *" $flag"[\ =]* ]] || fail "bench offers $(offers bench --), not $flag"
done
[[ $(offers bench --) != *--spin-us* ]] || fail "bench offers flags of bench pool"
expect 0 " --picture " offers bench report --p
expect 2 "which shell" "$nram" completion fish
expect 0 "" "$nram" bench pool --quick --only="4 KiB, 32"
expect 2 "no row's name contains \"NOTHING\"" "$nram" bench pool --quick --only=NOTHING
expect 2 "is not a size" "$nram" bench --size=160MB
expect 2 "as in 160M" "$nram" bench --size=60M
expect 0 "0 errors, 0 wrong" "$nram" bench load --seconds=1 --clients=4
expect 1 "disks is not a directory" "$nram" bench disks
echo "all good"

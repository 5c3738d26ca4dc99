#!/usr/bin/env bash
# nram swapon, swapoff, swaps and doctor as a person types them, and their failures.
set -euo pipefail

nram=$(readlink -f "$1")
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
chmod 755 "$directory"
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
by_hand=
group=
user=
stopped=
cleanup() {
  [ -z "$stopped" ] || kill -CONT "$stopped" 2> /dev/null || true
  "$nram" swapoff --all --force > /dev/null 2>&1 || true
  if [ -n "$by_hand" ]; then
    swapoff "$by_hand" 2> /dev/null || true
    losetup -d "$by_hand" 2> /dev/null || true
  fi
  if [ -n "$group" ]; then
    kill "$user" 2> /dev/null || true
    wait "$user" 2> /dev/null || true
    rmdir "$group" || true
  fi
  umount -l "$directory/m" 2> /dev/null || true
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/expect.sh"
swap_alone
# Fails if anything is half set up: an area, a daemon, a loop device, a mount, a region.
expect_nothing() {
  [ "$("$nram" swaps --json)" = "[]" ] || fail "$1: $("$nram" swaps)"
  ! grep -q "$directory" /proc/mounts || fail "$1: a mount is left"
  ! grep -qs "$directory" /sys/block/loop*/loop/backing_file || fail "$1: a loop device is left"
  [ -z "$(ls "$NRAM_STATE_DIR/swap" 2> /dev/null)" ] || fail "$1: files are left"
}

# The process that watches the daemon $1.
guard_of() {
  local guard
  for _ in $(seq 500); do # it names itself after swapon has returned
    for guard in $(pgrep -x nram-guard); do
      ! grep -qsx "Pid:[[:space:]]*$1" "/proc/$guard/fdinfo/3" || { echo "$guard" && return; }
    done
    sleep 0.01
  done
  fail "nobody watches the daemon $1"
}

expect 1 "start a local one with \`nram up\`" "$nram" swapon 64M --unprotected
expect_nothing "without a pool"
"$nram" up --servers=2 --donate=256M > /dev/null

# The pool's servers are on this machine: swap to them needs --force.
expect 1 "on this machine" "$nram" swapon 16M --unprotected
expect_nothing "servers of this machine"
given=(--force)
# Containers often lack the privilege that protection needs.
if [[ $("$nram" swapon 16M "${given[@]}" 2>&1 || true) == *CAP_SYS_RESOURCE* ]]; then
  not_tested "a protected swap daemon: CAP_SYS_RESOURCE is not here, so all of this is without protection"
  given+=(--unprotected)
else
  "$nram" swapoff > /dev/null
fi
expect_nothing "a try"
expect 2 "how large?" "$nram" swapon
expect 2 "is not a size" "$nram" swapon plenty
expect 2 "expected at least 16.0 MiB" "$nram" swapon 1M
expect 2 "a swap area of 50 bytes" "$nram" swapon 50
expect 1 "nram swapon: --backend=null discards all data" "$nram" swapon 64M --backend=null
expect_nothing "a backend that forgets"
expect 2 "--copies: \"5\" is not accepted: expected a whole number from 1 to 4" "$nram" swapon 64M --copies=5
expect 1 "--copies needs --backend=pool" "$nram" swapon 64M --copies=2 --backend=memory "${given[@]}"
expect 1 "each copy needs its own host" "$nram" swapon 64M --copies=2 "${given[@]}"
expect_nothing "more copies than the pool has hosts"
expect 2 "is not a valid name" "$nram" swapon 64M --name=../x
expect 1 "the pool does not have 1.00 GiB free" "$nram" swapon 1G "${given[@]}"
expect_nothing "more than the pool has"
expect 1 "needs root" setpriv --reuid=65534 --regid=65534 --clear-groups "$nram" swapon 64M
expect_nothing "without root"
expect 1 "there is no swap area named swap" "$nram" swapoff swap

expect 0 "64.0 MiB of swap" "$nram" swapon 64M --priority=5 "${given[@]}"
grep -q "$("$nram" swaps --json | jq -r '.[0].device')" /proc/swaps || fail "the kernel does not have it"
"$nram" swaps --json |
  jq -e '.[0] | .active and .daemon_alive and .priority == 5 and .size_bytes == 67108864 and .copies == 1 and
         .collected_bytes == 0' > /dev/null ||
  fail "swaps: $("$nram" swaps --json)"
expect 1 "there is a swap area named swap" "$nram" swapon 32M "${given[@]}"
expect 0 "another" "$nram" swapon 16M --name=another --json "${given[@]}"
# Whether the kernel swaps to an area: the units ask so.
expect 0 "another" "$nram" swaps another
expect 1 "there is no swap area named third" "$nram" swaps another third
[ "$("$nram" swaps another --json | jq -r '.[].name')" = another ] || fail "swaps by name: $("$nram" swaps another)"
asks_at_once "$nram" swaps --json
"$nram" swaps --json --pool=127.0.0.1:9 --tls-dir=none |
  jq -e 'length == 2 and all(has("stored_bytes") | not)' > /dev/null || fail "a server that is away said something"
expect 2 "which?" "$nram" swapoff
# The area is bad in any case: its servers run on this machine.
expect 1 "its memory is locked" "$nram" doctor
expect 1 "may be swapped out" "$nram" doctor
expect 0 "" "$nram" swapoff another
[ "$("$nram" swaps --json | jq length)" -eq 1 ] || fail "another is still there"
expect 0 "" "$nram" swapoff
expect_nothing "swapoff"

# The area's reservation is free again.
[ "$("$nram" df --json | jq '[.. | .reserved_bytes? // empty] | add')" -lt 40000000 ] ||
  fail "room stays reserved: $("$nram" df --json)"

# The daemon finds its pages by itself. It ignores the signals that a machine sends to all processes when it goes down.
cp "$NRAM_STATE_DIR/pool" "$directory/hosts"
(cd "$directory" && "$nram" swapon 64M --pool=./hosts "${given[@]}" > /dev/null 2>&1)
daemon=$("$nram" swaps --json | jq '.[0].daemon_pid')
NRAM_POOL=127.0.0.1:9 "$nram" swaps --json | jq -e '.[0].stored_bytes > 0' > /dev/null || fail "swaps asks another pool"
members=/sys/fs/cgroup/memory/cgroup.procs
[ -e "$members" ] || members=/sys/fs/cgroup/cgroup.procs
if [ -e "$members" ]; then
  grep -qx "$daemon" "$members" || fail "the daemon stays in the cgroup of who started it"
else
  not_tested "whether swap's daemon leaves the cgroup of who started it: there are no memory cgroups here"
fi
awaited=$(cat "/proc/$daemon"/fdinfo/* 2> /dev/null | awk '/^sigmask/ {print $2}')
[ "$awaited" = 0000000000000800 ] || fail "the daemon waits for other signals than swapoff's: $awaited"
guard=$(guard_of "$daemon")
((0x$(awk '/^SigIgn/ {print $2}' "/proc/$guard/status") & 1 << 14)) || fail "the guard does not ignore SIGTERM"
kill -TERM "$daemon" "$guard"
"$nram" swaps --json | jq -e '.[0] | .active and .daemon_alive' > /dev/null || fail "a signal ends the area's daemon"
expect 1 "working on this area" flock "$NRAM_STATE_DIR/swap/swap" "$nram" swapoff
expect 0 "" "$nram" swapoff
expect_nothing "an area that had signals"

# A mount namespace that was made meanwhile (a container) has a copy of the mount. swapoff here does not end that copy.
"$nram" swapon 64M "${given[@]}" > /dev/null 2>&1
unshare --mount --propagation=private sh -c 'echo; exec sleep 1000' > "$directory/namespace" &
namespace=$!
while [ ! -s "$directory/namespace" ]; do sleep 0.01; kill -0 "$namespace" || fail "no mount namespace"; done
grep -q "$directory" "/proc/$namespace/mounts" || fail "the mount is nowhere else: nothing was tested"
expect 0 "" "$nram" swapoff
kill "$namespace"
wait "$namespace" 2> /dev/null || true
expect_nothing "an area whose mount others have too"

# swapon is ended while it sets the area up.
setsid "$nram" swapon 64M "${given[@]}" > /dev/null 2>&1 &
starting=$!
for _ in $(seq 500); do
  [ ! -e "$NRAM_STATE_DIR/swap/swap/mount" ] || break
  sleep 0.01
done
kill -TERM "$starting" 2> /dev/null || true
if wait "$starting"; then "$nram" swapoff; fi # it was too late
expect_nothing "an interrupted swapon"

# The daemon is killed: commands report it, and only force takes the area away.
"$nram" swapon 64M "${given[@]}" > /dev/null 2>&1
kill -KILL "$("$nram" swaps --json | jq '.[0].daemon_pid')"
expect 0 "its daemon is gone" "$nram" swaps
expect 1 "its daemon is gone" "$nram" doctor
expect 1 "its daemon is gone" "$nram" swapoff
expect 0 "" "$nram" swapoff --force
expect_nothing "a killed daemon"
# The daemon is frozen: its guard ends it, which the kernel would not before Linux 6.15.
NRAM_SWAP_SILENCE_MS_FOR_TEST=5000 "$nram" swapon 64M --io-timeout-ms=800 "${given[@]}" > /dev/null 2>&1
daemon=$("$nram" swaps --json | jq '.[0].daemon_pid')
device=$("$nram" swaps --json | jq -r '.[0].device')
guard=$(guard_of "$daemon")
freeze "$daemon"
timeout 60 tail --pid="$guard" -f /dev/null || fail "the guard waits for a frozen daemon"
! kill -0 "$daemon" 2> /dev/null || fail "a frozen daemon is left"
! grep -q "$device " /proc/swaps || fail "the kernel still has the area of a frozen daemon: $(cat /proc/swaps)"
expect 0 "" "$nram" swapoff --force
expect_nothing "a frozen daemon"

# A guard that is late to notice its area's end leaves alone the next area on the same device. So does swapoff of an
# area that was taken away by hand.
if [ -e /sys/block/loop0/diskseq ]; then
  "$nram" swapon 64M "${given[@]}" > /dev/null 2>&1
  device=$("$nram" swaps --json | jq -r '.[0].device')
  guard=$(guard_of "$("$nram" swaps --json | jq '.[0].daemon_pid')")
  freeze "$guard"
  "$nram" swapoff
  "$nram" swapon 64M "${given[@]}" > /dev/null 2>&1
  kill -CONT "$guard"
  now=$("$nram" swaps --json | jq -r '.[0].device')
  [ "$now" = "$device" ] || fail "$now, not $device: nothing was tested"
  timeout 90 tail --pid="$guard" -f /dev/null || fail "the guard of an area that has ended does not end"
  "$nram" swaps --json | jq -e '.[0].active' > /dev/null || fail "the last area's guard took away the new one"
  swapoff "$device"
  losetup -d "$device"
  truncate -s 32M "$directory/other"
  by_hand=$(losetup --find --show "$directory/other")
  [ "$by_hand" = "$device" ] || fail "another device than $device: nothing was tested"
  mkswap "$by_hand" > /dev/null 2>&1
  swapon "$by_hand"
  "$nram" swaps --json | jq -e '.[0].active | not' > /dev/null || fail "swaps takes another's area for its own"
  expect 0 "" "$nram" swapoff
  grep -q "$by_hand" /proc/swaps || fail "swapoff took away another's area"
  swapoff "$by_hand"
  losetup -d "$by_hand"
  by_hand=
  expect_nothing "an area taken away by hand"
else
  not_tested "a guard that meets the next area on its device: loop devices have no diskseq here (Linux 5.15)"
fi

# A crash in the middle of setting up leaves files.
mkdir -p "$NRAM_STATE_DIR/swap/swap/mount"
touch "$NRAM_STATE_DIR/swap/swap/area.json.new.4711"
expect 1 "nram swapoff --force swap" "$nram" swapon 64M --force
expect 1 "another process is setting up" flock "$NRAM_STATE_DIR/swap/swap" "$nram" swapon 64M --force
expect 0 "" "$nram" swapoff --force swap
expect_nothing "a crash in the middle"

# swapon is killed at each step, as soon as the next step can be seen: commands report the rest, and force takes it
# away.
area=$NRAM_STATE_DIR/swap/swap
is_begun() { [ -d "$area" ]; }
is_mounted() { grep -q "$area/mount" /proc/mounts; }
has_daemon() { [ -e "$area/log" ]; }
has_file() { [ -n "$(ls "$area/mount" 2> /dev/null)" ]; }
has_device() { grep -qs "$area" /sys/block/loop*/loop/backing_file; }
is_written() { [ -e "$area/area.json" ]; }
is_active() { [ "$(wc -l < /proc/swaps)" -gt "$swaps_before" ]; }
for step in true is_begun has_daemon is_mounted has_file has_device is_written is_active false; do
  swaps_before=$(wc -l < /proc/swaps)
  "$nram" swapon 64M "${given[@]}" > /dev/null 2>&1 &
  starting=$!
  seen=
  while [ -z "$seen" ] && kill -0 "$starting" 2> /dev/null; do ! $step || seen=1; done
  kill -KILL "$starting" 2> /dev/null || true
  # All steps but the last can be seen sooner or later, even if swapon has ended.
  [ "$step" = false ] || [ -n "$seen" ] || $step || fail "swapon has ended and nothing was seen of: $step"
  wait "$starting" 2> /dev/null || true
  [ "$("$nram" swaps --json)" = "[]" ] || expect 0 "" "$nram" swapoff --force
  expect_nothing "swapon killed when $step"
done

# A program's memory cgroup has no room for its swapped-out pages: swapoff says so and takes nothing back.
group=
[ ! -e /sys/fs/cgroup/memory/memory.stat ] || group=/sys/fs/cgroup/memory/nram-swap-test-$$
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || group=/sys/fs/cgroup/nram-swap-test-$$
[ -z "$group" ] || mkdir "$group"
limit=$group/memory.limit_in_bytes
[ -e "$limit" ] || limit=$group/memory.max
if [ -z "$group" ] || [ ! -e "$limit" ] || [ "$(wc -l < /proc/swaps)" -gt 1 ]; then
  not_tested "swapoff and a group without room: there are no memory cgroups here, or there is other swap"
  [ -z "$group" ] || rmdir "$group"
  group=
else
  "$nram" swapon 64M "${given[@]}" > /dev/null 2>&1
  echo 24M > "$limit"
  (
    echo "$BASHPID" > "$group/cgroup.procs"
    exec python3 -c '
import time
memory = bytearray(b"x") * (40 << 20)
open("'"$directory"'/filled", "w").close()
time.sleep(1000)'
  ) &
  user=$!
  while [ ! -e "$directory/filled" ]; do sleep 0.01; kill -0 "$user" || fail "the program has ended"; done
  expect 1 "must return to the memory cgroup" "$nram" swapoff
  expect 1 "End them first: nram swapoff swap. Or use --force" "$nram" down
  stopped=$(jq .pid "$NRAM_STATE_DIR/0.pid")
  freeze "$stopped"
  expect 1 "would be lost for good" "$nram" swapoff
  kill -CONT "$stopped"
  stopped=
  echo 200M > "$limit"
  expect 0 "" "$nram" swapoff
  kill "$user" 2> /dev/null || fail "swapoff ended the program"
  wait "$user" 2> /dev/null || true
  rmdir "$group"
  group=
  expect_nothing "an area of a cgroup"
fi

# The pool loses a server while the command looks for room.
kill -KILL "$(jq .pid "$NRAM_STATE_DIR/0.pid")"
expect 1 "nram df" "$nram" swapon 300M "${given[@]}"
expect_nothing "a pool that has lost a server"
"$nram" down > /dev/null
"$nram" up --servers=2 --donate=160M > /dev/null

# By hand, as docs/swap.md describes.
mkdir "$directory/m"
"$nram" mount "$directory/m" --no-writeback > /dev/null
fallocate -l 32M "$directory/m/swapfile" && chmod 600 "$directory/m/swapfile"
by_hand=$(losetup --find --show --direct-io=on --sector-size=4096 "$directory/m/swapfile")
mkswap "$by_hand" > /dev/null && swapon --discard=pages "$by_hand"
swapoff "$by_hand" && losetup -d "$by_hand"
by_hand=
"$nram" umount "$directory/m"
echo PASSED

#!/usr/bin/env bash
# Doors keep processors awake while they wait for much, if they are asked to, and at no other time. Also tests the
# report of nram doctor. Arguments: the program nram, the program busy_memory.
set -euo pipefail

# A mount namespace of its own, in which a file stands in the device's place.
[ "${3:-}" = inside ] || exec unshare --mount --propagation=private "$0" "$1" "$2" inside
# Other tests' mounts would stay mounted here.
awk '$3 == "fuse.nram" { print $2 }' /proc/mounts | xargs -r umount -l

nram=$(readlink -f "$1")
busy_memory=$(readlink -f "$2")
device=/dev/cpu_dma_latency
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
chmod 755 "$directory"
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES NRAM_FAST_WAKE
program=
cleanup() {
  [ -z "$program" ] || { kill -KILL "$program" && wait "$program"; } 2> /dev/null || true
  umount -l "$directory/m" 2> /dev/null || true
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/expect.sh"

mkdir "$directory/m"
seq 200000 -1 1 > "$directory/in"
"$nram" up --servers=1 --donate=256M > /dev/null

# --- Values that are refused.
expect 1 '$NRAM_FAST_WAKE: "fast" is not accepted: expected auto, on or off' env NRAM_FAST_WAKE=fast "$busy_memory"
expect 2 '"fast" is not accepted: expected auto, on or off' "$nram" sort --fast-wake=fast "$directory/in"
expect 2 '"ON" is not accepted: expected auto, on or off' "$nram" mount --fast-wake=ON "$directory/m"
expect 2 "--fast-wake" "$nram" sort "$directory/in" --fast-wake=
expect 0 "open" env NRAM_FAST_WAKE= "$busy_memory" < /dev/null # not set

# --- The memory API's program.
mkfifo "$directory/to" "$directory/from"
start() { # setting
  if [ "$1" = unset ]; then
    "$busy_memory" < "$directory/to" > "$directory/from" &
  else
    NRAM_FAST_WAKE=$1 "$busy_memory" < "$directory/to" > "$directory/from" &
  fi
  program=$!
  exec 7> "$directory/to" 8< "$directory/from"
  await_word open
}
await_word() {
  local word
  read -r -t 60 word <&8 || fail "no \"$1\" from the program"
  [ "$word" = "$1" ] || fail "the program says \"$word\", not \"$1\""
}
fault() { # few or many
  echo "$1" >&7
  await_word done
}
end() {
  exec 7>&-
  wait "$program" || fail "the program: exit $?"
  program=
  exec 8<&-
}
has_device() { [ -n "$(find -L "/proc/$1/fd" -maxdepth 1 -samefile "$device" 2> /dev/null)" ]; }
# await WHAT COMMAND...: until it succeeds.
await() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what"
    sleep 0.02
  done
}
has_no_device() { ! has_device "$1"; }
finding() { # nram doctor's finding about this, as "verdict: what; why"
  "$@" doctor --json | jq -r '.[] | select(.what | test("processors awake|cpu_dma_latency")) |
    .verdict + ": " + .what + "; " + .why'
}
# An unprivileged user, with a copy of the program within reach.
mkdir "$directory/bin"
cp "$nram" "$directory/bin/nram"
as_user() { # groups nram words...
  local groups=$1
  shift
  env NRAM_STATE_DIR="$directory/none" setpriv --reuid=65534 --regid=65534 "$groups" "$directory/bin/nram" "$@"
}

if [ ! -c "$device" ]; then
  not_tested "that doors keep processors awake: there is no $device here"
  [[ $(finding "$nram") == advice:* ]] || fail "doctor without the device: $(finding "$nram")"
  echo PASSED
  exit 0
fi

# The kernel's device, once: the test looks at the descriptors again and again, while the program works.
start on
fault few
! has_device "$program" || fail "a program that does little holds the device"
deadline=$((SECONDS + 60))
held=
while [ -z "$held" ] && [ "$SECONDS" -lt "$deadline" ]; do
  echo many >&7
  while :; do
    ! has_device "$program" || held=1
    ! read -r -t 0 <&8 || break
  done
  await_word done
done
[ -n "$held" ] || fail "a program with many faults does not hold $device"
await "an idle program goes on holding $device" has_no_device "$program"
end

# A file in its place holds the latency that was requested last. It is empty if no request was made.
asked=$directory/asked
: > "$asked"
chmod 600 "$asked"
mount --bind "$asked" "$device"
what_is_asked() { od -An -td4 "$asked" | tr -d ' \n'; }
is_given_back() { [ "$(what_is_asked)" = 2000000000 ]; }
nobody_asked() { [ ! -s "$asked" ]; }
# expect_asked WHAT COMMAND...: WHAT makes a request while COMMAND repeats, and withdraws it afterwards.
expect_asked() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  : > "$asked"
  while nobody_asked; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what does not ask"
    "$@"
  done
  await "$what does not give it back: $(what_is_asked)" is_given_back
}

for setting in on off unset auto; do
  : > "$asked"
  start "$setting"
  nobody_asked || fail "$setting: a program that has just opened the pool asks"
  fault few
  nobody_asked || fail "$setting: a program that does little asks"
  if [ "$setting" = off ] || { [ "$setting" != on ] && [ "$(getconf _NPROCESSORS_ONLN)" -gt 16 ]; }; then
    for _ in 1 2 3; do fault many; done
    nobody_asked || fail "$setting: a busy program asks: $(what_is_asked)"
  else
    expect_asked "$setting: a busy program" fault many
    await "$setting: an idle program keeps the device open" has_no_device "$program"
  fi
  end
done
# The program ends right after its work, and its request with it.
start on
: > "$asked"
fault many
end
nobody_asked || is_given_back || fail "a program that has ended has left its request: $(what_is_asked)"

# --- sort. It merges many short runs, so that it waits for much.
sort_some() {
  seq 2000000 -1 1 | "$nram" sort --memory=48M --threads=64 "$@" > "$directory/out" || fail "sort $*: exit $?"
  [ "$(sed -n '1p;$p' "$directory/out" | paste -sd' ')" = "1 999999" ] || fail "sort $*: not sorted"
}
: > "$asked"
for _ in 1 2 3; do sort_some --fast-wake=off; done
nobody_asked || fail "sort --fast-wake=off asks: $(what_is_asked)"
if [ "$(getconf _NPROCESSORS_ONLN)" -lt 4 ]; then
  expect_asked "sort --fast-wake=on" sort_some --fast-wake=on
else
  # A sort that polls does not sleep.
  sort_some --fast-wake=on
  nobody_asked || is_given_back || fail "sort has left its request: $(what_is_asked)"
  not_tested "that a sort keeps processors awake: it polls where there are four or more"
fi

# --- The mount.
make_files() {
  python3 -c 'import sys
for i in range(3000): open(f"{sys.argv[1]}/{i}", "w").close()' "$directory/m"
}
for setting in off on; do
  : > "$asked"
  "$nram" mount "$directory/m" --backend=memory --fast-wake="$setting" > /dev/null
  nobody_asked || fail "$setting: a mount that nobody uses asks"
  if [ "$setting" = off ]; then
    make_files
    nobody_asked || fail "a busy mount asks although that is off: $(what_is_asked)"
  else
    expect_asked "a busy mount" make_files
  fi
  "$nram" umount "$directory/m"
done

# --- The doctor, as root and as a user; a member of the device's group may write to it.
good="good: this user may keep processors awake while programs wait for the pool; "
[ "$(finding "$nram")" = "$good" ] || fail "doctor, as root: $(finding "$nram")"
said=$(finding as_user --clear-groups)
[[ $said == "advice: this user may not write to $device; "*"group nram"*"setfacl -m u:USER:rw $device"* ]] ||
  fail "doctor, without the right: $said"
# It looks at all of this machine's mounts and servers, and another test may have a faulty one.
as_user --clear-groups doctor > "$directory/said" || [ $? -eq 1 ] || fail "doctor: exit $?"
grep -q "^advice  this user may not write to $device" "$directory/said" || fail "doctor: $(cat "$directory/said")"
chgrp 4711 "$asked"
chmod 660 "$asked"
[ "$(finding as_user --groups=4711)" = "$good" ] || fail "doctor, in the group: $(finding as_user --groups=4711)"
[[ $(finding as_user --clear-groups) == advice:* ]] || fail "doctor, not in the group"
echo PASSED

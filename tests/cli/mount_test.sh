#!/usr/bin/env bash
# nram mount and umount as a person types them.
set -euo pipefail

nram=$(readlink -f "$1")
directory=$(mktemp -d -p /tmp --suffix=-nram-cli)
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL
cleanup() {
  chattr -i "$directory/below" 2> /dev/null || true
  for point in "$directory"/m "$directory"/below "$directory/with blank" "$directory"/a/b "$directory"/a-b \
    "$directory"/caf* "$directory/bound"; do
    umount -l "$point" 2> /dev/null || true
  done
  "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT

. "$(dirname "$0")/expect.sh"
# The state file of the mount on m.
state_file() { echo "$NRAM_STATE_DIR/mount$(echo "$directory/m" | tr / -)".*."$1"; }

mkdir "$directory/m" "$directory/with blank" "$directory/full"
touch "$directory/full/x"
expect 1 "start a local one with \`nram up\`" "$nram" mount "$directory/m"
"$nram" up --servers=2 --donate=128M > /dev/null

expect 1 "No such file" "$nram" mount "$directory/none"
expect 1 "is not empty" "$nram" mount "$directory/full"
expect 1 "is not a directory" "$nram" mount "$directory/full/x"
expect 2 "is not a size" "$nram" mount "$directory/m" --size=lots
expect 2 "expected pool, memory or null" "$nram" mount "$directory/m" --backend=disk
expect 2 "from 4 to 256" "$nram" mount "$directory/m" --threads=1
expect 2 "from 1 to 4" "$nram" mount "$directory/m" --copies=5
expect 2 "expected 128M or more" "$nram" mount "$directory/m" --memory=100M
expect 2 "--copies needs --backend=pool" "$nram" mount "$directory/m" --copies=2 --backend=memory
expect 2 "--expendable needs --backend=pool" "$nram" mount "$directory/m" --expendable --backend=memory
expect 2 "--expendable and --swap contradict each other" "$nram" mount "$directory/m" --expendable --swap
expect 2 "--expendable and --no-gc contradict each other" "$nram" mount "$directory/m" --expendable --no-gc
expect 1 "--copies=2: each copy needs its own host" "$nram" mount "$directory/m" --copies=2
expect 2 "unknown or invalid mount options" "$nram" mount "$directory/m" --mount-options=bogus
expect 2 "unexpected word" "$nram" mount "$directory/m" "$directory/full"
expect 1 "No such file" "$nram" mount "$directory/m" --pool=/does/not/exist
expect 1 "no memory server of the pool answers" "$nram" mount "$directory/m" --pool=127.0.0.1:9
expect 1 "nram is not mounted there" "$nram" umount "$directory/m"
expect 2 "which directory" "$nram" umount
# Users may not mount where udev, or the machine's administrator, does not permit it.
if ! setpriv --reuid=65534 --regid=65534 --clear-groups test -w /dev/fuse; then
  chmod 755 "$directory"
  install -d -o 65534 -g 65534 "$directory/theirs" "$directory/theirs/m"
  # The programs must be where these users can reach them.
  cp "$nram" "$(dirname "$nram")/../../fsd/nram-fsd" "$directory"
  expect 1 "this user may not open /dev/fuse: mount as root" env NRAM_STATE_DIR="$directory/theirs" \
    setpriv --reuid=65534 --regid=65534 --clear-groups "$directory/nram" mount "$directory/theirs/m" --backend=memory
else
  not_tested "what a user is told who may not open /dev/fuse: here they may"
fi
# Where users may open it, the reason that fusermount3 gives is in the message. The device of this test is in a mount
# namespace of its own.
if [ -u "$(command -v fusermount3 || true)" ] && mknod "$directory/fuse" c 10 229 2> /dev/null &&
  chmod 666 "$directory/fuse" && unshare --mount mount --bind "$directory/fuse" /dev/fuse 2> /dev/null; then
  chmod 755 "$directory"
  install -d -o 65534 -g 65534 "$directory/theirs"
  mkdir "$directory/not-theirs"
  cp "$nram" "$(dirname "$nram")/../../fsd/nram-fsd" "$directory"
  as_user() {
    unshare --mount sh -c 'mount --bind "$0" /dev/fuse && exec "$@"' "$directory/fuse" \
      setpriv --reuid=65534 --regid=65534 --clear-groups env NRAM_STATE_DIR="$directory/theirs" "$directory/nram" "$@"
  }
  expect 1 "nram mount: cannot mount on $directory/not-theirs: fusermount3: user has no write access to mountpoint" \
    as_user mount "$directory/not-theirs" --backend=memory
  grep -qs "^user_allow_other" /etc/fuse.conf ||
    expect 1 "fusermount3: option allow_other only allowed if 'user_allow_other' is set in" \
      as_user mount "$directory/theirs" --backend=memory --allow-other --nonempty
  json=$(as_user mount "$directory/not-theirs" --backend=memory --json 2> /dev/null || true)
  jq -e '.error | contains("fusermount3: user has no write access")' <<< "$json" > /dev/null ||
    fail "mount --json of a user: $json"
  grep -q "^fusermount3: " "$directory/theirs"/mount*.log || fail "the log lacks the reason"
else
  not_tested "the reasons of fusermount3: a device for users cannot be made here"
fi
# Other tests may have mounts of their own meanwhile.
ours() { "$nram" mount --json | jq --arg at "$directory/" '[.[] | select(.directory | startswith($at))] | length'; }
[ "$(ours)" = 0 ] || fail "mount --json lists what is not mounted"

# A pool may have more servers than a shell's limit of open files permits connections.
few_files() { (ulimit -Sn 100 && exec "$@"); }
expect 0 "of network RAM. Its log:" few_files "$nram" mount "$directory/m"
limit=$(awk '/^Max open files/ { print $4 }' "/proc/$(cat "$(state_file pid)")/limits")
[ "$limit" -ge 65536 ] || [ "$limit" = "$(ulimit -Hn)" ] || fail "the daemon may open $limit files"
# The pool does not end below a mount, by whichever name of the pool it was made.
expect 1 "End them first: nram umount $directory/m. Or use --force" "$nram" down
expect 0 "total" "$nram" df

# A snapshot keeps the file's contents, and takes no room of its own.
head -c 3000000 /dev/urandom > "$directory/m/table"
cp "$directory/m/table" "$directory/before"
expect 0 "$directory/m/then" "$nram" snapshot "$directory/m/table" "$directory/m/then"
printf changed | dd of="$directory/m/table" bs=1 seek=2000000 conv=notrunc status=none
cmp "$directory/before" "$directory/m/then" || fail "the snapshot changes with its file"
[ "$(stat -c %a "$directory/m/then")" = 444 ] || fail "a snapshot may be written to"
expect 0 "$directory/m/table@20" "$nram" snapshot "$directory/m/table"
cmp "$directory/m/table" "$directory/m/table@"* || fail "the second snapshot differs"
expect 1 "File exists" "$nram" snapshot "$directory/m/table" "$directory/m/then"
chown 1234:2345 "$directory/m/table" && chmod 640 "$directory/m/table"
expect 0 "$directory/m/table.2" "$nram" snapshot "$directory/m/table" "$directory/m/table.2"
[ "$(stat -c "%a %u:%g" "$directory/m/table.2")" = "440 1234:2345" ] || fail "others than before may read a snapshot"
expect 2 "is not on a mount of nram" "$nram" snapshot "$directory/before"
expect 2 "is not on the same mount" "$nram" snapshot "$directory/m/table" "$directory/then"
[ ! -e "$directory/then" ] || fail "a snapshot that failed leaves a file"
rm -f "$directory/m/table"* "$directory/m/then"
expect 1 "something is mounted there already" "$nram" mount "$directory/m"
expect 0 "with blank is mounted" "$nram" mount "$directory/with blank" --size=16M --no-json
[ "$(ours)" = 2 ] || fail "mount --json does not list two"
# Completion offers mount points, also with blanks.
. <("$nram" completion bash)
COMP_WORDS=("$nram" umount "$directory/w") COMP_CWORD=2
_nram || true
[ "${COMPREPLY[*]}" = "$directory/with blank" ] || fail "completion of umount offers ${COMPREPLY[*]}"
size_of() { df --output=size -B1 "$1" | tail -1 | tr -d " "; }
[ "$(size_of "$directory/with blank")" = $((16 << 20)) ] || fail "df does not show the limit"
echo hello > "$directory/m/greeting"
[ "$(cat "$directory/m/greeting")" = hello ] || fail "a file does not hold what was written"
[ -s "$(state_file log)" ] || fail "there is no log where it was said to be"

# The mount is in use: umount names the user.
sleep 100 < "$directory/m/greeting" &
user=$!
expect 1 "is in use by $user (sleep)" "$nram" umount "$directory/m"
kill "$user"
wait "$user" 2> /dev/null || true
expect 0 "" "$nram" umount "$directory/m" "$directory/with blank"
[ "$("$nram" df --json | jq '.total.used_bytes < 100000')" = true ] || fail "memory is still in use after umount"

# A daemon that stands still: each command says so, and none waits for it for ever.
# (A lease in the pool would end meanwhile.)
"$nram" mount "$directory/m" --backend=memory > /dev/null
touch "$directory/m/waits"
daemon=$(cat "$(state_file pid)")
freeze "$daemon"
expect 0 "$directory/m: its daemon (pid $daemon) does not answer; \`kill -9 $daemon\` ends it" timeout 60 "$nram" mount
timeout 60 "$nram" mount --json | jq -e --arg at "$directory/m" \
  '.[] | select(.directory == $at) | .answers == false and (.error | contains("does not answer"))' > /dev/null ||
  fail "mount --json of a daemon that stands still"
expect 1 "the daemon of its filesystem does not answer" timeout 60 "$nram" snapshot "$directory/m/waits"
for more in "" / " --foreground"; do
  # shellcheck disable=SC2086
  expect 1 "nram mount: $directory/m: its daemon (pid $daemon) does not answer; \`kill -9 $daemon\` ends it" \
    timeout 60 "$nram" mount --backend=memory "$directory/m"$more
done
json=$(timeout 60 "$nram" mount "$directory/m" --backend=memory --json 2> /dev/null || true)
jq -e '.error | contains("does not answer")' <<< "$json" > /dev/null || fail "mount --json, frozen: $json"
# The kernel has to ask the daemon about this name.
for command in mount umount; do
  expect 1 "a filesystem on this path does not answer" timeout 60 "$nram" $command "$directory/m/below"
done
# The daemon alone looks at the mount before it asks.
expect 1 "something is mounted there already" timeout 60 "$(dirname "$nram")/../../fsd/nram-fsd" "$directory/m/" \
  --backend=memory
# The kernel has nothing to write back, or the daemon does not take it; the command ends in either case.
code=0
timeout 60 "$nram" umount "$directory/m/" > "$directory/said" 2>&1 || code=$?
[ "$code" = 1 ] && grep -q "$daemon" "$directory/said" || fail "umount, exit $code: $(cat "$directory/said")"
kill -CONT "$daemon"
if mountpoint -q "$directory/m"; then expect 0 "" "$nram" umount "$directory/m"; fi
timeout 60 tail --pid="$daemon" -f /dev/null || fail "the daemon that stood still goes on after its unmount"

# --foreground: a signal to both ends them, and the command does not return before the unmount.
set -m
"$nram" mount "$directory/m" --backend=memory --foreground --pid-file="$directory/foreground" 2> /dev/null &
foreground=$!
set +m
for ((tries = 0; tries < 3000; ++tries)); do
  [ ! -s "$directory/foreground" ] || break
  sleep 0.01
done
[ "$(cat "$directory/foreground")" = "$foreground" ] || fail "the daemon in the foreground is another process"
kill -INT -- "-$foreground"
wait "$foreground" || fail "a mount in the foreground ends with $?"
! mountpoint -q "$directory/m" || fail "mount --foreground has returned before the unmount"
# Ctrl-C while the servers do not answer: nothing is mounted later.
frozen=("$(jq .pid "$NRAM_STATE_DIR/0.pid")" "$(jq .pid "$NRAM_STATE_DIR/1.pid")")
for pid in "${frozen[@]}"; do freeze "$pid"; done
# await_daemons LEAST MOST: so many processes of that mount's daemon are there, one of them its starter.
await_daemons() {
  local count deadline=$((SECONDS + 60))
  while true; do
    count=$(pgrep -c -f -- "nram-fsd.*--pid-file=$directory/never") || true
    [ "$count" -lt "$1" ] || [ "$count" -gt "$2" ] || break
    [ "$SECONDS" -lt "$deadline" ] || fail "nram mount, to be interrupted: $count daemons, expected $1 to $2"
    sleep 0.01
  done
}
set -m
"$nram" mount "$directory/m" --io-timeout-ms=600000 --pid-file="$directory/never" > /dev/null 2>&1 &
mounting=$!
set +m
await_daemons 2 2
kill -INT -- "-$mounting"
wait "$mounting" 2> /dev/null || true
await_daemons 0 1
kill -CONT "${frozen[@]}"
await_daemons 0 0
! mountpoint -q "$directory/m" || fail "an interrupted nram mount is mounted later"
# A limit above the room that there is.
expect 0 "That is less than --size=1.00 TiB" "$nram" mount "$directory/m" --size=1T
expect 0 "" "$nram" umount "$directory/m"

# Whether servers may destroy a mount, and whether its pages are sealed.
expect 0 "Its pages are not sealed" "$nram" mount "$directory/m" --expendable --no-seal
echo again > "$directory/m/file"
[ "$(cat "$directory/m/file")" = again ] || fail "an expendable file does not hold what was written"
expect 0 "" "$nram" umount "$directory/m"
[ "$("$nram" mount "$directory/m" --expendable --seal --json | jq .sealed)" = true ] || fail "JSON of a sealed mount"
expect 0 "" "$nram" umount "$directory/m"

# The mount is bind-mounted elsewhere: umount says where.
expect 0 "is mounted" "$nram" mount "$directory/m"
daemon=$(cat "$(state_file pid)")
mkdir "$directory/bound"
mount --bind "$directory/m" "$directory/bound"
expect 1 "also mounted on $directory/bound" "$nram" umount "$directory/m"
umount "$directory/bound"
timeout 60 tail --pid="$daemon" -f /dev/null || fail "the daemon goes on after the last umount"

# A mount namespace that was made meanwhile (a container) has a copy of the mount: umount names its owner.
expect 0 "is mounted" "$nram" mount "$directory/m"
daemon=$(cat "$(state_file pid)")
unshare --mount --propagation=private sh -c 'echo; exec sleep 100' > "$directory/namespace" &
user=$!
while [ ! -s "$directory/namespace" ]; do sleep 0.01; kill -0 "$user" || fail "no mount namespace"; done
expect 1 "still mounted for $user (sleep)" "$nram" umount "$directory/m"
kill "$daemon"
timeout 60 tail --pid="$daemon" -f /dev/null || fail "the daemon goes on after SIGTERM"
kill "$user"
wait "$user" 2> /dev/null || true

# A daemon is stopped: the doctor does not wait for it. Then it is killed.
expect 0 "is mounted" "$nram" mount "$directory/m"
daemon=$(cat "$(state_file pid)")
"$nram" doctor --json > "$directory/said" || [ $? -eq 1 ] || fail "doctor: exit $?"
verdict_of() { jq -r --arg at "$directory/m: " '.[] | select(.what | startswith($at)) | .verdict' "$directory/said"; }
[ "$(verdict_of)" = good ] || fail "doctor of a mount: $(cat "$directory/said")"
freeze "$daemon"
expect 1 "$directory/m: the mount does not answer" timeout 60 "$nram" doctor
kill -CONT "$daemon"
kill -9 "$daemon"
timeout 60 tail --pid="$daemon" -f /dev/null || fail "a killed daemon is left"
expect 1 "$directory/m: the daemon of this mount is gone" "$nram" doctor
expect 0 "its daemon is gone" "$nram" mount
expect 1 "nram umount" "$nram" mount "$directory/m"
expect 0 "" "$nram" umount "$directory/m"
expect 0 "is mounted" "$nram" mount "$directory/m"
expect 0 "" umount "$directory/m"

# nram-mount@.service makes the directory below refuse files, by a flag or by mode 0. The mount does not mind: it comes
# back after its daemon was killed, and meanwhile no file goes below it.
for refuse in "chattr +i" "chmod 0"; do
  mkdir "$directory/below"
  if ! $refuse "$directory/below" 2> /dev/null; then
    not_tested "a mount on a directory with the flag i, which the filesystem of /tmp does not have"
    rmdir "$directory/below"
    continue
  fi
  for _ in 1 2; do
    expect 0 "is mounted" "$nram" mount "$directory/below" --backend=memory
    [ "$(stat -c %a "$directory/below")" = 1777 ] || fail "the mode of the mount: $(stat -c %a "$directory/below")"
    echo data > "$directory/below/file"
    daemon=$(cat "$NRAM_STATE_DIR/mount$(echo "$directory/below" | tr / -)".*.pid)
    kill -9 "$daemon"
    timeout 60 tail --pid="$daemon" -f /dev/null || fail "a killed daemon is left"
    expect 0 "" "$nram" umount --lazy "$directory/below"
    ! setpriv --reuid=65534 --regid=65534 --clear-groups touch "$directory/below/file" 2> /dev/null ||
      fail "a file is below the mount ($refuse)"
  done
  chattr -i "$directory/below" 2> /dev/null || true
  rmdir "$directory/below"
done

# Two names that look alike, a name that begins with a dash (a word would be a flag), and a name that is not UTF-8.
strange=$directory/$(printf 'caf\351')
mkdir -p "$directory/a/b" "$directory/a-b" "$strange"
expect 0 "is mounted" "$nram" mount "$directory/a/b" --backend=memory
expect 0 "is mounted" "$nram" mount --backend=memory -- "$directory/a-b"
expect 0 "" "$nram" umount "$directory/a/b"
[ "$(ls "$directory/a-b" 2>&1)" = "" ] || fail "another's umount took it away"
expect 0 "" "$nram" umount "$directory/a-b"
expect 0 "is mounted" "$nram" mount "$strange"
"$nram" mount --json | jq -e length > /dev/null || fail "mount --json: $("$nram" mount --json)"
"$nram" regions > /dev/null || fail "regions beside a name that is not UTF-8"
expect 0 "" "$nram" umount "$strange"

# Relative paths start here, and the daemon keeps nothing of its starter: no lock, no standard stream.
cp "$NRAM_STATE_DIR/pool" "$directory/hosts"
(
  cd "$directory"
  expect 0 "is mounted" "$nram" mount m --pool=./hosts
  expect 1 "nram umount $directory/m" "$nram" down
  expect 0 "" "$nram" umount m
  flock "$directory/lock" "$nram" mount m --backend=memory > /dev/null
  timeout 10 flock "$directory/lock" true || fail "the daemon holds the lock of whoever started it"
  "$nram" umount m
  "$nram" mount m --backend=memory <&- >&- 2>&- || fail "without standard streams"
  "$nram" umount m
  "$(dirname "$nram")/../../fsd/nram-fsd" m --backend=memory <&- >&- 2>&- || fail "the daemon without standard streams"
  "$nram" umount m
)

# Commands refuse a state directory that others may write to.
chmod 777 "$NRAM_STATE_DIR"
expect 1 "may be written to by others" "$nram" mount "$directory/m"
expect 1 "may be written to by others" "$nram" down
chmod 755 "$NRAM_STATE_DIR"

# The mount helper, as mount(8) calls it.
helper=$directory/mount.fuse.nram
ln -s "$(dirname "$nram")/../../fsd/nram-fsd" "$helper"
expect 2 "POOL DIRECTORY" "$helper" nram
expect 0 "" "$helper" nram "$directory/m" -o rw,size=32M,noexec,_netdev
[[ $(grep " $directory/m " /proc/self/mounts) == *fuse.nram*noexec* ]] || fail "the kernel's options were not handed on"
[ "$(size_of "$directory/m")" = $((32 << 20)) ] || fail "the size was not handed on"
umount "$directory/m"

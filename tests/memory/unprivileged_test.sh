#!/usr/bin/env bash
# A user without privileges: nram names the remedy, and works after it. Then the examples, as that user. Arguments: the
# program nram, then the examples.
set -euo pipefail

nram=$(readlink -f "$1")
shift
directory=$(mktemp -d -p /tmp --suffix=-nram-user)
chmod 755 "$directory"
export NRAM_STATE_DIR=$directory/state
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES
as_user=(setpriv --reuid=1000 --regid=1000 --clear-groups)
cleanup() {
  NRAM_STATE_DIR=$directory/roots "$nram" down > /dev/null 2>&1 || true
  "${as_user[@]}" "$directory/bin/nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/../cli/expect.sh"

[ "$(id -u)" -eq 0 ] || fail "this test starts as root, to become somebody else"
mkdir "$directory/bin"
install -m 755 "$nram" "$directory/bin/nram"
install -m 755 "$(dirname "$nram")/../../memserver/nram-memserver" "$directory/bin/"
# The user's own pool: root's refuses other users.
NRAM_STATE_DIR=$directory/roots "$nram" up --servers=1 --donate=64M > /dev/null
chmod 755 "$directory/roots"
expect 1 "Permission denied" env NRAM_POOL="unix:$directory/roots/0.socket" \
  "${as_user[@]}" "$directory/bin/nram" status
chmod 666 "$directory/roots/0.socket"
expect 1 "uid:1000 may not use this server" env NRAM_POOL="unix:$directory/roots/0.socket" \
  "${as_user[@]}" "$directory/bin/nram" df
NRAM_STATE_DIR=$directory/roots "$nram" down > /dev/null
install -d -o 1000 -g 1000 -m 700 "$NRAM_STATE_DIR"
"${as_user[@]}" "$directory/bin/nram" up --servers=2 --donate=512M > /dev/null
NRAM_POOL=$("$nram" df --json --pool="$NRAM_STATE_DIR/pool" | jq -r '[.donors[].address] | join(",")')
export NRAM_POOL
for example in "$@"; do install -m 755 "$example" "$directory/bin/"; done

if [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 0 ]; then
  expect 1 "setfacl -m u:USER:rw /dev/userfaultfd" "${as_user[@]}" "$directory/bin/array" --mib=16 --budget-mib=4
else
  not_tested "what a user is told who may not handle faults: vm.unprivileged_userfaultfd lets everybody"
fi

# The message's remedy, for this test alone: a device of the same number in a mount namespace of its own.
mknod -m 666 "$directory/userfaultfd" c $(stat -c '0x%t 0x%T' /dev/userfaultfd)
allowed() {
  # shellcheck disable=SC2016
  unshare --mount sh -c 'mount --bind "$0" /dev/userfaultfd && exec "$@"' "$directory/userfaultfd" "${as_user[@]}" "$@"
}
for example in "$@"; do
  name=$(basename "$example")
  expect 0 "usage: $name" "$directory/bin/$name" --help
  expect 2 "--surprise" "$directory/bin/$name" --surprise
  allowed "$directory/bin/$name" > "$directory/out" 2>&1 || fail "$name: exit $?: $(cat "$directory/out")"
  cat "$directory/out"
done
[ "$("$nram" df --json | jq '.total.used_bytes < 1000000')" = true ] || fail "something is left in the pool"
echo PASSED

#!/usr/bin/env bash
# Sealed pages as donors and the network see them: a canary passes through the doors, and the test looks for it in the
# memory of the servers, in all packets and in logs. Without seals it is found in the first two.
set -euo pipefail

nram=$1
memserver=$2
find_canary=$3
directory=$(mktemp -d -p /tmp --suffix=-nram-seal)
unset NRAM_POOL NRAM_TLS_DIR NRAM_SEAL
servers=()
packets=
cleanup() {
  [ -z "$packets" ] || kill "$packets" 2> /dev/null || true
  rmdir "/sys/fs/cgroup/memory/nram-seal-$$" 2> /dev/null || true
  "$nram" swapoff "seal-$$" --force > /dev/null 2>&1 || true
  mountpoint -q "$directory/mount" && "$nram" umount "$directory/mount" > /dev/null 2>&1 || true
  for pid in "${servers[@]}"; do kill "$pid" 2> /dev/null && wait "$pid" || true; done
  rm -rf "$directory"
}
trap cleanup EXIT
. "$(dirname "$0")/expect.sh"
mkdir "$directory/mount"

serve() {
  rm -f "$directory/ready"
  "$memserver" --donate=512M --port=0 --ready-file="$directory/ready" 2>> "$directory/log" &
  servers+=($!)
  until [ -e "$directory/ready" ]; do
    kill -0 "${servers[-1]}" 2> /dev/null || fail "the server did not start: $(tail -3 "$directory/log")"
    read -rt 0.05 <> <(:) || true
  done
  pool=127.0.0.1:$(jq .control_port "$directory/ready")
}
serve
export NRAM_POOL=$pool

# Only the canary is text in the files: everything else is random.
canary=canary-$(head -c 12 /dev/urandom | base64 | tr -dc 'a-zA-Z0-9')
# Lines that begin with random letters, so that a sort has something to do, and end with the canary.
head -c 45000000 /dev/urandom | base64 -w 60 | sed "s/\$/$canary/" > "$directory/lines"

count() { "$find_canary" "$canary" "$@"; }

# A program of 150 MB of canaries in a cgroup of 64 MB; then the test looks for them at the servers.
cgroup=/sys/fs/cgroup/memory/nram-seal-$$
swap_out() { # flag
  swap_alone
  "$nram" swapon 256M --name="seal-$$" "$1" --force --unprotected --priority=30000 > "$directory/said" 2>&1 ||
    fail "$(cat "$directory/said")"
  mkdir "$cgroup"
  echo 64M > "$cgroup/memory.limit_in_bytes"
  coproc program {
    python3 -c '
import sys
text, cgroup = sys.argv[1:]
open(cgroup + "/cgroup.procs", "w").write("0")
data = bytearray(text.encode() * (150_000_000 // len(text)))
print("ready", flush=True)
sys.stdin.read()
' "$canary" "$cgroup"
  }
  read -r _ <&"${program[0]}" || fail "the program that is to be swapped out has died"
  in_swap=$(count --memory "${servers[@]}")
  exec {program[1]}>&-
  wait "$program_PID" || true
  rmdir "$cgroup"
  "$nram" swapoff "seal-$$" > /dev/null
}

try() { # flag
  "$nram" mount "$directory/mount" "$1" --log-file="$directory/mount.log" > "$directory/said" 2>&1 ||
    fail "$(cat "$directory/said")"
  python3 - "$directory/packets" << 'P' &
import signal, socket, sys
# Every packet of the loopback device.
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
link.bind(("lo", 0))
with open(sys.argv[1], "wb") as out:
    open(sys.argv[1] + ".ready", "w").close()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        out.write(link.recv(1 << 17))
P
  packets=$!
  until [ -e "$directory/packets.ready" ]; do read -rt 0.05 <> <(:) || true; done
  head -c 20000000 "$directory/lines" > "$directory/mount/file"
  sync "$directory/mount/file"
  # Out of the kernel's cache, so that it is read over the network too.
  dd if="$directory/mount/file" of=/dev/null bs=1M iflag=direct status=none
  cmp "$directory/mount/file" <(head -c 20000000 "$directory/lines") || fail "the mount with $1 gives other bytes"
  "$nram" sort --memory=48M "$1" "$directory/lines" --output="$directory/sorted" 2> "$directory/said" ||
    fail "$(cat "$directory/said")"
  LC_ALL=C sort -c "$directory/sorted" || fail "the sort with $1 is wrong"
  if [ -d /sys/fs/cgroup/memory ]; then
    swap_out "$1"
  else
    not_tested "a canary in swap: the memory cgroup, version 1, is not here"
  fi
  kill "$packets"
  wait "$packets" 2> /dev/null || true
  packets=
  in_servers=$(count --memory "${servers[@]}")
  in_packets=$(count "$directory/packets")
  rm -f "$directory/packets" "$directory/packets.ready" "$directory/sorted"
}

try --no-seal
[ "$in_servers" -gt 1000 ] || fail "without seals, the canary is in the server $in_servers times: the test is blind"
[ "${in_swap:-2000}" -gt 1000 ] || fail "without seals, $in_swap swapped canaries are in the server: the test is blind"
[ "$in_packets" -gt 1000 ] || fail "without seals, the canary is in $in_packets packets: the test is blind"
umount "$directory/mount" # its daemon ends when no other test's namespace has the mount
# The former server still has it in free frames.
kill "${servers[0]}" && wait "${servers[0]}" || true
servers=()
serve
export NRAM_POOL=$pool

try --seal
[ "$in_servers" -eq 0 ] || fail "the canary is in the server's memory, $in_servers times"
[ "${in_swap:-0}" -eq 0 ] || fail "the canary is in the server's memory after it was swapped out, $in_swap times"
[ "$in_packets" -eq 0 ] || fail "the canary was sent, $in_packets times"
[ "$(count "$directory/log" "$directory/mount.log")" -eq 0 ] || fail "the canary is in a log"
umount "$directory/mount"

# On by itself with a server elsewhere, off if all servers are here.
expect 2 "expected 1 or 0" env NRAM_SEAL=yes "$nram" mount "$directory/mount"
expect 2 "--seal needs --scratch=pool" "$nram" sort --seal --scratch=/tmp "$directory/log"
echo "sealed pages: no canary outside of the client"

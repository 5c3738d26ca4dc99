#!/usr/bin/env bash
# deploy/slurm in an environment that looks like a job's: scontrol and the node's name are stubs, the memory server is
# real.
set -euo pipefail

nram=$(readlink -f "$1")
memserver=$(readlink -f "$2")
scripts=$(readlink -f "$(dirname "$3")")
directory=$(mktemp -d -p /tmp --suffix=-nram-slurm)
mkdir "$directory/bin"
export SLURM_JOB_ID=4$((RANDOM % 1000)) SLURM_JOB_NODELIST='node[1-1]' SLURMD_NODENAME=node1
export NRAM_RUN_DIR=$directory/run NRAM_SLURM_CONF=$directory/slurm.conf
unset NRAM_POOL NRAM_STATE_DIR
export PATH=$directory/bin:$PATH
cleanup() {
  "$scripts/epilog.sh" || true
  umount -l "$directory/a mount" 2> /dev/null || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

ln -s "$memserver" "$directory/bin/nram-memserver"
cat > "$directory/bin/scontrol" <<'T'
#!/bin/sh
[ "$*" = "show hostnames node[1-1]" ] && echo localhost
T
cat > "$directory/bin/getent" <<'T'
#!/bin/sh
echo "127.0.0.1 STREAM $2"
T
printf '#!/bin/sh\n' > "$directory/bin/logger"
chmod +x "$directory"/bin/{scontrol,getent,logger}
echo "NRAM_JOB_DONATE=128M NRAM_JOB_PORT=$((10000 + RANDOM % 10000))" > "$NRAM_SLURM_CONF"

job=$NRAM_RUN_DIR/job-$SLURM_JOB_ID
"$scripts/prolog.sh" || fail "the prolog"
[ -s "$job/pool" ] || fail "no host file"
said=$("$scripts/task_prolog.sh")
[ "$said" = "export NRAM_POOL=$job/pool" ] || fail "the task prolog says: $said"
NRAM_POOL=$job/pool "$nram" df > "$directory/df" ||
  fail "the pool does not answer: $(cat "$directory/df" "$job/memserver.log")"
grep -q 128 "$directory/df" || fail "df says: $(cat "$directory/df")"

pid=$(cat "$job/memserver.pid")
mkdir "$directory/a mount"
NRAM_POOL=$job/pool NRAM_STATE_DIR=$directory/state "$nram" mount "$directory/a mount" > /dev/null ||
  fail "the pool cannot be mounted"
"$scripts/epilog.sh" || fail "the epilog"
! grep -q "$directory" /proc/mounts || fail "a mount is left"
[ "$(cat "/proc/$pid/comm" 2> /dev/null)" != nram-memserver ] ||
  [ "$(awk '/^State/ {print $2}' "/proc/$pid/status")" = Z ] ||
  fail "the memory server still runs"
[ ! -e "$job" ] || fail "something of the job is left"
"$scripts/epilog.sh" || fail "the epilog, a second time"

# A server that cannot start costs the job its share, not the node.
echo "NRAM_JOB_DONATE=nonsense" > "$NRAM_SLURM_CONF"
"$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
grep -q "the memory server ended" "$directory/said" || fail "it said: $(cat "$directory/said")"
echo PASSED

#!/usr/bin/env bash
# deploy/slurm in an environment that looks like a job's: scontrol and the node's name are stubs, the memory server is
# real. The test runs in namespaces of its own: a network whose ports are all free, and a /dev/fuse that a user may
# open.
set -euo pipefail
if [ -z "${NRAM_IN_NAMESPACES:-}" ]; then
  NRAM_IN_NAMESPACES=1 exec unshare --mount --net --propagation=private "$0" "$@"
fi
# Other tests' mounts would stay mounted here.
awk '$3 == "fuse.nram" { print $2 }' /proc/mounts | xargs -r umount -l

nram=$(readlink -f "$1")
memserver=$(readlink -f "$2")
scripts=$(readlink -f "$(dirname "$3")")
fsd=$(readlink -f "$4")
directory=$(mktemp -d -p /tmp --suffix=-nram-slurm)
mkdir "$directory/bin"
export SLURM_JOB_ID=4321 SLURM_JOB_NODELIST='node[1-1]' SLURMD_NODENAME=10.1.1.1 SLURM_JOB_UID=1000 SLURM_JOB_GID=1000
export NRAM_RUN_DIR=$directory/run NRAM_SLURM_CONF=$directory/slurm.conf
unset NRAM_POOL NRAM_STATE_DIR
export PATH=$directory/bin:$PATH
cleanup() {
  for id in 4321 16321 28321; do SLURM_JOB_ID=$id "$scripts/epilog.sh" || true; done
  # Dead mounts too; they are this namespace's alone.
  local mounts mount point
  mapfile -t mounts < /proc/self/mounts
  for mount in "${mounts[@]}"; do
    read -r _ point _ <<< "$mount"
    printf -v point %b "${point//\\0/\\00}"
    [[ $point != "$directory/"* ]] || /usr/bin/umount -l "$point" || true
  done
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

chmod 755 "$directory"
ip link set lo up
ip address add 10.1.1.1/32 dev lo
mknod -m 666 "$directory/fuse" c 10 229
mount --bind "$directory/fuse" /dev/fuse
install -m 755 "$nram" "$directory/bin/nram"
install -m 755 "$fsd" "$directory/bin/nram-fsd"
ln -s "$memserver" "$directory/bin/nram-memserver"
cat > "$directory/bin/scontrol" <<'T'
#!/bin/sh
case "$*" in
  "show hostnames node[1-1]") echo 10.1.1.1 ;;
  "show hostnames node[1-2]") printf '10.1.1.1\nnode2\n' ;;
  *) exit 1 ;;
esac
T
printf '#!/bin/sh\necho "10.1.1.1 STREAM $2"\n' > "$directory/bin/getent"
printf '#!/bin/sh\n' > "$directory/bin/logger"
# A scope is the program itself, in another group.
cat > "$directory/bin/systemd-run" <<T
#!/bin/sh
echo "\$*" >> "$directory/scopes"
while :; do case "\$1" in --*) shift ;; *) break ;; esac; done
exec "\$@"
T
chmod +x "$directory"/bin/{scontrol,getent,logger,systemd-run}
printf 'NRAM_JOB_DONATE=128M\nNRAM_JOB_SECRET=%s\n' "$directory/secret" > "$NRAM_SLURM_CONF"
unset NRAM_TLS_DIR

job=$NRAM_RUN_DIR/job-$SLURM_JOB_ID
# Without the site's secret there is no pool, unless the site permits use by all.
"$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
grep -q "there is no $directory/secret to make certificates from" "$directory/said" ||
  fail "it said: $(cat "$directory/said")"
# Then tasks keep the site's pool, and batch scripts of several nodes do not wait for servers.
no_pool() { # when
  [ ! -e "$job/pool" ] || fail "$1: a pool without a server: $(cat "$job/pool")"
  said=$(SLURM_NNODES=2 "$scripts/task_prolog.sh")
  [ -z "$said" ] || fail "$1: the task prolog says: $said"
}
no_pool "one node"
"$scripts/epilog.sh" || fail "the epilog of a job without a pool"
SLURM_JOB_NODELIST='node[1-2]' "$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
no_pool "two nodes"
"$scripts/epilog.sh" || fail "the epilog of a job of two nodes without a pool"
echo "NRAM_JOB_UNAUTHENTICATED=yes" >> "$NRAM_SLURM_CONF"
"$scripts/prolog.sh" || fail "the prolog of an open pool"
NRAM_POOL=$job/pool "$nram" df > /dev/null || fail "the open pool does not answer"
"$scripts/epilog.sh" || fail "the epilog of an open pool"
head -c 32 /dev/urandom > "$directory/secret"
chmod 600 "$directory/secret"
"$scripts/prolog.sh" || fail "the prolog"
grep -q -- "--property=MemorySwapMax=0 nram-memserver " "$directory/scopes" || fail "the server may be swapped out"
[ "$(cat "$job/pool")" = 10.1.1.1:15742 ] || fail "the host file says: $(cat "$job/pool")"
said=$("$scripts/task_prolog.sh")
[ "$said" = "export NRAM_POOL=$job/pool"$'\n'"export NRAM_TLS_DIR=$job/tls" ] ||
  fail "the task prolog says: $said"
answers() { # host file
  NRAM_POOL=$1 NRAM_TLS_DIR=${1%/pool}/tls "$nram" df > "$directory/df" ||
    fail "the pool $1 does not answer: $(cat "$directory/df")"
  grep -q 128 "$directory/df" || fail "df says: $(cat "$directory/df")"
}
answers "$job/pool"

# Another job would have the same ports: it gets the next ones.
other=$NRAM_RUN_DIR/job-16321
SLURM_JOB_ID=16321 "$scripts/prolog.sh" || fail "the prolog of a job with the same ports"
[ "$(cat "$other/pool")" = 10.1.1.1:15744 ] || fail "the other job's host file says: $(cat "$other/pool")"
answers "$other/pool"
its_pid=$(NRAM_POOL=$other/pool NRAM_TLS_DIR=$other/tls "$nram" status --json | jq '.servers[0].pid')
[ "$its_pid" = "$(cat "$other/memserver.pid")" ] ||
  fail "the other job was sent to the first one's server"
answers "$job/pool"
# No client is accepted without a certificate, or with another job's; the files belong to the job's user alone.
! NRAM_POOL=$other/pool "$nram" df > "$directory/df" 2>&1 || fail "anybody uses the job's pool"
! NRAM_POOL=$other/pool NRAM_TLS_DIR=$job/tls "$nram" df > "$directory/df" 2>&1 ||
  fail "another job uses the job's pool"
[ "$(stat -c '%u %a' "$job/tls" "$job/tls/client.key")" = $'1000 700\n1000 400' ] ||
  fail "who may read: $(ls -la "$job/tls")"
[ "$(stat -c '%u %a' "$job/server-tls")" = "0 700" ] || fail "who may read: $(ls -la "$job/server-tls")"
SLURM_JOB_ID=16321 "$scripts/epilog.sh" || fail "the other job's epilog"
answers "$job/pool"
# A job on several nodes, which must all have the same ports: this node is not in its pool, and its tasks' output says
# so.
third=$NRAM_RUN_DIR/job-28321
export SLURM_JOB_ID=28321 SLURM_JOB_NODELIST='node[1-2]'
"$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
grep -q "are taken" "$directory/said" || fail "it said: $(cat "$directory/said")"
[ "$(cat "$third/pool")" = node2:15742 ] || fail "the third job's host file says: $(cat "$third/pool")"
said=$("$scripts/task_prolog.sh")
[[ $said == *"print nram: ports 15742 and 15743 of "*" are taken"* ]] || fail "its tasks are told: $said"
"$scripts/epilog.sh" || fail "the third job's epilog"
export SLURM_JOB_ID=4321 SLURM_JOB_NODELIST='node[1-1]'
answers "$job/pool"

# The epilog takes away the mounts of the job's user, wherever they are. Their daemons are dead, as Slurm leaves them.
as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups "$@"; }
home=$directory/home
mkdir "$home"
chown 1000:1000 "$home"
points=("$home/a mount"$'\n' "$home/run 1" "$home/dead" "$home/way/m")
for point in "${points[@]}"; do
  as_user mkdir -p "$point"
  as_user env NRAM_POOL="$job/pool" NRAM_TLS_DIR="$job/tls" NRAM_STATE_DIR="$home/state" \
    "$directory/bin/nram" mount "$point" > /dev/null || fail "the pool cannot be mounted by its user"
done
daemon_of() { # directory
  local process
  for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2> /dev/null)" = nram-fsd ] || continue
    tr '\0' '\n' < "$process/cmdline" | grep -Fqx "$1" && echo "${process#/proc/}" && return
  done
  return 1
}
daemon=$(daemon_of "$home/dead")
kill -KILL "$daemon"
timeout 60 tail --pid="$daemon" -f /dev/null || fail "a killed daemon is left"
# Between the script's look at the mounts and the first unmount, the user puts a link to the system's own mount in its
# way.
mkdir -p "$directory/system/m"
mount -t tmpfs system "$directory/system/m"
for program in fusermount3 umount; do
  cat > "$directory/bin/$program" <<T
#!/bin/sh
if [ -d "$home/way" ] && ! [ -L "$home/way" ]; then
  as_user=
  [ "\$(id -u)" = 1000 ] || as_user="setpriv --reuid=1000 --regid=1000 --clear-groups"
  \$as_user sh -c 'mv "$home/way" "$home/away" && ln -s "$directory/system" "$home/way"'
fi
exec /usr/bin/$program "\$@"
T
  chmod +x "$directory/bin/$program"
done
pid=$(cat "$job/memserver.pid")
"$scripts/epilog.sh" || fail "the epilog"
[ -L "$home/way" ] || fail "nothing was redirected: nothing was tested"
mountpoint -q "$directory/system/m" || fail "the epilog unmounted what is the system's"
left=$(grep -F "$home" /proc/self/mounts || true)
[ "$(wc -l <<< "$left")" = 1 ] && grep -q "/away/m " <<< "$left" || fail "mounts are left, or too few: $left"
rm "$directory"/bin/{fusermount3,umount}
# One look: between two, it may be removed.
[[ $(cat "/proc/$pid/stat" 2> /dev/null || true) != "$pid (nram-memserver) "[!ZX]* ]] ||
  fail "the memory server still runs"
[ ! -e "$job" ] || fail "something of the job is left"
"$scripts/epilog.sh" || fail "the epilog, a second time"
! grep -Fq "$home" /proc/self/mounts || fail "what was not redirected any more is left"
# A directory that cannot be removed, since its user has mounted something there, does not drain the node either.
mkdir -p "$job/tls"
mount -t tmpfs other "$job/tls"
"$scripts/epilog.sh" || fail "an epilog that fails drains the node"
"$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
grep -q "its user has mounted something" "$directory/said" || fail "it said: $(cat "$directory/said")"
/usr/bin/umount "$job/tls"
"$scripts/epilog.sh" || fail "the epilog when it is gone"
[ ! -e "$job" ] || fail "something of the job is left"

# If a server cannot start, the job loses its share, and Slurm does not drain the node.
echo "NRAM_JOB_DONATE=nonsense" >> "$NRAM_SLURM_CONF"
"$scripts/prolog.sh" 2> "$directory/said" || fail "a prolog that fails drains the node"
grep -q "the memory server ended" "$directory/said" || fail "it said: $(cat "$directory/said")"
no_pool "a server that does not start"
echo PASSED

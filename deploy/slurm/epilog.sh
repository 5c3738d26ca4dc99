#!/usr/bin/env bash
# Slurm Epilog, on each node of a job, as root: ends the memory server that the Prolog started, and removes the job's
# mounts of the pool. If the job continues on other nodes, its programs there move the server's data to those nodes for
# at most NRAM_JOB_LEAVE_MS. The remaining data is lost.
# Install: Epilog=/etc/nram/slurm/epilog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"

# Removes the user's mounts of the job's pool; otherwise dead mounts would remain. The user may redirect any path
# between the check here and its use. So fusermount3 runs with the user's own rights, which reach no other mounts.
uid=${SLURM_JOB_UID:-0}
gid=${SLURM_JOB_GID:-$(id -g "$uid" 2> /dev/null || echo 65534)}
# The wait for a process of this script has a deadline: a filesystem of the user's may never answer it, and then the
# process cannot be ended either.
await() { # pid, seconds, its task
  local end=$((SECONDS + $2))
  while kill -0 "$1" 2> /dev/null; do
    if [ "$SECONDS" -ge "$end" ]; then
      logger -t nram-slurm "job $SLURM_JOB_ID: no answer in $3" 2> /dev/null || true
      return
    fi
    read -rt 0.05 <> <(:) || true
  done
  wait "$1" || logger -t nram-slurm "job $SLURM_JOB_ID: $3 fails" 2> /dev/null || true
}
unmount() { # directory
  setpriv --reuid="$uid" --regid="$gid" --clear-groups fusermount3 -u -z -- "$1" < /dev/null > /dev/null 2>&1 &
  await $! $((SECONDS < 20 ? 20 - SECONDS : 0)) "unmounting $1"
}
decode() { # name text: the kernel writes a blank as \040; %b wants \0040, or it would take the next digit too
  printf -v "$1" %b "${2//\\0/\\00}" # not by $(...), which would cut off a path's last newlines
}
mapfile -t mounts < /proc/self/mounts
for mount in "${mounts[@]}"; do
  read -r source point type options _ <<< "$mount"
  [[ $type == fuse* && ,$options, == *,user_id=$uid,* ]] || continue
  decode from "$source"
  decode directory "$point"
  # Mounts of the pool, and mounts over the user's certificates, which would keep these here.
  [[ $type == fuse.nram && $from == "$job_directory/pool" || $directory == "$job_directory"/* ]] || continue
  unmount "$directory"
done

pid=$(cat "$job_directory/memserver.pid" 2> /dev/null || true)
ours() { # by now the pid may be another process's, or a zombie's
  [ -n "$pid" ] && [[ $(cat "/proc/$pid/stat" 2> /dev/null || true) == "$pid (nram-memserver) "[!ZX]* ]]
}
if ours; then
  # One signal: a second would end it at once.
  kill -TERM "$pid" || true
  for _ in $(seq $((NRAM_JOB_LEAVE_MS / 100 + 50))); do
    ours || break
    read -rt 0.1 <> <(:) || true
  done
  ! ours || kill -KILL "$pid" || true
fi
[ -z "$NRAM_JOB_METRICS" ] || rm -f "$job_metrics"
# The directory tls is the user's. Nothing that the user did there may make Slurm drain the node.
rm -rf --one-file-system "$job_directory" < /dev/null > /dev/null 2>&1 &
await $! 20 "removing $job_directory"

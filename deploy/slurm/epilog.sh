#!/usr/bin/env bash
# Slurm Epilog, on each node of a job, as root: ends the memory server that the Prolog started; what it stored is gone,
# and so are the job's mounts of it.
# Install: Epilog=/etc/nram/slurm/epilog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"

# What the job's user has mounted of its pool, or dead mounts would stay. He may redirect any path that is looked at
# here before it is used: so it is he who unmounts, with his own rights; fusermount3 lets him unmount what is his alone.
uid=${SLURM_JOB_UID:-0}
gid=${SLURM_JOB_GID:-$(id -g "$uid" 2> /dev/null || echo 65534)}
unmount() { # directory
  local unmounter
  setpriv --reuid="$uid" --regid="$gid" --clear-groups fusermount3 -u -z -- "$1" < /dev/null > /dev/null 2>&1 &
  unmounter=$!
  # Not for ever: below a filesystem of the user's own it may get no answer, and cannot be ended either.
  while kill -0 "$unmounter" 2> /dev/null; do
    if [ "$SECONDS" -ge 20 ]; then
      logger -t nram-slurm "job $SLURM_JOB_ID: no answer in unmounting $1" 2> /dev/null || true
      return
    fi
    read -rt 0.05 <> <(:) || true
  done
  wait "$unmounter" || logger -t nram-slurm "job $SLURM_JOB_ID: fusermount3 refuses to unmount $1" 2> /dev/null || true
}
decode() { # name text: the kernel writes a blank as \040; %b wants \0040, or it would take a digit behind it too
  printf -v "$1" %b "${2//\\0/\\00}" # not by $(...), which would cut off a path's last newlines
}
mapfile -t mounts < /proc/self/mounts
for mount in "${mounts[@]}"; do
  read -r source point type options _ <<< "$mount"
  [ "$type" = fuse.nram ] || continue
  decode from "$source"
  [ "$from" = "$job_directory/pool" ] && [[ ,$options, == *,user_id=$uid,* ]] || continue
  decode directory "$point"
  unmount "$directory"
done

pid=$(cat "$job_directory/memserver.pid" 2> /dev/null || true)
ours() { # the pid may be another process's by now
  [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = nram-memserver ]
}
if ours; then
  kill -TERM "$pid" || true
  for _ in $(seq 50); do
    ours || break
    read -rt 0.1 <> <(:) || true
  done
  ! ours || kill -KILL "$pid" || true
fi
rm -rf "$job_directory"

#!/usr/bin/env bash
# Slurm Epilog, on each node of a job, as root: ends the memory server that the Prolog started; what it stored is gone,
# and so are the job's mounts of it.
# Install: Epilog=/etc/nram/slurm/epilog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"

# What the job has mounted of its pool, or dead mounts would stay.
awk -v pool="$job_directory/pool" '$1 == pool && $3 == "fuse.nram" {print $2}' /proc/self/mounts |
  while read -r point; do
    umount -l "$(printf %b "$point")" || true
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

#!/usr/bin/env bash
# Slurm Epilog, on each node of a job, as root: ends the memory server that the Prolog started; what it stored is gone.
# Install: Epilog=/etc/nram/slurm/epilog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"

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

#!/usr/bin/env bash
# Slurm TaskProlog: its output sets the environment of the job's tasks, so that `nram mount`, `nram sort` and programs
# find the job's pool. Install: TaskProlog=/etc/nram/slurm/task_prolog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"
# A job without a pool keeps the site's own.
if [ -r "$job_directory/pool" ]; then
  echo "export NRAM_POOL=$job_directory/pool"
  [ ! -r "$job_directory/tls/client.key" ] || echo "export NRAM_TLS_DIR=$job_directory/tls"
fi
# A batch script begins when the Prolog of its own node has ended. The job's other nodes may start their servers later.
if [ -z "${SLURM_STEP_ID:-}" ] && [ "${SLURM_NNODES:-1}" -gt 1 ] && [ -r "$job_directory/pool" ]; then
  flags=(--pool="$job_directory/pool")
  [ ! -r "$job_directory/tls/client.key" ] || flags+=(--tls-dir="$job_directory/tls")
  until=$((SECONDS + 15))
  until timeout 5 nram status "${flags[@]}" > /dev/null 2>&1; do
    if [ "$SECONDS" -ge "$until" ]; then
      echo "print nram: some nodes of this job lend it no memory: nram status shows which"
      break
    fi
    read -rt 0.2 <> <(:) || true
  done
fi
[ ! -r "$job_directory/taken" ] || echo "print nram: $(cat "$job_directory/taken")"

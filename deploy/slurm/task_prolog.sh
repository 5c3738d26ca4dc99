#!/usr/bin/env bash
# Slurm TaskProlog: its output sets the environment of the job's tasks, so that `nram mount`, `nram sort` and programs
# find the job's pool. Install: TaskProlog=/etc/nram/slurm/task_prolog.sh in slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ ! -r "$job_directory/pool" ] || echo "export NRAM_POOL=$job_directory/pool"
[ ! -r "$job_directory/tls/client.key" ] || echo "export NRAM_TLS_DIR=$job_directory/tls"
[ ! -r "$job_directory/taken" ] || echo "print nram: $(cat "$job_directory/taken")"

#!/usr/bin/env bash
# See slurm_cluster.py.
set -euo pipefail
exec "$(dirname "$0")/slurm_cluster.py" "$1" "$2" "$3" "$(dirname "$4")"

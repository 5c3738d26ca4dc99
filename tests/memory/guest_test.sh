#!/usr/bin/env bash
# A guest beside a balloon. Arguments: the programs nram, guest_job, host_job.
set -euo pipefail
exec "$(dirname "$0")/guest_test.py" --nram="$1" --guest="$2" --host="$3"

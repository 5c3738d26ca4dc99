#!/usr/bin/env bash
# Five joins and leaves, with etcd frozen for three seconds. joins.py does it a hundred times, and with other sources.
set -euo pipefail
exec "$(dirname "$0")/joins.py" "$1" --array="$2" --memserver="$3" --workout="$4" \
  --only=etcd --times=5 --away-seconds=3 --mib=32

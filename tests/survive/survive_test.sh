#!/usr/bin/env bash
# Each scenario for a few seconds, with one or two kills, or short cuts. survive.py does the same for hours.
set -euo pipefail
exec "$(dirname "$0")/survive.py" "$1" --array="$2" --pressure="$3" \
  --minutes=0.03 --every=0.5 --cut-seconds=3 --mib=64

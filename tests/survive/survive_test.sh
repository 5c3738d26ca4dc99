#!/usr/bin/env bash
# One scenario for a few seconds, with one kill or two, or two short cuts. survive.py does the same for hours.
set -euo pipefail
exec "$(dirname "$0")/survive.py" "$1" --array="$2" --pressure="$3" "$4" \
  --minutes=0.03 --every=0.5 --cut-seconds=3 --mib=64

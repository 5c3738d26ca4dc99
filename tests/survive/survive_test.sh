#!/usr/bin/env bash
# A few seconds, with one kill or two, or two short cuts, or, with --press, while donors take their memory back.
# survive.py and press.py do the same for hours.
set -euo pipefail
here=$(dirname "$0")
if [ "${5:-}" = --press ]; then
  exec "$here/press.py" "$1" --array="$2" --pressure="$3" "$4" "$6" --every=0.5 --mib=128
fi
exec "$here/survive.py" "$1" --array="$2" --pressure="$3" "$4" \
  --minutes=0.03 --every=0.5 --cut-seconds=3 --mib=64

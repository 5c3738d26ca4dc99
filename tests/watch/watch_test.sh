#!/usr/bin/env bash
# See watch.py.
set -euo pipefail
exec "$(dirname "$0")/watch.py" "$1" "$2" "$3" "$(dirname "$4")"

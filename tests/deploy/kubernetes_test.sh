#!/usr/bin/env bash
# See kubernetes.py.
set -euo pipefail
exec "$(dirname "$0")/kubernetes.py" "$1" "$2" "$3" "$(dirname "$4")"

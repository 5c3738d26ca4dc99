#!/usr/bin/env bash
# Each scenario of the harness once.
set -euo pipefail
exec "$(dirname "$0")/harness.py" --nram="$1" --pressure="$2" --seconds=2

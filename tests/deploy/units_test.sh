#!/usr/bin/env bash
# The systemd units as systemd sees them, and the manifest as far as it can be read here.
set -euo pipefail
deploy=$(dirname "$(readlink -f "$1")")
directory=$(mktemp -d -p /tmp --suffix=-nram-units)
trap 'rm -rf "$directory"' EXIT

if ! command -v systemd-analyze > /dev/null; then
  echo "FAILED: systemd-analyze is not here: tools/setup installs it" >&2
  exit 1
fi
for unit in "$deploy"/*.service; do
  # The programs are not installed on a machine that only builds.
  name=$(basename "$unit")
  sed -E 's|/usr/bin/nram[a-z-]*|/bin/true|' "$unit" > "$directory/${name/@/@test}"
done
said=$(systemd-analyze verify --man=no "$directory"/*.service 2>&1 || true)
# Of other units of the machine nothing is said here.
if grep -F "$directory" <<< "$said" || grep -E '^nram' <<< "$said"; then
  echo "FAILED: $said" >&2
  exit 1
fi
echo PASSED

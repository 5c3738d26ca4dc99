#!/usr/bin/env bash
# The systemd units as systemd sees them; the manifest as far as it can be read here.
set -euo pipefail
deploy=$(dirname "$(readlink -f "$1")")
directory=$(mktemp -d -p /tmp --suffix=-nram-units)
trap 'rm -rf "$directory"' EXIT

if ! command -v systemd-analyze > /dev/null; then
  echo "FAILED: systemd-analyze is not here: tools/setup installs it" >&2
  exit 1
fi
for unit in "$deploy"/*.service; do
  # A machine that only builds may lack the installed programs.
  name=$(basename "$unit")
  sed -E 's|/usr/bin/nram[a-z-]*|/bin/true|' "$unit" > "$directory/${name/@/@test}"
done
said=$(systemd-analyze verify --man=no "$directory"/*.service 2>&1 || true)
# Messages about other units of the machine are left out.
if grep -F "$directory" <<< "$said" || grep -E '^nram' <<< "$said"; then
  echo "FAILED: $said" >&2
  exit 1
fi
# The end of swap: a refusal stands, unless the machine goes down.
mkdir "$directory/bin"
stop=$(sed -n "s/^ExecStop=.bin.sh -c '\(.*\)'$/\1/p" "$deploy/nram-swap@.service" |
  sed 's|/usr/bin/||g; s/%i/8G/g; s/\$\$/$/g')
[ -n "$stop" ] || { echo "FAILED: nram-swap@.service has no ExecStop of that form" >&2; exit 1; }
cat > "$directory/bin/nram" <<'T'
#!/bin/sh
echo "$*" >> "$DIRECTORY/calls"
[ "$2" = --force ] || [ "$(wc -l < "$DIRECTORY/calls")" -ge "$SUCCEEDS_AT" ]
T
printf '#!/bin/sh\necho "$STATE"\n' > "$directory/bin/systemctl"
printf '#!/bin/sh\n' > "$directory/bin/sleep"
chmod +x "$directory"/bin/*
tries() { # state, at which call it succeeds, expected exit code, expected calls, expected last one
  rm -f "$directory/calls"
  local code=0
  PATH=$directory/bin:$PATH DIRECTORY=$directory STATE=$1 SUCCEEDS_AT=$2 sh -c "$stop" || code=$?
  [ "$code $(wc -l < "$directory/calls") $(tail -1 "$directory/calls")" = "$3 $4 $5" ] ||
    { echo "FAILED: ExecStop, $*: exit $code, $(cat "$directory/calls")" >&2; exit 1; }
}
tries running 1 0 1 "swapoff 8G"
tries running 2 1 1 "swapoff 8G"
tries stopping 3 0 3 "swapoff 8G"
tries stopping 99 0 31 "swapoff --force 8G"
echo PASSED

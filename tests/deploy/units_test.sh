#!/usr/bin/env bash
# The systemd units as systemd sees them; the manifest as far as it can be read here.
set -euo pipefail
deploy=$(dirname "$(readlink -f "$1")")
directory=$(mktemp -d -p /tmp --suffix=-nram-units)
trap 'chattr -i "$directory/below" 2> /dev/null || true; rm -rf "$directory"' EXIT

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
# How much of the machine a unit's processes may reach, in systemd's own measure: 0 to 10, less is better.
exposed() { # unit, the most
  systemd-analyze security --offline=true --threshold="$2" "$directory/$1" > "$directory/said" 2>&1 ||
    { tail -3 "$directory/said" >&2; echo "FAILED: $1 is exposed by more than $2 tenths" >&2; exit 1; }
}
exposed nram-memserver.service 30
exposed nram-mount@test.service 60
has() { # unit line
  grep -qxF "$2" "$deploy/$1" || { echo "FAILED: $1 has no $2" >&2; exit 1; }
}
# A server's pages are neither in a swap nor in a core dump.
has nram-memserver.service MemorySwapMax=0
has nram-memserver.service LimitCORE=0
has nram-mount@.service LimitCORE=0

# --- The lines of units, as a shell runs them, with stand-ins for the programs.
mkdir "$directory/bin" "$directory/areas"
export DIRECTORY=$directory
cat > "$directory/bin/nram" <<'T'
#!/bin/sh
# An area is a file.
[ "$1" = swaps ] || echo "$*" >> "$DIRECTORY/calls"
case "$1" in
  swaps) [ -e "$DIRECTORY/areas/$2" ] ;;
  swapon) [ ! -e "$DIRECTORY/areas/$2" ] && touch "$DIRECTORY/areas/$2" ;;
  swapoff)
    tries=$(grep -c '^swapoff' "$DIRECTORY/calls")
    case "$*" in *--force*) ;; *) [ "$tries" -ge "$SUCCEEDS_AT" ] || exit 1 ;; esac
    rm -f "$DIRECTORY/areas"/* ;;
esac
T
cat > "$directory/bin/systemctl" <<'T'
#!/bin/sh
[ "$1" != is-system-running ] || { echo "$STATE"; exit; }
echo "systemctl $*" >> "$DIRECTORY/calls"
T
printf '#!/bin/sh\n' > "$directory/bin/sleep"
chmod +x "$directory"/bin/*
# run UNIT KEY INSTANCE PATH: runs that line; returns its exit code.
run() {
  local line
  line=$(sed -n "s/^$2=[-+]*//p" "$deploy/$1" | sed "s|/usr/bin/nram |nram |g; s|%i|$3|g; s|%f|$4|g; s|\\\$\\\$|\$|g;
    s|%n|${1%@*}@$3.service|g")
  [ -n "$line" ] || { echo "FAILED: $1 has no $2" >&2; exit 1; }
  PATH=$directory/bin:$PATH sh -c "$line"
}
called() { # when, calls...
  local when=$1 calls
  shift
  calls=$(cat "$directory/calls" 2> /dev/null || true)
  rm -f "$directory/calls"
  [ "$calls" = "$(printf '%s\n' "$@")" ] || { echo "FAILED: $when: it calls $calls" >&2; exit 1; }
}
swap=nram-swap@.service
export STATE=running SUCCEEDS_AT=2 NRAM_FLAGS="--priority=10 --copies=2"
run $swap ExecStart 8G ""
called "the start" "swapon 8G --name=8G --priority=10 --copies=2"
! run $swap ExecStop 8G "" || { echo "FAILED: a refused stop looks like success" >&2; exit 1; }
run $swap ExecStopPost 8G ""
called "a refused stop" "swapoff 8G" "systemctl --no-block start nram-swap@8G.service"
run $swap ExecStart 8G ""
called "the start of an area that is there"
# The unit is active again, so that systemd runs the next stop.
SUCCEEDS_AT=1 run $swap ExecStop 8G ""
run $swap ExecStopPost 8G ""
called "the next stop" "swapoff 8G"
grep -q "^After=.*nram-swap-end.service" "$deploy/$swap" && grep -q "^Wants=.*nram-swap-end.service" "$deploy/$swap" ||
  { echo "FAILED: $swap does without the unit that ends areas at a shutdown" >&2; exit 1; }

# The end of all areas: nothing, unless the machine goes down; then it tries, and forces it in the end.
ends() { # state, at which call it succeeds, expected calls, expected last one
  touch "$directory/areas/by-hand"
  STATE=$1 SUCCEEDS_AT=$2 run nram-swap-end.service ExecStop "" "" ||
    { echo "FAILED: the end of swap, $*" >&2; exit 1; }
  [ "$(wc -l 2> /dev/null < "$directory/calls") $(tail -1 "$directory/calls" 2> /dev/null)" = "$3 $4" ] ||
    { echo "FAILED: the end of swap, $*: $(cat "$directory/calls")" >&2; exit 1; }
  rm -f "$directory/calls"
}
touch "$directory/calls"
ends running 1 0 ""
ends stopping 3 3 "swapoff --all"
ends stopping 99 31 "swapoff --all --force"

# While nothing is mounted, a mount's directory takes no files: by a flag of the filesystem, else by its mode.
below=$directory/below
for way in here "chattr refuses"; do
  [ "$way" = here ] || { printf '#!/bin/sh\nexit 1\n' > "$directory/bin/chattr"; chmod +x "$directory/bin/chattr"; }
  run nram-mount@.service ExecStartPre "" "$below"
  run nram-mount@.service ExecStartPre "" "$below" # after the daemon was killed
  if [ "$(id -u)" -eq 0 ]; then
    ! setpriv --reuid=65534 --regid=65534 --clear-groups touch "$below/file" 2> /dev/null ||
      { echo "FAILED: a file is below a mount ($way)" >&2; exit 1; }
    # Only the flag stops root.
    if [ "$(stat -c %a "$below")" != 0 ] && touch "$below/file" 2> /dev/null; then
      echo "FAILED: a file of root's is below a mount ($way)" >&2
      exit 1
    fi
  fi
  chattr -i "$below" 2> /dev/null || true
  rm -rf "$below"
done
echo PASSED

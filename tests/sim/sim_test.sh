#!/usr/bin/env bash
# A million operations of real pools in virtual time. A seed that fails fails the test, and is named.
set -euo pipefail
sim=$1
log=${TEST_TMPDIR:-/tmp}/sim.log
if ! timeout 240 "$sim" --seed="${2:-1}" --episodes=250 --operations=4000 > "$log" 2>&1; then
  tail -n 40 "$log"
  exit 1
fi
tail -n 1 "$log"
# Then publications, with owners that die. The last seeds have found errors.
for seeds in "--seed=${2:-1} --episodes=20" "--seed=43 --episodes=1" "--seed=1022 --episodes=1" \
  "--seed=2017 --episodes=1" "--seed=2052 --episodes=1"; do
  # shellcheck disable=SC2086
  if ! timeout 120 "$sim" --publish $seeds > "$log" 2>&1; then
    tail -n 40 "$log"
    exit 1
  fi
  tail -n 1 "$log"
done

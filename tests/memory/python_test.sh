#!/usr/bin/env bash
# The Python package on a real pool: its own tests, and its example at a small size.
# Arguments: the program nram, the library libnram-core.so.0, the folder bindings/python.
set -euo pipefail

nram=$(readlink -f "$1")
NRAM_LIBRARY=$(readlink -f "$2")
package=$(cd "$3" && pwd)
python=${NRAM_PYTHON:-/usr/bin/python3}
directory=$(mktemp -d -p /tmp --suffix=-nram-python)
export NRAM_LIBRARY NRAM_STATE_DIR=$directory/state PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

"$nram" up --servers=2 --donate=256M > /dev/null
for tests in test_nram.py test_versions.py; do
  code=0
  "$python" "$package/$tests" > "$directory/messages" 2>&1 || code=$?
  cat "$directory/messages"
  [ "$code" -eq 0 ] || fail "$tests: exit $code"
  # Root may handle faults, and tools/setup installs NumPy: without either, these tests show little.
  ! grep -q "NOT TESTED" "$directory/messages" || fail "not all of $tests has run, for the reason above"
done

# Both servers are on one host.
code=0
NRAM_COPIES=2 "$python" -c 'import nram; nram.Memory()' > "$directory/messages" 2>&1 || code=$?
[ "$code" -ne 0 ] && grep -qF '$NRAM_COPIES=2: each copy needs its own host' "$directory/messages" ||
  fail "copies without hosts: exit $code: $(cat "$directory/messages")"

example=$package/examples/numpy_array.py
"$python" "$example" --help | grep -q -- --budget || fail "the example's --help"
"$python" "$example" --size=32M --budget=8M > "$directory/messages" || fail "the example: exit $?"
cat "$directory/messages"
grep -q "All numbers are right" "$directory/messages" || fail "the example"

"$nram" down > /dev/null
echo PASSED

# What the tests of the command share; to be sourced.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# expect STATUS TEXT COMMAND...: the exit status, and a text that the output has.
expect() {
  local status=$1 text=$2 out code=0
  shift 2
  out=$("$@" 2>&1) || code=$?
  [ "$code" -eq "$status" ] || fail "$*: exit $code, expected $status: $out"
  [[ $out == *"$text"* ]] || fail "$*: expected \"$text\" in: $out"
}
# What this machine does not let be tested; tools/test ends with a list of all of it.
not_tested() { echo "NOT TESTED: $*" >&2; }

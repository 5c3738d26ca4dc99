# Functions that the command's tests share; to be sourced.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# expect STATUS TEXT COMMAND...: COMMAND ends with STATUS and its output contains TEXT.
expect() {
  local status=$1 text=$2 out code=0
  shift 2
  out=$("$@" 2>&1) || code=$?
  [ "$code" -eq "$status" ] || fail "$*: exit $code, expected $status: $out"
  [[ $out == *"$text"* ]] || fail "$*: expected \"$text\" in: $out"
}
# Reports what this machine does not permit to test; tools/test ends with a list of all such lines.
not_tested() { echo "NOT TESTED: $*" >&2; }

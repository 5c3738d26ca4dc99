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
# freeze PID: stops a process until SIGCONT, and returns when all its threads stand still. When kill returns, the signal
# is only sent, and on a busy machine a thread may still answer one more request.
freeze() {
  local deadline=$((SECONDS + 20))
  kill -STOP "$1"
  while grep -qv '^T' <<< "$(sed 's/.*) //' "/proc/$1/task/"*/stat 2> /dev/null)"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "process $1 does not stop"
    sleep 0.01
  done
}
# No other test of this machine swaps until this one ends: the end of an area brings pages back into the full cgroups of
# other tests' programs. tools/bench/bench_places.py has the same.
swap_alone() {
  [ -z "${swaps_alone:-}" ] || return 0  # background processes have the lock as well
  swaps_alone=1
  exec 9> /tmp/nram-swap-of-tests.lock
  flock -w 600 9 || fail "another test swaps for 600 s"
}
# Reports a part that this machine does not permit to test; tools/test ends with a list of all such lines.
not_tested() { echo "NOT TESTED: $*" >&2; }

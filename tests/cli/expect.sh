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
# asks_at_once COMMAND...: COMMAND, which gets a --pool of two silent servers, connects to both within 20 s.
asks_at_once() {
  python3 - "$@" <<'T' || fail "$*: a server was not asked beside a silent one"
import selectors, socket, subprocess, sys, time
silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
waiting = selectors.DefaultSelector()
for one in silent:
    waiting.register(one, selectors.EVENT_READ)
pool = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
command = subprocess.Popen([*sys.argv[1:], f"--pool={pool}", "--tls-dir=none"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
accepted = []  # kept open, and never answered
deadline = time.monotonic() + 20
while waiting.get_map() and time.monotonic() < deadline:
    for key, _ in waiting.select(timeout=1):
        accepted.append(key.fileobj.accept())
        waiting.unregister(key.fileobj)
ended = command.poll() is not None
command.kill()
command.wait()
if waiting.get_map():
    sys.exit(f"{len(accepted)} of 2 servers were asked" + (", and the command has ended" if ended else ""))
T
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

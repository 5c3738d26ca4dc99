# Sourced by tests of nram run. They have $directory, fail (expect.sh), and begin: it starts a program whose memory is
# remote, and sets runner, program and helper to the pids of the command, the program and its helper.

await_end() { timeout 30 tail --pid="$1" -f /dev/null || fail "process $1 stays"; }
# The command is killed, and then the helper of another run: neither program goes on, with zeros in its memory.
kill_each() {
  local code=0
  begin
  kill -KILL "$runner"
  wait "$runner" || true
  await_end "$program"
  await_end "$helper"
  [ ! -s "$directory/out" ] || fail "the supervisor was killed: $(cat "$directory/out")"
  begin
  kill -KILL "$helper"
  wait "$runner" || code=$?
  [ "$code" -eq 125 ] && grep -q "helper" "$directory/err" ||
    fail "the helper was killed: $code $(cat "$directory/err")"
  await_end "$program"
}

#!/usr/bin/env bash
# Tests `nram bench report`: the same results give pages and pictures of the same bytes, and it takes only results.
set -euo pipefail
nram=$1
. "$(dirname "$0")/expect.sh"
directory=$(mktemp -d -p "$TEST_TMPDIR")

entry() { # row target median
  echo "{\"row\": \"$1\", \"unit\": \"s\", \"lower_is_better\": true, \"target\": \"$2\", \"values\": [$3, 3, 9]," \
    "\"cpu\": [1.5], \"busy\": [0.5], \"median\": $3}"
}
cat > "$directory/results" <<J
{"machine": {"processor": "a processor", "processors": 2, "memory_gib": 16, "kernel": "6.1", "date": "2026-01-01"},
 "rounds": 3, "own_pool": true, "cgroup": true, "caches_dropped": true, "direct": false,
 "rows": [$(entry "sort 1.6 GB" nram 4), $(entry "sort 1.6 GB" tmpfs 3), $(entry "random <reads>" nram 7)]}
J

report() { "$nram" bench report "$@" < "$directory/results"; }
/usr/bin/python3 -c 'import matplotlib' || fail "no matplotlib: tools/setup installs it"
for words in "" "--picture" "--picture --rows=sort"; do
  # shellcheck disable=SC2086
  report $words > "$directory/first"
  # shellcheck disable=SC2086
  report $words > "$directory/second"
  cmp "$directory/first" "$directory/second" || fail "'$words' is not the same twice"
done
report --picture > "$directory/both"
[ "$(head -c 4 "$directory/both")" = "<svg" ] || fail "no picture"
grep -q "random &lt;reads&gt;" "$directory/both" || fail "a row is not in the picture"
! grep -q "random" "$directory/first" || fail "a row that was not asked for is in the picture"
report > "$directory/page"
grep -q "<svg" "$directory/page" || fail "the page has no plot"
# On a narrow screen a table scrolls, and the page does not.
grep -q "^\.wide { overflow-x: auto }" "$directory/page" || fail "the page's wide parts do not scroll"
[ "$(grep -c "<div class='wide'><table>" "$directory/page")" = "$(grep -c "<table>" "$directory/page")" ] ||
  fail "a table does not scroll"
grep -q "1\.33" "$directory/page" || fail "the page has no ratio to tmpfs"

expect 1 "no row's name contains walk" report --rows=walk
echo '{"rows": []}' > "$directory/other"
expect 1 "this is not a result" bash -c '"$1" bench report < "$2"' _ "$nram" "$directory/other"
expect 1 "this is not a result" bash -c '"$1" bench report < /dev/null' _ "$nram"
expect 2 "usage" report --nonsense
# A full disk is an error in one line.
for words in "" "--help" "--picture"; do
  # shellcheck disable=SC2086
  said=$(report $words 2>&1 > /dev/full) && fail "'$words' to a full disk"
  [[ $said == "nram bench report: the standard output could not be written: No space left on device" ]] ||
    fail "'$words' to a full disk: $said"
done

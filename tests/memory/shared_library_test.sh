#!/usr/bin/env bash
# A C program on the shared library, built as its users build it. Arguments: the program nram, libnram.so.0, the folder
# of the headers, the example.
set -euo pipefail

nram=$(readlink -f "$1")
library=$(readlink -f "$2")
directory=$(mktemp -d -p /tmp --suffix=-nram-shared)
export NRAM_STATE_DIR=$directory/state LD_LIBRARY_PATH=$directory
unset NRAM_POOL NRAM_BUDGET NRAM_COPIES
cleanup() {
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap cleanup EXIT

ln -s "$library" "$directory/libnram.so.0"
ln -s "$library" "$directory/libnram.so"
cc -std=c11 -O1 -Wall -Wextra -Werror -I "$3" -o "$directory/program" "$4" -L "$directory" -lnram
cc -std=c11 -O1 -Wall -Wextra -Werror -I "$3" -o "$directory/heap" -x c - -L "$directory" -lnram << 'C'
#include <nram.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  nram_t *n = nram_open(NULL, NULL);
  char *text = n == NULL ? NULL : nram_malloc(n, 1 << 20);
  if (text == NULL) return fprintf(stderr, "%s\n", nram_error()), 1;
  memset(text, 'x', 1 << 20);
  text = nram_realloc(n, text, 3 << 20);
  if (text == NULL || text[(1 << 20) - 1] != 'x') return 2;
  nram_free(n, text);
  return nram_close(n) == 0 ? 0 : 3;
}
C
"$nram" up --servers=2 --donate=128M > /dev/null
"$directory/program" --mib=32 --budget-mib=8
"$directory/heap"
exported=$(nm -D --defined-only "$library" | grep -E " [TDB] " | grep -v " nram_" || true)
[ -z "$exported" ] || { echo "FAILED: it exports more than nram.h: $exported" >&2; exit 1; }
echo PASSED

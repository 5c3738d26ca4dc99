#!/usr/bin/env bash
# The products of tools/install, tools/deb and tools/demo are there, work, and can be removed again. These tools build,
# which a test that Bazel runs cannot. So `tools/test install` calls this, after which the build has little to do. Needs
# root.
set -euo pipefail
cd "$(dirname "$0")/../.."

directory=$(mktemp -d -p /tmp --suffix=-nram-install)
chmod 755 "$directory"
export NRAM_STATE_DIR=$directory/state PYTHONDONTWRITEBYTECODE=
unset NRAM_POOL NRAM_LIBRARY PYTHONPATH LD_LIBRARY_PATH DESTDIR
nram=
cleanup() {
  [ -z "$nram" ] || "$nram" down > /dev/null 2>&1 || true
  rm -rf --one-file-system "$directory"
}
trap cleanup EXIT
. tests/cli/expect.sh

# --- tools/setup
expect 2 'there is no list "surprise"' tools/setup build surprise
expect 0 "everything is there" tools/setup build run test
# Without apt-get it names the packages. A donor needs those of the product alone.
expect 1 "libfuse3-dev" env PATH=/nonexistent /bin/bash tools/setup build run
all=$(PATH=/nonexistent /bin/bash tools/setup 2>&1 || true)
product=$(PATH=/nonexistent /bin/bash tools/setup build run 2>&1 || true)
for package in slurmd munge etcd-server prometheus openmpi-bin lintian; do
  [[ "$all " == *" $package "* ]] || fail "the tests lack $package"
  [[ "$product " != *" $package "* ]] || fail "a donor would have $package"
done

# --- tools/install
prefix=$directory/prefix
expect 2 "expected an absolute PREFIX" tools/install relative
expect 2 "usage" tools/install
expect 1 "nram is not installed in" tools/install "$prefix" --uninstall
mkdir -p "$prefix/share" # not nram's
expect 0 "nram is in $prefix" tools/install "$prefix"
# A file of an earlier version; the new version lacks it.
echo bin/nram-earlier | tee "$prefix/bin/nram-earlier" >> "$prefix/share/nram/installed"
expect 0 "nram is in $prefix" tools/install "$prefix"
[ ! -e "$prefix/bin/nram-earlier" ] || fail "a file of an earlier version is still there"
nram=$prefix/bin/nram
for program in nram-bench-{dirs,report,work} libnram-run.so; do
  [ -x "$prefix/lib/nram/$program" ] || fail "no $program"
done
expect 0 "usage: nram bench" "$nram" bench --help
for program in nram nram-fsd nram-memserver; do
  said=$("$prefix/bin/$program" --help) || fail "$program --help"
  [[ ${said,,} == *usage* ]] || fail "$program --help says: $said"
done
expect 0 "nram " "$nram" --version
commands=$("$nram" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
[ "$(wc -w <<< "$commands")" -gt 10 ] || fail "commands: $commands"
for command in $commands; do
  grep -q '^\.TH' "$prefix/share/man/man1/nram-$command.1" || fail "no page of nram $command"
done
for section in ENVIRONMENT FILES "EXIT STATUS" "SEE ALSO"; do
  grep -q "^\.SH $section" "$prefix/share/man/man1/nram.1" || fail "nram.1 has no $section"
done
for variable in NRAM_POOL NRAM_TLS_DIR NRAM_KEY_FILE; do
  grep -q "^$variable" "$prefix/share/man/man1/nram.1" || fail "nram.1 does not tell of $variable"
done
for page in man1/nram.1 man3/nram.h.3 man3/nram-managed.h.3 man8/nram-fsd.8 man8/nram-memserver.8; do
  grep -q '^\.TH' "$prefix/share/man/$page" || fail "no page $page"
  grep -q '^[^.]' <<< "$(sed -n '/^\.SH SYNOPSIS/,/^\.SH DESCRIPTION/p' "$prefix/share/man/$page")" ||
    fail "$page: the synopsis is empty"
done
# Each function of the library has a page that tells of it.
functions=$(nm -D --defined-only "$prefix/lib/libnram.so.0" | sed -n 's/.* T \(nram_[a-z_0-9]*\)\(@.*\)\?$/\1/p')
[ "$(wc -w <<< "$functions")" -gt 40 ] || fail "functions: $functions"
for function in $functions; do
  place=$prefix/share/man/man3/$function.3
  [ -e "$place" ] || fail "no page of $function"
  place=$prefix/share/man/$(sed -n 's/^\.so //p' "$place")
  grep -q "^  .*\b$function(" <<< "$(sed 's/\\-/-/g' "$place")" || fail "$place does not tell of $function"
done
bash -c '. "$1" && complete -p nram' _ "$prefix/share/bash-completion/completions/nram" > /dev/null || fail "completion"
grep -q "^ExecStart=$prefix/bin/nram-memserver" "$prefix/lib/systemd/system/nram-memserver.service" || fail "the unit"
cmp deploy/60-nram.rules "$prefix/lib/udev/rules.d/60-nram.rules" || fail "the udev rule"
cmp deploy/nram-sysusers.conf "$prefix/lib/sysusers.d/nram.conf" || fail "the group"
cmp deploy/nram-server-sysusers.conf "$prefix/lib/sysusers.d/nram-server.conf" || fail "the servers' group"
differ=$(diff -r -x '*.service' -x '*.conf' -x '*.rules' -x BUILD -x fortran deploy "$prefix/share/nram" |
  grep -v ": installed$" || true)
[ -z "$differ" ] || fail "deploy/ and its installed files differ: $differ"
wire=$(sed -n 's/^inline constexpr uint32_t kWireVersion\(Lowest\)\? = \(.*\);/\2/p' proto/wire.h | sort -u)
grep -q "This release speaks version $wire alone" deploy/README.md || fail "deploy/README.md tells not of wire $wire"
[ -x "$prefix/share/nram/slurm/prolog.sh" ] || fail "a script that cannot be run"
[ -e "$prefix/share/doc/nram/docs/../deploy/prometheus/nram-alerts.yml" ] || fail "a link of the documents"
python3 - "$prefix/share/doc/nram" <<'T' || fail "links of the documents"
import os, re, sys
count = dead = 0
for folder, _, names in os.walk(sys.argv[1]):
    for name in [name for name in names if name.endswith(".md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", open(f"{folder}/{name}", encoding="utf-8").read()):
            count += 1
            if not os.path.exists(os.path.join(folder, link)):
                dead += 1
                print(f"{folder}/{name}: {link} is not there", file=sys.stderr)
sys.exit(dead > 0 or count < 100)
T
# The files that the package is to have too; those that Python compiles come later.
grep -v '/$' "$prefix/share/nram/installed" > "$directory/installed"

"$nram" up --servers=2 --donate=128M > /dev/null || fail "nram up"
cat > "$directory/program.c" <<'T'
#include <nram.h>
#include <stdio.h>
int main(void) {
  nram_t *memory = nram_open(NULL, NULL);
  if (memory == NULL) return fprintf(stderr, "%s\n", nram_error()), 1;
  int *a = nram_mmap(memory, 1 << 20, NULL, 0);
  if (a == NULL) return fprintf(stderr, "%s\n", nram_error()), 1;
  a[1000] = 42;
  if (nram_flush(memory, a, 1 << 20) != 0) return fprintf(stderr, "%s\n", nram_error()), 1;
  printf("%d\n", a[1000]);
  return nram_munmap(memory, a) != 0 || nram_close(memory) != 0;
}
T
# shellcheck disable=SC2046
cc -Wall -Werror -o "$directory/program" "$directory/program.c" \
  $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nram) || fail "a program cannot be built"
[ "$("$directory/program")" = 42 ] || fail "the program"
# shellcheck disable=SC2046
cc -o "$directory/array" "$prefix/share/doc/nram/examples/array.c" \
  $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nram) || fail "an example cannot be built"
"$directory/array" --mib=16 --budget-mib=4 > /dev/null || fail "an example"
# Programs that may not be traced need the library.
cc -Wall -Werror -o "$directory/untraced" tests/run/untraced.c || fail "untraced cannot be built"
expect 0 "a library is loaded first" "$directory/untraced" "$nram" run -- true
# The C++ face, with all of its headers.
cat > "$directory/published.cc" <<'T'
#include <nram.hpp>
#include <cstdio>
int main() {
  nram::memory::Memory memory, other;
  nram::memory::Arena arena(memory, 1 << 20, "installed");
  std::vector<int, nram::memory::ArenaAllocator<int>> numbers(6, 42, arena);
  numbers.reserve(10);
  std::pmr::vector<double> none(&arena);
  arena.Publish(nram::memory::Description().Add("numbers", numbers.data(), {2, 3}).Add("none", none.data(), {0}));
  if (!arena.AwaitPublished(0, 60000)) return 1;
  nram::memory::Observer seen(other, "installed");
  if (seen.Find<double>("none").size() != 0) return 2;
  std::printf("%d\n", seen.Find<int>("numbers")(1, 2));
}
T
# shellcheck disable=SC2046
for flags in -std=c++17 -std=c++20; do
  c++ $flags -Wall -Wextra -Werror -o "$directory/published" "$directory/published.cc" \
    $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nram) || fail "nram.hpp with $flags"
  [ "$("$directory/published")" = 42 ] || fail "nram.hpp, built with $flags"
done
# Managed memory, and a program written for Rambrain.
cat > "$directory/managed.cc" <<'T'
#include <nram/managed.hpp>
#include <cstdio>
int main() {
  nram::managed<int> numbers(1000, 41);
  nram::adhere<int> here(numbers);
  std::printf("%d\n", ++here[7]);
}
T
# shellcheck disable=SC2046
for flags in -std=c++17 -std=c++20; do
  c++ $flags -Wall -Wextra -Werror -o "$directory/managed" "$directory/managed.cc" \
    $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nram) || fail "managed.hpp with $flags"
  [ "$("$directory/managed")" = 42 ] || fail "managed.hpp, built with $flags"
done
# shellcheck disable=SC2046
c++ -o "$directory/rambrain" tests/managed/rambrain_program.cc \
  $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nram-rambrain) || fail "Rambrain's names"
"$directory/rambrain" > /dev/null 2>&1 || fail "a program written for Rambrain"
# The package finds the library beside it.
cat > "$directory/program.py" <<'T'
import nram
with nram.Memory(budget="4M") as memory:
    mapping = memory.map("1M")
    mapping.buffer[:5] = b"hello"
    print(bytes(mapping.buffer[:5]).decode(), nram.__file__)
T
packages=$prefix/lib/python3/dist-packages
said=$(PYTHONPATH=$packages /usr/bin/python3 "$directory/program.py") || fail "import nram"
[ "$said" = "hello $packages/nram/__init__.py" ] || fail "Python: $said"
[ -d "$packages/nram/__pycache__" ] || fail "nothing was compiled: nothing is tested of its going away"
"$nram" down > /dev/null
nram=
expect 0 "nram is removed from $prefix" tools/install "$prefix" --uninstall
[ "$(find "$prefix" -mindepth 1)" = "$prefix/share" ] || fail "left, or gone: $(find "$prefix")"

# --- tools/try_debian
expect 2 "usage" tools/try_debian trixie
expect 2 'there is no "--surprise"' tools/try_debian trixie "$directory/trixie" --surprise
expect 1 "is not empty" tools/try_debian trixie "$directory"

# --- tools/deb
expect 2 "expected a directory" tools/deb --surprise
# The umask of the user who builds them is not the packages'.
(umask 077 && expect 0 ".deb" tools/deb "$directory")
tests/install/check_packages.sh "$directory" "$directory/installed" || fail "the packages"

# --- tools/demo
expect 2 'unknown word "--surprise"' tools/demo --surprise
expect 2 "expected 64 to 100000 MB" tools/demo --size=1
before=$(ls -d /tmp/nram-demo-* /var/tmp/nram-demo-* 2> /dev/null || true)
tools/demo --quick > "$directory/demo" 2>&1 || fail "the demo: $(cat "$directory/demo")"
grep -q "nramsort" "$directory/demo" || fail "the demo shows no table: $(cat "$directory/demo")"
after=$(ls -d /tmp/nram-demo-* /var/tmp/nram-demo-* 2> /dev/null || true)
[ "$after" = "$before" ] || fail "the demo leaves something"
! grep -q "/tmp/nram-demo-" /proc/self/mounts || fail "the demo leaves a mount"
echo PASSED

#!/usr/bin/env bash
# The products of tools/install, tools/deb and tools/demo are there, work, and go away again. These tools build, which a
# test that Bazel runs cannot. So `tools/test install` calls this, after which the build has little to do. As root.
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

# --- tools/install
prefix=$directory/prefix
expect 2 "expected an absolute PREFIX" tools/install relative
expect 2 "usage" tools/install
expect 1 "nothing of nram is in" tools/install "$prefix" --uninstall
mkdir -p "$prefix/share" # somebody else's
expect 0 "nram is in $prefix" tools/install "$prefix"
expect 0 "nram is in $prefix" tools/install "$prefix"
nram=$prefix/bin/nram
for program in nram-bench-report nram-bench-work; do [ -x "$prefix/bin/$program" ] || fail "no $program"; done
for program in nram nram-fsd nram-memserver nram-bench-dirs; do
  said=$("$prefix/bin/$program" --help) || fail "$program --help"
  [[ ${said,,} == *usage* ]] || fail "$program --help says: $said"
done
expect 0 "nram " "$nram" --version
commands=$("$nram" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
[ "$(wc -w <<< "$commands")" -gt 10 ] || fail "commands: $commands"
for command in $commands; do
  grep -q '^\.TH' "$prefix/share/man/man1/nram-$command.1" || fail "no page of nram $command"
done
for page in man1/nram.1 man3/nram.h.3 man3/nram-managed.h.3 man8/nram-fsd.8 man8/nram-memserver.8; do
  grep -q '^\.TH' "$prefix/share/man/$page" || fail "no page $page"
done
bash -c '. "$1" && complete -p nram' _ "$prefix/share/bash-completion/completions/nram" > /dev/null || fail "completion"
grep -q "^ExecStart=$prefix/bin/nram-memserver" "$prefix/lib/systemd/system/nram-memserver.service" || fail "the unit"
cmp deploy/60-nram.rules "$prefix/lib/udev/rules.d/60-nram.rules" || fail "the udev rule"
cmp deploy/nram-sysusers.conf "$prefix/lib/sysusers.d/nram.conf" || fail "the group"
# What the package is to have too; what Python compiles comes later.
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
expect 0 "nram is gone from $prefix" tools/install "$prefix" --uninstall
[ "$(find "$prefix" -mindepth 1)" = "$prefix/share" ] || fail "left, or gone: $(find "$prefix")"

# --- tools/deb
expect 2 "expected a directory" tools/deb --surprise
expect 0 ".deb" tools/deb "$directory"
package=$(ls "$directory"/nram_*.deb)
root=$directory/root
dpkg-deb -x "$package" "$root"
dpkg-deb -e "$package" "$directory/control"
version=$("$root/usr/bin/nram" --version)
[ "$(dpkg-deb -f "$package" Package)" = nram ] || fail "the package's name"
[ "$(dpkg-deb -f "$package" Version)" = "${version#nram }" ] || fail "the package's version"
[ "$(dpkg-deb -f "$package" Architecture)" = "$(dpkg --print-architecture)" ] || fail "the package's architecture"
[ "$(dpkg-deb -f "$package" Installed-Size)" -gt 1000 ] || fail "its size: $(dpkg-deb -f "$package" Installed-Size) KiB"
[[ $(dpkg-deb -f "$package" Recommends) == *fuse3*python3* ]] || fail "recommends: $(dpkg-deb -f "$package" Recommends)"
[ -z "$(find "$root" ! -user root -o -perm -002 ! -type l)" ] || fail "owners and modes"

# It has what tools/install puts into a prefix, and nothing else but these two.
{
  sed 's|^share/man/.*|&.gz|' "$directory/installed" | grep -vx share/nram/installed
  echo sbin/mount.fuse.nram
  echo share/doc/nram/copyright
} | sort > "$directory/expected"
(cd "$root/usr" && find . ! -type d -printf '%P\n') | sort > "$directory/packed"
diff "$directory/expected" "$directory/packed" >&2 || fail "the package has other files (>) than tools/install (<)"
[ "$(ls "$root")" = usr ] || fail "the package puts something beside /usr: $(ls "$root")"
for file in usr/bin/{nram,nram-fsd,nram-memserver} usr/lib/{libnram,libnram-core}.so.0 usr/include/nram.h{,pp} \
  usr/include/nram/{managed.hpp,compat/rambrain.h} usr/lib/pkgconfig/nram{,-rambrain}.pc \
  usr/share/doc/nram/copyright; do
  [ -s "$root/$file" ] || fail "the package lacks $file"
done
[ "$(readlink "$root/usr/sbin/mount.fuse.nram")" = ../bin/nram-fsd ] || fail "the mount helper"
for library in libnram libnram-core; do
  [ "$(readlink "$root/usr/lib/$library.so")" = $library.so.0 ] || fail "the link $library.so"
done
grep -q "^prefix=/usr$" "$root/usr/lib/pkgconfig/nram.pc" || fail "the package's nram.pc"
for program in nram nram-fsd nram-memserver; do
  "$root/usr/bin/$program" --help > /dev/null || fail "its $program"
done

# It depends on the package of each library that is not its own. One package, say libfuse3-3, of those that dpkg knows
# with such a library is enough.
depends=" $(dpkg-deb -f "$package" Depends | sed 's/([^)]*)//g; s/[,|]/ /g; s/:[a-z]*//g') "
libraries=$(find "$root/usr/bin" "$root/usr/lib" -type f -exec sh -c 'readelf -d "$1" 2> /dev/null' _ {} \; |
  sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' | sort -u)
[[ $libraries == *libfuse3.so* && $libraries == *libgrpc++.so* && $libraries == *libjemalloc.so* ]] ||
  fail "libraries: $libraries"
for library in $libraries; do
  [ ! -e "$root/usr/lib/$library" ] || continue
  owners=$(dpkg-query -S "*/$library" | sed 's/[:,].*//' | sort -u) || fail "nobody has $library"
  found=
  for owner in $owners; do [[ $depends != *" $owner "* ]] || found=1; done
  [ -n "$found" ] || fail "$library is in" $owners ", and the package depends on:$depends"
done

# Pages, completion, units.
for command in $commands; do
  zcat "$root/usr/share/man/man1/nram-$command.1.gz" | grep -q '^\.TH' || fail "no page of nram $command in the package"
done
for page in man1/nram.1 man3/nram.h.3 man3/nram-managed.h.3 man8/nram-fsd.8 man8/nram-memserver.8; do
  zcat "$root/usr/share/man/$page.gz" | grep -q '^\.TH' || fail "no page $page in the package"
done
bash -c '. "$1" && complete -p nram' _ "$root/usr/share/bash-completion/completions/nram" > /dev/null ||
  fail "its completion"
for unit in deploy/*.service; do
  cmp "$unit" "$root/usr/lib/systemd/system/${unit##*/}" || fail "its ${unit##*/}"
  for program in $(grep -o '/usr/bin/nram[a-z-]*' "$unit" | sort -u); do
    [ -x "$root$program" ] || fail "${unit##*/} starts $program, which the package lacks"
  done
done

# Rights of the group nram: the rule names a group that there will be, and the device that programs look for.
rules=$root/usr/lib/udev/rules.d/60-nram.rules
sysusers=$root/usr/lib/sysusers.d/nram.conf
cmp deploy/60-nram.rules "$rules" || fail "its udev rule"
cmp deploy/nram-sysusers.conf "$sysusers" || fail "its group"
device=$(sed -n 's|.*kDevice\[\] = "/dev/\(.*\)";|\1|p' base/wake_latency.h)
for name in "$device" userfaultfd; do
  grep -qx "KERNEL==\"$name\", GROUP=\"nram\", MODE=\"0660\"" "$rules" || fail "no rule for /dev/$name"
done
grep -q '^g nram ' "$sysusers" || fail "nobody makes the group nram"

# The Python package is where python3 looks by itself, and finds the library.
packages=usr/lib/python3/dist-packages
[[ " $(/usr/bin/python3 -I -c 'import site; print(*site.getsitepackages())') " == *" /$packages "* ]] ||
  fail "python3 does not look into /$packages"
for file in client/python/nram/*.py; do
  cmp "$file" "$root/$packages/nram/${file##*/}" || fail "its ${file##*/}"
done
PYTHONPATH=$root/$packages PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c "import nram" || fail "its Python package"

# It is installed and removed as dpkg does it, in a root of its own. dpkg runs the package's scripts inside (chroot), so
# they reach nothing of this machine; udev and systemd are stubs there that say how they were called.
scratch=$directory/scratch
mkdir -p "$scratch"/{var/lib/dpkg/{info,updates},var/log,etc,run,dev,bin}
touch "$scratch/var/lib/dpkg/status"
for program in sh rm stat chmod chown; do
  place=$(command -v $program)
  cp -L "$place" "$scratch/bin/$program"
  for library in $(ldd "$place" | grep -o '/[^ ]*'); do (cd / && cp -L --parents "$library" "$scratch"); done
done
touch "$scratch/dev/null"
echo "root:x:0:" > "$scratch/etc/group"
echo "root:x:0:0:::" > "$scratch/etc/passwd"
in_scratch() { dpkg --root="$scratch" --log="$directory/dpkg.log" --force-depends "$@" > "$directory/said" 2>&1; }
what_is_there() {
  (cd "$scratch" && find . -path ./var/lib/dpkg -prune -o -path ./dpkg-said -prune -o -printf '%M %U:%G %p %l\n' | sort)
}
# expect_gone WHEN: nothing is left but dpkg's own notes.
expect_gone() {
  diff "$directory/before" <(what_is_there) >&2 || fail "left (>), or gone (<), $1"
}
what_is_there > "$directory/before"
in_scratch -i "$package" || fail "it cannot be installed without systemd and udev: $(cat "$directory/said")"
[ "$(dpkg --root="$scratch" -L nram | grep -c /bin/nram)" -ge 3 ] || fail "dpkg does not know what it has installed"
in_scratch -P nram || fail "it cannot be purged: $(cat "$directory/said")"
expect_gone "without systemd and udev"

for program in systemd-sysusers udevadm; do
  printf '#!/bin/sh\necho "%s $*" >> /dpkg-said\n' $program > "$scratch/bin/$program"
  chmod 755 "$scratch/bin/$program"
done
mkdir -p "$scratch/run/udev"
touch "$scratch/run/udev/control" "$scratch/dev/$device" "$scratch/dev/userfaultfd"
chmod 600 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
echo "nram:x:4711:" >> "$scratch/etc/group"
what_is_there > "$directory/before"
in_scratch -i "$package" || fail "it cannot be installed: $(cat "$directory/said")"
[ "$(cat "$scratch/dpkg-said")" = "systemd-sysusers nram.conf
udevadm control --reload
udevadm trigger --subsystem-match=misc" ] || fail "its postinst says to others: $(cat "$scratch/dpkg-said")"
# The name that it says is that of the file, which the real program understands.
mkdir "$root/etc"
systemd-sysusers --root="$root" nram.conf || fail "systemd-sysusers does not understand nram.conf"
grep -q "^nram:" "$root/etc/group" || fail "systemd-sysusers makes no group"

# As udev and Python leave it. A newer version is put over it, and takes no rights from anybody.
chown 0:4711 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
chmod 660 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
mkdir "$scratch/$packages/nram/__pycache__"
touch "$scratch/$packages/nram/__pycache__/__init__.pyc"
in_scratch -i "$package" || fail "it cannot be installed over another: $(cat "$directory/said")"
[ "$(stat -c %g:%a "$scratch/dev/$device")" = 4711:660 ] || fail "an upgrade takes the group's rights"
mkdir -p "$scratch/$packages/nram/__pycache__"
touch "$scratch/$packages/nram/__pycache__/__init__.pyc"
rm "$scratch/dpkg-said"
in_scratch -r nram || fail "it cannot be removed: $(cat "$directory/said")"
[ "$(cat "$scratch/dpkg-said")" = "udevadm control --reload" ] || fail "its postrm says: $(cat "$scratch/dpkg-said")"
rm "$scratch/dpkg-said"
expect_gone "with devices that were the group's"
in_scratch -P nram || fail "it cannot be purged: $(cat "$directory/said")"
[ ! -e "$scratch/dpkg-said" ] || fail "a purge says: $(cat "$scratch/dpkg-said")"
! ls "$scratch/var/lib/dpkg/info" | grep '^nram\.' >&2 || fail "dpkg keeps notes of it"

# --- tools/demo
expect 2 'there is no "--surprise"' tools/demo --surprise
expect 2 "expected 64 to 100000 MB" tools/demo --size=1
before=$(ls -d /tmp/nram-demo-* /var/tmp/nram-demo-* 2> /dev/null || true)
tools/demo --quick > "$directory/demo" 2>&1 || fail "the demo: $(cat "$directory/demo")"
grep -q "nramsort" "$directory/demo" || fail "the demo shows no table: $(cat "$directory/demo")"
after=$(ls -d /tmp/nram-demo-* /var/tmp/nram-demo-* 2> /dev/null || true)
[ "$after" = "$before" ] || fail "the demo leaves something"
! grep -q "/tmp/nram-demo-" /proc/self/mounts || fail "the demo leaves a mount"
echo PASSED

#!/usr/bin/env bash
# The packages of tools/deb: their files, their dependencies, lintian, and dpkg's work with them. check.sh calls this,
# as root.
#
# usage: check_packages.sh DIRECTORY INSTALLED; DIRECTORY has the packages, and INSTALLED is the list of files that
# tools/install puts into a prefix.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/cli/expect.sh

installed=$2
directory=$(mktemp -d -p /tmp --suffix=-nram-packages)
chmod 755 "$directory"
trap 'rm -rf --one-file-system "$directory"' EXIT
names=(libnram-dev libnram0 nram nram-client nram-doc nram-server python3-nram)
programs=(nram-client nram-server libnram0)

# --- Their files
mkdir "$directory/own" "$directory/control"
root=$directory/root # of all packages
: > "$directory/packed"
for name in "${names[@]}"; do
  package=$(ls "$1/${name}_"*.deb)
  own=$directory/own/$name
  dpkg-deb -x "$package" "$own"
  dpkg-deb -x "$package" "$root"
  (cd "$own" && find . ! -type d -printf '%P\n') >> "$directory/packed"
  [ "$(dpkg-deb -f "$package" Package)" = "$name" ] || fail "$name: its name"
  grep -q /usr/share/common-licenses/Apache-2.0 "$own/usr/share/doc/$name/copyright" || fail "$name: no copyright"
  zcat "$own/usr/share/doc/$name/changelog.Debian.gz" | head -1 | grep -q '^nram (' || fail "$name: no changelog"
  dpkg-deb -e "$package" "$directory/control/$name"
  (cd "$own" && md5sum --quiet -c "$directory/control/$name/md5sums") || fail "$name: its checksums"
  [ "$(wc -l < "$directory/control/$name/md5sums")" = "$(find "$own/usr" -type f | wc -l)" ] ||
    fail "$name: files without a checksum"
  [ -z "$(find "$own" ! -user root -o -perm -002 ! -type l)" ] || fail "$name: owners and modes"
done
program_version=$("$root/usr/bin/nram" --version)
program_version=${program_version#nram }
version=$(dpkg-parsechangelog -l tools/debian/changelog -S Version)
[[ $version == "$program_version"-* ]] || fail "the packages' version is $version, and the program's $program_version"
field() { dpkg-deb -f "$(ls "$1/${2}_"*.deb)" "$3"; }
for name in "${names[@]}"; do
  [ "$(field "$1" "$name" Version)" = "$version" ] || fail "$name: its version"
  kind=all
  case "$name" in libnram*|nram-client|nram-server) kind=$(dpkg --print-architecture) ;; esac
  [ "$(field "$1" "$name" Architecture)" = "$kind" ] || fail "$name: its architecture"
done
for name in "${names[@]}"; do
  [[ $(field "$1" "$name" Maintainer) == *?" <"*@*">" ]] || fail "$name: its maintainer"
  [ "$name" = nram ] || [ "$(field "$1" "$name" Breaks)" = "nram (<< 0.1-1~)" ] || fail "$name: its Breaks"
  [ "$(field "$1" "$name" Breaks)" = "$(field "$1" "$name" Replaces)" ] || fail "$name: its Replaces"
done
[ "$(field "$1" nram-client Installed-Size)" -gt 1000 ] || fail "the client's size"
[[ $(field "$1" nram-client Recommends) == *fuse3*python3* ]] || fail "the client recommends too little"
[ "$(field "$1" nram Depends)" = "nram-server (= $version), nram-client (= $version)" ] ||
  fail "the dependencies of nram"
[ "$(field "$1" libnram-dev Depends)" = "libnram0 (= $version)" ] || fail "headers and library may differ"

# All packages together have the files of tools/install and the files named here, each file once.
{
  sed 's|^share/man/.*|&.gz|' "$installed" | grep -vx share/nram/installed | sed 's|^|usr/|'
  echo usr/sbin/mount.fuse.nram
  echo usr/share/man/man8/mount.fuse.nram.8.gz
  for name in "${names[@]}"; do
    echo "usr/share/doc/$name/copyright"
    echo "usr/share/doc/$name/changelog.Debian.gz"
  done
  echo usr/share/lintian/overrides/nram-client
  for name in nram-client nram-server; do echo "etc/needrestart/conf.d/$name.conf"; done
  echo etc/logrotate.d/nram-client
} | LC_ALL=C sort > "$directory/expected"
LC_ALL=C sort "$directory/packed" | diff "$directory/expected" - >&2 ||
  fail "the packages have other files (>) than tools/install (<)"
has() { # package file...
  local name=$1 file
  shift
  for file in "$@"; do [ -s "$directory/own/$name/usr/$file" ] || fail "$name lacks $file"; done
}
has nram-server bin/nram-memserver lib/systemd/system/nram-memserver.service share/nram/slurm/{prolog,epilog}.sh \
  lib/sysusers.d/nram-server.conf share/man/man8/nram-memserver.8.gz
has nram-client bin/{nram,nram-fsd} lib/systemd/system/nram-{{mount,swap}@,swap-end}.service \
  share/man/man1/nram-mount.1.gz \
  share/bash-completion/completions/nram sbin/mount.fuse.nram lib/udev/rules.d/60-nram.rules lib/sysusers.d/nram.conf
has nram-client lib/nram/{libnram-run.so,nram-bench-{dirs,report,work}}
has libnram0 lib/{libnram,libnram-core}.so.0
has libnram-dev include/nram.h{,pp} include/nram_arrays.hpp include/nram/{managed.hpp,compat/rambrain.h} \
  lib/pkgconfig/nram{,-rambrain}.pc share/man/man3/nram.h.3.gz share/nram/fortran/nram.f90
has nram-doc share/nram/prometheus/nram-alerts.yml share/nram/kubernetes/base/daemonset.yaml \
  share/doc/nram/docs/operating.md share/doc/nram/examples/array.c
[ -x "$root/usr/share/nram/slurm/prolog.sh" ] || fail "a script that cannot be run"
[ "$(readlink "$root/usr/sbin/mount.fuse.nram")" = ../bin/nram-fsd ] || fail "the mount helper"
for library in libnram libnram-core; do
  [ "$(readlink "$root/usr/lib/$library.so")" = $library.so.0 ] || fail "the link $library.so"
done
grep -q "^prefix=/usr$" "$root/usr/lib/pkgconfig/nram.pc" || fail "nram.pc"
for program in nram nram-fsd nram-memserver; do
  "$root/usr/bin/$program" --help > /dev/null || fail "its $program"
done
for place in "$root"/usr/{bin,sbin}/*; do
  program=${place##*/}
  ls "$root/usr/share/man/"man[18]"/$program".[18].gz > /dev/null || fail "$program has no page"
done
zcat "$root/usr/share/man/man8/mount.fuse.nram.8.gz" | grep -q "^mount .*fuse" || fail "the page of mount.fuse.nram"

# Programs and libraries are stripped, and work.
for binary in "$root"/usr/bin/* "$root"/usr/lib/nram/{nram-bench-work,libnram-run.so} "$root"/usr/lib/libnram*.so.0; do
  ! readelf -S "$binary" | grep "\.symtab\|\.debug" >&2 || fail "$binary is not stripped"
done
expect 0 "usage: nram bench" "$root/usr/bin/nram" bench --help
cc -o "$directory/untraced" tests/run/untraced.c || fail "untraced cannot be built"
mkdir "$directory/state"
export NRAM_STATE_DIR=$directory/state
trap '"$root/usr/bin/nram" down > /dev/null 2>&1 || true; rm -rf --one-file-system "$directory"' EXIT
"$root/usr/bin/nram" up --servers=1 --donate=128M > /dev/null || fail "its nram up"
expect 0 "a library is loaded first" "$directory/untraced" "$root/usr/bin/nram" run -- true
"$root/usr/bin/nram" down > /dev/null || fail "its nram down"

# No error for lintian. Its warnings are not looked at: some differ between releases.
if command -v lintian > /dev/null; then
  lintian --fail-on error "$1"/*.deb > "$directory/said" 2>&1 || fail "lintian: $(grep '^E' "$directory/said")"
else
  not_tested "the packages by lintian, which is not installed: tools/setup test installs it"
fi

# Each package depends on the packages of its foreign libraries. One package, say libfuse3-3, of those that dpkg knows
# with such a library is enough.
every=
for name in "${programs[@]}"; do
  depends=" $(field "$1" "$name" Depends | sed 's/([^)]*)//g; s/[,|]/ /g; s/:[a-z]*//g') "
  libraries=$(find "$directory/own/$name/usr" -type f -exec sh -c 'readelf -d "$1" 2> /dev/null' _ {} \; |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' | sort -u)
  every="$every $libraries"
  for library in $libraries; do
    [ ! -e "$root/usr/lib/$library" ] || continue
    owners=$(dpkg-query -S "*/$library" | sed 's/[:,].*//' | sort -u) || fail "no package has $library"
    found=
    for owner in $owners; do [[ $depends != *" $owner "* ]] || found=1; done
    [ -n "$found" ] || fail "$library is in" $owners ", and $name depends on:$depends"
  done
done
[[ $every == *libfuse3.so* && $every == *libgrpc++.so* && $every == *libjemalloc.so* ]] || fail "libraries: $every"

# Pages, completion, units.
commands=$("$root/usr/bin/nram" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
for page in $(printf 'man1/nram-%s.1 ' $commands) man1/nram.1 man3/nram.h.3 man3/nram-managed.h.3 man8/nram-fsd.8 \
  man8/nram-memserver.8; do
  zcat "$root/usr/share/man/$page.gz" | grep -q '^\.TH' || fail "no page $page"
done
bash -c '. "$1" && complete -p nram' _ "$root/usr/share/bash-completion/completions/nram" > /dev/null ||
  fail "its completion"
for unit in deploy/*.service; do
  cmp "$unit" "$root/usr/lib/systemd/system/${unit##*/}" || fail "its ${unit##*/}"
  for program in $(grep -o '/usr/bin/nram[a-z-]*' "$unit" | sort -u); do
    place=$(ls -d "$directory/own/"*"/usr/lib/systemd/system/${unit##*/}")
    [ -x "${place%/lib/*}/${program#/usr/}" ] || fail "${unit##*/} starts $program, which its package lacks"
  done
done

# Rights of the groups: the rule names a group that the packages create, and the device that programs look for.
rules=$root/usr/lib/udev/rules.d/60-nram.rules
device=$(sed -n 's|.*kDevice\[\] = "/dev/\(.*\)";|\1|p' base/host/wake_latency.h)
for name in "$device" userfaultfd; do
  grep -qx "KERNEL==\"$name\", GROUP=\"nram\", MODE=\"0660\"" "$rules" || fail "no rule for /dev/$name"
done
# The names that the postinsts print are files, which the real program understands.
for group in nram nram-server; do
  systemd-sysusers --root="$root" $group.conf || fail "systemd-sysusers does not understand $group.conf"
  grep -q "^$group:" "$root/etc/group" || fail "systemd-sysusers makes no group $group"
done

# The Python package is where python3 looks by itself, and finds the library.
packages=usr/lib/python3/dist-packages
[[ " $(/usr/bin/python3 -I -c 'import site; print(*site.getsitepackages())') " == *" /$packages "* ]] ||
  fail "python3 does not look into /$packages"
PYTHONPATH=$root/$packages PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c "import nram" || fail "its Python package"

# needrestart's settings are Perl, and leave nram's units alone, those and no others.
perl -e '
  our %nrconf = (override_rc => {}); my ($folder) = @ARGV;
  for my $file (glob "$folder/*.conf") { local $/; open my $in, "<", $file or die; eval <$in>; die $@ if $@ }
  my $kept = sub { my $unit = shift; grep { $unit =~ /$_/ && !$nrconf{override_rc}{$_} } keys %{$nrconf{override_rc}} };
  $kept->($_) or die "$_ is restarted\n"
    for "nram-memserver.service", "nram-mount\@mnt-a.service", "nram-swap\@8G.service";
  !$kept->($_) or die "$_ is not restarted\n" for "cron.service", "nram-memserver.service.d", "nfs-nram-mount\@a";
' "$root/etc/needrestart/conf.d" || fail "the settings of needrestart"

# logrotate reads its settings, where it is installed.
if command -v logrotate > /dev/null; then
  logrotate --debug --state "$directory/logrotate" "$root/etc/logrotate.d/nram-client" > "$directory/said" 2>&1 ||
    fail "the settings of logrotate: $(cat "$directory/said")"
  ! grep -i "error:" "$directory/said" >&2 || fail "the settings of logrotate"
else
  not_tested "the settings of logrotate, which is not installed"
fi

# --- dpkg, in a root of its own. It runs their scripts inside (chroot), so they reach nothing of
# this machine; udev and systemd are stubs there that say how they were called.
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
debs=()
for name in "${names[@]}"; do debs+=("$(ls "$1/${name}_"*.deb)"); done
in_scratch() { dpkg --root="$scratch" --log="$directory/dpkg.log" --force-depends "$@" > "$directory/said" 2>&1; }
what_is_there() {
  (cd "$scratch" && find . -path ./var/lib/dpkg -prune -o -path ./dpkg-said -prune -o -printf '%M %U:%G %p %l\n' | sort)
}
# expect_gone WHEN: nothing is left but dpkg's own notes.
expect_gone() { diff "$directory/before" <(what_is_there) >&2 || fail "left (>), or gone (<), $1"; }
# expect_said WHEN LINE...: the stubs were called with these lines, in some order.
expect_said() {
  local when=$1
  shift
  [ "$(sort "$scratch/dpkg-said" 2> /dev/null)" = "$(printf '%s\n' "$@" | sort)" ] ||
    fail "$when, the scripts say to others: $(cat "$scratch/dpkg-said")"
  rm -f "$scratch/dpkg-said"
}
what_is_there > "$directory/before"
in_scratch -i "${debs[@]}" || fail "they cannot be installed without systemd and udev: $(cat "$directory/said")"
in_scratch -P "${names[@]}" || fail "they cannot be purged: $(cat "$directory/said")"
expect_gone "without systemd and udev"

cat > "$scratch/bin/systemctl" <<'T2'
#!/bin/sh
echo "systemctl $*" >> /dpkg-said
[ "$1" != list-units ] || echo "nram-mount@mnt-a.service loaded active running nram filesystem on /mnt/a"
# As the real one, it says nothing of a unit whose stop has failed.
exit 0
T2
for program in systemd-sysusers udevadm chattr; do
  printf '#!/bin/sh\necho "%s $*" >> /dpkg-said\n' $program > "$scratch/bin/$program"
done
printf '#!/bin/sh\n[ "$*" = "--unescape --path mnt-a" ] && echo /mnt/a\n' > "$scratch/bin/systemd-escape"
chmod 755 "$scratch/bin/"{systemctl,systemd-sysusers,systemd-escape,udevadm,chattr}
mkdir -p "$scratch/run/"{udev,systemd/system} "$scratch/etc/systemd/system/multi-user.target.wants"
touch "$scratch/run/udev/control" "$scratch/dev/$device" "$scratch/dev/userfaultfd"
chmod 600 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
echo "nram:x:4711:" >> "$scratch/etc/group"
what_is_there > "$directory/before"
begin=("systemd-sysusers nram.conf" "systemd-sysusers nram-server.conf" "udevadm control --reload"
  "udevadm trigger --subsystem-match=misc" "systemctl daemon-reload" "systemctl daemon-reload")
in_scratch -i "${debs[@]}" || fail "they cannot be installed: $(cat "$directory/said")"
expect_said "at the installation" "${begin[@]}"

# As udev, Python and an administrator leave it. A newer version is put over it: it takes no rights away. It
# restarts and stops nothing although all units run, and says so.
chown 0:4711 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
chmod 660 "$scratch/dev/$device" "$scratch/dev/userfaultfd"
for unit in nram-memserver nram-mount@mnt-a nram-swap@8G nram-swap-end; do
  ln -s /usr/lib/systemd/system/x "$scratch/etc/systemd/system/multi-user.target.wants/$unit.service"
done
in_scratch -i "${debs[@]}" || fail "they cannot be installed over others: $(cat "$directory/said")"
expect_said "at an upgrade" "${begin[@]}" "systemctl is-active --quiet nram-memserver" \
  "systemctl is-active --quiet nram-mount@* nram-swap@*"
[ "$(grep -c "in their old version\|in its old version" "$directory/said")" = 2 ] ||
  fail "an upgrade does not say that all units continue: $(cat "$directory/said")"
[ "$(stat -c %g:%a "$scratch/dev/$device")" = 4711:660 ] || fail "an upgrade takes the group's rights"
mkdir -p "$scratch/$packages/nram/__pycache__"
touch "$scratch/$packages/nram/__pycache__/__init__.pyc"

# A swap area that the kernel uses keeps the client installed, with its mounts, whatever systemd says of it; also where
# there is no systemd.
for active in true false; do
  cat > "$scratch/nram-$active" <<T2
#!/bin/sh
case "\$1" in
  swaps) echo '[ { "active": $active } ]' ;;
  umount) echo "nram \$*" >> /dpkg-said && [ ! -e /in-use ] ;;
esac
T2
  chmod 755 "$scratch/nram-$active"
done
cp "$scratch/nram-true" "$scratch/usr/bin/nram"
for systemd in yes no; do
  [ $systemd = yes ] || mv "$scratch/run/systemd" "$scratch/run/none"
  ! in_scratch -r nram nram-client || fail "a package goes away below its swap (systemd: $systemd)"
  grep -q "the kernel still swaps to the pool" "$directory/said" || fail "it says: $(cat "$directory/said")"
  [ -x "$scratch/usr/bin/nram" ] || fail "the program goes away below its swap (systemd: $systemd)"
  ! grep "stop.*nram-mount" "$scratch/dpkg-said" || fail "mounts end although the package remains"
done
mv "$scratch/run/none" "$scratch/run/systemd"
cp "$scratch/nram-false" "$scratch/usr/bin/nram"
rm -f "$scratch/nram-"{true,false} "$scratch/dpkg-said"
# So do programs that use a unit's mount.
touch "$scratch/in-use"
! in_scratch -r nram nram-client || fail "a package goes away below a mount in use"
grep -q "from the programs that use /mnt/a" "$directory/said" || fail "it says: $(cat "$directory/said")"
[ -x "$scratch/usr/bin/nram" ] || fail "the program goes away below a mount in use"
grep -qx "nram umount /mnt/a" "$scratch/dpkg-said" || fail "the mount is not tried"
! grep "stop.*nram-mount" "$scratch/dpkg-said" || fail "mounts in use end"
rm -f "$scratch/in-use" "$scratch/dpkg-said"
in_scratch -r "${names[@]}" || fail "they cannot be removed: $(cat "$directory/said")"
expect_said "at the removal" "systemctl stop nram-memserver" "systemctl stop nram-swap@*" \
  "systemctl list-units --plain --no-legend --state=active nram-mount@*" "nram umount /mnt/a" \
  "systemctl stop nram-swap-end nram-mount@*" "chattr -i /mnt/a" "udevadm control --reload" \
  "systemctl daemon-reload" "systemctl daemon-reload"
in_scratch -P "${names[@]}" || fail "they cannot be purged: $(cat "$directory/said")"
rm -f "$scratch/dpkg-said"
expect_gone "with devices that were the group's"
! ls "$scratch/var/lib/dpkg/info" | grep '^\(lib\|python3-\)\?nram' >&2 || fail "dpkg keeps notes of them"

# The earlier version has one package: its files are moved to the new packages.
old=$directory/old
mkdir -p "$old/DEBIAN" "$old/usr/bin" "$old/usr/lib/python3/dist-packages/nram"
echo old | tee "$old/usr/bin/nram" "$old/usr/bin/nram-memserver" > "$old/usr/lib/python3/dist-packages/nram/__init__.py"
printf 'Package: nram\nVersion: %s\nArchitecture: amd64\nMaintainer: the nram project\nDescription: old\n' \
  "$program_version" > "$old/DEBIAN/control"
dpkg-deb --root-owner-group --build "$old" "$directory/nram-old.deb" > /dev/null
in_scratch -i "$directory/nram-old.deb" || fail "the old package cannot be installed: $(cat "$directory/said")"
in_scratch --auto-deconfigure -i "${debs[@]}" || fail "the old package cannot be replaced: $(cat "$directory/said")"
[ "$(dpkg --root="$scratch" -S /usr/bin/nram-memserver)" = "nram-server: /usr/bin/nram-memserver" ] ||
  fail "whose is it?"
cmp "$scratch/usr/bin/nram" "$root/usr/bin/nram" || fail "the old program is still there"
echo "the packages: passed"

#!/usr/bin/env bash
# A whole machine that runs out of memory: a guest with little RAM swaps to memory servers on this host, over a
# (virtual) network.
#
#   tests/swap/guest/run.sh [--rounds=N] [--memory-mib=N] [--touch-mib=N] [--kvm]
#
# Needs qemu-system-x86, busybox-static and a kernel package to take a kernel from (linux-image-cloud-amd64; downloaded,
# not installed). --kvm uses KVM; without it the guest is emulated, ten times slower with the same kernel. Builds
# nothing: run `bazel build //tools/nram //tests/swap:pressure` first. The guest's console goes to standard output. Exit
# codes: 0 passed; 1 failed; 2 stalled (no sign of life for a minute).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

rounds=3
memory=384
touch_mib=900
accelerator=tcg
for word in "$@"; do
  case "$word" in
    --kvm) accelerator=kvm ;;
    --rounds=*) rounds=${word#*=} ;;
    --memory-mib=*) memory=${word#*=} ;;
    --touch-mib=*) touch_mib=${word#*=} ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
for program in qemu-system-x86_64 busybox dpkg-deb cpio; do
  command -v $program > /dev/null || { echo "run.sh: $program is missing" >&2; exit 1; }
done

work=$(mktemp -d -p /tmp --suffix=-nram-guest)
export NRAM_STATE_DIR=$work/state
unset NRAM_POOL
nram=$top/bazel-bin/tools/nram/nram
qemu=
cleanup() {
  trap '' INT TERM HUP
  if [ -n "$qemu" ]; then
    kill -KILL "$qemu" 2> /dev/null || true
    wait "$qemu" 2> /dev/null || true
  fi
  "$nram" down > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# The kernel, and the modules that the guest needs.
image=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
(cd "$work" && apt-get -o APT::Sandbox::User=root download -qq "$image" && dpkg-deb -x "$image"*.deb kernel)
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,modules,lib64,etc}
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
  failover net_failover virtio_net fuse loop; do
  file=$(find "$work/kernel" -name "$module.ko*" | head -1)
  [ -n "$file" ] || continue  # built in
  cp "$file" "$root/modules/"
done
# Programs and their libraries.
busybox=$(command -v busybox)
cp "$busybox" "$root/bin/busybox"
for applet in sh mount insmod ip cat cut awk sleep sync poweroff dd grep tr rm mkdir echo head; do
  ln -s busybox "$root/bin/$applet"
done
programs=("$nram" "$top/bazel-bin/fsd/nram-fsd" "$top/bazel-bin/tests/swap/pressure" "$(command -v mkswap)")
for program in "${programs[@]}"; do
  cp -L "$program" "$root/bin/"
  # Libraries of the build stand beside the program.
  ldd "$program" | awk '/=> \// {print $3} /^\t\/lib64/ {print $1}' | while read -r library; do
    mkdir -p "$root/$(dirname "$library")"
    cp -Ln "$library" "$root/$library"
  done
done
cp "$here/init.sh" "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 > "$work/initrd"

"$nram" up --servers=2 --donate=$((touch_mib + 256))M > /dev/null
# The guest sees the host as 10.0.2.2; there it reaches servers on the host's loopback.
pool=$(sed -n 's/^.*:\([0-9]*\)$/10.0.2.2:\1/p' "$NRAM_STATE_DIR/pool" | paste -sd,)
echo "run.sh: a guest with $memory MiB of RAM touches $touch_mib MiB, $rounds rounds, accelerator $accelerator"

stall() {
  echo "run.sh: STALLED: no sign of life for a minute; what the guest's kernel says:" >&2
  "$here/ask.py" "$work" || true
  sed -n "$((lines + 1)),\$p" "$work/console" >&2
  exit 2
}
settings="nram.pool=$pool nram.rounds=$rounds nram.mib=$touch_mib nram.swap=$((touch_mib + 64))M"
qemu-system-x86_64 -machine accel=$accelerator -cpu max -smp 2 -m "$memory" -display none -no-reboot \
  -chardev "socket,id=console,path=$work/serial,server=on,wait=off,logfile=$work/console" -serial chardev:console \
  -monitor "unix:$work/monitor,server=on,wait=off" \
  -kernel "$(find "$work/kernel/boot" -name 'vmlinuz-*')" -initrd "$work/initrd" \
  -append "console=ttyS0 panic=-1 loglevel=4 sysrq_always_enabled $settings" \
  -netdev user,id=net -device virtio-net-pci,netdev=net > "$work/qemu.log" 2>&1 < /dev/null &
qemu=$!
touch "$work/console"
lines=0
silent=0
while kill -0 "$qemu" 2> /dev/null; do
  read -rt 1 <> <(:) || true
  now=$(wc -l < "$work/console")
  if [ "$now" -gt "$lines" ]; then
    sed -n "$((lines + 1)),${now}p" "$work/console" | grep -v '^BEAT' || true
    lines=$now
    silent=0
  else
    silent=$((silent + 1))
    [ $silent -lt 60 ] || stall
  fi
done
qemu=  # it has ended
sed -n "$((lines + 1)),\$p" "$work/console" | grep -v '^BEAT' || true
grep -q '^GUEST: PASSED' "$work/console"

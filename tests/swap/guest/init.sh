#!/bin/sh
# The first process of the guest that run.sh starts. It swaps to memory servers on the host, and needs that swap. The
# kernel's command line sets nram.pool, nram.rounds, nram.mib (that programs touch), nram.swap.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /run /tmp
mount -t tmpfs -o size=16m run /run
for word in $(cat /proc/cmdline); do
  case $word in
    nram.pool=*) pool=${word#*=} ;;
    nram.rounds=*) rounds=${word#*=} ;;
    nram.mib=*) mib=${word#*=} ;;
    nram.swap=*) swap=${word#*=} ;;
  esac
done
# Modules need each other; repeating finds the order.
for _ in 1 2 3 4; do
  for module in /modules/*; do insmod "$module" 2> /dev/null; done
done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2

finish() {
  echo "GUEST: $*"
  sync
  poweroff -f
}
# The host watches for these lines: if they stop for too long, the machine hangs.
(while :; do
  echo "BEAT $(cut -d' ' -f1 /proc/uptime)" \
    "$(awk '/^MemFree/ {f = $2} /^SwapFree/ {s = $2} END {print f, s}' /proc/meminfo)"
  sleep 1
done) &
echo 65536 > /proc/sys/vm/min_free_kbytes
echo 0 > /proc/sys/vm/watermark_boost_factor
echo 100 > /proc/sys/vm/swappiness
nram swapon "$swap" --pool="$pool" || finish "FAILED: swapon"
NRAM_POOL=$pool nram doctor swap
grep -E 'MemTotal|SwapTotal' /proc/meminfo

wrong() { # exit code, what
  [ "$1" -eq 0 ] || finish "FAILED: $2 ended with $1"
}
round=0
while [ $round -lt "$rounds" ]; do
  round=$((round + 1))
  pressure random $((mib / 2)) 8 $round > /run/a &
  first=$!
  pressure random $((mib / 2)) 8 1$round > /run/b &
  second=$!
  # Page cache beside it: the programs' own files and this one, which the root file system cannot drop.
  dd if=/dev/zero of=/run/filler bs=1M count=12 2> /dev/null
  wait $first
  wrong $? "pressure random"
  wait $second
  wrong $? "pressure random"
  pressure fork $((mib * 2 / 3)) 5 $round > /run/c
  wrong $? "pressure fork"
  pressure fill "$mib" 0 $round > /run/d
  wrong $? "pressure fill"
  rm -f /run/filler
  echo "ROUND $round of $rounds: $(cat /run/a /run/b /run/c /run/d | tr '\n' ' ')"
done
nram swaps --pool="$pool"
nram swapoff || finish "FAILED: swapoff"
finish "PASSED $round rounds"
